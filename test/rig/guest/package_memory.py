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

"""Buffers of real heaps: kind and identity, places of their mappings, and a mapping's SYNCs."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import zlib

from zc_perception.errors import AllocationError
from zc_perception.memory.dmabuf import BufferIdentity, BufferKind, CpuAccess, DmaBuf, is_dmabuf
from zc_perception.memory.kernel_abi import fdinfo
from zc_perception.memory.owned_fd import OwnedFd

from .harness import check_each, equal, raises
from .kernel_api import bufinfo, HEAP_EXPORTERS, shadow_buffer, system_buffer, udmabuf_buffer
from .package_kit import (
    accelerator,
    adopted,
    buffers,
    Child,
    crcs,
    device_crcs,
    fill,
    HEAPS,
    info_of,
    LAYOUTS,
    maps_lines,
    PAGE,
    pool_of,
    publish,
    received,
    recorded,
    refused,
    wait_for,
)

_F_ADD_SEALS, _SHRINK, _GROW = 1033, 2, 4
SIZES = (1, PAGE - 1, PAGE, PAGE + 1, 640 * 360 * 3 // 2)
RAW = {'dma_heap/system': system_buffer, 'udmabuf': udmabuf_buffer, 'axl_shadow': shadow_buffer}


# What a buffer is.


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


@check_each(*RAW)
def a_foreign_dma_buf_is_adopted(exporter: str) -> None:
    raw = RAW[exporter](3 * PAGE)
    inode = raw.inode
    buffer = adopted(raw, expected_size=2 * PAGE + 1)
    equal(
        (buffer.identity.inode, buffer.size, buffer.kind),
        (inode, 3 * PAGE, BufferKind.DMABUF),
        'identity, size, kind',
    )
    equal(buffer.exporter(), bufinfo()[inode].exporter, 'exporter')
    with refused(AllocationError):
        adopted(RAW[exporter](PAGE), expected_size=PAGE + 1)
    buffer.close()


# Who a buffer is.


@check_each(*HEAPS, 'memfd')
def an_identity_is_the_same_for_every_descriptor_in_every_process(heap: str) -> None:
    def peer(theirs: socket.socket) -> None:
        for _ in range(2):
            with received(theirs) as fd:
                buffer = DmaBuf.from_fd(fd.dup())
                theirs.send(repr((buffer.identity, buffer.size, buffer.exporter())).encode())
                buffer.close()

    child = Child(peer)  # before the buffer exists: it has nothing by inheritance
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
        if heap == 'memfd':
            again = DmaBuf.from_fd(OwnedFd.open(f'/proc/self/fd/{buffer.fileno()}', os.O_RDWR))
            equal(again.identity, buffer.identity, 'identity of the reopened file')
            again.close()
        else:
            with raises(
                errno.ENXIO
            ):  # so that nobody turns a read-only descriptor into another one
                os.open(f'/proc/self/fd/{buffer.fileno()}', os.O_RDWR)
    child.join()


@check_each(*HEAPS)
def a_name_is_seen_by_everyone(heap: str) -> None:
    with buffers(heap, PAGE, PAGE) as (buffer, other):
        before = bufinfo()[other.identity.inode].name
        buffer.set_name('camera/left 3')
        twin = DmaBuf.from_fd(buffer.dup())
        equal(
            tuple(fdinfo(one.fileno())['name'] for one in (buffer, twin)),
            ('camera/left 3',) * 2,
            'name',
        )
        equal(bufinfo()[buffer.identity.inode].name, 'camera/left 3', 'name in debugfs')
        buffer.set_name('camera/right')
        equal(bufinfo()[buffer.identity.inode].name, 'camera/right', 'second name')
        for bad in ('x' * 32, 'two\nlines'):
            with refused(ValueError):
                buffer.set_name(bad)
        equal(bufinfo()[buffer.identity.inode].name, 'camera/right', 'name after a bad one')
        equal(bufinfo()[other.identity.inode].name, before, 'the name of another one')
        twin.close()


# Where it is mapped.


@check_each(*HEAPS)
def planes_lie_at_the_mappings_address(heap: str) -> None:
    for name, layout in LAYOUTS.items():
        with pool_of(heap, layout, slots=1) as pool, publish(pool) as frame, frame.map() as planes:
            for index, (view, plane) in enumerate(zip(planes, layout.planes, strict=True)):
                lines = maps_lines(frame.data.buffers[plane.buffer].identity.inode)
                equal(len(lines), 1, f'mappings, {name}, plane {index}')
                equal(
                    view.__array_interface__['data'][0] - plane.offset,
                    lines[0][0],
                    f'address, {name}, plane {index}',
                )
                equal(
                    lines[0][1],
                    frame.data.buffers[plane.buffer].size,
                    f'mapped bytes, {name}, plane {index}',
                )
            del view


@check_each(*HEAPS)
def a_buffer_is_mapped_once_however_often_it_is_used(heap: str) -> None:
    with pool_of(heap, LAYOUTS['two buffers'], slots=1) as pool, recorded() as recording:
        inodes = [b.identity.inode for b in pool.slots[0].buffers]
        addresses = set()
        equal([maps_lines(inode) for inode in inodes], [[], []], 'mappings before the first use')
        for turn in range(100):
            with publish(pool, sequence=turn) as frame, frame.map(write=bool(turn % 2)) as planes:
                addresses |= {plane.__array_interface__['data'][0] for plane in planes}
        equal([len(maps_lines(inode)) for inode in inodes], [1, 1], 'mappings after 100 frames')
        equal(
            [recording().mappings(inode) for inode in inodes],
            [1, 1],
            'calls of mmap in 100 frames',
        )
        equal(len(addresses), 2, 'addresses of the two planes')
    equal([maps_lines(inode) for inode in inodes], [[], []], 'mappings after the pool was closed')


@check_each(*HEAPS)
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
    """How a forked child ends that does this."""
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
    """Write one byte."""
    ctypes.memset(address, 7, 1)


@check_each(*RAW)
def a_buffer_of_a_peer_is_mapped_without_the_right_to_write(exporter: str) -> None:
    buffer = adopted(RAW[exporter](PAGE))
    buffer.mapping()
    ((address, size, permissions),) = maps_lines(buffer.identity.inode)
    equal((size, permissions), (PAGE, 'r--s'), 'size and permissions')
    with refused(TypeError):
        buffer.mapping()[0] = 1
    equal(death(poke, address), -signal.SIGSEGV, 'end of a process that writes there')
    buffer.close()
    writable = adopted(RAW[exporter](PAGE), writable=True)
    writable.mapping()
    ((address, _, permissions),) = maps_lines(writable.identity.inode)
    equal(permissions, 'rw-s', 'permissions of a writable one')
    equal(death(poke, address), 0, 'end of a process that writes there')
    equal(writable.mapping()[0], 7, 'what the other process wrote')
    writable.close()


@check_each(*HEAPS)
def what_is_written_is_seen_by_the_device_and_by_another_process(heap: str) -> None:
    def peer(theirs: socket.socket) -> None:
        buffer = DmaBuf.from_fd(received(theirs))
        buffer.mapping()
        for _ in range(3):
            theirs.recv(1)
            buffer.begin_cpu_access(CpuAccess.READ)
            crc = zlib.crc32(buffer.mapping())
            buffer.end_cpu_access(CpuAccess.READ)
            theirs.send(str(crc).encode())

    child = Child(peer)
    with accelerator() as npu, pool_of(heap, LAYOUTS['padded stride'], slots=1) as pool:
        child.send(pool.slots[0].buffers[0])
        for level in (17, 201, 64):
            with publish(pool, level=level) as frame:
                whole = frame.data.buffers[0].mapping()
                child.socket.send(b'?')
                equal(
                    int(child.answer()),
                    zlib.crc32(whole),
                    f'CRC in the other process, level {level}',
                )
                equal(device_crcs(npu, frame), crcs(frame), f'CRCs of the device, level {level}')
                wanted = [zlib.crc32(bytes([level]) * size) for size in (1000 * 60, 1000 * 30)]
                equal(crcs(frame), wanted, f'CRCs here, level {level}')
    child.join()


# Releasing.


@check_each(*HEAPS, 'memfd')
def a_release_with_a_live_view_is_refused_and_works_afterwards(heap: str) -> None:
    with pool_of(heap, LAYOUTS['two buffers'], slots=1) as pool:
        frame = publish(pool, level=5)
        inode = frame.data.buffers[0].identity.inode
        with frame.map() as planes:
            kept = planes[0][2:4, 8:16]
            with refused(BufferError):
                frame.release()
        for _ in range(2):
            with refused(BufferError, 'view'):
                frame.release()
            assert not frame.released and pool.acquire() is None, (
                'the slot went although it is in use'
            )
            equal(
                (kept.min(), kept.max(), len(maps_lines(inode))),
                (5, 5, 1),
                'the pixels of the view, mappings',
            )
        del kept
        fill(frame, 9)
        frame.release()
        with publish(pool, level=6) as again:
            equal(again.data.generation, frame.data.generation + 1, 'generation')
