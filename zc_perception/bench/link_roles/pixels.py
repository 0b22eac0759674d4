"""What a frame's pixels are in the link benchmark, and how a consumer knows that it has all of them.

A producer's picture is filled once. Before each frame's clock starts it writes the frame's number to the first, a middle and the last eight
bytes, so that a consumer sees a picture that is put together from two. A consumer that reads every pixel adds all of them up, which tells
that too, for each of them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

FILL = 90
_WORD = struct.Struct('<Q')
_SIZE = _WORD.size
_read, _write = _WORD.unpack_from, _WORD.pack_into
_FILL_WORD = int.from_bytes(bytes([FILL]) * _SIZE, 'little')
_STAMPS = 3

# One of all bytes, or NV12's two; arrays without gaps, of any shape.
Planes = Sequence[np.ndarray[Any, Any]]


def _middle(first: np.ndarray[Any, Any]) -> int:
    """Of the first plane, which is all of the picture or its larger part."""
    return first.nbytes // 2 // _SIZE * _SIZE


def stamp(planes: Planes, number: int) -> None:
    """The picture is frame *number* from now on. Few steps: they are in every frame's CPU time, and none of them is the link's."""
    first, last = planes[0], planes[-1]
    _write(first, 0, number)
    _write(first, _middle(first), number)
    _write(last, last.nbytes - _SIZE, number)


def sum_of(planes: Planes) -> int:
    """Of all pixels, eight at a time: the quickest that NumPy reads them on one core."""
    return sum(int(np.add.reduce(plane.reshape(-1).view(np.uint64))) for plane in planes) % 2**64


def sum_expected(size: int, number: int) -> int:
    """What :func:`sum_of` is for a picture of *size* bytes with the stamp *number*."""
    return ((size // _SIZE - _STAMPS) * _FILL_WORD + _STAMPS * number) % 2**64


class Look:
    """What a consumer does with each frame."""

    def __init__(self) -> None:
        self.every_pixel = False
        self.torn = 0

    def begin(self, every_pixel: bool) -> None:
        """For a series."""
        self.every_pixel = every_pixel
        self.torn = 0

    def __call__(self, planes: Planes) -> tuple[int, int]:
        """Its number and when it was in hand, in ns of CLOCK_MONOTONIC: its first bytes read, or every pixel."""
        first = planes[0]
        total = sum_of(planes) if self.every_pixel else 0
        (number,) = _read(first, 0)
        now = time.monotonic_ns()
        last = planes[-1]
        whole = _read(first, _middle(first))[0] == number == _read(last, last.nbytes - _SIZE)[0]
        if not whole or (self.every_pixel and total != sum_expected(sum(plane.nbytes for plane in planes), number)):
            self.torn += 1
        return number, now
