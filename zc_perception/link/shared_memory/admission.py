"""Whether a consumer fits what is allocated, and how many frames at a time it may have."""

from __future__ import annotations

from zc_perception.errors import ConfigError
from zc_perception.link.shared_memory.codes import RefusalCode
from zc_perception.link.shared_memory.errors import ProtocolError
from zc_perception.link.shared_memory.wire import Hello
from zc_perception.memory.pool import BufferPool

_LEAST = 2  # one frame in use and the newest one waiting


def admit(hello: Hello, holder: str, pool: BufferPool | None) -> tuple[BufferPool, int, int]:
    """The pool, and the window and depth that are granted; the pool's quota for *holder* is set.

    :raises ProtocolError: with the code for REFUSED.
    """
    slots = () if pool is None else pool.slots
    if pool is None or not slots:
        raise ProtocolError('no_buffers', 'the publisher has no buffers yet; connect again later', RefusalCode.BUSY)
    unfit = hello.requirements.misfit(slots[0].layout, slots[0].buffers[0].kind)
    if unfit:
        raise ProtocolError('constraints', f"what is allocated doesn't fit: {unfit}", RefusalCode.CONSTRAINTS)
    window, depth = grant(hello.window, hello.depth, pool.unpromised)
    if not window:
        raise _no_slots(pool)
    try:
        pool.set_quota(holder, window + depth)
    except ConfigError:  # another consumer was quicker
        raise _no_slots(pool) from None
    return pool, window, depth


def grant(window: int, depth: int, free: int) -> tuple[int, int]:
    """As much of *window* + *depth* as fits *free* slots, at least one of each; (0, 0) if not even that does. The window shrinks last."""
    if free < _LEAST:
        return 0, 0
    depth = max(1, min(depth, free - window))
    return min(window, free - depth), depth


def _no_slots(pool: BufferPool) -> ProtocolError:
    text = f'{pool.unpromised} of {len(pool.slots)} slots are not promised to others, {_LEAST} are needed; configure more slots'
    return ProtocolError('slots', text, RefusalCode.BUSY)
