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

"""Buffers of a real V4L2 driver: vivid's two allocators export them, the device imports them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import fcntl
import os
from pathlib import Path
import struct

from .harness import check, equal
from .kernel_api import Buffer, bufinfo, NPU
from .npu_client import Npu
from ..virtual_result import expected_crcs, fourcc, PlanePixels

_S_FMT = 0xC0D05605
_REQBUFS = 0xC0145608
_QBUF, _DQBUF = 0xC058560F, 0xC0585611
_EXPBUF = 0xC0405610
_STREAMON, _STREAMOFF = 0x40045612, 0x40045613
_CAPTURE, _MMAP = 1, 1

SIZE = (640, 360)
#: By exporter, the index of vivid's device with such memory: from vmalloc, and from the DMA API.
EXPORTERS = {'videobuf2_vmalloc': 0, 'videobuf2_dma_contig': 1}


def _buffer_argument(index: int) -> bytearray:
    argument = bytearray(88)
    struct.pack_into('II', argument, 0, index, _CAPTURE)
    struct.pack_into('I', argument, 60, _MMAP)
    return argument


@contextmanager
def opened(path: Path, count: int) -> Iterator[tuple[int, int]]:
    """Open a camera for NV12 with `count` buffers of its own; yield its fd and its stride."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        pix_format = bytearray(208)
        struct.pack_into('I', pix_format, 0, _CAPTURE)
        struct.pack_into('IIII', pix_format, 8, *SIZE, fourcc('NV12'), 1)
        fcntl.ioctl(fd, _S_FMT, pix_format)
        width, height, _, _, stride = struct.unpack_from('5I', pix_format, 8)
        equal((width, height), SIZE, 'size')
        fcntl.ioctl(fd, _REQBUFS, bytearray(struct.pack('5I', count, _CAPTURE, _MMAP, 0, 0)))
        yield fd, stride
    finally:
        os.close(fd)


def export(fd: int, index: int, access: int) -> Buffer:
    """Export a buffer of an opened camera, with O_RDWR or O_RDONLY."""
    argument = bytearray(64)
    struct.pack_into('IIII', argument, 0, _CAPTURE, index, 0, access | os.O_CLOEXEC)
    fcntl.ioctl(fd, _EXPBUF, argument)
    return Buffer(struct.unpack_from('i', argument, 16)[0])


def cameras() -> list[Path]:
    """Return vivid's devices, one for each allocator."""
    devices = sorted(Path('/dev').glob('video*'))
    equal(len(devices), len(EXPORTERS), 'cameras')
    return devices


@check
def frames_of_a_camera_are_what_the_device_sees() -> None:
    exporters = set()
    for path in cameras():
        with opened(path, 4) as (fd, stride), Npu() as npu:
            buffers = [export(fd, index, os.O_RDWR) for index in range(4)]
            handles = [npu.import_fd(buffer.fd, SIZE).handle for buffer in buffers]
            objects = bufinfo()
            exporters |= {objects[buffer.inode].exporter for buffer in buffers}
            equal(
                [objects[buffer.inode].attached for buffer in buffers],
                [[NPU]] * 4,
                'attached devices',
            )
            for index in range(4):
                fcntl.ioctl(fd, _QBUF, _buffer_argument(index))
            fcntl.ioctl(fd, _STREAMON, struct.pack('I', _CAPTURE))
            for _ in range(6):
                argument = _buffer_argument(0)
                fcntl.ioctl(fd, _DQBUF, argument)
                index = struct.unpack_from('I', argument)[0]
                pixels = buffers[index].read(buffers[index].size)
                planes = [
                    PlanePixels(pixels, stride),
                    PlanePixels(pixels, stride, stride * SIZE[1]),
                ]
                result = npu.run(handles[index])
                equal(result.crcs(), expected_crcs('NV12', *SIZE, planes), 'CRCs')
                fcntl.ioctl(fd, _QBUF, argument)
            fcntl.ioctl(fd, _STREAMOFF, struct.pack('I', _CAPTURE))
            for buffer in buffers:
                buffer.close()
    equal(exporters, set(EXPORTERS), 'exporters')
