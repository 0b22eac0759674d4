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
Helpers of the package's checks in the guest: accelerator, frames, probes, processes.

The probes see every ``ioctl`` and ``mmap`` of every dma-buf, whoever exports it, and are not part
of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
import fcntl
import os
from pathlib import Path
import re
import struct
from typing import Any
import zlib

import frame_kit
import numpy as np

from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.heaps import open_heap
from zc_perception.memory.pool import BufferPool, Slot
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.npu.axl.device import AxlDevice
from zc_perception.npu.manifest import load_manifest
from zc_perception.npu.metis_card import find_cards
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout, ImageLayout, PlaneLayout

from .kernel_api import METIS_PARAMETERS, parameters, trace_text, TRACING, write_control
from .npu_client import LONG_US, VirtualResult
from .npu_client import RESULT_SIZE as VIRTUAL_SIZE

MANIFEST = load_manifest(
    str(Path(__file__).resolve().parents[1] / 'models' / 'virtual_metis.yaml')
)
PAGE = os.sysconf('SC_PAGE_SIZE')
RESULT_SIZE = 4096
LAYOUTS = {
    'tight': compute_layout(NV12, 64, 48, stride_align=1, offset_align=1),
    'padded stride': compute_layout(NV12, 1000, 60, stride_align=1024),
    'padded height': compute_layout(NV12, 640, 1080 // 4, height_align=16),
    'offset': replace(
        compute_layout(NV12, 64, 48),
        planes=(
            PlaneLayout(0, 4096, 128, 128 * 48),
            PlaneLayout(0, 4096 + 128 * 64, 128, 128 * 24),
        ),
    ),
    'two buffers': compute_layout(NV12, 322, 46, buffer_per_plane=True),
}
LAYOUT = LAYOUTS['tight']
_RESULT_HEADER = 56
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
    """Yield an accelerator with the virtual model and no short timeout."""
    with closing(AxlAccelerator(AxlAccelerator.own({'timeout': 20.0, **options}))) as npu:
        npu.load(MANIFEST)
        yield npu


def card() -> AbstractContextManager[AxlDevice]:
    return closing(AxlDevice(find_cards()[0].path))


def start(
    device: AxlDevice,
    source: Sequence[DmaBuf],
    result: DmaBuf,
    layout: ImageLayout = LAYOUT,
    after: SyncFile | None = None,
) -> SyncFile:
    """Let the device read `source` and write `result`, once `after` has signalled."""
    handle = device.import_planes(layout, source, ImportFlags.TO_DEVICE)
    try:
        return device.submit2(handle, result, 1, LONG_US, after)
    finally:
        device.release_import(handle)


@contextmanager
def jobs_held() -> Iterator[Callable[[], object]]:
    """Keep the block's jobs in flight until the yielded function is called."""
    with parameters(hold=1):
        yield lambda: (METIS_PARAMETERS / 'hold').write_text('0')


def result_crcs(result: DmaBuf) -> list[int]:
    """Return the CRCs in `result` that the device wrote; zeros if it didn't."""
    result.begin_cpu_access(CpuAccess.READ)
    try:
        return VirtualResult.from_buffer_copy(result.mapping()[:VIRTUAL_SIZE]).crcs()
    finally:
        result.end_cpu_access(CpuAccess.READ)


def level_crcs(level: int) -> list[int]:
    """Return the CRCs of a frame in which every sample is *level*."""
    return [
        zlib.crc32(bytes([level]) * (plane.row_bytes(LAYOUT.width) * plane.rows(LAYOUT.height)))
        for plane in LAYOUT.format.planes
    ]


_PROBES = (
    # Probe the return: then the result is known, and the argument is still in memory.
    (
        'zc/dmabuf_ioctl dma_buf_ioctl%return inode=file->f_inode->i_ino request=cmd:x32 '
        'flags=+u0(arg):u32 result=$retval:s64'
    ),
    'zc/dmabuf_mmap dma_buf_mmap_internal inode=file->f_inode->i_ino',
)
_SYNC = 0x40086200
_EVENT = re.compile(r'-(\d+) +\[\d+\].*?: (dmabuf_\w+)(?:: \(.*?\))? (.*)$')


class Recording:
    def __init__(self, text: str) -> None:
        self._events = [
            (int(m[1]), m[2], dict(pair.split('=', 1) for pair in m[3].split() if '=' in pair))
            for m in map(_EVENT.search, text.splitlines())
            if m
        ]

    def syncs(self, *inodes: int, result: int = 0) -> list[tuple[int, int]]:
        """
        Return SYNCs of these buffers with this `result` (0: success), in order.

        Each is a thread and flags: 1 READ, 2 WRITE, 4 END.
        """
        return [
            (thread, int(f['flags']))
            for thread, name, f in self._events
            if name == 'dmabuf_ioctl' and int(f['inode']) in inodes
            if int(f['request'], 16) == _SYNC and int(f['result']) == result
        ]

    def flags(self, *inodes: int) -> list[int]:
        return [flags for _, flags in self.syncs(*inodes)]

    def mappings(self, inode: int) -> int:
        named = [(name, int(f['inode'])) for _, name, f in self._events]
        return named.count(('dmabuf_mmap', inode))


def _install_probes() -> None:
    """Install the probes once: each change rewrites code that QEMU's other cores may run."""
    if (TRACING / 'events/zc').exists():
        return
    write_control(TRACING / 'tracing_on', '0')
    write_control(TRACING / 'options/record-cmd', '0')  # see kernel_api.recording()
    for probe in _PROBES:
        try:
            write_control(TRACING / 'dynamic_events', f'f:{probe}', append=True)
        except OSError:  # arm64 has no fprobes
            write_control(TRACING / 'dynamic_events', f'p:{probe}', append=True)
    write_control(TRACING / 'events/zc/enable', '1')


@contextmanager
def recorded() -> Iterator[Callable[[], Recording]]:
    """Record dma-buf calls; call the yielded function for the record."""
    _install_probes()
    (TRACING / 'trace').write_text('')
    write_control(TRACING / 'tracing_on', '1')
    try:
        yield lambda: Recording(trace_text())
    finally:
        write_control(TRACING / 'tracing_on', '0')


def maps_lines(inode: int) -> list[tuple[int, int, str]]:
    """Return ``(first address, size, permissions)`` of each mapping of a dma-buf or memfd."""
    found = []
    for line in Path('/proc/self/maps').read_text(errors='replace').splitlines():
        span, permissions, _, _, number, *name = line.split(maxsplit=5)
        if int(number) == inode and name and name[0].startswith(('/dmabuf:', '/memfd:')):
            first, last = (int(end, 16) for end in span.split('-'))
            found.append((first, last - first, permissions))
    return found


@contextmanager
def buffers(heap: str, *sizes: int) -> Iterator[list[DmaBuf]]:
    made: list[DmaBuf] = []
    with closing(open_heap(heap)[0]) as opened:
        try:
            made += [opened.allocate(size) for size in sizes]
            yield made
        finally:
            for buffer in made:
                buffer.close()


@contextmanager
def pool_of(
    heap: str, layout: ImageLayout, slots: int = 3, **options: Any
) -> Iterator[BufferPool]:
    with (
        closing(open_heap(heap)[0]) as own,
        closing(frame_kit.pool_of(layout, slots, heap=own, **options)) as pool,
    ):
        yield pool


def publish(
    pool: BufferPool,
    slot: Slot | None = None,
    *,
    sequence: int = 1,
    level: int | None = None,
    **options: Any,
) -> Frame:
    """Publish a frame in *slot*, or in a free slot, with all samples at *level* if given."""
    frame = frame_kit.next_frame(pool, sequence, slot, **options)
    if level is not None:
        with frame.map(write=True) as planes:
            for plane in planes:
                plane[...] = level
    return frame


def crcs(frame: Frame) -> list[int]:
    """Return the CRC of each plane's significant bytes, as the CPU sees them."""
    with frame.map() as planes:
        return [zlib.crc32(np.ascontiguousarray(plane).tobytes()) for plane in planes]


def kernel_crcs(frame: Frame) -> list[int]:
    """Return the CRC of each plane by the exporter's own mapping, without one in a process."""
    data, found = frame.data, []
    with open('/dev/axl_probe', 'rb+', buffering=0) as probe:
        for plane, element in zip(data.planes, data.layout.format.planes, strict=True):
            rows = element.row_bytes(data.width), plane.stride, element.rows(data.height)
            argument = bytearray(
                struct.pack(_PROBE, data.buffers[plane.buffer].fileno(), *rows, plane.offset, 0, 0)
            )
            fcntl.ioctl(probe, _PROBE_CRC, argument)
            found.append(struct.unpack(_PROBE, argument)[5])
    return found


def device_crcs(npu: AxlAccelerator, frame: Frame) -> list[int]:
    """Return the CRCs that the device computes."""
    handle = npu.import_frame(frame)
    job = npu.submit(handle, frame)
    try:
        assert job.fence.wait(10.0)
        return VirtualResult.of_job(job, _RESULT_HEADER).crcs()
    finally:
        job.close()
        npu.release(handle)
