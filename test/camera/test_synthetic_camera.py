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

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, ExitStack
import itertools
import os
import resource
import time
from typing import Any

from camera.camera_options import NamedHeap
from camera.counter_picture import read_counter
from camera.replay_kit import captured
from descriptors import limited, next_free
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


@pytest.fixture
def open_camera() -> Iterator[Callable[..., SyntheticCamera]]:
    with ExitStack() as cameras:

        def make(
            *, slots: int = 4, consumer: Mapping[str, Any] | None = None, **options: Any
        ) -> SyntheticCamera:
            now = itertools.count(1_007, 7).__next__
            stamps = StampClock(now, is_simulated=lambda: True)
            usual: dict[str, Any] = {'framerate': FAST, 'seed': 1, 'heap': SealedMemfd()}
            usual |= {'now_ns': now, 'clock': stamps, 'ledger': CopyLedger()}
            camera = SyntheticCamera(WIDTH, HEIGHT, frame_id='lens', **(usual | options))
            cameras.enter_context(closing(camera))
            npu = BufferConstraints('npu', slots=slots - 2, **(consumer or {}))
            camera.allocate(agree([camera.constraints(), npu], (WIDTH, HEIGHT)))
            return camera

        yield make


def test_frame_n_is_picture_n_of_its_seed_and_each_byte_is_drawn_once(
    open_camera: Callable[..., SyntheticCamera],
) -> None:
    camera = open_camera(seed=5, consumer={'stride_align': 192}, ledger=(ledger := CopyLedger()))
    scene, luma = RoadScene(WIDTH, HEIGHT, 5), np.zeros((HEIGHT, WIDTH), np.uint8)
    chroma = np.zeros((HEIGHT // 2, WIDTH // 2, 2), np.uint8)
    for sequence in range(3):
        with captured(camera) as frame, frame.map() as planes:
            scene.draw(sequence, luma, chroma)
            assert frame.data.sequence == sequence and frame.data.planes[0].stride == 192
            assert np.array_equal(planes[0], luma) and np.array_equal(planes[1], chroma)
    assert not camera.ended and camera.constraints().formats == ((NV12, LINEAR),)
    assert ledger.entries() == {'draw': LedgerEntry(3, 3 * WIDTH * HEIGHT * 3 // 2)}
    assert (camera.heap_name, camera.device) == ('memfd', 'synthetic scene, seed 5')


def test_counter_and_bars_are_drawn_too(open_camera: Callable[..., SyntheticCamera]) -> None:
    camera = open_camera(pattern='counter', seed=300, consumer={'stride_align': 192})
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
    contiguous: bool, heap: str, open_camera: Callable[..., SyntheticCamera]
) -> None:
    names = ('dma_heap/system', 'dma_heap/linux,cma', 'udmabuf')
    heaps = working_heaps('auto', names, opener=NamedHeap)
    assert NamedHeap.open == 0, 'those that were tried are closed'
    camera = open_camera(heap=heaps, consumer={'contiguous': contiguous})
    assert camera.constraints().heaps == names
    assert camera.heap_name == heap and NamedHeap.open == 1
    captured(camera).release()
    camera.close()
    assert NamedHeap.open == 0


def test_without_a_free_slot_the_frame_is_dropped_and_leaves_a_gap(
    open_camera: Callable[..., SyntheticCamera],
) -> None:
    camera = open_camera(slots=2)
    held = [captured(camera), captured(camera)]
    assert camera.capture() is None and camera.capture() is None
    found = camera.pool_statistics()
    assert found is not None and (found.exhausted, found.holders) == (2, {'camera': 2})
    held.pop().release()
    held.append(captured(camera))
    assert held[1].data.sequence == 4
    assert (camera.statistics().captured, camera.statistics().dropped) == (3, 2)
    for frame in held:
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
    said = rf'SyntheticCamera\.{{}} returned None; it must .* {place}'
    for owner, method, body, error, message in (
        (camera, 'render', fail, RuntimeError, 'no such colour'),
        # Not a CameraError: the supervisor would reopen the camera, and fail each time.
        (camera, 'render', forget_return, ConfigError, said.format('render')),
        (SyntheticCamera, 'draw', forget_return, ConfigError, said.format('draw')),
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
    with limited(resource.RLIMIT_NOFILE, next_free()):
        with pytest.raises(OSError, match='Too many open files'):
            os.dup(0)
        frames = [captured(camera) for _ in camera.slots]
        assert len({frame.data.buffer_uid for frame in frames}) == len(camera.slots) >= 6
        camera.close()
        for frame in frames:
            frame.release()
