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
Helpers of the tests of rung 2: a producer, raw sockets for docs/wire.md, and waiting.

As a program, ``memory_link.py consumers PATH hold|work N`` forks a consumer with window and depth
N for each line on stdin, and prints its pid. ``memory_link.py check PATH COUNT`` receives COUNT
frames and prints its observations as JSON.
"""

from __future__ import annotations

import array
from contextlib import AbstractContextManager
import json
import os
from pathlib import Path
import random
import select
import socket
import struct
import subprocess
import sys
import threading
from typing import Any, NamedTuple
import zlib

from frame_kit import next_frame, nv12, pool_of
from waiting import until

from zc_perception.frame import Frame, Header
from zc_perception.link.shared_memory import client as client_module
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import MAX_PACKET
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.link.shared_memory.wire import Hello
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.pool import BufferPool, SlotState
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.layout import ImageLayout

PATIENCE_S = 60.0
PUBLISHER = 'f' * 32
HERE = Path(__file__).resolve().parent
Message = tuple[bytes, list[int]]
"""A packet and its descriptors."""


class FrameMessage(NamedTuple):
    """The fields of a FRAME; the package itself packs and reads them in place."""

    uid: int
    generation: int
    sequence: int
    stamp_ns: int
    captured_ns: int
    published_ns: int
    capture_cost_ns: int
    dropped: int
    fence: bool


def pack_frame(message: FrameMessage, frame_id: bytes) -> bytes:
    return (
        wire.FRAME.pack(wire.MessageType.FRAME, wire.FRAME.size + len(frame_id), 0, *message)
        + frame_id
    )


def make_layout(width: int = 64, height: int = 48, **options: Any) -> ImageLayout:
    return nv12(width, height, **options)


def make_pool(slots: int, layout: ImageLayout | None = None, **options: Any) -> BufferPool:
    return pool_of(layout or make_layout(), slots, release_timeout_s=60.0, **options)


def make_frame(pool: BufferPool, sequence: int, **options: Any) -> Frame:
    options.setdefault('header', Header(1000 + sequence, 'camera_optical_frame'))
    return next_frame(pool, sequence, capture_cost_ns=17, **options)


def publish(server: Any, pool: BufferPool, sequence: int, **options: Any) -> tuple[int, int]:
    """Publish one frame, release the camera's lease, and return buffer uid and generation."""
    with make_frame(pool, sequence, **options) as frame:
        server.publish(frame)
        return frame.data.buffer_uid, frame.data.generation


def readable(end: Any, seconds: float = 0.0) -> bool:
    return bool(select.select([end], [], [], seconds)[0])


