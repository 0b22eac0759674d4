"""Pictures as recordings hold them, into NV12 planes: every conversion that replay makes, each one pass, scaled where it has to be.

Encodings are those of ``sensor_msgs/image_encodings.hpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.replay.source import even
from zc_perception.errors import FormatError, nearest
from zc_perception.pixel.fourcc import NV12, pixel_format
from zc_perception.pixel.layout import check_dimensions
from zc_perception.pixel.nv12 import Nv12Writer

MAX_SIDE = 65535


class _Encoding(NamedTuple):
    """Bytes of a pixel in a row, and rows for each two rows of the picture (3 where chroma follows luma)."""

    pixel_bytes: int
    half_rows: int = 2


# ROS names a Bayer pattern by its first row's first two pixels, OpenCV by the second row's second and third.
_BAYER = {
    'bayer_rggb8': cv2.COLOR_BayerBG2BGR,
    'bayer_bggr8': cv2.COLOR_BayerRG2BGR,
    'bayer_gbrg8': cv2.COLOR_BayerGR2BGR,
    'bayer_grbg8': cv2.COLOR_BayerGB2BGR,
}
# Where luma and chroma stand in each pair of bytes; sensor_msgs' older names say yuv422.
_PACKED = {'yuyv': (0, 1), 'yuv422_yuy2': (0, 1), 'uyvy': (1, 0), 'yuv422': (1, 0)}
_ENCODINGS = {
    'nv12': _Encoding(1, 3),
    'nv21': _Encoding(1, 3),
    'rgb8': _Encoding(3),
    'bgr8': _Encoding(3),
    'rgba8': _Encoding(4),
    'bgra8': _Encoding(4),
    'mono8': _Encoding(1),
    'mono16': _Encoding(2),
    **dict.fromkeys(_PACKED, _Encoding(2)),
    **dict.fromkeys(_BAYER, _Encoding(1)),
    '8UC1': _Encoding(1),
    '8UC3': _Encoding(3),
}
ENCODINGS = tuple(_ENCODINGS)
"""What can be read. 8UC1 and 8UC3 are taken as mono8 and bgr8, as cv_bridge's users mean them."""


class RawPicture(NamedTuple):
    """An uncompressed picture as a message holds it; *step* is a row's bytes."""

    width: int
    height: int
    encoding: str
    big_endian: bool
    step: int
    data: NDArray[np.uint8]


def check_picture(picture: RawPicture) -> None:
    """Refuse what can't be converted.

    :raises FormatError: the encoding, the byte order, or data that don't hold the picture; names values and what is allowed.
    """
    width, height, encoding, big_endian, step, data = picture
    known = _ENCODINGS.get(encoding)
    if known is None:
        raise FormatError(f"encoding '{encoding[:40]}' can't be played{nearest(encoding, ENCODINGS)}; known are {', '.join(ENCODINGS)}")
    if not (2 <= width <= MAX_SIDE and 2 <= height <= MAX_SIDE):
        raise FormatError(f'the picture is {width}x{height}; both sides must be from 2 to {MAX_SIDE}')
    if big_endian and encoding == 'mono16':  # bytes have no order
        raise FormatError('mono16 is big-endian; only little-endian can be played')
    if known.half_rows == 3:
        check_dimensions(pixel_format(NV12), width, height)
    elif encoding in _PACKED and width % 2:
        raise FormatError(f'{encoding} with a width of {width}; it must be even, two pixels share their colour')
    row, rows = width * known.pixel_bytes, height * known.half_rows // 2
    if step < row or len(data) < step * (rows - 1) + row:
        raise FormatError(
            f'{width}x{height} {encoding} needs a step of {row} or more and {rows} rows; step is {step}, data are {len(data)} bytes'
        )


def _rows(picture: RawPicture) -> NDArray[np.uint8]:
    """(rows, columns) or (rows, columns, bytes of a pixel); a view."""
    known = _ENCODINGS[picture.encoding]
    rows = picture.height * known.half_rows // 2
    shape: tuple[int, ...] = (rows, picture.width, known.pixel_bytes)
    strides: tuple[int, ...] = (picture.step, known.pixel_bytes, 1)
    if known.pixel_bytes == 1:
        shape, strides = shape[:2], strides[:2]
    view: NDArray[np.uint8] = np.ndarray(shape, np.uint8, picture.data, 0, strides)
    return view


