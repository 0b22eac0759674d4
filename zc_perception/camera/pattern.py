"""Test patterns: a picture that says which frame it is and when it was drawn, and colour bars with known levels.

The counter's picture is a grid of 16×8 cells, black or white, read row by row from the top left, the most significant bit first: 8 bits
marker (0xA5), 8 bits of the seed, 32 bits frame counter, 64 bits time code (the header's stamp, ns), 16 bits CRC-16/CCITT of the 14 bytes
before. The bits are turned over in every other cell, as on a chess board, so that no counter makes a picture of one level. Cells are as
large as the picture allows: what is read survives scaling, JPEG, another range and a good deal of noise, or is refused by its checksum.
"""

from __future__ import annotations

import binascii
import struct
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range

PATTERNS = ('road', 'bars', 'counter')
"""What the synthetic camera can show; the road is :mod:`~zc_perception.camera.scene`'s."""
MAX_COUNTER = (1 << 32) - 1

_COLUMNS, _ROWS = 16, 8
_MARKER = 0xA5
_FIELDS = struct.Struct('>BBIq')
_BLACK, _WHITE, _NEUTRAL = 16, 235, 128
_CHESS = (np.add.outer(np.arange(_ROWS), np.arange(_COLUMNS)) % 2).astype(np.uint8)

# ITU-R BT.601-7 and BT.709-6: the weights of red and blue in luma.
_WEIGHTS = {
    Matrix.BT601: (0.299, 0.114),
    Matrix.BT709: (0.2126, 0.0722),
    Matrix.BT2020: (0.2627, 0.0593),
}
BAR_COLOURS = {
    'white': (1, 1, 1), 'yellow': (1, 1, 0), 'cyan': (0, 1, 1), 'green': (0, 1, 0),
    'magenta': (1, 0, 1), 'red': (1, 0, 0), 'blue': (0, 0, 1), 'black': (0, 0, 0),
}  # fmt: skip
"""From left to right; R, G and B as shares of the amplitude."""
_GREYS = 8
_BARS_HEIGHT = 0.75


class TimeCode(NamedTuple):
    """What a counter's picture says."""

    seed: int
    counter: int
    stamp_ns: int


def draw_counter(code: TimeCode, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
    """Fill the planes with a counter's picture. The counter's upper bits, beyond 32, and the seed's beyond 8 are left out."""
    fields = _FIELDS.pack(_MARKER, code.seed & 0xFF, code.counter & MAX_COUNTER, code.stamp_ns)
    content = fields + struct.pack('>H', binascii.crc_hqx(fields, 0xFFFF))
    bits = np.unpackbits(np.frombuffer(content, np.uint8)).reshape(_ROWS, _COLUMNS) ^ _CHESS
    cells = np.where(bits, _WHITE, _BLACK).astype(np.uint8)
    cv2.resize(cells, (luma.shape[1], luma.shape[0]), dst=luma, interpolation=cv2.INTER_NEAREST)
    chroma[:] = _NEUTRAL


def sample_levels(
    red: float, green: float, blue: float, colorimetry: Colorimetry
) -> tuple[int, int, int]:
    """Y, U and V of a colour, as 8-bit samples.

    :param red: R', 0 to 1; likewise the others.
    :raises ValueError: RGB has no such samples.
    """
    if colorimetry.matrix not in _WEIGHTS:
        raise ValueError(
            f'colour bars need one of {", ".join(m.value for m in _WEIGHTS)}, got {colorimetry.matrix.value}'
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
    """75 % bars in the upper three quarters, in the order of :data:`BAR_COLOURS`, and eight greys from black to white below.

    :raises ValueError: a colorimetry without samples for it.
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
                self._chroma[top // 2 : bottom // 2, left // 2 : right // 2] = u, v

    def draw(self, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
        """Fill the planes."""
        np.copyto(luma, self._luma)
        np.copyto(chroma, self._chroma)
