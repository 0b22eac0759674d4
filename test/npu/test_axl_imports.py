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
The import cache: its key is what a buffer is, not its number.

It owns what it remembers, until the buffer ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
import gc
import os
import threading

from hypothesis import given, settings
from hypothesis import strategies as st
from npu.card_kit import Opened
from npu.scheduler_kit import MakeFrame, MakePool
import pytest

from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import EventFence
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import Placement
from zc_perception.negotiation.settings import heap_offer
from zc_perception.npu.axl.accelerator import AxlAccelerator, import_key, ImportCache, ImportsInUse
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout, PlaneLayout
from zc_perception.pixel.modifier import INVALID, LINEAR

MakeOpened = Callable[..., Opened]
pytestmark = pytest.mark.usefixtures('no_fd_leak')
LAYOUT = compute_layout(NV12, 64, 48)


class Device:
    """Gives out handles and knows which it still holds."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.made = 0

    def make(self) -> int:
        self.made += 1
        self.held.append(self.made)
        return self.made

    def release(self, handle: int) -> None:
        self.held.remove(handle)


@pytest.fixture
def buffers() -> Iterator[list[DmaBuf]]:
    made = [SealedMemfd().allocate(LAYOUT.buffer_size(0)) for _ in range(3)]
    yield made
    for buffer in made:
        buffer.close()


def _get(cache: ImportCache, device: Device, buffer: DmaBuf, layout=LAYOUT, epoch: int = 1) -> int:
    return cache.get(import_key(epoch, 1, layout, [buffer]), [buffer], device.make)


def test_each_buffer_is_imported_once(buffers: list[DmaBuf]) -> None:
    device = Device()
    cache = ImportCache(device.release)
    handles = [[_get(cache, device, b) for b in buffers] for _ in range(4)]
    assert handles == [[1, 2, 3]] * 4
    assert device.made == 3
    cache.clear()
    assert device.held == []


def test_a_duplicate_of_the_descriptor_is_the_same_buffer(buffers: list[DmaBuf]) -> None:
    device = Device()
    cache = ImportCache(device.release)
    other = DmaBuf(buffers[0].dup(), buffers[0].kind, 'memfd')
    assert _get(cache, device, buffers[0]) == _get(cache, device, other) == 1
    other.close()
    cache.clear()


@pytest.mark.parametrize(
    'layout',
    [
        replace(LAYOUT, width=62),
        replace(LAYOUT, height=46),
        replace(LAYOUT, modifier=1 << 56 | 1),
        replace(
            LAYOUT,
            planes=(
                LAYOUT.planes[0],
                replace(LAYOUT.planes[1], offset=LAYOUT.planes[1].offset - 64),
            ),
        ),
        replace(LAYOUT, planes=(PlaneLayout(0, 0, 32, 1024), LAYOUT.planes[1])),
    ],
)
def test_another_layout_of_the_same_buffer_is_another_import(
    buffers: list[DmaBuf], layout
) -> None:
    device = Device()
    cache = ImportCache(device.release)
    assert _get(cache, device, buffers[0]) == 1
    assert _get(cache, device, buffers[0], layout) == 2
    assert _get(cache, device, buffers[0], epoch=2) == 3
    cache.clear()


def test_an_inode_that_is_a_key_cannot_be_given_to_another_buffer(buffers: list[DmaBuf]) -> None:
    """The entry's own descriptor keeps the object alive after its owner has closed it."""
    device = Device()
    cache = ImportCache(device.release)
    _get(cache, device, buffers[0])
    _get(cache, device, buffers[1])
    inode = buffers[0].identity.inode
    buffers.pop(0).close()
    assert open_files(inode) == 1, 'the duplicate'
    fresh = [SealedMemfd().allocate(4096) for _ in range(50)]
    assert inode not in {b.identity.inode for b in fresh}
    for buffer in fresh:
        buffer.close()
    cache.clear()
    assert open_files(buffers[0].identity.inode) == 1, (
        'what the cache borrowed is not closed, and its duplicate is'
    )


def test_the_least_recently_used_import_goes_first(buffers: list[DmaBuf]) -> None:
    device = Device()
    cache = ImportCache(device.release, limit=2)
    _get(cache, device, buffers[0])
    _get(cache, device, buffers[1])
    _get(cache, device, buffers[0])
    _get(cache, device, buffers[2])
    assert sorted(device.held) == [1, 3] and len(cache) == 2
    cache.clear()


