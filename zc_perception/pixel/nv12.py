"""Writing colour pictures into NV12 planes. BT.601 limited range, as OpenCV converts."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray


class Nv12Writer:
    """Converts pictures of one size into planes that the caller owns; its scratch memory is allocated once.

    :param width: even.
    :param height: even.
    """

    def __init__(self, width: int, height: int) -> None:
        self._height = height
        self._planar = np.empty((height * 3 // 2, width), np.uint8)
        half, quarter = (height // 2, width // 2), height * width // 4
        flat = self._planar[height:].reshape(-1)
        self._half_planes = [flat[:quarter].reshape(half), flat[quarter : 2 * quarter].reshape(half)]

    def write(self, picture: NDArray[np.uint8], luma: NDArray[np.uint8], chroma: NDArray[np.uint8], *, rgb: bool = False) -> None:
        """Write *picture* (height, width, 3), B G R or with *rgb* R G B, into *luma* and *chroma* of any row stride."""
        cv2.cvtColor(picture, cv2.COLOR_RGB2YUV_I420 if rgb else cv2.COLOR_BGR2YUV_I420, dst=self._planar)
        np.copyto(luma, self._planar[: self._height])
        cv2.merge(self._half_planes, dst=chroma)
