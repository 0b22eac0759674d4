"""A slot of a pool, a lease on it, and the fences that keep it from being reused."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import Fence
from zc_perception.pixel.layout import ImageLayout

if TYPE_CHECKING:
    from zc_perception.memory.holders import Account
    from zc_perception.memory.slot_lending import SlotLending

Buffers = tuple[DmaBuf, ...]


class SlotState(Enum):
    """Where a slot is in its cycle."""

    FREE = 'free'
    FILLING = 'filling'
    LEASED = 'leased'
    WAITING = 'waiting'
    RETIRED = 'retired'


class PendingFence(NamedTuple):
    """A release fence, and the CLOCK_MONOTONIC second at which its slot is given up.

    Fences are other people's objects: one that raises costs its slot, not the pool.
    """

    fence: Fence
    deadline: float

    def signalled(self) -> bool:
        """Whether it signalled; success or error. One that can't be looked at, such as one that its giver closed, never does."""
        try:
            return self.fence.wait(0.0)
        except Exception:
            return False

    def failed(self) -> bool:
        """Whether what it signalled is an error. The device is done with the buffer all the same."""
        try:
            self.fence.check()
        except Exception:
            return True
        return False

    def close(self) -> None:
        """End the fence, whatever state its giver left it in."""
        with contextlib.suppress(Exception):
            self.fence.close()


@dataclass(eq=False)
class Slot:
    """One frame's worth of buffers. Only its pool changes it.

    :param index: its place in the pool; the index of a driver's buffer.
    :param buffer_uid: names these buffers and no others; what replaces them has another one.
    :param layout: where each plane lies in the buffers. The pool's own layout may be a newer one.
    :param generation: counts the uses of this place; it never goes back, not even when the buffers are replaced.
    :param leases: by number, what keeps it from being reused.
    :param fences: release fences of leases that were dropped.
    :param pins: how many :meth:`BufferPool.revoke` calls are still making a quarantine for it.
    :param condemned: its quarantine could not be made, so that nobody can say when a dead consumer's device is done.
    :param since: CLOCK_MONOTONIC second of the last :meth:`BufferPool.acquire`.
    :param sequence: the camera's number of the frame that was published in it last.
    """

    index: int
    buffers: Buffers
    buffer_uid: int
    layout: ImageLayout
    generation: int = 0
    state: SlotState = SlotState.FREE
    leases: dict[int, Lease] = field(default_factory=dict)
    fences: list[PendingFence] = field(default_factory=list)
    pins: int = 0
    condemned: bool = False
    since: float = 0.0
    sequence: int = 0

    def __repr__(self) -> str:
        return f'Slot({self.index}, generation {self.generation}, {self.state.value})'


class Lease:
    """The right to use one generation of a slot, until :meth:`BufferPool.release`. Only its pool makes and ends one.

    :param account: whose it is, for quotas and messages.
    :param number: unique in its pool.
    :param since: CLOCK_MONOTONIC second at which it began.

    ``ended``: empty while it is good, then what ended it. ``handed``: its holder has got it; before, it waits. ``twin``: whether it is
    counted, of a holder that has several leases of one frame, of which one is; ``None``: it has no twin, and is counted.
    """

    __slots__ = ('account', 'ended', 'generation', 'handed', 'number', 'pool', 'since', 'slot', 'twin')

    def __init__(self, pool: SlotLending, slot: Slot, generation: int, number: int, account: Account, since: float) -> None:
        self.pool = pool
        self.slot = slot
        self.generation = generation
        self.number = number
        self.account = account
        self.since = since
        self.ended = ''
        self.handed = False
        self.twin: bool | None = None

    @property
    def holder(self) -> str:
        """The name of whoever holds it."""
        return self.account.holder

    def __repr__(self) -> str:
        return f'Lease({self.holder}, slot {self.slot.index}, generation {self.generation}, {self.ended or "good"})'


def close_buffers(buffers: Sequence[DmaBuf]) -> None:
    """Close this process's descriptors and mappings. The memory goes once no device and no other process has it any more."""
    for buffer in buffers:
        # Someone still looks through the mapping, such as a job that was given up: it ends with the last view.
        with contextlib.suppress(BufferError, OSError):
            buffer.close()