def test_a_failed_import_leaves_nothing(buffers: list[DmaBuf]) -> None:
    device = Device()
    cache = ImportCache(device.release)
    before = len(os.listdir('/proc/self/fd'))

    def refuse() -> int:
        raise OSError('no')

    with pytest.raises(OSError, match='no'):
        cache.get(import_key(1, 1, LAYOUT, [buffers[0]]), [buffers[0]], refuse)
    assert len(cache) == 0 and len(os.listdir('/proc/self/fd')) <= before
    assert _get(cache, device, buffers[0]) == 1
    cache.clear()


def _many(count: int) -> list[DmaBuf]:
    return [SealedMemfd().allocate(LAYOUT.buffer_size(0)) for _ in range(count)]


def test_an_import_that_a_job_reads_is_not_released_under_it() -> None:
    device = Device()
    jobs = ImportsInUse(device.release)
    cache = ImportCache(jobs.release, limit=2)
    buffers = _many(3)
    for buffer in buffers:
        jobs.hold(_get(cache, device, buffer))
    assert (device.held, len(cache)) == ([1, 2, 3], 2), 'the first made room, and its job goes on'
    cache.forget(buffers[1].identity)
    buffers[2].close()
    cache.forget_ended()
    assert (device.held, len(cache)) == ([1, 2, 3], 0)
    assert _get(cache, device, buffers[0]) == 4, 'a new import for new frames'
    for handle in (1, 2, 3):
        jobs.let_go(handle)
    assert device.held == [4]
    cache.clear()
    assert device.held == []
    for buffer in buffers:
        buffer.close()


@pytest.mark.parametrize(
    ('error', 'counted'), [(AcceleratorError('EIO'), 1), (DeviceLostError('ENODEV'), 0)]
)
def test_a_release_that_the_device_refuses_is_counted_unless_it_is_gone(
    error: Exception, counted: int
) -> None:
    def refuse(handle: int) -> None:
        raise error

    jobs = ImportsInUse(refuse)
    jobs.release(1)
    assert (jobs.release_errors, jobs.last_release_error) == (counted, 'EIO' if counted else '')


@settings(max_examples=60)
@given(st.data())
def test_whatever_happens_no_handle_is_lost_and_none_is_used_after_its_release(
    data: st.DataObject,
) -> None:
    """Frames, jobs, ends of buffers and forgetting at random, against a model of the device."""
    device = Device()
    jobs = ImportsInUse(device.release)
    cache = ImportCache(jobs.release, limit=data.draw(st.integers(1, 3)))
    buffers = _many(5)
    running: list[int] = []
    for step in data.draw(
        st.lists(
            st.tuples(st.sampled_from(['frame', 'end', 'forget', 'close']), st.integers(0, 4)),
            max_size=40,
        )
    ):
        what, index = step
        if what == 'frame':
            handle = _get(cache, device, buffers[index])
            assert handle in device.held, 'a handle that was released'
            jobs.hold(handle)
            running.append(handle)
        elif what == 'end' and running:
            jobs.let_go(running.pop(index % len(running)))
        elif what == 'forget':
            cache.forget(buffers[index].identity)
        elif what == 'close':
            buffers[index].close()
            buffers[index] = _many(1)[0]
        assert set(running) <= set(device.held), 'a job reads what was released'
        assert len(cache) <= cache.limit
    for handle in running:
        jobs.let_go(handle)
    cache.clear()
    assert device.held == []
    for buffer in buffers:
        buffer.close()


# Whoever ends a buffer, the cache lets go of it: at the next import or idle moment, in its own
# thread.


def trial(accelerator: AxlAccelerator, pool: BufferPool) -> None:
    for slot in pool.slots:
        accelerator.trial_import(slot.layout, slot.buffers)


def open_files(inode: int) -> int:
    """How many of the process's descriptors are that memory."""
    found = 0
    for number in os.listdir('/proc/self/fd'):
        try:
            found += os.stat(f'/proc/self/fd/{number}').st_ino == inode
        except OSError:
            continue
    return found


def retire(pool: BufferPool) -> None:
    """Retire a slot: the first slot's fence never signals."""
    slot = pool.acquire()
    assert slot is not None and slot.index == 0
    lease = pool.lease(slot, slot.generation, 'npu')
    assert lease is not None
    pool.release(lease, EventFence())
    pool._add_fence(slot, EventFence(), 0.0)
    pool.collect()
    assert pool.statistics().retired == 1


ENDS: dict[str, tuple[Callable[[BufferPool], None], set[int]]] = {
    'a retired slot': (retire, {2, 3}),
    'a slot whose place is taken': (
        lambda pool: pool.insert((SealedMemfd().allocate(8192),), 3),
        {2, 3},
    ),
    'the end of the pool': (lambda pool: pool.close(), set()),
    'a slot closed by its link': (lambda pool: pool.slots[1].buffers[0].close(), {1, 3}),
}


