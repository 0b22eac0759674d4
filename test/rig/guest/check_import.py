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

"""Import and release: what is returned and visible, each errno, and which pixels are read."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct

from zc_perception.npu.axl import abi

from . import kernel_api as kernel
from .harness import check, equal, expect_nothing_left, fails, raises
from .npu_client import FORMATS, fourcc, Image, Job, make_image, no_dmabufs, Npu, VirtualResult

SIZE = (64, 48)
BYTES = 64 * 48 * 3 // 2


@check
def import_shows_in_bufinfo_and_in_the_trace() -> None:
    with Npu() as npu, kernel.heap_buffer(BYTES) as buffer, kernel.recording():
        got = npu.import_fd(buffer.fd, SIZE)
        equal(got.size, buffer.size, 'size')
        assert got.handle, 'the handle is 0'
        equal(kernel.bufinfo()[buffer.inode].attached, [kernel.NPU], 'attached devices')
        npu.release(got.handle)
        equal(kernel.bufinfo()[buffer.inode].attached, [], 'attached devices after release')
        released = {'handle': str(got.handle), 'inode': str(buffer.inode)}
        imported = {
            **released,
            'exporter': kernel.bufinfo()[buffer.inode].exporter,
            'iova': hex(got.iova_base),
            'size': str(buffer.size),
        }
        equal(kernel.trace_events('axl_dmabuf_import'), [imported], 'import event')
        equal(kernel.trace_events('axl_dmabuf_release'), [released], 'release event')


@check
def planes_in_two_buffers_are_two_attachments() -> None:
    with Npu() as npu, make_image(separate=True) as image, kernel.recording():
        handle = npu.import_planes(image.argument()).handle
        inodes = [buffer.inode for buffer in image.buffers()]
        attached = [kernel.bufinfo()[inode].attached for inode in inodes]
        equal(attached, [[kernel.NPU]] * 2, 'attached devices')
        npu.release(handle)
        events = kernel.trace_events('axl_dmabuf_import')
        seen = {(event['inode'], event['handle']) for event in events}
        equal(seen, {(str(inode), str(handle)) for inode in inodes}, 'inodes and handles')


@check
def a_second_import_is_a_second_handle() -> None:
    with Npu() as npu, kernel.heap_buffer(BYTES) as buffer:
        first, second = (npu.import_fd(buffer.fd, SIZE).handle for _ in range(2))
        assert first != second, 'both imports have the same handle'
        equal(kernel.bufinfo()[buffer.inode].attached, [kernel.NPU] * 2, 'attached devices')
        npu.release(first)
        fails(errno.ENOENT, npu.release, first)
        npu.release(second)
        third = npu.import_fd(buffer.fd, SIZE).handle
        assert third not in (first, second), 'a stale handle would be valid again'


@check
def import_rejects_bad_flags_formats_and_sizes() -> None:
    """Check that it also rejects descriptors of no dma-buf."""
    with Npu() as npu, kernel.heap_buffer(BYTES) as buffer, no_dmabufs() as wrong:
        for fd, number in wrong.items():
            fails(number, npu.import_fd, fd, SIZE)
        for flags in (0, 3, 5, 6, 7, 8, 9, 1 << 31):
            fails(errno.EINVAL, npu.import_fd, buffer.fd, SIZE, flags=flags)
        for pixfmt in ('P010', 'XXXX'):
            fails(errno.EINVAL, npu.import_fd, buffer.fd, SIZE, pixfmt)
        too_large = (64, buffer.size // 96 + 2)
        for size in ((0, 48), (64, 0), too_large, (5000, 1), (1, 5000), (0xFFFFFFFF, 0xFFFFFFFF)):
            fails(errno.EINVAL, npu.import_fd, buffer.fd, size)
        for size in ((64, buffer.size // 96), (1, 1), (63, 47)):
            npu.release(npu.import_fd(buffer.fd, size).handle)


@check
def a_read_only_buffer_is_not_imported_for_writing() -> None:
    with (
        Npu() as npu,
        kernel.heap_buffer(BYTES, os.O_RDONLY) as buffer,
        kernel.heap_buffer(BYTES) as writable,
    ):
        handle = npu.import_fd(buffer.fd, SIZE).handle
        for flags in (abi.ImportFlags.FROM_DEVICE, abi.ImportFlags.BIDIRECTIONAL):
            fails(errno.EACCES, npu.import_fd, buffer.fd, SIZE, flags=flags)
            npu.release(npu.import_fd(writable.fd, SIZE, flags=flags).handle)
        fails(errno.EACCES, npu.submit, handle, buffer.fd)


@check
def planes_that_leave_the_buffer_are_rejected() -> None:
    with Npu() as npu, make_image() as image:
        size = image.planes[0].buffer.size
        for what, index, name, value in (
            ('stride below a row', 0, 'stride', 63),
            ('stride 0', 0, 'stride', 0),
            ('size of one byte too little', 0, 'size', 64 * 48 - 1),
            ('size 0', 1, 'size', 0),
            ('end one byte behind the buffer', 1, 'offset', size - 64 * 24 + 1),
            ('offset behind the buffer', 0, 'offset', size),
            ('offset + size wraps around', 0, 'offset', 2**64 - 64),
            ('size of all', 0, 'size', 2**64 - 1),
            ('stride times rows over 32 bits', 0, 'stride', 0xFFFFFFFF),
        ):
            argument = image.argument()
            setattr(argument.planes[index], name, value)
            with raises(errno.EINVAL, what=what):
                npu.import_planes(argument)
        # The last row needs no padding after it.
        argument = image.argument()
        argument.planes[1].stride, argument.planes[1].size = 66, 66 * 23 + 64
        npu.release(npu.import_planes(argument).handle)


@check
def wrong_headers_of_planes_are_rejected() -> None:
    with Npu() as npu, make_image() as image:
        for name, *values in (
            ('num_planes', 1, 3, 0, 0xFFFFFFFF),
            ('pad', 1),
            ('flags', 0, 8),
            ('modifier', 0x0100000000000002, 0x00FFFFFFFFFFFFFF),
            ('width', 0),
            ('height', 0),
            ('struct_size', ctypes.sizeof(abi.AxlImportPlanes) - 8, 0),
        ):
            for value in values:
                argument = image.argument()
                setattr(argument, name, value)
                fails(errno.EINVAL, npu.import_planes, argument)
        for index in range(2):
            argument = image.argument()
            argument.planes[index].fd = -1
            fails(errno.EBADF, npu.import_planes, argument)
        expect_nothing_left()


def _call_grown(
    npu: Npu, request: int, argument: ctypes.LittleEndianStructure, tail: bytes
) -> bytes:
    """Call with `argument` grown as by a newer header; return its content afterwards."""
    data = bytearray(bytes(argument) + tail)
    struct.pack_into('<I', data, 0, len(data))
    memory = (ctypes.c_char * len(data)).from_buffer(data)
    npu.call_at(request, ctypes.addressof(memory))
    return bytes(memory)


@check
def arguments_may_grow_by_zeros() -> None:
    with Npu() as npu, make_image() as image, kernel.heap_buffer(4096) as result:
        handle = npu.import_planes(image.argument()).handle
        submit = abi.AxlSubmit2(input_handle=handle, in_fence_fd=-1, result_fd=result.fd)
        for number, argument in ((67, image.argument()), (68, submit), (69, abi.AxlQuery())):
            size = ctypes.sizeof(argument)
            for grown in (8, 24, mmap.PAGESIZE - size):
                for code in (abi.ioc(3, 'U', number, size), abi.ioc(3, 'U', number, size + grown)):
                    got = _call_grown(npu, code, argument, bytes(grown))
                    if number == 67:
                        npu.release(abi.AxlImportPlanes.from_buffer_copy(got).handle)
                    if number == 68:
                        Job(abi.AxlSubmit2.from_buffer_copy(got).fence_fd, 0).wait()
            code = abi.ioc(3, 'U', number, size + 8)
            for tail in (bytes(7) + b'\1', b'\1' + bytes(7), bytes(mmap.PAGESIZE)):
                fails(errno.E2BIG, _call_grown, npu, code, argument, tail)


@check
def handles_belong_to_their_open_file() -> None:
    with Npu() as npu, Npu() as other, kernel.heap_buffer(BYTES) as buffer:
        handle = npu.import_fd(buffer.fd, SIZE).handle
        for wrong in (0, handle + 1, 0xFFFFFFFF):
            fails(errno.ENOENT, npu.release, wrong)
        fails(errno.ENOENT, other.release, handle)
        fails(errno.ENOENT, other.submit, handle, buffer.fd)
        npu.release(handle)
        fails(errno.ENOENT, npu.release, handle)


@check
def bad_addresses_are_efault_and_leave_nothing() -> None:
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    view = ctypes.c_char.from_buffer(memory)
    page = ctypes.addressof(view)
    whole = ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE)
    with Npu() as npu, make_image() as image, kernel.heap_buffer(4096) as result:
        handle = npu.import_planes(image.argument()).handle
        arguments = {
            abi.REQUESTS.import_fd: abi.AxlImportFd(
                fd=image.planes[0].buffer.fd, width=64, height=48, pixfmt=fourcc('NV12'), flags=1
            ),
            abi.REQUESTS.import_planes: image.argument(),
            abi.REQUESTS.submit: abi.AxlSubmit(input_handle=handle, result_fd=result.fd),
            abi.REQUESTS.submit2: abi.AxlSubmit2(
                struct_size=ctypes.sizeof(abi.AxlSubmit2),
                input_handle=handle,
                in_fence_fd=-1,
                result_fd=result.fd,
            ),
            abi.REQUESTS.query: abi.AxlQuery(struct_size=ctypes.sizeof(abi.AxlQuery)),
        }
        for request, argument in arguments.items():
            fails(errno.EFAULT, npu.call_at, request, 8)
            ctypes.memmove(page, bytes(argument), ctypes.sizeof(argument))
            kernel.libc.mprotect(*whole, mmap.PROT_READ)
            fails(errno.EFAULT, npu.call_at, request, page)
            kernel.libc.mprotect(*whole, mmap.PROT_READ | mmap.PROT_WRITE)
        fails(errno.EFAULT, npu.call_at, abi.REQUESTS.release_import, 8)
        held = [kernel.live()[what] for what in ('attachments', 'imports', 'jobs')]
        equal(held, [1, 1, 0], 'live objects')
    del view
    memory.close()


def _expect_right(npu: Npu, image: Image) -> VirtualResult:
    """Import, run, and compare with the CPU's result for the same bytes."""
    handle = npu.import_planes(image.argument()).handle
    result = npu.run(handle)
    npu.release(handle)
    equal(result.crcs(), image.crcs(), f'CRCs of {image.format_name}')
    return result


