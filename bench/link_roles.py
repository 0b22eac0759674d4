# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
Classes that all processes of the link benchmark share, the peers' processes too; without ROS.

*Pixels*: a producer fills its picture once. Before each frame's clock starts, it writes the
frame's number to the first, a middle and the last eight bytes. If these three differ, the consumer
has a torn frame. A consumer that reads every pixel also compares the sum of all pixels.

*Roles*: a process is a :class:`Role`, whose methods are the commands that
:mod:`~bench.link_worker` lists. It notes when frames are sent, when they arrive, and the CPU time
of a series.

*Answers*: messages, unlike frames, are not given back to their producer. So :class:`PicturesIn`
tells :class:`PicturesOut` over a separate socket that a picture has arrived.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator, Sequence
import contextlib
import gc
import resource
import select
import socket
import struct
import time
from typing import Any

import numpy as np

FILL = 90
_WORD = struct.Struct('<Q')
_SIZE = _WORD.size
_read, _write = _WORD.unpack_from, _WORD.pack_into
_FILL_WORD = int.from_bytes(bytes([FILL]) * _SIZE, 'little')
_STAMPS = 3

# One array with all bytes, or NV12's two planes; contiguous, of any shape.
Planes = Sequence[np.ndarray[Any, Any]]


def _middle(first: np.ndarray[Any, Any]) -> int:
    """Return the offset of the plane's middle, a multiple of eight bytes."""
    return first.nbytes // 2 // _SIZE * _SIZE


def stamp(planes: Planes, number: int) -> None:
    """
    Write a frame's number into the picture.

    This does little work, because the frame's measured CPU time includes this function.
    """
    first, last = planes[0], planes[-1]
    _write(first, 0, number)
    _write(first, _middle(first), number)
    _write(last, last.nbytes - _SIZE, number)


def sum_of(planes: Planes) -> int:
    """Return the sum of all 8-byte words modulo 2**64: NumPy's fastest way to read all pixels."""
    return sum(int(np.add.reduce(plane.reshape(-1).view(np.uint64))) for plane in planes) % 2**64


