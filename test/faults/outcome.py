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

"""The outcome of faults, as ``build/faults/result.json`` holds it."""

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
    The outcome of one fault.

    :ivar promise: the condition that must hold, in words.
    :ivar status: ``held``, ``broken``, or ``absent``: it can't run here, for *reason*.
    :ivar frames_in: frames that the camera published during the fault; 0 if none should flow.
    :ivar frames_out: of these, frames that the witness received or that were detected on.
    :ivar drops: the remaining frames, by reason.
    :ivar leaks: resources held in addition to those before, by kind, in all surviving processes.
    :ivar zero: all other counts that must be zero.
    :ivar figures: further measurements, without a limit.
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
        """Set the status to broken if a count that must be zero isn't."""
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
        return {
            **vars(self),
            **{name: dict(getattr(self, name)) for name in ('drops', 'leaks', 'zero', 'figures')},
        }


@dataclass(frozen=True)
class Result:
    """The outcomes of all faults of a run; *short*: the reduced form, as in CI."""

    outcomes: tuple[Outcome, ...]
    short: bool
    seed: int

    @property
    def holds(self) -> bool:
        """Whether a fault ran and no promise was broken; absent faults break none."""
        found = {outcome.status for outcome in self.outcomes}
        return HELD in found and BROKEN not in found

    def as_dict(self) -> dict[str, Any]:
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
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_dict(), indent=1) + '\n', encoding='utf-8')

    def table(self) -> str:
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
