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
The synthetic camera: an animated road (:mod:`road_scene`), or a test pattern.

A pattern is either colour bars with known levels, or a counter: a picture that contains the
frame's number and time stamp. This picture is a grid of 16×8 cells. Each cell is black (0) or
white (1). The cells are the bits of 16 bytes, row by row from the top left, and the most
significant bit of each number is first: 8 bits marker (0xA5), 8 bits of the seed, 32 bits frame
number, 64 bits time code (the header's stamp, ns), 16 bits CRC-16/CCITT of the 14 bytes before.
The bits are inverted in every other cell, as on a chess board, so that no picture is nearly all
black or all white. Cells are as large as the picture allows, so they can still be read after
scaling, JPEG compression, a change of range, or much added noise. The checksum shows errors.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
import importlib
import struct
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.camera import DrawnCamera
from zc_perception.frame import Header
from zc_perception.parameters import ParameterSpec
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range

MIN_FRAME_SIDE = 64


def check_size(width: int, height: int) -> None:
    """
    Check that a scene or pattern of this size is possible.

    :raises ValueError: a side is odd, or smaller than 64.
    """
    for name, side in (('width', width), ('height', height)):
        if side < MIN_FRAME_SIDE or side % 2:
            raise ValueError(
                f'{name} must be an even number of at least {MIN_FRAME_SIDE} pixels, got {side}'
            )


PATTERNS = ('road', 'bars', 'counter')
"""The synthetic camera's pictures: the road scene, colour bars or a counter."""
MAX_COUNTER = (1 << 32) - 1

_COLUMNS, _ROWS = 16, 8
_MARKER = 0xA5
_FIELDS = struct.Struct('>BBIq')
_BLACK, _WHITE, _NEUTRAL = 16, 235, 128
_CHESS = (np.add.outer(np.arange(_ROWS), np.arange(_COLUMNS)) % 2).astype(np.uint8)

# The weights of red and blue in luma, from ITU-R BT.601-7 and BT.709-6.
_WEIGHTS = {
    Matrix.BT601: (0.299, 0.114),
    Matrix.BT709: (0.2126, 0.0722),
    Matrix.BT2020: (0.2627, 0.0593),
}
BAR_COLOURS = {
    'white': (1, 1, 1), 'yellow': (1, 1, 0), 'cyan': (0, 1, 1), 'green': (0, 1, 0),
    'magenta': (1, 0, 1), 'red': (1, 0, 0), 'blue': (0, 0, 1), 'black': (0, 0, 0),
}  # fmt: skip
"""R, G and B of each bar, from left to right; 1 stands for the bars' amplitude (75 %)."""
_GREYS = 8
_BARS_HEIGHT = 0.75


class TimeCode(NamedTuple):
    """The values in a picture of the pattern ``counter``."""

    seed: int
    counter: int
    stamp_ns: int


def draw_counter(code: TimeCode, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
    """Draw the stamp, the counter's low 32 bits and the seed's low 8 bits into the planes."""
    fields = _FIELDS.pack(_MARKER, code.seed & 0xFF, code.counter & MAX_COUNTER, code.stamp_ns)
    content = fields + struct.pack('>H', binascii.crc_hqx(fields, 0xFFFF))
    bits = np.unpackbits(np.frombuffer(content, np.uint8)).reshape(_ROWS, _COLUMNS) ^ _CHESS
    cells = np.where(bits, _WHITE, _BLACK).astype(np.uint8)
    cv2.resize(cells, (luma.shape[1], luma.shape[0]), dst=luma, interpolation=cv2.INTER_NEAREST)
    chroma[:] = _NEUTRAL


def sample_levels(
    red: float, green: float, blue: float, colorimetry: Colorimetry
) -> tuple[int, int, int]:
    """
    Return Y, U and V of a colour, as 8-bit samples.

    :param red: R', from 0 to 1; *green* and *blue* have the same range.
    :raises ValueError: the weights of *colorimetry*'s matrix are unknown.
    """
    if colorimetry.matrix not in _WEIGHTS:
        raise ValueError(
            f'colour bars need one of the matrices {", ".join(m.value for m in _WEIGHTS)}, got '
            f'{colorimetry.matrix.value}'
        )
    of_red, of_blue = _WEIGHTS[colorimetry.matrix]
    luma = of_red * red + (1 - of_red - of_blue) * green + of_blue * blue
    u, v = (blue - luma) / (2 * (1 - of_blue)), (red - luma) / (2 * (1 - of_red))
    full = colorimetry.range is Range.FULL
    low, of_luma, of_colour = (0, 255, 255) if full else (16, 219, 224)
    levels = (low + of_luma * luma, 128 + of_colour * u, 128 + of_colour * v)
    y, cb, cr = (min(255, max(0, round(level))) for level in levels)
    return y, cb, cr


class ColourBars:
    """
    Makes a picture of colour bars (:data:`BAR_COLOURS`), with bars in eight greys below them.

    :raises ValueError: the weights of *colorimetry*'s matrix are unknown.
    """

    def __init__(
        self, width: int, height: int, colorimetry: Colorimetry, amplitude: float = 0.75
    ) -> None:
        self._luma = np.empty((height, width), np.uint8)
        self._chroma = np.empty((height // 2, width // 2, 2), np.uint8)
        bars = [tuple(amplitude * share for share in colour) for colour in BAR_COLOURS.values()]
        greys = [(step / (_GREYS - 1),) * 3 for step in range(_GREYS)]
        split = int(height * _BARS_HEIGHT) & ~1
        for colours, top, bottom in ((bars, 0, split), (greys, split, height)):
            for index, (red, green, blue) in enumerate(colours):
                left, right = (
                    int(width * place / len(colours)) & ~1 for place in (index, index + 1)
                )
                y, u, v = sample_levels(red, green, blue, colorimetry)
                self._luma[top:bottom, left:right] = y
                first, last, begin, end = (n // 2 for n in (top, bottom, left, right))
                self._chroma[first:last, begin:end] = u, v

    def draw(self, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
        """Draw the bars into the planes."""
        np.copyto(luma, self._luma)
        np.copyto(chroma, self._chroma)


class SyntheticCamera(DrawnCamera):
    """
    A camera that draws a :class:`~zc_perception.camera.road_scene.RoadScene` or a pattern.

    Frame *n* of a scene with the same seed is always the same picture.

    :param seed: selects the scene; pattern ``counter`` shows the seed's lowest 8 bits.
    :param palette: colours of the objects, a key of ``road_scene.PALETTES``.
    :param pattern: one of :data:`PATTERNS`.
    :raises ValueError: a scene or pattern of that size is impossible.
    """

    PARAMETERS = (
        ParameterSpec('seed', 0, 'number of the scene. The same number gives the same scene.', '',
                      0, 2**31 - 1),
        ParameterSpec('palette', 'all', ("colours of the scene's objects. train and held_out "
                                         'share no hue.'),
                      choices=('all', 'train', 'held_out')),
        ParameterSpec('pattern', 'road', ('the road scene, colour bars, or a frame counter '
                                          'with a time code in the pixels.'),
                      choices=PATTERNS),
    )  # fmt: skip

    def __init__(
        self,
        width: int,
        height: int,
        framerate: float,
        frame_id: str,
        *,
        seed: int,
        palette: str = 'all',
        pattern: str = 'road',
        **base: Any,
    ) -> None:
        check_size(width, height)
        super().__init__(width, height, framerate, frame_id, **base)
        self._seed = seed
        self._pattern = pattern
        self._stamp_ns = 0
        self._scene: Any = None
        self._bars: ColourBars | None = None
        if pattern == 'road':
            # Imported only here: every capture node imports this module when it starts, but only
            # this pattern needs module road_scene.
            scenes = importlib.import_module('zc_perception.camera.road_scene')
            self._scene = scenes.RoadScene(width, height, seed, palette)
        elif pattern == 'bars':
            self._bars = ColourBars(width, height, self.colorimetry)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], **base: Any) -> DrawnCamera:
        drawn = {spec.name: parameters[spec.name] for spec in cls.PARAMETERS}
        return super().from_parameters(parameters, **drawn, **base)

    @property
    def device(self) -> str:
        return (
            f'synthetic {"scene" if self._pattern == "road" else self._pattern}, seed {self._seed}'
        )

    def _header(self) -> Header:
        header = super()._header()
        self._stamp_ns = header.stamp_ns
        return header

    def render(self, sequence: int, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> bool:
        if self._scene is not None:
            self._scene.draw(sequence, luma, chroma)
        elif self._bars is not None:
            self._bars.draw(luma, chroma)
        else:
            draw_counter(TimeCode(self._seed, sequence, self._stamp_ns), luma, chroma)
        return True
