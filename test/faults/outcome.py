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

"""The outcome of faults, as ``build/faults/result.json`` holds it, and the account of frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
import json
import os
from pathlib import Path
import platform
from typing import Any

HELD, BROKEN, ABSENT = 'held', 'broken', 'absent'
WITNESS, INFERENCE = 'witness', 'inference'
"""Who may stand by; see :class:`~faults.harness.Fault`."""
MOST_PAUSE_S = 1.0
"""How long a bystander may be without a frame, besides the time that nothing ran.

Two shared processors may keep any process from running."""
LEAST_RATE = 0.5
"""The share of the camera's frames that it must publish.

A camera that starves publishes less and loses nothing."""


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
        counts = [*self.leaks.items(), *self.zero.items()]
        if wrong := ', '.join(f'{count} {kind}' for kind, count in counts if count):
            self.status = BROKEN
            self.reason = '; '.join(filter(None, [self.reason, wrong]))

    def as_dict(self) -> dict[str, Any]:
        kinds = (self.drops, self.leaks, self.zero)
        return vars(self) | dict(zip(('drops', 'leaks', 'zero'), map(dict, kinds), strict=True))


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
            'version': 1,
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
            f'{"fault":<46} {"s":>6} {"in":>7} {"out":>7} {"dropped":>8} {"leaks":>6}  verdict',
            *(
                f'{each.group + ": " + each.name:<46} {each.seconds:6.1f} {each.frames_in:7d} '
                f'{each.frames_out:7d} {each.drops.total():8d} {each.leaks.total():6d}  '
                f'{each.status}{": " * bool(each.reason)}{each.reason}'
                for each in self.outcomes
            ),
        ]
        broken = sum(each.status == BROKEN for each in self.outcomes)
        absent = [each for each in self.outcomes if each.status == ABSENT]
        lines += [f'{len(self.outcomes)} faults, {broken} broken promises, {len(absent)} absent']
        lines += [f'NOT MEASURED: {each.group}: {each.name}: {each.reason}' for each in absent]
        lines += ['NOTHING WAS MEASURED'] * (len(absent) == len(self.outcomes))
        return '\n'.join(lines)


@dataclass
class Stretch:
    """
    Frames of one connection and one pool of the camera.

    :ivar connection: number of connections so far, without those to forgotten cameras.
    :ivar pool: the upper half of its frames' ``buffer_uid``, which no other pool has.
    :ivar captured: capture time of each received frame.
    :ivar dropped: frames that the link dropped after *first_ns* and before the last frame.
    """

    first_ns: int
    dropped_before: int
    connection: int
    pool: int
    last_ns: int = 0
    captured: list[int] = field(default_factory=list)
    dropped: int = 0
    sequence: int = -1

    def continued(self) -> Stretch:
        """Return an empty stretch that starts after this one's last frame."""
        before, last = self.dropped_before + self.dropped, self.last_ns
        return Stretch(last + 1, before, self.connection, self.pool, last, sequence=self.sequence)


@dataclass(frozen=True)
class Tally:
    """
    The counted frames of one fault.

    :ivar came: published frames.
    :ivar received: published frames that the witness received.
    :ivar newest_wins: frames that the link dropped because the witness was too slow.
    :ivar not_connected: frames between two connections of the witness, when the camera was gone or
        had new buffers.
    :ivar span_s: seconds from the first to the last frame.
    """

    came: int
    received: int
    newest_wins: int
    not_connected: int
    span_s: float


def tally(stretches: Sequence[Stretch], published: Collection[int]) -> Tally:
    """
    Count from the last frame before the fault to the last frame of all.

    :param stretches: at least one; the first continues the state before the fault.
    :param published: capture time of each frame in the camera's log.
    """
    first_ns, last_ns = stretches[0].first_ns, stretches[-1].last_ns
    received = {captured for stretch in stretches for captured in stretch.captured}
    # A process may be killed after publishing a frame and before logging it.
    came = {captured for captured in received.union(published) if first_ns <= captured <= last_ns}
    seen = sum(
        any(stretch.first_ns <= captured <= stretch.last_ns for stretch in stretches)
        for captured in came
    )
    dropped = sum(stretch.dropped for stretch in stretches)
    return Tally(
        len(came), len(received), dropped, len(came) - seen, max(0, last_ns - first_ns) / 1e9
    )
