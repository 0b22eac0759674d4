"""The package's memory and axl code on a real kernel: what the device reads, what it refuses, what happens when it fails."""

from __future__ import annotations

import os
from dataclasses import replace

from zc_perception.errors import AcceleratorError
from zc_perception.frame import Frame, FrameData
from zc_perception.frame_queue import FrameQueue
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.heaps import SealedMemfd, open_heap
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.accelerator import AxlAccelerator, AxlJob
from zc_perception.npu.axl.device import AxlDevice, AxlError
from zc_perception.npu.metis_card import find_cards
from zc_perception.npu.scheduler import InFlight, Scheduler
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import ImageLayout, compute_layout

from .harness import equal, eventually, settles
from .kernel_api import HEAP_EXPORTERS, any_heap, bufinfo, heap_buffer, heaps_there, live, parameters, shadow_buffer
from .package_kit import LAYOUTS, accelerator, check, crcs, device_crcs, frames, refused
from .package_memory_kit import jobs_held


@check
def the_device_sees_what_was_written_for_every_heap_and_layout() -> None:
    with accelerator() as npu:
        for heap in heaps_there():
            for name, layout in LAYOUTS.items():
                with frames(layout, open_heap(heap)[0]) as make, make() as frame:
                    equal(device_crcs(npu, frame), crcs(frame), f'CRCs, {heap}, {name}')


@check
def exporters_and_identities_are_those_of_the_kernel() -> None:
    for heap in heaps_there():
        exporter = HEAP_EXPORTERS[heap]
        with frames(LAYOUTS['tight'], open_heap(heap)[0]) as make, make() as frame:
            buffer = frame.data.buffers[0]
            info = bufinfo()[buffer.identity.inode]
            equal(
                (buffer.exporter() in (exporter, info.exporter), info.size), (True, buffer.size), f'exporter {buffer.exporter()} and size'
            )
    equal(open_heap('auto')[0].name, any_heap(), 'first choice')


