"""Runs in the guest: the package's own camera, memory and axl code on a real kernel, checked against the device's CRCs.

``python package_checks.py [PART OF A NAME] [VARIANT:FRAMES ...]``. Results go to ``$RIG_OUT/package_checks.json``; variants are then
run by ``graph_run``, in this process, since imports are slow here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TEST = HERE.parents[1]
sys.path[:0] = [str(TEST), str(TEST.parent)]

import numpy as np  # noqa: E402

from rig.guest import graph_run  # noqa: E402
from rig.guest.harness import Check, equal, eventually, run  # noqa: E402
from rig.guest.kernel_api import bufinfo, heap_buffer, live, parameters, shadow_buffer  # noqa: E402
from rig.virtual_result import VirtualResult  # noqa: E402
from zc_perception.camera.v4l2 import V4l2Camera  # noqa: E402
from zc_perception.errors import AcceleratorError, CameraError  # noqa: E402
from zc_perception.frame import Frame, FrameData, Header  # noqa: E402
from zc_perception.frame_queue import FrameQueue  # noqa: E402
from zc_perception.memory.dmabuf import BufferKind, DmaBuf  # noqa: E402
from zc_perception.memory.heaps import Heap, SealedMemfd, open_heap  # noqa: E402
from zc_perception.memory.owned_fd import OwnedFd  # noqa: E402
from zc_perception.memory.pool import BufferPool, SlotState  # noqa: E402
from zc_perception.negotiation.collection import negotiate  # noqa: E402
from zc_perception.negotiation.constraints import BufferConstraints  # noqa: E402
from zc_perception.npu import axl_errors as errors  # noqa: E402
from zc_perception.npu.axl import AxlAccelerator, AxlJob  # noqa: E402
from zc_perception.npu.axl_abi import ImportFlags  # noqa: E402
from zc_perception.npu.axl_device import AxlDevice, find_devices  # noqa: E402
from zc_perception.npu.manifest import load_manifest  # noqa: E402
from zc_perception.npu.pipeline import InferencePipeline, InFlight  # noqa: E402
from zc_perception.pixel.colorimetry import BT601_LIMITED  # noqa: E402
from zc_perception.pixel.fourcc import NV12  # noqa: E402
from zc_perception.pixel.layout import ImageLayout, PlaneLayout, compute_layout  # noqa: E402

MANIFEST = load_manifest(str(HERE.parent / 'models' / 'virtual_metis.yaml'))
CHECKS: dict[str, Check] = {}
RESULT_HEADER = 56


def check(function: Check) -> Check:
    """Register under its own name."""
    CHECKS[function.__name__.replace('_', ' ')] = function
    return function


@contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    """Expect an exception whose message has these words."""
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        if missing:
            raise AssertionError(f'{kind.__name__} says "{error}", without {missing}') from error
        return
    raise AssertionError(f'expected {kind.__name__}')


@contextmanager
def accelerator(**options: Any) -> Iterator[AxlAccelerator]:
    """An opened one with the virtual model."""
    opened = AxlAccelerator(**options)
    try:
        opened.load(MANIFEST)
        yield opened
    finally:
        opened.close()


@contextmanager
def frames(layout: ImageLayout, heap: Heap | None = None, slots: int = 3) -> Iterator[Callable[[], Frame]]:
    """Makes frames of random pixels, written through the package's own mapping."""
    own = heap or open_heap('dma_heap/system')[0]
    pool = BufferPool(layout, lambda: tuple(own.allocate(layout.buffer_size(i)) for i in range(layout.num_buffers)), slots, name='test')
    chance = np.random.default_rng(1)
    sequence = 0

    def make() -> Frame:
        nonlocal sequence
        slot = pool.acquire()
        assert slot is not None, pool.statistics()
        sequence += 1
        frame = Frame.publish_slot(
            pool, slot, header=Header(sequence, 'test'), colorimetry=BT601_LIMITED, sequence=sequence, captured_ns=time.monotonic_ns()
        )
        with frame.map(write=True) as planes:
            for plane in planes:
                plane[:] = chance.integers(0, 256, plane.shape, np.uint8)
        return frame

    try:
        yield make
    finally:
        pool.close()
        own.close()


def crcs(frame: Frame) -> list[int]:
    """What the CPU sees: CRC of each plane's significant bytes."""
    with frame.map() as planes:
        return [zlib.crc32(np.ascontiguousarray(plane).tobytes()) for plane in planes]


def device_crcs(npu: AxlAccelerator, frame: Frame) -> list[int]:
    """What the device sees."""
    handle = npu.import_frame(frame)
    job = npu.submit(handle, frame)
    try:
        assert job.fence.wait(10.0)
        header = job.result_bytes(0, RESULT_HEADER) + bytes(VirtualResult.boxes.size)
        return VirtualResult.from_buffer_copy(header).crcs()
    finally:
        job.close()
        npu.release(handle)


