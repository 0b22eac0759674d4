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
A consumer of camera frames, written from docs/wire.md alone with the standard library.

It finds the publishers of a topic in their folder, takes frames from one at a time, prints each
frame's CRCs as one line of JSON, and releases it. It continues when the camera ends, returns, or
changes its buffers. It shares no code with the package or other tests, so it proves that the
page is sufficient.
"""

from __future__ import annotations

import argparse
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
import fcntl
import hashlib
from itertools import pairwise
import json
import mmap
import os
import select
import signal
import socket
import stat
import struct
import sys
import time
from typing import Any
import zlib

HELLO, WELCOME, REFUSED, BUFFERS, FRAME, RELEASE, BUFFER_RETIRED, NOTED = range(1, 9)
WAITS = 2
DMA_BUF, MEMFD = 1, 2
LINEAR = 0
F_GET_SEALS, SHRINK_AND_GROW, FUTURE_WRITE = 1034, 2 | 4, 16
DMA_BUF_IOCTL_SYNC, SYNC_IOC_FILE_INFO = 0x40086200, 0xC0383E04
WINDOW, DEPTH = 4, 2
SCAN_SECONDS = 0.2

# For each plane: bytes of a group of samples, the x * y pixels it covers, bytes of a sample.
FORMATS = {b'NV12': ((1, 1, 1), (2, 2, 2)), b'YUYV': ((4, 2, 1),)}


def say(event: str, **details: Any) -> None:
    print(json.dumps({'event': event, **details}), flush=True)


class Broken(Exception):
    """The producer broke a rule of the page."""


def broken_if(condition: object, text: str) -> None:
    if condition:
        raise Broken(text)


class Unusable(Exception):
    """The buffers keep the rules, but this consumer can't read them."""


class Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f'{code}: {text}')
        self.code = code


class Ended(Exception):
    """The producer closed the connection (EOF)."""


def folder() -> str:
    own = os.environ.get('ZC_RUNTIME_DIR')
    if own:
        return os.path.abspath(own)
    runtime = os.environ.get('XDG_RUNTIME_DIR', '')
    if os.path.isabs(runtime) and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        return os.path.abspath(os.path.join(runtime, 'zc_perception'))
    return f'/tmp/zc_perception-{os.geteuid()}'


def host_id() -> str:
    with open('/proc/sys/kernel/random/boot_id', encoding='ascii') as boot:
        return hashlib.sha256(boot.read().strip().encode()).hexdigest()[:32]


def receive(end: socket.socket) -> tuple[bytes, list[int], bool]:
    """Return a packet, its descriptors, and whether it was cut off."""
    packet, fds, flags, _ = socket.recv_fds(end, 4096, 4, socket.MSG_CMSG_CLOEXEC)
    return packet, fds, bool(flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC))


@dataclass(frozen=True)
class Announcement:
    publisher_id: str
    socket: str
    text: str  # the whole file, to notice a change


def announcements(topic: str, domain: int) -> list[Announcement]:
    where = folder()
    try:
        names = sorted(os.listdir(where))
        about = os.lstat(where)
    except OSError:
        return []
    if not stat.S_ISDIR(about.st_mode) or about.st_uid not in (0, os.geteuid()):
        return []
    found = []
    for name in names:
        if name.startswith('.') or not name.endswith('.announcement'):
            continue
        try:
            with open(os.path.join(where, name), 'rb') as file:
                content = file.read(16385)
            outer = json.loads(content)
            if len(content) > 16384 or (outer['topic'], outer['domain']) != (topic, domain):
                continue
            inner = json.loads(outer['announcement'])
            beside = os.path.join(where, inner['publisher_id'] + '.sock')
            if inner['version'] != 1 or inner['host_id'] != host_id() or inner['socket'] != beside:
                continue
            found.append(Announcement(inner['publisher_id'], beside, outer['announcement']))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


@dataclass
class Slot:
    fourcc: bytes
    kind: int
    size: tuple[int, int]
    planes: list[tuple[int, int, int, int]]  # buffer, stride, offset, size
    fds: list[int]
    maps: list[mmap.mmap] = field(default_factory=list)
    generation: int = -1
    held: bool = False
    retired: bool = False

    def close(self) -> None:
        for each in self.maps:
            each.close()
        for fd in self.fds:
            os.close(fd)
        self.maps, self.fds = [], []


