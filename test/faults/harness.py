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
How a fault is written down, run and judged.

A fault is a function that gets a :class:`Trial`: it does the damage, looks at what came of it, and
says what it saw by the trial's methods. What must be zero and isn't, and what it raises, breaks
the promise that stands beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass
from pathlib import Path
import random
import time
import traceback
from typing import Any

from faults.accounts import INFERENCE, WITNESS
from faults.outcome import ABSENT, BROKEN, Outcome
from faults.stage import Stage

EVERYBODY = (WITNESS, INFERENCE)


class Absent(Exception):
    """This machine can't do this fault; the text says why."""


@dataclass(frozen=True)
class Fault:
    """
    See the module.

    :ivar name: unique, words.
    :ivar group: the module that it is in.
    :ivar promise: one sentence.
    :ivar staged: it happens to the stage that all faults share, which must be as before
        afterwards.
    :ivar long_only: too long for the reduced form; something else there holds the same.
    :ivar bystanders: of the witness and the inference node, those that must not notice it: no
        frame is lost, nothing pauses.
    :ivar needs: the part of the machine without which it may be absent; empty: it must not be.
    """

    name: str
    group: str
    promise: str
    run: Callable[[Trial], None]
    staged: bool
    long_only: bool
    bystanders: tuple[str, ...] = ()
    needs: str = ''


FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    promise: str,
    *,
    staged: bool = True,
    long_only: bool = False,
    bystanders: tuple[str, ...] = (),
    needs: str = '',
) -> Callable[[Any], Any]:
    """Register a fault."""

    def register(function: Callable[[Trial], None]) -> Callable[[Trial], None]:
        assert name not in FAULTS, name
        group = function.__module__.rpartition('.')[2]
        FAULTS[name] = Fault(name, group, promise, function, staged, long_only, bystanders, needs)
        return function

    return register


class Trial:
    """
    One run of one fault.

    :ivar short: the reduced form.
    :ivar random: seeded.
    :ivar folder: of its own, empty.
    """

    def __init__(
        self,
        outcome: Outcome,
        stage: Stage | None,
        folder: Path,
        domain: int,
        seed: int,
        short: bool,
    ) -> None:
        self.outcome = outcome
        self.folder = folder
        self.domain = domain
        self.short = short
        self.random = random.Random(f'{seed} {outcome.name}')
        self._stage = stage

    @property
    def stage(self) -> Stage:
        """The programs to which this happens."""
        assert self._stage is not None, 'the fault is not staged'
        return self._stage

    def times(self, short: int, full: int) -> int:
        """How often, in the reduced form and in full."""
        return short if self.short else full

    def must_be_zero(self, what: str, count: int) -> None:
        """Count something that must not be."""
        self.outcome.zero[what] += count

    def must(self, condition: object, otherwise: str) -> None:
        """*condition* is part of the promise."""
        self.outcome.zero[otherwise] += not condition

    def leaked(self, excess: Counter[str]) -> None:
        """Report what is held in addition to before."""
        self.outcome.leaks.update(excess)

    def note(self, what: str, value: float | str) -> None:
        """Note a figure without a limit."""
        self.outcome.figures[what] = round(value, 3) if isinstance(value, float) else value

    def worst(self, what: str, value: float) -> None:
        """As :meth:`note`, of the largest."""
        before = self.outcome.figures.get(what, value)
        self.note(what, max(float(before), value))

    def frames(self, frames_in: int, frames_out: int, **drops: int) -> None:
        """
        Count frames that came and went.

        A frame that is neither out nor dropped for a reason is unaccounted for, which must not be.
        """
        self.outcome.frames_in += frames_in
        self.outcome.frames_out += frames_out
        self.outcome.drops.update(
            {reason.replace('_', ' '): count for reason, count in drops.items()}
        )
        self.must_be_zero(
            'frames unaccounted for', abs(frames_in - frames_out - sum(drops.values()))
        )

    def absent(self, why: str) -> None:
        """
        Say that it can't be done here.

        :raises Absent: always.
        """
        raise Absent(why)


@contextlib.contextmanager
def _judged(outcome: Outcome) -> Iterator[None]:
    began = time.monotonic()
    try:
        yield
    except Absent as why:
        outcome.status, outcome.reason = ABSENT, str(why)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = ' '.join(str(error).split())
        outcome.status, outcome.reason = (
            BROKEN,
            f'{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {text[:2000]}',
        )
    outcome.seconds = round(time.monotonic() - began, 2)
    outcome.judge()


def run_fault(
    each: Fault,
    stage: Stage | None,
    folder: Path,
    domain: int,
    *,
    seed: int = 1,
    short: bool = False,
) -> Outcome:
    """
    Do it, and say what came of it. Never raises for what goes wrong in it.

    :param stage: needed where ``each.staged``.
    """
    outcome = Outcome(each.name, each.group, each.promise)
    folder.mkdir(parents=True, exist_ok=True)
    with _judged(outcome):
        trial = Trial(outcome, stage, folder, domain, seed, short)
        if each.staged:
            trial.stage.whole()
            before = trial.stage.account()
            each.run(trial)
            trial.stage.settle(trial, before, bystanders=each.bystanders)
        else:
            each.run(trial)
    if outcome.status == ABSENT and not each.needs:
        outcome.status, outcome.reason = (
            BROKEN,
            f'absent, which it must not be anywhere: {outcome.reason}',
        )
    return outcome