@pytest.mark.parametrize('thread', ['its own thread', 'another thread'])
@pytest.mark.parametrize(('end', 'left'), ENDS.values(), ids=ENDS)
def test_an_import_ends_with_its_buffer(
    opened: Opened,
    make_pool: MakePool,
    end: Callable[[BufferPool], None],
    left: set[int],
    thread: str,
) -> None:
    accelerator, card = opened
    pool = make_pool()
    trial(accelerator, pool)
    assert card.held == {1, 2, 3}
    inodes = {number: slot.buffers[0].identity.inode for number, slot in enumerate(pool.slots, 1)}
    if thread == 'another thread':
        other = threading.Thread(target=end, args=(pool,))
        other.start()
        other.join()
    else:
        end(pool)
    assert card.held == {1, 2, 3}, 'only the thread that owns the cache may call the device'
    accelerator.tidy()
    assert card.held == left
    assert {number for number, inode in inodes.items() if open_files(inode)} == left, (
        'and the memory is free'
    )


def test_the_next_import_lets_go_of_what_ended_before_it(
    opened: Opened, make_pool: MakePool, make_frame: MakeFrame
) -> None:
    accelerator, card = opened
    pool = make_pool()
    for sequence in range(4):
        with make_frame(pool, sequence=sequence) as frame:
            accelerator.release(accelerator.import_frame(frame))
    assert (accelerator.imports, card.held) == (1, {1}), 'the lowest free slot again and again'
    retire(pool)
    for sequence in range(4):
        with make_frame(pool, sequence=sequence) as frame:
            accelerator.release(accelerator.import_frame(frame))
    assert (accelerator.imports, card.held) == (2, {2})


def test_a_frame_held_over_the_end_of_its_pool_keeps_its_import(
    opened: Opened, make_pool: MakePool, make_frame: MakeFrame
) -> None:
    accelerator, card = opened
    pool = make_pool()
    trial(accelerator, pool)
    old = make_frame(pool)
    pool.close()
    accelerator.tidy()
    assert card.held == {1}
    assert accelerator.import_frame(old).number == 1 and accelerator.imports == 3, (
        'it can still be run, without another import'
    )
    old.release()
    accelerator.tidy()
    assert card.held == set()


def test_two_imports_of_a_buffer_both_end(make_pool: MakePool) -> None:
    """Two planes in one file, two layouts of it: one end, told once."""
    held: set[int] = set()
    cache = ImportCache(held.remove)
    buffer = SealedMemfd().allocate(8192)
    for number, width in enumerate((64, 32), 1):
        layout = compute_layout(NV12, width, 48)

        def make(number: int = number) -> int:
            held.add(number)
            return number

        cache.get(import_key(1, 1, layout, [buffer]), [buffer], make)
    assert (held, len(buffer._end_listeners)) == ({1, 2}, 1)
    buffer.close()
    cache.forget_ended()
    assert (held, len(cache)) == (set(), 0)


def test_an_owner_that_only_forgets_its_buffer_ends_it_too() -> None:
    held = {1}
    cache = ImportCache(held.remove)
    buffer = SealedMemfd().allocate(8192)
    cache.get(import_key(1, 1, LAYOUT, [buffer]), [buffer], lambda: 1)
    del buffer
    gc.collect()
    cache.forget_ended()
    assert (held, len(cache)) == (set(), 0)


def test_what_the_device_refuses_to_release_is_counted_and_costs_no_frame(
    opened: Opened, make_pool: MakePool, make_frame: MakeFrame
) -> None:
    accelerator, card = opened
    pool, other = make_pool(), make_pool(name='other')
    trial(accelerator, pool)
    pool.close()
    card.release_error = AcceleratorError('EIO')
    with make_frame(other) as frame:
        handle = accelerator.import_frame(frame)
    assert handle.number == 4
    cache = accelerator._cache
    facts = accelerator.facts()
    assert cache is not None and (
        len(cache),
        facts['release_errors'],
        facts['last_release_error'],
    ) == (1, 3, 'EIO')
    card.release_error = None


