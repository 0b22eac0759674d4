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
Rung 2 with real dma-bufs: another process gets the very memory.

Every consumer gets what it takes.
"""

from __future__ import annotations

from contextlib import ExitStack
import errno
from pathlib import Path
import queue
import tempfile

from waiting import until

from zc_perception.memory.pool import Slot

from .camera_kit import next_frame
from .harness import check, check_each, check_with_a_heap, equal
from .kernel_api import any_heap, METIS_PARAMETERS, parameters
from .link_kit import (
    c_program,
    camera_of,
    Consumer,
    ConsumerProcess,
    FRAMES_READ,
    free_slot,
    open_fds,
    PATIENCE_S,
    Remote,
    served,
)
from .package_kit import (
    buffers,
    card,
    info_of,
    jobs_held,
    kernel_crcs,
    LAYOUT,
    maps_lines,
    pool_of,
    publish,
    recorded,
    start,
)

SLOTS, FRAMES, CAMERA_FRAMES = 4, 100, 40
READ, END = 1, 4


# The same memory.


@check
def another_process_reads_the_very_memory_that_the_device_wrote() -> None:
    """Nobody here maps a frame: the device writes the pixels, the kernel says what they are."""
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
            # Two at a time, so that more than one slot has its turn.
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
        # The kernel's own account of the attempts to write is part of these: one more mapping for
        # each slot.
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


# Which memory.


# A consumer that is not of this package.


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
