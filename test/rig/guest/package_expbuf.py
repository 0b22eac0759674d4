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
Buffers that a V4L2 driver exports: what the package makes of them.

A read-only export stays one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import ctypes
import errno
import mmap
import os
import signal

from zc_perception.errors import AllocationError
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf, is_dmabuf
from zc_perception.memory.kernel_abi import fdinfo
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.device import AxlError
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

from .check_camera import cameras, export, EXPORTERS, opened, SIZE
from .harness import check_each, equal, raises
from .kernel_api import any_heap, bufinfo, libc
from .package_kit import (
    adopted,
    buffers,
    card,
    level_crcs,
    maps_lines,
    PAGE,
    refused,
    result_crcs,
    RESULT_SIZE,
    start,
)
from .package_memory import death, poke

LAYOUT = compute_layout(NV12, *SIZE)
BYTES = SIZE[0] * SIZE[1] * 3 // 2


@contextmanager
def _exported(exporter: str, access: int, **options: bool) -> Iterator[DmaBuf]:
    """Yield a camera's buffer as the package has it."""
    with opened(cameras()[EXPORTERS[exporter]], 1) as (fd, _):
        buffer = adopted(export(fd, 0, access), **options)
        try:
            yield buffer
        finally:
            buffer.close()


@check_each(*EXPORTERS)
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


@check_each(*EXPORTERS)
def a_second_export_is_another_dma_buf_of_the_same_memory(exporter: str) -> None:
    """So a camera exports each buffer once: an import cache by identity would import another."""
    with opened(cameras()[EXPORTERS[exporter]], 1) as (fd, _):
        first, second = (adopted(export(fd, 0, os.O_RDWR), writable=True) for _ in range(2))
        assert first.identity != second.identity
        first.begin_cpu_access(CpuAccess.WRITE)
        first.mapping()[:4] = b'same'
        first.end_cpu_access(CpuAccess.WRITE)
        equal(second.mapping()[:4], b'same', 'bytes through the other one')
        first.close()
        second.close()


@check_each(*EXPORTERS)
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


@check_each(*EXPORTERS)
def a_read_only_export_can_not_be_written(exporter: str) -> None:
    with _exported(exporter, os.O_RDONLY) as buffer, card() as device:
        assert not buffer.writable
        with raises(errno.EACCES):  # the kernel's own word: nobody who has this descriptor can
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
        with refused(AxlError, 'EACCES'):
            device.import_planes(LAYOUT, [buffer], ImportFlags.BIDIRECTIONAL)
        device.release_import(device.import_planes(LAYOUT, [buffer], ImportFlags.TO_DEVICE))


@check_each(*EXPORTERS)
def a_read_only_export_is_refused_to_who_wants_to_write(exporter: str) -> None:
    with refused(AllocationError, 'read-only'), _exported(exporter, os.O_RDONLY, writable=True):
        pass
