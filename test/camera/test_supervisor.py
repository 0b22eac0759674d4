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

"""A camera that disappears and returns, and its supervisor's reactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import errno
import queue
import threading
from typing import Any

import pytest

from zc_perception.camera.camera import CameraStatistics
from zc_perception.camera.supervisor import CameraCondition, CameraState, CameraSupervisor
from zc_perception.errors import (
    CameraBusyError,
    CameraChangedError,
    CameraError,
    CameraLostError,
    ConfigError,
    NegotiationError,
    RecordingError,
    ZcError,
)

WAIT_S = 60.0


MakeBench = Callable[..., 'Bench']


class ScriptedCamera:
    """
    In ``script``, numbers are frames, exceptions are raised, ``None`` means no frame yet.

    It is its own frames, too, of which only the leases are counted.
    """

    def __init__(self, script: list[Any], *, identity: str = 'a', ends: bool = False) -> None:
        self.identity = identity
        self._script = script
        self._ends = ends
        self._stopped = threading.Event()
        self.stop = self._stopped.set
        self.leased = self.closed = 0

    @property
    def ended(self) -> bool:
        return self._ends and not self._script

    def __enter__(self) -> ScriptedCamera:
        self.leased += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.leased -= 1

    def capture(self) -> ScriptedCamera | None:
        assert not self.closed, 'captured from after it was closed'
        if not self._script:
            self._stopped.wait(0.01)
            return None
        item = self._script.pop(0)
        if isinstance(item, BaseException):
            raise item
        self.number = item
        return None if item is None else self

    def statistics(self) -> CameraStatistics:
        return CameraStatistics(0, 0, 0)

    def close(self) -> None:
        self.closed += 1
        self.stop()


class Bench:
    """A supervisor with the results of its attempts to open a camera: cameras and exceptions."""

    def __init__(self, *openings: ScriptedCamera | Exception) -> None:
        self.openings = list(openings)
        self.cameras = [camera for camera in openings if isinstance(camera, ScriptedCamera)]
        self.wanted: list[str] = []
        self.prepared: list[Any] = []
        self.prepare_errors: list[Exception] = []
        self.closed_before: list[list[int]] = []
        self.frames: queue.Queue[int] = queue.Queue()
        self.conditions: queue.Queue[CameraCondition] = queue.Queue()
        self.supervisor = CameraSupervisor(
            'camera under test', self._open, self._prepare,
            lambda frame: self.frames.put(frame.number), self.conditions.put,
            before_close=lambda: self.closed_before.append([each.closed for each in self.cameras]),
            first_retry_s=0.001,
        )  # fmt: skip

    def _open(self, identity: str) -> Any:
        self.wanted.append(identity)
        opening = self.openings.pop(0) if self.openings else CameraLostError('nothing is left')
        if isinstance(opening, Exception):
            raise opening
        return opening

    def _prepare(self, camera: Any) -> None:
        self.prepared.append(camera)
        if self.prepare_errors:
            raise self.prepare_errors.pop(0)

    def start(self, *numbers: int) -> None:
        """Open and start; these frames must come."""
        self.supervisor.open_now()
        self.supervisor.start()
        self.expect(*numbers)

    def expect(self, *numbers: int) -> None:
        assert [self.frames.get(timeout=WAIT_S) for _ in numbers] == list(numbers)

    def until(self, state: CameraState) -> CameraCondition:
        for _ in range(9):
            condition = self.conditions.get(timeout=WAIT_S)
            if condition.state is state:
                return condition
        raise AssertionError(f'none of nine conditions is {state}')


@pytest.fixture
def bench_of() -> Iterator[MakeBench]:
    made: list[Bench] = []

    def make(*openings: ScriptedCamera | Exception) -> Bench:
        made.append(Bench(*openings))
        return made[-1]

    yield make
    for bench in made:
        bench.supervisor.stop(WAIT_S)
        assert not any(camera.leased for camera in bench.cameras)


def test_frames_come_until_the_end_and_the_camera_is_closed_once(bench_of: MakeBench) -> None:
    camera = ScriptedCamera([1, None, 2, 3], ends=True)
    bench = bench_of(camera)
    bench.supervisor.open_now()
    bench.supervisor.prepare_now()
    bench.supervisor.start()
    bench.expect(1, 2, 3)
    assert bench.until(CameraState.ENDED).losses == 0
    assert bench.supervisor.finished
    bench.supervisor.stop(WAIT_S)
    bench.supervisor.stop(WAIT_S)
    assert camera.closed == 1
    assert bench.prepared == [camera]


class Spiteful(ScriptedCamera):
    """A camera of another package whose stop() and close() raise."""

    def __init__(self, script: list[Any], error: BaseException) -> None:
        super().__init__(script)
        self._error = error
        self.stop = self._raise

    def _raise(self) -> None:
        raise self._error

    def close(self) -> None:
        self.closed += 1
        self._raise()


@pytest.mark.parametrize('error', [ValueError('spite'), SystemExit(3)])
def test_a_camera_whose_end_raises_is_opened_again_and_ended_nevertheless(
    bench_of: MakeBench, error: BaseException, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = (Spiteful(script, error) for script in ([1, CameraLostError('off')], [2]))
    bench = bench_of(first, second)
    bench.start(1, 2)
    bench.supervisor.stop(WAIT_S)
    assert first.closed == second.closed == 1 and not bench.supervisor.threads[0].is_alive()
    told = capfd.readouterr().err
    assert told.count('Spiteful.close failed') == 2 and told.count('Spiteful._raise failed') == 1


def test_an_unplugged_camera_comes_back(bench_of: MakeBench) -> None:
    lost = CameraLostError('unplugged')
    bench = bench_of(ScriptedCamera([1, lost]), lost, lost, ScriptedCamera([2]))
    bench.start(1, 2)
    assert bench.wanted == ['', 'a', 'a', 'a']
    assert bench.cameras[0].closed == 1 and len(bench.prepared) == 2
    conditions = [bench.conditions.get(timeout=WAIT_S) for _ in range(5)]
    states = [condition.state.value for condition in conditions]
    assert states == ['streaming', 'lost', 'lost', 'lost', 'streaming']
    assert [c.attempts for c in conditions[1:4]] == [0, 1, 2]
    assert {c.losses for c in conditions[1:]} == {1} and conditions[1].reason == 'unplugged'
    assert conditions[1].retry_s < conditions[2].retry_s < conditions[3].retry_s
    bench.supervisor.stop(WAIT_S)
    bench.supervisor.stop(WAIT_S)
    assert bench.closed_before == [[0, 0], [1, 0]], (
        'who else uses the camera lets go once of each, while it is open'
    )


def test_only_the_same_camera_counts(bench_of: MakeBench) -> None:
    other = ScriptedCamera([99], identity='b')
    bench = bench_of(
        ScriptedCamera([1, CameraLostError('unplugged')]), other, ScriptedCamera([2])
    )
    bench.start(1, 2)
    assert other.closed == 1 and other not in bench.prepared
    bench.until(CameraState.LOST)
    assert "another camera ('b') is where 'a' was" in bench.until(CameraState.LOST).reason


def test_a_changed_source_is_opened_again_without_a_loss(bench_of: MakeBench) -> None:
    bench = bench_of(
        ScriptedCamera([1, CameraChangedError('now 640x480')]), ScriptedCamera([2])
    )
    bench.start(1, 2)
    assert bench.until(CameraState.LOST).reason == 'now 640x480'
    assert bench.until(CameraState.STREAMING).losses == 0


def test_buffers_that_nobody_can_agree_on_are_tried_again(bench_of: MakeBench) -> None:
    bench = bench_of(ScriptedCamera([1]), ScriptedCamera([2]))
    bench.prepare_errors = [NegotiationError('nothing suits everybody')]
    bench.start(2)
    assert bench.cameras[0].closed == 1
    assert bench.until(CameraState.LOST).reason == 'nothing suits everybody'


@pytest.mark.parametrize(
    'error',
    [
        CameraBusyError('another program has it'),
        CameraLostError('unplugged'),
        OSError(errno.EMFILE, 'Too many open files'),
    ],
)
def test_a_camera_that_fails_while_it_is_prepared_first_is_waited_for(
    bench_of: MakeBench, error: Exception
) -> None:
    bench = bench_of(ScriptedCamera([1]), ScriptedCamera([2]))
    bench.prepare_errors = [error]
    bench.supervisor.open_now()
    bench.supervisor.prepare_now()
    found = bench.supervisor.condition
    assert (found.state, found.reason, found.losses) == (CameraState.LOST, str(error), 0)
    assert bench.cameras[0].closed == 1 and bench.supervisor.camera is None
    bench.supervisor.start()
    bench.expect(2)


@pytest.mark.parametrize('error', [
    ValueError('a defect'), SystemExit('a library ends the process'),
    ConfigError('the file went away'), RecordingError('frame 3'),
])  # fmt: skip
def test_an_unforeseen_error_is_a_failure_and_not_the_end_of_a_file(
    bench_of: MakeBench, error: Exception
) -> None:
    bench = bench_of(ScriptedCamera([1, error]))
    bench.start()
    reason = bench.until(CameraState.FAILED).reason
    assert str(error) in reason and ('.py:' in reason) is not isinstance(error, ZcError), (
        'of a defect it says where'
    )
    assert bench.supervisor.finished


def test_a_consumer_s_error_costs_no_lease(bench_of: MakeBench) -> None:
    bench = bench_of(ScriptedCamera([1]))

    def refuse(frame: Any) -> None:
        raise CameraError('publishing failed')

    bench.supervisor._deliver = refuse
    bench.start()
    assert bench.until(CameraState.LOST).reason == 'publishing failed'


@pytest.mark.parametrize('fails', [False, True])
def test_a_camera_that_is_stopped_while_it_opens_is_closed_and_not_lost(
    bench_of: MakeBench, fails: bool
) -> None:
    late, bench = ScriptedCamera([]), bench_of()
    opening, go_on = threading.Event(), threading.Event()

    def slow(identity: str) -> Any:
        opening.set()
        assert go_on.wait(WAIT_S)
        if fails:
            raise CameraLostError('it was stopped')
        return late

    bench.supervisor._open_camera = slow
    bench.supervisor.start()
    assert opening.wait(WAIT_S)
    bench.supervisor.stop(timeout_s=0.0)
    go_on.set()
    bench.supervisor._thread.join(WAIT_S)
    assert late.closed == (not fails)
    assert CameraState.LOST not in (condition.state for condition in bench.conditions.queue)
