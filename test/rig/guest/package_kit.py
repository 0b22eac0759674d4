"""What the checks of the package in the guest share: a registry, an opened accelerator, frames of random pixels, CRCs."""

from __future__ import annotations

import fcntl
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from zc_perception.frame import Frame, Header
from zc_perception.memory.heaps import Heap, open_heap
from zc_perception.memory.pool import BufferPool
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.npu.manifest import load_manifest
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import ImageLayout, PlaneLayout, compute_layout

from ..virtual_result import VirtualResult
from .harness import Registry
from .kernel_api import any_heap

HERE = Path(__file__).resolve().parent
MANIFEST = load_manifest(str(HERE.parent / 'models' / 'virtual_metis.yaml'))
_registry = Registry()
CHECKS, check = _registry.checks, _registry.check
RESULT_HEADER = 56
_PROBE_CRC = 0xC0205561
_PROBE = 'iIIIQII'


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
    # A machine that stands still for a second is no reason for the driver to give a job up.
    opened = AxlAccelerator(**{'timeout_s': 20.0, **options})
    try:
        opened.load(MANIFEST)
        yield opened
    finally:
        opened.close()


@contextmanager
def frames(layout: ImageLayout, heap: Heap | None = None, slots: int = 3) -> Iterator[Callable[[], Frame]]:
    """Makes frames of random pixels, written through the package's own mapping."""
    own = heap or open_heap(any_heap())[0]
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


def kernel_crcs(frame: Frame) -> list[int]:
    """The CRC of each plane by the exporter's own mapping in the kernel: no process has to map it for that."""
    data, found = frame.data, []
    probe = os.open('/dev/axl_probe', os.O_RDWR | os.O_CLOEXEC)
    try:
        for plane, element in zip(data.planes, data.layout.format.planes, strict=True):
            rows = element.row_bytes(data.width), plane.stride, element.rows(data.height)
            argument = bytearray(struct.pack(_PROBE, data.buffers[plane.buffer].fileno(), *rows, plane.offset, 0, 0))
            fcntl.ioctl(probe, _PROBE_CRC, argument)
            found.append(struct.unpack(_PROBE, argument)[5])
    finally:
        os.close(probe)
    return found


def device_crcs(npu: AxlAccelerator, frame: Frame) -> list[int]:
    """What the device sees."""
    handle = npu.import_frame(frame)
    job = npu.submit(handle, frame)
    try:
        assert job.fence.wait(10.0)
        return VirtualResult.of_job(job, RESULT_HEADER).crcs()
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
