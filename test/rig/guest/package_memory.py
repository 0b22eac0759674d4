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

"""Buffers of heaps, of V4L2 drivers and of a foreign library: identity, rights and mappings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import ctypes
import errno
import mmap
import os
import signal
import socket
import time
import zlib

from zc_perception.errors import AllocationError
from zc_perception.frame import Frame, Header
from zc_perception.link.foreign_images import ForeignImages
from zc_perception.memory.dmabuf import BufferIdentity, BufferKind, CpuAccess, DmaBuf, is_dmabuf
from zc_perception.memory.heaps import open_heap
from zc_perception.memory.kernel_abi import fdinfo
from zc_perception.memory.pool import ForeignBufferPool, HeldBuffers
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.device import AxlError
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12, pixel_format
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import LINEAR

from .harness import check_each, check_with_a_heap, equal, raises
from .kernel_api import any_heap, bufinfo, export, EXPORTERS, HEAP_EXPORTERS, libc, raw_camera
from .kernel_api import RAW_SIZE as SIZE
from .package_kit import (
    accelerator,
    adopted,
    buffers,
    card,
    Child,
    crcs,
    device_crcs,
    HEAPS,
    info_of,
    LAYOUTS,
    level_crcs,
    maps_lines,
    PAGE,
    pool_of,
    publish,
    received,
    recorded,
    refused,
    result_crcs,
    RESULT_SIZE,
    start,
    wait_for,
)

SIZES = (1, PAGE - 1, PAGE, PAGE + 1, 640 * 360 * 3 // 2)


@check_each(*HEAPS)
def a_buffer_is_a_zeroed_dma_buf_of_whole_pages(heap: str) -> None:
    with buffers(heap, *SIZES) as made:
        for size, buffer in zip(SIZES, made, strict=True):
            with buffer.dup() as fd:
                assert is_dmabuf(fd), f'{buffer} is no dma-buf'
            wanted = -(-size // PAGE) * PAGE
            equal(
                (buffer.kind, buffer.size, info_of(buffer).size),
                (BufferKind.DMABUF, wanted, wanted),
                f'kind and size of {size} bytes',
            )
            equal(
                (buffer.exporter(), info_of(buffer).exporter),
                (HEAP_EXPORTERS[heap], HEAP_EXPORTERS[heap]),
                'exporter',
            )
            equal(os.get_inheritable(buffer.fileno()), False, 'inherited by child programs')
            equal(bytes(buffer.mapping()), bytes(wanted), 'first content')


@check_with_a_heap
def an_identity_is_the_same_for_every_descriptor_in_every_process(heap: str) -> None:
    def peer(theirs: socket.socket) -> None:
        for _ in range(2):
            with received(theirs) as fd:
                buffer = DmaBuf.from_fd(fd.dup())
                theirs.send(repr((buffer.identity, buffer.size, buffer.exporter())).encode())
                buffer.close()

    child = Child(peer)  # forked before the buffer exists, so it inherits nothing
    with buffers(heap, 2 * PAGE) as (buffer,):
        status = os.fstat(buffer.fileno())
        equal(buffer.identity, BufferIdentity(status.st_dev, status.st_ino), 'identity')
        twin = DmaBuf.from_fd(buffer.dup())
        equal(
            (twin.identity, twin.size, twin.kind),
            (buffer.identity, buffer.size, buffer.kind),
            'what a duplicate is',
        )
        here = repr((buffer.identity, buffer.size, twin.exporter()))
        for _ in range(2):
            child.send(buffer)
            equal(child.answer().decode(), here, 'what it is in another process')
        twin.close()
        # A read-only descriptor must not be reopened for writing.
        with raises(errno.ENXIO):
            os.open(f'/proc/self/fd/{buffer.fileno()}', os.O_RDWR)
    child.join()


@check_with_a_heap
def a_frame_that_only_devices_touch_is_never_mapped(heap: str) -> None:
    with (
        accelerator() as npu,
        pool_of(heap, LAYOUTS['tight'], slots=2) as pool,
        recorded() as recording,
    ):
        inodes = [s.buffers[0].identity.inode for s in pool.slots]
        blank = zlib.crc32(bytes(64 * 48)), zlib.crc32(bytes(64 * 24))
        for turn in range(4):
            with publish(pool, sequence=turn) as frame:
                equal(tuple(device_crcs(npu, frame)[:2]), blank, 'CRCs of the device')
                assert not frame.data.buffers[0].mapped
        equal([maps_lines(inode) for inode in inodes], [[], []], 'mappings')
        equal(
            (recording().mappings(*inodes), recording().syncs(*inodes)),
            (0, []),
            'calls of mmap, SYNCs',
        )


def death(work: object, *arguments: object) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open('/dev/null', os.O_WRONLY)
            os.dup2(null, 2)
            work(*arguments)  # type: ignore[operator]
        finally:
            os._exit(0)
    return wait_for(pid)


def poke(address: int) -> None:
    ctypes.memset(address, 7, 1)


_DMA = 'videobuf2_dma_contig'
LAYOUT = compute_layout(NV12, *SIZE)
BYTES = SIZE[0] * SIZE[1] * 3 // 2


@contextmanager
def _exported(exporter: str, access: int, **options: bool) -> Iterator[DmaBuf]:
    with raw_camera(EXPORTERS[exporter], 1) as fd:
        buffer = adopted(export(fd, 0, access), **options)
        try:
            yield buffer
        finally:
            buffer.close()


@check_each(_DMA)
def an_exported_buffer_is_adopted(exporter: str) -> None:
    with _exported(exporter, os.O_RDWR, writable=True) as buffer, buffer.dup() as fd:
        info = bufinfo()[buffer.identity.inode]
        assert is_dmabuf(fd)
        equal(
            (buffer.kind, buffer.exporter(), info.exporter),
            (BufferKind.DMABUF, exporter, exporter),
            'kind and exporter',
        )
        wanted = -(-BYTES // PAGE) * PAGE
        equal((buffer.size, info.size), (wanted, wanted), 'size')
        buffer.set_name('camera 0')
        equal(
            (fdinfo(buffer.fileno())['name'], bufinfo()[buffer.identity.inode].name),
            ('camera 0',) * 2,
            'name',
        )
        twin = DmaBuf.from_fd(fd.dup(), expected_size=BYTES)
        equal(twin.identity, buffer.identity, 'identity of a duplicate')
        twin.close()


@check_each(_DMA)
def a_second_export_is_another_dma_buf_of_the_same_memory(exporter: str) -> None:
    """Check why a camera exports each buffer once: a second export would be imported again."""
    with raw_camera(EXPORTERS[exporter], 1) as fd:
        first, second = (adopted(export(fd, 0, os.O_RDWR), writable=True) for _ in range(2))
        assert first.identity != second.identity
        first.begin_cpu_access(CpuAccess.WRITE)
        first.mapping()[:4] = b'same'
        first.end_cpu_access(CpuAccess.WRITE)
        equal(second.mapping()[:4], b'same', 'bytes through the other one')
        first.close()
        second.close()


@check_each(_DMA)
def what_the_cpu_writes_there_is_what_the_device_reads(exporter: str) -> None:
    with (
        _exported(exporter, os.O_RDWR, writable=True) as buffer,
        card() as device,
        buffers(any_heap(), RESULT_SIZE) as (result,),
    ):
        for level in (70, 7):
            with buffer.cpu_access(CpuAccess.READ | CpuAccess.WRITE) as memory:
                memory[:BYTES] = bytes([level]) * BYTES
            job = start(device, [buffer], result, layout=LAYOUT)
            assert job.wait(60.0)
            job.check()
            job.close()
            equal(result_crcs(result), level_crcs(level, LAYOUT), f'CRCs, level {level}')


@check_each(_DMA)
def a_read_only_export_can_not_be_written(exporter: str) -> None:
    with _exported(exporter, os.O_RDONLY) as buffer, card() as device:
        assert not buffer.writable
        with raises(errno.EACCES):  # the kernel itself refuses: the descriptor is read-only
            mmap.mmap(
                buffer.fileno(), buffer.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
            )
        buffer.begin_cpu_access(CpuAccess.READ)
        with refused(TypeError):
            buffer.mapping()[0] = 1
        ((address, size, permissions),) = maps_lines(buffer.identity.inode)
        equal((size, permissions), (buffer.size, 'r--s'), 'size and permissions')
        equal(death(poke, address), -signal.SIGSEGV, 'end of a process that writes there')
        equal(
            libc.mprotect(
                ctypes.c_void_p(address), ctypes.c_size_t(PAGE), mmap.PROT_READ | mmap.PROT_WRITE
            ),
            -1,
            'mprotect()',
        )
        equal(ctypes.get_errno(), errno.EACCES, 'errno of mprotect()')
        buffer.end_cpu_access(CpuAccess.READ)
        with refused(AllocationError, 'read-only'), buffer.cpu_access(CpuAccess.WRITE):
            pass
        with refused(AllocationError, 'read-only'):
            DmaBuf.from_fd(buffer.dup(), writable=True)
        with refused(AxlError, 'EACCES'):
            device.import_planes(LAYOUT, [buffer], ImportFlags.BIDIRECTIONAL)
        device.release_import(device.import_planes(LAYOUT, [buffer], ImportFlags.TO_DEVICE))


_SIZE = (336, 240)


@check_each('udmabuf')
def a_library_s_dma_bufs_become_frames_that_the_card_reads_as_they_are(name: str) -> None:
    heap, _ = open_heap(name)
    layout = compute_layout(NV12, *_SIZE, stride_align=256)
    library = [heap.allocate(layout.buffer_size(0)) for _ in range(3)]
    places = {
        'strides': [plane.stride for plane in layout.planes],
        'offsets': [plane.offset for plane in layout.planes],
    }
    images = ForeignImages(
        pixel_format(NV12),
        _SIZE,
        [buffer.fileno() for buffer in library[:2]],
        modifier=LINEAR,
        **places,
    )
    equal(images.layout, layout, 'layout')
    equal(images.heap, f'foreign/{name.rpartition("/")[2]}', 'heap')
    held, back = HeldBuffers(), []
    pool = ForeignBufferPool(images.layout, images.known(), name='library', on_free=held.free)
    pool.add_retire_listener(held.ended)
    with accelerator() as npu:
        for number in (0, 1, 2, 1, 2, 0):  # the third one comes later
            fds = (library[number].fileno(),)
            with library[number].cpu_access(CpuAccess.WRITE) as memory:
                memory[:] = bytes(
                    (number * 31 + place * 7 + place // 256) % 251 for place in range(256)
                ) * (len(memory) // 256)
            slot = pool.slot_of(images.identities(fds)) or pool.adopt(images.buffers(fds))
            assert slot is not None and pool.acquire(slot.index) is slot
            held.hold(slot, lambda number=number: back.append(number))
            frame = Frame.publish_slot(
                pool,
                slot,
                header=Header(0, ''),
                colorimetry=BT601_LIMITED,
                sequence=number,
                captured_ns=time.monotonic_ns(),
            )
            with frame:
                equal(frame.data.buffers[0].kind, BufferKind.DMABUF, 'kind')
                equal(
                    frame.data.buffers[0].identity, library[number].identity, 'which memory it is'
                )
                equal(device_crcs(npu, frame), crcs(frame), 'what the device sees')
    equal(back, [0, 1, 2, 1, 2, 0], 'what came back to the library')
    equal(len(pool.slots), 3, 'slots')
    held.begin_close()
    pool.close()
    held.end_close()
    for buffer in library:
        buffer.close()
    heap.close()
