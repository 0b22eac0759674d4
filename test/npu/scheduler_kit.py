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

"""A scheduler with an accelerator that the test controls completely."""

from __future__ import annotations

from collections.abc import Callable
import threading
import time
from typing import Any

from frame_kit import FrameQueue
from waiting import PATIENCE_S, until

from zc_perception.detection.letterbox import Letterbox
from zc_perception.frame import Frame
from zc_perception.memory.fence import EventFence
from zc_perception.memory.pool import BufferPool, SlotState
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import Accelerator, Capabilities, ImportHandle
from zc_perception.npu.manifest import ModelManifest
from zc_perception.npu.scheduler import InFlight, Scheduler

MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]
LONG_S, SHORT_S, QUICK_S = PATIENCE_S, 0.05, 0.005


class ScriptedFence(EventFence):
    """Raises the error that it was signalled with, as a driver's fence does."""

    def check(self) -> None:
        if self._error is not None and self.wait(0.0):
            raise self._error
        super().check()


class ScriptedJob:
    """A job whose fence the test signals; ``ends`` records how it was ended."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.fence = ScriptedFence()
        self.letterbox = Letterbox.fit(64, 48, 64, 48)
        self.ends: list[str] = []
        self.output_error: Exception | None = None
        self.abandon_error: Exception | None = None

    @property
    def takes_place(self) -> bool:
        """Return whether it occupies a place: until its result is taken, or its device is done."""
        return not self.ends or (self.ends == ['abandoned'] and not self.fence._signalled)

    def outputs(self) -> list[Any]:
        assert self.ends == []
        if self.output_error is not None:
            raise self.output_error
        return []

    def abandon(self) -> ScriptedFence:
        if self.abandon_error is not None:
            raise self.abandon_error
        self.ends.append('abandoned')
        return self.fence

    def close(self) -> None:
        self.ends.append('closed')
        self.fence.close()


class ScriptedAccelerator(Accelerator):
    """
    An accelerator that takes and ends jobs as the test sets.

    It finishes the frames in ``instant`` at once, others never, and raises the errors in its
    lists.
    """

    imports = 0

    def __init__(self, max_in_flight: int = 8, *, may_hang: bool = True) -> None:
        self.max_in_flight, self.may_hang = max_in_flight, may_hang
        self.jobs: list[ScriptedJob] = []
        self.import_errors: list[Exception] = []
        self.submit_errors: list[Exception] = []
        self.release_errors: list[Exception] = []
        self.tidy_errors: list[BaseException] = []
        self.trial_errors: list[Exception] = []
        self.instant: set[int] = set()
        self.failing: dict[int, Exception] = {}
        self.abandon_error: Exception | None = None
        self.instant_all = False
        self.most_places = self.releases = self.closed = 0
        self.tidied: list[int] = []
        self.trials: list[int] = []
        self.undone: list[int] = []

    def capabilities(self) -> Capabilities:
        limits = {'max_in_flight': self.max_in_flight, 'may_hang': self.may_hang}
        return Capabilities('scripted', 'test', copy_free=True, **limits)

    def constraints(self) -> BufferConstraints:
        return BufferConstraints('scripted')

    def load(self, manifest: ModelManifest) -> None:
        pass

    def _call(self, errors: list[Any]) -> None:
        assert not self.closed, 'a closed accelerator is not used'
        if errors:
            raise errors.pop()

    def trial_import(self, layout: Any, buffers: Any) -> Callable[[], None] | None:
        self._call(self.trial_errors)
        self.trials.append(threading.get_ident())
        return lambda: self.undone.append(threading.get_ident())

    def import_frame(self, frame: Frame) -> ImportHandle:
        self._call(self.import_errors)
        self.imports += 1
        return ImportHandle(self.imports)

    def submit(self, handle: ImportHandle, frame: Frame) -> ScriptedJob:
        self._call(self.submit_errors)
        self.most_places = max(self.most_places, 1 + sum(job.takes_place for job in self.jobs))
        job = ScriptedJob(frame.data.sequence)
        job.abandon_error = self.abandon_error
        if self.instant_all or frame.data.sequence in self.instant | self.failing.keys():
            job.fence.signal(self.failing.get(frame.data.sequence))
        self.jobs.append(job)
        return job

    def release(self, handle: ImportHandle) -> None:
        self.releases += 1
        self._call(self.release_errors)

    def tidy(self) -> None:
        self.tidied.append(threading.get_ident())
        self._call(self.tidy_errors)

    def close(self) -> None:
        self.closed += 1

    def finish(self, index: int, error: Exception | None = None) -> None:
        until(lambda: len(self.jobs) > index)
        self.jobs[index].fence.signal(error)


class Factory:
    """Opens new scripted accelerators, after raising the refusals in ``errors``."""

    def __init__(
        self, *errors: BaseException, make: Callable[[], ScriptedAccelerator] = ScriptedAccelerator
    ) -> None:
        self.errors = list(errors)
        self.made: list[ScriptedAccelerator] = []
        self.calls: list[float] = []
        self.gate: threading.Event | None = None
        self.entered = threading.Event()
        self._make = make

    def __call__(self) -> ScriptedAccelerator:
        self.calls.append(time.monotonic())
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(LONG_S)
        if self.errors:
            raise self.errors.pop(0)
        self.made.append(self._make())
        return self.made[-1]


def all_free(pool: BufferPool) -> bool:
    pool.collect()
    return set(pool.statistics().states) == {SlotState.FREE}


class Bench:
    def __init__(
        self,
        pool: BufferPool,
        make_frame: MakeFrame,
        accelerator: ScriptedAccelerator,
        **options: Any,
    ) -> None:
        self.pool, self.accelerator = pool, accelerator
        self._make_frame = make_frame
        self.queue = FrameQueue(options.pop('depth', None))
        self.results: list[int] = []
        self.errors: list[tuple[int, Exception]] = []
        #: The job that the scheduler named with each error.
        self.failing: list[InFlight | None] = []
        self.on_result: Callable[[InFlight], None] = lambda entry: None
        options = {'in_flight': 4, 'timeout_s': LONG_S, **options}
        self.reopen: Factory | None = options.get('reopen')
        self.scheduler = Scheduler(accelerator, self.queue, self._result, self._error, **options)
        self.scheduler.start()

    def _result(self, entry: InFlight) -> None:
        assert not entry.frame.released, 'the frame ends after the callback'
        entry.job.outputs()
        self.on_result(entry)
        self.results.append(entry.frame.data.sequence)

    def _error(self, frame: Frame, error: Exception) -> None:
        assert not frame.released
        self.failing.append(self.scheduler.failing)
        self.errors.append((frame.data.sequence, error))

    def feed(self, *sequences: int) -> None:
        for sequence in sequences:
            self.queue.put(self._make_frame(self.pool, sequence=sequence))

    @property
    def lost(self) -> list[int]:
        return [sequence for sequence, _ in self.errors]

    @property
    def jobs(self) -> list[ScriptedJob]:
        return [job for accelerator in self.accelerators for job in accelerator.jobs]

    @property
    def accelerators(self) -> list[ScriptedAccelerator]:
        return [self.accelerator, *(self.reopen.made if self.reopen is not None else ())]

    def all_free(self) -> bool:
        return all_free(self.pool)

    def stop(self) -> None:
        self.scheduler.stop()
        self.queue.close()

    def end(self) -> None:
        """Stop with every job done, and check that the thread has ended."""
        stopper = threading.Thread(target=self.stop)
        stopper.start()
        stopping = True
        while stopping:  # more may be submitted until it has stopped
            stopping = stopper.is_alive()
            for job in self.jobs:
                job.fence.signal()
            stopper.join(0.002)
        self.scheduler._thread.join(LONG_S)
        assert not self.scheduler._thread.is_alive()


def check_balance(bench: Bench) -> None:
    """Check at the end that the figures add up, and each frame and job ended once."""
    until(lambda: bench.scheduler.in_flight == 0)  # a callback comes before its frame's end
    figures = bench.scheduler.statistics()
    refused = figures.refused_disabled + figures.refused_recovering + figures.refused_device
    assert figures.taken == refused + figures.submitted
    assert figures.submitted == figures.completed + figures.timed_out + figures.failed
    assert figures.in_flight == 0
    assert figures.completed == len(bench.results)
    assert figures.timed_out + figures.failed + figures.refused_device == len(bench.errors)
    assert len(bench.jobs) == figures.submitted
    for accelerator in bench.accelerators:
        # Jobs that were given up have places, too.
        assert accelerator.most_places <= accelerator.max_in_flight
    for job in bench.jobs:
        assert len(job.ends) == 1, f'job of frame {job.sequence} was ended by {job.ends}'
