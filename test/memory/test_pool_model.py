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

"""The pool against an independent model of it, driven by hypothesis."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
import itertools
from queue import Empty, Queue
import random
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    RuleBasedStateMachine,
)
from pool_kit import closes, CountingAllocator, SMALL
import pytest
from waiting import eventually, until

from zc_perception import backoff
from zc_perception.errors import AllocationError, ConfigError, StaleFrameError
from zc_perception.memory import pool as pool_module
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import EventFence, Waker
from zc_perception.memory.pool import BufferPool, Lease, Slot, SlotState

HOLDERS = ('npu', 'overlay', 'limited')
TIMEOUT_S = 600.0
Descriptor = Any  # slot and generation at acquire, or hypothesis' multiple() for none


@dataclass
class Expected:
    """The model's state of a slot, which never reads the pool's own state."""

    slot: Slot
    index: int
    generation: int
    state: str = 'free'
    holders: dict[int, str] = field(default_factory=dict)
    fences: list[tuple[EventFence, float]] = field(default_factory=list)
    condemned: bool = False
    used: float = 0.0


class PoolModel(RuleBasedStateMachine):
    leases = Bundle('leases')
    dead_leases = Bundle('dead_leases')
    descriptors = Bundle('descriptors')

    @initialize(slots=st.integers(1, 4))
    def build(self, slots: int) -> None:
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        self.patches = [
            mock.patch.object(module, 'time', clock) for module in (pool_module, backoff)
        ]
        # Here collect() does the work of a closed pool's reaper; test_pool.py tests the thread.
        self.patches.append(
            mock.patch.object(pool_module, 'REAPER', SimpleNamespace(watch=lambda pool: Waker()))
        )
        for patch in self.patches:
            patch.start()
        self.memory = CountingAllocator()
        self.freed, self.heard = Counter[int](), Counter[int]()
        self.pool = BufferPool(
            SMALL,
            self.memory,
            slots,
            name='camera',
            release_timeout_s=TIMEOUT_S,
            on_free=lambda slot: self.freed.update([slot.buffer_uid]),
        )
        self.pool.add_retire_listener(self.on_end)
        self.top: dict[int, int] = {}
        self.expected_frees: Counter[int] = Counter()
        self.abandoned: list[Lease] = []
        self.unsignalled: list[EventFence] = []
        self.quotas: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.handed: set[int] = set()
        self.retired = 0
        self.closed = False
        self.inserted: list[CountingAllocator] = []
        self.impossible = 0
        self.current = [Expected(slot, index, 0) for index, slot in enumerate(self.pool.slots)]
        self.all = {expected.slot.buffer_uid: expected for expected in self.current}

    def on_end(self, slot: Slot) -> None:
        assert closes(slot) == 0, 'the buffers are open while listeners hear of their end'
        self.heard[slot.buffer_uid] += 1

    def settle(self, slot: Expected) -> None:
        """Compute the next state of a slot that no holder has."""
        if slot.holders or slot.state in ('free', 'ended'):
            return
        slot.fences = [
            (fence, deadline) for fence, deadline in slot.fences if fence in self.unsignalled
        ]
        if (slot.condemned and not slot.fences) or any(
            deadline < self.now for _, deadline in slot.fences
        ):
            slot.state = 'ended'
            self.retired += 1
        elif slot.fences:
            slot.state = 'waiting'
        elif self.closed:
            slot.state = 'ended'
        else:
            slot.state = 'free'
            self.expected_frees[slot.slot.buffer_uid] += 1

    def collected(self) -> None:
        """Model what every look at the pool does: abandoned leases, fences, replacements."""
        # longer than the allocator's longest back-off; 40 such steps are far below a timeout
        self.now += 1.5
        while self.abandoned:
            self.drop(self.abandoned.pop(0))
        for slot in list(self.all.values()):
            if slot.state == 'waiting':
                self.settle(slot)
        self.pool.collect()
        if self.closed or self.memory.failure is not None:
            return
        for index, slot in enumerate(self.current):
            if slot.state == 'ended':
                fresh = self.pool.slots[index]
                assert fresh.buffer_uid not in self.all, 'a retired slot is replaced, never reused'
                self.current[index] = self.all[fresh.buffer_uid] = Expected(
                    fresh, index, slot.generation
                )
                self.expected_frees[fresh.buffer_uid] += 1

    def drop(self, lease: Lease) -> None:
        slot = self.all[lease.slot.buffer_uid]
        if slot.holders.pop(lease.number, None) is not None:
            self.settle(slot)

    def check_acquired(self, slot: Slot, wanted: Expected) -> Descriptor:
        assert slot is wanted.slot
        assert slot.generation > self.top.get(slot.index, 0), (
            'generations only grow, through replacements'
        )
        self.top[slot.index] = wanted.generation = slot.generation
        wanted.state, wanted.used = 'filling', self.now
        return slot, slot.generation

    @rule(target=descriptors)
    def acquire(self) -> Descriptor:
        self.collected()
        free = [slot for slot in self.current if slot.state == 'free']
        slot = self.pool.acquire()
        if self.closed or not free:
            assert slot is None
            return multiple()
        assert slot is not None
        return self.check_acquired(slot, free[0])

    @rule(target=descriptors, index=st.integers(0, 4))
    def acquire_this_one(self, index: int) -> Descriptor:
        self.collected()
        if index >= len(self.current):
            with pytest.raises(ConfigError, match='no slot'):
                self.pool.acquire(index)
            return multiple()
        slot = self.pool.acquire(index)
        if self.closed or self.current[index].state != 'free':
            assert slot is None
            return multiple()
        assert slot is not None
        return self.check_acquired(slot, self.current[index])

    @rule(target=leases, descriptor=descriptors, holder=st.sampled_from(HOLDERS))
    def lease(self, descriptor: Descriptor, holder: str) -> Lease:
        slot, generation = descriptor
        expected = self.all[slot.buffer_uid]
        if expected.generation != generation or expected.state not in ('filling', 'leased'):
            with pytest.raises(StaleFrameError):
                self.pool.lease(slot, generation, holder)
            return multiple()
        holding = sum(
            name == holder for known in self.all.values() for name in known.holders.values()
        )
        lease = self.pool.lease(slot, generation, holder)
        if holding >= self.quotas.get(holder, 1000):
            assert lease is None
            return multiple()
        assert lease is not None
        expected.state = 'leased'
        expected.holders[lease.number] = holder
        return lease

    @rule(target=leases, holder=st.sampled_from(HOLDERS))
    def acquire_and_lease(self, holder: str) -> Lease:
        """Do both in one step, so that short runs reach more states."""
        descriptor = self.acquire()
        return self.lease(descriptor, holder) if isinstance(descriptor, tuple) else descriptor

    @rule(
        target=dead_leases,
        lease=consumes(leases),
        fence=st.sampled_from(('none', 'pending', 'signalled', 'failed')),
    )
    def release(self, lease: Lease, fence: str) -> Lease:
        slot = self.all[lease.slot.buffer_uid]
        given = None if fence == 'none' else EventFence()
        if given is not None:
            if fence == 'pending':
                self.unsignalled.append(given)
            else:
                given.signal(RuntimeError('device reset') if fence == 'failed' else None)
        if lease.number not in slot.holders:  # revoked
            with pytest.raises(StaleFrameError, match='revoked'):
                self.pool.release(lease, given)
            if given in self.unsignalled:
                self.unsignalled.remove(given)
            return lease
        if given in self.unsignalled:
            slot.fences.append((given, self.now + TIMEOUT_S))
        self.drop(lease)
        self.pool.release(lease, given)
        return lease

    @rule(target=dead_leases, lease=consumes(leases), look=st.booleans())
    def abandon(self, lease: Lease, look: bool) -> Lease:
        self.abandoned.append(lease)
        self.pool.abandon(lease)
        if look:
            self.collected()
        return lease

    @rule(lease=dead_leases)
    def release_again(self, lease: Lease) -> None:
        if lease not in self.abandoned:
            with pytest.raises(StaleFrameError):
                self.pool.release(lease)

    @rule(descriptor=descriptors)
    def discard(self, descriptor: Descriptor) -> None:
        slot, generation = descriptor
        expected = self.all[slot.buffer_uid]
        if expected.state == 'ended':
            self.pool.discard(slot, generation)
        elif expected.state != 'filling' or expected.generation != generation:
            with pytest.raises(StaleFrameError):
                self.pool.discard(slot, generation)
        else:
            self.pool.discard(slot, generation)
            self.settle(expected)

    @precondition(lambda self: self.unsignalled)
    @rule(data=st.data(), failed=st.booleans())
    def signal(self, data: st.DataObject, failed: bool) -> None:
        fence = data.draw(st.sampled_from(self.unsignalled))
        self.unsignalled.remove(fence)
        fence.signal(RuntimeError('device reset') if failed else None)
        self.collected()

    @precondition(lambda self: self.unsignalled)
    @rule()
    def fences_time_out(self) -> None:
        self.now += 2 * TIMEOUT_S
        self.collected()

    @rule(
        holder=st.sampled_from(HOLDERS),
        quarantine=st.sampled_from(('none', 'pending', 'signalled', 'impossible')),
    )
    def revoke(self, holder: str, quarantine: str) -> None:
        hit = [slot for slot in self.all.values() if holder in slot.holders.values()]
        made: dict[int, EventFence] = {}

        def make(buffers: Sequence[DmaBuf]) -> EventFence:
            if quarantine == 'impossible':
                raise OSError('no descriptor left')
            (uid,) = (slot.slot.buffer_uid for slot in hit if slot.slot.buffers == buffers)
            assert uid not in made, 'one quarantine for each slot'
            made[uid] = EventFence()
            if quarantine == 'signalled':
                made[uid].signal()
            return made[uid]

        count = sum(name == holder for slot in hit for name in slot.holders.values())
        assert (
            self.pool.revoke(holder, None if quarantine == 'none' else make, timeout_s=TIMEOUT_S)
            == count
        )
        assert len(made) == (len(hit) if quarantine in ('pending', 'signalled') else 0), (
            'one quarantine for each slot'
        )
        self.quotas.pop(holder, None)
        self.numbers.pop(holder, None)
        if quarantine == 'impossible' and hit:
            self.impossible += len(hit)
            assert 'no descriptor left' in self.pool.statistics().last_failure
        for slot in hit:
            slot.holders = {
                number: name for number, name in slot.holders.items() if name != holder
            }
            slot.condemned |= quarantine == 'impossible'
            if quarantine == 'pending':
                fence = made[slot.slot.buffer_uid]
                slot.fences.append((fence, self.now + TIMEOUT_S))
                self.unsignalled.append(fence)
            self.settle(slot)

    @rule(most=st.integers(1, 5))
    def insert(self, most: int) -> None:
        other = CountingAllocator()
        before = list(self.pool.slots)
        fresh, ended = self.pool.insert(other(), most)
        self.inserted.append(other)
        missing = [slot.index for slot in self.current if slot.state == 'ended']
        free = [slot for slot in self.current if slot.state == 'free']
        if self.closed or not (missing or len(self.current) < most or free):
            assert (fresh, ended) == (None, None) and other.closes == [1]
            return
        assert (
            fresh is not None
            and fresh.buffer_uid not in self.all
            and fresh.buffers[0] is other.made[0]
        )
        if missing:
            assert (fresh.index, ended) == (missing[0], None)
        elif len(self.current) < most:
            assert (fresh.index, ended) == (len(self.current), None)
        else:
            oldest = min(free, key=lambda slot: slot.used)
            assert ended is before[fresh.index] and self.all[ended.buffer_uid].used == oldest.used
            self.all[ended.buffer_uid].state = 'ended'
        generation = self.top.get(fresh.index, 0)
        expected = self.all[fresh.buffer_uid] = Expected(fresh, fresh.index, generation)
        self.current[slice(fresh.index, fresh.index + 1)] = [expected]

    @rule(gone=st.booleans())
    def memory_runs_out_or_comes_back(self, gone: bool) -> None:
        self.memory.failure = AllocationError('no memory') if gone else None

    @rule(
        holder=st.sampled_from(HOLDERS),
        number=st.none() | st.integers(0, 3),
        depth=st.integers(0, 2),
    )
    def set_quota(self, holder: str, number: int | None, depth: int) -> None:
        self.pool.set_quota(holder, number, depth=depth)
        self.quotas.pop(holder, None)
        self.numbers.pop(holder, None)
        if number is not None:
            self.quotas[holder], self.numbers[holder] = number + depth, number

    @rule(lease=leases)
    def hand_out(self, lease: Lease) -> None:
        """No holder may exceed its quota, however many frames wait for it."""
        if (
            lease.number not in self.all[lease.slot.buffer_uid].holders
            or lease.number in self.handed
        ):
            assert self.pool.hand_out(lease)
            return
        held = sum(
            number in self.handed
            for slot in self.all.values()
            for number, name in slot.holders.items()
            if name == lease.holder
        )
        if held < self.numbers.get(lease.holder, 1000):
            assert self.pool.hand_out(lease)
            self.handed.add(lease.number)
        else:
            assert not self.pool.hand_out(lease)

    @precondition(lambda self: not self.closed)
    @rule(really=st.integers(0, 9))
    def close(self, really: int) -> None:
        if really:  # most runs are about an open pool
            return
        self.collected()
        self.closed = True
        self.pool.close()
        self.pool.close()
        for slot in self.all.values():
            if slot.state in ('free', 'filling'):
                slot.state = 'ended'

    @invariant()
    def the_pool_is_as_the_model_says(self) -> None:
        if not hasattr(self, 'pool'):
            return
        statistics = self.pool.statistics()
        assert statistics.states == Counter(
            SlotState(slot.state.replace('ended', 'retired')) for slot in self.current
        )
        assert statistics.slots == len(self.current)
        assert statistics.holders == Counter(
            name for slot in self.all.values() for name in slot.holders.values()
        )
        assert (statistics.quotas, statistics.retired) == (self.quotas, self.retired)
        for uid, slot in self.all.items():
            assert closes(slot.slot) == (slot.state == 'ended'), (
                f'{slot}: its buffers are closed once, at its end'
            )
            assert self.heard[uid] == (slot.state == 'ended'), f'{slot}: told of its end once'
        assert self.freed == self.expected_frees
        assert statistics.failures >= self.impossible

    def teardown(self) -> None:
        if not hasattr(self, 'pool'):
            return
        self.collected()
        self.pool.close()
        for slot in list(self.all.values()):
            for lease in list(slot.slot.leases.values()):
                self.pool.release(lease)
        for fence in self.unsignalled:
            fence.signal()
        self.pool.collect()
        for patch in self.patches:
            patch.stop()
        for memory in (self.memory, *self.inserted):
            assert memory.closes == [1] * len(memory.made), (
                'at the end every buffer ever made is closed, once'
            )


TestPoolModel = PoolModel.TestCase
TestPoolModel.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


# Producers, consumers, devices and an administrator use one pool at once.

SECONDS = 1.5
Entry = tuple[int, str, int, int]


@pytest.fixture
def threads_take_turns_often(no_fd_leak: None) -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    yield
    sys.setswitchinterval(interval)


class Stress:
    """Fills every frame's pixels with its own number."""

    def __init__(self, slots: int, seed: int) -> None:
        self.memory = CountingAllocator()
        self.pool = BufferPool(SMALL, self.memory, slots, name='camera', release_timeout_s=60.0)
        self.heard: Counter[int] = Counter()
        self.heard_lock = threading.Lock()
        self.pool.add_retire_listener(self.hear)
        # Not SimpleQueue: before Python 3.13, one of two threads waiting there may ignore its
        # timeout and wait for ever.
        self.frames: Queue[tuple[Lease, int]] = Queue()
        self.jobs: Queue[tuple[Slot, int, EventFence]] = Queue()
        self.tags = itertools.count(1)
        self.order = itertools.count()
        self.history: list[Entry] = []
        self.errors: list[str] = []
        self.stop = threading.Event()
        self.seed = seed

    def hear(self, slot: Slot) -> None:
        with self.heard_lock:
            self.heard[slot.buffer_uid] += 1
        if closes(slot):
            self.errors.append(f'{slot} was closed before its listeners heard of it')

    def record(self, what: str, slot: Slot, generation: int) -> None:
        self.history.append((next(self.order), what, slot.buffer_uid, generation))

    def check(self, slot: Slot, tag: int, who: str) -> None:
        found = int.from_bytes(slot.buffers[0].mapping()[:8], 'little')
        if found != tag:
            self.errors.append(f'{who}: {slot} holds frame {found}, not {tag}')

    def produce(self, choice: random.Random) -> None:
        while not self.stop.is_set():
            slot = self.pool.acquire(wait_s=0.05) if choice.random() < 0.5 else self.pool.acquire()
            if slot is None:
                continue
            generation, tag = slot.generation, next(self.tags)
            self.record('acquired', slot, generation)
            slot.buffers[0].mapping()[:8] = tag.to_bytes(8, 'little')
            self.check(slot, tag, 'producer')
            self.record('given', slot, generation)
            if choice.random() < 0.1:
                self.pool.discard(slot, generation)
                continue
            lease = self.pool.lease(slot, generation, 'camera')
            assert lease is not None
            for holder in choice.sample(('npu', 'overlay', 'mortal'), choice.randint(0, 3)):
                other = self.pool.lease(slot, generation, holder)
                if other is not None:
                    self.frames.put((other, tag))
            self.check(slot, tag, 'producer')
            self.pool.release(lease)

    def consume(self, choice: random.Random) -> None:
        while not self.stop.is_set() or not self.frames.empty():
            try:
                lease, tag = self.frames.get(timeout=0.01)
            except Empty:
                continue
            if lease.holder != 'mortal':  # a mortal holder's lease may be revoked
                self.check(lease.slot, tag, lease.holder)
            turn = choice.random()
            try:
                if turn < 0.4:
                    self.pool.release(lease)
                elif turn < 0.7 and lease.holder != 'mortal':
                    fence = EventFence()
                    slot = lease.slot
                    self.pool.release(lease, fence)
                    self.jobs.put((slot, tag, fence))
                else:
                    self.pool.abandon(lease)
            except StaleFrameError as error:
                if lease.holder != 'mortal':
                    self.errors.append(str(error))

    def finish_jobs(self, choice: random.Random) -> None:
        """Simulate devices: read the pixels until just before their fence signals."""
        while not self.stop.is_set() or not self.jobs.empty():
            try:
                slot, tag, fence = self.jobs.get(timeout=0.01)
            except Empty:
                continue
            self.check(slot, tag, 'device')
            fence.signal(RuntimeError('device reset') if choice.random() < 0.1 else None)

    def administrate(self, choice: random.Random) -> None:
        while not self.stop.wait(0.01):
            turn = choice.random()
            if turn < 0.4:
                self.pool.insert(self.memory(), choice.randint(2, 5))
            elif turn < 0.7:
                self.pool.revoke('mortal', choice.choice((None, self.signalled, self.impossible)))
            elif turn < 0.9:
                self.pool.set_quota('overlay', choice.choice((None, 1, 2)))
            else:
                statistics = self.pool.statistics()
                if sum(statistics.states.values()) != statistics.slots:
                    self.errors.append(f'slots were lost: {statistics}')
                self.pool.describe_holders()

    @staticmethod
    def signalled(buffers: object) -> EventFence:
        fence = EventFence()
        fence.signal()
        return fence

    impossible = mock.Mock(side_effect=OSError('no descriptor left'))

    def run(self, parts: list[Callable[[random.Random], None]]) -> None:
        def guarded(part: Callable[[random.Random], None], number: int) -> None:
            try:
                part(random.Random(self.seed * 1000 + number))
            except BaseException as error:
                self.errors.append(f'{part.__name__}: {type(error).__name__}: {error}')

        threads = [
            threading.Thread(target=guarded, args=(part, number), daemon=True)
            for number, part in enumerate(parts)
        ]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS)
        assert eventually(lambda: self.errors or len(self.history) > 100), 'they get nowhere'
        self.stop.set()
        for thread in threads:
            thread.join(60.0)
            assert not thread.is_alive(), 'a thread hangs'
        while not self.frames.empty():
            self.pool.abandon(self.frames.get()[0])
        while not self.jobs.empty():
            self.jobs.get()[2].signal()
        self.pool.collect()

    def check_history(self) -> None:
        uses: dict[int, list[Entry]] = defaultdict(list)
        for entry in sorted(self.history):
            uses[entry[2]].append(entry)
        for uid, entries in uses.items():
            whats = [what for _, what, _, _ in entries]
            assert whats == ['acquired', 'given'] * (len(entries) // 2), (
                f'{uid:x} had two fillers at once'
            )
            generations = [generation for _, what, _, generation in entries if what == 'acquired']
            assert generations == sorted(set(generations)), f'{uid:x}: a generation was used twice'


@pytest.mark.usefixtures('threads_take_turns_often')
@pytest.mark.parametrize('seed', [1, 2])
def test_nothing_is_lost_or_handed_out_twice(seed: int) -> None:
    stress = Stress(3, seed)
    parts = [stress.produce, stress.consume, stress.finish_jobs]
    stress.run([*parts, stress.administrate] if seed == 1 else [*parts, *parts[:2]])
    assert stress.errors == []
    stress.check_history()
    statistics = stress.pool.statistics()
    assert statistics.states == {SlotState.FREE: statistics.slots}, stress.pool.describe_holders()
    assert statistics.holders == {}
    stress.pool.close()
    until(
        lambda: stress.memory.closes == [1] * len(stress.memory.made),
        'every buffer is closed once',
    )
    assert set(stress.heard.values()) == {1}, 'listeners heard of each end once'
    # Buffers that came while every slot was in use got into none, so the listener didn't get them.
    assert {uid for _, _, uid, _ in stress.history} <= set(stress.heard) and len(
        stress.heard
    ) <= len(stress.memory.made)
    assert statistics.failures >= statistics.retired, (
        'only quarantines that could not be made cost a slot'
    )
