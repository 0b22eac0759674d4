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

"""Colorimetry as GStreamer's texts and V4L2's numbers, both ways, against their headers."""

from __future__ import annotations

from collections.abc import Callable
import itertools
import re

from hypothesis import given
from hypothesis import strategies as st
import pytest

from zc_perception.errors import FormatError
from zc_perception.pixel.colorimetry import (
    BT601_LIMITED,
    Colorimetry,
    from_gstreamer_colorimetry,
    from_v4l2_colorimetry,
    Matrix,
    named_colorimetry,
    Range,
    RGB_FULL,
    Transfer,
    V4l2Colorimetry,
)

FULL, LIMITED = Range.FULL, Range.LIMITED
ALL = [Colorimetry(*parts) for parts in itertools.product(Matrix, Range, Transfer)]


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('bt601', BT601_LIMITED),
        ('bt2100-pq', Colorimetry(Matrix.BT2020, LIMITED, Transfer.PQ)),
        ('1:3:5:1', Colorimetry(Matrix.BT709, FULL)),
        # A webcam's JPEG.
        ('1:4:7:1', Colorimetry(Matrix.BT601, FULL, Transfer.SRGB)),
        # PAL and NTSC as a decoder reports them.
        ('2:4:4:2', BT601_LIMITED),
        ('0:4:16:4', BT601_LIMITED),
    ],
)
def test_gstreamer_s_words(text: str, expected: Colorimetry) -> None:
    assert from_gstreamer_colorimetry(text) == expected


def test_what_gstreamer_doesn_t_know_is_the_default() -> None:
    for text, default, expected in (
        # GStreamer's jpegdec reports this for every picture.
        ('1:4:0:0', Colorimetry(Matrix.BT709, LIMITED), Colorimetry(Matrix.BT601, FULL)),
        ('0:0:0:0', Colorimetry(Matrix.BT709, LIMITED), Colorimetry(Matrix.BT709, LIMITED)),
        ('2:1:0:0', RGB_FULL, Colorimetry(Matrix.RGB, LIMITED, Transfer.SRGB)),
        # Grey has no matrix, and R, G, B have only their own.
        ('2:5:5:1', RGB_FULL, Colorimetry(Matrix.RGB, LIMITED)),
    ):
        assert from_gstreamer_colorimetry(text, default) == expected, text


LISTED = (
    'matrix: bt601, bt709, bt2020, rgb; then range: limited, full; then transfer: bt709, srgb, pq'
)


@pytest.mark.parametrize(
    ('read', 'given_value', 'why'),
    [
        (
            from_gstreamer_colorimetry,
            'smpte240m',
            r'matrix 5 is not one of 3 \(bt709\), 4 \(bt601\), 6 \(bt2020\)',
        ),
        (from_gstreamer_colorimetry, 'bt2100-hlg', 'transfer 15 is not one of 4'),
        (from_gstreamer_colorimetry, '', 'neither one of'),
        (from_gstreamer_colorimetry, '2:4:16:4:1', 'nor four numbers'),
        (from_gstreamer_colorimetry, '2:4:16:٤', 'nor four numbers'),
        (
            from_gstreamer_colorimetry,
            '3:4:16:4',
            r'range 3 is not one of 1 \(full\), 2 \(limited\)',
        ),
        (from_v4l2_colorimetry, V4l2Colorimetry(2), 'V4L2'),
        (from_v4l2_colorimetry, V4l2Colorimetry(3, 2, 2, 3), 'V4L2'),
        (from_v4l2_colorimetry, V4l2Colorimetry(3, 2, 3), 'V4L2'),
        (named_colorimetry, '', LISTED),
        (named_colorimetry, 'full', LISTED),
        (named_colorimetry, 'bt709 wide', LISTED),
        (named_colorimetry, 'bt709 full srgb srgb', LISTED),
    ],
)
def test_what_is_no_colorimetry_of_ours_is_refused(
    read: Callable[..., Colorimetry], given_value: object, why: str
) -> None:
    with pytest.raises(FormatError, match=why):
        read(given_value)


@given(
    st.one_of(
        st.text(max_size=12),
        st.lists(st.integers(0, 20), min_size=4, max_size=4).map(lambda n: ':'.join(map(str, n))),
    )
)
def test_any_text_is_a_colorimetry_or_refused(text: str) -> None:
    try:
        found = from_gstreamer_colorimetry(text)
    except FormatError:
        return
    assert found in ALL


