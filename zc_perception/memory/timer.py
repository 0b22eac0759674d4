"""A timer of the kernel that poll(2) can wait for. Source: timerfd_create(2). Python has it from 3.13 on (``os.timerfd_create``)."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

from zc_perception.memory.owned_fd import OwnedFd

_ABSOLUTE = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _TimerSpec(ctypes.Structure):
    """``struct itimerspec`` of 64-bit Linux."""

    _fields_ = tuple(
        (name, ctypes.c_int64) for name in ('interval_s', 'interval_ns', 'value_s', 'value_ns')
    )


def timer_spec(time_ns: int) -> Any:
    """What :meth:`Timer.set` takes for a time. One that is over already becomes the first nanosecond, because zero would stop the timer."""
    return ctypes.byref(_TimerSpec(0, 0, *divmod(max(1, time_ns), 1_000_000_000)))


class Timer:
    """A timerfd of CLOCK_MONOTONIC. Its descriptor polls readable from the time on that was set last.

    :raises OSError: there is no descriptor left.
    """

    def __init__(self) -> None:
        number = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
        if number < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._fd = OwnedFd(number)

    def set(self, spec: Any, *, absolute: bool = False) -> None:
        """Set it anew.

        :param spec: a :func:`timer_spec`; from now on, or *absolute* on the clock.
        """
        if _libc.timerfd_settime(self._fd.fileno(), _ABSOLUTE if absolute else 0, spec, None) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def fileno(self) -> int:
        """The descriptor, which stays this object's."""
        return self._fd.fileno()

    def close(self) -> None:
        """Close it. A second call does nothing."""
        self._fd.close()
