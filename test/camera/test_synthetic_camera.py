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

"""The synthetic camera: order, time and memory of its pictures; test_scene.py has the content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import os
import resource
import time
from typing import Any

from camera.counter_picture import read_counter
from camera.named_heap import NamedHeap
from camera.replay_kit import captured
import numpy as np
import pytest

from zc_perception.camera.clock import StampClock
from zc_perception.camera.road_scene import RoadScene
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.errors import ConfigError
from zc_perception.memory.heaps import SealedMemfd, working_heaps
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.memory.pool import SlotState
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')
WIDTH, HEIGHT, FAST = 128, 96, 2000.0


class Clock:
    """A ROS clock that advances by 7 ns with each reading."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        self.now_ns += 7
        return self.now_ns


@pytest.fixture
def ledger() -> CopyLedger:
    return CopyLedger()


@pytest.fixture
def open_camera(ledger: CopyLedger) -> Iterator[Callable[..., SyntheticCamera]]:
    cameras: list[SyntheticCamera] = []

    def make(
        *,
        slots: int = 4,
        framerate: float = FAST,
        seed: int = 1,
        stride_align: int = 1,
        **options: Any,
    ) -> SyntheticCamera:
        now = Clock()
        stamps = StampClock(now, is_simulated=lambda: True)
        base: dict[str, Any] = {
            'heap': SealedMemfd(),
            'now_ns': now,
            'clock': stamps,
            'ledger': ledger,
        }
        camera = SyntheticCamera(WIDTH, HEIGHT, framerate, 'lens', seed=seed, **options, **base)
        cameras.append(camera)
        participants = [
            camera.constraints(),
            BufferConstraints('npu', stride_align=stride_align, slots=slots - 2),
        ]
        camera.allocate(agree(participants, (WIDTH, HEIGHT)))
        return camera

    yield make
    for camera in cameras:
        camera.close()


