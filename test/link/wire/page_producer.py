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
A producer of camera frames, written from docs/wire.md alone with the standard library.

It serves a moving pattern in memfds to each consumer that connects, and prints each frame's CRCs
as one line of JSON. With --reconfigure N it changes to buffers of half the size, and back, every
N frames. It shares code with page_consumer.py only, so it proves that the page is sufficient.
"""

from __future__ import annotations

import argparse
import array
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
import fcntl
import json
import mmap
import os
import re
import secrets
import selectors
import signal
import socket
import stat
import struct
import sys
import time
import zlib

from page_consumer import folder, FORMATS, host_id, receive, say, SYNC_IOC_FILE_INFO

HELLO, WELCOME, REFUSED, BUFFERS, FRAME, RELEASE, BUFFER_RETIRED = range(1, 8)
VERSION, NOT_ALLOWED, UNSUITABLE, BUSY, RULE, OTHER_PUBLISHER = range(1, 7)
MEMFD, MEMFD_BIT, LINEAR = 2, 2, 0
F_ADD_SEALS, SHRINK_GROW_FUTURE_WRITE = 1033, 2 | 4 | 16
SLOTS, WIDTH, HEIGHT, RATE_HZ, FRAME_ID = 12, 640, 360, 10.0, b'camera'
HELLO_SECONDS = 1.0


class Refusal(Exception):
    """The reason to refuse a consumer; it is sent as REFUSED."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def refuse_if(condition: object, code: int, text: str) -> None:
    if condition:
        raise Refusal(code, text)


def own_folder() -> str:
    where = folder()
    os.makedirs(where, mode=0o700, exist_ok=True)
    about = os.lstat(where)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
        sys.exit(f"{where} is a link, is somebody else's or is open to others")
    return where


def remove_dead(where: str) -> None:
    """Remove sockets and announcements of killed producers: such a socket refuses connections."""
    for name in os.listdir(where):
        base, end = os.path.splitext(os.path.join(where, name))
        if end != '.sock' or name.startswith('.'):
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
            try:
                probe.connect(base + '.sock')
            except ConnectionRefusedError:
                for path in (base + '.announcement', base + '.sock'):
                    with suppress(FileNotFoundError):
                        os.unlink(path)
            except OSError:
                pass


@dataclass
class Slot:
    uid: int
    fd: int
    memory: mmap.mmap
    generation: int = 0
    users: int = 0  # consumers that hold its frame or wait for it, and release fences


