"""What the parts of the link benchmark have in common: when frames are sent, what is noted of them, what a series costs."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

from zc_perception.bench.link_roles.pixels import Look

# A frame that nobody has answered by then is lost; unthrottled, the next one goes out. After some of them in a row, the series is over.
ANSWER_S = 5.0
_LOST_IN_A_ROW = 3

Times = list[tuple[int, int]]


def cpu_us() -> float:
    """User and system time of this process so far, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


def paced(first: int, frames: int, rate_hz: float, answered: Callable[[int], bool]) -> Iterator[int]:
    """Numbers of the frames to send, each when it is due: at a steady rate, or when the one before was answered.

    :param answered: waits for a frame's answer, not for ever; ``False``: none came.
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
        """Of earlier frames nothing more is noted."""
        self._first = first
        self._times = []

    def note(self, number: int, at_ns: int) -> None:
        """A frame is in hand since *at_ns*."""
        if number >= self._first:
            self._times.append((number, at_ns))

    def wait_for(self, last: int) -> Times:
        """All, once the frame *last* has come, or can't be expected any more."""
        deadline = time.monotonic() + ANSWER_S
        while last >= self._first and not (self._times and self._times[-1][0] >= last) and time.monotonic() < deadline:
            time.sleep(0.001)
        return self._times


class Role:
    """A process's part."""

    def __init__(self) -> None:
        self.look = Look()
        self._began_us = self._ended_us = 0.0

    def matched(self) -> tuple[bool, str]:
        """Whether the other end is there, and why not."""
        return True, ''

    def prepare(self, width: int, height: int) -> None:
        """From the next run on, frames have this size; a consumer is told before its producer."""
        return

    def begin(self, first: int, rate_hz: float, read: bool = False) -> None:
        """A series begins with frame *first*.

        :param read: its consumer reads every pixel.
        """
        self.look.begin(read)
        gc.collect()
        self._began_us = self._ended_us = cpu_us()

    def finish(self) -> None:
        """A series has ended; what telling of it costs isn't the link's."""
        self._ended_us = cpu_us()

    def run(self, first: int, frames: int, rate_hz: float, read: bool = False) -> dict[str, Any]:
        """A producer's series."""
        raise NotImplementedError

    def end(self, last: int) -> Times:
        """A consumer's series; *last* was the last frame."""
        raise NotImplementedError

    def conversions(self) -> int:
        """Frames that became a message or came from one."""
        return 0

    def spent(self) -> dict[str, Any]:
        """What the series cost."""
        return {'cpu_us': self._ended_us - self._began_us, 'conversions': self.conversions(), 'torn': self.look.torn}

    def close(self) -> None:
        """Free everything that the node's end doesn't."""
        return