def test_gstreamer_s_numbers_are_those_of_its_header(header: Callable[[str], str]) -> None:
    text = re.sub(r'/\*.*?\*/', '', header('video-color.h'), flags=re.DOTALL)

    def numbers(prefix: str) -> dict[str, int]:
        blocks = re.findall(r'typedef enum\s*\{(.*?)\}', text, re.DOTALL)
        (block,) = (b for b in blocks if f'{prefix}_UNKNOWN = 0' in b)
        names = re.findall(rf'^\s*{prefix}_(\w+)', block, re.MULTILINE)
        return {name: number for number, name in enumerate(names)}

    spans, matrices = numbers('GST_VIDEO_COLOR_RANGE'), numbers('GST_VIDEO_COLOR_MATRIX')
    transfers = numbers('GST_VIDEO_TRANSFER')

    def read(span: str, matrix: str, transfer: str) -> Colorimetry:
        written = f'{spans[span]}:{matrices[matrix]}:{transfers[transfer]}:1'
        return from_gstreamer_colorimetry(written, RGB_FULL if matrix == 'RGB' else BT601_LIMITED)

    for matrix in (Matrix.BT601, Matrix.BT709, Matrix.BT2020):
        assert read('0_255', matrix.name, 'BT709') == Colorimetry(matrix, FULL)
    assert read('16_235', 'BT709', 'SRGB').transfer is Transfer.SRGB
    assert read('0_255', 'BT2020', 'SMPTE2084').transfer is Transfer.PQ
    assert read('16_235', 'RGB', 'BT709') == Colorimetry(Matrix.RGB, LIMITED)
    for matrix, transfer in (('SMPTE240M', 'BT709'), ('FCC', 'BT709'), ('BT2020', 'ARIB_STD_B67')):
        with pytest.raises(FormatError):
            read('16_235', matrix, transfer)
    for same in ('BT709', 'BT601', 'BT2020_10', 'BT2020_12', 'GAMMA22', 'GAMMA28'):
        assert read('16_235', 'BT601', same) == BT601_LIMITED


PQ = Colorimetry(Matrix.BT2020, LIMITED, Transfer.PQ)
V4L2_NUMBERS = [
    ('DEFAULT', 'DEFAULT', 'DEFAULT', 'DEFAULT', BT601_LIMITED),
    ('REC709', '709', 'LIM_RANGE', '709', Colorimetry(Matrix.BT709, LIMITED)),
    ('REC709', '601', 'FULL_RANGE', '709', Colorimetry(Matrix.BT601, FULL)),
    ('BT2020', 'BT2020', 'LIM_RANGE', 'SMPTE2084', PQ),
    ('SRGB', 'XV601', 'LIM_RANGE', 'SRGB', Colorimetry(Matrix.BT601, LIMITED, Transfer.SRGB)),
    ('REC709', 'XV709', 'LIM_RANGE', '709', Colorimetry(Matrix.BT709, LIMITED)),
    ('JPEG', 'DEFAULT', 'DEFAULT', 'DEFAULT', Colorimetry(Matrix.BT601, FULL, Transfer.SRGB)),
]


def test_v4l2_s_numbers(v4l2: str, values: Callable[..., dict[str, int]]) -> None:
    prefixes = ('COLORSPACE', 'YCBCR_ENC', 'QUANTIZATION', 'XFER_FUNC')
    named = [
        [f'V4L2_{prefix}_{name}' for prefix, name in zip(prefixes, names, strict=True)]
        for *names, _ in V4L2_NUMBERS
    ]
    number = values(v4l2, *{name for names in named for name in names})
    for names, (*_, expected) in zip(named, V4L2_NUMBERS, strict=True):
        assert from_v4l2_colorimetry(V4l2Colorimetry(*map(number.get, names))) == expected, names


def colorimetry_or_none(fields: V4l2Colorimetry, rgb: bool) -> Colorimetry | None:
    try:
        return from_v4l2_colorimetry(fields, rgb=rgb)
    except FormatError:
        return None


def test_what_a_driver_leaves_at_default_is_what_the_header_maps_it_to(
    v4l2: str, values: Callable[..., dict[str, int]]
) -> None:
    mapped = {}
    for colorspace, rgb in itertools.product(range(13), (False, True)):
        encoding = f'V4L2_MAP_YCBCR_ENC_DEFAULT({colorspace})'
        mapped[colorspace, rgb] = (
            encoding,
            f'V4L2_MAP_QUANTIZATION_DEFAULT({int(rgb)}, {colorspace}, {encoding})',
            f'V4L2_MAP_XFER_FUNC_DEFAULT({colorspace})',
        )
    number = values(v4l2, *{one for three in mapped.values() for one in three})
    for (colorspace, rgb), three in mapped.items():
        whole = V4l2Colorimetry(colorspace, *map(number.get, three))
        assert colorimetry_or_none(V4l2Colorimetry(colorspace), rgb) == colorimetry_or_none(
            whole, rgb
        ), (colorspace, rgb)


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('bt601', BT601_LIMITED),
        ('bt601  full', Colorimetry(Matrix.BT601, Range.FULL)),
        ('bt2020 limited pq', Colorimetry(Matrix.BT2020, Range.LIMITED, Transfer.PQ)),
        ('rgb', RGB_FULL),
    ],
)
def test_a_person_s_words_name_matrix_range_and_transfer(text: str, expected: Colorimetry) -> None:
    assert named_colorimetry(text) == expected
