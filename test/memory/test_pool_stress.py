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

"""Producers, consumers, devices and an administrator use one pool at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
import itertools
from queue import Empty, Queue
import random
import sys
import threading
import time

from pool_kit import closes, CountingAllocator, SMALL
import pytest
from waiting import eventually, until

from zc_perception.errors import StaleFrameError
from zc_perception.memory.fence import EventFence
from zc_perception.memory.pool import BufferPool, Lease, Slot, SlotState

SECONDS = 1.5
Entry = tuple[int, str, int, int]


@pytest.fixture(autouse=True)
def _threads_take_turns_often(no_fd_leak: None) -> Iterator[None]:
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

    @staticmethod
    def impossible(buffers: object) -> EventFence:
        raise OSError('no descriptor left')

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
