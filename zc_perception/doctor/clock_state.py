"""Whether something disciplines the system's clock: adjtimex(2), asked without changing anything."""

from __future__ import annotations

import ctypes

_STA_UNSYNC = 0x40
_TIME_ERROR = 5
# ``struct timex`` has 208 bytes on 64-bit Linux; ``modes`` is first, ``status`` an int behind four longs.
_SIZE = 208
_STATUS_OFFSET = 40


def clock_is_synchronised() -> bool | None:
    """``None`` where the kernel doesn't say. A time service (chrony, ptp4l with phc2sys, timesyncd) clears STA_UNSYNC."""
    argument = ctypes.create_string_buffer(_SIZE)
    state = ctypes.CDLL(None).adjtimex(argument)
    if state < 0:
        return None
    status = ctypes.c_int.from_buffer(argument, _STATUS_OFFSET).value
    return state != _TIME_ERROR and not status & _STA_UNSYNC
