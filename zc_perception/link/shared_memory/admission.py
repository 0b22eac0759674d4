"""Whether a consumer fits what is allocated, and how many frames at a time it may have."""

from __future__ import annotations

from zc_perception.link.shared_memory.codes import MAX_DEPTH, RefusalCode
from zc_perception.link.shared_memory.errors import ProtocolError
from zc_perception.link.shared_memory.requirements import Requirements
from zc_perception.link.shared_memory.wire import Hello
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.heap_offer import HeapOffer


def admit(hello: Hello, holder: str, pool: BufferPool | None, heap: HeapOffer | None) -> tuple[BufferPool, int, int]:
    """The pool, and the window and depth that are granted; the pool's quota for *holder* is set.

    :param heap: where the pool's buffers come from; ``None``: nobody said.
    :raises ProtocolError: with the code for REFUSED.
    """
    slots = () if pool is None else pool.slots
    if pool is None or not slots:
        raise ProtocolError('no_buffers', 'the publisher has no buffers yet; connect again later', RefusalCode.BUSY)
    unfit = hello.requirements.misfit(slots[0].layout, slots[0].buffers[0].kind, heap)
    if unfit:
        raise ProtocolError('constraints', f"what is allocated doesn't suit {hello.name or 'it'}: {unfit}", RefusalCode.CONSTRAINTS)
    # Who keeps all wants every frame of a recording.
    lossless, whole = hello.depth == MAX_DEPTH, hello.requirements != Requirements()
    window, depth = pool.grant(holder, hello.window, hello.depth, lossless=lossless, whole=whole)
    if not window:
        text = f"{max(0, pool.unpromised)} of {len(pool.slots)} slots are not promised to others; raise 'slots', or end other consumers"
        raise ProtocolError('slots', text, RefusalCode.BUSY)
    return pool, window, depth
