"""NV12 planes to the float tensor of a network: one pass, into memory that is allocated once."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.scaled_rgb import ScaledRgb
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry


class Nv12ToTensor:
    """Resizes luma and chroma first and converts colours after, see :mod:`~zc_perception.detection.scaled_rgb`.

    :param box: geometry.
    :param pad: value of the border, 0..255.
    :param low: tensor value of 0.
    :param high: tensor value of 255.
    :param bgr: channel order B, G, R instead of R, G, B.
    :param colorimetry: of the frames.
    :raises ConfigError: a colorimetry that has no conversion, or a source of odd size.
    """

    def __init__(self, box: Letterbox, *, pad: int, low: float, high: float, bgr: bool, colorimetry: Colorimetry = BT601_LIMITED) -> None:
        self._picture = ScaledRgb(box, bgr=bgr, colorimetry=colorimetry)
        self._table = (low + np.arange(256) * ((high - low) / 255)).astype(np.float32)
        self._planes = [np.empty((box.height, box.width), np.uint8) for _ in range(3)]
        self._tensor = np.full((1, 3, box.input_height, box.input_width), self._table[pad], np.float32)
        inner = self._tensor[0, :, box.top : box.top + box.height, box.left : box.left + box.width]
        self._channels = [inner[c] for c in range(3)]

    def convert(self, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The tensor (1, 3, height, width). It is overwritten by the next call.

        :param luma: (source height, source width), any row stride.
        :param chroma: (source height / 2, source width / 2, 2), any row stride.
        :raises LayoutError: planes of another size or type.
        """
        cv2.split(self._picture.convert(luma, chroma), self._planes)
        for plane, target in zip(self._planes, self._channels, strict=True):
            cv2.LUT(plane, self._table, dst=target)
        return self._tensor
