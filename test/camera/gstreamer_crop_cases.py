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
Cropping elements: they leave the frame as it is and say which part of it is to be seen.

Runs in a process with GStreamer; see ``test_gstreamer.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from camera.gstreamer_kit import (
    CAPS,
    next_frame,
    open_camera,
    Pixels,
    shown,
    streaming,
    TIGHT,
    written_by_gstreamer,
)
import numpy as np
import pytest

from zc_perception.errors import ConfigError

WIDTH, HEIGHT = 128, 96
# Of each plane: the bytes of an element, and the pixels that it stands for.
PLANES = {
    'NV12': ((1, 1, 1), (2, 2, 2)),
    'I420': ((1, 1, 1), (1, 2, 2), (1, 2, 2)),
    'Y42B': ((1, 1, 1), (1, 2, 1), (1, 2, 1)),
    'YUY2': ((4, 2, 1),),
    'UYVY': ((4, 2, 1),),
    'RGB': ((3, 1, 1),),
    'BGRx': ((4, 1, 1),),
    'GRAY8': ((1, 1, 1),),
    'GRAY16_LE': ((2, 1, 1),),
}


class Crop(NamedTuple):
    """Elements, and the part of the picture that they leave."""

    elements: str
    x: int
    y: int
    width: int
    height: int


EVEN = (
    Crop('videocrop left=64', 64, 0, 64, 96),
    Crop('videocrop top=10', 0, 10, 128, 86),
    Crop('videocrop right=64 bottom=2', 0, 0, 64, 94),
    Crop('videocrop left=16 top=8 right=4 bottom=2', 16, 8, 108, 86),
    # Their sum is even.
    Crop('videocrop left=3 top=1 ! queue ! videocrop left=5 top=3', 8, 4, 120, 92),
    Crop('aspectratiocrop aspect-ratio=1/1', 16, 0, 96, 96),
)
ODD = (
    Crop('videocrop left=3', 3, 0, 125, 96),
    Crop('videocrop right=1', 0, 0, 127, 96),
    Crop('videocrop left=5 top=7 right=2 bottom=2', 5, 7, 121, 87),
)


def source(fmt: str) -> str:
    """Make one picture, whose brightness and colours change in both directions."""
    caps = f'video/x-raw,format={fmt},width={WIDTH},height={HEIGHT}'
    return f'videotestsrc pattern=colors num-buffers=4 ! {caps}'


def cut(picture: Pixels, fmt: str, crop: Crop) -> list[Pixels]:
    """
    Return the crop's rows of each plane, from the bytes of a whole picture.

    At odd places each plane begins at the sample that has the crop's corner, as videocrop's own
    copies have it, and a column or row without a whole chroma sample is left out.
    """
    grid = [max(plane[i] for plane in PLANES[fmt]) for i in (1, 2)]
    width, height = crop.width - crop.width % grid[0], crop.height - crop.height % grid[1]
    found, start = [], 0
    for size, horizontal, vertical in PLANES[fmt]:
        rows, columns = HEIGHT // vertical, WIDTH // horizontal
        plane = picture[slice(start, start + rows * columns * size)].reshape(rows, columns, size)
        start += plane.size
        y, x = crop.y // vertical, crop.x // horizontal
        found.append(plane[slice(y, y + height // vertical), slice(x, x + width // horizontal)])
    return found


def taken(pipeline: str) -> list[Pixels]:
    """Return the planes of the first frame."""
    with streaming(pipeline) as opened, next_frame(opened.camera) as frame, frame.map() as planes:
        return [plane.copy() for plane in planes]


@pytest.mark.parametrize('fmt', PLANES)
def test_the_part_that_is_left_is_taken(fmt: str, tmp_path: Path) -> None:
    picture = written_by_gstreamer(source(fmt), tmp_path / 'whole')
    for crop in (*EVEN, *ODD):
        found = taken(f'{source(fmt)} ! {crop.elements}')
        for plane, expected in zip(found, cut(picture, fmt, crop), strict=True):
            got = plane.view(np.uint8).reshape(plane.shape[0], -1)
            assert (got == expected.reshape(expected.shape[0], -1)).all(), (fmt, crop)


def test_it_is_taken_at_any_pixel_behind_a_conversion_to_rgb(tmp_path: Path) -> None:
    rgb = f'{source("NV12")} ! videoconvert ! video/x-raw,format=RGB'
    picture = written_by_gstreamer(rgb, tmp_path / 'whole')
    (plane,) = taken(f'{rgb} ! {ODD[2].elements}')
    assert (plane == cut(picture, 'RGB', ODD[2])[0]).all()


def test_a_crop_of_dma_bufs_costs_no_copy() -> None:
    with streaming(f'zcframes {TIGHT} ! videocrop left=16 top=8 right=16 bottom=24') as opened:
        camera = opened.camera
        assert (camera.width, camera.height) == (32, 16) and not camera.copy_reason
        assert [(p.offset, p.stride) for p in camera.pool.layout.planes] == [
            (16 + 8 * 64, 64),
            (3072 + 16 + 4 * 64, 64),
        ]
        for _ in range(6):
            with next_frame(camera) as frame:
                assert len(set(shown(frame))) == 1
        assert opened.ledger.entries() == {}


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
    ('crop', 'words'),
    [('15,8,1,16', 'at least 2x2'), ('40,8,32,16', 'not inside'), ('0,0,0,0', 'not inside')],
)
def test_an_impossible_crop_is_refused(crop: str, words: str) -> None:
    caps = CAPS.replace('width=64,height=48', 'width=32,height=16')
    with pytest.raises(ConfigError, match=words):
        open_camera(
            f'zcframes crop={crop} whole=64,48 frame-size=4608 caps-text={caps} '
            'strides=64,64 offsets=0,3072'
        )
