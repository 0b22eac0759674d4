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
Colorimetry, which gives samples their colours: matrix, range and transfer function.

Example: NV12 and NvBufSurface's NV12_ER differ only in the range. If a program assumes the wrong
range, pictures look washed out. Sources: ``videodev2.h`` (values, and rules for the fields that a
driver leaves at DEFAULT) and GStreamer's ``video-color.h``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from zc_perception.errors import FormatError


class Matrix(Enum):
    """A Y'CbCr matrix, named by ITU-R recommendation; RGB: samples are R, G, B, without matrix."""

    BT601 = 'bt601'
    BT709 = 'bt709'
    BT2020 = 'bt2020'
    RGB = 'rgb'


class Range(Enum):
    """The range of 8-bit samples; LIMITED: luma 16..235, chroma 16..240; FULL: 0..255."""

    LIMITED = 'limited'
    FULL = 'full'


class Transfer(Enum):
    """The transfer function; BT.601 and BT.2020 use BT.709's curve, and PQ is SMPTE ST 2084."""

    BT709 = 'bt709'
    SRGB = 'srgb'
    PQ = 'pq'


@dataclass(frozen=True)
class Colorimetry:
    """The colorimetry of an image, without primaries: those usual for the matrix are assumed."""

    matrix: Matrix
    range: Range  # noqa: A003
    transfer: Transfer = Transfer.BT709


BT601_LIMITED = Colorimetry(Matrix.BT601, Range.LIMITED)

RGB_FULL = Colorimetry(Matrix.RGB, Range.FULL, Transfer.SRGB)
"""The default colorimetry of R, G, B and grey frames."""


def named_colorimetry(text: str) -> Colorimetry:
    """
    Parse a colorimetry that a user wrote, such as ``bt709`` or ``bt601 full``.

    The words are matrix, range and transfer, in this order; range and transfer may be left out.

    :raises FormatError: *text* has other words.
    """
    words = text.split()
    names: list[dict[str, Enum]] = [
        {member.value: member for member in kind} for kind in (Matrix, Range, Transfer)
    ]
    if not 1 <= len(words) <= 3 or any(
        word not in known for word, known in zip(words, names, strict=False)
    ):
        allowed = '; then '.join(
            f'{kind}: {", ".join(known)}'
            for kind, known in zip(('matrix', 'range', 'transfer'), names, strict=True)
        )
        raise FormatError(
            f"colorimetry '{text}' is not known; write the {allowed}. Range and transfer may be "
            "left out: 'bt709', 'bt601 full'"
        )
    matrix = Matrix(words[0])
    default = RGB_FULL if matrix is Matrix.RGB else BT601_LIMITED
    span = Range(words[1]) if len(words) > 1 else default.range
    return Colorimetry(matrix, span, Transfer(words[2]) if len(words) > 2 else default.transfer)


# GStreamer writes range:matrix:transfer:primaries, and has names for the usual combinations.
_GST_NAMES = {
    'bt601': '2:4:16:4', 'bt709': '2:3:5:1', 'bt2020': '2:6:11:7', 'bt2020-10': '2:6:13:7',
    'bt2100-pq': '2:6:14:7', 'sRGB': '1:1:7:1', 'smpte240m': '2:5:6:5', 'bt2100-hlg': '2:6:15:7',
}  # fmt: skip
_GST_RANGES = {1: Range.FULL, 2: Range.LIMITED}
_GST_MATRICES = {3: Matrix.BT709, 4: Matrix.BT601, 6: Matrix.BT2020}
# The keys are GStreamer's numbers of transfer functions. 11, 13 and 16 (BT.2020 with 12 and 10
# bits, BT.601) are the same function as 5 (BT.709), as video-color.h states. 4 (BT.470 M) and 8
# (BT.470 B/G, used on PAL DVDs) describe the screens of analogue television. The cameras of
# analogue television used function 5, so 4 and 8, like 5, are translated to BT.709.
_GST_TRANSFERS = {
    4: Transfer.BT709,
    5: Transfer.BT709,
    7: Transfer.SRGB,
    8: Transfer.BT709,
    11: Transfer.BT709,
    13: Transfer.BT709,
    14: Transfer.PQ,
    16: Transfer.BT709,
}