def test_frame_n_is_picture_n_of_its_seed_and_each_byte_is_drawn_once(
    open_camera: Callable[..., SyntheticCamera], ledger: CopyLedger
) -> None:
    camera, scene = open_camera(seed=5, stride_align=192), RoadScene(WIDTH, HEIGHT, 5)
    luma, chroma = (
        np.zeros((HEIGHT, WIDTH), np.uint8),
        np.zeros((HEIGHT // 2, WIDTH // 2, 2), np.uint8),
    )
    for sequence in range(3):
        frame = captured(camera)
        scene.draw(sequence, luma, chroma)
        assert frame.data.sequence == sequence and frame.data.planes[0].stride == 192
        with frame.map() as planes:
            assert np.array_equal(planes[0], luma) and np.array_equal(planes[1], chroma)
        frame.release()
    assert not camera.ended and camera.constraints().formats == ((NV12, LINEAR),)
    assert ledger.entries() == {'draw': LedgerEntry(3, 3 * WIDTH * HEIGHT * 3 // 2)}
    assert (camera.heap_name, camera.device) == ('memfd', 'synthetic scene, seed 5')


def test_counter_and_bars_are_drawn_too(open_camera: Callable[..., SyntheticCamera]) -> None:
    camera = open_camera(pattern='counter', seed=300, stride_align=192)
    for sequence in range(3):
        with captured(camera) as frame, frame.map() as planes:
            assert read_counter(planes[0].copy()) == (300 & 0xFF, sequence, frame.header.stamp_ns)
    with captured(open_camera(pattern='bars')) as frame, frame.map() as planes:
        assert frame.data.colorimetry == BT601_LIMITED
        assert int(planes[0][10, 8 * 2 + 8]) == 162, 'yellow'


def test_a_frame_s_header_and_times(open_camera: Callable[..., SyntheticCamera]) -> None:
    camera = open_camera()
    before = time.monotonic_ns()
    first, second = captured(camera), captured(camera)
    assert (first.header.stamp_ns, second.header.stamp_ns) == (1_007, 1_014), (
        'the clock it was given, once a frame'
    )
    assert first.header.frame_id == 'lens'
    for frame in (first, second):
        assert before <= frame.data.captured_ns <= time.monotonic_ns()
        assert 0 < frame.data.capture_cost_ns < time.monotonic_ns() - before
        frame.release()


@pytest.mark.parametrize(
    ('contiguous', 'heap'), [(False, 'dma_heap/system'), (True, 'dma_heap/linux,cma')]
)
def test_it_offers_all_its_heaps_and_draws_into_the_one_that_is_agreed_on(
    contiguous: bool, heap: str, ledger: CopyLedger
) -> None:
    heaps = working_heaps(
        'auto', ['dma_heap/system', 'dma_heap/linux,cma', 'udmabuf'], opener=NamedHeap
    )
    camera = SyntheticCamera(
        WIDTH, HEIGHT, FAST, 'lens', seed=1, heap=heaps, now_ns=Clock(), ledger=ledger
    )
    try:
        constraints = camera.constraints()
        assert (
            constraints.heaps == ('dma_heap/system', 'dma_heap/linux,cma', 'udmabuf')
            and NamedHeap.open == 0
        )
        camera.allocate(
            agree([constraints, BufferConstraints('isp', contiguous=contiguous)], (WIDTH, HEIGHT))
        )
        assert camera.heap_name == heap and NamedHeap.open == 1
        captured(camera).release()
    finally:
        camera.close()
    assert NamedHeap.open == 0


def test_without_a_free_slot_the_frame_is_dropped_and_leaves_a_gap(
    open_camera: Callable[..., SyntheticCamera],
) -> None:
    camera = open_camera(slots=2)
    held = [captured(camera), captured(camera)]
    assert camera.capture() is None and camera.capture() is None
    statistics = camera.pool_statistics()
    assert statistics is not None and (statistics.exhausted, statistics.holders) == (
        2,
        {'camera': 2},
    )
    held.pop().release()
    after = captured(camera)
    assert after.data.sequence == 4
    assert (camera.statistics().captured, camera.statistics().dropped) == (3, 2)
    for frame in (*held, after):
        frame.release()


def test_a_failing_picture_costs_no_slot(
    open_camera: Callable[..., SyntheticCamera], monkeypatch: pytest.MonkeyPatch
) -> None:
    camera = open_camera(slots=2)

    def fail(*arguments: object) -> bool:
        raise RuntimeError('no such colour')

    def forget_return(*arguments: object) -> None:
        pass

    place = rf'\(test_synthetic_camera\.py:{forget_return.__code__.co_firstlineno}\)'
    for owner, method, body, error, message in (
        (camera, 'render', fail, RuntimeError, 'no such colour'),
        # Not a CameraError: the supervisor would reopen the camera, and fail each time.
        (
            camera,
            'render',
            forget_return,
            ConfigError,
            rf'SyntheticCamera\.render returned None; it must .* {place}',
        ),
        (
            SyntheticCamera,
            'draw',
            forget_return,
            ConfigError,
            rf'SyntheticCamera\.draw returned None; it must .* {place}',
        ),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, body)
            for _ in range(3):
                with pytest.raises(error, match=message):
                    camera.capture()
    statistics = camera.pool_statistics()
    assert statistics is not None and statistics.states == {SlotState.FREE: 2}
    captured(camera).release()


def test_a_late_camera_skips_ahead_instead_of_catching_up(
    open_camera: Callable[..., SyntheticCamera],
) -> None:
    camera = open_camera(framerate=25.0)
    captured(camera).release()
    time.sleep(0.2)
    started = time.monotonic()
    for _ in range(4):
        captured(camera).release()
    assert camera.statistics().late >= 1
    assert time.monotonic() - started >= 0.115, (
        'one at once and then one each 40 ms, not those missed in a burst'
    )


def test_without_a_descriptor_left_it_captures_into_slots_that_were_never_used_and_closes(
    open_camera: Callable[..., SyntheticCamera],
) -> None:
    camera = open_camera(slots=6)
    before, free = resource.getrlimit(resource.RLIMIT_NOFILE), os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        with pytest.raises(OSError, match='Too many open files'):
            os.dup(0)
        frames = [captured(camera) for _ in camera.slots]
        assert len({frame.data.buffer_uid for frame in frames}) == len(camera.slots) >= 6
        camera.close()
        for frame in frames:
            frame.release()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