def test_buffers_that_end_in_many_threads_are_all_let_go_of() -> None:
    held: set[int] = set()
    cache = ImportCache(held.remove, limit=1000)
    buffers: list[DmaBuf] = [SealedMemfd().allocate(4096) for _ in range(64)]
    small = compute_layout(NV12, 32, 32)
    start = threading.Barrier(5)

    def end(part: list[DmaBuf]) -> None:
        start.wait()
        for buffer in part:
            buffer.close()

    for number, buffer in enumerate(buffers):
        held.add(number)
        cache.get(import_key(1, 1, small, [buffer]), [buffer], lambda number=number: number)
    threads = [threading.Thread(target=end, args=(buffers[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    while any(thread.is_alive() for thread in threads):
        cache.forget_ended()
    cache.forget_ended()
    assert (held, len(cache)) == (set(), 0)


# Trial imports before the first frame: kept by the cache, or given back at once and counted apart.


@pytest.fixture
def pool(make_pool: MakePool) -> BufferPool:
    return make_pool()


def frames_through(
    accelerator: AxlAccelerator, pool: BufferPool, make_frame: MakeFrame, count: int
) -> None:
    for sequence in range(count):
        with make_frame(pool, sequence=sequence) as frame:
            accelerator.release(accelerator.import_frame(frame))


@pytest.mark.parametrize('cached', [True, False])
def test_trial_imports_don_t_falsify_the_count_of_imports(
    cached: bool, make_opened: MakeOpened, pool: BufferPool, make_frame: MakeFrame
) -> None:
    accelerator, card = make_opened(import_cache=cached)
    slots = pool.slots
    for slot in slots:
        accelerator.trial_import(slot.layout, slot.buffers)
    assert card.made == len(slots)
    if cached:
        assert (accelerator.imports, accelerator.trial_imports, len(card.held)) == (
            len(slots),
            0,
            len(slots),
        )
    else:
        assert (accelerator.imports, accelerator.trial_imports, card.held) == (
            0,
            len(slots),
            set(),
        )
    frames_through(accelerator, pool, make_frame, 7)
    # The verification's I3: as many as distinct buffers with the cache, as frames without it.
    assert accelerator.imports == (len(slots) if cached else 7)
    assert accelerator.imports + accelerator.trial_imports == card.made


@pytest.mark.parametrize('cached', [True, False])
def test_what_a_trial_keeps_can_be_given_back(
    cached: bool, make_opened: MakeOpened, pool: BufferPool
) -> None:
    accelerator, card = make_opened(import_cache=cached)
    undos = [accelerator.trial_import(slot.layout, slot.buffers) for slot in pool.slots]
    assert all((undo is not None) == cached for undo in undos)
    for undo in filter(None, undos):
        undo()
    assert card.held == set() and card.made == len(pool.slots)


@pytest.mark.parametrize('cached', [True, False])
def test_a_trial_that_fails_raises_and_leaves_nothing(
    cached: bool, make_opened: MakeOpened, pool: BufferPool
) -> None:
    accelerator, card = make_opened(import_cache=cached)
    card.import_error = AcceleratorError('EINVAL')
    with pytest.raises(AcceleratorError, match='EINVAL'):
        accelerator.trial_import(pool.slots[0].layout, pool.slots[0].buffers)
    assert not card.held and accelerator.trial_imports == 0


@pytest.mark.parametrize('modifier', [INVALID, 0x0300000000000010])
def test_a_layout_that_the_driver_lists_is_imported_as_what_it_is(
    modifier: int, make_opened: MakeOpened, make_frame: MakeFrame
) -> None:
    accelerator, card = make_opened(formats=((NV12, LINEAR), (NV12, modifier)))
    assert accelerator.constraints().accepts_format((NV12, modifier))
    heap, layout = SealedMemfd(), replace(compute_layout(NV12, 64, 48), modifier=modifier)
    pool = BufferPool(layout, lambda: (heap.allocate(layout.buffer_size(0)),), 3, name='camera')
    for slot in pool.slots:
        accelerator.trial_import(slot.layout, slot.buffers)
    frames_through(accelerator, pool, make_frame, 4)
    assert card.modifiers == [modifier] * len(pool.slots), (
        'imported once, by the layout that it has'
    )
    pool.close()


def test_what_the_driver_says_is_in_the_constraints(make_opened: MakeOpened) -> None:
    constraints = make_opened()[0].constraints()
    assert constraints.participant == 'axl /dev/metis-0:1:0' and constraints.devices == (
        '/dev/metis-0:1:0',
    )
    assert (constraints.stride_align, constraints.formats, constraints.placement) == (
        64,
        ((NV12, LINEAR),),
        None,
    )
    assert not constraints.uses_cpu and heap_offer('memfd').objections(constraints, (NV12, LINEAR))
    assert (
        constraints.memory_note.startswith('whether the card is behind an IOMMU is not known')
        and not constraints.contiguous
    )
    assert make_opened(level=1)[0].constraints().placement is Placement.ONE_BUFFER, (
        'IMPORT_FD takes one descriptor'
    )
