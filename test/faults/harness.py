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

"""
Define, run and judge faults.

A fault is a function that gets a :class:`Trial`: it causes the damage, watches the effects, and
reports them by the trial's methods. A non-zero count that must be zero, or an exception, breaks
the fault's promise. ``build/faults/result.json`` holds the :class:`Outcome` of each fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
import json
import os
from pathlib import Path
import platform
import random
import time
import traceback
from typing import Any, NamedTuple

HELD, BROKEN, ABSENT = 'held', 'broken', 'absent'
# Who may stand by; see :class:`Fault`.
WITNESS, INFERENCE = 'witness', 'inference'
# How long a bystander may be without a frame, besides the time that nothing ran: two shared
# processors may keep any process from running.
MOST_PAUSE_S = 1.0
# The share of the camera's frames that it must publish: one that starves loses nothing.
LEAST_RATE = 0.5
EVERYBODY = (WITNESS, INFERENCE)


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

    def write(self, path: Path) -> None:
        found = {
            'version': 1, 'date': datetime.now(timezone.utc).date().isoformat(),
            'short': self.short, 'seed': self.seed,
            'machine': {
                'kernel': platform.release(), 'cpus': os.cpu_count() or 0,
                'python': platform.python_version(),
            },
            'pass': self.holds, 'faults': [vars(outcome) for outcome in self.outcomes],
        }  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + '\n', encoding='utf-8')

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


class Tally(NamedTuple):
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
    dropped, span_s = sum(stretch.dropped for stretch in stretches), (last_ns - first_ns) / 1e9
    return Tally(len(came), len(received), dropped, len(came) - seen, max(0.0, span_s))


class Absent(Exception):
    """This machine can't run this fault; the text gives the reason."""


@dataclass(frozen=True)
class Fault:
    """
    A registered fault; see the module.

    :ivar name: unique, words.
    :ivar group: the module that defines it.
    :ivar promise: one sentence.
    :ivar staged: it runs on the stage that all staged faults share, and must restore it.
    :ivar long_only: too long for the reduced form, where another fault checks the same.
    :ivar bystanders: the witness, the inference node, or both: these must lose no frame and see no
        pause.
    :ivar needs: the part of the machine without which it may be absent; empty: it must run.
    """

    name: str
    group: str
    promise: str
    run: Callable[[Trial], None]
    staged: bool = True
    long_only: bool = False
    bystanders: tuple[str, ...] = ()
    needs: str = ''


FAULTS: dict[str, Fault] = {}


def fault(name: str, promise: str, **how: Any) -> Callable[[Any], Any]:
    def register(function: Callable[[Trial], None]) -> Callable[[Trial], None]:
        assert name not in FAULTS, name
        group = function.__module__.rpartition('.')[2]
        FAULTS[name] = Fault(name, group, promise, function, **how)
        return function

    return register


@dataclass
class Trial:
    """
    One run of one fault.

    :ivar stage: a :class:`~faults.stage.Stage`; None if the fault isn't staged.
    :ivar folder: an empty folder for this trial.
    :ivar random: a seeded generator.
    :ivar short: whether this is the reduced form.
    """

    outcome: Outcome
    stage: Any
    folder: Path
    domain: int
    random: random.Random
    short: bool

    def times(self, short: int, full: int) -> int:
        """Return how often to repeat, in the reduced form or in full."""
        return short if self.short else full

    def must_be_zero(self, what: str, count: int) -> None:
        """Count events that the promise forbids."""
        self.outcome.zero[what] += count

    def must(self, condition: object, otherwise: str) -> None:
        """Count *otherwise* as a broken promise unless *condition* is true."""
        self.outcome.zero[otherwise] += not condition

    def note(self, what: str, value: float | str) -> None:
        self.outcome.figures[what] = round(value, 3) if isinstance(value, float) else value

    def worst(self, what: str, value: float) -> None:
        before = self.outcome.figures.get(what, value)
        self.note(what, max(float(before), value))

    def frames(self, frames_in: int, frames_out: int, **drops: int) -> None:
        """Count frames; one neither out nor dropped is unaccounted for: a broken promise."""
        self.outcome.frames_in += frames_in
        self.outcome.frames_out += frames_out
        self.outcome.drops.update({why.replace('_', ' '): count for why, count in drops.items()})
        missing = abs(frames_in - frames_out - sum(drops.values()))
        self.must_be_zero('frames unaccounted for', missing)


def run_fault(
    each: Fault,
    stage: Any,
    folder: Path,
    domain: int,
    *,
    seed: int = 1,
    short: bool = False,
) -> Outcome:
    """Run a fault and return its outcome; errors of the fault are part of the outcome."""
    outcome = Outcome(each.name, each.group, each.promise)
    folder.mkdir(parents=True, exist_ok=True)
    trial = Trial(outcome, stage, folder, domain, random.Random(f'{seed} {each.name}'), short)
    began = time.monotonic()
    try:
        if each.staged:
            trial.stage.whole()
            before = trial.stage.account()
        each.run(trial)
        if each.staged:
            trial.stage.settle(trial, before, bystanders=each.bystanders)
    except Absent as why:
        must = '' if each.needs else 'absent, which it must not be anywhere: '
        outcome.status, outcome.reason = BROKEN if must else ABSENT, f'{must}{why}'
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f'{type(error).__name__} at {Path(last.filename).name}:{last.lineno}'
        outcome.status = BROKEN
        outcome.reason = f'{where}: {" ".join(str(error).split())[:2000]}'
    outcome.seconds = round(time.monotonic() - began, 2)
    outcome.judge()
    return outcome
