"""Reading ``sensor_msgs/Image`` and ``CompressedImage`` from their serialised form, without ROS and without copying the pixels.

Source: OMG DDS-RTPS (encapsulation header), OMG DDS-XTypes §7.4 (plain CDR: values at multiples of their size, counted from behind the
header; strings with their length and a final zero), and the two messages' definitions. rosbag2 keeps exactly these bytes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.replay.pixels import RawPicture
from zc_perception.errors import FormatError
from zc_perception.frame import Header

_NANOSECONDS = 1_000_000_000
_BIG, _LITTLE = 0, 1


class CompressedPicture(NamedTuple):
    """*format* is image_transport's text, such as ``bgr8; jpeg compressed bgr8``."""

    format: str
    data: NDArray[np.uint8]


class _Reader:
    """Takes values one after the other; every read is checked against what is there."""

    def __init__(self, content: bytes | memoryview) -> None:
        if len(content) < 4:
            raise FormatError(f'the message has {len(content)} bytes; a serialised message has at least 4')
        kind = content[1]
        if content[0] or kind not in (_BIG, _LITTLE):
            raise FormatError(f'the message has the encapsulation 0x{content[0]:02x}{kind:02x}; plain CDR is 0x0000 or 0x0001')
        self._order = '<' if kind == _LITTLE else '>'
        self._content = memoryview(content)[4:]
        self._at = 0

    def take(self, kind: str) -> int:
        """One number, by its letter in :mod:`struct`."""
        size = struct.calcsize(self._order + kind)
        self._at = -(-self._at // size) * size
        value: int = struct.unpack(self._order + kind, self._bytes(size))[0]
        return value

    def _bytes(self, size: int) -> memoryview:
        left = len(self._content) - self._at
        if size > left:
            raise FormatError(f'the message ends too early: {size} bytes are wanted at byte {self._at + 4}, {max(0, left)} are left')
        taken = self._content[self._at : self._at + size]
        self._at += size
        return taken

    def text(self) -> str:
        """A string."""
        raw = bytes(self._bytes(self.take('I')))
        return raw.removesuffix(b'\0').decode('utf-8', errors='replace')

    def blob(self) -> NDArray[np.uint8]:
        """A sequence of bytes, as a view."""
        return np.frombuffer(self._bytes(self.take('I')), np.uint8)

    def header(self) -> Header:
        """``std_msgs/Header``."""
        seconds, nanoseconds = self.take('i'), self.take('I')
        return Header(seconds * _NANOSECONDS + nanoseconds, self.text())


def read_image(content: bytes | memoryview) -> tuple[Header, RawPicture]:
    """The parts of a serialised ``sensor_msgs/msg/Image``; the pixels are a view of *content*. Nothing is checked but that it is all there.

    :raises FormatError: it isn't such a message.
    """
    reader = _Reader(content)
    header = reader.header()
    height, width, encoding = reader.take('I'), reader.take('I'), reader.text()
    big_endian, step = bool(reader.take('B')), reader.take('I')
    return header, RawPicture(width, height, encoding, big_endian, step, reader.blob())


def read_compressed_image(content: bytes | memoryview) -> tuple[Header, CompressedPicture]:
    """The parts of a serialised ``sensor_msgs/msg/CompressedImage``; likewise.

    :raises FormatError: it isn't such a message.
    """
    reader = _Reader(content)
    header = reader.header()
    return header, CompressedPicture(reader.text(), reader.blob())
