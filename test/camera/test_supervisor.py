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
from types import TracebackType
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
)

WAIT_S = 60.0


class CountedFrame:
    """A frame of which only the lease is counted."""

    def __init__(self, number: int, camera: ScriptedCamera) -> None:
        self.number = number
        self.camera = camera

    def __enter__(self) -> CountedFrame:
        self.camera.leased += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.camera.leased -= 1


class ScriptedCamera:
    """In ``script``, numbers are frames, exceptions are raised, ``None`` means no frame yet."""

    def __init__(self, identity: str, script: list[Any], *, ends: bool = False) -> None:
        self.identity = identity
        self._script = script
        self._ends = ends
        self._stopped = threading.Event()
        self.leased = 0
        self.closed = 0
        self.captured = 0

    @property
    def ended(self) -> bool:
        return self._ends and not self._script

    def capture(self) -> CountedFrame | None:
        assert not self.closed, 'captured from after it was closed'
        if not self._script:
            self._stopped.wait(0.01)
            return None
        item = self._script.pop(0)
        if isinstance(item, BaseException):
            raise item
        return None if item is None else CountedFrame(item, self)

    def statistics(self) -> CameraStatistics:
        return CameraStatistics(self.captured, 0, 0)

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self.closed += 1
        self._stopped.set()


class Bench:
    """A supervisor with the results of its attempts to open a camera: cameras and exceptions."""

    def __init__(self, *openings: ScriptedCamera | Exception) -> None:
        self.openings = list(openings)
        self.cameras = [camera for camera in openings if isinstance(camera, ScriptedCamera)]
        self.wanted: list[str] = []
        self.prepared: list[Any] = []
        self.prepare_errors: list[Exception | None] = []
        self.closed_before: list[list[int]] = []
        self.frames: queue.Queue[int] = queue.Queue()
        self.conditions: queue.Queue[CameraCondition] = queue.Queue()
        self.supervisor = CameraSupervisor(
            'camera under test',
            self._open,
            self._prepare,
            self._deliver,
            self.conditions.put,
            before_close=lambda: self.closed_before.append(
                [camera.closed for camera in self.cameras]
            ),
            first_retry_s=0.001,
        )

    def _open(self, identity: str) -> Any:
        self.wanted.append(identity)
        opening = (
            self.openings.pop(0)
            if self.openings
            else CameraLostError('nothing left in the script')
        )
        if isinstance(opening, Exception):
            raise opening
        return opening

    def _prepare(self, camera: Any) -> None:
        self.prepared.append(camera)
        error = self.prepare_errors.pop(0) if self.prepare_errors else None
        if error is not None:
            raise error

    def _deliver(self, frame: Any) -> None:
        self.frames.put(frame.number)

    def expect(self, *numbers: int) -> None:
        assert [self.frames.get(timeout=WAIT_S) for _ in numbers] == list(numbers)

    def until(self, state: CameraState) -> CameraCondition:
        while True:
            condition = self.conditions.get(timeout=WAIT_S)
            if condition.state is state:
                return condition


@pytest.fixture
def bench_of() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*openings: ScriptedCamera | Exception) -> Bench:
        made.append(Bench(*openings))
        return made[-1]

    yield make
    for bench in made:
        bench.supervisor.stop()
        assert [camera.leased for camera in bench.cameras] == [0] * len(bench.cameras)


def test_frames_come_until_the_end_and_the_camera_is_closed_once(
    bench_of: Callable[..., Bench],
) -> None:
    camera = ScriptedCamera('a', [1, None, 2, 3], ends=True)
    bench = bench_of(camera)
    bench.supervisor.open_now()
    bench.supervisor.prepare_now()
    bench.supervisor.start()
    bench.expect(1, 2, 3)
    assert bench.until(CameraState.ENDED).losses == 0
    assert bench.supervisor.finished
    bench.supervisor.stop()
    bench.supervisor.stop()
    assert camera.closed == 1
    assert bench.prepared == [camera]


def test_an_unplugged_camera_comes_back(bench_of: Callable[..., Bench]) -> None:
    lost = CameraLostError('unplugged')
    bench = bench_of(ScriptedCamera('a', [1, lost]), lost, lost, ScriptedCamera('a', [2]))
    bench.supervisor.open_now()
    bench.supervisor.start()
    bench.expect(1, 2)
    assert bench.wanted == ['', 'a', 'a', 'a']
    assert bench.cameras[0].closed == 1 and len(bench.prepared) == 2
    conditions = [bench.conditions.get(timeout=WAIT_S) for _ in range(5)]
    assert [c.state.value for c in conditions] == [
        'streaming',
        'lost',
        'lost',
        'lost',
        'streaming',
    ]
    assert [c.attempts for c in conditions[1:4]] == [0, 1, 2]
    assert {c.losses for c in conditions[1:]} == {1} and conditions[1].reason == 'unplugged'
    assert conditions[1].retry_s < conditions[2].retry_s < conditions[3].retry_s


