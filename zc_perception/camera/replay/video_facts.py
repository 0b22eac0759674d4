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
What a video stream says of its pictures, in FFmpeg's names.

That is what their numbers mean, and how they are turned.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zc_perception.errors import FormatError
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, Transfer

UNKNOWN = 'unknown'
# By the numbers of ISO/IEC 23091-2, which FFmpeg uses as they are; 2 and 3 say nothing.
_MATRICES = (
    'gbr', 'bt709', UNKNOWN, UNKNOWN, 'fcc', 'bt470bg', 'smpte170m', 'smpte240m', 'ycgco',
    'bt2020nc', 'bt2020c', 'smpte2085', 'chroma-derived-nc', 'chroma-derived-c', 'ictcp',
    'ipt-c2', 'ycgco-re', 'ycgco-ro',
)  # fmt: skip
_TRANSFERS = (
    UNKNOWN, 'bt709', UNKNOWN, UNKNOWN, 'bt470m', 'bt470bg', 'smpte170m', 'smpte240m', 'linear',
    'log100', 'log316', 'iec61966-2-4', 'bt1361e', 'iec61966-2-1', 'bt2020-10', 'bt2020-12',
    'smpte2084', 'smpte428', 'arib-std-b67',
)  # fmt: skip
_RANGES = (UNKNOWN, 'tv', 'pc')
# fcc weighs red and blue by 0.30 and 0.11, BT.601 by 0.299 and 0.114: about one level apart.
_OUR_MATRICES = {
    'bt709': Matrix.BT709,
    **dict.fromkeys(('fcc', 'bt470bg', 'smpte170m'), Matrix.BT601),
    'bt2020nc': Matrix.BT2020,
}
_NOT_CONVERTED = {
    'smpte2084': 'PQ (HDR)',
    'arib-std-b67': 'HLG (HDR)',
    **{name: name for name in ('linear', 'log100', 'log316', 'smpte428')},
}
_TO_SDR = (
    'convert it to BT.709 (SDR) with another program, '
    "for example with ffmpeg's filters zscale and tonemap"
)
_UPRIGHT_BY = (
    'only quarters of a circle and mirroring can be undone: convert it with another program, '
    "for example 'ffmpeg -i IN OUT', which turns the pictures themselves"
)
# The largest picture of standard definition has 720x576 pixels.
_HIGH_DEFINITION = 1280, 577

Turn = tuple[int, int, int, int]
"""(a, b, c, d): a picture's pixels go to x' = a·x + c·y, y' = b·x + d·y. Rows are counted down."""
UPRIGHT: Turn = (1, 0, 0, 1)
_HALF = 1 << 15


class Said(NamedTuple):
    """What a stream says of its colours; ``unknown`` stands for nothing."""

    matrix: str = UNKNOWN
    range: str = UNKNOWN  # noqa: A003
    transfer: str = UNKNOWN

    def completed(self, before: Said) -> Said:
        """Fill in what an earlier frame said, where this one says nothing."""
        return Said(
            *(old if new == UNKNOWN else new for new, old in zip(self, before, strict=True))
        )


def said_by(frame: Any, codec: Any) -> Said:
    """Return what a frame says, and its decoder of the transfer."""
    numbers = int(frame.colorspace), int(frame.color_range), int(codec.color_trc)
    names = _MATRICES, _RANGES, _TRANSFERS
    return Said(
        *(each[n] if n < len(each) else UNKNOWN for each, n in zip(names, numbers, strict=True))
    )


def turn_of(frame: Any) -> Turn:
    """
    Return how a frame's display matrix turns it: fixed point of 16 bits.

    PyAV keeps a frame that was asked until the garbage collector runs: ask one frame, not all.

    :raises FormatError: it isn't turned by a quarter of a circle.
    """
    for data in frame.side_data:
        if getattr(data.type, 'name', data.type) == 'DISPLAYMATRIX':
            a, b, _, c, d = (_sign(int(value)) for value in np.frombuffer(data, np.int32, 5))
            if abs(a) + abs(b) != 1 or (abs(a), abs(b)) != (abs(d), abs(c)):
                raise FormatError(
                    f'its pictures are not turned by quarters of a circle; {_UPRIGHT_BY}'
                )
            return a, b, c, d
    return UPRIGHT


def _sign(value: int) -> int:
    return (value > _HALF) - (value < -_HALF)


def colorimetry(
    said: Said, *, rgb: bool, grey: bool, jpeg: bool, size: tuple[int, int]
) -> Colorimetry:
    """
    Return what the numbers in such pictures mean.

    Where the stream says nothing, players' assumptions count.

    :param rgb: they are R, G, B.
    :param grey: they have one level for each pixel.
    :param jpeg: the name of their format means full range (``yuvj…``).
    :param size: as they are stored.
    :raises FormatError: a matrix or a transfer that has no conversion here.
    """
    if said.transfer in _NOT_CONVERTED:
        curve = _NOT_CONVERTED[said.transfer]
        raise FormatError(f'its transfer is {curve}, which is not converted here; {_TO_SDR}')
    transfer = Transfer.SRGB if said.transfer == 'iec61966-2-1' else Transfer.BT709
    full = said.range == 'pc' or (said.range == UNKNOWN and (rgb or grey or jpeg))
    range_ = Range.FULL if full else Range.LIMITED
    if rgb or grey:
        return Colorimetry(Matrix.RGB, range_, transfer)
    if said.matrix not in (*_OUR_MATRICES, UNKNOWN):
        known = ', '.join(dict.fromkeys(each.value for each in _OUR_MATRICES.values()))
        raise FormatError(
            f'its colour matrix is {said.matrix}; there is a conversion for {known}: {_TO_SDR}'
        )
    high = any(side >= least for side, least in zip(size, _HIGH_DEFINITION, strict=True))
    custom = Matrix.BT709 if high else Matrix.BT601
    return Colorimetry(_OUR_MATRICES.get(said.matrix, custom), range_, transfer)
