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
The virtual Metis's result, and a second computation of its expected CRCs.

It follows the specification in ``module/axl_virtual.h``, in another language than
``module/axl_pixels.c``, so that a mistake in one of them shows. It uses the standard library
alone, because it also runs in the guest.
"""

from __future__ import annotations

from collections.abc import Sequence
import ctypes
from dataclasses import dataclass
from typing import Any
import zlib

MAX_BOXES = 64


class VirtualResult(ctypes.LittleEndianStructure):
    """``struct axl_virtual_result``."""

    _fields_ = (
        ('magic', ctypes.c_uint32),
        ('version', ctypes.c_uint32),
        ('seqno', ctypes.c_uint64),
        ('width', ctypes.c_uint32),
        ('height', ctypes.c_uint32),
        ('fourcc', ctypes.c_uint32),
        ('num_planes', ctypes.c_uint32),
        ('crc32', ctypes.c_uint32 * 4),
        ('model_id', ctypes.c_uint32),
        ('num_boxes', ctypes.c_uint32),
        ('boxes', ctypes.c_int16 * 6 * MAX_BOXES),
    )

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


@dataclass(frozen=True)
class PlanePixels:
    """Bytes that hold a plane, and the plane's place in them."""

    data: bytes
    stride: int
    offset: int = 0

    def rows(self, shape: PlaneShape, width: int, height: int) -> list[bytes]:
        length = shape.row_bytes(width)
        starts = range(self.offset, self.offset + shape.rows(height) * self.stride, self.stride)
        return [self.data[slice(start, start + length)] for start in starts]


def expected_crcs(
    format_name: str, width: int, height: int, planes: Sequence[PlanePixels]
) -> list[int]:
    shapes = FORMATS[format_name]
    return [
        zlib.crc32(b''.join(plane.rows(shape, width, height)))
        for shape, plane in zip(shapes, planes, strict=True)
    ]