LAYOUTS = {
    'tight': compute_layout(NV12, 64, 48, stride_align=1, offset_align=1),
    'padded stride': compute_layout(NV12, 1000, 60, stride_align=1024),
    'padded height': compute_layout(NV12, 640, 1080 // 4, height_align=16),
    'offset': replace(
        compute_layout(NV12, 64, 48), planes=(PlaneLayout(0, 4096, 128, 128 * 48), PlaneLayout(0, 4096 + 128 * 64, 128, 128 * 24))
    ),
    'two buffers': compute_layout(NV12, 322, 46, buffer_per_plane=True),
}


@check
def the_device_sees_what_was_written_for_every_heap_and_layout() -> None:
    with accelerator() as npu:
        for heap in ('dma_heap/system', 'udmabuf'):
            for name, layout in LAYOUTS.items():
                with frames(layout, open_heap(heap)[0]) as make, make() as frame:
                    equal(device_crcs(npu, frame), crcs(frame), f'CRCs, {heap}, {name}')


@check
def exporters_and_identities_are_those_of_the_kernel() -> None:
    for heap, exporter in (('dma_heap/system', 'system'), ('udmabuf', 'udmabuf')):
        with frames(LAYOUTS['tight'], open_heap(heap)[0]) as make, make() as frame:
            buffer = frame.data.buffers[0]
            info = bufinfo()[buffer.identity.inode]
            equal(
                (buffer.exporter() in (exporter, info.exporter), info.size), (True, buffer.size), f'exporter {buffer.exporter()} and size'
            )
    equal(open_heap('auto')[0].name, 'dma_heap/system', 'first choice')


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
            equal((npu.imports, live()['imports']), (5, 0), 'imports without the cache, and those left')


@check
def errnos_become_exceptions() -> None:
    device, other = AxlDevice(find_devices()[0]), AxlDevice(find_devices()[0])
    heap, _ = open_heap('dma_heap/system')
    layout = LAYOUTS['tight']
    buffer, small, result = heap.allocate(layout.buffer_size(0)), heap.allocate(4096), heap.allocate(4096)
    memory = SealedMemfd().allocate(layout.buffer_size(0))
    closed = heap.allocate(4096)
    number = closed.fileno()
    try:
        handle = device.import_planes(layout, [buffer], ImportFlags.TO_DEVICE)
        with refused(errors.AxlHandleError, 'ENOENT', 'another open file'):
            other.submit2(handle, result, 1, 1000, None)
        with refused(errors.AxlHandleError):
            other.release_import(handle)
        device.release_import(handle)
        with refused(errors.AxlHandleError, 'ENOENT', 'released before'):
            device.release_import(handle)
        with refused(errors.AxlInvalidError, 'EINVAL', 'memfd'):
            device.import_planes(layout, [memory], ImportFlags.TO_DEVICE)
        with refused(errors.AxlInvalidError):
            device.import_planes(layout, [buffer], ImportFlags(0))
        with refused(errors.AxlInvalidError):
            device.import_planes(layout, [buffer], ImportFlags(8))
        with refused(errors.AxlInvalidError):
            device.import_planes(replace(layout, fourcc=0x20202020), [buffer], ImportFlags.TO_DEVICE)
        with refused(errors.AxlInvalidError):
            device.import_fd(small, 64, 48, NV12, ImportFlags.FROM_DEVICE | ImportFlags.TO_DEVICE)
        closed.fileno = lambda: number  # type: ignore[method-assign]
        closed.close()
        with refused(errors.AxlBadFdError, 'EBADF', 'keep the frame leased'):
            device.import_fd(closed, 64, 48, NV12, ImportFlags.TO_DEVICE)
        narrow = heap_buffer(layout.buffer_size(0), os.O_RDONLY)
        reader = DmaBuf(OwnedFd(narrow.fd), BufferKind.DMABUF, 'dma_heap/system', writable=False)
        narrow.fd = -1
        with refused(errors.AxlAccessError, 'EACCES', 'TO_DEVICE'):
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
        self.pipeline = InferencePipeline(npu, self.queue, self._keep, self._lose, in_flight=in_flight, timeout_s=timeout_s)

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
    for parameter, words, in_flight in (('fail_every', 'Input/output error', 4), ('hang_every', 'timed out', 1)):
        with accelerator(timeout_s=1.0) as npu, frames(LAYOUTS['tight'], slots=12) as make, parameters(**{parameter: 3}):
            collector = Collector(npu, in_flight)
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
    with accelerator(timeout_s=3.0) as npu, frames(LAYOUTS['tight'], slots=12) as make:
        with parameters(latency_us=700000):
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
        with parameters(latency_us=150000):
            blocker = npu.submit(npu.import_frame(first), first)
        late = FrameData(**{**vars(second.data), 'acquire_fence': blocker.fence})
        frame = Frame(late, second._held())
        job = npu.submit(npu.import_frame(frame), frame)
        assert not job.fence.wait(0.02), 'the job did not wait'
        assert job.fence.wait(10) and blocker.fence.wait(0)
        assert job.fence.info()[1] >= blocker.fence.info()[1], 'fence timestamps'
        job.close()
        blocker.close()
        frame._lease = None
        first.release()
        second.release()


def _camera(slots: int = 4, width: int = 640, height: int = 360) -> V4l2Camera:
    camera = V4l2Camera('/dev/video0', width, height, 30.0, 'cam', now_ns=time.time_ns)
    own = camera.constraints()
    settings = negotiate([own, BufferConstraints('slots', slots=slots - own.slots)], camera.width, camera.height, heap=camera.heap_name)
    camera.configure(settings)
    return camera


def _next(camera: V4l2Camera, seconds: float = 10.0) -> Frame:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        frame = camera.capture()
        if frame is not None:
            return frame
    raise AssertionError(f'no frame within {seconds} s: {camera.statistics()} {camera.pool_statistics()}')


@check
def camera_frames_are_the_drivers_own_buffers_and_come_back_to_it() -> None:
    camera = _camera()
    try:
        inodes = {slot.buffers[0].identity.inode for slot in camera._pool.slots}
        equal({bufinfo()[i].exporter for i in inodes}, {'videobuf2_vmalloc'}, 'exporter')
        seen, stamps, sequences = set(), [], []
        for _ in range(12):
            with _next(camera) as frame:
                seen.add(frame.data.buffers[0].identity.inode)
                stamps.append(frame.header.stamp_ns)
                sequences.append(frame.data.sequence)
                assert not frame.data.buffers[0].mapped
        assert seen <= inodes and len(seen) > 1
        assert stamps == sorted(stamps) and sequences == sorted(set(sequences))
    finally:
        camera.close()
    eventually(lambda: not inodes & set(bufinfo()), 'the buffers go')


@check
def a_starved_camera_recovers_and_counts_what_it_lost() -> None:
    camera = _camera(slots=4)
    try:
        made = camera.pool_statistics().slots
        held = [_next(camera) for _ in range(made)]
        time.sleep(0.4)
        assert camera.capture() is None, 'there was no buffer left to fill'
        for frame in held:
            frame.release()
        _next(camera).release()
        assert camera.statistics().dropped >= 5, camera.statistics()
        eventually(lambda: camera.pool_statistics().states == {SlotState.FREE: made}, 'all slots are with the driver again')
    finally:
        camera.close()


@check
def a_leased_frame_outlives_its_camera() -> None:
    camera = _camera()
    frame = _next(camera)
    before = crcs(frame)
    camera.close()
    inode = frame.data.buffers[0].identity.inode
    equal(crcs(frame), before, 'pixels after the camera closed')
    frame.release()
    del frame
    eventually(lambda: inode not in bufinfo(), 'the buffer goes with its last lease')


@check
def what_the_camera_cannot_do_is_said() -> None:
    with refused(CameraError, '/dev/video77', 'devices found: /dev/video0'):
        V4l2Camera('/dev/video77', 0, 0, 0.0, 'cam', now_ns=time.time_ns)
    with refused(CameraError, "can't do 641x359", 'the nearest is'):
        V4l2Camera('/dev/video0', 641, 359, 0.0, 'cam', now_ns=time.time_ns)
    first = _camera()
    try:
        _next(first).release()
        with refused(CameraError, 'busy', 'another program uses it'):
            _camera(width=320, height=180)
    finally:
        first.close()


@check
def sigkill_of_the_whole_graph_leaves_nothing_behind() -> None:
    binary = Path(sys.executable).parent / 'perception'
    args = ['capture:camera:=v4l2', 'inference:accelerator:=axl', f'inference:model:={HERE.parent / "models" / "virtual_metis.yaml"}']
    args += ['capture:width:=640', 'capture:height:=360', 'inference:in_flight:=4']
    before = set(bufinfo())
    with parameters(latency_us=200000):
        command = [str(binary), '--ros-args', *(word for value in args for word in ('-p', value))]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: live()['jobs'] > 0 and live()['imports'] > 2, 'jobs are in flight', 90)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    eventually(lambda: not any(live().values()), f'the device lets go: {live()}')
    eventually(lambda: set(bufinfo()) <= before, 'no dma-buf is left')


def main() -> int:
    """Run the checks whose name contains the argument, and then the graph if asked for, whatever the checks say."""
    variants = [argument for argument in sys.argv[1:] if ':' in argument]
    part = next((argument for argument in sys.argv[1:] if ':' not in argument), '')
    chosen = {name: function for name, function in CHECKS.items() if part in name}
    good = run(chosen, Path(os.environ['RIG_OUT']) / 'package_checks.json')
    if variants:
        graph_run.main(variants)
    return 0 if good else 1


if __name__ == '__main__':
    sys.exit(main())
