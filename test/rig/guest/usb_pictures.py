"""What the rig's USB webcam shows: frames that are all different, each with its number in it. Without NumPy, whose import takes long."""

from __future__ import annotations

import struct
from functools import cache

# Rows of a prime period differ from each other.
_PERIOD = 251
_NUMBER = struct.Struct('<Q')


@cache
def _ramp(size: int) -> bytes:
    return bytes(range(_PERIOD)) * (size // _PERIOD + 2)


def yuyv_frame(number: int, size: int) -> bytes:
    """A frame of *size* bytes: its number, then bytes that count up from a place of its own."""
    begin = number % _PERIOD
    return _NUMBER.pack(number) + _ramp(size)[begin + _NUMBER.size : begin + size]


def number_of(frame: bytes) -> int:
    """The number of such a frame."""
    number: int = _NUMBER.unpack_from(frame)[0]
    return number
