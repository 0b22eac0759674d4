"""Where a pool's slots come from: fresh buffers of one layout, each with a name of its own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

from zc_perception.errors import ConfigError, LayoutError
from zc_perception.memory.slot import Buffers, Slot, close_buffers
from zc_perception.pixel.layout import ImageLayout, validate_layout

Allocate = Callable[[], Buffers]

MAX_SLOTS = 64


def mapped(allocate: Allocate) -> Allocate:
    """*allocate*, which maps the buffers for the CPU as well, for a producer that uses them by the CPU: a mapping takes a descriptor, and
    at the first use of a slot there may be none left.
    """

    def allocate_mapped() -> Buffers:
        buffers = allocate()
        try:
            for buffer in buffers:
                buffer.mapping()
        except BaseException:
            close_buffers(buffers)
            raise
        return buffers

    return allocate_mapped


class SlotSource:
    """Makes slots. Every configuration of a pool has one; all of them share the names.

    :param uid: the upper half of every ``buffer_uid`` of the pool.
    :param serials: the lower half of the next one.
    """

    def __init__(self, pool_name: str, layout: ImageLayout, allocate: Allocate, uid: int, serials: Iterator[int]) -> None:
        self.pool_name = pool_name
        self.layout = layout
        self.uid = uid
        self._allocate = allocate
        self._serials = serials

    @classmethod
    def first(cls, pool_name: str, layout: ImageLayout, allocate: Allocate) -> SlotSource:
        """That of a new pool, with a random *uid*: no two pools of a host use the same names."""
        return cls(pool_name, layout, allocate, random.SystemRandom().getrandbits(31), itertools.count(1))

    def next(self, layout: ImageLayout, allocate: Allocate) -> SlotSource:
        """That of the pool's next configuration."""
        return SlotSource(self.pool_name, layout, allocate, self.uid, self._serials)

    def made(self, slot: Slot) -> bool:
        """Whether *slot* is of this pool, of whichever configuration."""
        return slot.buffer_uid >> 32 == self.uid

    def slot(self, index: int) -> Slot:
        """One slot with fresh buffers.

        :raises AllocationError: there is no memory; or whatever else the allocator raises.
        :raises LayoutError: the layout doesn't fit the buffers.
        """
        buffers = self._allocate()
        try:
            validate_layout(self.layout, [buffer.size for buffer in buffers])
        except BaseException:
            close_buffers(buffers)
            raise
        return Slot(index, buffers, self.uid << 32 | next(self._serials), self.layout)

    def _check_own_memory(self, made: list[Slot]) -> None:
        """Two slots in the same memory would each write the other's frames."""
        own = {buffer.identity for buffer in made[-1].buffers}
        for other in made[:-1]:
            if shared := own & {buffer.identity for buffer in other.buffers}:
                raise LayoutError(
                    f'pool of {self.pool_name}: slots {other.index} and {made[-1].index} share the buffer with inode '
                    f'{min(identity.inode for identity in shared)}; the allocator has to make new ones for each slot'
                )

    def slots(self, count: int) -> list[Slot]:
        """All slots of a configuration, or none: what was allocated before a failure is closed again. Raises as :meth:`slot`.

        :raises ConfigError: *count* is not 1 to 64.
        """
        if not 1 <= count <= MAX_SLOTS:
            raise ConfigError(
                f'pool of {self.pool_name}: {count} slots; at least 1 is needed, 3 or more are sensible, {MAX_SLOTS} are the most'
            )
        made: list[Slot] = []
        try:
            for index in range(count):
                made.append(self.slot(index))
                self._check_own_memory(made)
        except BaseException:
            for slot in made:
                close_buffers(slot.buffers)
            raise
        return made
