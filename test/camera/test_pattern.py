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
Test patterns.

What the counter's picture says after all that a pipeline does to pictures, and levels that
standards print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from camera.counter_picture import read_counter
from camera.replay_kit import captured, configure
import cv2
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.camera.synthetic import (
    BAR_COLOURS,
    ColourBars,
    draw_counter,
    SyntheticCamera,
    TimeCode,
)
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range

pytestmark = pytest.mark.usefixtures('no_fd_leak')
SIZES = [(640, 360), (1920, 1080), (64, 64), (130, 66)]
CODES = st.builds(
    TimeCode,
    st.integers(0, 255),
    st.integers(0, (1 << 32) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
)


def drawn(
    code: TimeCode, width: int = 640, height: int = 360
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    luma, chroma = (
        np.zeros((height, width), np.uint8),
        np.zeros((height // 2, width // 2, 2), np.uint8),
    )
    draw_counter(code, luma, chroma)
    return luma, chroma


@settings(max_examples=60)
@given(CODES, st.sampled_from(SIZES))
def test_what_was_drawn_is_read(code: TimeCode, size: tuple[int, int]) -> None:
    luma, chroma = drawn(code, *size)
    assert read_counter(luma) == code
    assert set(np.unique(luma)) == {16, 235} and np.all(chroma == 128)


@settings(max_examples=60)
@given(
    CODES,
    st.sampled_from([(640, 360), (1280, 720)]),
    st.sampled_from([0.5, 0.25, 2.0, 0.37]),
    st.integers(20, 95),
    st.integers(0, 30),
)
def test_it_survives_scaling_jpeg_and_noise(
    code: TimeCode, size: tuple[int, int], scale: float, quality: int, noise: int
) -> None:
    luma, chroma = drawn(code, *size)
    picture = cv2.cvtColorTwoPlane(luma, chroma, cv2.COLOR_YUV2BGR_NV12)
    picture = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    rng = np.random.default_rng(0)
    picture = np.clip(
        picture.astype(int) + rng.integers(-noise, noise + 1, picture.shape), 0, 255
    ).astype(np.uint8)
    decoded = cv2.imdecode(
        cv2.imencode('.jpg', picture, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], cv2.IMREAD_GRAYSCALE
    )
    assert read_counter(np.asarray(decoded, np.uint8)) == code


def test_rows_with_padding_are_drawn_and_the_padding_is_left_alone() -> None:
    memory = np.full((96 * 3 // 2, 160), 0xEE, np.uint8)
    luma = memory[:96, :128]
    chroma = memory[96:, :128].reshape(48, 64, 2)
    draw_counter(TimeCode(9, 8, 7), luma, chroma)
    assert read_counter(luma) == (9, 8, 7) and np.all(memory[:, 128:] == 0xEE)


@settings(max_examples=100)
@given(st.data())
def test_a_picture_that_was_damaged_says_the_truth_or_nothing(data: st.DataObject) -> None:
    code = data.draw(CODES)
    luma, _ = drawn(code, 128, 96)
    for _ in range(data.draw(st.integers(1, 3))):
        row, column = data.draw(st.integers(0, 7)), data.draw(st.integers(0, 15))
        luma[slice(12 * row, 12 * row + 12), slice(8 * column, 8 * column + 8)] = data.draw(
            st.sampled_from([16, 235, 120])
        )
    # This CRC finds any three wrong bits of 128; more may, once in 65536, look right.
    assert read_counter(luma) in (code, None)


#: Levels of 75 % bars as ITU-R BT.801 and SMPTE RP 219 print them (8 bits, limited range).
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
    bars = ColourBars(640, 360, Colorimetry(matrix, Range.LIMITED))
    luma, chroma = np.zeros((360, 640), np.uint8), np.zeros((180, 320, 2), np.uint8)
    bars.draw(luma, chroma)
    for index, name in enumerate(BAR_COLOURS):
        y, (u, v) = luma[100, 80 * index + 40], chroma[50, 40 * index + 20]
        assert np.abs(np.subtract((int(y), int(u), int(v)), PRINTED[matrix][name])).max() <= 1, (
            name
        )
    # Below the bars: eight greys from black to white.
    assert (
        np.abs(luma[340, 40::80] - np.linspace(16, 235, 8)).max() <= 1
        and (chroma[170, 20::40] == 128).all()
    )


@pytest.fixture
def open_camera() -> Iterator[Callable[..., SyntheticCamera]]:
    cameras: list[SyntheticCamera] = []

    def make(width: int = 128, height: int = 96, **options: Any) -> SyntheticCamera:
        now = iter(range(1_000_000, 2_000_000, 1000))
        values: dict[str, Any] = {'seed': 5, **options}
        camera = SyntheticCamera(
            width,
            height,
            2000.0,
            'lens',
            heap=SealedMemfd(),
            now_ns=lambda: next(now),
            ledger=CopyLedger(),
            **values,
        )
        cameras.append(camera)
        configure(camera, stride_align=192)
        return camera

    yield make
    for camera in cameras:
        camera.close()


def test_the_camera_s_counter_says_seed_sequence_and_stamp(
    open_camera: Callable[..., SyntheticCamera],
) -> None:
    camera = open_camera(pattern='counter', seed=300)
    assert camera.device == 'synthetic counter, seed 300'
    for sequence in range(3):
        with captured(camera) as frame, frame.map() as planes:
            assert read_counter(planes[0].copy()) == (300 & 0xFF, sequence, frame.header.stamp_ns)


def test_the_camera_s_bars_are_of_its_colorimetry(
    open_camera: Callable[..., SyntheticCamera],
) -> None:
    camera = open_camera(pattern='bars')
    with captured(camera) as frame, frame.map() as planes:
        assert frame.data.colorimetry == BT601_LIMITED
        assert int(planes[0][10, 8 * 2 + 8]) == 162, 'yellow'