@check
def odd_sizes_offsets_and_strides() -> None:
    """Check every format and exporter."""
    with Npu() as npu:
        for name in FORMATS:
            with make_image(name, 160, 96) as image:
                _expect_right(npu, image)
                handle = npu.import_fd(image.planes[0].buffer.fd, (160, 96), name).handle
                equal(npu.run(handle).crcs(), image.crcs(), f'CRCs of {name} by IMPORT_FD')
                npu.release(handle)
            # Rows and blocks cross pages in every possible way.
            with make_image(name, 99, 53, padding=(5, 11, 3, 0), gaps=(4093, 13, 1, 0)) as image:
                _expect_right(npu, image)
        with make_image('NV12', 15, 15) as image:
            equal(_expect_right(npu, image).num_boxes, 0, 'boxes without a whole block')
        for name, *size in (('NV12', 1, 1), ('RG24', 4096, 17)):
            with make_image(name, *size) as image:
                _expect_right(npu, image)
        for allocate in (kernel.udmabuf_buffer, kernel.shadow_buffer):
            with make_image('NV12', 320, 180, allocate=allocate, padding=(64, 64, 0, 0)) as image:
                _expect_right(npu, image)


@check
def a_wrong_layout_is_a_wrong_crc() -> None:
    with (
        Npu() as npu,
        make_image('NV12', 160, 96, padding=(32, 32, 0, 0), gaps=(64, 64, 0, 0)) as image,
    ):
        right = image.crcs()
        for index in range(2):
            for member, change in (('offset', 1), ('offset', -1), ('stride', 1), ('stride', -32)):
                argument = image.argument()
                plane = argument.planes[index]
                setattr(plane, member, getattr(plane, member) + change)
                plane.size -= 32 if change > 0 else 0
                if member == 'stride' and change > 0:
                    plane.size = plane.stride * 96 // (index + 1) - 1
                handle = npu.import_planes(argument).handle
                got = npu.run(handle).crcs()
                npu.release(handle)
                assert got[index] != right[index], f'plane {index}, {member} {change:+d}'
                equal(got[1 - index], right[1 - index], 'CRC of the other plane')


@check
def a_missing_sync_shows_on_the_shadow_exporter() -> None:
    with Npu() as npu, make_image('NV12', 160, 96, allocate=kernel.shadow_buffer) as image:
        handle = npu.import_planes(image.argument()).handle
        old = image.crcs()
        buffer = image.planes[0].buffer
        before = buffer.read(buffer.size)
        changed = bytes(byte ^ 0xFF for byte in before)
        # Without START and END the device does not see the change.
        buffer.memory()[:] = changed
        equal(npu.run(handle).crcs(), old, 'CRCs without SYNC')
        # END alone makes the change visible to the device.
        buffer.sync(kernel.SYNC_WRITE | kernel.SYNC_END)
        equal(npu.run(handle).crcs(), image.crcs(), 'CRCs after SYNC')
        assert image.crcs() != old, 'the content has not changed'
        # A bracket for reading only does not write back.
        buffer.sync(kernel.SYNC_READ)
        buffer.memory()[:] = before
        buffer.sync(kernel.SYNC_READ | kernel.SYNC_END)
        assert npu.run(handle).crcs() != old, 'a read bracket wrote to the device'
        npu.release(handle)
