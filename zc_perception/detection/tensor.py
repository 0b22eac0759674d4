"""A frame's planes to the float tensor of a network: one pass, into memory that is allocated once."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.letterbox import Letterbox
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.conversion import ToPicture
from zc_perception.pixel.samples import Planes


class PlanesToTensor:
    """Resizes planes first and converts colours after, see :mod:`~zc_perception.pixel.conversion`.

    :param box: geometry.
    :param fourcc: of the frames.
    :param colorimetry: of the frames.
    :param pad: value of the border, 0..255.
    :param low: tensor value of 0.
    :param high: tensor value of 255.
    :param bgr: channel order B, G, R instead of R, G, B.
    :raises FormatError: a format or a colorimetry that has no conversion.
    :raises LayoutError: a source of a size that the format can't have.
    """

    def __init__(self, box: Letterbox, fourcc: int, colorimetry: Colorimetry, *, pad: int, low: float, high: float, bgr: bool) -> None:
        size = (box.width, box.height)
        self._picture = ToPicture(fourcc, box.source_width, box.source_height, colorimetry, size=size, bgr=bgr)
        self._table = (low + np.arange(256) * ((high - low) / 255)).astype(np.float32)
        self._planes = [np.empty((box.height, box.width), np.uint8) for _ in range(3)]
        self._tensor = np.full((1, 3, box.input_height, box.input_width), self._table[pad], np.float32)
        inner = self._tensor[0, :, box.top : box.top + box.height, box.left : box.left + box.width]
        self._channels = [inner[c] for c in range(3)]

    def convert(self, planes: Planes) -> NDArray[np.float32]:
        """The tensor (1, 3, height, width). It is overwritten by the next call.

        :param planes: a frame's, any row stride.
        :raises LayoutError: planes of another size or type.
        """
        cv2.split(self._picture.convert(planes), self._planes)
        for plane, target in zip(self._planes, self._channels, strict=True):
            cv2.LUT(plane, self._table, dst=target)
        return self._tensor