class RawPeer(AbstractContextManager['RawPeer']):
    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.socket.settimeout(PATIENCE_S)

    @classmethod
    def connected(cls, path: Path) -> RawPeer:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(os.fspath(path))  # with a timeout, a full backlog would be an error
        return cls(sock)

    @classmethod
    def welcomed(cls, path: Path, **hello: Any) -> RawPeer:
        peer = cls.connected(path)
        peer.hello(**hello)
        assert peer.receive_type() == wire.MessageType.WELCOME
        return peer

    def hello(self, **fields: Any) -> None:
        values = {'window': 1, 'depth': 1, 'name': 'raw'} | fields
        self.send(wire.pack_hello(Hello(**values)))

    def send(self, packet: bytes, fds: list[int] | None = None) -> None:
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else []
        self.socket.sendmsg([packet], control, socket.MSG_NOSIGNAL)

    def receive(self) -> tuple[bytes, list[int]]:
        """Return the next packet and its descriptors; the packet is empty at EOF."""
        while True:
            try:
                packet, fds, flags, _ = socket.recv_fds(
                    self.socket, 4096, 200, socket.MSG_CMSG_CLOEXEC
                )
            except ConnectionResetError:
                continue
            assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
            return packet, list(fds)

    def receive_type(self) -> int:
        packet, fds = self.receive()
        for fd in fds:
            os.close(fd)
        return wire.message_type(packet) if packet else 0

    def receive_frame(self) -> FrameMessage:
        packet = self._next(wire.MessageType.FRAME, wire.MessageType.BUFFERS)
        fields = wire.parse_frame(packet, len(packet))
        return FrameMessage(*fields[3:11], bool(fields[11]))

    def receive_refused(self) -> wire.Refused:
        """Return the next REFUSED, and check that EOF follows; skip other messages."""
        packet = self._next(wire.MessageType.REFUSED, *wire.MessageType)
        assert self.receive()[0] == b''
        return wire.parse_refused(packet)

    def _next(self, wanted: wire.MessageType, *passed: wire.MessageType) -> bytes:
        """Return the next *wanted* packet; only *passed* types may precede it."""
        while True:
            packet, fds = self.receive()
            for fd in fds:
                os.close(fd)
            assert packet, f'EOF before {wanted.name}'
            kind = wire.message_type(packet)
            if kind is wanted:
                return packet
            assert kind in passed, kind

    def nothing_there(self) -> bool:
        return not readable(self.socket)

    def release(self, frame: FrameMessage) -> None:
        self.send(wire.pack_release(frame.uid, frame.generation, False))

    def close(self) -> None:
        self.socket.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class FakeProducer(AbstractContextManager['FakeProducer']):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(os.fspath(path))
        self.listener.listen(8)
        self.memory = SealedMemfd()
        self._opened: list[DmaBuf] = []

    def serve(self, client: SharedMemoryClient, window: int = 1) -> RawPeer:
        until(lambda: (client.approach(), client.awaited)[1] is not None, 'the attempt')
        peer = RawPeer(self.listener.accept()[0])
        wire.parse_hello(peer.receive()[0])
        peer.send(wire.pack_welcome(wire.Welcome(window, 1, PUBLISHER)))
        connected(client)
        return peer

    def buffer(self, layout: ImageLayout | None = None) -> DmaBuf:
        self._opened.append(self.memory.allocate((layout or make_layout()).buffer_size(0)))
        return self._opened[-1]

    def introduce(self, peer: RawPeer, uid: int = 7, **changes: Any) -> DmaBuf:
        """Send BUFFERS of one valid slot, apart from *changes*; return its buffer."""
        layout = changes.pop('layout', make_layout())
        fds = changes.pop('fds', None)
        buffer = self.buffer()
        message = wire.BuffersMessage(
            uid, layout, BT601_LIMITED, BufferKind.MEMFD, (buffer.size,)
        )._replace(**changes)
        peer.send(wire.pack_buffers(message), [buffer.fileno()] if fds is None else fds)
        return buffer

    def frame(
        self,
        peer: RawPeer,
        uid: int = 7,
        generation: int = 1,
        *,
        fds: list[int] | None = None,
        **changes: Any,
    ) -> None:
        message = FrameMessage(uid, generation, generation, 1000, 1, 2, 3, 0, bool(fds))._replace(
            **changes
        )
        peer.send(pack_frame(message, b'camera'), fds)

    def close(self) -> None:
        self.listener.close()
        for buffer in self._opened:
            buffer.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def receive(client: SharedMemoryClient) -> Frame:
    """Wait on the client's descriptor, as its users do, and return the next frame."""
    while (frame := client.receive()) is None:
        assert client.connected, client.last_end
        assert readable(client, PATIENCE_S), 'no frame came'
    return frame


def attempt(client: SharedMemoryClient) -> float | None:
    """Run an attempt to connect to its end, if one is due; return ``approach()``'s last result."""
    patience_s = client.approach()
    while (awaited := client.awaited) is not None:
        select.select([awaited], [], [], patience_s)
        patience_s = client.approach()
    return patience_s


def connected(client: SharedMemoryClient) -> None:
    until(lambda: attempt(client) is None and client.connected, 'the connection')


def start(*arguments: object) -> subprocess.Popen[str]:
    paths = str(HERE.parents[1]), str(HERE.parents[2]), os.environ.get('PYTHONPATH', '')
    environment = os.environ | {'PYTHONPATH': os.pathsep.join(paths)}
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, f'{process.args} ended with {process.wait()}'
    return text.strip()