class Pool:
    """The slots of one layout; the last user of a retired pool's slot closes that slot."""

    def __init__(self, fourcc: str, width: int, height: int, first_uid: int) -> None:
        self.fourcc, self.width, self.height = fourcc, width, height
        self.planes: list[tuple[int, int, int, int]] = []
        offset = 0
        for unit, x, y in FORMATS[fourcc.encode()]:
            stride = -(-(width // x * unit) // 64) * 64
            self.planes.append((0, stride, offset, stride * (height // y)))
            offset += stride * (height // y)
        self.size = offset
        self.retired = False
        self.slots = [self._allocate(first_uid + i) for i in range(SLOTS)]

    def _allocate(self, uid: int) -> Slot:
        fd = os.memfd_create('page_producer', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, self.size)
        memory = mmap.mmap(fd, self.size, mmap.MAP_SHARED)
        fcntl.fcntl(fd, F_ADD_SEALS, SHRINK_GROW_FUTURE_WRITE)
        return Slot(uid, fd, memory)

    def message(self, slot: Slot) -> bytes:
        packet = struct.pack('<HHIQII', BUFFERS, 192, 0, slot.uid, self.width, self.height)
        packet += struct.pack('<4sIQII', self.fourcc.encode(), len(self.planes), LINEAR, 1, MEMFD)
        packet += struct.pack('<BBB13s', 2, 1, 1, b'')
        for i in range(4):
            packet += struct.pack('<IIQQ', *(self.planes[i] if i < len(self.planes) else [0] * 4))
        return packet + struct.pack('<4Q', self.size, 0, 0, 0)

    def draw(self, slot: Slot, number: int) -> list[int]:
        crcs = []
        for plane, ((_, stride, offset, _), (unit, x, y)) in enumerate(
            zip(self.planes, FORMATS[self.fourcc.encode()], strict=True)
        ):
            row, crc = self.width // x * unit, 0
            pattern = bytes((i + 3 * number + 7 * plane) % 256 for i in range(256)) * (
                row // 256 + 2
            )
            for line in range(self.height // y):
                at, shift = offset + line * stride, line % 256
                slot.memory[slice(at, at + row)] = pattern[slice(shift, shift + row)]
                crc = zlib.crc32(pattern[slice(shift, shift + row)], crc)
            crcs.append(crc)
        return crcs

    def give_back(self, slot: Slot) -> None:
        slot.users -= 1
        self.close_unused()

    def close_unused(self) -> None:
        for slot in [s for s in self.slots if self.retired and not s.users]:
            self.slots.remove(slot)
            slot.memory.close()
            os.close(slot.fd)


@dataclass
class Wants:
    window: int
    depth: int
    memory: int
    stride_align: int
    offset_align: int
    max_width: int
    max_height: int
    formats: list[tuple[bytes, int]]
    options: str

    def judge(self, pool: Pool) -> None:
        refuse_if(not self.memory & MEMFD_BIT, UNSUITABLE, 'there are only memfds here')
        if self.formats and (pool.fourcc.encode(), LINEAR) not in self.formats:
            raise Refusal(UNSUITABLE, f'the format is {pool.fourcc}')
        if (self.max_width and pool.width > self.max_width) or (
            self.max_height and pool.height > self.max_height
        ):
            raise Refusal(UNSUITABLE, f'the image has {pool.width}x{pool.height} pixels')
        for _, stride, offset, _ in pool.planes:
            if stride % self.stride_align or offset % self.offset_align:
                raise Refusal(UNSUITABLE, f'a plane has stride {stride} and offset {offset}')
        for option in filter(None, (part.strip() for part in self.options.split(';'))):
            if not keeps(pool, option):
                raise Refusal(UNSUITABLE, f"the buffers don't keep the option '{option}'")


def keeps(pool: Pool, option: str) -> bool:
    name, _, value = (part.strip() for part in option.partition('='))
    size = re.fullmatch(r'(\d+)x(\d+)', value)
    width, height = map(int, size.groups()) if size else (0, 0)
    number = int(value) if value.isdigit() else 0
    return {
        'cpu': value in ('read', 'write', 'read_write'),
        'one_buffer': True,
        'buffer_per_plane': len(pool.planes) == 1,
        'heap': 'memfd' in (each.strip() for each in value.split('|')),
        'min_size': bool(size) and pool.width >= width and pool.height >= height,
        'max_size': pool.width <= width and pool.height <= height,
        'height_align': number > 0 and pool.height % number == 0,
        'max_stride': all(plane[1] <= number for plane in pool.planes),
    }.get(name, False)


def parse_hello(packet: bytes, publisher_id: str) -> tuple[Wants, str]:
    number, length = struct.unpack_from('<HH', packet) if len(packet) >= 4 else (0, 0)
    refuse_if(number != HELLO or length != len(packet) or length < 16, RULE, 'this is no HELLO')
    magic, low, high = struct.unpack_from('<4sHH', packet, 8)
    refuse_if(magic != b'ZCLK' or low > high, RULE, f'magic {magic!r}, versions {low} to {high}')
    refuse_if(not low <= 1 <= high, VERSION, 'this producer speaks the versions 1 to 1')
    if length < 128 or any(packet[4:8]):
        raise Refusal(RULE, f'a HELLO of {length} bytes, or no zero in its header')
    window, depth, flags, memory = struct.unpack_from('<IIII', packet, 16)
    stride_align, offset_align, max_width, max_height = struct.unpack_from('<IIII', packet, 32)
    count, options_size = struct.unpack_from('<II', packet, 48)
    wanted_id, name = struct.unpack_from('<32s40s', packet, 56)
    if not (1 <= window <= 64 and 1 <= depth <= 64 and flags <= 3 and 1 <= memory <= 3):
        raise Refusal(RULE, f'window {window}, depth {depth}, flags {flags}, memory {memory}')
    if 0 in (stride_align, offset_align) or count > 64 or options_size > 1024:
        raise Refusal(RULE, 'an alignment of 0, or too many formats or options')
    if length != 128 + 16 * count + options_size:
        raise Refusal(RULE, f'a HELLO of {length} bytes with {count} formats')
    formats = []
    for i in range(count):
        fourcc, zero, modifier = struct.unpack_from('<4sIQ', packet, 128 + 16 * i)
        refuse_if(zero, RULE, 'a format whose second field is not zero')
        formats.append((fourcc, modifier))
    try:
        options = packet[slice(128 + 16 * count, None)].decode()
        consumer = name.rstrip(b'\0').decode()
    except UnicodeDecodeError:
        raise Refusal(RULE, 'text that is not UTF-8') from None
    if wanted_id.rstrip(b'\0') not in (b'', publisher_id.encode()):
        raise Refusal(OTHER_PUBLISHER, f'this is {publisher_id}')
    return Wants(
        window, depth, memory, stride_align, offset_align, max_width, max_height, formats, options
    ), consumer


@dataclass(eq=False)
class Client:
    socket: socket.socket
    connected_at: float
    name: str = '?'
    wants: Wants | None = None
    window: int = 0
    depth: int = 0
    dropped: int = 0
    known: set[int] = field(default_factory=set)
    held: dict[int, tuple[Pool, Slot]] = field(default_factory=dict)
    waiting: deque[tuple[Pool, Slot, bytes]] = field(default_factory=deque)


class Producer:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.publisher_id = secrets.token_hex(16)
        self._arguments = arguments
        where = own_folder()
        remove_dead(where)
        self._base = os.path.join(where, self.publisher_id)
        self._starting = os.path.join(where, '.starting-')
        self._selector = selectors.DefaultSelector()
        self._clients: list[Client] = []
        self._generation = 0
        self._uids = 1
        self._sequence = 0
        self._pool = self._new_pool(1)
        self._listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
        )
        starting = self._starting + secrets.token_hex(4)
        self._listener.bind(starting)
        os.chmod(starting, 0o600)
        self._listener.listen(16)
        os.rename(starting, self._base + '.sock')
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._announce()

    def _new_pool(self, divisor: int) -> Pool:
        pool = Pool(self._arguments.format, WIDTH // divisor, HEIGHT // divisor, self._uids)
        self._uids += SLOTS
        return pool

    def _announce(self) -> None:
        pool, socket_path = self._pool, self._base + '.sock'
        inner = {'version': 1, 'publisher_id': self.publisher_id, 'host_id': host_id()}
        inner |= {'socket': socket_path, 'width': pool.width, 'height': pool.height}
        inner |= {'formats': [pool.fourcc], 'heap': 'memfd', 'generation': self._generation}
        outer = {'topic': self._arguments.topic, 'domain': self._arguments.domain}
        outer['announcement'] = json.dumps(inner)
        starting = self._starting + secrets.token_hex(4)
        fd = os.open(starting, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, 'w') as file:
            json.dump(outer, file)
        os.rename(starting, self._base + '.announcement')
        say('announced', publisher_id=self.publisher_id, generation=self._generation)

    def run(self) -> None:
        due = time.monotonic()
        while True:
            for key, _ in self._selector.select(max(0.0, due - time.monotonic())):
                key.data()
            now = time.monotonic()
            for client in [c for c in self._clients if not c.wants]:
                if now - client.connected_at > HELLO_SECONDS:
                    self._refuse(client, Refusal(RULE, 'no HELLO within 1 s'))
            if now >= due:
                due = max(due + 1 / RATE_HZ, now)
                self._publish()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        connection.setblocking(False)
        client = Client(connection, time.monotonic())
        self._clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(client))
        user = struct.unpack(
            '3i', connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )[1]
        if user not in (0, os.geteuid()):
            self._refuse(client, Refusal(NOT_ALLOWED, "only the producer's user and root"))

    def _read(self, client: Client) -> None:
        try:
            packet, left, cut = receive(client.socket)
        except BlockingIOError:
            return
        except ConnectionResetError:
            packet, left, cut = b'', [], False
        try:
            if not packet:
                self._close(client, 'eof')
            elif cut:
                raise Refusal(RULE, 'a truncated packet')
            elif not client.wants:
                refuse_if(left, RULE, 'a HELLO with descriptors')
                self._hello(client, packet)
            else:
                self._message(client, packet, left)
        except Refusal as refusal:
            self._refuse(client, refusal)
        finally:
            for fd in left:
                os.close(fd)

    def _hello(self, client: Client, packet: bytes) -> None:
        wants, client.name = parse_hello(packet, self.publisher_id)
        wants.judge(self._pool)
        promised = sum(c.window + c.depth for c in self._clients)
        free = SLOTS - 1 - promised
        refuse_if(free < 2, BUSY, 'no slots are left')
        client.window = min(wants.window, free - 1)
        client.depth = min(wants.depth, free - client.window)
        client.wants = wants
        self._send(
            client,
            struct.pack('<HHIHHII12s', WELCOME, 64, 0, 1, 0, client.window, client.depth, b'')
            + self.publisher_id.encode(),
        )
        say('welcome', name=client.name, window=client.window, depth=client.depth)

    def _message(self, client: Client, packet: bytes, fds: list[int]) -> None:
        refuse_if(len(packet) < 8, RULE, 'a packet without a header')
        number, length, zero = struct.unpack_from('<HHI', packet)
        if length != len(packet) or zero:
            raise Refusal(RULE, f'a header with length {length} of a packet of {len(packet)}')
        if number == REFUSED and 12 <= length <= 512 and not fds:
            (code,) = struct.unpack_from('<I', packet, 8)
            refuse_if(code != UNSUITABLE, RULE, f'REFUSED with code {code}')
            self._close(client, f'refused: {packet[12:].decode(errors="replace")}')
            return
        refuse_if(number != RELEASE or length != 32, RULE, f'message {number} of {length} bytes')
        uid, generation, flags, zero = struct.unpack_from('<QQII', packet, 8)
        if flags > 1 or zero or len(fds) != flags:
            raise Refusal(RULE, f'RELEASE with flags {flags} and {len(fds)} descriptors')
        pool, slot = client.held.get(uid, (None, None))
        if pool is None or slot is None or slot.generation != generation:
            raise Refusal(RULE, f'a RELEASE of slot {uid}, generation {generation}: not held')
        if fds:
            try:
                fcntl.ioctl(fds[0], SYNC_IOC_FILE_INFO, bytearray(56))
            except OSError:
                raise Refusal(RULE, 'a release fence that is no sync_file') from None
            self._rest(fds.pop(), pool, slot)
            slot.users += 1
        del client.held[uid]
        pool.give_back(slot)
        say('released', name=client.name, uid=uid)
        self._send_waiting(client)

    def _rest(self, fence: int, pool: Pool, slot: Slot) -> None:
        def signalled() -> None:
            self._selector.unregister(fence)
            os.close(fence)
            pool.give_back(slot)

        self._selector.register(fence, selectors.EVENT_READ, signalled)

    def _publish(self) -> None:
        self._sequence += 1
        every = self._arguments.reconfigure
        if every and self._sequence % every == 0:
            self._reconfigure(2 if self._sequence // every % 2 else 1)
        slot = next((s for s in self._pool.slots if not s.users), None)
        if slot is None:
            say('no free slot', sequence=self._sequence)
            return
        slot.generation += 1
        captured = time.monotonic_ns()
        crcs = self._pool.draw(slot, self._sequence)
        published = time.monotonic_ns()
        packet = struct.pack('<QQQ', slot.uid, slot.generation, self._sequence)
        packet += struct.pack('<qqqQ', time.time_ns(), captured, published, published - captured)
        say('frame', sequence=self._sequence, uid=slot.uid, crcs=crcs)
        for client in [c for c in self._clients if c.wants]:
            slot.users += 1
            client.waiting.append((self._pool, slot, packet))
            self._send_waiting(client)
            if len(client.waiting) > client.depth:
                self._drop_oldest(client)

    def _drop_oldest(self, client: Client) -> None:
        pool, slot, _ = client.waiting.popleft()
        client.dropped = min(client.dropped + 1, 2**32 - 1)
        pool.give_back(slot)

    def _send_waiting(self, client: Client) -> None:
        while client.waiting and len(client.held) < client.window:
            pool, slot, body = client.waiting[0]
            if slot.uid not in client.known:
                if not self._send(client, pool.message(slot), [slot.fd]):
                    return
                client.known.add(slot.uid)
            packet = struct.pack('<HHI', FRAME, 72 + len(FRAME_ID), 0) + body
            packet += struct.pack('<II', client.dropped, 0) + FRAME_ID
            try:
                client.socket.send(packet)
            except BlockingIOError:
                return self._drop_oldest(client)
            except OSError:
                # The consumer stopped reading: its EOF comes after it has released all frames.
                return
            client.waiting.popleft()
            client.held[slot.uid] = (pool, slot)
            client.dropped = 0

    def _send(self, client: Client, packet: bytes, fds: list[int] | None = None) -> bool:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else []
        try:
            client.socket.sendmsg([packet], rights)
            return True
        except BlockingIOError:
            self._close(client, "it doesn't read")
        except OSError:
            pass  # as in _send_waiting
        return False

    def _refuse(self, client: Client, refusal: Refusal) -> None:
        text = str(refusal).encode()[:500]
        with suppress(OSError):
            client.socket.send(
                struct.pack('<HHII', REFUSED, 12 + len(text), 0, refusal.code) + text
            )
        self._close(client, f'refused with {refusal.code}: {refusal}')

    def _close(self, client: Client, why: str) -> None:
        if client not in self._clients:
            return
        self._clients.remove(client)
        self._selector.unregister(client.socket)
        client.socket.close()
        say('gone', name=client.name, why=why, held=len(client.held))
        for pool, slot in client.held.values():
            pool.give_back(slot)
        for pool, slot, _ in client.waiting:
            pool.give_back(slot)
        client.held.clear()
        client.waiting.clear()

    def _reconfigure(self, divisor: int) -> None:
        old, self._pool = self._pool, self._new_pool(divisor)
        for client in list(self._clients):
            while client.waiting:
                self._drop_oldest(client)
            for uid in sorted(client.known):
                if not self._send(client, struct.pack('<HHIQ', BUFFER_RETIRED, 16, 0, uid)):
                    break
            client.known.clear()
            try:
                if client.wants:
                    client.wants.judge(self._pool)
            except Refusal as refusal:
                self._refuse(client, refusal)
        old.retired = True
        old.close_unused()
        self._generation += 1
        self._announce()

    def close(self) -> None:
        for name in ('.announcement', '.sock'):
            os.unlink(self._base + name)
        for client in list(self._clients):
            self._close(client, 'the producer ends')
        self._listener.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--topic', default='/image_raw')
    parser.add_argument('--domain', type=int, default=int(os.environ.get('ROS_DOMAIN_ID') or 0))
    parser.add_argument('--format', choices=[each.decode() for each in FORMATS], default='NV12')
    parser.add_argument('--reconfigure', type=int, default=0, help='after every so many frames')
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    producer = Producer(arguments)
    try:
        producer.run()
    finally:
        producer.close()


if __name__ == '__main__':
    main()
