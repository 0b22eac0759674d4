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
The device node for the checks: each ioctl as one call, images laid out in buffers, and results.

The results follow the specification in ``module/axl_virtual.h``, in another language than
``module/axl_pixels.c``, so that a mistake in one of them shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
import ctypes
from dataclasses import dataclass
import errno
import fcntl
import os
from pathlib import Path
import random
from typing import Any, TypeVar
import zlib

from zc_perception.npu.axl import abi

from .kernel_api import Buffer, Closing, FenceInfo, heap_buffer, libc, wait_fence

_S = TypeVar('_S', bound=ctypes.LittleEndianStructure)

MAX_BOXES = 64


class VirtualResult(ctypes.LittleEndianStructure):
    """``struct axl_virtual_result``."""

    _fields_ = (
        ('magic', ctypes.c_uint32), ('version', ctypes.c_uint32), ('seqno', ctypes.c_uint64),
        ('width', ctypes.c_uint32), ('height', ctypes.c_uint32), ('fourcc', ctypes.c_uint32),
        ('num_planes', ctypes.c_uint32), ('crc32', ctypes.c_uint32 * 4),
        ('model_id', ctypes.c_uint32), ('num_boxes', ctypes.c_uint32),
        ('boxes', ctypes.c_int16 * 6 * MAX_BOXES),
    )  # fmt: skip

    @classmethod
    def of_job(cls, job: Any, size: int) -> VirtualResult:
        """Return the device's output for an ended axl job: *size* bytes, then zeros."""
        job.outputs()  # begins the CPU's access, which lasts until the job is closed
        written = bytes(job._result.buffer.memory()[:size])
        return cls.from_buffer_copy(written.ljust(ctypes.sizeof(cls), b'\0'))

    def crcs(self) -> list[int]:
        return list(self.crc32[: self.num_planes])


