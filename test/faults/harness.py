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
the fault's promise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
import random
import time
import traceback
from typing import Any

from faults.outcome import ABSENT, BROKEN, INFERENCE, Outcome, WITNESS
from faults.stage import Stage

EVERYBODY = (WITNESS, INFERENCE)


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

    :ivar folder: an empty folder for this trial.
    :ivar random: a seeded generator.
    :ivar short: whether this is the reduced form.
    """

    outcome: Outcome
    the_stage: Stage | None
    folder: Path
    domain: int
    random: random.Random
    short: bool

    @property
    def stage(self) -> Stage:
        assert self.the_stage is not None, 'the fault is not staged'
        return self.the_stage

    def times(self, short: int, full: int) -> int:
        """Return how often to repeat, in the reduced form or in full."""
        return short if self.short else full

    def must_be_zero(self, what: str, count: int) -> None:
        """Count events that the promise forbids."""
        self.outcome.zero[what] += count

    def must(self, condition: object, otherwise: str) -> None:
        """Count *otherwise* as a broken promise unless *condition* is true."""
        self.outcome.zero[otherwise] += not condition

    def leaked(self, excess: Counter[str]) -> None:
        """Report resources that a process holds in addition to those before."""
        self.outcome.leaks.update(excess)

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
    stage: Stage | None,
    folder: Path,
    domain: int,
    *,
    seed: int = 1,
    short: bool = False,
) -> Outcome:
    """
    Run a fault and return its outcome; errors of the fault are part of the outcome.

    :param stage: needed where ``each.staged``.
    """
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
        outcome.status, outcome.reason = ABSENT, str(why)
        if not each.needs:
            outcome.status = BROKEN
            outcome.reason = f'absent, which it must not be anywhere: {why}'
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f'{type(error).__name__} at {Path(last.filename).name}:{last.lineno}'
        outcome.status = BROKEN
        outcome.reason = f'{where}: {" ".join(str(error).split())[:2000]}'
    outcome.seconds = round(time.monotonic() - began, 2)
    outcome.judge()
    return outcome
