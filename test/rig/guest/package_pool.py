"""The pool on real buffers while a real device reads them: reconfiguring, retiring, taking back what a dead process held."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from zc_perception.errors import StaleFrameError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import open_heap
from zc_perception.memory.pool import BufferPool, PoolStatistics, Slot, SlotState, quarantine_fence
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.device import AxlDevice
from zc_perception.npu.import_cache import ImportCache, import_key
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

from .harness import equal, eventually, settles
from .kernel_api import bufinfo, live, parameters
from .package_kit import accelerator, crcs, device_crcs, refused
from .package_memory_kit import (
    HEAPS,
    LAYOUT,
    RESULT_SIZE,
    Child,
    allocate,
    buffers,
    card,
    check_each,
    jobs_held,
    level_crcs,
    pool_of,
    publish,
    received,
    result_crcs,
    start,
)

LARGE = compute_layout(NV12, 320, 240)


def _inodes(slots: Sequence[Slot]) -> set[int]:
    return {buffer.identity.inode for slot in slots for buffer in slot.buffers}


def _collected(pool: BufferPool) -> PoolStatistics:
    pool.collect()
    return pool.statistics()


# Reconfiguring.


@check_each(*HEAPS)
def frames_held_over_a_reconfiguration_keep_buffers_and_layout(heap: str) -> None:
    own, _ = open_heap(heap)
    with accelerator() as npu, pool_of(heap, LAYOUT, slots=3) as pool:
        held = [publish(pool, sequence=level, level=level) for level in (11, 22)]
        before = _inodes(pool.slots)
        old = [frame.data.buffers[0].identity.inode for frame in held]
        pool.reconfigure(LARGE, partial(allocate, own, LARGE), slots=2)
        equal((pool.layout, len(pool.slots)), (LARGE, 2), 'layout and slots')
        assert not _inodes(pool.slots) & before, 'a buffer of the old layout is still in use'
        eventually(lambda: before & set(bufinfo()) == set(old), 'the buffers that nobody held go')
        with publish(pool, level=200) as fresh:
            equal((fresh.data.layout, crcs(fresh)), (LARGE, level_crcs(200, LARGE)), 'a new frame')
            equal(device_crcs(npu, fresh), level_crcs(200, LARGE), 'what the device sees of it')
        for level, frame in zip((11, 22), held, strict=True):
            equal(frame.data.layout, LAYOUT, 'layout of a held frame')
            equal((crcs(frame), device_crcs(npu, frame)), (level_crcs(level),) * 2, 'pixels of a held frame, here and for the device')
            frame.release()
        pool.collect()
        npu.tidy()
        eventually(lambda: not before & set(bufinfo()), 'the held buffers go with their frames')
        equal(pool.statistics().slots, 2, 'slots at the end')
    own.close()


@check_each(*HEAPS)
def a_job_in_flight_over_a_reconfiguration_reads_the_old_pixels(heap: str) -> None:
    own, _ = open_heap(heap)
    with card() as device, pool_of(heap, LAYOUT, slots=2) as pool, buffers(heap, RESULT_SIZE) as (result,), ExitStack() as gate:
        frame = publish(pool, level=33)
        old = frame.data.buffers[0].identity.inode
        let_go = gate.enter_context(jobs_held())
        job = start(device, frame.data.buffers, result)
        frame.release(job.dup())
        pool.reconfigure(LARGE, partial(allocate, own, LARGE))
        for level in (44, 55):
            publish(pool, level=level).release()
        let_go()
        assert job.wait(20.0)
        equal(result_crcs(result), level_crcs(33), 'what the device saw')
        job.close()
        pool.collect()
        eventually(lambda: old not in bufinfo(), 'the old buffer goes')
    own.close()


# Release fences.


@check_each(*HEAPS)
def a_slot_is_not_reused_before_its_release_fence(heap: str) -> None:
    with card() as device, pool_of(heap, LAYOUT, slots=1, release_timeout_s=20.0) as pool, buffers(heap, RESULT_SIZE) as (result,):
        for level in (10, 20, 30):
            frame = publish(pool, level=level)
            with jobs_held():
                job = start(device, frame.data.buffers, result)
                frame.release(job.dup())
                _stays_taken(pool)
            _overwrite_as_soon_as_possible(pool)
            assert job.wait(0.0), 'the slot was free before the device was done with it'
            equal(result_crcs(result), level_crcs(level), 'what the device saw')
            job.close()
        equal(pool.statistics().retired, 0, 'retired slots')


@check_each(*HEAPS)
def a_release_fence_that_fails_frees_the_slot_and_is_counted(heap: str) -> None:
    with card() as device, pool_of(heap, LAYOUT, slots=1, release_timeout_s=20.0) as pool, buffers(heap, RESULT_SIZE) as (result,):
        frame = publish(pool, level=10)
        with jobs_held():
            with parameters(fail_every=1):
                job = start(device, frame.data.buffers, result)
            frame.release(job.dup())
            _stays_taken(pool)
        assert job.wait(20.0)
        job.close()
        publish(pool, level=11).release()
        found = pool.statistics()
        equal((found.fence_errors, found.retired), (1, 0), 'failed fences, retired slots')


def _stays_taken(pool: BufferPool) -> None:
    """No slot comes free while a device still reads the only one, however often one looks."""
    for _ in range(50):
        assert pool.acquire() is None, 'the slot is free although the device still reads'
        time.sleep(0.004)


def _overwrite_as_soon_as_possible(pool: BufferPool, seconds: float = 20.0) -> Slot:
    """The next frame into the first slot that comes free, without waiting for the device as a CPU should: a camera's DMA doesn't either."""
    deadline = time.monotonic() + seconds
    while (slot := pool.acquire()) is None:
        assert time.monotonic() < deadline, f'no slot came free: {pool.statistics()}'
        time.sleep(0.001)
    for buffer in slot.buffers:
        if buffer.writable:
            buffer.mapping()[:] = b'\xff' * buffer.size
    publish(pool, slot).release()
    return slot


@check_each(*HEAPS)
def a_slot_with_a_hung_job_is_replaced_and_never_used_again(heap: str) -> None:
    with accelerator(timeout_s=5.0) as npu, pool_of(heap, LAYOUT, slots=2, release_timeout_s=0.2) as pool:
        gone: list[Slot] = []
        remove = pool.add_retire_listener(gone.append)
        frame = publish(pool, level=77)
        stuck, uid = frame.data.buffers[0].identity.inode, frame.data.buffer_uid
        with parameters(hang_every=1):
            job = npu.submit(npu.import_frame(frame), frame)
        frame.release(job.abandon())
        eventually(lambda: _collected(pool).retired == 1, 'the slot is retired')
        equal([[b.identity.inode for b in slot.buffers] for slot in gone], [[stuck]], 'slots told to the listener')
        assert stuck not in _inodes(pool.slots) and len(pool.slots) == 2, 'the retired buffer is still in the pool'
        assert stuck in bufinfo() and live()['jobs'] == 1, 'the device has let go already'
        seen = set()
        for turn in range(20):
            with publish(pool, sequence=turn, level=turn) as fresh:
                seen.add(fresh.data.buffers[0].identity.inode)
                assert fresh.data.buffer_uid != uid
        assert stuck not in seen and seen <= _inodes(pool.slots), (stuck, seen, pool.slots, _inodes(pool.slots), pool.statistics())
        eventually(lambda: live()['jobs'] == 0, 'the driver gives the job up', 20.0)
        assert stuck in bufinfo(), 'the import cache should still hold it here'
        npu.tidy()
        eventually(lambda: stuck not in bufinfo(), 'the retired buffer goes')
        remove()
        with publish(pool, level=5) as fresh:
            equal(device_crcs(npu, fresh), level_crcs(5), 'what the device sees afterwards')
        equal((npu.facts()['jobs'], npu.facts()['jobs_given_up']), (0, 0), 'result buffers in use')


@check_each(*HEAPS)
def the_import_cache_forgets_what_the_pool_has_given_up(heap: str) -> None:
    with card() as device, pool_of(heap, LAYOUT, slots=2, release_timeout_s=0.1) as pool, buffers(heap, RESULT_SIZE) as (result,):
        cache = ImportCache(device.release_import)
        for slot in pool.slots:
            _imported(cache, device, slot.buffers)
        before = _inodes(pool.slots)
        equal((len(cache), live()['imports']), (2, 2), 'imports of two slots')
        frame = publish(pool, level=1)
        stuck = frame.data.buffers[0].identity.inode
        with parameters(hang_every=1):
            job = start(device, frame.data.buffers, result, timeout_us=5_000_000)
        frame.release(job.dup())
        eventually(lambda: _collected(pool).retired == 1, 'the slot is retired')
        cache.forget_ended()  # as the next import does
        equal(len(cache), 1, 'imports remembered')
        assert job.wait(20.0)
        job.close()
        eventually(lambda: (live()['imports'], stuck in bufinfo()) == (1, False), 'the driver forgets it too')
        own, _ = open_heap(heap)
        pool.reconfigure(LARGE, partial(allocate, own, LARGE))
        cache.forget_ended()
        equal((len(cache), live()['imports']), (0, 0), 'imports after a reconfiguration')
        eventually(lambda: not before & set(bufinfo()), 'the old buffers go')
        for slot in pool.slots:
            _imported(cache, device, slot.buffers, LARGE)
        pool.close()
        cache.forget_ended()
        equal((len(cache), live()['imports']), (0, 0), 'imports after the pool was closed')
        own.close()


def _imported(cache: ImportCache, device: AxlDevice, source: Sequence[DmaBuf], layout: object = LAYOUT) -> int:
    key = import_key(1, 1, layout, source)  # type: ignore[arg-type]
    return cache.get(key, source, lambda: device.import_planes(layout, source, ImportFlags.TO_DEVICE))  # type: ignore[arg-type]


# A dead process.


@check_each(*HEAPS)
def a_killed_process_whose_dma_still_runs_keeps_its_buffers_until_the_fence(heap: str) -> None:
    """The device's file is shared with this process, so that the kernel does not end the job with its process."""
    with (
        ExitStack() as gate,
        card() as device,
        pool_of(heap, LAYOUT, slots=1, release_timeout_s=20.0) as pool,
        buffers(heap, RESULT_SIZE) as (result,),
    ):

        def peer(theirs: socket.socket) -> None:
            job = start(device, [DmaBuf.from_fd(received(theirs))], result)
            theirs.send(b'submitted')
            job.wait(60.0)
            theirs.recv(1)

        child = Child(peer)
        frame = publish(pool, level=61)
        lease = frame.deliver('peer')
        assert lease is not None
        let_go = gate.enter_context(jobs_held())
        child.send(frame.data.buffers[0])
        equal(child.answer(), b'submitted', 'the child')
        frame.release()
        equal(pool.statistics().holders, {'peer': 1}, 'holders')
        child.kill()
        equal(live()['jobs'], 1, 'jobs of the dead process')
        equal(pool.revoke('peer', lambda held: quarantine_fence(held, 30.0)), 1, 'leases taken back')
        equal(pool.statistics().holders, {}, 'holders')
        with refused(StaleFrameError):
            lease.release()
        _stays_taken(pool)
        let_go()
        _overwrite_as_soon_as_possible(pool)
        settles(lambda: live()['jobs'], 0, 'jobs after the slot came free')
        equal(result_crcs(result), level_crcs(61), 'what the device saw')
        equal((pool.statistics().retired, len(pool.slots)), (0, 1), 'retired slots, slots')


