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
What the caps say of colours, compared with GStreamer's own conversion to R, G, B.

Runs in a process with GStreamer; see ``test_gstreamer.py``.
"""

from __future__ import annotations

from pathlib import Path

from camera.gstreamer_kit import next_frame, open_camera, Pixels, streaming, written_by_gstreamer
import numpy as np
import pytest

from zc_perception.errors import ConfigError
from zc_perception.pixel.conversion import ToPicture

WIDTH = 32


def source(fmt: str, colorimetry: str, height: int) -> str:
    """Return one colour, so that it doesn't matter how chroma is spread over the pixels."""
    caps = f'video/x-raw,format={fmt},width={WIDTH},height={height}'
    return (
        f'videotestsrc pattern=solid-color foreground-color=0xff9050c0 num-buffers=4 '
        f'! {caps}{f",colorimetry={colorimetry}" if colorimetry else ""}'
    )


def picture_of(pipeline: str) -> Pixels:
    """Return the first frame as R, G, B, as a consumer makes it."""
    with streaming(pipeline) as opened, next_frame(opened.camera) as frame, frame.map() as planes:
        data = frame.data
        picture = ToPicture(data.fourcc, data.width, data.height, data.colorimetry)
        return picture.convert(planes)


@pytest.mark.parametrize('height', [48, 720])
@pytest.mark.parametrize(
    ('fmt', 'colorimetry'),
    [
        ('NV12', ''),
        ('NV12', 'bt601'),
        ('I420', 'bt709'),
        ('YUY2', 'bt2020'),
        ('NV12', 'bt2020-10'),
        ('NV12', '1:3:5:1'),
        # A webcam's, and jpegdec's own, which knows no more of the colours than that.
        ('I420', '1:4:7:1'),
        ('I420', '1:4:0:0'),
        # PAL and NTSC as a decoder of MPEG-2 says it.
        ('I420', '2:4:8:3'),
        ('I420', '2:4:4:2'),
        ('GRAY8', ''),
        ('GRAY8', 'bt601'),
        ('GRAY8', '2:4:5:1'),
        ('GRAY8', '1:4:0:0'),
        ('GRAY16_LE', 'bt709'),
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


@pytest.mark.parametrize('fmt', ['RGB', 'BGRx'])
# The range is the string's; there is no matrix but that of R, G, B.
@pytest.mark.parametrize('colorimetry', ['', 'sRGB', '2:1:7:1', 'bt709'])
def test_rgb_of_limited_range_is_shown_as_such(fmt: str, colorimetry: str, tmp_path: Path) -> None:
    made = f'{source("NV12", "", 48)} ! videoconvert ! video/x-raw,format='
    got = picture_of(f'{made}{fmt}{f",colorimetry={colorimetry}" if colorimetry else ""}')
    expected = written_by_gstreamer(f'{made}RGB,colorimetry=sRGB', tmp_path / 'rgb')[:3]
    assert np.abs(got[0, 0].astype(int) - expected).max() <= 4, (got[0, 0], expected)


@pytest.mark.parametrize(
    ('fmt', 'colorimetry', 'words'),
    [
        ('NV12', 'smpte240m', "'smpte240m': matrix 5 is not one of 3"),
        ('I420', '2:5:6:5', "'2:5:6:5': matrix 5 is not one of 3"),
        ('NV12', 'bt2100-hlg', "'bt2100-hlg': transfer 15 is not one of"),
        ('NV12', '1:4:15:7', "'1:4:15:7': transfer 15 is not one of"),
        ('GRAY8', 'bt2100-hlg', "'bt2100-hlg': transfer 15 is not one of"),
        ('YUY2', '1:2:5:1', "'1:2:5:1': matrix 2 is not one of 3"),
        ('YUY2', 'sRGB', "'sRGB': matrix 1 is not one of 3"),
        ('NV12', 'BT709', "'BT709' is neither one of bt601, bt709"),
    ],
)
def test_colours_without_a_name_here_are_refused(fmt: str, colorimetry: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"{words}.*put 'videoconvert ! video/x-raw,colorimetry"):
        open_camera(source(fmt, colorimetry, 48))
