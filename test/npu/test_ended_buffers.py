"""Whoever ends a buffer, the import cache lets go of it: at the next import or idle moment, in its own thread, without any wiring."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from npu.card_kit import Opened
from npu.scheduler_kit import MakeFrame, MakePool

from zc_perception.errors import AcceleratorError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import EventFence
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.pool import BufferPool
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.npu.import_cache import ImportCache, import_key
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

pytestmark = pytest.mark.usefixtures('no_fd_leak')
LAYOUT = compute_layout(NV12, 64, 48)


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
    """The first slot's fence never signals."""
    slot = pool.acquire()
    assert slot is not None and slot.index == 0
    lease = pool.lease(slot, slot.generation, 'npu')
    assert lease is not None
    pool.release(lease, EventFence())
    pool._table.add_fence(slot, EventFence(), 0.0)
    pool.collect()
    assert pool.statistics().retired == 1


ENDS: dict[str, tuple[Callable[[BufferPool], None], set[int]]] = {
    'a retired slot': (retire, {2, 3}),
    'another configuration': (lambda pool: pool.reconfigure(LAYOUT, lambda: (SealedMemfd().allocate(8192),)), set()),
    'the end of the pool': (lambda pool: pool.close(), set()),
    'a slot closed by its link': (lambda pool: pool.slots[1].buffers[0].close(), {1, 3}),
}


@pytest.mark.parametrize('thread', ['its own thread', 'another thread'])
@pytest.mark.parametrize(('end', 'left'), ENDS.values(), ids=ENDS)
def test_an_import_ends_with_its_buffer(
    opened: Opened, make_pool: MakePool, end: Callable[[BufferPool], None], left: set[int], thread: str
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
    assert {number for number, inode in inodes.items() if open_files(inode)} == left, 'and the memory is free'


def test_the_next_import_lets_go_of_what_ended_before_it(opened: Opened, make_pool: MakePool, make_frame: MakeFrame) -> None:
    accelerator, card = opened
    pool = make_pool()
    for sequence in range(4):
        with make_frame(pool, sequence=sequence) as frame:
            accelerator.release(accelerator.import_frame(frame))
    assert (accelerator.imports, card.held) == (1, {1}), 'the lowest free slot again and again'
    pool.reconfigure(LAYOUT, lambda: (SealedMemfd().allocate(8192),))
    for sequence in range(4):
        with make_frame(pool, sequence=sequence) as frame:
            accelerator.release(accelerator.import_frame(frame))
    assert (accelerator.imports, card.held) == (2, {2})


def test_a_frame_held_over_a_reconfiguration_keeps_its_import(opened: Opened, make_pool: MakePool, make_frame: MakeFrame) -> None:
    accelerator, card = opened
    pool = make_pool()
    trial(accelerator, pool)
    old = make_frame(pool)
    pool.reconfigure(LAYOUT, lambda: (SealedMemfd().allocate(8192),))
    accelerator.tidy()
    assert card.held == {1}
    assert accelerator.import_frame(old).number == 1 and accelerator.imports == 3, 'it can still be run, without another import'
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


def test_a_cache_that_was_cleared_hears_of_an_end_without_harm(make_pool: MakePool) -> None:
    released: list[int] = []
    cache = ImportCache(released.append)
    buffer = SealedMemfd().allocate(8192)
    cache.get(import_key(1, 1, LAYOUT, [buffer]), [buffer], lambda: 1)
    cache.clear()
    buffer.close()
    cache.forget_ended()
    assert released == [1]


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
    assert cache is not None and (len(cache), facts['release_errors'], facts['last_release_error']) == (1, 3, 'EIO')
    card.release_error = None


def test_the_cache_owns_duplicates_and_never_closes_what_it_borrowed(make_pool: MakePool) -> None:
    cache = ImportCache(lambda handle: None)
    buffer = SealedMemfd().allocate(8192)
    inode, number = buffer.identity.inode, buffer.fileno()
    for _ in range(3):
        cache.get(import_key(1, 1, LAYOUT, [buffer]), [buffer], lambda: 1)
    assert open_files(inode) == 2
    keepers: list[Any] = [keeper for entry in cache._entries.values() for keeper in entry.keepers]
    assert [keeper.fileno() == number for keeper in keepers] == [False]
    cache.clear()
    assert (buffer.fileno(), os.fstat(number).st_ino, open_files(inode)) == (number, inode, 1)
    buffer.close()


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
        cache.get(import_key(1, 1, small, [buffer]), [buffer], lambda number=number: number)  # type: ignore[misc]
    threads = [threading.Thread(target=end, args=(buffers[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    while any(thread.is_alive() for thread in threads):
        cache.forget_ended()
    cache.forget_ended()
    assert (held, len(cache)) == (set(), 0)
