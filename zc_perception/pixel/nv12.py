"""Writing colour pictures into NV12 planes. BT.601 limited range, as OpenCV converts."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import LayoutError
from zc_perception.pixel.fourcc import NV12, pixel_format
from zc_perception.pixel.layout import check_dimensions

# By whether red comes first, and whether alpha follows.
_CODES = {
    (False, False): cv2.COLOR_BGR2YUV_I420,
    (True, False): cv2.COLOR_RGB2YUV_I420,
    (False, True): cv2.COLOR_BGRA2YUV_I420,
    (True, True): cv2.COLOR_RGBA2YUV_I420,
}


class Nv12Writer:
    """Converts pictures of one size into planes that the caller owns; its scratch memory is allocated once.

    :param width: pixels, even.
    :param height: pixels, even.
    :raises LayoutError: a size that NV12 can't have.
    """

    def __init__(self, width: int, height: int) -> None:
        check_dimensions(pixel_format(NV12), width, height)
        self._shapes = {'picture': (height, width, 3), 'luma': (height, width), 'chroma': (height // 2, width // 2, 2)}
        self._height = height
        self._planar = np.empty((height * 3 // 2, width), np.uint8)
        half, quarter = (height // 2, width // 2), height * width // 4
        flat = self._planar[height:].reshape(-1)
        self._half_planes = [flat[:quarter].reshape(half), flat[quarter : 2 * quarter].reshape(half)]

    def write(self, picture: NDArray[np.uint8], luma: NDArray[np.uint8], chroma: NDArray[np.uint8], *, rgb: bool = False) -> None:
        """Write *picture* (height, width, 3), B G R or with *rgb* R G B, into *luma* and *chroma* of any row stride.

        A picture may have a fourth channel, alpha. It is ignored: a transparent pixel keeps its colour.

        :raises LayoutError: an array isn't ``uint8`` of the writer's size, or a plane is read-only.
        """
        alpha = picture.shape[2:] == (4,)
        shapes = self._shapes | {'picture': (*self._shapes['luma'], 4 if alpha else 3)}
        for (name, shape), array in zip(shapes.items(), (picture, luma, chroma), strict=True):
            # OpenCV answers a destination of the wrong shape with a new array, and the planes would keep the picture before.
            if array.shape != shape or array.dtype != np.uint8:
                raise LayoutError(f'{name} is {array.dtype} {array.shape}; this writer needs uint8 {shape}')
            if array is not picture and not array.flags.writeable:
                raise LayoutError(f'{name} is read-only; map the frame with write=True')
        cv2.cvtColor(picture, _CODES[rgb, alpha], dst=self._planar)
        np.copyto(luma, self._planar[: self._height])
        cv2.merge(self._half_planes, dst=chroma)
