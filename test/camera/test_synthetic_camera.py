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

"""The synthetic camera: order, time, memory and content of its pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, ExitStack
import itertools
import os
import resource
import time
from typing import Any

from camera.camera_options import NamedHeap
from camera.jpeg_kit import read_counter
from camera.replay_kit import captured
import cv2
from descriptors import limited, next_free
from hypothesis import example, given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.camera import road_scene as scene
from zc_perception.camera.clock import StampClock
from zc_perception.camera.road_scene import (
    CLASS_NAMES,
    MAX_OBJECTS,
    MIN_OBJECTS,
    RoadScene,
    SceneObject,
)
from zc_perception.camera.synthetic import (
    BAR_COLOURS,
    ColourBars,
    draw_counter,
    SyntheticCamera,
    TimeCode,
)
from zc_perception.errors import ConfigError
from zc_perception.memory.heaps import SealedMemfd, working_heaps
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.memory.pool import SlotState
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')
WIDTH, HEIGHT, FAST = 128, 96, 2000.0
OpenCamera = Callable[..., SyntheticCamera]


@pytest.fixture
def open_camera() -> Iterator[OpenCamera]:
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
    open_camera: OpenCamera,
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


def test_counter_and_bars_are_drawn_too(open_camera: OpenCamera) -> None:
    camera = open_camera(pattern='counter', seed=300, consumer={'stride_align': 192})
    for sequence in range(3):
        with captured(camera) as frame, frame.map() as planes:
            assert read_counter(planes[0].copy()) == (300 & 0xFF, sequence, frame.header.stamp_ns)
    with captured(open_camera(pattern='bars')) as frame, frame.map() as planes:
        assert frame.data.colorimetry == BT601_LIMITED
        assert int(planes[0][10, 8 * 2 + 8]) == 162, 'yellow'


def test_a_frame_s_header_and_times(open_camera: OpenCamera) -> None:
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
    contiguous: bool, heap: str, open_camera: OpenCamera
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
    open_camera: OpenCamera,
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
    open_camera: OpenCamera, monkeypatch: pytest.MonkeyPatch
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
    open_camera: OpenCamera,
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
    open_camera: OpenCamera,
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


# The road scene that it draws: determinism, limits, truth against pixels, and colours.

sides = st.integers(32, 420).map(lambda half: 2 * half)
seeds = st.integers(0, 2**40)
indices = st.integers(0, 10**9)
palettes = st.sampled_from(sorted(scene.PALETTES))


def planes(width: int, height: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    sizes = (height, width), (height // 2, width // 2, 2)
    return np.full(sizes[0], 99, np.uint8), np.full(sizes[1], 99, np.uint8)


def drawn(scene: RoadScene, index: int) -> tuple[bytes, tuple[SceneObject, ...]]:
    luma, chroma = planes(scene.width, scene.height)
    objects = scene.draw(index, luma, chroma)
    return luma.tobytes() + chroma.tobytes(), objects


def test_the_same_frame_has_the_same_bytes_whatever_was_drawn_before() -> None:
    first, second = RoadScene(640, 360, 7), RoadScene(640, 360, 7)
    expected = {index: drawn(first, index) for index in (0, 1, 500, 1_000_000)}
    again = {index: drawn(second, index) for index in (1_000_000, 3, 500, 1, 0)}
    assert again.items() >= expected.items()
    for levels, _ in expected.values():
        luma, chroma = np.split(np.frombuffer(levels, np.uint8), [640 * 360])
        assert luma.min() >= 16 and luma.max() <= 235 and luma.std() > 20
        assert chroma.min() >= 16 and chroma.max() <= 240


@settings(max_examples=25, deadline=None)
@given(sides, sides, seeds, palettes, st.lists(indices, min_size=1, max_size=4))
@example(3840, 2160, 5, 'train', list(range(0, 4000, 500)))
@example(64, 64, 153645, 'all', [10113828])
def test_objects_stay_within_limits(
    width: int, height: int, seed: int, palette: str, when: list[int]
) -> None:
    scene = RoadScene(width, height, seed, palette)
    assert (MIN_OBJECTS, MAX_OBJECTS) == (5, 40)
    for objects in map(scene.truth, when):
        assert 5 <= len(objects) <= 40
        for item in objects:
            assert 0 <= item.class_index < len(CLASS_NAMES)
            assert 12 <= min(item.width, item.height) <= max(item.width, item.height) <= 400
            assert item.x >= 0 and item.y >= 0
            assert item.x + item.width <= width and item.y + item.height <= height
            assert 0.5 <= item.visible <= 1.0


def touched_by(polygons: list[NDArray[np.int32]], luma: NDArray[np.uint8]) -> NDArray[np.bool_]:
    black, white = np.zeros_like(luma), np.full_like(luma, 255)
    for canvas in (black, white):
        for polygon in polygons:
            cv2.fillPoly(canvas, [polygon], 130)
    return black == white


def tight_box(pixels: NDArray[np.bool_]) -> tuple[float, float, float, float]:
    (top, *_, bottom), (left, *_, right) = (np.flatnonzero(pixels.any(axis)) for axis in (1, 0))
    return float(left), float(top), float(right - left + 1), float(bottom - top + 1)


@pytest.mark.parametrize(('width', 'height', 'seed'), [(640, 360, 1), (320, 240, 3), (64, 64, 4)])
def test_truth_is_what_is_painted(
    width: int, height: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = RoadScene(width, height, seed)
    touched: list[NDArray[np.bool_]] = []
    monkeypatch.setattr(
        'zc_perception.camera.road_scene.paint',
        lambda polygons, shape, luma, chroma: touched.append(touched_by(polygons, luma)),
    )
    for index in (0, 77, 1234):
        touched.clear()
        objects = scene.draw(index, *planes(width, height))
        hidden = np.zeros((height, width), np.bool_)
        for item, pixels in zip(objects, reversed(touched), strict=False):  # the nearest first
            assert (item.x, item.y, item.width, item.height) == tight_box(pixels)
            shown = (pixels & ~hidden).sum() / pixels.sum()
            assert item.visible <= shown + 1e-9 <= item.visible / 0.8 + 1e-6
            hidden |= pixels


def test_every_class_and_a_wide_range_of_sizes_appear() -> None:
    drives = [RoadScene(640, 360, seed) for seed in range(5)]
    objects = [item for each in drives for n in range(0, 800, 80) for item in each.truth(n)]
    counts = np.bincount([item.class_index for item in objects], minlength=len(CLASS_NAMES))
    assert len(CLASS_NAMES) >= 3 and (counts / len(objects)).min() > 0.1
    longest = [max(item.width, item.height) for item in objects]
    assert min(longest) < 24 and max(longest) > 150
    assert 0.1 < np.mean([item.visible < 0.95 for item in objects]) < 0.7, 'they hide each other'


def test_palettes_for_training_and_testing_do_not_meet() -> None:
    rounding, rng = 4, np.random.default_rng(0)
    makers = (scene.car, scene.pedestrian, scene.sign, scene.cone)
    for palette in ('train', 'held_out'):
        low, high = scene.PALETTES[palette]
        made = [make(rng, (low, high), 0.5) for make in makers for _ in range(100)]
        colours = np.array([part.colour for shape in made for part in shape.parts], float)
        u, v = colours[:, 1] - 128, colours[:, 2] - 128
        hues = (np.degrees(np.arctan2(v, u)) % 360)[np.hypot(u, v) > 13]
        assert ((hues - low + rounding) % 360).max() <= high - low + 2 * rounding
    assert scene.PALETTES['train'][1] + 2 * rounding < scene.PALETTES['held_out'][0]
    assert scene.PALETTES['held_out'][1] + 2 * rounding < scene.PALETTES['train'][0] + 360


@pytest.mark.parametrize(('arguments', 'named'), [
    ((641, 360), 'width .* 641'), ((640, 0), 'height .* 64 .* 0'), ((640, 360, -1), 'seed .* -1'),
    ((640, 360, 0, 'pastel'), "palette .* 'pastel'"),
])  # fmt: skip
def test_impossible_scenes_are_refused(arguments: tuple[Any, ...], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RoadScene(*arguments)


# Test patterns: bars, and the counter after every step of a pipeline.

SIZES = [(640, 360), (64, 64), (130, 66)]
CODES = st.builds(
    TimeCode,
    st.integers(0, 255),
    st.integers(0, (1 << 32) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
)


def counter_planes(
    code: TimeCode, width: int = 640, height: int = 360
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    drawn = planes(width, height)
    draw_counter(code, *drawn)
    return drawn


@settings(max_examples=30)
@given(CODES, st.sampled_from(SIZES))
def test_what_was_drawn_is_read(code: TimeCode, size: tuple[int, int]) -> None:
    luma, chroma = counter_planes(code, *size)
    assert read_counter(luma) == code
    assert set(np.unique(luma)) == {16, 235} and np.all(chroma == 128)


@settings(max_examples=30)
@given(
    CODES,
    st.sampled_from([(640, 360), (320, 240)]),
    st.sampled_from([0.5, 0.25, 2.0, 0.37]),
    st.integers(20, 95),
    st.integers(0, 30),
)
def test_it_survives_scaling_jpeg_and_noise(
    code: TimeCode, size: tuple[int, int], scale: float, quality: int, noise: int
) -> None:
    picture = cv2.cvtColorTwoPlane(*counter_planes(code, *size), cv2.COLOR_YUV2BGR_NV12)
    picture = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    added = np.random.default_rng(0).integers(-noise, noise + 1, picture.shape)
    picture = np.clip(picture.astype(int) + added, 0, 255).astype(np.uint8)
    content = cv2.imencode('.jpg', picture, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    decoded = cv2.imdecode(content, cv2.IMREAD_GRAYSCALE)
    assert read_counter(np.asarray(decoded, np.uint8)) == code


@settings(max_examples=50)
@given(st.data())
def test_a_picture_that_was_damaged_says_the_truth_or_nothing(data: st.DataObject) -> None:
    code = data.draw(CODES)
    luma, _ = counter_planes(code, 128, 96)
    for _ in range(data.draw(st.integers(1, 3))):
        top, left = 12 * data.draw(st.integers(0, 7)), 8 * data.draw(st.integers(0, 15))
        level = data.draw(st.sampled_from([16, 235, 120]))
        luma[slice(top, top + 12), slice(left, left + 8)] = level
    # The CRC finds any three wrong bits of 128; with more, one in 65536 may look right.
    assert read_counter(luma) in (code, None)


#: Levels of 75 % bars as in ITU-R BT.801 and SMPTE RP 219 (8 bits, limited range).
PRINTED = {
    Matrix.BT601: {
        'white': (180, 128, 128), 'yellow': (162, 44, 142), 'cyan': (131, 156, 44),
        'green': (112, 72, 58),
        'magenta': (84, 184, 198), 'red': (65, 100, 212), 'blue': (35, 212, 114),
        'black': (16, 128, 128),
    },
    Matrix.BT709: {
        'white': (180, 128, 128), 'yellow': (168, 44, 136), 'cyan': (145, 147, 44),
        'green': (133, 63, 52),
        'magenta': (63, 193, 204), 'red': (51, 109, 212), 'blue': (28, 212, 120),
        'black': (16, 128, 128),
    },
}  # fmt: skip


@pytest.mark.parametrize('matrix', PRINTED)
def test_the_bars_have_the_levels_that_the_standards_print(matrix: Matrix) -> None:
    luma, chroma = planes(640, 360)
    ColourBars(640, 360, Colorimetry(matrix, Range.LIMITED)).draw(luma, chroma)
    for index, name in enumerate(BAR_COLOURS):
        found = [int(luma[100, 80 * index + 40]), *map(int, chroma[50, 40 * index + 20])]
        assert np.abs(np.subtract(found, PRINTED[matrix][name])).max() <= 1, name
    # Below the bars there are eight greys from black to white.
    assert np.abs(luma[340, 40::80] - np.linspace(16, 235, 8)).max() <= 1
    assert (chroma[170, 20::40] == 128).all()
