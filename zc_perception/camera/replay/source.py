"""What the replay camera plays: :class:`FrameSource` is what each kind of recording has to do, :class:`PlaneWriter` how its pictures
become NV12 planes. Every conversion that replay makes is there: each is one pass, scaled where it has to be.

Encodings are those of ``sensor_msgs/image_encodings.hpp``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import FormatError, nearest
from zc_perception.frame import Header
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.format_names import from_ros_encoding
from zc_perception.pixel.fourcc import NV12, fourcc_code, pixel_format
from zc_perception.pixel.layout import chained_layout, check_dimensions, views
from zc_perception.pixel.nv12 import ToNv12
from zc_perception.pixel.samples import Planes

DEFAULT_FRAMERATE = 30.0
RATE_FROM = 64
"""So many of a recording's first frames have its rate; the rest may have gaps."""
STAMPS = ('now', 'recorded')
"""Whose headers frames get: the ROS clock's time with the camera's frame_id, or the recording's own headers."""


@dataclass(frozen=True)
class Moment:
    """A frame that comes next, before its pixels are read.

    :param time_ns: since the source's first frame, on the source's own time axis.
    :param header: as recorded, if the source has headers.
    """

    time_ns: int
    header: Header | None = None


class FrameSource(ABC):
    """Frames in their order. One thread. Those of another size than *width* and *height* are scaled.

    :param name: what it plays, for messages.
    :param framerate: its own, frames per second; nominal where it has time stamps.
    """

    fourcc = NV12
    colorimetry = BT601_LIMITED
    has_headers = False
    number = -1
    """Of the frame that :meth:`advance` went to, or could not go to."""

    def __init__(self, name: str, width: int, height: int, framerate: float) -> None:
        self.name = name
        self.width = width
        self.height = height
        self.framerate = framerate

    def advance(self) -> Moment | None:
        """Go to the next frame; ``None``: there is none.

        :raises RecordingError: the recording can't be read on.
        """
        self.number += 1
        return self._moment()

    @abstractmethod
    def _moment(self) -> Moment | None:
        """When frame :attr:`number` is due, the next one; ``None``: there is none."""

    def _nominal(self) -> Moment:
        """Its moment in a recording that has nothing but a rate."""
        return Moment(round(self.number * 1e9 / self.framerate))

    @abstractmethod
    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """Write the pixels of the frame that :meth:`advance` went to, in one pass. ``False``: they are damaged."""

    def restart(self) -> None:
        """Go before the first frame."""
        self.number = -1

    def seek(self, offset_ns: int) -> Moment | None:
        """From the start, go to the first frame that is *offset_ns* or more after the first one.

        :raises RecordingError: the recording can't be read so far.
        """
        while (moment := self.advance()) is not None and moment.time_ns < offset_ns:
            pass
        return moment

    def notice(self) -> str:
        """What the user should know of the recording: parts that are missing or damaged; empty for nothing."""
        return ''

    def close(self) -> None:  # noqa: B027
        """Give everything back. Idempotent."""


def read_whole(file: BinaryIO, content: NDArray[np.uint8]) -> bool:
    """Fill *content* from where *file* is; ``False``: it ends before."""
    view, got = content.data, 0
    while got < len(view):
        count = file.readinto(view[got:])  # type: ignore[attr-defined]
        if not count:
            return False
        got += count
    return True


def rate_of(stamps: Iterable[int]) -> float:
    """Frames per second, by the median distance of some frames' stamps; :data:`DEFAULT_FRAMERATE` where they say nothing."""
    intervals = np.diff(sorted(stamps))
    middle = float(np.median(intervals)) if len(intervals) else 0.0
    return 1e9 / middle if middle > 0 else DEFAULT_FRAMERATE


def even(size: int) -> int:
    """*size* without an odd last row or column, which NV12 can't have."""
    return size & ~1


MAX_SIDE = 65535
_BGR = fourcc_code('RG24')
_FULL = Colorimetry(Matrix.RGB, Range.FULL)


class _Encoding(NamedTuple):
    """Bytes of a pixel in a row, and rows for each two rows of the picture (more than 2 where chroma follows luma)."""

    pixel_bytes: int
    half_rows: int = 2


