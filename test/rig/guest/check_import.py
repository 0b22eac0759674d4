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

"""Import and release: what is returned, what is visible from outside, and each errno."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct

from zc_perception.npu.axl import abi

from .harness import check, equal, expect_nothing_left, raises
from .kernel_api import bufinfo, heap_buffer, libc, live, NPU, parameters, trace_events, tracing
from .npu_client import Job, make_image, Npu
from ..virtual_result import FORMATS, fourcc

SIZE = (64, 48)
BYTES = 64 * 48 * 3 // 2


def _query(npu: Npu, room: int) -> tuple[abi.AxlQuery, list[abi.AxlFormat]]:
    formats = (abi.AxlFormat * max(room, 1))()
    argument = abi.AxlQuery(
        struct_size=ctypes.sizeof(abi.AxlQuery),
        num_formats=room,
        formats_ptr=ctypes.addressof(formats) if room else 0,
    )
    npu.call(abi.REQUESTS.query, argument)
    return argument, list(formats)


@check
def query_lists_what_can_be_imported() -> None:
    with Npu() as npu:
        answer, formats = _query(npu, 64)
        equal(answer.abi_version, abi.ABI_VERSION, 'abi_version')
        equal(
            (answer.max_in_flight, answer.stride_align, answer.offset_align), (4, 1, 1), 'limits'
        )
        listed = {
            (entry.fourcc, entry.modifier, entry.pad) for entry in formats[: answer.num_formats]
        }
        equal(listed, {(fourcc(name), 0, 0) for name in FORMATS}, 'formats')


@check
def query_writes_no_more_than_there_is_room_for() -> None:
    with Npu() as npu:
        equal(_query(npu, 0)[0].num_formats, len(FORMATS), 'count without room')
        answer, formats = _query(npu, 2)
        equal(answer.num_formats, len(FORMATS), 'count')
        few = (abi.AxlFormat * 3)()
        npu.call(
            abi.REQUESTS.query,
            abi.AxlQuery(
                struct_size=ctypes.sizeof(abi.AxlQuery),
                num_formats=2,
                formats_ptr=ctypes.addressof(few),
            ),
        )
        equal((few[1].fourcc, few[2].fourcc), (formats[1].fourcc, 0), 'second and third entry')


@check
def import_shows_in_bufinfo_and_in_the_trace() -> None:
    with Npu() as npu, heap_buffer(BYTES) as buffer, tracing('axl'):
        got = npu.import_fd(buffer.fd, SIZE)
        equal(got.size, buffer.size, 'size')
        assert got.handle, 'the handle is 0'
        equal(bufinfo()[buffer.inode].attached, [NPU], 'attached devices')
        npu.release(got.handle)
        equal(bufinfo()[buffer.inode].attached, [], 'attached devices after release')
        inode, handle, exporter = (
            str(buffer.inode),
            str(got.handle),
            bufinfo()[buffer.inode].exporter,
        )
        expected = {
            'handle': handle,
            'inode': inode,
            'exporter': exporter,
            'iova': hex(got.iova_base),
            'size': str(buffer.size),
        }
        equal(trace_events('axl_dmabuf_import'), [expected], 'import event')
        equal(
            trace_events('axl_dmabuf_release'),
            [{'handle': handle, 'inode': inode}],
            'release event',
        )


@check
def planes_in_one_buffer_are_one_attachment() -> None:
    with Npu() as npu, make_image('NV12', 64, 48, gaps=(128, 64, 0, 0)) as image, tracing('axl'):
        got = npu.import_planes(image.argument())
        equal(live()['attachments'], 1, 'attachments')
        equal(
            got.iova_base[1] - got.iova_base[0],
            image.planes[1].offset - image.planes[0].offset,
            'distance of planes',
        )
        npu.release(got.handle)
        equal(len(trace_events('axl_dmabuf_import')), 1, 'import events')


@check
def planes_in_two_buffers_are_two_attachments() -> None:
    with Npu() as npu, make_image('NV12', 64, 48, separate=True) as image, tracing('axl'):
        handle = npu.import_planes(image.argument()).handle
        equal(
            [bufinfo()[buffer.inode].attached for buffer in image.buffers()],
            [[NPU]] * 2,
            'attached devices',
        )
        npu.release(handle)
        events = trace_events('axl_dmabuf_import')
        equal(
            {event['inode'] for event in events},
            {str(buffer.inode) for buffer in image.buffers()},
            'inodes',
        )
        equal({event['handle'] for event in events}, {str(handle)}, 'handles')


@check
def a_second_import_is_a_second_handle() -> None:
    with Npu() as npu, heap_buffer(BYTES) as buffer:
        first, second = (
            npu.import_fd(buffer.fd, SIZE).handle,
            npu.import_fd(buffer.fd, SIZE).handle,
        )
        assert first != second, 'both imports have the same handle'
        equal(bufinfo()[buffer.inode].attached, [NPU] * 2, 'attached devices')
        npu.release(first)
        with raises(errno.ENOENT):
            npu.release(first)
        npu.release(second)
        third = npu.import_fd(buffer.fd, SIZE).handle
        assert third not in (first, second), 'a stale handle would be valid again'


@check
def import_rejects_bad_fds() -> None:
    with Npu() as npu, heap_buffer(BYTES) as buffer:
        closed = os.dup(buffer.fd)
        os.close(closed)
        for fd in (closed, -1):
            with raises(errno.EBADF):
                npu.import_fd(fd, SIZE)
        other = os.memfd_create('no dma-buf')
        os.ftruncate(other, BYTES)
        with raises(errno.EINVAL):
            npu.import_fd(other, SIZE)
        os.close(other)


@check
def import_rejects_bad_flags_formats_and_sizes() -> None:
    with Npu() as npu, heap_buffer(BYTES) as buffer:
        for flags in (0, 3, 5, 6, 7, 8, 9, 1 << 31):
            with raises(errno.EINVAL):
                npu.import_fd(buffer.fd, SIZE, flags=flags)
        for pixfmt in ('P010', 'XXXX'):
            with raises(errno.EINVAL):
                npu.import_fd(buffer.fd, SIZE, pixfmt)
        too_large = (64, buffer.size // 96 + 2)
        for size in ((0, 48), (64, 0), too_large, (5000, 1), (1, 5000), (0xFFFFFFFF, 0xFFFFFFFF)):
            with raises(errno.EINVAL):
                npu.import_fd(buffer.fd, size)
        for size in ((64, buffer.size // 96), (1, 1), (63, 47)):
            npu.release(npu.import_fd(buffer.fd, size).handle)


@check
def a_read_only_buffer_is_not_imported_for_writing() -> None:
    with Npu() as npu, heap_buffer(BYTES, os.O_RDONLY) as buffer, heap_buffer(BYTES) as writable:
        handle = npu.import_fd(buffer.fd, SIZE).handle
        for flags in (abi.ImportFlags.FROM_DEVICE, abi.ImportFlags.BIDIRECTIONAL):
            with raises(errno.EACCES):
                npu.import_fd(buffer.fd, SIZE, flags=flags)
            npu.release(npu.import_fd(writable.fd, SIZE, flags=flags).handle)
        with raises(errno.EACCES):
            npu.submit(handle, buffer.fd)


def _wrong_planes(image_bytes: int) -> list[tuple[str, int, dict[str, int]]]:
    """Return (what, index of the plane, members to change)."""
    return [
        ('stride below a row', 0, {'stride': 63}),
        ('stride 0', 0, {'stride': 0}),
        ('size of one byte too little', 0, {'size': 64 * 48 - 1}),
        ('size 0', 1, {'size': 0}),
        ('end one byte behind the buffer', 1, {'offset': image_bytes - 64 * 24 + 1}),
        ('offset behind the buffer', 0, {'offset': image_bytes}),
        ('offset + size wraps around', 0, {'offset': 2**64 - 64}),
        ('size of all', 0, {'size': 2**64 - 1}),
        ('stride times rows over 32 bits', 0, {'stride': 0xFFFFFFFF}),
    ]


@check
def planes_that_leave_the_buffer_are_rejected() -> None:
    with Npu() as npu, make_image('NV12', 64, 48) as image:
        for what, index, members in _wrong_planes(image.planes[0].buffer.size):
            argument = image.argument()
            for name, value in members.items():
                setattr(argument.planes[index], name, value)
            try:
                with raises(errno.EINVAL):
                    npu.import_planes(argument)
            except AssertionError as error:
                raise AssertionError(f'{what}: {error}') from error
        # The last row needs no padding behind it.
        argument = image.argument()
        argument.planes[1].stride, argument.planes[1].size = 66, 66 * 23 + 64
        npu.release(npu.import_planes(argument).handle)


@check
def wrong_headers_of_planes_are_rejected() -> None:
    with Npu() as npu, make_image('NV12', 64, 48) as image:
        wrong: list[dict[str, int]] = [
            {'num_planes': 1},
            {'num_planes': 3},
            {'num_planes': 0},
            {'num_planes': 0xFFFFFFFF},
            {'pad': 1},
            {'flags': 0},
            {'flags': 8},
            {'modifier': 0x0100000000000002},
            {'modifier': 0x00FFFFFFFFFFFFFF},
            {'width': 0},
            {'height': 0},
            {'struct_size': ctypes.sizeof(abi.AxlImportPlanes) - 8},
            {'struct_size': 0},
        ]
        for members in wrong:
            argument = image.argument()
            for name, value in members.items():
                setattr(argument, name, value)
            with raises(errno.EINVAL):
                npu.import_planes(argument)
        for index in range(2):
            argument = image.argument()
            argument.planes[index].fd = -1
            with raises(errno.EBADF):
                npu.import_planes(argument)
        expect_nothing_left()


def _call_grown(
    npu: Npu, request: int, argument: ctypes.LittleEndianStructure, tail: bytes
) -> bytes:
    """Call with `argument` as a program with a newer header would; return what it then holds."""
    data = bytearray(bytes(argument) + tail)
    struct.pack_into('<I', data, 0, len(data))
    memory = (ctypes.c_char * len(data)).from_buffer(data)
    npu.call_at(request, ctypes.addressof(memory))
    return bytes(memory)


@check
def arguments_may_grow_by_zeros() -> None:
    with Npu() as npu, make_image('NV12', 64, 48) as image, heap_buffer(4096) as result:
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
                with raises(errno.E2BIG):
                    _call_grown(npu, code, argument, tail)


@check
def handles_belong_to_their_open_file() -> None:
    with Npu() as npu, Npu() as other, heap_buffer(BYTES) as buffer:
        handle = npu.import_fd(buffer.fd, SIZE).handle
        for wrong in (0, handle + 1, 0xFFFFFFFF):
            with raises(errno.ENOENT):
                npu.release(wrong)
        with raises(errno.ENOENT):
            other.release(handle)
        with raises(errno.ENOENT):
            other.submit(handle, buffer.fd)
        npu.release(handle)
        with raises(errno.ENOENT):
            npu.release(handle)


@check
def bad_addresses_are_efault_and_leave_nothing() -> None:
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    view = ctypes.c_char.from_buffer(memory)
    page = ctypes.addressof(view)
    with Npu() as npu, make_image('NV12', *SIZE) as image, heap_buffer(4096) as result:
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
            with raises(errno.EFAULT):
                npu.call_at(request, 8)
            ctypes.memmove(page, bytes(argument), ctypes.sizeof(argument))
            libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ)
            with raises(errno.EFAULT):
                npu.call_at(request, page)
            libc.mprotect(
                ctypes.c_void_p(page),
                ctypes.c_size_t(mmap.PAGESIZE),
                mmap.PROT_READ | mmap.PROT_WRITE,
            )
        with raises(errno.EFAULT):
            npu.call_at(abi.REQUESTS.release_import, 8)
        equal(
            [live()[what] for what in ('attachments', 'imports', 'jobs')],
            [1, 1, 0],
            'live objects',
        )
    del view
    memory.close()


def _answers(npu: Npu) -> list[bool]:
    """Return which ioctls exist, by number."""
    exists = []
    for name in abi.IOCTL_NUMBERS:
        try:
            npu.call_at(getattr(abi.REQUESTS, name), 8)
        except OSError as error:
            exists.append(error.errno != errno.ENOTTY)
    return exists


@check
def older_drivers_answer_enotty() -> None:
    with Npu() as npu, heap_buffer(BYTES) as buffer:
        equal(_answers(npu), [True] * 6, 'ioctls of level 2')
        with parameters(abi_level=1):
            equal(_answers(npu), [True] * 3 + [False] * 3, 'ioctls of level 1')
            npu.release(npu.import_fd(buffer.fd, SIZE).handle)
        with parameters(abi_level=0):
            equal(_answers(npu), [False] * 6, 'ioctls of level 0')
        for request in (
            abi.ioc(3, 'U', 63, 40),
            abi.ioc(3, 'U', 70, 40),
            abi.ioc(1, 'U', 67, 168),
            abi.ioc(3, 'V', 64, 40),
        ):
            with raises(errno.ENOTTY):
                npu.call_at(request, 8)
