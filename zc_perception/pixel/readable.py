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

"""The formats that the CPU can read, the cost of reading each, and the conversion to R, G, B."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import FormatError
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, Transfer
from zc_perception.pixel.fourcc import fourcc_code, fourcc_name, pixel_format, PixelFormat

# A format's costs minus those of NV12. The costs are the milliseconds to convert a 1920x1080 frame
# to a network's input of 640x640 and to an rgb8 message, plus the format's bytes per pixel: the
# camera must write every byte, and each reader must read it. Grey comes last, because detectors
# need colours.
_COSTS = {
    'NV12': 0.0, 'NV21': 0.0, 'YU12': 0.1, 'YV12': 0.1,
    'YUYV': 0.8, 'UYVY': 0.8, 'YVYU': 0.8, 'NV16': 1.1, 'NV61': 1.1, 'YU16': 1.3, 'YV16': 1.3,
    'RG24': 1.5, 'BG24': 1.5, 'P010': 2.4, 'P012': 2.4, 'P016': 2.4, 'XR24': 2.5, 'AR24': 2.5,
    'XB24': 2.5, 'AB24': 2.5, 'YU24': 2.8, 'YV24': 2.8, 'NV24': 3.1, 'NV42': 3.1, 'VYUY': 3.2,
    'RX24': 4.0, 'RA24': 4.0, 'BX24': 4.0, 'BA24': 4.0, 'P210': 4.5, 'RG16': 9.0,
    'BG16': 9.0, 'R8  ': 10.0, 'R16 ': 11.0,
}  # fmt: skip
READABLE: dict[int, float] = {fourcc_code(name): cost for name, cost in _COSTS.items()}
"""By fourcc, cheapest first: the cost of each format that the CPU can read, minus NV12's cost."""

# Kr and Kb of each matrix: the weights of red and blue in luma. Green's weight is 1 - Kr - Kb.
_LUMA_WEIGHTS = {
    Matrix.BT601: (0.299, 0.114),
    Matrix.BT709: (0.2126, 0.0722),
    Matrix.BT2020: (0.2627, 0.0593),
}


def check_readable(fourcc: int, colorimetry: Colorimetry) -> PixelFormat:
    """
    Return the format with this fourcc, if its frames can be converted to R, G, B.

    :raises FormatError: the format isn't in :data:`READABLE`, or the matrix or transfer has no
        conversion to R, G, B. The message lists the formats or matrices that can be used instead.
    """
    fmt = pixel_format(fourcc)
    if fourcc not in READABLE:
        known = ', '.join(fourcc_name(code).strip() for code in READABLE)
        raise FormatError(
            f"{fmt.name.strip()} frames can't be read on the CPU; readable are {known}: "
            "set the camera's pixel_format to one of them"
        )
    if (
        fmt.is_yuv and colorimetry.matrix not in _LUMA_WEIGHTS
    ) or colorimetry.transfer is Transfer.PQ:
        known = ', '.join(matrix.value for matrix in _LUMA_WEIGHTS)
        raise FormatError(
            f'{fmt.name.strip()} frames of matrix {colorimetry.matrix.value} and transfer '
            f"{colorimetry.transfer.value} have no conversion to R, G, B here; set the camera's "
            f'matrix to one of {known}, and its transfer to any one except pq'
        )
    return fmt


def rgb_matrix(colorimetry: Colorimetry) -> NDArray[np.float64]:
    """
    Return the (3, 4) matrix of R, G, B = matrix · (Y, Cb, Cr, 1), with samples of 0..255.

    Sources: ITU-R BT.601, BT.709 and BT.2020. Primaries aren't converted, because networks are
    trained on pictures with all kinds of primaries.
    """
    red, blue = _LUMA_WEIGHTS[colorimetry.matrix]
    green = 1 - red - blue
    limited = colorimetry.range is Range.LIMITED
    luma, chroma, black = (255 / 219, 255 / 224, 16) if limited else (1.0, 1.0, 0)
    matrix = np.array(
        [
            [luma, 0, 2 * (1 - red) * chroma],
            [luma, -2 * blue * (1 - blue) / green * chroma, -2 * red * (1 - red) / green * chroma],
            [luma, 2 * (1 - blue) * chroma, 0],
        ]
    )
    return np.column_stack([matrix, -matrix @ (black, 128, 128)])


def rgb_range(fmt: PixelFormat, colorimetry: Colorimetry) -> Range:
    """
    Return the range of samples in a grey or R, G, B format.

    For R, G, B, it is FULL if the colorimetry has a Y'CbCr matrix, because the colorimetry's range
    then describes Y'CbCr samples.
    """
    own = len(fmt.components[0]) == 1 or colorimetry.matrix is Matrix.RGB
    return colorimetry.range if own else Range.FULL


def full_range_table() -> NDArray[np.uint8]:
    """
    Return a table of 256 values that expands limited range to 0..255 (16 to 0, 235 to 255).

    It is for luma, grey and R, G, B, but not for chroma, whose limited range is different.
    """
    table: NDArray[np.uint8] = np.clip(
        np.rint((np.arange(256) - 16) * (255 / 219)), 0, 255
    ).astype(np.uint8)
    return table


def limited_range_table() -> NDArray[np.uint8]:
    """Return a table of 256 values that compresses 0..255 to limited range (16..235)."""
    table: NDArray[np.uint8] = np.rint(16 + np.arange(256) * (219 / 255)).astype(np.uint8)
    return table
