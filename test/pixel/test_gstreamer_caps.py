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
What GStreamer is told of a picture.

``test/camera/gstreamer_cases.py`` compares the default layouts with GStreamer's own.
"""

from __future__ import annotations

import re

from environment.fixtures import headers
import pytest

from zc_perception.errors import FormatError
from zc_perception.link.unixfd import VIDEO_FORMATS
from zc_perception.pixel.colorimetry import (
    BT601_LIMITED,
    Colorimetry,
    from_gstreamer_colorimetry,
    gstreamer_colorimetry,
    Matrix,
    Range,
    RGB_FULL,
    Transfer,
)
from zc_perception.pixel.format_names import buffer_planes, frame_caps, from_gstreamer, is_default
from zc_perception.pixel.fourcc import FORMATS, fourcc_code
from zc_perception.pixel.layout import compute_layout, ImageLayout
from zc_perception.pixel.modifier import INVALID, KnownModifier, LINEAR


def layout(name: str, modifier: int = LINEAR, **options: int | bool) -> ImageLayout:
    made = compute_layout(fourcc_code(name), 640, 360, **options)  # type: ignore[arg-type]
    return ImageLayout(made.width, made.height, made.fourcc, modifier, made.planes)


def test_numbers_of_formats_are_those_of_the_header() -> None:
    text = headers()['video-format.h'].read_text()
    body = text[slice(text.index('typedef enum {'), text.index('} GstVideoFormat;'))]
    names = re.findall(r'^  GST_VIDEO_FORMAT_(\w+)', body, re.MULTILINE)
    numbers = {name.lower(): number for number, name in enumerate(names)}
    assert numbers['unknown'] == 0 and numbers['nv12'] == 23
    known = {f.gstreamer for f in FORMATS.values() if f.gstreamer}
    assert set(VIDEO_FORMATS) == known
    for name, number in VIDEO_FORMATS.items():
        assert numbers.get(name.lower(), number) == number, name


@pytest.mark.parametrize(
    'colours',
    [Colorimetry(m, r, t) for m in Matrix for r in Range for t in Transfer if m is not Matrix.RGB],
)
def test_colorimetry_comes_back(colours: Colorimetry) -> None:
    assert from_gstreamer_colorimetry(gstreamer_colorimetry(colours)) == colours
    assert from_gstreamer_colorimetry(gstreamer_colorimetry(RGB_FULL), RGB_FULL) == RGB_FULL


def test_caps_say_the_format_s_name_or_its_drm_format() -> None:
    plain = frame_caps(layout('NV12'), BT601_LIMITED, 29.97, dmabuf=False)
    assert plain == (
        'video/x-raw, format=(string)NV12, width=(int)640, height=(int)360, '
        'framerate=(fraction)2997/100, colorimetry=(string)2:4:5:4'
    )
    drm = 'video/x-raw(memory:DMABuf), format=(string)DMA_DRM, drm-format=(string)'
    assert frame_caps(layout('NV12'), BT601_LIMITED, dmabuf=True, drm=True).startswith(
        f'{drm}NV12, width'
    )
    tiled = layout('NV12', int(KnownModifier.QCOM_COMPRESSED))
    assert frame_caps(tiled, BT601_LIMITED, dmabuf=True).startswith(f'{drm}NV12:0x')
    nameless = layout('NV42')
    assert frame_caps(nameless, BT601_LIMITED, dmabuf=True).startswith(f'{drm}NV42,')
    for impossible, dmabuf in ((nameless, False), (tiled, False), (layout('NV12', INVALID), True)):
        with pytest.raises(FormatError):
            frame_caps(impossible, BT601_LIMITED, dmabuf=dmabuf)


def test_planes_count_from_the_first_of_several_memories() -> None:
    apart = layout('NV12', buffer_per_plane=True)
    assert buffer_planes(apart) == ((640 * 360, 640 * 180), (0, 640 * 360), (640, 640))
    assert is_default(apart)
    assert not is_default(layout('NV12', stride_align=256))
    assert not is_default(layout('NV12', height_align=16, offset_align=4096))
    assert from_gstreamer('NV12') == (fourcc_code('NV12'), LINEAR)
