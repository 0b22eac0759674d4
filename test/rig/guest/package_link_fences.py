"""Rung 2 with fences that a driver made: with FRAME and with RELEASE they keep two processes and a device apart."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import RefusalCode

from .harness import equal, eventually
from .kernel_api import any_heap, parameters
from .package_kit import refused
from .package_link_kit import CAMERAS, FakeProducer, RawPeer, camera_of, captured, free_slot, kernel_crcs, overwrite, served
from .package_link_processes import PATIENCE_S, Consumer, Remote, RemoteError
from .package_memory_kit import (
    HEAPS,
    LAYOUT,
    RESULT_SIZE,
    buffers,
    card,
    check,
    check_each,
    jobs_held,
    level_crcs,
    pool_of,
    publish,
    recorded,
    result_crcs,
    start,
)


@check_each(*HEAPS)
def a_frame_is_not_read_before_the_device_has_written_it(heap: str) -> None:
    """The driver puts no fences into the reservation object: the one that comes with FRAME is all that the other process has."""
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
            equal((recording().mappings(inode), recording().syncs(inode)), (0, []), 'calls of mmap, SYNCs')
            consumer.ask('fence', 7, PATIENCE_S)
            let_go()
            equal(consumer.answer(), [True, 1], 'signalled, status')
            right = kernel_crcs(frame)
            equal(consumer.call('pixels', 7), right, 'CRCs')
            assert right != blank, 'the device wrote nothing'
        job.close()


@check_each('before it is published', 'after it was published')
def a_frame_whose_device_failed_is_an_error_in_the_other_process(when: str) -> None:
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
        if when.startswith('before'):
            let_go()
            assert job.wait(PATIENCE_S)
        with publish(pool, slot, sequence=7, acquire_fence=job.dup()) as frame:
            server.publish(frame)
            equal(consumer.call('receive')['fence'], 'SyncFile', 'what came with FRAME')
            let_go()
            equal(consumer.call('fence', 7, PATIENCE_S), [True, -errno.EIO], 'signalled, status')
            with refused(RemoteError, 'AcceleratorError', 'Input/output error'):
                consumer.call('pixels', 7)
            inode = slot.buffers[0].identity.inode
            equal((recording().mappings(inode), recording().syncs(inode)), (0, []), 'calls of mmap, SYNCs')
            consumer.call('release', 7)
        job.close()


@check_each(*HEAPS)
def a_slot_is_not_filled_again_before_the_consumers_device_has_read_it(heap: str) -> None:
    """Nothing but the fence in RELEASE says so: the driver puts none into the reservation object."""
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
        eventually(lambda: server.statistics().consumers[0].held == 0, 'RELEASE comes')
        used = set().union(*(overwrite(server, pool) for _ in range(30)))
        assert uid not in used and len(used) == 4, f'slot {uid} was filled again while the device read it; filled were {used}'
        let_go()
        equal(consumer.call('finish_job'), 1, 'status of the job')
        eventually(lambda: uid in overwrite(server, pool), 'the slot comes back', PATIENCE_S)
        equal(result_crcs(result), level_crcs(61), 'what the device saw')
        equal(pool.statistics().retired, 0, 'retired slots')


@check_each(*CAMERAS)
def the_camera_does_not_fill_what_the_consumers_device_reads(exporter: str) -> None:
    with (
        buffers(any_heap(), RESULT_SIZE) as (result,),
        Remote(lambda: Consumer(result=result)) as consumer,
        camera_of(exporter) as (camera, pool),
        served(pool) as server,
        ExitStack() as gate,
    ):
        consumer.call('connect', str(server.path))
        with captured(camera) as frame:
            server.publish(frame)
            uid, sequence, right = frame.data.buffer_uid, frame.data.sequence, kernel_crcs(frame)
        consumer.call('receive')
        let_go = gate.enter_context(jobs_held())
        with parameters(reservation_fences=0):
            consumer.call('submit', sequence)
        consumer.call('release', sequence, True)
        eventually(lambda: server.statistics().consumers[0].held == 0, 'RELEASE comes')
        used = set()
        for _ in range(20):
            with captured(camera) as frame:
                used.add(frame.data.buffer_uid)
        assert uid not in used and len(used) > 1, f'buffer {uid} was filled again while the device read it; filled were {used}'
        let_go()
        equal(consumer.call('finish_job'), 1, 'status of the job')
        equal(result_crcs(result), right, 'what the device saw')
        for _ in range(200):
            with captured(camera) as frame:
                if frame.data.buffer_uid == uid:
                    break
        else:
            raise AssertionError('the buffer never comes back to the camera')


def _not_fences(stack: ExitStack) -> dict[str, int]:
    eventfd = os.eventfd(1, os.EFD_CLOEXEC)
    stack.callback(os.close, eventfd)
    (buffer,) = stack.enter_context(buffers(any_heap(), 4096))
    return {'an eventfd': eventfd, 'a dma-buf': buffer.fileno()}


@check
def a_fence_that_no_driver_made_is_refused_by_both_ends() -> None:
    with ExitStack() as stack, pool_of(any_heap(), LAYOUT, slots=3, reserve=1) as pool, served(pool) as server:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for what, number in _not_fences(stack).items():
            with RawPeer.welcomed(server.path) as peer:
                with publish(pool) as frame:
                    server.publish(frame)
                told = peer.receive_frame()
                packet = wire.pack_release(told.uid, told.generation, True)
                peer.send(packet, [number])
                answer = peer.receive_refused()
                equal(
                    (answer.code, 'must be a sync_file' in answer.text), (RefusalCode.PROTOCOL, True), f'RELEASE with {what}: {answer.text}'
                )
            eventually(lambda: server.consumers == 0, 'the connection ends')
            with FakeProducer(folder / what) as producer, SharedMemoryClient(producer.path, name='consumer') as client:
                peer = producer.serve(client)
                producer.introduce(peer)
                producer.frame(peer, fds=[number])
                eventually(lambda client=client: client.receive() is not None or not client.connected, 'FRAME comes')
                equal((client.connected, list(client.statistics().ended)), (False, ['descriptors']), f'FRAME with {what}')
                assert 'must be a sync_file' in client.last_end, client.last_end
                peer.close()
        equal(server.statistics().protocol_errors, {'descriptors': 2}, 'protocol errors')
