"""One slot of a producer as a consumer knows it, and the leases on it in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from zc_perception.frame import Frame, FrameData, Header
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import Fence
from zc_perception.memory.holders import UNLIMITED
from zc_perception.memory.pool import close_buffers
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.layout import ImageLayout

if TYPE_CHECKING:
    from zc_perception.link.shared_memory.remote_slots import RemoteSlots
    from zc_perception.memory.pool import Lease

_new = object.__new__


class RemoteSlot:
    """A slot of the producer's pool, mapped at most once for as long as both ends use it.

    :param generation: the newest that came; while ``leases`` isn't 0, the one that is held here.
    :param sequence: of the frame in it.
    :param since_ns: CLOCK_MONOTONIC, when that was published.
    """

    __slots__ = ('_constants', 'buffers', 'fences', 'generation', 'leases', 'retired', 'sequence', 'since_ns', 'spare', 'uid')

    def __init__(self, uid: int, layout: ImageLayout, colorimetry: Colorimetry, buffers: tuple[DmaBuf, ...]) -> None:
        self.uid = uid
        self.buffers = buffers
        self._constants = {'layout': layout, 'buffers': buffers, 'colorimetry': colorimetry, 'buffer_uid': uid}
        self.generation = -1
        self.leases = 0
        self.fences: list[Fence] = []
        self.retired = False
        self.sequence = self.since_ns = 0
        self.spare: Frame | None = None

    def prepare(self, owner: RemoteSlots) -> Frame:
        """The slot's next Frame, but for what a FRAME message says: made while nobody waits, filled in when one comes. No lease yet."""
        data = _new(FrameData)
        data.__dict__.update(self._constants, header=_new(Header))
        lease = RemoteLease(owner, self, -1, owner.name)
        lease.ended = True
        return Frame(data, cast('Lease', lease))

    def close(self) -> None:
        """Nobody uses it any more: unmap and close."""
        spare, self.spare = self.spare, None
        if spare is not None:
            spare._lease = None
        close_buffers(self.buffers)


class RemoteLease:
    """The right to use one generation of a remote slot, in this process. The producer sends no more than the window."""

    account = UNLIMITED

    __slots__ = ('ended', 'generation', 'holder', 'pool', 'slot')

    def __init__(self, pool: RemoteSlots, slot: RemoteSlot, generation: int, holder: str) -> None:
        self.pool = pool
        self.slot = slot
        self.generation = generation
        self.holder = holder
        self.ended = False
