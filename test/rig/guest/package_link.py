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
The shared-memory link with real dma-bufs: another process gets the same memory.

Fences of a driver keep two processes and a device apart, whichever process dies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
from dataclasses import dataclass
import errno
from pathlib import Path
import queue
import tempfile
import time

from waiting import until

from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.pool import BufferPool, Slot

from .camera_kit import next_frame
from .harness import check, check_each, check_with_a_heap, equal, settles
from .kernel_api import any_heap, live, METIS_PARAMETERS, parameters
from .link_kit import (
    c_program,
    camera_of,
    Consumer,
    ConsumerProcess,
    FRAMES_READ,
    free_slot,
    open_fds,
    overwrite,
    PATIENCE_S,
    Remote,
    RemoteError,
    served,
)
from .package_kit import (
    buffers,
    card,
    info_of,
    jobs_held,
    kernel_crcs,
    LAYOUT,
    level_crcs,
    maps_lines,
    pool_of,
    publish,
    recorded,
    refused,
    result_crcs,
    RESULT_SIZE,
    start,
)

SLOTS, FRAMES, CAMERA_FRAMES = 4, 100, 40
READ, END = 1, 4


@check
def another_process_reads_the_very_memory_that_the_device_wrote() -> None:
    """No process maps the frame: the device writes the pixels, and the kernel reads them."""
    heap = any_heap()
    freed: queue.SimpleQueue[Slot] = queue.SimpleQueue()
    with (
        Remote(Consumer) as consumer,
        card() as device,
        buffers(heap, LAYOUT.buffer_size(0)) as (image,),
        pool_of(heap, LAYOUT, slots=SLOTS, reserve=1, on_free=freed.put) as pool,
        served(pool) as server,
        recorded() as recording,
    ):
        consumer.call('connect', str(server.path), 2)
        inodes = {slot.buffers[0].identity.inode for slot in pool.slots}
        contents = set()
        for index in range(SLOTS):
            slot = pool.acquire(index)
            assert slot is not None
            job = start(device, [image], slot.buffers[0])
            assert job.wait(PATIENCE_S)
            job.check()
            job.close()
            with publish(pool, slot, sequence=index) as frame:
                server.publish(frame)
                inode, right = frame.data.buffers[0].identity.inode, kernel_crcs(frame)
                seen = consumer.call('receive')
                equal(
                    (seen['sequence'], seen['inodes'], seen['kinds']),
                    (index, [inode], ['dmabuf']),
                    'sequence, inode and kind',
                )
                equal(seen['fence'], 'NoneType', 'acquire fence of a frame that is ready')
                equal(consumer.call('pixels', index), right, 'CRCs')
                equal(
                    [maps_lines(inode), frame.data.buffers[0].mapped],
                    [[], False],
                    'mappings of the producer',
                )
            contents.add(tuple(right))
            equal(
                consumer.call('map_for_writing', index), 0, 'a heap has no read-only descriptors'
            )
            consumer.call('release', index)
            freed.get(timeout=PATIENCE_S)
        equal((len(contents), len(inodes)), (SLOTS, SLOTS), 'contents, buffers')
        (statistics,) = server.statistics().consumers
        equal(
            statistics.trusted_writer,
            True,
            'whether the log has to say that the consumer could write',
        )
        fds = open_fds(), consumer.call('fds')
        consumer.ask('stream', FRAMES)
        for sequence in range(SLOTS, SLOTS + FRAMES, 2):
            # Publish two at a time, so that both slots are used.
            with (
                publish(pool, sequence=sequence) as first,
                publish(pool, sequence=sequence + 1) as second,
            ):
                server.publish(first)
                server.publish(second)
            for _ in range(2):
                freed.get(timeout=PATIENCE_S)
        seen = consumer.answer()
        equal(
            (open_fds(), set(seen['fds'])),
            (fds[0], {fds[1]}),
            f'descriptors of both over {FRAMES} frames',
        )
        equal(
            [number for number, _ in seen['frames']],
            list(range(SLOTS, SLOTS + FRAMES)),
            'sequences',
        )
        assert {inode for _, (inode, _) in seen['frames']} <= inodes
        equal(
            seen['mappings'],
            [[[image.size, 'r--s']]] * len(seen['mappings']),
            'mappings of a buffer',
        )
        # The kernel's counts include the write attempts: one more mapping for each slot.
        found = recording()
        equal(
            {inode: found.mappings(inode) for inode in inodes},
            dict.fromkeys(inodes, 2),
            'calls of mmap, of all processes',
        )
        equal(
            {sync.thread for sync in found.syncs(*inodes)},
            {consumer.pid},
            'who touched the pixels',
        )
        (statistics,) = server.statistics().consumers
        equal(
            (statistics.sent, statistics.dropped, statistics.held),
            (FRAMES + SLOTS, 0, 0),
            'sent, dropped, held',
        )


