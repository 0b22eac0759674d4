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

"""Colours and crops, compared with GStreamer's own conversion; see ``test_gstreamer.py``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from camera.gstreamer_kit import (
    CAPS,
    next_frame,
    open_camera,
    Pixels,
    streaming,
    written_by_gstreamer,
)
import numpy as np
import pytest

from zc_perception.errors import ConfigError
from zc_perception.pixel.conversion import ToPicture

WIDTH = 32


def source(fmt: str, colorimetry: str, height: int) -> str:
    """Return a source of one colour, so that the position of chroma samples has no effect."""
    caps = f'video/x-raw,format={fmt},width={WIDTH},height={height}'
    return (
        f'videotestsrc pattern=solid-color foreground-color=0xff9050c0 num-buffers=4 '
        f'! {caps}{f",colorimetry={colorimetry}" if colorimetry else ""}'
    )


def picture_of(pipeline: str) -> Pixels:
    """Return the first frame as R, G, B, converted as a consumer does."""
    with streaming(pipeline) as opened, next_frame(opened.camera) as frame, frame.map() as planes:
        data = frame.data
        picture = ToPicture(data.fourcc, data.width, data.height, data.colorimetry)
        return picture.convert(planes)


@pytest.mark.parametrize(
    ('fmt', 'colorimetry', 'height'),
    [
        ('NV12', '', 48),
        ('NV12', '', 720),
        ('YUY2', 'bt2020', 48),
        ('NV12', '1:3:5:1', 48),
        # From a webcam, and from jpegdec, which has no more information about the colours.
        ('I420', '1:4:7:1', 720),
        ('I420', '1:4:0:0', 48),
        # NTSC as MPEG-2 decoders describe it.
        ('I420', '2:4:4:2', 720),
        ('GRAY8', '', 720),
        ('GRAY8', '1:4:0:0', 48),
        ('GRAY16_LE', 'bt709', 48),
    ],
)
def test_pictures_have_the_colours_that_gstreamer_shows(
    fmt: str, colorimetry: str, height: int, tmp_path: Path
) -> None:
    description = source(fmt, colorimetry, height)
    got = picture_of(description)[0, 0]
    rgb = f'{description} ! videoconvert ! video/x-raw,format=RGB,colorimetry=sRGB'
    expected = written_by_gstreamer(rgb, tmp_path / 'rgb')[:3]
    assert np.abs(got.astype(int) - expected).max() <= 4, (got, expected)


# The string's range is used, and the matrix of R, G, B.
@pytest.mark.parametrize(
    ('fmt', 'colorimetry'), [('RGB', ''), ('BGRx', '2:1:7:1'), ('RGB', 'bt709')]
)
def test_rgb_of_limited_range_is_shown_as_such(fmt: str, colorimetry: str, tmp_path: Path) -> None:
    made = f'{source("NV12", "", 48)} ! videoconvert ! video/x-raw,format='
    got = picture_of(f'{made}{fmt}{f",colorimetry={colorimetry}" if colorimetry else ""}')
    expected = written_by_gstreamer(f'{made}RGB,colorimetry=sRGB', tmp_path / 'rgb')[:3]
    assert np.abs(got[0, 0].astype(int) - expected).max() <= 4, (got[0, 0], expected)


@pytest.mark.parametrize(
    ('fmt', 'colorimetry', 'words'),
    [
        ('NV12', 'smpte240m', "'smpte240m': matrix 5 is not one of 3"),
        ('GRAY8', 'bt2100-hlg', "'bt2100-hlg': transfer 15 is not one of"),
        ('NV12', 'BT709', "'BT709' is neither one of bt601, bt709"),
    ],
)
def test_colours_without_a_name_here_are_refused(fmt: str, colorimetry: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"{words}.*put 'videoconvert ! video/x-raw,colorimetry"):
        open_camera(source(fmt, colorimetry, 48))


# Cropping elements set the visible part of the frame.


WHOLE_WIDTH, WHOLE_HEIGHT = 128, 96
# For each plane: bytes of an element, and the pixels in x and y that it covers.
PLANES = {
    'NV12': ((1, 1, 1), (2, 2, 2)),
    'I420': ((1, 1, 1), (1, 2, 2), (1, 2, 2)),
    'Y42B': ((1, 1, 1), (1, 2, 1), (1, 2, 1)),
    'YUY2': ((4, 2, 1),),
    'RGB': ((3, 1, 1),),
    'GRAY16_LE': ((2, 1, 1),),
}


class Crop(NamedTuple):
    """Elements, and the part of the picture that they keep."""

    elements: str
    x: int
    y: int
    width: int
    height: int


EVEN = (
    Crop('videocrop left=16 top=8 right=4 bottom=2', 16, 8, 108, 86),
    # Each is odd, but their sum is even.
    Crop('videocrop left=3 top=1 ! queue ! videocrop left=5 top=3', 8, 4, 120, 92),
    Crop('aspectratiocrop aspect-ratio=1/1', 16, 0, 96, 96),
)
ODD = (
    Crop('videocrop left=3', 3, 0, 125, 96),
    Crop('videocrop left=5 top=7 right=2 bottom=2', 5, 7, 121, 87),
)


def changing(fmt: str) -> str:
    """Return a source whose brightness and colours change in both directions."""
    caps = f'video/x-raw,format={fmt},width={WHOLE_WIDTH},height={WHOLE_HEIGHT}'
    return f'videotestsrc pattern=colors num-buffers=4 ! {caps}'


def cut(picture: Pixels, fmt: str, crop: Crop) -> list[Pixels]:
    """
    Return each plane's rows of the crop, from the bytes of a whole picture.

    As in videocrop's copies, each plane begins at the sample of the crop's corner, and columns and
    rows without a whole chroma sample are omitted.
    """
    grid = [max(plane[i] for plane in PLANES[fmt]) for i in (1, 2)]
    width, height = crop.width - crop.width % grid[0], crop.height - crop.height % grid[1]
    found, start = [], 0
    for size, horizontal, vertical in PLANES[fmt]:
        rows, columns = WHOLE_HEIGHT // vertical, WHOLE_WIDTH // horizontal
        plane = picture[slice(start, start + rows * columns * size)].reshape(rows, columns, size)
        start += plane.size
        y, x = crop.y // vertical, crop.x // horizontal
        found.append(plane[slice(y, y + height // vertical), slice(x, x + width // horizontal)])
    return found


def taken(pipeline: str) -> list[Pixels]:
    with streaming(pipeline) as opened, next_frame(opened.camera) as frame, frame.map() as planes:
        return [plane.copy() for plane in planes]


@pytest.mark.parametrize('fmt', PLANES)
def test_the_part_that_is_left_is_taken(fmt: str, tmp_path: Path) -> None:
    picture = written_by_gstreamer(changing(fmt), tmp_path / 'whole')
    for crop in (*EVEN, *ODD):
        found = taken(f'{changing(fmt)} ! {crop.elements}')
        for plane, expected in zip(found, cut(picture, fmt, crop), strict=True):
            got = plane.view(np.uint8).reshape(plane.shape[0], -1)
            assert (got == expected.reshape(expected.shape[0], -1)).all(), (fmt, crop)


TILED = (
    'caps-text="video/x-raw(memory:DMABuf),format=DMA_DRM,drm-format=NV12:0x0100000000000002,'
    'width=32,height=16" '
    'frame-size=4608 whole=64,48 strides=64,64 offsets=0,3072'
)


def test_the_padding_of_a_tiled_frame_is_left_out() -> None:
    camera = open_camera(f'zcframes crop=0,0,32,16 {TILED}').camera
    try:
        assert (camera.width, camera.height) == (32, 16)
    finally:
        camera.close()
    with pytest.raises(
        ConfigError, match='only a LINEAR image can be cropped at its left and top'
    ):
        open_camera(f'zcframes crop=16,0,32,16 {TILED}')


@pytest.mark.parametrize(
    ('crop', 'words'), [('15,8,1,16', 'at least 2x2'), ('40,8,32,16', 'not inside')]
)
def test_an_impossible_crop_is_refused(crop: str, words: str) -> None:
    caps = CAPS.replace('width=64,height=48', 'width=32,height=16')
    with pytest.raises(ConfigError, match=words):
        open_camera(
            f'zcframes crop={crop} whole=64,48 frame-size=4608 caps-text={caps} '
            'strides=64,64 offsets=0,3072'
        )
