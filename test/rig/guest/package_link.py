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

from collections.abc import Callable, Iterator
from contextlib import contextmanager, ExitStack
import errno
from typing import Any
import zlib

from waiting import until

from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import SyncFile

from . import package_kit as kit
from .camera_kit import next_frame
from .graph_variants import EXPORTERS
from .harness import check, check_each, equal, settles
from .kernel_api import any_heap, bufinfo, live, parameters, SYNC_END, SYNC_READ
from .link_kit import (
    c_program,
    camera_of,
    Consumer,
    ConsumerProcess,
    FRAMES_READ,
    open_fds,
    overwrite,
    PATIENCE_S,
    Remote,
    RemoteError,
    served,
)

SLOTS, CAMERA_FRAMES = 4, 40


@check_each('single_dma', long=('single',))
def another_process_reads_the_cameras_own_buffers_and_cannot_write_them(name: str) -> None:
    with (
        Remote(Consumer) as consumer,
        camera_of(name) as (camera, pool),
        served(pool) as server,
        kit.recorded() as recording,
    ):
        consumer.call('connect', str(server.path), 2, 2)
        with next_frame(camera) as frame:
            server.publish(frame)
            sequence, inode = frame.data.sequence, frame.data.buffers[0].identity.inode
            seen = consumer.call('receive')
            equal((seen['sequence'], seen['inodes']), (sequence, [inode]), 'the frame')
            equal(bufinfo()[inode].exporter, EXPORTERS[name], 'exporter')
            equal(consumer.call('pixels', sequence), kit.kernel_crcs(frame), 'CRCs')
            equal(consumer.call('map_for_writing', sequence), errno.EACCES, 'errno of a writer')
            consumer.call('release', sequence)
        fds = open_fds()
        consumer.ask('stream', CAMERA_FRAMES)
        right: dict[int, tuple[int, list[int]]] = {}
        while server.statistics().consumers[0].sent <= CAMERA_FRAMES:
            with next_frame(camera) as frame:
                server.publish(frame)
                inode = frame.data.buffers[0].identity.inode
                right[frame.data.sequence] = inode, kit.kernel_crcs(frame)
        seen = consumer.answer()
        equal(open_fds(), fds, f'descriptors of the producer over {CAMERA_FRAMES} frames')
        got = {number: (inode, found) for number, (inode, found) in seen['frames']}
        equal(got, {number: right[number] for number in got}, 'inodes and CRCs')
        equal(len(got), CAMERA_FRAMES, 'frames')
        pictures = {tuple(found) for _, found in got.values()}
        assert len(pictures) > CAMERA_FRAMES // 2, 'the picture moves'
        inodes = {inode for inode, _ in right.values()}
        size = max(bufinfo()[inode].size for inode in inodes)
        equal(seen['mappings'], [[[size, 'r--s']]] * len(seen['mappings']), 'its mappings')
        found = recording()
        counts = {inode: found.mappings(inode) for inode in inodes}
        equal(counts, dict.fromkeys(inodes, 1), 'calls of mmap, of all processes')
        touching = {thread for thread, _ in found.syncs(*inodes)}
        equal(touching, {consumer.pid}, 'who touched the pixels')
        (statistics,) = server.statistics().consumers
        equal(statistics.trusted_writer, False, 'whether the consumer could write')
        held = set(seen['fds'][slice(CAMERA_FRAMES // 2, None)])
        equal(held, {seen['fds'][-1]}, 'descriptors of the consumer')


@check
def a_consumer_in_c_reads_dma_bufs_with_real_fences_and_syncs() -> None:
    with (
        kit.card() as device,
        kit.buffers(any_heap(), kit.LAYOUT.buffer_size(0)) as (image,),
        kit.pool_of(any_heap(), kit.LAYOUT, slots=SLOTS, reserve=1) as pool,
        served(pool) as server,
        ConsumerProcess(
            c_program(), server.path, '--window', '2', '--memory', 'dmabuf', '--frames', '12'
        ) as consumer,
        kit.recorded() as recording,
    ):
        until(lambda: server.consumers == 1, 'it connects', PATIENCE_S)
        inodes = set()
        for sequence in range(12):
            slot = until(pool.acquire, pool.describe_holders, PATIENCE_S)
            fence, status = None, -errno.EIO if sequence == 8 else 1
            with kit.jobs_held() as let_go:
                if sequence in (4, 8):
                    with parameters(reservation_fences=0, fail_every=int(sequence == 8)):
                        fence = kit.start(device, [image], slot.buffers[0])
                level = None if fence else sequence
                with kit.publish(
                    pool, slot, sequence=sequence, level=level, acquire_fence=fence and fence.dup()
                ) as frame:
                    server.publish(frame)
                    if fence is not None:
                        let_go()
                        assert fence.wait(PATIENCE_S)
                        fence.close()
                    got = consumer.line()
                    crc = kit.kernel_crcs(frame) if status == 1 else []
            inode = slot.buffers[0].identity.inode
            inodes.add(inode)
            right = {'sequence': sequence, 'inode': inode, 'fence_status': status, 'crc': crc}
            equal({name: got[name] for name in right}, right, f'frame {sequence}')
        code, lines, summary = consumer.result()
        ended = code, lines, summary['frames'], summary['slots']
        equal(ended, (FRAMES_READ, [], 12, len(inodes)), 'end')
        found = recording().syncs(*inodes)
        brackets = [flags for thread, flags in found if thread == consumer.process.pid]
        equal(brackets, [SYNC_READ, SYNC_READ | SYNC_END] * 11, 'SYNCs of the consumer')


@check
def the_camera_does_not_fill_what_the_consumers_device_reads() -> None:
    """Only RELEASE's fence protects it: the driver puts none into the reservation object."""
    with (
        kit.buffers(any_heap(), kit.RESULT_SIZE) as (result,),
        Remote(lambda: Consumer(result=result)) as consumer,
        camera_of('single_dma') as (camera, pool),
        served(pool) as server,
        kit.jobs_held() as let_go,
    ):
        consumer.call('connect', str(server.path))
        with next_frame(camera) as frame:
            server.publish(frame)
            uid, sequence = frame.data.buffer_uid, frame.data.sequence
            right = kit.kernel_crcs(frame)
        consumer.call('receive')
        with parameters(reservation_fences=0):
            consumer.call('submit', sequence)
        consumer.call('release', sequence, True)
        until(lambda: server.statistics().consumers[0].held == 0, 'RELEASE comes')

        def filled() -> int:
            with next_frame(camera) as frame:
                return frame.data.buffer_uid

        used = {filled() for _ in range(20)}
        assert uid not in used and len(used) > 1, f'{used} were filled, not to be: {uid}'
        let_go()
        equal(consumer.call('finish_job'), 1, 'status of the job')
        equal(kit.result_crcs(result), right, 'what the device saw')
        until(lambda: filled() == uid, 'the buffer comes back to the camera')


WRITTEN, OVERWRITTEN = 61, 255


@check_each('protected', 'unprotected')
def a_killed_consumers_frame_is_not_written_before_its_device_is_done(way: str) -> None:
    """
    Kill a consumer while its device reads; unprotected, the device reads another frame.

    The device's open file is shared with this process, so the kernel doesn't end the job with the
    consumer.
    """
    heap, protected = any_heap(), way == 'protected'
    with (
        kit.card() as device,
        kit.buffers(heap, kit.RESULT_SIZE) as (result,),
        Remote(lambda: Consumer(device, result)) as consumer,
        kit.pool_of(heap, kit.LAYOUT, slots=3, reserve=1) as pool,
        # A deadline that is not reached: only the device's fence ends the quarantine earlier.
        served(pool, quarantine_timeout_s=600.0 if protected else 0.0) as server,
        kit.jobs_held() as let_go,
    ):
        consumer.call('connect', str(server.path))
        with kit.publish(pool, sequence=7, level=WRITTEN) as frame:
            server.publish(frame)
            uid = frame.data.buffer_uid
        consumer.call('receive')
        with parameters(reservation_fences=int(protected)):
            consumer.call('submit', 7)
        equal(list(pool.statistics().holders.values()), [1], 'leases, of the consumer alone')
        consumer.kill()
        until(lambda: not server.consumers and not pool.statistics().holders, 'it is taken back')
        settles(lambda: server.statistics().taken_back, 1, 'frames taken back')
        equal(live()['jobs'], 1, 'jobs of the dead process')
        if protected:
            used = set().union(*(overwrite(server, pool) for _ in range(30)))
            assert uid not in used and len(used) == 2, f'{used} were filled, not to be: {uid}'
        else:
            until(lambda: uid in overwrite(server, pool), 'the slot is filled again')
        let_go()
        until(lambda: live()['jobs'] == 0, 'the device reads')
        until(lambda: uid in overwrite(server, pool), 'the slot comes back')
        level = WRITTEN if protected else OVERWRITTEN
        equal(kit.result_crcs(result), kit.level_crcs(level), 'what the device saw')
        slots = pool.statistics().retired, len(pool.slots), pool.unpromised
        equal(slots, (0, 3, 2), 'retired slots, slots, slots for others')


# A user's node publishes frames that a device still writes: consumers wait for the fence.


_LOAN, _DESCRIPTOR = 'a loan', 'a buffer of its own'


@contextmanager
def _camera(way: str) -> Iterator[tuple[Any, Callable[[], SyncFile]]]:
    """Yield a user's publisher, and a function that publishes a frame with a job's fence."""
    import rclpy

    from zc_perception import FramePublisher

    from .graph_kit import ros

    layout = kit.LAYOUT
    with (
        kit.card() as device,
        kit.buffers(any_heap(), *[layout.buffer_size(0)] * 5) as (image, *own),
        ros() as context,
        ExitStack() as ending,
    ):
        memory: dict[str, Any] = {'heap': any_heap()}
        if way == _DESCRIPTOR:
            memory = {
                'fds': [buffer.fileno() for buffer in own],
                'modifier': layout.modifier,
                'strides': [plane.stride for plane in layout.planes],
                'offsets': [plane.offset for plane in layout.planes],
            }
        node = rclpy.create_node('camera', context=context)
        ending.callback(node.destroy_node)
        size = {'width': layout.width, 'height': layout.height}
        publisher = FramePublisher(node, 'image', image_encoding='nv12', **size, **memory)
        ending.callback(publisher.destroy)

        def begin(target: DmaBuf) -> SyncFile:
            """Begin a job; its sync_file is the only fence: the reservation object gets none."""
            with parameters(reservation_fences=0):
                return kit.start(device, [image], target)

        def publish_own() -> SyncFile:
            job = begin(own[0])
            assert publisher.publish_fd(own[0].fileno(), fence=job.fileno())
            return job

        def publish_loan() -> SyncFile:
            pool = publisher._pool
            assert pool is not None
            free = {slot.index: slot.generation for slot in pool.slots}
            with publisher.loan() as out:
                (lent,) = [slot for slot in pool.slots if slot.generation != free[slot.index]]
                job = begin(lent.buffers[0])
                out.set_fence(job.fileno())
            return job

        yield publisher, publish_own if way == _DESCRIPTOR else publish_loan


@check_each(_LOAN, _DESCRIPTOR)
def another_process_and_its_device_wait_for_the_fence_of(way: str) -> None:
    with (
        kit.buffers(any_heap(), kit.RESULT_SIZE) as (result,),
        Remote(lambda: Consumer(result=result)) as consumer,
        _camera(way) as (publisher, publish),
        kit.jobs_held() as let_go,
    ):
        server = publisher._server
        assert server is not None
        consumer.call('connect', str(server.path))
        job = publish()
        equal(consumer.call('receive')['fence'], 'SyncFile', 'what came with FRAME')
        equal(consumer.call('fence', 0, 0.0), [False, 0], 'signalled, status')
        with kit.refused(RemoteError, 'did not signal'):
            consumer.call('pixels', 0)
        consumer.call('submit', 0)
        let_go()
        equal(consumer.call('fence', 0, PATIENCE_S), [True, 1], 'signalled, status')
        equal(consumer.call('finish_job'), 1, "status of the consumer's job")
        seen = consumer.call('pixels', 0)
        equal(kit.result_crcs(result), seen, "what the consumer's device saw, and its CPU")
        assert seen != kit.level_crcs(0), 'the device wrote nothing'
        consumer.call('release', 0)
        job.close()


@check
def a_plain_message_is_made_when_the_device_has_written() -> None:
    """Check that another thread than the publishing one makes the message."""
    import rclpy
    from sensor_msgs.msg import Image

    from zc_perception.nodes.process import ExecutorThread

    from .graph_kit import ros

    pictures: list[list[int]] = []

    def look(message: Image) -> None:
        luma = kit.LAYOUT.width * kit.LAYOUT.height
        pictures.append([zlib.crc32(message.data[:luma]), zlib.crc32(message.data[luma:])])

    with ros() as elsewhere, _camera(_LOAN) as (publisher, publish), ExitStack() as gate:
        viewer = rclpy.create_node('viewer', context=elsewhere)
        viewer.create_subscription(Image, 'image', look, 1)
        spinner = ExecutorThread(elsewhere, lambda: None)
        spinner.executor.add_node(viewer)
        spinner.start()
        gate.callback(viewer.destroy_node)
        gate.callback(spinner.stop)
        until(lambda: publisher.statistics().image_readers, 'it is found', PATIENCE_S)
        let_go = gate.enter_context(kit.jobs_held())
        job = publish()
        assert not job.wait(0.0) and not pictures, 'the device has not written yet'
        let_go()
        until(lambda: pictures, lambda: str(publisher.statistics()), PATIENCE_S)
        assert pictures[0] != kit.level_crcs(0), 'it was made too early'
        equal(publisher.statistics().conversion_errors, 0, 'conversion errors')
        job.close()
