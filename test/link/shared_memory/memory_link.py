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

"""Helpers of the tests of rung 2: a producer, raw sockets for docs/wire.md, and waiting."""

from __future__ import annotations

import array
from collections.abc import Callable
import os
from pathlib import Path
import select
import socket
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

from frame_kit import next_frame, nv12, pool_of
from waiting import until

from zc_perception.frame import Frame, Header
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.client import SharedMemoryClient
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


class RawPeer:
    """One end of a socket that sends any bytes, right or wrong."""

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
                packet, control, flags, _ = self.socket.recvmsg(
                    4096, 1024, socket.MSG_CMSG_CLOEXEC
                )
                break
            except ConnectionResetError:
                continue
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        fds = array.array('i')
        for _, _, data in control:
            fds.frombytes(data)
        return packet, list(fds)

    def receive_type(self) -> int:
        """Return the type of the next packet, 0 for EOF; close its descriptors."""
        packet, fds = self.receive()
        for fd in fds:
            os.close(fd)
        return wire.message_type(packet) if packet else 0

    def receive_frame(self) -> FrameMessage:
        """Return the next FRAME; skip BUFFERS before it."""
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
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        return not poller.poll(0)

    def release(self, frame: FrameMessage) -> None:
        self.send(wire.pack_release(frame.uid, frame.generation, False))

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FakeProducer:
    """A listening socket that welcomes consumers; the test decides what it sends then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(os.fspath(path))
        self.listener.listen(8)
        self.memory = SealedMemfd()
        self._opened: list[DmaBuf] = []

    def serve(self, client: SharedMemoryClient, window: int = 1, depth: int = 1) -> RawPeer:
        """Connect *client*, welcome it, and return the producer's end of the connection."""
        peers: list[RawPeer] = []

        def answer() -> None:
            peer = RawPeer(self.listener.accept()[0])
            wire.parse_hello(peer.receive()[0])
            peer.send(wire.pack_welcome(wire.Welcome(window, depth, PUBLISHER)))
            peers.append(peer)

        thread = threading.Thread(target=answer)
        thread.start()
        connected(client)
        thread.join()
        return peers[0]

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

    def __enter__(self) -> FakeProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def receive(client: SharedMemoryClient) -> Frame:
    """Wait on the client's descriptor, as its users do, and return the next frame."""
    poller = select.poll()
    poller.register(client.fileno(), select.POLLIN)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        frame = client.receive()
        if frame is not None:
            return frame
        assert client.connected, client.last_end
        assert time.monotonic() < deadline, 'no frame came'
        poller.poll(100)


def attempt(client: SharedMemoryClient) -> float | None:
    """Run an attempt to connect to its end, if one is due; return ``approach()``'s last result."""
    patience_s = client.approach()
    while (awaited := client.awaited) is not None:
        select.select([awaited], [], [], patience_s)
        patience_s = client.approach()
    return patience_s


def connected(client: SharedMemoryClient) -> None:
    """Attempt again and again, as the client's owner does, until a producer welcomes it."""
    until(lambda: attempt(client) is None and client.connected, 'the connection')


class Receiver:
    """A thread that keeps a client connected and passes its frames to *deliver*."""

    def __init__(self, client: SharedMemoryClient, deliver: Callable[[Frame], object]) -> None:
        self.client = client
        self._deliver = deliver
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            patience_s = self.client.approach()
            awaited = self.client.awaited
            readable = [self.client.fileno()] + ([] if awaited is None else [awaited])
            select.select(readable, [], [], 0.05 if patience_s is None else min(0.05, patience_s))
            while (frame := self.client.receive()) is not None:
                self._deliver(frame)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self.client.close()


def start(program: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    paths = str(HERE), str(HERE.parents[2]), os.environ.get('PYTHONPATH', '')
    environment = os.environ | {'PYTHONPATH': os.pathsep.join(paths)}
    return subprocess.Popen(
        [sys.executable, str(HERE / program), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, f'{process.args} ended with {process.wait()}'
    return text.strip()


def left(client: SharedMemoryClient, reason: str, words: str = '') -> None:
    """Wait until *client* has ended its connection for *reason*, with *words* in its message."""
    until(lambda: client.receive() is None and not client.connected, 'the end')
    assert client.statistics().ended == {reason: 1} and words in client.last_end, client.last_end


def all_free(pool: BufferPool) -> bool:
    pool.collect()
    return pool.statistics().states == {SlotState.FREE: len(pool.slots)}


def settled(server: SharedMemoryServer, reason: str, count: int = 1) -> None:
    """Wait until the server has counted *count* ends of connections for *reason*."""
    until(
        lambda: server.statistics().ended.get(reason) == count,
        f'{count} x {reason}, not {server.statistics()}',
    )