def sum_expected(size: int, number: int) -> int:
    """Return the correct :func:`sum_of` for a picture of *size* bytes with the stamp *number*."""
    return ((size // _SIZE - _STAMPS) * _FILL_WORD + _STAMPS * number) % 2**64


class Look:
    """Reads a consumer's frames: returns when each was read, and counts torn frames."""

    def __init__(self) -> None:
        self.every_pixel = False
        self.torn = 0

    def begin(self, every_pixel: bool) -> None:
        """Begin a series."""
        self.every_pixel = every_pixel
        self.torn = 0

    def __call__(self, planes: Planes) -> tuple[int, int]:
        """
        Return the frame's number, and CLOCK_MONOTONIC in ns after its first bytes were read.

        With :attr:`every_pixel` it is the time after all pixels were read.
        """
        first = planes[0]
        total = sum_of(planes) if self.every_pixel else 0
        (number,) = _read(first, 0)
        now = time.monotonic_ns()
        last = planes[-1]
        whole = _read(first, _middle(first))[0] == number == _read(last, last.nbytes - _SIZE)[0]
        if not whole or (
            self.every_pixel
            and total != sum_expected(sum(plane.nbytes for plane in planes), number)
        ):
            self.torn += 1
        return number, now


# A frame that isn't answered within this time is lost; unthrottled, the next frame is sent then.
# After _LOST_IN_A_ROW such frames, the series ends.
ANSWER_S = 5.0
_LOST_IN_A_ROW = 3

Times = list[tuple[int, int]]


def cpu_us() -> float:
    """Return the user and system time of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


def paced(
    first: int, frames: int, rate_hz: float, answered: Callable[[int], bool]
) -> Iterator[int]:
    """
    Yield each frame's number at the moment to send it.

    :param rate_hz: the steady rate; 0: send a frame when the previous one was answered.
    :param answered: waits for a frame's answer, with a time limit; ``False``: none came.
    """
    start = time.monotonic()
    lost = 0
    for count in range(frames):
        if rate_hz:
            time.sleep(max(0.0, start + count / rate_hz - time.monotonic()))
        yield first + count
        if not rate_hz:
            lost = 0 if answered(first + count) else lost + 1
            if lost == _LOST_IN_A_ROW:
                return


class Arrivals:
    """Notes each frame's arrival, on the thread that takes the frame."""

    def __init__(self) -> None:
        self._times: Times = []
        self._first = 0

    def begin(self, first: int) -> None:
        """Begin a series; frames before *first* are ignored from now on."""
        self._first = first
        self._times = []

    def note(self, number: int, at_ns: int) -> None:
        """Note that a frame arrived at *at_ns*."""
        if number >= self._first:
            self._times.append((number, at_ns))

    def wait_for(self, last: int) -> Times:
        """Return all frames once *last* has arrived, or after :data:`ANSWER_S`."""
        deadline = time.monotonic() + ANSWER_S
        while (
            last >= self._first
            and not (self._times and self._times[-1][0] >= last)
            and time.monotonic() < deadline
        ):
            time.sleep(0.001)
        return self._times


class Role:
    """
    A process of the link benchmark: it produces or consumes frames, or both.

    The main thread calls the method that each command names; frames may arrive on another thread.
    """

    def __init__(self) -> None:
        self.look = Look()
        self.arrivals = Arrivals()
        self.facts: dict[str, Any] = {}
        self._began_us = self._ended_us = 0.0

    def describe(self) -> dict[str, Any]:
        """Return settings that the figures depend on."""
        return self.facts

    def other_end(self) -> tuple[bool, str]:
        """Return whether the other process was found, and the reason if it was not."""
        return True, ''

    def matched(self) -> dict[str, Any]:
        """Answer the command ``matched``."""
        there, reason = self.other_end()
        return {'matched': there, 'reason': '' if there else reason}

    def prepare(self, width: int, height: int) -> None:
        """Set the size of the next series' frames; a consumer's is set before its producer's."""
        return

    def begin(self, first: int, rate_hz: float, read: bool = False) -> None:
        """
        Begin a series with frame *first*.

        :param read: the consumer reads every pixel.
        """
        self.look.begin(read)
        self.arrivals.begin(first)
        gc.collect()
        self._began_us = self._ended_us = cpu_us()

    def finish(self) -> None:
        """Note the series' CPU time, before the time to report the series is added."""
        self._ended_us = cpu_us()

    def run(self, first: int, frames: int, rate_hz: float, read: bool = False) -> dict[str, Any]:
        """Send a series of frames; return when each was sent."""
        raise NotImplementedError

    def end(self, last: int) -> dict[str, Any]:
        """End a consumer's series, of which *last* was the last frame."""
        times = self.arrivals.wait_for(last)
        self.finish()
        return {'arrived': times}

    def conversions(self) -> int:
        """Return how many frames were converted to or from a message."""
        return 0

    def spent(self) -> dict[str, Any]:
        """Return the series' CPU time, and how many frames were converted or torn."""
        return {
            'cpu_us': self._ended_us - self._began_us,
            'conversions': self.conversions(),
            'torn': self.look.torn,
        }

    def close(self) -> None:
        """Free everything that isn't freed by destroying the node."""
        return


_ANSWER_SIZE = 8


def answered(answers: socket.socket, number: int) -> bool:
    """Wait up to :data:`ANSWER_S` for the answer to frame *number*; ``False``: none came."""
    deadline = time.monotonic() + ANSWER_S
    while select.select([answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
        answer = answers.recv(_ANSWER_SIZE)
        # Ignore a late answer to an earlier frame. Empty: the consumer's process has ended.
        if not answer or int.from_bytes(answer, 'little') == number:
            return bool(answer)
    return False


def give_answer(answers: socket.socket, number: int) -> None:
    """Tell the producer that frame *number* has arrived."""
    with contextlib.suppress(OSError):  # the producer doesn't wait for it any more
        answers.send(number.to_bytes(_ANSWER_SIZE, 'little'), socket.MSG_DONTWAIT)


def nv12_size(width: int, height: int) -> int:
    """Return the number of bytes of an NV12 picture."""
    return width * height * 3 // 2


Pixels = np.ndarray[Any, Any]


class PicturesOut(Role):
    """
    The base class of producers of messages, which are not given back.

    Unthrottled, the consumer answers each picture over a separate socket. Override
    :meth:`publish`. Override :meth:`prepare` to set up more, and :meth:`picture` to write into the
    peer's memory.
    """

    def __init__(self, answers: socket.socket) -> None:
        super().__init__()
        self._answers = answers
        self.source: bytearray | array.array[int] = bytearray()
        self.pixels: Pixels = np.empty(0, np.uint8)

    def prepare(self, width: int, height: int) -> None:
        self.source = bytearray([FILL]) * nv12_size(width, height)
        self.pixels = np.frombuffer(self.source, np.uint8)

    def picture(self) -> Pixels:
        """Return the buffer of the next picture; called before the clock starts."""
        return self.pixels

    def publish(self) -> None:
        """Send the picture that :meth:`picture` returned."""
        raise NotImplementedError

    def run(self, first: int, frames: int, rate_hz: float, read: bool = False) -> dict[str, Any]:
        self.begin(first, rate_hz, read)
        sent: Times = []
        for number in paced(
            first, frames, rate_hz, lambda number: answered(self._answers, number)
        ):
            stamp([self.picture()], number)
            sent.append((number, time.monotonic_ns()))
            self.publish()
        self.finish()
        return {'sent': sent}


class PicturesIn(Role):
    """The base class of consumers of messages; any one thread calls :meth:`arrived`."""

    def __init__(self, answers: socket.socket) -> None:
        super().__init__()
        self._answers = answers
        self._answering = False

    def begin(self, first: int, rate_hz: float, read: bool = False) -> None:
        self._answering = not rate_hz
        super().begin(first, rate_hz, read)

    def arrived(self, pixels: Pixels) -> None:
        """Read a picture, note its arrival, and answer it if the series is unthrottled."""
        number, now = self.look([pixels])
        self.arrivals.note(number, now)
        if self._answering:
            give_answer(self._answers, number)