# ROS names a Bayer pattern by its first row's first two pixels, OpenCV by the second row's second and third.
_BAYER = {
    'bayer_rggb8': cv2.COLOR_BayerBG2BGR,
    'bayer_bggr8': cv2.COLOR_BayerRG2BGR,
    'bayer_gbrg8': cv2.COLOR_BayerGR2BGR,
    'bayer_grbg8': cv2.COLOR_BayerGB2BGR,
}
_ENCODINGS = {
    'nv12': _Encoding(1, 3),
    'nv21': _Encoding(1, 3),
    'nv24': _Encoding(1, 6),
    'rgb8': _Encoding(3),
    'bgr8': _Encoding(3),
    'rgba8': _Encoding(4),
    'bgra8': _Encoding(4),
    'mono8': _Encoding(1),
    'mono16': _Encoding(2),
    **dict.fromkeys(('yuyv', 'yuv422_yuy2', 'uyvy', 'yuv422'), _Encoding(2)),
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
        raise FormatError(
            f"encoding '{encoding[:40]}' can't be played{nearest(encoding, ENCODINGS)}; known are {', '.join(ENCODINGS)}"
        )
    if not (2 <= width <= MAX_SIDE and 2 <= height <= MAX_SIDE):
        raise FormatError(
            f'the picture is {width}x{height}; both sides must be from 2 to {MAX_SIDE}'
        )
    if big_endian and encoding == 'mono16':  # bytes have no order
        raise FormatError('mono16 is big-endian; only little-endian can be played')
    if known.half_rows == 3:
        check_dimensions(pixel_format(NV12), width, height)
    elif encoding not in _BAYER and width % pixel_format(_fourcc(encoding)).horizontal:
        raise FormatError(
            f'{encoding} with a width of {width}; it must be even, two pixels share their colour'
        )
    row, rows = width * known.pixel_bytes, height * known.half_rows // 2
    if step < row or len(data) < step * (rows - 1) + row:
        raise FormatError(
            f'{width}x{height} {encoding} needs a step of {row} or more and {rows} rows; step is {step}, data are {len(data)} bytes'
        )


def _fourcc(encoding: str) -> int:
    return from_ros_encoding({'8UC1': 'mono8', '8UC3': 'bgr8'}.get(encoding, encoding))


class PlaneWriter:
    """Writes pictures into NV12 planes of one size; scratch memory is allocated when a kind of picture first comes.

    :param width: of the planes.
    :param height: likewise.
    :raises LayoutError: a size that NV12 can't have.
    """

    def __init__(self, width: int, height: int) -> None:
        check_dimensions(pixel_format(NV12), width, height)
        self._size = width, height
        self._converters: dict[tuple[int, int, int, Colorimetry], ToNv12] = {}
        self._bgr: NDArray[np.uint8] | None = None

    def write_bgr(self, picture: NDArray[np.uint8], planes: Sequence[NDArray[Any]]) -> None:
        """A colour picture (height, width, 3), B G R."""
        self.write_planes(_BGR, (picture.shape[1], picture.shape[0]), _FULL, [picture], planes)

    def write_planes(
        self,
        fourcc: int,
        size: tuple[int, int],
        colorimetry: Colorimetry,
        sources: Planes,
        planes: Sequence[NDArray[Any]],
    ) -> None:
        """Planes of any readable format. An odd last row or column is cut off, other sizes are scaled.

        What becomes NV12 of luma and chroma keeps its matrix and range, everything else becomes BT.601 limited.

        :raises FormatError: a format or a colorimetry that has no conversion.
        """
        if size != self._size and (even(size[0]), even(size[1])) == self._size:
            size, parts = self._size, pixel_format(fourcc).planes
            sources = [
                s[: p.rows(size[1]), : size[0] // p.horizontal]
                for s, p in zip(sources, parts, strict=True)
            ]
        key = fourcc, *size, colorimetry
        converter = self._converters.get(key)
        if converter is None:
            converter = self._converters[key] = ToNv12(fourcc, *size, colorimetry, size=self._size)
        converter.convert(sources, planes[0], planes[1])

    def write(self, picture: RawPicture, planes: Sequence[NDArray[Any]]) -> None:
        """Any picture that :func:`check_picture` lets pass. Its Y'CbCr is BT.601 limited, its grey levels are 0..255."""
        if picture.encoding in _BAYER:
            pixels = np.ndarray(
                (picture.height, picture.width), np.uint8, picture.data, 0, (picture.step, 1)
            )
            fits = self._bgr is not None and self._bgr.shape[:2] == pixels.shape
            self._bgr = np.asarray(
                cv2.cvtColor(pixels, _BAYER[picture.encoding], dst=self._bgr if fits else None),
                np.uint8,
            )
            self.write_bgr(self._bgr, planes)
            return
        layout = chained_layout(
            _fourcc(picture.encoding), picture.width, picture.height, picture.step
        )
        colorimetry = BT601_LIMITED if layout.format.is_yuv else _FULL
        size = picture.width, picture.height
        self.write_planes(layout.fourcc, size, colorimetry, views(layout, picture.data), planes)