@check_each(*HEAPS)
def without_a_quarantine_the_device_would_read_the_next_frame(heap: str) -> None:
    """That the check before can fail: what the quarantine prevents does happen without it."""
    with card() as device, pool_of(heap, LAYOUT, slots=1) as pool, buffers(heap, RESULT_SIZE) as (result,):
        frame = publish(pool, level=61)
        lease = frame.deliver('peer')
        assert lease is not None
        with jobs_held():
            job = start(device, frame.data.buffers, result)
            frame.release()
            equal(pool.revoke('peer'), 1, 'leases taken back')
            _overwrite_as_soon_as_possible(pool)
        assert job.wait(20.0)
        equal(result_crcs(result), level_crcs(255), 'what the device saw')
        job.close()


@check_each(*HEAPS)
def leases_of_others_survive_a_revocation(heap: str) -> None:
    with accelerator() as npu, pool_of(heap, LAYOUT, slots=2) as pool:
        frame = publish(pool, level=9)
        dead, alive = frame.deliver('dead'), frame.deliver('alive')
        assert dead is not None and alive is not None
        frame.release()
        equal(pool.revoke('dead', lambda held: quarantine_fence(held, 0.2)), 1, 'leases taken back')
        equal(pool.revoke('dead', lambda held: quarantine_fence(held, 0.2)), 0, 'leases taken back the second time')
        equal((crcs(alive), device_crcs(npu, alive)), (level_crcs(9),) * 2, 'pixels of the other one')
        with publish(pool, level=10):
            pass
        alive.release()
        eventually(lambda: _collected(pool).states == {SlotState.FREE: 2}, 'both slots come free', 20.0)
