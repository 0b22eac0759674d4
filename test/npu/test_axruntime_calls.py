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

"""The queue of calls: whose result a call brings, and when an input may be filled again."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from zc_perception.errors import AcceleratorError
from zc_perception.npu.axruntime.kind import LATE_CALLS
from zc_perception.npu.axruntime.worker import RuntimeCalls


class Slot:
    """Stands for an input slot: what it holds is its only argument."""

    def __init__(self, content: int) -> None:
        self.arguments = [content]
        self.users = 0


class Outputs:
    """Stands for an output slot."""

    def __init__(self) -> None:
        self.arguments: list[int | None] = [None]


class Job:
    """Stands for a job."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.wanted = True


class LateDevice:
    """
    A runtime as documented: it writes results late.

    What was read at call n is written to the outputs of call n + late.
    """

    def __init__(self, late: int) -> None:
        self._late = late
        self._inside: list[list[int]] = []
        self.fail = False

    def restart(self) -> None:
        """Another instance, which has nothing inside."""
        self._inside.clear()

    def run(self, inputs: Any, outputs: Any) -> None:
        if self.fail:
            self.fail = False
            raise AcceleratorError('injected')
        self._inside.append(inputs)
        outputs[0] = self._inside.pop(0)[0] if len(self._inside) > self._late else None


@pytest.mark.parametrize('late', [0, LATE_CALLS])
@settings(max_examples=200)
@given(steps=st.lists(st.sampled_from(['frame', 'push', 'fail', 'give up']), max_size=60))
def test_every_result_is_its_own_frame_s(late: int, steps: list[str]) -> None:
    device = LateDevice(late)
    calls: Any = RuntimeCalls(device.run, late)
    slots = [Slot(-1) for _ in range(LATE_CALLS + 2)]
    number = finished = lost = 0
    waiting: list[Job] = []
    for step in steps:
        outputs = Outputs()
        if step == 'give up':
            if waiting:
                waiting[0].wanted = False
            continue
        if step == 'push' and calls.last_input is None:
            continue
        job, slot = None, calls.last_input
        if step != 'push':
            # As many slots as jobs and one more are enough: one is always free.
            slot = next(slot for slot in slots if slot.users == 0)
            slot.arguments[0], job = number, Job(number)
            number += 1
        if step == 'fail':
            device.fail = True
            with pytest.raises(AcceleratorError):
                calls.run(job, slot, outputs)
            lost += 1 + sum(call.job is not None for call in calls.clear())
            assert all(slot.users == 0 for slot in slots)
            device.restart()
            waiting.clear()
            continue
        if job is not None:
            waiting.append(job)
        done = calls.run(job, slot, outputs)
        if done is not None and done.job is not None:
            assert done.job is waiting.pop(0) and outputs.arguments[0] == done.job.number
            finished += 1
        assert calls.wanted == any(job.wanted for job in waiting)
        assert len(waiting) <= late
    assert finished + lost + len(waiting) == number


def test_the_first_results_of_a_late_device_mean_nothing() -> None:
    calls: Any = RuntimeCalls(LateDevice(2).run, 2)
    slots = [Slot(n) for n in range(4)]
    results = [calls.run(Job(n), slots[n], Outputs()) for n in range(4)]
    assert results[:2] == [None, None] and [result.job.number for result in results[2:]] == [0, 1]
    assert [slot.users for slot in slots] == [0, 0, 1, 1], (
        'an input is in use until its result is out'
    )