def _twisted(layout: ImageLayout, name: str) -> ImageLayout:
    luma, chroma = layout.planes
    if name == 'offset':
        return replace(layout, planes=(luma, replace(chroma, offset=chroma.offset - 128)))
    if name == 'stride':
        return replace(layout, planes=(replace(luma, stride=luma.stride - 64), chroma))
    # Plane order: both planes read the other's place (chroma has half the rows, so that everything lies inside).
    swapped = replace(chroma, offset=luma.offset, size=chroma.size), replace(luma, offset=chroma.offset - luma.size // 2)
    return replace(layout, planes=(swapped[1], swapped[0]))


@check
def a_wrong_offset_stride_or_plane_order_is_a_wrong_crc() -> None:
    layout = compute_layout(NV12, 192, 48, stride_align=256)
    with accelerator() as npu, frames(layout) as make, make() as frame:
        right = crcs(frame)
        equal(device_crcs(npu, frame), right, 'CRCs of the right layout')
        for name in ('offset', 'stride', 'order'):
            data = FrameData(**{**vars(frame.data), 'layout': _twisted(layout, name)})
            wrong = Frame(data, frame._held())
            assert device_crcs(npu, wrong) != right, f'a wrong {name} went unnoticed'
            wrong._lease = None


@check
def a_missing_sync_is_a_wrong_crc() -> None:
    class ShadowHeap:
        name = 'axl_shadow'

        def allocate(self, size: int) -> DmaBuf:
            memory = shadow_buffer(size)
            fd, memory.fd = OwnedFd(memory.fd), -1
            return DmaBuf(fd, BufferKind.DMABUF, 'dma_heap/shadow')

        def close(self) -> None:
            pass

    with accelerator() as npu, frames(LAYOUTS['padded stride'], ShadowHeap()) as make, make() as frame:
        right = crcs(frame)
        equal(device_crcs(npu, frame), right, 'CRCs with SYNC, as Frame.map() does it')
        buffer = frame.data.buffers[0]
        buffer.kind = BufferKind.MEMFD  # the package sends no SYNC to what it takes for a memfd
        with frame.map(write=True) as planes:
            planes[0][:] = 200
            planes[1][:] = 50
        changed = crcs(frame)
        buffer.kind = BufferKind.DMABUF
        assert changed != right
        equal(device_crcs(npu, frame), right, 'CRCs without SYNC: the device still sees the old pixels')


@check
def imports_are_cached_by_identity_and_layout() -> None:
    with frames(LAYOUTS['padded stride'], slots=3) as make:
        with accelerator() as npu:
            for _ in range(12):
                with make() as frame:
                    equal(device_crcs(npu, frame), crcs(frame), 'CRCs')
            assert npu.imports <= 3, npu.imports
            equal(live()['imports'], npu.imports, 'imports held')
        equal(live()['imports'], 0, 'imports after close')
        with accelerator(import_cache=False) as npu:
            for _ in range(5):
                with make() as frame:
                    device_crcs(npu, frame)
            equal(npu.imports, 5, 'imports without the cache')
            settles(lambda: live()['imports'], 0, 'imports without the cache that are left')


@check
def errnos_become_exceptions() -> None:
    device, other = AxlDevice(find_cards()[0].path), AxlDevice(find_cards()[0].path)
    heap, _ = open_heap(any_heap())
    layout = LAYOUTS['tight']
    buffer, small, result = heap.allocate(layout.buffer_size(0)), heap.allocate(4096), heap.allocate(4096)
    memory = SealedMemfd().allocate(layout.buffer_size(0))
    closed = heap.allocate(4096)
    number = closed.fileno()
    try:
        handle = device.import_planes(layout, [buffer], ImportFlags.TO_DEVICE)
        with refused(AxlError, 'ENOENT', 'another open file'):
            other.submit2(handle, result, 1, 1000, None)
        with refused(AxlError, 'ENOENT'):
            other.release_import(handle)
        device.release_import(handle)
        with refused(AxlError, 'ENOENT', 'released before'):
            device.release_import(handle)
        with refused(AxlError, 'EINVAL', 'memfd'):
            device.import_planes(layout, [memory], ImportFlags.TO_DEVICE)
        with refused(AxlError, 'EINVAL'):
            device.import_planes(layout, [buffer], ImportFlags(0))
        with refused(AxlError, 'EINVAL'):
            device.import_planes(layout, [buffer], ImportFlags(8))
        with refused(AxlError, 'EINVAL'):
            device.import_planes(replace(layout, fourcc=0x20202020), [buffer], ImportFlags.TO_DEVICE)
        with refused(AxlError, 'EINVAL'):
            device.import_fd(small, 64, 48, NV12, ImportFlags.FROM_DEVICE | ImportFlags.TO_DEVICE)
        closed.fileno = lambda: number  # type: ignore[method-assign]
        closed.close()
        with refused(AxlError, 'EBADF', 'keep the frame leased'):
            device.import_fd(closed, 64, 48, NV12, ImportFlags.TO_DEVICE)
        if 'dma_heap/system' in heaps_there():  # udmabuf makes none that can't be written
            narrow = heap_buffer(layout.buffer_size(0), os.O_RDONLY)
            reader = DmaBuf(OwnedFd(narrow.fd), BufferKind.DMABUF, 'dma_heap/system', writable=False)
            narrow.fd = -1
            with refused(AxlError, 'EACCES', 'TO_DEVICE'):
                device.import_fd(reader, 64, 48, NV12, ImportFlags.BIDIRECTIONAL)
            device.release_import(device.import_fd(reader, 64, 48, NV12, ImportFlags.TO_DEVICE))
            reader.close()
    finally:
        for opened in (buffer, small, result, memory):
            opened.close()
        heap.close()
        device.close()
        other.close()


@check
def more_jobs_than_the_device_takes_are_refused_and_the_next_works() -> None:
    with parameters(latency_us=200000), accelerator() as npu, frames(LAYOUTS['tight'], slots=6) as make:
        depth = npu.capabilities().max_in_flight
        held = [make() for _ in range(depth + 1)]
        jobs = [npu.submit(npu.import_frame(frame), frame) for frame in held[:depth]]
        with refused(AcceleratorError, 'result buffers are in use'):
            npu.submit(npu.import_frame(held[depth]), held[depth])
        for job in jobs:
            assert job.fence.wait(10)
            job.fence.check()
            job.close()
        for frame in held:
            frame.release()


@check
def older_drivers_work_for_tight_images_and_shipped_ones_name_the_way_out() -> None:
    with parameters(abi_level=1), accelerator() as npu:
        with frames(LAYOUTS['tight']) as make, make() as frame:
            equal(device_crcs(npu, frame), crcs(frame), 'CRCs with ioctls 64-66 alone')
        with frames(LAYOUTS['padded stride']) as make, make() as frame, refused(AcceleratorError, 'only tight LINEAR'):
            npu.import_frame(frame)
    with parameters(abi_level=0), refused(AcceleratorError, 'ENOTTY', 'axruntime', 'cpu'):
        AxlAccelerator()


class Collector:
    """Runs frames through the real pipeline and keeps what came out."""

    def __init__(self, npu: AxlAccelerator, in_flight: int, timeout_s: float = 5.0) -> None:
        self.queue = FrameQueue(None)
        self.results: list[int] = []
        self.losses: list[tuple[int, str]] = []
        self.pipeline = Scheduler(npu, self.queue, self._keep, self._lose, in_flight=in_flight, timeout_s=timeout_s)

    def _keep(self, entry: InFlight) -> None:
        assert isinstance(entry.job, AxlJob)
        entry.job.outputs()
        self.results.append(entry.frame.data.sequence)

    def _lose(self, frame: Frame, error: Exception) -> None:
        self.losses.append((frame.data.sequence, str(error)))

    def finish(self, wanted: int) -> None:
        eventually(lambda: len(self.results) + len(self.losses) >= wanted, 'all frames are through', 20)
        self.pipeline.stop()
        self.queue.close()


@check
def device_errors_and_hangs_cost_their_own_frames_only() -> None:
    # A hung job holds up those behind it until its timeout, which is theirs too: one at a time there.
    for parameter, words, in_flight, timeout_s in (('fail_every', 'Input/output error', 4, 20.0), ('hang_every', 'timed out', 1, 3.0)):
        with accelerator(timeout_s=timeout_s) as npu, frames(LAYOUTS['tight'], slots=12) as make, parameters(**{parameter: 3}):
            collector = Collector(npu, in_flight, 20.0)
            collector.pipeline.start()
            for _ in range(9):
                collector.queue.put(make())
            collector.finish(9)
            equal([s for s, _ in collector.losses], [3, 6, 9], f'{parameter}: lost frames')
            equal(collector.results, [1, 2, 4, 5, 7, 8], f'{parameter}: results in order')
            assert all(words in text for _, text in collector.losses), collector.losses


@check
def results_of_jobs_that_were_given_up_come_back_when_the_device_is_done() -> None:
    # The driver's timeout is longer than the pipeline's patience, so that the pipeline gives up first.
    with accelerator() as npu, frames(LAYOUTS['tight'], slots=12) as make:
        with jobs_held():
            collector = Collector(npu, in_flight=4, timeout_s=0.3)
            collector.pipeline.start()
            for _ in range(4):
                collector.queue.put(make())
            collector.finish(4)
        equal((collector.results, len(collector.losses)), ([], 4), 'results and losses of an impatient pipeline')
        eventually(lambda: live()['jobs'] == 0, 'the device is done', 20)
        with make() as frame:
            equal(device_crcs(npu, frame), crcs(frame), 'CRCs after that')
        for _ in range(npu.capabilities().max_in_flight):
            npu._results.take()


@check
def a_frame_is_not_read_before_its_acquire_fence() -> None:
    with accelerator() as npu, frames(LAYOUTS['tight'], slots=4) as make:
        first, second = make(), make()
        with parameters(latency_us=2000000):
            blocker = npu.submit(npu.import_frame(first), first)
        late = FrameData(**{**vars(second.data), 'acquire_fence': blocker.fence})
        frame = Frame(late, second._held())
        job = npu.submit(npu.import_frame(frame), frame)
        assert not job.fence.wait(0.02), 'the job did not wait'
        assert job.fence.wait(10) and blocker.fence.wait(0)
        assert job.fence.timestamp_ns >= blocker.fence.timestamp_ns, 'fence timestamps'
        job.close()
        blocker.close()
        frame._lease = None
        first.release()
        second.release()