def check_buffers(packet: bytes, fds: list[int], same_user: bool) -> tuple[int, Slot]:
    """Check all rules of BUFFERS and return its slot; the caller still owns the descriptors."""
    uid, width, height, fourcc, num_planes, modifier, num_buffers, kind = struct.unpack_from(
        '<QII4sIQII', packet, 8
    )
    matrix, color_range, transfer, zero = struct.unpack_from('<BBB13s', packet, 48)
    planes = [struct.unpack_from('<IIQQ', packet, 64 + 24 * i) for i in range(4)]
    sizes = struct.unpack_from('<4Q', packet, 160)
    broken_if(not (1 <= width <= 65535 and 1 <= height <= 65535), f'size {width}x{height}')
    if not (1 <= num_planes <= 4 and 1 <= num_buffers <= 4) or num_buffers != len(fds):
        raise Broken(f'{num_planes} planes, {num_buffers} buffers, {len(fds)} descriptors')
    if kind not in (DMA_BUF, MEMFD) or matrix not in (1, 2, 3, 4):
        raise Broken(f'kind {kind}, matrix {matrix}')
    if color_range not in (1, 2) or transfer not in (1, 2, 3) or any(zero):
        raise Broken(f'range {color_range}, transfer {transfer}, or no zero after them')
    if any(any(p) for p in planes[num_planes:]) or any(sizes[num_buffers:]):
        raise Broken('an unused plane or buffer size that is not zero')
    if modifier != LINEAR or fourcc not in FORMATS:
        raise Unusable(f'{fourcc!r} with modifier {modifier:#x} was not asked for')
    check_descriptors(fds, sizes, kind, same_user)
    planes = planes[:num_planes]
    layout = FORMATS[fourcc]
    broken_if(len(layout) != num_planes, f'{fourcc!r} with {num_planes} planes')
    for (index, stride, offset, size), (unit, x, y) in zip(planes, layout, strict=True):
        if index >= num_buffers or size == 0 or offset + size > sizes[index]:
            raise Broken('a plane that lies outside its buffer')
        broken_if(width % x or height % y, f"{width}x{height} doesn't suit {fourcc!r}")
        row, rows = width // x * unit, height // y
        if stride < row or (rows - 1) * stride + row > size:
            raise Broken(f'stride {stride}, size {size}, but rows of {row} bytes')
    order = [plane[0] for plane in planes]
    if order != sorted(order) or set(order) != set(range(num_buffers)):
        raise Broken(f'planes use the buffers {order}')
    memories = [(os.fstat(fd).st_dev, os.fstat(fd).st_ino) for fd in fds]
    extents = sorted((memories[b], offset, offset + size) for b, _, offset, size in planes)
    for before, after in pairwise(extents):
        broken_if(before[0] == after[0] and after[1] < before[2], 'planes that overlap')
    return uid, Slot(fourcc, kind, (width, height), planes, fds)


def check_descriptors(fds: list[int], sizes: tuple[int, ...], kind: int, same_user: bool) -> None:
    for fd, size in zip(fds, sizes, strict=False):  # unused sizes follow
        if kind == MEMFD:
            seals = SHRINK_AND_GROW | (0 if same_user else FUTURE_WRITE)
            try:
                missing = seals & ~fcntl.fcntl(fd, F_GET_SEALS)
            except OSError as error:
                raise Broken(f'no memfd: {error}') from None
            broken_if(missing, f'a memfd without the seals {missing:#x}')
        else:
            with open(f'/proc/self/fdinfo/{fd}', encoding='ascii', errors='replace') as info:
                broken_if(not any(line.startswith('exp_name:') for line in info), 'no dma-buf')
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            raise Unusable('a buffer open for writing only')
        if size == 0 or os.lseek(fd, 0, os.SEEK_END) < size:
            raise Broken('a buffer smaller than it says')


def wait_for_fence(fence: int) -> bool:
    select.select([fence], [], [])
    info = bytearray(56)
    fcntl.ioctl(fence, SYNC_IOC_FILE_INFO, info)
    return bool(struct.unpack_from('<i', info, 32)[0] == 1)


def sync(slot: Slot, what: int) -> None:
    if slot.kind != DMA_BUF:
        return
    for fd in slot.fds:
        while True:
            try:
                fcntl.ioctl(fd, DMA_BUF_IOCTL_SYNC, struct.pack('<Q', what))
                break
            except (InterruptedError, BlockingIOError):
                continue