class Forker(AbstractContextManager['Forker']):
    """Forks consumers on command, within milliseconds."""

    def __init__(self, path: Path, mode: str, count: int) -> None:
        self.process = start('consumers', path, mode, count)

    def fork(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write('\n')
        self.process.stdin.flush()
        return int(line(self.process))

    def report(self) -> dict[str, Any]:
        """Return what one consumer says at its end."""
        return dict(json.loads(line(self.process)))

    def __exit__(self, *_: object) -> None:
        # Its children have the streams, too, so nobody waits for EOF here.
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.terminate()
        self.process.wait(60.0)


def left(client: SharedMemoryClient, reason: str, words: str = '') -> None:
    until(lambda: client.receive() is None and not client.connected, 'the end')
    assert client.statistics().ended == {reason: 1} and words in client.last_end, client.last_end


def all_free(pool: BufferPool) -> bool:
    pool.collect()
    return pool.statistics().states == {SlotState.FREE: len(pool.slots)}


def settled(server: SharedMemoryServer, reason: str, count: int = 1) -> None:
    until(
        lambda: server.statistics().ended.get(reason) == count,
        f'{count} x {reason}, not {server.statistics()}',
    )


# Numbers at the ends of ranges, and NV12's modifier INVALID.
INTERESTING = *range(6), 7, 8, *(2**n + d for n in (6, 7, 8, 16, 31, 32, 63) for d in (-1, 0))
INTERESTING += 2**64 - 1, 2**56 - 1


def mutate(rng: random.Random, messages: list[Message], spare: list[int]) -> list[Message]:
    """Return a conversation with a few things wrong: numbers, lengths, descriptors, order."""
    messages = list(messages)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        if not messages:
            break
        index, other = rng.randrange(len(messages)), rng.randrange(len(messages))
        packet, fds = bytearray(messages[index][0]), messages[index][1]
        kind = rng.randrange(12)
        if kind == 0:
            del messages[index]
        elif kind == 1:
            messages.insert(other, messages[index])
        elif kind in (2, 3):
            messages[index], messages[other] = messages[other], messages[index]
        elif kind == 4:
            text = rng.randbytes(rng.randrange(500))
            code = rng.choice((0, 1, 4, 5, 6, 7, 2**32 - 1))
            messages[index] = struct.pack('<HHII', 3, 12 + len(text), 0, code) + text, []
        else:
            if kind == 5:
                del packet[slice(rng.randrange(len(packet) + 1), None)]
            elif kind == 6:
                packet += rng.randbytes(rng.choice((1, 8, 300, MAX_PACKET)))
            elif kind == 7:
                fds = rng.choices([*spare, *fds], k=rng.choice((0, 1, 2, 4, 5, 9, 40)))
            elif len(packet) >= (size := rng.choice((1, 2, 4, 4, 8))):
                at = rng.randrange(0, len(packet) - size + 1, min(size, 4))
                number = int.from_bytes(packet[slice(at, at + size)], 'little')
                near = number + rng.choice((-64, -8, -1, 1, 8, 64))
                flipped = number ^ 1 << rng.randrange(8 * size)
                number = rng.choice((near, flipped, *rng.sample(INTERESTING, 2)))
                packet[slice(at, at + size)] = (number % (1 << 8 * size)).to_bytes(size, 'little')
            # Often correct the header's length, so that the packet gets past the first check.
            if rng.random() < 0.5 and 8 <= len(packet) <= MAX_PACKET:
                packet[2:4] = len(packet).to_bytes(2, 'little')
            messages[index] = bytes(packet), fds
    return messages


# Children for tests, forked on command, because a fork takes milliseconds.


def say(text: str) -> None:
    os.write(1, text.encode() + b'\n')


def resources() -> tuple[int, int, int]:
    maps = Path('/proc/self/maps').read_text(encoding='utf-8')
    fds = len(os.listdir('/proc/self/fd'))
    return fds, maps.count('/memfd:zc_frame'), threading.active_count()


def consume(path: Path, mode: str, count: int) -> None:
    before = resources()
    client = SharedMemoryClient(path, name=mode, window=count, depth=count)
    connected(client)
    kept, last, gaps = [], None, 0
    while client.connected:
        readable(client, PATIENCE_S)
        frame = client.receive()
        if frame is None:
            continue
        if mode == 'hold':
            with frame.map() as planes:
                assert planes[0].shape
            kept.append(frame)
            continue
        gaps += last is not None and frame.data.sequence != last + 1
        last = frame.data.sequence
        with frame, frame.map() as planes:
            assert planes[0][0, 0] == 0
    client.close()
    left = [now - then for now, then in zip(resources(), before, strict=True)]
    counted = client.statistics()
    said = {'last': last, 'gaps': gaps, 'left': left}
    say(json.dumps(said | {'dropped': counted.dropped, 'ended': counted.ended}))


def check(path: Path, count: int) -> None:
    client = SharedMemoryClient(path, name='check', window=1)
    connected(client)
    say('ready')
    seen = []
    for received in range(1, count + 1):
        with receive(client) as frame, frame.map() as planes:
            if 64 < received < count - 8:
                assert planes[0].shape
                continue
            buffer = frame.data.buffers[0]
            maps = Path('/proc/self/maps').read_text(encoding='utf-8').splitlines()
            inode = buffer.identity.inode
            said = {'inode': inode, 'device': buffer.identity.device, 'size': buffer.size}
            said['crc'] = [zlib.crc32(plane.tobytes()) for plane in planes]
            said['mappings'] = sum(entry.split()[4] == str(inode) for entry in maps)
            said |= {'fds': len(os.listdir('/proc/self/fd')), 'lines': len(maps)}
            seen.append(said)
    say(json.dumps(seen))
    sys.stdin.readline()


def fork_on_command(*arguments: str) -> None:
    while sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            try:
                consume(Path(arguments[1]), arguments[2], int(arguments[3]))
            finally:
                os._exit(0)
        say(str(pid))


if __name__ == '__main__':
    client_module.HANDSHAKE_S = PATIENCE_S  # as the fixture ``patient`` does in the tests' process
    if sys.argv[1] == 'check':
        check(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        fork_on_command(*sys.argv[1:])