@check_each('videobuf2_dma_contig', long=('videobuf2_vmalloc',))
def another_process_reads_the_cameras_own_buffers_and_cannot_write_them(exporter: str) -> None:
    with (
        Remote(Consumer) as consumer,
        camera_of(exporter) as (camera, pool),
        served(pool) as server,
        recorded() as recording,
    ):
        consumer.call('connect', str(server.path), 2, 2)
        with next_frame(camera) as frame:
            server.publish(frame)
            sequence, inode = frame.data.sequence, frame.data.buffers[0].identity.inode
            seen = consumer.call('receive')
            equal(
                (seen['sequence'], seen['inodes'], info_of(frame.data.buffers[0]).exporter),
                (sequence, [inode], exporter),
                'the frame',
            )
            equal(consumer.call('pixels', sequence), kernel_crcs(frame), 'CRCs')
            equal(
                consumer.call('map_for_writing', sequence),
                errno.EACCES,
                'errno of a consumer that maps it for writing',
            )
            consumer.call('release', sequence)
        fds = open_fds()
        consumer.ask('stream', CAMERA_FRAMES)
        right: dict[int, tuple[int, list[int]]] = {}
        while (sent := server.statistics().consumers[0].sent) <= CAMERA_FRAMES:
            with next_frame(camera) as frame:
                server.publish(frame)
                right[frame.data.sequence] = (
                    frame.data.buffers[0].identity.inode,
                    kernel_crcs(frame),
                )
        seen = consumer.answer()
        equal(open_fds(), fds, f'descriptors of the producer over {CAMERA_FRAMES} frames')
        got = {number: (inode, found) for number, (inode, found) in seen['frames']}
        equal(got, {number: right[number] for number in got}, f'inodes and CRCs of {sent} frames')
        assert (
            len(got) == CAMERA_FRAMES
            and len({tuple(found) for _, found in got.values()}) > CAMERA_FRAMES // 2
        ), 'the picture moves'
        inodes = {inode for inode, _ in right.values()}
        sizes = {info_of(buffer).size for slot in camera.slots for buffer in slot.buffers}
        equal(
            seen['mappings'],
            [[[max(sizes), 'r--s']]] * len(seen['mappings']),
            'mappings of a buffer',
        )
        found = recording()
        equal(
            {inode: found.mappings(inode) for inode in inodes},
            dict.fromkeys(inodes, 1),
            'calls of mmap, of all processes',
        )
        equal(
            {sync.thread for sync in found.syncs(*inodes)},
            {consumer.pid},
            'who touched the pixels',
        )
        (statistics,) = server.statistics().consumers
        equal(statistics.trusted_writer, False, 'whether the consumer could write')
        equal(
            set(seen['fds'][slice(CAMERA_FRAMES // 2, None)]),
            {seen['fds'][-1]},
            'descriptors of the consumer',
        )


@check_with_a_heap
def a_consumer_in_c_reads_dma_bufs_with_real_fences_and_syncs(heap: str) -> None:
    with (
        card() as device,
        buffers(heap, LAYOUT.buffer_size(0)) as (image,),
        pool_of(heap, LAYOUT, slots=SLOTS, reserve=1) as pool,
        served(pool) as server,
        ExitStack() as stack,
        recorded() as recording,
    ):
        program = c_program(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        let_go = stack.enter_context(jobs_held())
        options = '--window', '2', '--memory', 'dmabuf', '--frames', '12'
        consumer = stack.enter_context(ConsumerProcess(program, server.path, *options))
        until(lambda: server.consumers == 1, 'it connects', PATIENCE_S)
        right = []
        for sequence in range(12):
            slot, fence, status = free_slot(pool), None, 1
            if sequence in (4, 8):
                status = 1 if sequence == 4 else -errno.EIO
                with parameters(reservation_fences=0, fail_every=int(sequence == 8)):
                    fence = start(device, [image], slot.buffers[0])
            level = None if fence else sequence
            with publish(
                pool, slot, sequence=sequence, level=level, acquire_fence=fence and fence.dup()
            ) as frame:
                server.publish(frame)
                if fence is not None:
                    let_go()
                    assert fence.wait(PATIENCE_S)
                    fence.close()
                    (METIS_PARAMETERS / 'hold').write_text('1')
                got = consumer.line()
                crc = kernel_crcs(frame) if status == 1 else []
                right.append((sequence, frame.data.buffers[0].identity.inode, status, crc))
            equal(
                (got['sequence'], got['inode'], got['fence_status'], got['crc']),
                right[-1],
                f'frame {sequence}',
            )
        code, lines, summary = consumer.result()
        inodes = {inode for _, inode, _, _ in right}
        equal(
            (code, lines, summary['frames'], summary['slots']),
            (FRAMES_READ, [], 12, len(inodes)),
            'end',
        )
        brackets = [
            sync.flags
            for sync in recording().syncs(*inodes)
            if sync.thread == consumer.process.pid
        ]
        equal(brackets, [READ, READ | END] * 11, 'SYNCs of the consumer')


@check
def a_frame_is_not_read_before_the_device_has_written_it() -> None:
    """Only FRAME's fence shows the device's writing: the reservation object has none."""
    heap = any_heap()
    with (
        Remote(Consumer) as consumer,
        card() as device,
        buffers(heap, LAYOUT.buffer_size(0)) as (image,),
        pool_of(heap, LAYOUT, slots=3, reserve=1) as pool,
        served(pool) as server,
        ExitStack() as gate,
        recorded() as recording,
    ):
        consumer.call('connect', str(server.path))
        slot = free_slot(pool)
        inode = slot.buffers[0].identity.inode
        let_go = gate.enter_context(jobs_held())
        with parameters(reservation_fences=0):
            job = start(device, [image], slot.buffers[0])
        with publish(pool, slot, sequence=7, acquire_fence=job.dup()) as frame:
            blank = kernel_crcs(frame)
            server.publish(frame)
            equal(consumer.call('receive')['fence'], 'SyncFile', 'what came with FRAME')
            equal(consumer.call('fence', 7, 0.0), [False, 0], 'signalled, status')
            with refused(RemoteError, 'did not signal'):
                consumer.call('pixels', 7)
            equal(
                (recording().mappings(inode), recording().syncs(inode)),
                (0, []),
                'calls of mmap, SYNCs',
            )
            consumer.ask('fence', 7, PATIENCE_S)
            let_go()
            equal(consumer.answer(), [True, 1], 'signalled, status')
            right = kernel_crcs(frame)
            equal(consumer.call('pixels', 7), right, 'CRCs')
            assert right != blank, 'the device wrote nothing'
        job.close()


@check
def a_frame_whose_device_failed_is_an_error_in_the_other_process() -> None:
    with (
        Remote(Consumer) as consumer,
        card() as device,
        buffers(any_heap(), LAYOUT.buffer_size(0)) as (image,),
        pool_of(any_heap(), LAYOUT, slots=3, reserve=1) as pool,
        served(pool) as server,
        ExitStack() as gate,
        recorded() as recording,
    ):
        consumer.call('connect', str(server.path))
        slot = free_slot(pool)
        let_go = gate.enter_context(jobs_held())
        with parameters(fail_every=1):
            job = start(device, [image], slot.buffers[0])
        with publish(pool, slot, sequence=7, acquire_fence=job.dup()) as frame:
            server.publish(frame)
            equal(consumer.call('receive')['fence'], 'SyncFile', 'what came with FRAME')
            let_go()
            equal(consumer.call('fence', 7, PATIENCE_S), [True, -errno.EIO], 'signalled, status')
            with refused(RemoteError, 'AcceleratorError', 'Input/output error'):
                consumer.call('pixels', 7)
            inode = slot.buffers[0].identity.inode
            equal(
                (recording().mappings(inode), recording().syncs(inode)),
                (0, []),
                'calls of mmap, SYNCs',
            )
            consumer.call('release', 7)
        job.close()


@check
def a_slot_is_not_filled_again_before_the_consumers_device_has_read_it() -> None:
    """Only RELEASE's fence protects it: the driver puts none into the reservation object."""
    heap = any_heap()
    with (
        buffers(heap, RESULT_SIZE) as (result,),
        Remote(lambda: Consumer(result=result)) as consumer,
        pool_of(heap, LAYOUT, slots=5, reserve=1, release_timeout_s=PATIENCE_S) as pool,
        served(pool) as server,
        ExitStack() as gate,
    ):
        consumer.call('connect', str(server.path))
        with publish(pool, sequence=7, level=61) as frame:
            server.publish(frame)
            uid = frame.data.buffer_uid
        consumer.call('receive')
        let_go = gate.enter_context(jobs_held())
        with parameters(reservation_fences=0):
            consumer.call('submit', 7)
        consumer.call('release', 7, True)
        until(lambda: server.statistics().consumers[0].held == 0, 'RELEASE comes')
        used = set().union(*(overwrite(server, pool) for _ in range(30)))
        assert uid not in used and len(used) == 4, (
            f'slot {uid} was filled again while the device read it; filled were {used}'
        )
        let_go()
        equal(consumer.call('finish_job'), 1, 'status of the job')
        until(lambda: uid in overwrite(server, pool), 'the slot comes back', PATIENCE_S)
        equal(result_crcs(result), level_crcs(61), 'what the device saw')
        equal(pool.statistics().retired, 0, 'retired slots')


@check_each('videobuf2_dma_contig')
def the_camera_does_not_fill_what_the_consumers_device_reads(exporter: str) -> None:
    with (
        buffers(any_heap(), RESULT_SIZE) as (result,),
        Remote(lambda: Consumer(result=result)) as consumer,
        camera_of(exporter) as (camera, pool),
        served(pool) as server,
        ExitStack() as gate,
    ):
        consumer.call('connect', str(server.path))
        with next_frame(camera) as frame:
            server.publish(frame)
            uid, sequence, right = frame.data.buffer_uid, frame.data.sequence, kernel_crcs(frame)
        consumer.call('receive')
        let_go = gate.enter_context(jobs_held())
        with parameters(reservation_fences=0):
            consumer.call('submit', sequence)
        consumer.call('release', sequence, True)
        until(lambda: server.statistics().consumers[0].held == 0, 'RELEASE comes')
        used = set()
        for _ in range(20):
            with next_frame(camera) as frame:
                used.add(frame.data.buffer_uid)
        assert uid not in used and len(used) > 1, (
            f'buffer {uid} was filled again while the device read it; filled were {used}'
        )
        let_go()
        equal(consumer.call('finish_job'), 1, 'status of the job')
        equal(result_crcs(result), right, 'what the device saw')
        for _ in range(200):
            with next_frame(camera) as frame:
                if frame.data.buffer_uid == uid:
                    break
        else:
            raise AssertionError('the buffer never comes back to the camera')


LEVEL = 61
OVERWRITTEN = 255
#: A deadline that no check reaches: only the device's fence ends the quarantine earlier.
NEVER_S = 600.0


@dataclass
class Scene:
    """The state after killing a consumer whose device was going to read frame *uid*."""

    pool: BufferPool
    server: SharedMemoryServer
    result: DmaBuf
    uid: int
    killed_at: float
    _gate: ExitStack

    def overwrite(self) -> set[int]:
        return overwrite(self.server, self.pool)

    def let_go(self) -> None:
        """Let the device read, and wait until it has."""
        self._gate.close()
        until(lambda: live()['jobs'] == 0, 'the device reads', PATIENCE_S)

    @property
    def seen_by_the_device(self) -> int | None:
        found = result_crcs(self.result)
        return next((level for level in (LEVEL, OVERWRITTEN) if found == level_crcs(level)), None)


@contextmanager
def _killed_while_its_device_reads(
    heap: str, quarantine_s: float, *, reservation_fences: int
) -> Iterator[Scene]:
    """
    Kill a consumer while its device reads.

    The device's open file is shared with this process, so the kernel doesn't end the job with the
    consumer.
    """
    with (
        card() as device,
        buffers(heap, RESULT_SIZE) as (result,),
        Remote(lambda: Consumer(device, result)) as consumer,
        pool_of(heap, LAYOUT, slots=3, reserve=1) as pool,
        served(pool, quarantine_timeout_s=quarantine_s) as server,
        ExitStack() as gate,
    ):
        consumer.call('connect', str(server.path))
        with publish(pool, sequence=7, level=LEVEL) as frame:
            server.publish(frame)
            uid = frame.data.buffer_uid
        consumer.call('receive')
        gate.enter_context(jobs_held())
        with parameters(reservation_fences=reservation_fences):
            consumer.call('submit', 7)
        equal(list(pool.statistics().holders.values()), [1], 'leases, of the consumer alone')
        killed_at = time.monotonic()
        consumer.kill()
        until(
            lambda: (server.consumers, pool.statistics().holders) == (0, {}),
            'the lease is taken back',
            PATIENCE_S,
        )
        settles(lambda: server.statistics().taken_back, 1, 'frames taken back')
        equal(live()['jobs'], 1, 'jobs of the dead process')
        yield Scene(pool, server, result, uid, killed_at, gate)
        equal(
            (pool.statistics().retired, len(pool.slots), pool.unpromised),
            (0, 3, 2),
            'retired slots, slots, slots for others',
        )


def _expect_others_only(scene: Scene, uids: set[int]) -> None:
    assert scene.uid not in uids, (
        f'slot {scene.uid} was filled again while the device was going to read it'
    )
    equal(len(uids), 2, 'slots that the producer went on with')


@check
def a_killed_consumers_frame_is_not_written_before_its_device_is_done() -> None:
    heap = any_heap()
    with _killed_while_its_device_reads(heap, NEVER_S, reservation_fences=1) as scene:
        _expect_others_only(scene, set().union(*(scene.overwrite() for _ in range(30))))
        scene.let_go()
        until(lambda: scene.uid in scene.overwrite(), 'the slot comes back', PATIENCE_S)
        equal(scene.seen_by_the_device, LEVEL, 'level of the pixels that the device saw')


@check
def without_any_quarantine_the_device_would_read_another_frame() -> None:
    """Prove that the checks before can fail: the device then reads another frame."""
    heap = any_heap()
    with _killed_while_its_device_reads(heap, 0.0, reservation_fences=0) as scene:
        until(lambda: scene.uid in scene.overwrite(), 'the slot is filled again', PATIENCE_S)
        scene.let_go()
        equal(scene.seen_by_the_device, OVERWRITTEN, 'level of the pixels that the device saw')
