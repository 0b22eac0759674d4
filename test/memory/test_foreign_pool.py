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
Slots over somebody else's buffers.

Known again by what they are, however many there turn out to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from zc_perception.errors import ConfigError, LayoutError
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.fence import EventFence
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.pool import (
    Buffers,
    ForeignBufferPool,
    HeldBuffers,
    identities_of,
    Slot,
    SlotState,
)
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

pytestmark = pytest.mark.usefixtures('no_fd_leak')

LAYOUT = compute_layout(NV12, 64, 48)


def buffers() -> Buffers:
    return (SealedMemfd().allocate(LAYOUT.buffer_size(0)),)


def again(of: Buffers) -> Buffers:
    """Return the same memory, by other descriptors."""
    return tuple(DmaBuf(buffer.dup(), BufferKind.MEMFD, 'memfd') for buffer in of)


@pytest.fixture
def make(no_fd_leak: None) -> Iterator[Callable[..., ForeignBufferPool]]:
    pools: list[ForeignBufferPool] = []

    def pool(
        known: list[Buffers], freed: list[Slot] | None = None, **options: int
    ) -> ForeignBufferPool:
        freed = [] if freed is None else freed
        pools.append(
            ForeignBufferPool(LAYOUT, known, name='camera', on_free=freed.append, **options)
        )
        return pools[-1]

    yield pool
    for made in pools:
        made.close()


def test_an_unknown_buffer_gets_a_slot_of_its_own_until_there_are_enough(
    make: Callable[..., ForeignBufferPool],
) -> None:
    freed: list[Slot] = []
    pool = make([buffers(), buffers()], freed, most=3)
    ended: list[int] = []
    pool.add_retire_listener(lambda slot: ended.append(slot.buffer_uid))
    new = buffers()
    slot = pool.adopt(new)
    assert (
        slot is not None
        and slot.index == 2
        and slot.buffers is new
        and pool.slot_of(identities_of(new)) is slot
    )
    assert (pool.replaced, ended, len(pool.slots)) == (0, [], 3)
    # Full: the free slot that was unused for the longest time makes room.
    for index in (0, 2, 1):
        used = pool.acquire(index)
        assert used is not None
        pool.discard(used)
    oldest, before = pool.slots[0], pool.slots[0].generation
    old = identities_of(oldest.buffers)
    fresh = pool.adopt(buffers())
    assert (
        fresh is not None
        and fresh.index == 0
        and ended == [oldest.buffer_uid]
        and pool.replaced == 1
    )
    assert fresh.generation >= before and fresh.buffer_uid != oldest.buffer_uid
    assert pool.slot_of(old) is None and oldest.state is SlotState.RETIRED
    assert pool.statistics().states == {SlotState.FREE: 3}


def test_what_is_in_use_is_never_replaced(make: Callable[..., ForeignBufferPool]) -> None:
    pool = make([buffers()], most=1)
    slot = pool.acquire(0)
    assert slot is not None
    lease = pool.lease(slot, slot.generation, 'npu')
    assert lease is not None and pool.adopt(buffers()) is None
    assert pool.statistics().exhausted == 1 and pool.slots == (slot,)
    pool.release(lease)
    assert pool.adopt(buffers()) is not None


def test_a_retired_place_is_taken_first(make: Callable[..., ForeignBufferPool]) -> None:
    pool = ForeignBufferPool(
        LAYOUT, [buffers(), buffers()], name='camera', on_free=lambda slot: None
    )
    pool._release_timeout_s = 0.0
    slot = pool.acquire(1)
    assert slot is not None
    lease = pool.lease(slot, slot.generation, 'npu')
    assert lease is not None
    retired = identities_of(slot.buffers)
    pool.release(lease, EventFence())
    pool.collect()
    assert slot.state is SlotState.RETIRED and pool.slot_of(retired) is None
    fresh = pool.adopt(buffers())
    assert (
        fresh is not None
        and fresh.index == 1
        and len(pool.slots) == 2
        and pool.acquire(1) is fresh
    )
    pool.discard(fresh)
    pool.close()


def test_frames_must_not_share_buffers(make: Callable[..., ForeignBufferPool]) -> None:
    known = [buffers(), buffers()]
    pool = make(known)
    with pytest.raises(LayoutError, match='must not share buffers'):
        pool.adopt((*again(known[0]), *buffers()))
    assert len(pool.slots) == 2
    first = buffers()
    with pytest.raises(LayoutError, match='share the buffer'):
        ForeignBufferPool(LAYOUT, [first, again(first)], name='camera', on_free=lambda slot: None)


def test_a_layout_that_does_not_fit_is_refused_and_closed(
    make: Callable[..., ForeignBufferPool],
) -> None:
    small = (SealedMemfd().allocate(1),)
    pool = make([buffers()])
    with pytest.raises(LayoutError, match='plane'):
        pool.adopt(small)
    assert len(pool.slots) == 1
    with pytest.raises(ConfigError, match='at least 1'):
        ForeignBufferPool(LAYOUT, [], name='camera', on_free=lambda slot: None)


class Held:
    """A pool whose buffers go back to their owner, and which did."""

    def __init__(self) -> None:
        self.buffers = HeldBuffers()
        self.given_back: list[str] = []
        self.pool = ForeignBufferPool(
            LAYOUT, [buffers(), buffers()], name='camera', on_free=self.buffers.free
        )
        self.pool.add_retire_listener(self.buffers.ended)

    def publish(self, index: int, name: str) -> Slot:
        slot = self.pool.acquire(index)
        assert slot is not None
        self.buffers.hold(slot, lambda: self.given_back.append(name))
        return slot


def test_a_buffer_goes_back_to_its_owner_once_when_the_last_one_has_released_it() -> None:
    held = Held()
    slot = held.publish(0, 'first')
    leases = [held.pool.lease(slot, slot.generation, holder) for holder in ('npu', 'viewer')]
    assert held.buffers.hold_too(slot, lambda: held.given_back.append('again'))
    for lease in leases:
        assert lease is not None and held.given_back == []
        held.pool.release(lease)
    assert held.given_back == ['first', 'again']
    assert not held.buffers.hold_too(slot, lambda: held.given_back.append('too late'))
    held.pool.discard(held.publish(0, 'unsent'))
    assert held.given_back == ['first', 'again', 'unsent']
    held.pool.close()


def test_a_buffer_that_a_device_may_still_read_goes_back_at_the_end() -> None:
    held = Held()
    held.pool._release_timeout_s = 0.0
    slot = held.publish(1, 'late')
    lease = held.pool.lease(slot, slot.generation, 'npu')
    assert lease is not None
    held.pool.release(lease, EventFence())
    held.pool.collect()
    assert slot.state is SlotState.RETIRED and held.given_back == []
    held.buffers.begin_close()
    held.pool.close()
    held.buffers.end_close()
    assert held.given_back == ['late']


def test_a_buffer_that_is_out_when_the_pool_closes_goes_back_when_it_comes_in() -> None:
    held = Held()
    slot = held.publish(0, 'out')
    lease = held.pool.lease(slot, slot.generation, 'npu')
    assert lease is not None
    held.buffers.begin_close()
    held.pool.close()
    held.buffers.end_close()
    assert held.given_back == []
    held.pool.release(lease)
    assert held.given_back == ['out']
