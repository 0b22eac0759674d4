"""What the negotiation's tests share: formats by short names, and a producer that allocates sealed memory and remembers what it did."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.negotiation.collection import BufferCollection
from zc_perception.negotiation.constraints import BufferConstraints, Format
from zc_perception.negotiation.settings import Allocation, AllocationRequest, BufferSettings
from zc_perception.negotiation.token import BufferToken, Participant
from zc_perception.pixel.fourcc import NV12, fourcc_code
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import INVALID, LINEAR

TILED = 3 << 56 | 0x10
X_TILED = 1 << 56 | 1
Y_TILED = 1 << 56 | 2
YUYV = fourcc_code('YUYV')
XR24 = fourcc_code('XR24')
R8 = fourcc_code('R8  ')
SIZE = (64, 48)
SOON_S = 10.0


def f(text: str) -> Format:
    """``NV12 linear``, ``NV12 tiled``, ``XR24 x``, ``NV12 implicit``."""
    name, _, modifier = text.partition(' ')
    modifiers = {'linear': LINEAR, 'tiled': TILED, 'x': X_TILED, 'y': Y_TILED, 'implicit': INVALID}
    return fourcc_code(name.ljust(4)), modifiers[modifier]


def who(name: str, *formats: str, **others: object) -> BufferConstraints:
    """Constraints with formats by short name; none means any."""
    return BufferConstraints(name, formats=tuple(map(f, formats)) or None, **others)


class Producer:
    """An allocator: memory as asked for, unless ``vary`` answers something else."""

    def __init__(self, vary: Callable[[Allocation], Allocation] = lambda allocation: allocation) -> None:
        self.vary = vary
        self.requests: list[AllocationRequest] = []
        self.buffers: list[DmaBuf] = []
        self.released: list[int] = []
        self._lock = threading.Lock()

    def layout(self, request: AllocationRequest) -> ImageLayout:
        linear = request.limits.layout(request.fourcc, request.size, request.placement)
        return linear if LINEAR in request.modifiers else replace(linear, modifier=request.modifiers[0])

    def __call__(self, request: AllocationRequest) -> Allocation:
        heap, number = SealedMemfd(), len(self.requests)
        self.requests.append(request)
        slots = tuple(tuple(heap.allocate(size) for size in request.buffer_sizes()) for _ in range(request.slots))
        own = [buffer for slot in slots for buffer in slot]
        self.buffers += own

        def release() -> None:
            with self._lock:
                self.released.append(number)
            for buffer in own:
                buffer.close()

        return self.vary(Allocation(self.layout(request), slots, release))

    def close(self) -> None:
        """Close what is left."""
        for buffer in self.buffers:
            with suppress(ValueError):
                buffer.close()


class Session:
    """A collection whose participants come by :meth:`join`; everything is closed at the end."""

    def __init__(self, size: tuple[int, int] = SIZE, **options: object) -> None:
        self.producer = Producer()
        self.collection = BufferCollection('camera buffers', size, **options)
        self.first: BufferToken = self.collection.first_token()
        # What participants get their tokens from; closed before the allocation, which it would keep waiting.
        self.spare: BufferToken = self.first.duplicate('spare')
        self.participants: dict[str, Participant] = {}

    def join(self, constraints: BufferConstraints, **options: object) -> Participant:
        """Duplicate, bind, set constraints."""
        participant = self.spare.duplicate(constraints.participant).bind(**options)
        self.participants[constraints.participant] = participant
        participant.set_constraints(constraints)
        return participant

    def late(self, constraints: BufferConstraints, **options: object) -> Participant:
        """The same after the allocation."""
        participant = self.collection.attach_token(constraints.participant).bind(**options)
        self.participants[constraints.participant] = participant
        participant.set_constraints(constraints)
        return participant

    def camera(self, **others: object) -> Participant:
        """The first token's own participant."""
        participant = self.first.bind('camera')
        self.participants['camera'] = participant
        participant.set_constraints(who('camera', 'NV12 linear', **{'slots': 2, **others}))
        return participant

    def allocate(self) -> BufferSettings:
        self.spare.close()
        return self.collection.allocate(self.producer, SOON_S)

    def close_handles(self) -> None:
        """Everybody lets go, and the memory comes back unless something else holds it."""
        for participant in self.participants.values():
            participant.close()
        self.spare.close()
        self.first.close()
        self.collection.close()

    def close(self) -> None:
        self.close_handles()
        self.producer.close()


__all__ = ['NV12', 'Producer', 'Session', 'f', 'who']