def test_only_the_same_camera_counts(bench_of: Callable[..., Bench]) -> None:
    other = ScriptedCamera('b', [99])
    bench = bench_of(
        ScriptedCamera('a', [1, CameraLostError('unplugged')]), other, ScriptedCamera('a', [2])
    )
    bench.supervisor.open_now()
    bench.supervisor.start()
    bench.expect(1, 2)
    assert other.closed == 1 and other not in bench.prepared
    bench.until(CameraState.LOST)
    assert "another camera ('b') is where 'a' was" in bench.until(CameraState.LOST).reason


def test_a_changed_source_is_opened_again_without_a_loss(bench_of: Callable[..., Bench]) -> None:
    bench = bench_of(
        ScriptedCamera('a', [1, CameraChangedError('now 640x480')]), ScriptedCamera('a', [2])
    )
    bench.supervisor.open_now()
    bench.supervisor.start()
    bench.expect(1, 2)
    assert bench.until(CameraState.LOST).reason == 'now 640x480'
    assert bench.until(CameraState.STREAMING).losses == 0


def test_buffers_that_nobody_can_agree_on_are_tried_again(bench_of: Callable[..., Bench]) -> None:
    first, second = ScriptedCamera('a', [1]), ScriptedCamera('a', [2])
    bench = bench_of(first, second)
    bench.prepare_errors = [NegotiationError('nothing suits everybody')]
    bench.supervisor.open_now()
    bench.supervisor.start()
    bench.expect(2)
    assert first.closed == 1
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
    bench_of: Callable[..., Bench], error: Exception
) -> None:
    first, second = ScriptedCamera('a', [1]), ScriptedCamera('a', [2])
    bench = bench_of(first, second)
    bench.prepare_errors = [error]
    bench.supervisor.open_now()
    bench.supervisor.prepare_now()
    condition = bench.supervisor.condition
    assert (
        condition.state is CameraState.LOST
        and condition.reason == str(error)
        and condition.losses == 0
    )
    assert first.closed == 1 and bench.supervisor.camera is None
    bench.supervisor.start()
    bench.expect(2)


def test_who_else_uses_the_camera_lets_go_before_it_is_closed(
    bench_of: Callable[..., Bench],
) -> None:
    bench = bench_of(
        ScriptedCamera('a', [1, CameraLostError('unplugged')]), ScriptedCamera('a', [2])
    )
    bench.supervisor.open_now()
    bench.supervisor.start()
    bench.expect(1, 2)
    bench.supervisor.stop()
    bench.supervisor.stop()
    assert bench.closed_before == [[0, 0], [1, 0]], 'once for each, while it was open'


@pytest.mark.parametrize('error', [ValueError('a defect'), ConfigError('the file went away')])
def test_an_unforeseen_error_is_a_failure_and_not_the_end_of_a_file(
    bench_of: Callable[..., Bench], error: Exception
) -> None:
    bench = bench_of(ScriptedCamera('a', [1, error]))
    bench.supervisor.open_now()
    bench.supervisor.start()
    reason = bench.until(CameraState.FAILED).reason
    assert str(error) in reason and ('.py:' in reason) is isinstance(error, ValueError), (
        'of a defect it says where'
    )
    assert bench.supervisor.finished


def test_a_consumer_s_error_costs_no_lease(
    bench_of: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(ScriptedCamera('a', [1]))

    def refuse(frame: Any) -> None:
        raise CameraError('publishing failed')

    bench.supervisor._deliver = refuse
    bench.supervisor.open_now()
    bench.supervisor.start()
    assert bench.until(CameraState.LOST).reason == 'publishing failed'


def test_a_camera_that_opens_while_everything_stops_is_closed(
    bench_of: Callable[..., Bench],
) -> None:
    late = ScriptedCamera('a', [])
    bench = bench_of(CameraLostError('away'), late)
    bench.supervisor.open_now()
    opening, go_on = threading.Event(), threading.Event()

    def slow(identity: str) -> Any:
        opening.set()
        assert go_on.wait(WAIT_S)
        return late

    bench.supervisor._open_camera = slow
    bench.supervisor.start()
    assert opening.wait(WAIT_S)
    bench.supervisor.stop(timeout_s=0.0)
    go_on.set()
    bench.supervisor._thread.join(WAIT_S)
    assert late.closed == 1
