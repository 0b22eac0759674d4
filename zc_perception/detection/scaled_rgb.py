"""NV12 planes to a small R, G, B picture: what every network's input begins with.

Luma and chroma are resized first and colours are converted after, at the network's size, which reads and computes a fraction of what
converting the full frame and resizing that does. Both planes are resized to the picture's size: with chroma at half of it, as 4:2:0 asks
for, the picture would lose colour detail that the frame has. ``zc_bench decode`` measures speed and difference of all three ways.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.letterbox import Letterbox
from zc_perception.errors import ConfigError, LayoutError
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range, Transfer

Pixels = NDArray[np.uint8]

# OpenCV converts this many columns at once (two vectors of 64 bytes, AVX-512; others have less), and those that are left over one by
# one: at 360 columns nine tenths of the time.
_COLUMNS = 128

# Kr and Kb of each recommendation; Kg is what is left of 1.
_LUMA_WEIGHTS = {Matrix.BT601: (0.299, 0.114), Matrix.BT709: (0.2126, 0.0722), Matrix.BT2020: (0.2627, 0.0593)}


def rgb_matrix(colorimetry: Colorimetry) -> NDArray[np.float64]:
    """(3, 4): R, G, B = matrix · (Y, Cb, Cr, 1), all 0..255, by ITU-R BT.601, BT.709 and BT.2020.

    Primaries stay as they are: a network is trained on pictures of all of them, without their being told apart.

    :raises ConfigError: no matrix for these samples, or a transfer function that no network is trained on.
    """
    if colorimetry.matrix not in _LUMA_WEIGHTS or colorimetry.transfer is Transfer.PQ:
        known = ', '.join(m.value for m in _LUMA_WEIGHTS)
        raise ConfigError(
            f"frames of matrix {colorimetry.matrix.value} and transfer {colorimetry.transfer.value} can't become a network's input; "
            f'that takes NV12 of matrix {known} and any transfer but pq: have the camera deliver one of these'
        )
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


def _ratios(box: Letterbox) -> list[int]:
    """Source samples per sample of the picture, across and down; 0 where that is no whole number."""
    pairs = ((box.source_width, box.width), (box.source_height, box.height))
    return [0 if source % target else source // target for source, target in pairs]


class ScaledRgb:
    """Resizes a frame to the letterbox's picture, in memory that is allocated once.

    :param box: geometry.
    :param channels: 3, or 4 for a last one of 255.
    :param bgr: channel order B, G, R instead of R, G, B.
    :param colorimetry: of the frames.
    :raises ConfigError: see :func:`rgb_matrix`; or a source of odd size, which NV12 doesn't have.
    """

    def __init__(self, box: Letterbox, *, channels: int = 3, bgr: bool = False, colorimetry: Colorimetry = BT601_LIMITED) -> None:
        if box.source_width % 2 or box.source_height % 2:
            raise ConfigError(f'a source of {box.source_width}x{box.source_height} is no NV12: width and height have to be even')
        matrix = rgb_matrix(colorimetry)
        self._shapes = (box.source_height, box.source_width), (box.source_height // 2, box.source_width // 2, 2)
        # OpenCV's own conversion from NV12 knows BT.601 limited alone, and wants chroma at half the size.
        plain = (colorimetry.matrix, colorimetry.range) == (BT601_LIMITED.matrix, BT601_LIMITED.range) and not box.scaled
        self._converter = _TwoPlanes(box, channels, bgr) if plain else _ByMatrix(box, channels, matrix[::-1] if bgr else matrix)

    def convert(self, luma: Pixels, chroma: Pixels) -> Pixels:
        """The picture (letterbox's height, width, channels). It is overwritten by the next call.

        :param luma: (source height, source width), any row stride.
        :param chroma: (source height / 2, source width / 2, 2), any row stride.
        :raises LayoutError: planes of another size or type.
        """
        if (luma.shape, chroma.shape) != self._shapes or luma.dtype != np.uint8 or chroma.dtype != np.uint8:
            raise LayoutError(
                f'planes are {luma.dtype} {luma.shape} and {chroma.dtype} {chroma.shape}; this conversion was made for '
                f'uint8 {self._shapes[0]} and {self._shapes[1]}: make another for frames of another size'
            )
        return self._converter.convert(luma, chroma)


class _TwoPlanes:
    """Frames of the picture's size, BT.601 limited. Luma below black is black here, where the matrix alone would go on."""

    def __init__(self, box: Letterbox, channels: int, bgr: bool) -> None:
        columns = -(-box.width // _COLUMNS) * _COLUMNS
        self._aligned = columns == box.width
        self._luma = np.zeros((box.height, columns), np.uint8)
        self._chroma = np.zeros((box.height // 2, columns // 2, 2), np.uint8)
        self._wide = np.zeros((box.height, columns, channels), np.uint8)
        self._picture = self._wide[:, : box.width]
        codes = {
            (3, False): cv2.COLOR_YUV2RGB_NV12,
            (3, True): cv2.COLOR_YUV2BGR_NV12,
            (4, False): cv2.COLOR_YUV2RGBA_NV12,
            (4, True): cv2.COLOR_YUV2BGRA_NV12,
        }
        self._code = codes[channels, bgr]

    def convert(self, luma: Pixels, chroma: Pixels) -> Pixels:
        if not self._aligned:
            np.copyto(self._luma[:, : luma.shape[1]], luma)
            np.copyto(self._chroma[:, : chroma.shape[1]], chroma)
            luma, chroma = self._luma, self._chroma
        cv2.cvtColorTwoPlane(luma, chroma, self._code, dst=self._wide)
        return self._picture


class _ByMatrix:
    """Frames of any size and colorimetry."""

    def __init__(self, box: Letterbox, channels: int, matrix: NDArray[np.float64]) -> None:
        self._scaled = box.scaled
        self._size = (box.width, box.height)
        self._matrix = matrix
        ratios = _ratios(box)
        # At an odd ratio linear interpolation reads the one sample in the middle: the same picture, a third of the time.
        odd = all(ratio % 2 for ratio in ratios)
        self._luma_filter = cv2.INTER_NEAREST_EXACT if odd else cv2.INTER_LINEAR
        # A luma sample has the colour of the chroma sample that it lies in; so has the picture's, but where that lies between two.
        enlarged = box.width > box.source_width or box.height > box.source_height
        between = enlarged or any(ratio and ratio % 4 == 0 for ratio in ratios)
        self._chroma_filter = cv2.INTER_LINEAR if between else cv2.INTER_NEAREST_EXACT
        size = (box.height, box.width)
        self._luma = np.empty(size, np.uint8)
        self._chroma = np.empty((*size, 2), np.uint8)
        self._halves = [np.empty(size, np.uint8) for _ in range(2)]
        self._ycc = np.empty((*size, 3), np.uint8)
        self._rgb = np.empty((*size, 3), np.uint8)
        self._picture = self._rgb if channels == 3 else np.empty((*size, 4), np.uint8)

    def convert(self, luma: Pixels, chroma: Pixels) -> Pixels:
        if self._scaled:
            cv2.resize(luma, self._size, dst=self._luma, interpolation=self._luma_filter)
            luma = self._luma
        cv2.resize(chroma, self._size, dst=self._chroma, interpolation=self._chroma_filter)
        # Three single planes are merged four times as quickly as one and a pair.
        cv2.split(self._chroma, self._halves)
        cv2.merge([luma, *self._halves], dst=self._ycc)
        cv2.transform(self._ycc, self._matrix, dst=self._rgb)
        if self._picture is not self._rgb:
            cv2.cvtColor(self._rgb, cv2.COLOR_RGB2RGBA, dst=self._picture)
        return self._picture
