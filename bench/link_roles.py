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
What all processes of the link benchmark have in common.

That is pixels, times, answers and commands, also for the peers' processes. ROS isn't needed.

*Pixels*: a producer's picture is filled once. Before each frame's clock starts it writes the
frame's number to the first, a middle and the last eight bytes, so that a consumer sees a picture
that is put together from two. A consumer that reads every pixel adds all of them up, which tells
that too, for each of them.

*Roles*: a process is a :class:`Role`, whose methods are the commands that
:mod:`~bench.link_worker` lists. It notes when frames are sent and when they arrive, and what a
series costs.

*Answers* of a consumer to its producer are for pictures that nobody gives back
(:class:`PicturesOut`, :class:`PicturesIn`): a socket beside what carries them.
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

# One of all bytes, or NV12's two; arrays without gaps, of any shape.
Planes = Sequence[np.ndarray[Any, Any]]


def _middle(first: np.ndarray[Any, Any]) -> int:
    """Return the middle of the first plane, which is all of the picture or its larger part."""
    return first.nbytes // 2 // _SIZE * _SIZE


def stamp(planes: Planes, number: int) -> None:
    """
    Make the picture frame *number* from now on.

    It takes few steps: they are in every frame's CPU time, and none of them is the link's.
    """
    first, last = planes[0], planes[-1]
    _write(first, 0, number)
    _write(first, _middle(first), number)
    _write(last, last.nbytes - _SIZE, number)


def sum_of(planes: Planes) -> int:
    """Sum up all pixels, eight at a time, the quickest way for NumPy on one core."""
    return sum(int(np.add.reduce(plane.reshape(-1).view(np.uint64))) for plane in planes) % 2**64


def sum_expected(size: int, number: int) -> int:
    """Return :func:`sum_of` for a picture of *size* bytes with the stamp *number*."""
    return ((size // _SIZE - _STAMPS) * _FILL_WORD + _STAMPS * number) % 2**64


class Look:
    """A consumer's look at each frame. It notes the time, and sees whether the frame is whole."""

    def __init__(self) -> None:
        self.every_pixel = False
        self.torn = 0

    def begin(self, every_pixel: bool) -> None:
        """For a series."""
        self.every_pixel = every_pixel
        self.torn = 0

    def __call__(self, planes: Planes) -> tuple[int, int]:
        """
        Return the frame's number and when it was in hand, in ns of CLOCK_MONOTONIC.

        In hand means that its first bytes were read, or every pixel.
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


# A frame that nobody has answered by then is lost; unthrottled, the next one goes out. After some
# of them in a row, the series is over.
ANSWER_S = 5.0
_LOST_IN_A_ROW = 3

Times = list[tuple[int, int]]


def cpu_us() -> float:
    """Return the user and system time that this process has used, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


def paced(
    first: int, frames: int, rate_hz: float, answered: Callable[[int], bool]
) -> Iterator[int]:
    """
    Yield the number of each frame to send when it is due.

    It is due at a steady rate, or when the one before was answered.

    :param answered: waits for a frame's answer, with a bound; ``False``: none came.
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
    """Notes frames as they come, on the thread that takes them."""

    def __init__(self) -> None:
        self._times: Times = []
        self._first = 0

    def begin(self, first: int) -> None:
        """Begin a series: nothing more is noted of earlier frames."""
        self._first = first
        self._times = []

    def note(self, number: int, at_ns: int) -> None:
        """Note that a frame is in hand since *at_ns*."""
        if number >= self._first:
            self._times.append((number, at_ns))

    def wait_for(self, last: int) -> Times:
        """Return all frames once the frame *last* has come, or can't be expected any more."""
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
    What one process of the link benchmark does: it produces or consumes frames, or both.

    The main thread calls all methods, as commands ask for them; frames may arrive on another
    thread.
    """

    def __init__(self) -> None:
        self.look = Look()
        self.arrivals = Arrivals()
        self.facts: dict[str, Any] = {}
        self._began_us = self._ended_us = 0.0

    def describe(self) -> dict[str, Any]:
        """Describe what the figures depend on."""
        return self.facts

    def other_end(self) -> tuple[bool, str]:
        """Tell whether the other end is there, and why not."""
        return True, ''

    def matched(self) -> dict[str, Any]:
        """Tell whether the other end is there."""
        there, reason = self.other_end()
        return {'matched': there, 'reason': '' if there else reason}

    def prepare(self, width: int, height: int) -> None:
        """Give frames this size from the next run on; a consumer is told before its producer."""
        return

    def begin(self, first: int, rate_hz: float, read: bool = False) -> None:
        """
        Begin a series with frame *first*.

        :param read: its consumer reads every pixel.
        """
        self.look.begin(read)
        self.arrivals.begin(first)
        gc.collect()
        self._began_us = self._ended_us = cpu_us()

    def finish(self) -> None:
        """End a series; the time to report it isn't counted as the link's."""
        self._ended_us = cpu_us()

    def run(self, first: int, frames: int, rate_hz: float, read: bool = False) -> dict[str, Any]:
        """Run a producer's series."""
        raise NotImplementedError

    def end(self, last: int) -> dict[str, Any]:
        """End a consumer's series; *last* was the last frame."""
        times = self.arrivals.wait_for(last)
        self.finish()
        return {'arrived': times}

    def conversions(self) -> int:
        """Count frames that became a message or came from one."""
        return 0

    def spent(self) -> dict[str, Any]:
        """Return what the series cost."""
        return {
            'cpu_us': self._ended_us - self._began_us,
            'conversions': self.conversions(),
            'torn': self.look.torn,
        }

    def close(self) -> None:
        """Free everything that the node's end doesn't."""
        return


_ANSWER_SIZE = 8


def answered(answers: socket.socket, number: int) -> bool:
    """Wait for the answer to frame *number*, not for ever; ``False``: none came."""
    deadline = time.monotonic() + ANSWER_S
    while select.select([answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
        answer = answers.recv(_ANSWER_SIZE)
        # An earlier frame's is late; without any, the other end has ended.
        if not answer or int.from_bytes(answer, 'little') == number:
            return bool(answer)
    return False


def give_answer(answers: socket.socket, number: int) -> None:
    """Answer that frame *number* is here."""
    with contextlib.suppress(OSError):  # nobody waits for it any more
        answers.send(number.to_bytes(_ANSWER_SIZE, 'little'), socket.MSG_DONTWAIT)


def nv12_size(width: int, height: int) -> int:
    """Return bytes of a picture."""
    return width * height * 3 // 2


Pixels = np.ndarray[Any, Any]


class PicturesOut(Role):
    """
    Sends pictures that are not given back, as messages are.

    Unthrottled, the consumer answers each over a separate socket. Override :meth:`publish`,
    :meth:`prepare` where there is more to it, and :meth:`picture` where the picture lies in the
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
        """Return where the next picture is, before the clock starts."""
        return self.pixels

    def publish(self) -> None:
        """Send :meth:`picture`'s."""
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
    """Receives them, on whatever thread calls :meth:`arrived`."""

    def __init__(self, answers: socket.socket) -> None:
        super().__init__()
        self._answers = answers
        self._answering = False

    def begin(self, first: int, rate_hz: float, read: bool = False) -> None:
        self._answering = not rate_hz
        super().begin(first, rate_hz, read)

    def arrived(self, pixels: Pixels) -> None:
        """Look at a view of one picture, all of it."""
        number, now = self.look([pixels])
        self.arrivals.note(number, now)
        if self._answering:
            give_answer(self._answers, number)
