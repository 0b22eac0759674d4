# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""What came of a fault, as ``build/faults/result.json`` has it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
import json
import os
from pathlib import Path
import platform
from typing import Any

VERSION = 1
HELD, BROKEN, ABSENT = 'held', 'broken', 'absent'


@dataclass
class Outcome:
    """
    One fault's.

    :ivar promise: what has to hold, in words.
    :ivar status: ``held``, ``broken``, or ``absent``: it could not be done here, *reason* says
        why.
    :ivar frames_in: frames that the camera published while it was looked at; 0 where none were
        meant to flow.
    :ivar frames_out: of these, those that the witness received or that were detected on.
    :ivar drops: the others, by reason.
    :ivar leaks: what was held more than before, by kind, in all processes that live on.
    :ivar zero: everything else that must be zero.
    :ivar figures: what was measured besides; no bar.
    """

    name: str
    group: str
    promise: str
    status: str = HELD
    reason: str = ''
    seconds: float = 0.0
    frames_in: int = 0
    frames_out: int = 0
    drops: Counter[str] = field(default_factory=Counter)
    leaks: Counter[str] = field(default_factory=Counter)
    zero: Counter[str] = field(default_factory=Counter)
    figures: dict[str, float | str] = field(default_factory=dict)

    def judge(self) -> None:
        """Broken, if anything isn't zero that must be."""
        wrong = [
            f'{count} {kind}'
            for counts in (self.leaks, self.zero)
            for kind, count in counts.items()
            if count
        ]
        if wrong:
            self.status = BROKEN
            self.reason = '; '.join(filter(None, [self.reason, ', '.join(wrong)]))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **vars(self),
            **{name: dict(getattr(self, name)) for name in ('drops', 'leaks', 'zero', 'figures')},
        }


@dataclass(frozen=True)
class Result:
    """
    All of a run.

    :ivar short: the reduced form, as in CI.
    """

    outcomes: tuple[Outcome, ...]
    short: bool
    seed: int

    @property
    def holds(self) -> bool:
        """
        Whether something was measured and no promise was broken.

        What is absent because the machine lacks a part is reported, and isn't broken; see
        :class:`~faults.harness.Fault`.
        """
        found = {outcome.status for outcome in self.outcomes}
        return HELD in found and BROKEN not in found

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            'version': VERSION,
            'date': datetime.now(timezone.utc).date().isoformat(),
            'short': self.short,
            'seed': self.seed,
            'machine': {
                'kernel': platform.release(),
                'cpus': os.cpu_count() or 0,
                'python': platform.python_version(),
            },
            'pass': self.holds,
            'faults': [outcome.as_dict() for outcome in self.outcomes],
        }

    def write(self, path: Path) -> None:
        """As JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_dict(), indent=1) + '\n', encoding='utf-8')

    def table(self) -> str:
        """For people: a line for each fault."""
        lines = [
            f'{"fault":<46} {"s":>6} {"in":>7} {"out":>7} {"dropped":>8} {"leaks":>6}  verdict'
        ]
        for each in self.outcomes:
            numbers = (
                f'{each.seconds:6.1f} {each.frames_in:7d} {each.frames_out:7d} '
                f'{each.drops.total():8d} {each.leaks.total():6d}'
            )
            lines.append(
                f'{each.group + ": " + each.name:<46} {numbers}  '
                f'{each.status}{": " * bool(each.reason)}{each.reason}'
            )
        broken = sum(each.status == BROKEN for each in self.outcomes)
        absent = [each for each in self.outcomes if each.status == ABSENT]
        lines.append(
            f'{len(self.outcomes)} faults, {broken} broken promises, {len(absent)} absent'
        )
        lines += [f'NOT MEASURED: {each.group}: {each.name}: {each.reason}' for each in absent]
        lines += ['NOTHING WAS MEASURED'] * (len(absent) == len(self.outcomes))
        return '\n'.join(lines)
