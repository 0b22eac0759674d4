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
A second implementation of rung 2's wire protocol, written from docs/wire.md.

It shares no code with the package, so a message that both understand is described by the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
import fcntl
import os
import struct
import time

HELLO, WELCOME, REFUSED, BUFFERS, FRAME, RELEASE, BUFFER_RETIRED = range(1, 8)
CONSTRAINTS = 3
MAGIC = int.from_bytes(b'ZCLK', 'little')
MAX_PACKET = 4096
SERVER = b'spec-server'
DMABUF, MEMFD = 1, 2


def fourcc(name: str) -> int:
    return int.from_bytes(name.ljust(4).encode('ascii'), 'little')


R8, NV12, YUYV, P010 = fourcc('R8'), fourcc('NV12'), fourcc('YUYV'), fourcc('P010')
INVALID = (1 << 56) - 1

HEADER = struct.Struct('<HHI')
HELLO_BODY = struct.Struct('<I HH 10I 32s 40s')  # after the header, before the formats
HELLO_FORMAT = struct.Struct('<IIQ')
WELCOME_BODY = struct.Struct('<HHIIIQ32s')
BUFFERS_BODY = struct.Struct('<Q4IQ2I4BIQ')  # before the planes
PLANE = struct.Struct('<IIQQ')
FRAME_BODY = struct.Struct('<3Q3qQII')
RELEASE_BODY = struct.Struct('<QQII')
RETIRED_BODY = struct.Struct('<Q')


def packet(kind: int, body: bytes, *, length: int | None = None, zero: int = 0) -> bytes:
    """Return a message with its header; *length* and *zero* can make the header wrong."""
    return HEADER.pack(kind, HEADER.size + len(body) if length is None else length, zero) + body


@dataclass(frozen=True)
class Hello:
    min_version: int = 1
    max_version: int = 1
    window: int = 2
    depth: int = 1
    flags: int = 0
    memory: int = 3
    stride_align: int = 1
    offset_align: int = 1
    max_width: int = 0
    max_height: int = 0
    publisher_id: bytes = b''
    name: bytes = b'spec'
    formats: tuple[tuple[int, int], ...] = ()
    options: bytes = b''

    def pack(self) -> bytes:
        *numbers, publisher_id, name, formats, options = astuple(self)
        counts = len(formats), len(options)
        body = HELLO_BODY.pack(MAGIC, *numbers, *counts, publisher_id, name)
        body += b''.join(HELLO_FORMAT.pack(code, 0, modifier) for code, modifier in formats)
        return packet(HELLO, body + options)


def welcome(
    window: int,
    depth: int,
    publisher: bytes = SERVER,
    *,
    version: int = 1,
    reserved: Sequence[int] = (0, 0, 0),
) -> bytes:
    first, *others = reserved
    return packet(WELCOME, WELCOME_BODY.pack(version, first, window, depth, *others, publisher))


def refused(code: int, text: bytes) -> bytes:
    return packet(REFUSED, struct.pack('<I', code) + text)


def release(uid: int, generation: int, *, flags: int = 0, zero: int = 0) -> bytes:
    return packet(RELEASE, RELEASE_BODY.pack(uid, generation, flags, zero))


Plane = tuple[int, int, int, int]
"""Buffer, stride, offset, size."""


@dataclass
class Image:
    """The fields of BUFFERS; a test changes one field to break one rule."""

    uid: int = 7
    width: int = 64
    height: int = 48
    fourcc: int = NV12
    modifier: int = 0
    kind: int = MEMFD
    colour: tuple[int, int, int] = (1, 1, 1)
    reserved: tuple[int, int, int] = (0, 0, 0)
    planes: list[Plane] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    num_planes: int | None = None
    num_buffers: int | None = None
    # Entries beyond those in use, which should be zero.
    tail_planes: list[Plane] = field(default_factory=list)
    tail_sizes: list[int] = field(default_factory=list)

    @classmethod
    def nv12(
        cls, uid: int = 7, width: int = 64, height: int = 48, *, stride: int = 80, buffers: int = 1
    ) -> Image:
        luma, chroma = stride * height, stride * ((height + 1) // 2)
        planes = [(0, stride, 0, luma), (0, stride, luma, chroma)]
        if buffers == 1:
            return cls(uid, width, height, planes=planes, sizes=[luma + chroma])
        planes[1] = (1, stride, 0, chroma)
        return cls(uid, width, height, planes=planes, sizes=[luma, chroma])

    @classmethod
    def one_plane(
        cls, fourcc: int, row: int, uid: int = 7, width: int = 64, height: int = 48
    ) -> Image:
        stride = row + 16
        size = stride * height
        return cls(uid, width, height, fourcc, planes=[(0, stride, 0, size)], sizes=[size])

    def pack(self) -> bytes:
        planes = [*self.planes, *self.tail_planes]
        sizes = [*self.sizes, *self.tail_sizes]
        body = BUFFERS_BODY.pack(
            self.uid,
            self.width,
            self.height,
            self.fourcc,
            len(self.planes) if self.num_planes is None else self.num_planes,
            self.modifier,
            len(self.sizes) if self.num_buffers is None else self.num_buffers,
            self.kind,
            *self.colour,
            *self.reserved,
        )
        body += b''.join(PLANE.pack(*plane) for plane in (planes + 4 * [(0, 0, 0, 0)])[:4])
        return packet(BUFFERS, body + struct.pack('<4Q', *(sizes + 4 * [0])[:4]))


class Slot:
    def __init__(self, image: Image) -> None:
        self.image = image
        self.fds = []
        for size in image.sizes:
            self.fds.append(os.memfd_create('spec', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.ftruncate(self.fds[-1], size)
            fcntl.fcntl(self.fds[-1], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def frame(
    uid: int,
    generation: int,
    sequence: int,
    *,
    flags: int = 0,
    frame_id: bytes = b'camera',
    published_ns: int | None = None,
) -> bytes:
    now = time.monotonic_ns()
    times = 0, now, now if published_ns is None else published_ns
    body = FRAME_BODY.pack(uid, generation, sequence, *times, 0, 0, flags)
    return packet(FRAME, body + frame_id)


def retired(uid: int) -> bytes:
    return packet(BUFFER_RETIRED, RETIRED_BODY.pack(uid))