def plane_crcs(slot: Slot) -> list[int]:
    sync(slot, 1)
    crcs = []
    for (index, stride, offset, _), (unit, x, y) in zip(
        slot.planes, FORMATS[slot.fourcc], strict=True
    ):
        row, crc = slot.size[0] // x * unit, 0
        with memoryview(slot.maps[index]) as view:
            for start in range(offset, offset + slot.size[1] // y * stride, stride):
                crc = zlib.crc32(view[slice(start, start + row)], crc)
        crcs.append(crc)
    sync(slot, 5)
    return crcs


class Conversation:
    def __init__(self, announcement: Announcement, needs: argparse.Namespace) -> None:
        self.frames = 0
        self._slots: dict[int, Slot] = {}
        self._held: deque[int] = deque()
        self._messages_without_frame = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        try:
            self._socket.connect(announcement.socket)
            peer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            user = struct.unpack('3i', peer)[1]
            self._same_user = user == os.geteuid()
            broken_if(user not in (0, os.geteuid()), f'user {user} listens there')
            self._socket.settimeout(needs.answer)
            self._window = self._greet(announcement.publisher_id, needs)
            # A consumer that holds its whole window gets no frame, so it would never release one.
            self._hold = min(needs.hold, self._window - 1)
            self._socket.settimeout(None)
        except BaseException:
            self._socket.close()
            raise

    def _greet(self, publisher_id: str, needs: argparse.Namespace) -> int:
        names = needs.formats.encode().split(b',')
        formats = b''.join(struct.pack('<4sIQ', each, 0, LINEAR) for each in names)
        text = b'cpu=read'
        length = 128 + len(formats) + len(text)
        hello = struct.pack('<HHI4sHH', HELLO, length, 0, b'ZCLK', 1, 1)
        hello += struct.pack('<IIII', WINDOW, DEPTH, WAITS, 3)
        hello += struct.pack('<IIIIII', 1, needs.offset_align, 0, 0, len(names), len(text))
        hello += struct.pack('<32s40s', publisher_id.encode(), b'page_consumer')
        self._send(hello + formats + text)
        number, packet, _ = self._receive({WELCOME: (64, 64), NOTED: (8, 512)})
        while number == NOTED:
            say('noted', text=packet[8:].decode())
            self._socket.settimeout(None)
            number, packet, _ = self._receive({WELCOME: (64, 64), NOTED: (8, 512)})
        version, zero, window, depth, zeros, who = struct.unpack_from('<HHII12s32s', packet, 8)
        if version != 1 or zero or any(zeros):
            raise Broken(f'WELCOME with version {version} or a field that is not zero')
        if not (1 <= window <= WINDOW and 1 <= depth <= DEPTH):
            raise Broken(f'WELCOME grants window {window} and depth {depth}')
        broken_if(who.rstrip(b'\0').decode() != publisher_id, f'WELCOME from {who!r}')
        say('welcome', publisher_id=publisher_id, window=window, depth=depth)
        return int(window)

    def _send(self, packet: bytes) -> None:
        """Send. If the peer has gone, the next read notices that, and may find its REFUSED."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.send(packet)

    def _receive(self, expected: dict[int, tuple[int, int]]) -> tuple[int, bytes, list[int]]:
        try:
            packet, fds, cut = receive(self._socket)
        except ConnectionResetError:  # reported once, before the packets that are still queued
            packet, fds, cut = receive(self._socket)
        try:
            if not packet:
                raise Ended
            broken_if(cut or len(packet) < 8, 'a truncated packet')
            number, length, zero = struct.unpack_from('<HHI', packet)
            if length != len(packet) or zero:
                raise Broken(f'a header with length {length} of a packet of {len(packet)}')
            if number == REFUSED and 12 <= length <= 512 and not fds:
                code = struct.unpack_from('<I', packet, 8)[0]
                raise Refused(code, packet[12:].decode(errors='replace'))
            shortest, longest = expected.get(number, (1, 0))
            if not shortest <= length <= longest:
                raise Broken(f'message {number} with {length} bytes here')
            if number in (WELCOME, BUFFER_RETIRED, NOTED) and fds:
                raise Broken(f'message {number} with descriptors')
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return number, packet, fds

    def serve(self) -> None:
        expected = {BUFFERS: (192, 192), FRAME: (72, 327), BUFFER_RETIRED: (16, 16)}
        while True:
            number, packet, fds = self._receive(expected)
            self._messages_without_frame += 1
            broken_if(self._messages_without_frame > 4096, 'too many messages without a FRAME')
            if number == BUFFERS:
                self._buffers(packet, fds)
            elif number == FRAME:
                try:
                    self._frame(packet, fds)
                finally:
                    for fd in fds:
                        os.close(fd)
            else:
                self._retire(struct.unpack_from('<Q', packet, 8)[0])

    def _buffers(self, packet: bytes, fds: list[int]) -> None:
        slot = None
        try:
            uid, slot = check_buffers(packet, fds, self._same_user)
            if uid in self._slots or len(self._slots) >= 256:
                raise Broken(f'slot {uid} again, or too many slots')
            sizes = struct.unpack_from('<4Q', packet, 160)
            for fd, size in zip(fds, sizes, strict=False):  # unused sizes follow
                slot.maps.append(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ))
            self._slots[uid] = slot
        except BaseException as error:
            for each in slot.maps if slot else ():
                each.close()
            for fd in fds:
                os.close(fd)
            if isinstance(error, Unusable):
                text = str(error).encode()[:500]
                self._send(struct.pack('<HHII', REFUSED, 12 + len(text), 0, 3) + text)
            raise
        say('buffers', uid=uid, offsets=[offset for _, _, offset, _ in slot.planes])

    def _frame(self, packet: bytes, fds: list[int]) -> None:
        uid, generation, sequence = struct.unpack_from('<QQQ', packet, 8)
        dropped, flags = struct.unpack_from('<II', packet, 64)
        slot = self._slots.get(uid)
        if slot is None or slot.retired or slot.held or generation <= slot.generation:
            raise Broken(f'FRAME of slot {uid}, generation {generation}')
        if flags not in (0, 1) or len(fds) != flags or len(self._held) >= self._window:
            raise Broken(f'FRAME with flags {flags}, {len(fds)} descriptors, or beyond the window')
        slot.generation, slot.held = generation, True
        self._held.append(uid)
        self._messages_without_frame = 0
        self.frames += 1
        crcs = plane_crcs(slot) if not fds or wait_for_fence(fds[0]) else None
        frame_id = packet[72:].decode()
        say('frame', sequence=sequence, dropped=dropped, frame_id=frame_id, crcs=crcs)
        if len(self._held) > self._hold:
            self._release(self._held.popleft())

    def _release(self, uid: int) -> None:
        slot = self._slots[uid]
        self._send(struct.pack('<HHIQQII', RELEASE, 32, 0, uid, slot.generation, 0, 0))
        slot.held = False
        if slot.retired:
            self._slots.pop(uid).close()

    def _retire(self, uid: int) -> None:
        slot = self._slots.get(uid)
        if slot is None or slot.retired:
            raise Broken(f'BUFFER_RETIRED of slot {uid}')
        slot.retired = True
        say('retired', uid=uid)
        if not slot.held:
            self._slots.pop(uid).close()

    def close(self) -> None:
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()
        self._socket.close()


@dataclass
class Plan:
    text: str
    due: float = 0.0
    delay: float = 0.0
    wait_for_news: bool = False

    def backoff(self, longest: float) -> None:
        self.delay = min(longest, max(0.02, self.delay * 2))
        self.due = time.monotonic() + self.delay

    def later(self, seconds: float) -> None:
        self.delay, self.due = 0.0, time.monotonic() + seconds


def converse(announcement: Announcement, plan: Plan, needs: argparse.Namespace) -> None:
    began, conversation = time.monotonic(), None
    try:
        conversation = Conversation(announcement, needs)
        conversation.serve()
    except Ended:
        outcome = 'eof'
        if conversation and conversation.frames and time.monotonic() - began >= 1:
            plan.later(0)
        else:
            plan.backoff(0.5)
    except Refused as refused:
        outcome = f'refused {refused}'
        plan.backoff(0.5) if refused.code == 4 else plan.later(5)
    except Unusable as error:
        outcome = f'unusable: {error}'
        plan.wait_for_news = True
    except Broken as error:
        outcome = f'broken: {error}'
        plan.backoff(0.5)
    except (ConnectionRefusedError, ConnectionResetError, FileNotFoundError) as error:
        outcome = f'nobody: {error}'
        plan.backoff(0.5)
    except (BlockingIOError, TimeoutError) as error:
        outcome = f'busy: {error}'
        plan.backoff(5)
    finally:
        if conversation:
            conversation.close()
    say('ended', publisher_id=announcement.publisher_id, why=outcome)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--topic', default='/image_raw')
    parser.add_argument('--domain', type=int, default=int(os.environ.get('ROS_DOMAIN_ID') or 0))
    parser.add_argument('--hold', type=int, default=0, help='frames to hold, if the window allows')
    parser.add_argument('--answer', type=float, default=1.0, help='seconds to await an answer')
    parser.add_argument('--formats', default=','.join(each.decode() for each in FORMATS))
    parser.add_argument('--offset-align', type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    plans: dict[str, Plan] = {}
    while True:
        found = announcements(arguments.topic, arguments.domain)
        plans = {a.publisher_id: plans.get(a.publisher_id, Plan(a.text)) for a in found}
        for announcement in found:
            plan = plans[announcement.publisher_id]
            if plan.text != announcement.text:
                plan = plans[announcement.publisher_id] = Plan(announcement.text)
            if not plan.wait_for_news and plan.due <= time.monotonic():
                converse(announcement, plan, arguments)
        due = [p.due for p in plans.values() if not p.wait_for_news]
        time.sleep(max(0.0, min([SCAN_SECONDS, *(at - time.monotonic() for at in due)])))


if __name__ == '__main__':
    main()
