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

"""One format's names elsewhere, both ways, and why some have none."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
import pytest

from zc_perception.errors import FormatError
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range, Transfer
from zc_perception.pixel.format_names import (
    from_gstreamer,
    from_nvbufsurface,
    from_ros_encoding,
    from_v4l2,
    gstreamer_format,
    gstreamer_name,
    named_format,
    nvbufsurface_format,
    NvBufSurfaceFormat,
    ros_encoding,
    V4l2Format,
)
from zc_perception.pixel.fourcc import format_by_name, FORMATS, fourcc_code, NV12, PixelFormat
from zc_perception.pixel.modifier import LINEAR

VIVANTE_TILED = 0x0600000000000001
SAMSUNG_64_32 = 0x0400000000000001
entries = pytest.mark.parametrize('entry', FORMATS.values(), ids=lambda entry: entry.name.strip())


def code(name: str) -> int:
    return format_by_name(name).code


# V4L2


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('VT12', V4l2Format(NV12, VIVANTE_TILED, False)),
        ('VT15', V4l2Format(fourcc_code('NV15'), VIVANTE_TILED, False)),
        ('ST12', V4l2Format(NV12, 0x0900000000000001, False)),
        ('TM12', V4l2Format(NV12, SAMSUNG_64_32, True)),
        ('MM21', V4l2Format(NV12, 0x0B00000000000001, True)),
        ('Q08C', V4l2Format(NV12, 0x0500000000000001, False)),
    ],
)
def test_tiled_v4l2_formats_have_their_vendor_s_modifier(name: str, expected: V4l2Format) -> None:
    assert from_v4l2(name) == expected


@pytest.mark.parametrize(
    ('name', 'why'),
    [
        ('HM12', "V4L2 format 'HM12' can't be used: no DRM modifier describes its tiles"),
        ('VM12', 'no DRM modifier describes its tiles; capture V4L2 NV12'),
        ('MT21', 'MediaTek compresses'),
        ('MJPG', 'compressed stream'),
        ('RG10', 'raw Bayer'),
        ('RG16', 'raw Bayer'),
        ('RGB4', "depends on the driver; use 'BX24'"),
        ('BG24', "V4L2 format 'BG24' is not known; DRM's 'BG24' is V4L2's 'RGB3'"),
        ('YUYW', "is not known; did you mean 'YUYV'"),
        ('', "V4L2 format '' is not known"),
    ],
)
def test_v4l2_formats_that_are_refused_say_why(name: str, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        from_v4l2(name)


@given(st.one_of(st.text(max_size=6), st.integers(0, (1 << 32) - 1)))
def test_any_v4l2_name_is_a_format_or_refused(name: str | int) -> None:
    try:
        found = from_v4l2(name)
    except FormatError:
        return
    assert found.fourcc in FORMATS


# GStreamer


@entries
def test_gstreamer_names_go_both_ways(entry: PixelFormat) -> None:
    if entry.gstreamer is None:
        with pytest.raises(
            FormatError, match='has no GStreamer format; as a dma-buf it goes as DMA_DRM'
        ):
            gstreamer_name(entry.code)
    else:
        assert from_gstreamer(gstreamer_name(entry.code)) == (entry.code, LINEAR)
        if entry.bits == 8 and 'G' in entry.components[0]:
            assert entry.gstreamer.upper() == ''.join(entry.components[0]), (
                'as the bytes lie in memory'
            )


@pytest.mark.parametrize(
    ('name', 'modifier'),
    [
        ('NV12_4L4', VIVANTE_TILED),
        ('NV12_64Z32', SAMSUNG_64_32),
        ('NV12_32L32', 0x0900000000000001),
        ('NV12_16L32S', 0x0B00000000000001),
    ],
)
def test_well_known_tilings_have_gstreamer_formats_of_their_own(name: str, modifier: int) -> None:
    assert gstreamer_format(NV12, modifier) == name
    assert from_gstreamer(name) == (NV12, modifier)


def test_everything_else_that_is_not_linear_is_dma_drm() -> None:
    assert gstreamer_format(NV12, 0x0100000000000001) == 'DMA_DRM'
    assert gstreamer_format(code('AR24'), VIVANTE_TILED) == 'DMA_DRM'
    assert gstreamer_format(NV12, LINEAR) == 'NV12'


@pytest.mark.parametrize(
    ('name', 'why'),
    [
        ('DMA_DRM', 'says nothing by itself'),
        ('I42O', "has no DRM fourcc here; did you mean 'I420'"),
        ('A420', 'no DRM fourcc'),
    ],
)
def test_gstreamer_names_that_are_refused_say_why(name: str, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        from_gstreamer(name)


# ROS


@pytest.mark.parametrize(('old', 'fourcc'), [('yuv422', 'UYVY'), ('yuv422_yuy2', 'YUYV')])
def test_humble_s_names_are_understood_and_not_written(old: str, fourcc: str) -> None:
    assert from_ros_encoding(old) == code(fourcc)
    assert ros_encoding(code(fourcc)) == fourcc.lower()


@entries
def test_a_format_without_an_encoding_says_so(entry: PixelFormat) -> None:
    if entry.ros is None:
        with pytest.raises(FormatError, match='has no ROS image encoding; convert it'):
            ros_encoding(entry.code)


@pytest.mark.parametrize('encoding', ['bayer_rggb8', '32FC1', 'RGB8', '', 'rgb16'])
def test_encodings_without_a_fourcc_are_refused(encoding: str) -> None:
    with pytest.raises(FormatError, match=f"image encoding '{encoding}' has no DRM fourcc"):
        from_ros_encoding(encoding)


# NvBufSurface; the numbers are those of NVIDIA's documented enumeration.


@pytest.mark.parametrize(
    ('value', 'fourcc', 'matrix', 'span'),
    [
        (6, 'NV12', Matrix.BT601, Range.LIMITED),
        (7, 'NV12', Matrix.BT601, Range.FULL),
        (33, 'NV12', Matrix.BT709, Range.LIMITED),
        (34, 'NV12', Matrix.BT709, Range.FULL),
        (36, 'NV12', Matrix.BT2020, Range.LIMITED),
        (8, 'NV21', Matrix.BT601, Range.LIMITED),
        (2, 'YU12', Matrix.BT601, Range.LIMITED),
        (5, 'YV12', Matrix.BT601, Range.FULL),
        (32, 'YU12', Matrix.BT709, Range.FULL),
        (10, 'UYVY', Matrix.BT601, Range.LIMITED),
        (14, 'YUYV', Matrix.BT601, Range.LIMITED),
        (29, 'P010', Matrix.BT601, Range.LIMITED),
    ],
)
def test_nvbufsurface_formats_carry_matrix_and_range(
    value: int, fourcc: str, matrix: Matrix, span: Range
) -> None:
    assert from_nvbufsurface(value) == (code(fourcc), Colorimetry(matrix, span))
    assert nvbufsurface_format(code(fourcc), Colorimetry(matrix, span)) == value


def test_every_nvbufsurface_format_goes_both_ways() -> None:
    pairs = {value: from_nvbufsurface(value) for value in NvBufSurfaceFormat}
    assert len(set(pairs.values())) == len(pairs)
    assert all(nvbufsurface_format(*pair) == value for value, pair in pairs.items())


@pytest.mark.parametrize(
    ('name', 'fourcc'),
    [('NV12', 'NV12'), ('R8', 'R8  '), ('rgb8', 'BG24'), ('yuv422_yuy2', 'YUYV')],
)
def test_a_person_s_name_is_a_fourcc_s_or_ros_s(name: str, fourcc: str) -> None:
    assert named_format(name).name == fourcc


@pytest.mark.parametrize('name', ['nv13', 'RGB', '', 'bayer_rggb8', None, 842094158])
def test_other_names_are_refused_and_those_that_there_are_listed(name: object) -> None:
    with pytest.raises(
        FormatError, match=r'is not known.*; known are NV12, .*R8, .*; and of ROS nv12, .*rgb8'
    ):
        named_format(name)  # type: ignore[arg-type]


def test_range_and_matrix_are_never_taken_for_granted() -> None:
    chosen = {
        nvbufsurface_format(NV12, Colorimetry(m, r))
        for m, r in itertools.product((Matrix.BT601, Matrix.BT709), Range)
    }
    assert chosen == {6, 7, 33, 34}
    # The transfer function isn't in the format.
    assert nvbufsurface_format(NV12, Colorimetry(Matrix.BT709, Range.LIMITED, Transfer.SRGB)) == 33


@pytest.mark.parametrize(
    ('fourcc', 'colours', 'why'),
    [
        (
            'NV12',
            Colorimetry(Matrix.BT2020, Range.FULL),
            'known are bt601 limited, bt601 full, bt709 limited',
        ),
        (
            'NV21',
            Colorimetry(Matrix.BT709, Range.LIMITED),
            (
                "no NvBufSurface colour format for 'NV21' bt709 limited: known are bt601 limited, "
                'bt601 full'
            ),
        ),
        ('NV16', BT601_LIMITED, 'none is known for it'),
    ],
)
def test_what_nvbufsurface_lacks_is_said(fourcc: str, colours: Colorimetry, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        nvbufsurface_format(code(fourcc), colours)


@pytest.mark.parametrize('value', [0, -1, 41, 1000])
def test_unknown_nvbufsurface_values_are_refused(value: int) -> None:
    with pytest.raises(FormatError, match=f'colour format {value} has no DRM fourcc'):
        from_nvbufsurface(value)