@dataclass(frozen=True)
class PlaneShape:
    """One plane of a format: bytes per sample, and pixels per sample both ways."""

    sample_bytes: int
    horizontal: int = 1
    vertical: int = 1

    def row_bytes(self, width: int) -> int:
        return -(-width // self.horizontal) * self.sample_bytes

    def rows(self, height: int) -> int:
        return -(-height // self.vertical)


def fourcc(text: str) -> int:
    """Return the DRM code of a four-letter name; shorter names are padded."""
    return int.from_bytes(text.ljust(4).encode('ascii'), 'little')


_Y = PlaneShape(1)

#: Formats that the virtual device imports, all of them linear.
FORMATS: dict[str, tuple[PlaneShape, ...]] = {
    'NV12': (_Y, PlaneShape(2, 2, 2)),
    'NV21': (_Y, PlaneShape(2, 2, 2)),
    'NV16': (_Y, PlaneShape(2, 2, 1)),
    'YU12': (_Y, PlaneShape(1, 2, 2), PlaneShape(1, 2, 2)),
    'YUYV': (PlaneShape(4, 2),),
    'RG24': (PlaneShape(3),),
    'BG24': (PlaneShape(3),),
    'R8': (_Y,),
}

RESULT_SIZE = ctypes.sizeof(VirtualResult)

#: A timeout that even a very busy machine does not reach.
LONG_US = 30_000_000


@dataclass(frozen=True)
class Job:
    """The result of a submit; the caller closes `fence`."""

    fence: int
    submit_us: int
    completion_us: int = 0
    seqno: int = 0

    def wait(self) -> FenceInfo:
        """Wait for the end, close the fence, return its information."""
        try:
            return wait_fence(self.fence)
        finally:
            os.close(self.fence)


@contextmanager
def no_dmabufs(negative: int = -1) -> Iterator[dict[int, int]]:
    """Yield descriptors that are no dma-buf and no fence, each with the errno that it must get."""
    with open(os.memfd_create('no dma-buf'), 'rb+', buffering=0) as memory:
        memory.truncate(1 << 20)
        yield {memory.fileno(): errno.EINVAL, negative: errno.EBADF, 9999: errno.EBADF}


def device_path() -> str:
    (path,) = Path('/dev').glob('metis-*')
    return str(path)


class Npu(Closing):
    def __init__(self) -> None:
        self.fd = os.open(device_path(), os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the file: its imports and jobs end."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def call(self, request: int, argument: _S) -> _S:
        fcntl.ioctl(self.fd, request, argument)
        return argument

    def call_at(self, request: int, address: int) -> None:
        if libc.ioctl(self.fd, ctypes.c_ulong(request), ctypes.c_void_p(address)) < 0:
            raise OSError(ctypes.get_errno(), 'ioctl')

    def import_fd(
        self,
        fd: int,
        size: tuple[int, int],
        pixfmt: str = 'NV12',
        flags: int = abi.ImportFlags.TO_DEVICE,
    ) -> abi.AxlImportFd:
        argument = abi.AxlImportFd(
            fd=fd, width=size[0], height=size[1], pixfmt=fourcc(pixfmt), flags=flags
        )
        return self.call(abi.REQUESTS.import_fd, argument)

    def import_planes(self, argument: abi.AxlImportPlanes) -> abi.AxlImportPlanes:
        return self.call(abi.REQUESTS.import_planes, argument)

    def release(self, handle: int) -> None:
        fcntl.ioctl(self.fd, abi.REQUESTS.release_import, ctypes.c_uint32(handle))

    def submit(self, handle: int, result: int, timeout_us: int = LONG_US) -> Job:
        """Submit with the first generation of the ioctl."""
        argument = abi.AxlSubmit(input_handle=handle, result_fd=result, timeout_us=timeout_us)
        self.call(abi.REQUESTS.submit, argument)
        return Job(argument.fence_fd, argument.submit_us, argument.completion_us)

    def submit2(
        self, handle: int, result: int, in_fence: int = abi.NO_FENCE, timeout_us: int = LONG_US
    ) -> Job:
        """Submit with the second generation of the ioctl."""
        argument = abi.AxlSubmit2(
            struct_size=ctypes.sizeof(abi.AxlSubmit2),
            input_handle=handle,
            timeout_us=timeout_us,
            in_fence_fd=in_fence,
            result_fd=result,
        )
        self.call(abi.REQUESTS.submit2, argument)
        return Job(argument.fence_fd, argument.submit_us, seqno=argument.seqno)

    def run(self, handle: int) -> VirtualResult:
        """Run one job, which must succeed, and return its result."""
        with heap_buffer(RESULT_SIZE) as result:
            status = self.submit(handle, result.fd).wait().status
            assert status == 1, f'the job ended with status {status}'
            return read_result(result)


def read_result(buffer: Buffer) -> VirtualResult:
    return VirtualResult.from_buffer_copy(buffer.read(RESULT_SIZE))


@dataclass
class Plane:
    buffer: Buffer
    stride: int
    offset: int
    size: int


@dataclass
class Image(Closing):
    """An image in buffers, with the layout to import it by."""

    format_name: str
    width: int
    height: int
    planes: list[Plane]

    def argument(self) -> abi.AxlImportPlanes:
        argument = abi.AxlImportPlanes(
            struct_size=ctypes.sizeof(abi.AxlImportPlanes), flags=abi.ImportFlags.TO_DEVICE,
            width=self.width, height=self.height, fourcc=fourcc(self.format_name),
            num_planes=len(self.planes),
        )  # fmt: skip
        for target, plane in zip(argument.planes, self.planes, strict=False):
            target.fd, target.stride = plane.buffer.fd, plane.stride
            target.offset, target.size = plane.offset, plane.size
        return argument

    def crcs(self) -> list[int]:
        """Return the right CRCs: ``axl_pixels.c`` computes them from the same specification."""
        found = []
        for shape, plane in zip(FORMATS[self.format_name], self.planes, strict=True):
            data, length = plane.buffer.read(plane.buffer.size), shape.row_bytes(self.width)
            end = plane.offset + shape.rows(self.height) * plane.stride
            starts = range(plane.offset, end, plane.stride)
            found.append(zlib.crc32(b''.join(data[slice(at, at + length)] for at in starts)))
        return found

    def buffers(self) -> list[Buffer]:
        return list({plane.buffer.inode: plane.buffer for plane in self.planes}.values())

    def close(self) -> None:
        for buffer in self.buffers():
            buffer.close()


def make_image(
    format_name: str = 'NV12',
    width: int = 64,
    height: int = 48,
    *,
    padding: Sequence[int] = (0, 0, 0, 0),
    gaps: Sequence[int] = (0, 0, 0, 0),
    separate: bool = False,
    allocate: Callable[[int], Buffer] = heap_buffer,
) -> Image:
    """Make an image, with `padding` bytes after rows and a gap before each plane."""
    places: list[tuple[int, int, int]] = []
    end = 0
    for index, shape in enumerate(FORMATS[format_name]):
        offset = (0 if separate else end) + gaps[index]
        stride = shape.row_bytes(width) + padding[index]
        places.append((stride, offset, stride * shape.rows(height)))
        end = offset + places[-1][2]
    sizes = [offset + size for _, offset, size in places]
    buffers = [allocate(size) for size in sizes] if separate else [allocate(end)] * len(places)
    planes = [Plane(buffer, *place) for buffer, place in zip(buffers, places, strict=True)]
    image = Image(format_name, width, height, planes)
    chance = random.Random(1)
    for buffer in image.buffers():
        buffer.write(chance.randbytes(buffer.size))
    return image


@contextmanager
def scene(**options: Any) -> Iterator[tuple[Npu, Image, int, Buffer]]:
    """Yield an open file of the device, an image, its handle, and a buffer for a result."""
    with Npu() as npu, make_image(**options) as image, heap_buffer(RESULT_SIZE) as result:
        yield npu, image, npu.import_planes(image.argument()).handle, result


@contextmanager
def two_files(**options: Any) -> Iterator[tuple[Npu, int, Npu, int, Image, Buffer]]:
    """Yield two open files with a handle each of one image, the image and the result buffer."""
    with scene(**options) as (npu, image, handle, result), Npu() as other:
        yield npu, handle, other, other.import_planes(image.argument()).handle, image, result
