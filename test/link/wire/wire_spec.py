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
Rung 2's wire protocol a second time: written from docs/wire.md, not from the package.

It has tables, packing and checks. ``SpecServer`` is a producer that a test drives step by step,
and that says which rule a consumer broke. It shares no code with the package's producer, so what
both agree on is what the page says.
"""

from __future__ import annotations

import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
import fcntl
import os
from pathlib import Path
import re
import socket
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
FENCE_FLAG = 1


class RuleBroken(Exception):
    """A consumer didn't keep to the page. The text is the rule's name."""


class ConsumerGone(Exception):
    """EOF."""


def _demand(holds: bool, rule: str) -> None:
    if not holds:
        raise RuleBroken(rule)


def _demand_text(raw: bytes, rule: str, allowed: str) -> bytes:
    text = raw.rstrip(b'\0')
    _demand(re.fullmatch(allowed, text.decode('utf-8', 'replace')) is not None, rule)
    return text


def packet(kind: int, body: bytes, *, length: int | None = None, zero: int = 0) -> bytes:
    """Return a message with its header; *length* and *zero* can make it lie."""
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
        body = HELLO_BODY.pack(
            MAGIC,
            self.min_version,
            self.max_version,
            self.window,
            self.depth,
            self.flags,
            self.memory,
            self.stride_align,
            self.offset_align,
            self.max_width,
            self.max_height,
            len(self.formats),
            len(self.options),
            self.publisher_id,
            self.name,
        )
        return packet(
            HELLO,
            body
            + b''.join(HELLO_FORMAT.pack(fourcc, 0, modifier) for fourcc, modifier in self.formats)
            + self.options,
        )

    @classmethod
    def parse(cls, data: bytes) -> Hello:
        """Of a packet whose header is right. Raises RuleBroken."""
        _demand(len(data) >= 128, 'length')
        (
            magic,
            low,
            high,
            window,
            depth,
            flags,
            memory,
            stride,
            offset,
            width,
            height,
            count,
            options,
            publisher,
            name,
        ) = HELLO_BODY.unpack_from(data, 8)
        _demand(magic == MAGIC, 'magic')
        _demand(count <= 64, 'num_formats')
        _demand(options <= 1024, 'options')
        _demand(len(data) == 128 + 16 * count + options, 'length')
        _demand(1 <= window <= 64, 'window')
        _demand(1 <= depth <= 64, 'depth')
        _demand(flags <= 3, 'flags')
        _demand(memory in (1, 2, 3), 'memory')
        _demand(stride >= 1 and offset >= 1, 'alignment')
        formats = [HELLO_FORMAT.unpack_from(data, 128 + 16 * i) for i in range(count)]
        _demand(all(zero == 0 for _, zero, _ in formats), 'reserved')
        _demand(low <= high, 'version')
        return cls(
            low,
            high,
            window,
            depth,
            flags,
            memory,
            stride,
            offset,
            width,
            height,
            _demand_text(publisher, 'publisher', '[ -~]*'),
            _demand_text(name, 'name', '[^\0\ufffd]*'),
            tuple((fourcc, modifier) for fourcc, _, modifier in formats),
            _demand_text(data[slice(128 + 16 * count, None)], 'options', '[^\0\ufffd]*'),
        )


def welcome(
    window: int,
    depth: int,
    publisher: bytes = SERVER,
    *,
    version: int = 1,
    reserved: Sequence[int] = (0, 0, 0),
) -> bytes:
    return packet(
        WELCOME,
        WELCOME_BODY.pack(
            version, reserved[0], window, depth, reserved[1], reserved[2], publisher
        ),
    )


def refused(code: int, text: bytes) -> bytes:
    return packet(REFUSED, struct.pack('<I', code) + text)


def release(uid: int, generation: int, *, flags: int = 0, zero: int = 0) -> bytes:
    return packet(RELEASE, RELEASE_BODY.pack(uid, generation, flags, zero))


@dataclass
class Image:
    """What BUFFERS says; a test changes one field to break one rule."""

    uid: int = 7
    width: int = 64
    height: int = 48
    fourcc: int = NV12
    modifier: int = 0
    kind: int = MEMFD
    colour: tuple[int, int, int] = (1, 1, 1)
    reserved: tuple[int, int, int] = (0, 0, 0)
    planes: list[tuple[int, int, int, int]] = field(
        default_factory=list
    )  # buffer, stride, offset, size
    sizes: list[int] = field(default_factory=list)
    num_planes: int | None = None
    num_buffers: int | None = None
    tail_planes: list[tuple[int, int, int, int]] = field(
        default_factory=list
    )  # where unused ones should be zero
    tail_sizes: list[int] = field(default_factory=list)

    @classmethod
    def nv12(
        cls, uid: int = 7, width: int = 64, height: int = 48, *, stride: int = 80, buffers: int = 1
    ) -> Image:
        luma, chroma = stride * height, stride * ((height + 1) // 2)
        if buffers == 1:
            return cls(
                uid,
                width,
                height,
                planes=[(0, stride, 0, luma), (0, stride, luma, chroma)],
                sizes=[luma + chroma],
            )
        return cls(
            uid,
            width,
            height,
            planes=[(0, stride, 0, luma), (1, stride, 0, chroma)],
            sizes=[luma, chroma],
        )

    @classmethod
    def one_plane(
        cls,
        fourcc: int,
        row: int,
        uid: int = 7,
        width: int = 64,
        height: int = 48,
        *,
        padding: int = 16,
    ) -> Image:
        size = (row + padding) * height
        return cls(uid, width, height, fourcc, planes=[(0, row + padding, 0, size)], sizes=[size])

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
    """An image's memory on sealed memfds, and what was written to it."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.fds = []
        for size in image.sizes:
            self.fds.append(os.memfd_create('spec', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.ftruncate(self.fds[-1], size)
            fcntl.fcntl(self.fds[-1], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.generation = 0
        self.held = False

    def fill(self, data: Sequence[bytes]) -> None:
        for fd, content in zip(self.fds, data, strict=True):
            os.pwrite(fd, content, 0)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def frame(
    uid: int,
    generation: int,
    sequence: int,
    *,
    stamp_ns: int = 0,
    flags: int = 0,
    frame_id: bytes = b'camera',
    published_ns: int | None = None,
) -> bytes:
    now = time.monotonic_ns()
    return packet(
        FRAME,
        FRAME_BODY.pack(
            uid,
            generation,
            sequence,
            stamp_ns,
            now,
            now if published_ns is None else published_ns,
            0,
            0,
            flags,
        )
        + frame_id,
    )


def retired(uid: int) -> bytes:
    return packet(BUFFER_RETIRED, RETIRED_BODY.pack(uid))


def is_sync_file(fd: int) -> bool:
    """Told without an ioctl: the kernel writes a sync_file's descriptor link like this."""
    return (
        re.fullmatch(r'anon_inode:\[?sync_file\]?', os.readlink(f'/proc/self/fd/{fd}')) is not None
    )


class Conversation:
    """The producer's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.hello: Hello | None = None
        self.window = 0
        self.leases: dict[int, int] = {}
        self.refusal = ''

    def receive(self) -> bytes:
        """
        Receive one packet of the consumer, check it, and do what it says.

        Raises RuleBroken, ConsumerGone, TimeoutError.
        """
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(
                MAX_PACKET, socket.CMSG_SPACE(4 * 4), socket.MSG_CMSG_CLOEXEC
            )
        # told once, where the consumer left packets unread; what it said before still lies in the
        # queue
        except ConnectionResetError:
            return self.receive()
        descriptors = array.array('i')
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content[: len(content) // 4 * 4])
        try:
            self._take(data, flags, list(descriptors))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return data

    def _take(self, data: bytes, flags: int, descriptors: list[int]) -> None:
        if not data:
            raise ConsumerGone
        _demand(not flags & socket.MSG_TRUNC, 'packet')
        _demand(not flags & socket.MSG_CTRUNC, 'control')
        _demand(len(data) >= HEADER.size, 'header')
        kind, length, zero = HEADER.unpack_from(data)
        _demand(kind in (HELLO, RELEASE, REFUSED), 'type')
        _demand(length == len(data), 'length')
        _demand(zero == 0, 'reserved')
        if kind == HELLO:
            _demand(not descriptors, 'descriptors')
            _demand(self.hello is None, 'state')
            self.hello = Hello.parse(data)
            return
        _demand(self.hello is not None and not self.refusal, 'state')
        if kind == REFUSED:
            _demand(12 < len(data) <= 512, 'length')
            _demand(data[8:12] == struct.pack('<I', CONSTRAINTS), 'code')
            _demand(not descriptors, 'descriptors')
            self.refusal = data[12:].decode()
            return
        _demand(len(data) == 32, 'length')
        uid, generation, flag, zero = RELEASE_BODY.unpack_from(data, HEADER.size)
        _demand(flag in (0, FENCE_FLAG), 'flags')
        _demand(zero == 0, 'reserved')
        _demand(len(descriptors) == flag, 'descriptors')
        _demand(self.leases.get(uid) == generation, 'lease')
        _demand(all(map(is_sync_file, descriptors)), 'fence')
        del self.leases[uid]

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        self.socket.sendmsg(
            [data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else []
        )

    def expect_hello(self) -> Hello:
        self.receive()
        assert self.hello is not None
        return self.hello

    def open(self, *, window: int | None = None, publisher: bytes = SERVER) -> Hello:  # noqa: A003
        """Take the HELLO and say WELCOME, with what was asked."""
        hello = self.expect_hello()
        self.window = hello.window if window is None else window
        self.send(welcome(self.window, hello.depth, publisher))
        return hello

    def announce(self, slot: Slot) -> None:
        self.send(slot.image.pack(), slot.fds)

    def publish(
        self, slot: Slot, sequence: int, *, frame_id: bytes = b'camera', stamp_ns: int = 0
    ) -> None:
        """Wait for a place in the window and for the slot, as a producer would keep them free."""
        while len(self.leases) >= self.window or slot.image.uid in self.leases:
            self.receive()
        slot.generation += 1
        self.leases[slot.image.uid] = slot.generation
        self.send(
            frame(slot.image.uid, slot.generation, sequence, frame_id=frame_id, stamp_ns=stamp_ns)
        )

    def wait_free(self, slot: Slot) -> None:
        while slot.image.uid in self.leases:
            self.receive()

    def refuse(self, code: int, text: str) -> None:
        with suppress(BrokenPipeError):
            self.send(refused(code, text.encode()))
        self.close()

    def close(self) -> None:
        self.socket.close()


class SpecServer:
    """Listens at a path. Every wait is bounded, so that a test ends."""

    def __init__(self, path: Path, timeout_s: float = 60.0) -> None:
        self.path = path
        self._timeout_s = timeout_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(timeout_s)
        self._socket.bind(str(path))
        self._socket.listen()

    @contextmanager
    def accept(self) -> Iterator[Conversation]:
        connection, _ = self._socket.accept()
        connection.settimeout(self._timeout_s)
        conversation = Conversation(connection)
        try:
            yield conversation
        finally:
            conversation.close()

    def close(self) -> None:
        self._socket.close()
        with suppress(FileNotFoundError):
            self.path.unlink()
