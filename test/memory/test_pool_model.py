"""The pool against a model of itself, driven by hypothesis: no slot lost, none handed out twice, stale leases always refused."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from zc_perception.errors import StaleFrameError
from zc_perception.memory.fence import EventFence
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.pool import BufferPool, Lease, Slot, SlotState
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

LAYOUT = compute_layout(NV12, 16, 16)
SLOTS = 3
QUOTA = 2
HOLDERS = ('npu', 'overlay', 'limited')


class PoolModel(RuleBasedStateMachine):
    """Keeps, beside the pool, who should hold what."""

    leases = Bundle('leases')
    dead_leases = Bundle('dead_leases')
    descriptors = Bundle('descriptors')

    def __init__(self) -> None:
        super().__init__()
        heap = SealedMemfd()
        self.pool = BufferPool(
            LAYOUT, lambda: (heap.allocate(LAYOUT.buffer_size(0)),), SLOTS, name='camera', release_timeout_s=600.0, on_free=self.told_free
        )
        self.pool.set_quota('limited', QUOTA)
        self.freed = 0
        self.filling: dict[Slot, int] = {}
        self.held: dict[Slot, dict[int, Lease]] = {}
        self.fences: dict[Slot, list[EventFence]] = {}
        self.last_generation = dict.fromkeys(self.pool.slots, 0)
        self.abandoned: list[Lease] = []
        self.frees = 0

    def told_free(self, slot: Slot) -> None:
        self.freed += 1

    def busy(self) -> set[Slot]:
        return set(self.filling) | set(self.held) | set(self.fences)

    def drop(self, lease: Lease) -> None:
        del self.held[lease.slot][lease.number]
        self.settle(lease.slot)

    def settle(self, slot: Slot) -> None:
        """The slot's last holder may have gone, or a fence may have signalled and been looked at."""
        if self.held.get(slot):
            return
        self.held.pop(slot, None)
        waiting = [fence for fence in self.fences.get(slot, []) if not fence.wait(0.0)]
        self.fences.pop(slot, None)
        if waiting:
            self.fences[slot] = waiting
        else:
            self.frees += 1

    def collected(self) -> None:
        while self.abandoned:
            self.drop(self.abandoned.pop(0))
        for slot in [s for s in self.fences if s not in self.held]:
            self.settle(slot)

    @rule(target=descriptors)
    def acquire(self) -> tuple[Slot, int] | None:
        self.collected()
        slot = self.pool.acquire()
        if len(self.busy()) == SLOTS:
            assert slot is None
            return None
        assert slot is not None and slot not in self.busy()
        assert slot.generation > self.last_generation[slot]
        self.last_generation[slot] = self.filling[slot] = slot.generation
        return slot, slot.generation

    @rule(target=leases, descriptor=descriptors, holder=st.sampled_from(HOLDERS))
    def lease(self, descriptor: tuple[Slot, int] | None, holder: str) -> Lease | None:
        if descriptor is None:
            return None
        slot, generation = descriptor
        current = self.last_generation[slot] == generation and (slot in self.filling or slot in self.held)
        if not current:
            with pytest.raises(StaleFrameError):
                self.pool.lease(slot, generation, holder)
            return None
        holding = sum(lease.holder == holder for leases in self.held.values() for lease in leases.values())
        lease = self.pool.lease(slot, generation, holder)
        if holder == 'limited' and holding >= QUOTA:
            assert lease is None
            return None
        assert lease is not None and lease.holder == holder
        self.filling.pop(slot, None)
        self.held.setdefault(slot, {})[lease.number] = lease
        return lease

    @rule(target=dead_leases, lease=consumes(leases), with_fence=st.booleans(), signalled=st.booleans())
    def release(self, lease: Lease | None, with_fence: bool, signalled: bool) -> Lease | None:
        if lease is None:
            return None
        fence = EventFence() if with_fence else None
        if fence is not None:
            self.fences.setdefault(lease.slot, []).append(fence)
            if signalled:
                fence.signal()
        # The model looks at the fence before the pool, which closes it.
        self.drop(lease)
        self.pool.release(lease, fence)
        return lease

    @rule(target=dead_leases, lease=consumes(leases))
    def abandon(self, lease: Lease | None) -> Lease | None:
        if lease is None:
            return None
        self.abandoned.append(lease)
        self.pool.abandon(lease)
        # The lease is dropped by the next look; until then it is still good.
        self.collected()
        self.pool.collect()
        return lease

    @rule(lease=dead_leases)
    def release_again(self, lease: Lease | None) -> None:
        if lease is not None:
            with pytest.raises(StaleFrameError):
                self.pool.release(lease)

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        if self.filling:
            slot = data.draw(st.sampled_from(sorted(self.filling, key=lambda s: s.index)))
            del self.filling[slot]
            self.frees += 1
            self.pool.discard(slot)

    @rule(data=st.data())
    def signal(self, data: st.DataObject) -> None:
        pending = [fence for _, fences in sorted(self.fences.items(), key=lambda item: item[0].index) for fence in fences]
        if pending:
            data.draw(st.sampled_from(pending)).signal()
            self.collected()
            self.pool.collect()

    @invariant()
    def nothing_is_lost(self) -> None:
        statistics = self.pool.statistics()
        held = sum(map(len, self.held.values()))
        assert sum(statistics.holders.values()) == held
        waiting = len([s for s in self.fences if s not in self.held])
        expected = {
            SlotState.FILLING: len(self.filling),
            SlotState.LEASED: len(self.held),
            SlotState.WAITING: waiting,
            SlotState.FREE: SLOTS - len(self.filling) - len(self.held) - waiting,
        }
        assert statistics.states == {state: count for state, count in expected.items() if count}
        assert self.freed == self.frees

    def teardown(self) -> None:
        for leases in self.held.values():
            for lease in leases.values():
                self.pool.release(lease)
        for fences in self.fences.values():
            for fence in fences:
                fence.signal()
        self.pool.collect()
        if not self.filling:
            assert self.pool.statistics().states == {SlotState.FREE: SLOTS}
        self.pool.close()


TestPoolModel = PoolModel.TestCase
TestPoolModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