class PlaneWriter:
    """Writes pictures into NV12 planes of one size; scratch memory is allocated when a kind of picture first comes.

    :param width: of the planes.
    :param height: likewise.
    :raises LayoutError: a size that NV12 can't have.
    """

    def __init__(self, width: int, height: int) -> None:
        self._size = width, height
        self._writer = Nv12Writer(width, height)
        self._scaled: NDArray[np.uint8] | None = None
        self._bgr: NDArray[np.uint8] | None = None
        self._planes: list[NDArray[np.uint8]] = []

    def write_bgr(self, picture: NDArray[np.uint8], planes: Sequence[NDArray[Any]], *, rgb: bool = False) -> None:
        """A colour picture (height, width, 3). An odd last row or column is cut off, other sizes are scaled."""
        own_height, own_width = picture.shape[:2]
        if (even(own_width), even(own_height)) == self._size:
            picture = picture[: self._size[1], : self._size[0]]
        else:
            self._scaled = np.asarray(cv2.resize(picture, self._size, dst=self._scaled, interpolation=cv2.INTER_AREA), np.uint8)
            picture = self._scaled
        self._writer.write(picture, planes[0], planes[1], rgb=rgb)

    def write_nv12(self, luma: NDArray[np.uint8], chroma: NDArray[np.uint8], planes: Sequence[NDArray[Any]]) -> None:
        """Planes of another place, bit by bit if they have the size, else scaled."""
        for source, target in zip((luma, chroma), planes, strict=True):
            if source.shape == target.shape:
                np.copyto(target, source)
            else:
                cv2.resize(np.ascontiguousarray(source), (target.shape[1], target.shape[0]), dst=target, interpolation=cv2.INTER_AREA)

    def write(self, picture: RawPicture, planes: Sequence[NDArray[Any]]) -> None:
        """Any picture that :func:`check_picture` lets pass."""
        encoding, pixels = picture.encoding, _rows(picture)
        width, height = even(picture.width), even(picture.height)
        if encoding in ('rgb8', 'bgr8', '8UC3'):
            self.write_bgr(pixels, planes, rgb=encoding == 'rgb8')
        elif encoding in ('rgba8', 'bgra8'):
            self.write_bgr(self._converted(pixels, cv2.COLOR_RGBA2BGR if encoding == 'rgba8' else cv2.COLOR_BGRA2BGR), planes)
        elif encoding in _BAYER:
            self.write_bgr(self._converted(pixels, _BAYER[encoding]), planes)
        elif encoding in ('nv12', 'nv21'):
            chroma = np.ndarray((height // 2, width // 2, 2), np.uint8, picture.data, picture.step * height, (picture.step, 2, 1))
            self.write_nv12(pixels[:height], chroma if encoding == 'nv12' else chroma[..., ::-1], planes)
        elif encoding in _PACKED:
            self._write_packed(pixels[:height], _PACKED[encoding], planes)
        else:
            luma = pixels[..., 1] if encoding == 'mono16' else pixels
            self._write_grey(luma[:height, :width], planes)

    def _converted(self, pixels: NDArray[np.uint8], code: int) -> NDArray[np.uint8]:
        fits = self._bgr is not None and self._bgr.shape[:2] == pixels.shape[:2]
        self._bgr = np.asarray(cv2.cvtColor(pixels, code, dst=self._bgr if fits else None), np.uint8)
        return self._bgr

    def _write_packed(self, pixels: NDArray[np.uint8], places: tuple[int, int], planes: Sequence[NDArray[Any]]) -> None:
        """4:2:2 to 4:2:0: two rows share a chroma sample, their mean."""
        height, width = pixels.shape[:2]
        colour = pixels[..., places[1]].reshape(height // 2, 2, width // 2, 2)
        same = planes[0].shape == (height, width)
        if not same and (not self._planes or self._planes[0].shape != (height, width)):
            self._planes = [np.empty((height, width), np.uint8), np.empty((height // 2, width // 2, 2), np.uint8)]
        targets = planes if same else self._planes
        np.copyto(targets[0], pixels[..., places[0]])
        cv2.addWeighted(colour[:, 0], 0.5, colour[:, 1], 0.5, 0.0, dst=targets[1])
        if not same:
            self.write_nv12(self._planes[0], self._planes[1], planes)

    def _write_grey(self, grey: NDArray[np.uint8], planes: Sequence[NDArray[Any]]) -> None:
        """Grey levels are the luma, as the links' conversions have it."""
        self.write_nv12(grey, np.full((grey.shape[0] // 2, grey.shape[1] // 2, 2), 128, np.uint8), planes)