def from_gstreamer_colorimetry(text: str, default: Colorimetry = BT601_LIMITED) -> Colorimetry:
    """
    Translate a GStreamer string to :class:`Colorimetry`, without its primaries.

    :param default: gives the value for each number in the string that is 0, which means "not
        known". If *default*'s matrix is RGB (for R, G, B and grey), the string's matrix is
        ignored, as in GStreamer.
    :raises FormatError: the string isn't a colorimetry, or its range, matrix or transfer is not
        supported here.
    """
    numbers = _GST_NAMES.get(text, text).split(':')
    if len(numbers) != 4 or not all(n.isascii() and n.isdigit() and len(n) < 4 for n in numbers):
        raise FormatError(
            f"colorimetry '{text}' is neither one of {', '.join(_GST_NAMES)} nor four numbers "
            "such as '2:3:5:1'"
        )
    span, matrix, transfer, _ = (int(n) for n in numbers)
    if default.matrix is Matrix.RGB:
        matrix = 0
    fields: list[tuple[str, int, Mapping[int, Enum]]] = [
        ('range', span, _GST_RANGES),
        ('matrix', matrix, _GST_MATRICES),
        ('transfer', transfer, _GST_TRANSFERS),
    ]
    for name, number, known in fields:
        if number and number not in known:
            listed = ', '.join(f'{n} ({member.value})' for n, member in known.items())
            raise FormatError(f"colorimetry '{text}': {name} {number} is not one of {listed}")
    return Colorimetry(
        _GST_MATRICES.get(matrix, default.matrix),
        _GST_RANGES.get(span, default.range),
        _GST_TRANSFERS.get(transfer, default.transfer),
    )


_TO_GST_MATRIX = {Matrix.BT709: 3, Matrix.BT601: 4, Matrix.BT2020: 6, Matrix.RGB: 1}
_TO_GST_TRANSFER = {Transfer.BT709: 5, Transfer.SRGB: 7, Transfer.PQ: 14}
# The usual primaries of each matrix: for BT.601 those of SMPTE 170M.
_TO_GST_PRIMARIES = {Matrix.BT709: 1, Matrix.BT601: 4, Matrix.BT2020: 7, Matrix.RGB: 1}


def gstreamer_colorimetry(colorimetry: Colorimetry) -> str:
    """Return a colorimetry as a string for GStreamer's caps; the matrix gives the primaries."""
    matrix = colorimetry.matrix
    span = 1 if colorimetry.range is Range.FULL else 2
    transfer = _TO_GST_TRANSFER[colorimetry.transfer]
    return f'{span}:{_TO_GST_MATRIX[matrix]}:{transfer}:{_TO_GST_PRIMARIES[matrix]}'


class V4l2Colorimetry(NamedTuple):
    """The four colour fields of ``struct v4l2_pix_format``; 0 is V4L2's DEFAULT."""

    colorspace: int = 0
    ycbcr_enc: int = 0
    quantization: int = 0
    xfer_func: int = 0


_SMPTE170M, _REC709, _JPEG, _SRGB, _BT2020, _DCI_P3 = 1, 3, 7, 8, 10, 12
_V4L2_MATRICES = {
    1: Matrix.BT601,
    2: Matrix.BT709,
    3: Matrix.BT601,
    4: Matrix.BT709,
    5: Matrix.BT601,
    6: Matrix.BT2020,
}
_V4L2_TRANSFERS = {1: Transfer.BT709, 2: Transfer.SRGB, 7: Transfer.PQ}
# Key: the colour space; value: the encoding or the transfer that DEFAULT means in it
# (V4L2_MAP_*_DEFAULT). In all other colour spaces, DEFAULT means encoding 1 (BT.601) and transfer
# 1 (BT.709).
_V4L2_DEFAULT_ENCODING = {_REC709: 2, _DCI_P3: 2, _BT2020: 6, 2: 8}
_V4L2_DEFAULT_TRANSFER = {_SRGB: 2, _JPEG: 2, 9: 3, 2: 4, 11: 5, _DCI_P3: 6}


def from_v4l2_colorimetry(fields: V4l2Colorimetry, *, rgb: bool = False) -> Colorimetry:
    """
    Translate the colour fields that a V4L2 driver reports; all zeros mean BT.601, limited range.

    :param rgb: whether the pixels are R, G, B. They have no matrix, and by default full range.
    :raises FormatError: the encoding or transfer is not supported here, such as SMPTE 240M or
        constant-luminance BT.2020.
    """
    encoding = fields.ycbcr_enc or _V4L2_DEFAULT_ENCODING.get(fields.colorspace, 1)
    transfer = fields.xfer_func or _V4L2_DEFAULT_TRANSFER.get(fields.colorspace, 1)
    span = fields.quantization or (1 if rgb or fields.colorspace == _JPEG else 2)
    if not rgb and encoding not in _V4L2_MATRICES:
        raise FormatError(
            f"V4L2 Y'CbCr encoding {encoding} is not supported; known are "
            f'{", ".join(map(str, _V4L2_MATRICES))}'
        )
    if transfer not in _V4L2_TRANSFERS or span not in (1, 2):
        raise FormatError(
            f'V4L2 transfer function {transfer} or quantization {span} is not known; known are '
            'functions 1, 2 and 7, and quantizations 1 and 2'
        )
    matrix = Matrix.RGB if rgb else _V4L2_MATRICES[encoding]
    return Colorimetry(
        matrix, Range.FULL if span == 1 else Range.LIMITED, _V4L2_TRANSFERS[transfer]
    )
