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
Send a camera's frames to GStreamer's ``unixfdsrc``: one thread for all readers of one socket.

A reader is a process that connects to the socket. Each reader has its own subscription on the bus
(:mod:`~zc_perception.link.bus`), which passes frames within this process. The bus promises the
reader slots for the frames that the reader may hold at the same time (its *window*). While the
reader holds that many, its queue keeps only the newest frame. The thread sends the frames'
descriptors and reads RELEASE_BUFFER, by which a reader returns a frame. When a reader's connection
ends, the server takes back the frames that the reader holds.

A reader's first frames may be copied: GStreamer ignores a buffer's ``GstVideoMeta`` until the
first element of the reader's process has asked for one. Until then, GStreamer expects the planes
at the places of its default layout. So if a frame's planes lie elsewhere, the server sends copies
with the default layout, until the reader has returned one of these copies.

The first part of this file packs and parses commands. Source: gst-plugins-bad's ``gst/unixfd``,
``gstmeta.c`` and ``gstvideometa.c`` of GStreamer 1.26. Each command begins with a header of two
32-bit numbers in the host's byte order: the command, and the payload's size. A reader reads each
command by two calls, without a loop, so each command must be sent by one ``sendmsg``. The numbers
of formats are those of ``video-format.h``, whose ABI doesn't change.
"""

from __future__ import annotations

import array
from collections import Counter
from collections.abc import Callable, Sequence
import contextlib
from dataclasses import dataclass, field
from enum import IntEnum
import fcntl
from functools import partial
import itertools
import mmap
import os
from pathlib import Path
import select
import socket
import struct
import threading
from typing import Any

import numpy as np

from zc_perception.errors import AcceleratorError, FormatError, one_line, StaleFrameError
from zc_perception.forking import in_child, Turn
from zc_perception.frame import Frame, FrameData
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.bus import BUS, BusKey, BusSubscription, LinkQos
from zc_perception.link.shared_memory.connection import take_back
from zc_perception.link.shared_memory.protocol import ProtocolError
from zc_perception.link.shared_memory.server import FenceWatch
from zc_perception.link.shared_memory.unix_socket import (
    check_place,
    consumer_allowed,
    drain,
    listen,
    Peer,
    peer_of,
)
from zc_perception.memory import kernel_abi as abi
from zc_perception.memory.dmabuf import BufferKind, CpuAccess
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.format_names import (
    buffer_planes,
    BufferPlanes,
    default_layout,
    frame_caps,
    is_default,
)
from zc_perception.pixel.fourcc import pixel_format
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR

_HEADER = struct.Struct('=II')
_BUFFER = struct.Struct('=QQQQQQIBBH')
_ID = struct.Struct('=Q')
RELEASE_SIZE = _HEADER.size + _ID.size
_NOT_KNOWN = (1 << 64) - 1
_META = b'GstVideoMeta'
VIDEO_FORMATS = {
    'I420': 2,
    'YV12': 3,
    'YUY2': 4,
    'UYVY': 5,
    'RGBx': 7,
    'BGRx': 8,
    'xRGB': 9,
    'xBGR': 10,
    'RGBA': 11,
    'BGRA': 12,
    'ARGB': 13,
    'ABGR': 14,
    'RGB': 15,
    'BGR': 16,
    'Y42B': 18,
    'YVYU': 19,
    'Y444': 20,
    'NV12': 23,
    'NV21': 24,
    'GRAY8': 25,
    'GRAY16_LE': 27,
    'RGB16': 29,
    'BGR16': 30,
    'NV16': 51,
    'NV24': 52,
    'NV61': 60,
    'P010_10LE': 62,
    'VYUY': 64,
    'NV12_10LE40': 81,
    'P016_LE': 90,
    'P012_LE': 92,
}
"""The number of each ``GstVideoFormat``, by the format's name."""


class Command(IntEnum):
    """The number of each command."""

    NEW_BUFFER = 0
    RELEASE_BUFFER = 1
    CAPS = 2
    EOS = 3


class MemoryType(IntEnum):
    """The kind of memory to which a buffer's descriptors refer."""

    MEMFD = 0
    DMABUF = 1


def pack(command: Command, payload: bytes = b'') -> bytes:
    """Return a whole command as bytes: header and payload."""
    return _HEADER.pack(command, len(payload)) + payload


def pack_caps(text: str) -> bytes:
    """Return the command CAPS as bytes."""
    return pack(Command.CAPS, text.encode() + b'\0')


def pack_buffer(
    number: int, pts_ns: int, sequence: int, kind: MemoryType, sizes: Sequence[int], meta: bytes
) -> bytes:
    """
    Return the command NEW_BUFFER as bytes; send it with one descriptor for each of *sizes*.

    :param number: the buffer's number, which the reader sends back in RELEASE_BUFFER.
    :param pts_ns: time of capture in CLOCK_MONOTONIC, in nanoseconds.
    :param meta: a serialised ``GstVideoMeta``; empty: none.
    """
    head = _BUFFER.pack(
        number,
        pts_ns,
        _NOT_KNOWN,
        _NOT_KNOWN,
        sequence,
        sequence + 1,
        0,
        kind,
        len(sizes),
        bool(meta),
    )
    memories = b''.join(struct.pack('=QQ', size, 0) for size in sizes)
    return pack(Command.NEW_BUFFER, head + memories + meta)


def video_meta(layout: ImageLayout, where: BufferPlanes) -> bytes:
    """Return a serialised ``GstVideoMeta`` with the planes' offsets and strides."""
    planes = len(layout.planes)
    number = VIDEO_FORMATS.get(pixel_format(layout.fourcc).gstreamer or '', 0)
    payload = struct.pack('=iiIII', 0, number, layout.width, layout.height, planes)
    payload += struct.pack(f'={planes}Q{planes}i', *where.offsets, *where.strides)
    # GstVideoAlignment: no padding on the four sides, then no alignment of each plane's stride.
    payload += struct.pack(f'=4I{planes}I', *[0] * (4 + planes))
    # The second zero byte is the version of this serialised form.
    body = _META + b'\0' + b'\0' + payload
    return struct.pack('=II', 8 + len(body), len(_META)) + body


def parse_release(data: bytes | bytearray) -> int | None:
    """
    Return the buffer's number in the command RELEASE_BUFFER at the start of *data*.

    Return ``None`` if the command is not complete yet.

    :raises ProtocolError: *data* begins with another command.
    """
    if len(data) >= _HEADER.size:
        command, size = _HEADER.unpack_from(data)
        if (command, size) != (Command.RELEASE_BUFFER, _ID.size):
            raise ProtocolError(
                'command', (f'a reader sent command {command} of {size} bytes; it may only send '
                            'RELEASE_BUFFER')
            )  # fmt: skip
    return int(_ID.unpack_from(data, _HEADER.size)[0]) if len(data) >= RELEASE_SIZE else None


COPIED = 'unixfd_first'
"""The ledger's reason for copies of padded frames; only a reader's first frames are copied."""
_SEND = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
# At most this many readers may be connected; further ones are refused.
_MOST_READERS = 32
# Read at most this many bytes from a reader at once, so that a reader that never stops sending
# doesn't delay the other readers.
_READ_BYTES = 64 * RELEASE_SIZE
_ACCEPT_PAUSE_S = 0.1
_EVENTS = 64

READER = 'unixfd reader'
"""The name of a reader's bus subscription is this text and the reader's process id."""


@dataclass(frozen=True)
class ReaderStatistics:
    """
    The counters of one reader, for diagnostics.

    :param sent: number of frames sent to the reader.
    :param held: number of frames that the reader holds now.
    :param dropped: number of frames not sent, because the reader held as many frames as it may,
        because the reader didn't read its socket, or because a frame's fence failed.
    :param copied: number of frames sent as a copy.
    """

    pid: int
    uid: int
    sent: int
    held: int
    dropped: int
    copied: int


@dataclass(frozen=True)
class UnixfdStatistics:
    """
    A snapshot of the server's counters for diagnostics.

    :param connected: number of readers that have connected since start.
    :param ended: number of connections that ended or were refused, for each reason (eof, format,
        not_allowed and so on).
    :param taken_back: number of frames that readers held when their connections ended.
    :param last: the latest connection that this server closed or refused, and why, as text.
    :param unfit: why GStreamer can't use the camera's frames; empty: it can.
    """

    readers: tuple[ReaderStatistics, ...]
    connected: int
    ended: dict[str, int]
    taken_back: int
    last: str
    unfit: str


@dataclass(frozen=True, eq=False)
class _Stream:
    """Caps, planes and other values that are the same for all frames of one layout."""

    layout: ImageLayout
    kind: BufferKind
    caps: str
    where: BufferPlanes
    meta: bytes
    padded: bool
    tight: ImageLayout
    sealed: set[int] = field(default_factory=set)


@dataclass(eq=False)
class _Reader:
    """The server's record of one reader, used only by the server's thread."""

    socket: socket.socket
    peer: Peer
    queue: KeepLastQueue[Frame]
    subscription: BusSubscription[Frame]
    out: dict[int, Frame] = field(default_factory=dict)
    heard: bytearray = field(default_factory=bytearray)
    # A frame that waits for its acquire fence; None if none waits.
    early: Frame | None = None
    stream: _Stream | None = None
    ended: bool = False
    gave_back: bool = False
    sent: int = 0
    lost: int = 0
    copied: int = 0

    def statistics(self) -> ReaderStatistics:
        dropped = self.lost + self.queue.dropped + self.subscription.refused
        return ReaderStatistics(
            self.peer.pid, self.peer.uid, self.sent, len(self.out), dropped, self.copied
        )


class UnixfdServer:
    """
    Sends the frames that are published under *key* of the bus to readers of a socket at *path*.

    The server owns the socket, the thread ``unixfd NAME``, its readers' sockets and the frames
    that readers hold. It never waits for a reader: a reader that stops, dies or returns nothing
    only blocks the frames of its own window.

    :param name: the publisher's name, for the thread and messages.
    :param window: number of frames that a reader may hold at the same time.
    :param drm: whether the caps of dma-bufs have a ``drm-format`` even where GStreamer has a name
        for the pixel format.
    :param framerate: returns the camera's frames per second, called for each layout; 0: unknown.
    :param quarantine_s: after a reader disconnects without returning its buffers, these
        buffers aren't reused for this many seconds, unless a fence shows earlier that the reader's
        devices have finished.
    :param report: called with a sentence when a reader connects or disconnects; on the server's
        thread.
    :param warn: called in place of *report* for problems.
    :raises ConfigError: the socket can't be made at *path*, or another process listens there.
    """

    def __init__(
        self,
        key: BusKey,
        path: Path,
        *,
        name: str,
        window: int,
        ledger: CopyLedger,
        drm: bool = False,
        framerate: Callable[[], float] = lambda: 0.0,
        quarantine_s: float = 2.0,
        report: Callable[[str], object] = lambda _: None,
        warn: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.path = path
        self._key = key
        self._name = name
        self._window = window
        self._ledger = ledger
        self._drm = drm
        self._framerate = framerate
        self._quarantine_s = quarantine_s
        self._report = report
        self._warn = warn
        self._pid = os.getpid()
        self._readers: tuple[_Reader, ...] = ()
        self._numbers = itertools.count(1)
        self._connected = self._taken_back = 0
        self._ended: Counter[str] = Counter()
        self._last = self._unfit = ''
        self._stream: _Stream | None = None
        self._stopping = self._ending = self._paused = False
        check_place(path, 'unixfd')
        self._listener = listen(path, kind=socket.SOCK_STREAM, step='name another folder')
        self._inode = path.lstat().st_ino
        self._wake = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._epoll = select.epoll()
        self._fences = FenceWatch(self._epoll)
        # For each watched descriptor: the function to call when it is readable, and the reader
        # to disconnect if the function fails (None: no reader).
        self._calls: dict[int, tuple[Callable[[], None], _Reader | None]] = {}
        self._watch(self._listener.fileno(), self._accept)
        self._watch(self._wake.fileno(), self._awake)
        in_child(Turn.LINKS, self._after_fork)
        self._thread = threading.Thread(target=self._run, name=f'unixfd {name}', daemon=True)
        self._thread.start()

    def _watch(self, number: int, call: Callable[[], None], reader: _Reader | None = None) -> None:
        self._calls[number] = call, reader
        self._epoll.register(number, select.EPOLLIN)

    def _unwatch(self, number: int) -> None:
        if self._calls.pop(number, None) is not None:
            self._epoll.unregister(number)

    def _run(self) -> None:
        while not self._stopping:
            for number, _ in self._epoll.poll(_ACCEPT_PAUSE_S if self._paused else None, _EVENTS):
                if number in self._calls:
                    self._guarded(*self._calls[number])
                elif self._fences.signalled(number):
                    for reader in self._readers:
                        if reader.early is not None:
                            self._guarded(partial(self._serve, reader), reader)
            if self._paused:
                self._paused = False
                self._watch(self._listener.fileno(), self._accept)
            if self._ending:
                self._ending = False
                for reader in self._readers:
                    self._say_end(reader)
        self._listener.close()
        for reader in self._readers:
            self._say_end(reader)
            self._drop(reader, 'closed', '')
        self._fences.close()
        self._epoll.close()

    def _awake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake.fileno())
        for reader in self._readers:
            self._has_slots(reader)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # No descriptor is left. Pause, because the listener stays readable, and accepting at
            # once again would keep the thread busy.
            self._ended['descriptors'] += 1
            self._warn(f'a unixfd reader could not connect: {error.strerror}')
            self._unwatch(self._listener.fileno())
            self._paused = True
            return
        sock.setblocking(False)
        peer = peer_of(sock)
        why, reason = '', ''
        if not consumer_allowed(peer):
            why, reason = f'user {peer.uid} may not read these frames', 'not_allowed'
        elif len(self._readers) >= _MOST_READERS:
            why, reason = f'{_MOST_READERS} readers are connected, more are not allowed', 'readers'
        if why:
            self._ended[reason] += 1
            self._last = f'reader pid {peer.pid} was turned away: {why}'
            self._warn(f'unixfd: {self._last}')
            sock.close()
            return
        queue = KeepLastQueue(1, _release, gate=Frame.hand_out)
        subscription = BusSubscription(
            f'{READER} {peer.pid}',
            LinkQos(1, reliable=False),
            queue,
            held=self._window,
            starved=self._ring,
        )
        reader = _Reader(sock, peer, queue, subscription)
        self._watch(sock.fileno(), partial(self._hear, reader), reader)
        self._watch(queue.fileno(), partial(self._serve, reader), reader)
        BUS.add_subscription(self._key, subscription)
        # Show the reader in statistics() only now: code that finds it there may expect that this
        # reader gets every frame published afterwards.
        self._readers = (*self._readers, reader)
        self._connected += 1
        if self._has_slots(reader):
            self._report(f'unixfd: reader pid {peer.pid} is connected')

    def _has_slots(self, reader: _Reader) -> bool:
        """Disconnect *reader*, and return ``False``, if a pool has no slot left for it."""
        for publisher in BUS.publishers(self._key):
            if why := publisher.without_slots(reader.subscription):
                self._drop(reader, 'slots', f"{why}; raise parameter 'slots'", warn=True)
                return False
        return True

    def _guarded(self, call: Callable[[], None], reader: _Reader | None) -> None:
        """Run *call*; if it fails, disconnect only *reader* and go on."""
        try:
            call()
        except Exception as error:
            reason, text = 'internal', one_line(error)
            if isinstance(error, ProtocolError):
                reason, text = error.reason, str(error)
            if reader is None:
                self._warn(f'unixfd: {text}')
            else:
                self._drop(reader, reason, text, warn=True)

    def _hear(self, reader: _Reader) -> None:
        """Release the frames that a reader returns by its socket; end its connection on EOF."""
        try:
            data = reader.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b''
        if not data:
            self._drop(reader, 'eof', '')
            return
        heard = reader.heard
        heard += data
        while (number := parse_release(heard)) is not None:
            del heard[:RELEASE_SIZE]
            frame = reader.out.pop(number, None)
            if frame is None:
                raise ProtocolError(
                    'release', f'a reader gave back buffer {number}, which it does not hold'
                )
            reader.gave_back = True
            with contextlib.suppress(StaleFrameError):
                frame.release()

    def _serve(self, reader: _Reader) -> None:
        """Send the waiting frames until the reader may hold no more, or a fence is pending."""
        waited, reader.early = reader.early, None
        if waited is not None:
            self._watch(reader.queue.fileno(), partial(self._serve, reader), reader)
        while not reader.ended:
            frame = waited or reader.queue.get()
            waited = None
            if frame is None:
                return
            fence = frame.data.acquire_fence
            try:
                if fence is not None and not fence.wait(0.0):
                    reader.early = frame
                    self._unwatch(reader.queue.fileno())
                    self._fences.add(fence)
                    return
                if fence is not None:
                    fence.check()
            except (AcceleratorError, ValueError, OSError):
                reader.lost += 1  # the fence failed, so the frame has no new pixels
                frame.release()
                continue
            sent = False
            try:
                sent = self._send(reader, frame)
            finally:
                if not sent:
                    frame.release()

    def _send(self, reader: _Reader, frame: Frame) -> bool:
        """Send a frame; return ``False`` if it wasn't sent, so that the caller must release it."""
        data = frame.data
        stream = self._stream_of(data)
        if stream is None:
            self._drop(reader, 'format', self._unfit, warn=True)
            return False
        if reader.stream is None:
            if not self._write(reader, pack_caps(stream.caps), ()):
                return False
        elif reader.stream.caps != stream.caps:
            self._say_end(reader)
            return False
        reader.stream = stream
        number, pts, sequence = next(self._numbers), data.captured_ns, data.sequence
        if stream.padded and not reader.gave_back:
            with _tight_copy(data, stream) as copy:
                packet = pack_buffer(
                    number, pts, sequence, MemoryType.MEMFD, buffer_planes(stream.tight).sizes, b''
                )
                sent = self._write(reader, packet, [copy.fileno()])
            self._ledger.book(COPIED, buffer_planes(stream.tight).sizes[0])
            reader.copied += sent
        else:
            if data.buffer_uid not in stream.sealed:
                for buffer in data.buffers:
                    buffer.seal_for_sharing()
                stream.sealed.add(data.buffer_uid)
            kind = MemoryType.DMABUF if stream.kind is BufferKind.DMABUF else MemoryType.MEMFD
            packet = pack_buffer(
                number, pts, sequence, kind, stream.where.sizes, stream.meta
            )  # fmt: skip
            sent = self._write(reader, packet, [buffer.fileno() for buffer in data.buffers])
        if sent:
            reader.out[number] = frame
            reader.sent += 1
        return sent

    def _stream_of(self, data: FrameData) -> _Stream | None:
        """Return frames' caps and planes; ``None``: GStreamer can't use frames like *data*."""
        known, kind = self._stream, data.buffers[0].kind
        if known is not None and known.layout is data.layout and known.kind is kind:
            return known
        layout, dmabuf = data.layout, kind is BufferKind.DMABUF
        try:
            caps = frame_caps(
                layout,
                data.colorimetry,
                self._framerate(),
                dmabuf=dmabuf,
                drm=self._drm and dmabuf,
            )
        except FormatError as error:
            self._unfit = str(error)
            return None
        self._unfit = ''
        where = buffer_planes(layout)
        padded = layout.modifier == LINEAR and not is_default(layout)
        self._stream = _Stream(
            layout, kind, caps, where, video_meta(layout, where),
            padded and '(' not in caps.partition(',')[0], default_layout(layout),
        )  # fmt: skip
        return self._stream

    def _write(self, reader: _Reader, packet: bytes, fds: Sequence[int]) -> bool:
        """Send a command; return ``False`` if it could not be sent."""
        control: list[tuple[int, int, Any]] = []
        if fds:
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))]
        try:
            written = reader.socket.sendmsg([packet], control, _SEND)
        except (
            OSError
        ):  # the reader doesn't read or has ended, or the limit of sent descriptors is reached
            reader.lost += 1
            return False
        if written != len(packet):
            raise ProtocolError('stopped', 'a reader took only a part of a command')
        return True

    def _say_end(self, reader: _Reader) -> None:
        """Send EOS and no more frames; the reader keeps the frames that it holds."""
        if reader.ended:
            return
        reader.ended = True
        self._leave_bus(reader)
        if reader.stream is not None:
            self._write(reader, pack(Command.EOS), ())

    def _leave_bus(self, reader: _Reader) -> None:
        self._unwatch(reader.queue.fileno())
        BUS.remove_subscription(self._key, reader.subscription)
        early, reader.early = reader.early, None
        if early is not None:
            early.release()
        reader.queue.close()

    def _drop(self, reader: _Reader, reason: str, text: str, *, warn: bool = False) -> None:
        """End a connection, and take back the frames that the reader holds."""
        if reader not in self._readers:
            return
        held, reader.out = list(reader.out.values()), {}
        said = (
            f'unixfd: reader pid {reader.peer.pid} '
            f'{f"was disconnected: {text}" if text else "has gone"}; it held {len(held)} frames'
        )
        self._ended[reason] += 1
        self._taken_back += len(held)
        if text:
            self._last = said.partition(': ')[2]
        (self._warn if warn else self._report)(said)
        self._readers = tuple(each for each in self._readers if each is not reader)
        self._unwatch(reader.socket.fileno())
        reader.ended = True
        self._leave_bus(reader)
        owners: dict[tuple[BufferPool, str], list[Frame]] = {}
        for frame in held:
            if (lease := frame._lease) is not None:
                owners.setdefault((lease.pool, lease.holder), []).append(frame)
        for (pool, holder), frames in owners.items():
            take_back(pool, holder, frames, self._quarantine_s)
        drain(reader.socket)
        reader.socket.close()

    def end_streams(self) -> None:
        """Send EOS to all current readers; readers that connect later get frames."""
        self._ending = True
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            os.eventfd_write(self._wake.fileno(), 1)

    def statistics(self) -> UnixfdStatistics:
        """Return a snapshot of the counters."""
        return UnixfdStatistics(
            tuple(reader.statistics() for reader in self._readers),
            self._connected,
            dict(self._ended),
            self._taken_back,
            self._last,
            self._unfit,
        )

    def close(self) -> None:
        """End all streams, stop the thread and remove the socket; do nothing in a forked child."""
        if self._pid != os.getpid() or self._stopping:
            return
        with contextlib.suppress(OSError):
            # Check the inode, because a later server may have made its own socket at this path.
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        self._stopping = True
        self._ring()
        self._thread.join()
        self._wake.close()

    def _after_fork(self) -> None:
        """Close the child's copies of the sockets; else the parent couldn't end a connection."""
        for reader in self._readers:
            reader.socket.close()
        self._readers = ()
        self._listener.close()
        self._epoll.close()
        self._wake.close()


def _release(frame: Frame) -> None:
    """Release a frame of a queue; any thread that publishes may call this."""
    # The server's thread may have ended the reader meanwhile, and taken back all of its leases.
    with contextlib.suppress(StaleFrameError):
        frame.release()


def _tight_copy(data: FrameData, stream: _Stream) -> OwnedFd:
    """Return a new memfd with a copy of the pixels in GStreamer's default layout."""
    target = OwnedFd(os.memfd_create('unixfd', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        size = buffer_planes(stream.tight).sizes[0]
        os.ftruncate(target.fileno(), size)
        with mmap.mmap(target.fileno(), size) as memory, contextlib.ExitStack() as access:
            mappings = [
                access.enter_context(buffer.cpu_access(CpuAccess.READ)) for buffer in data.buffers
            ]
            for plane, own, kind in zip(
                data.layout.planes, stream.tight.planes, data.layout.format.planes, strict=True
            ):
                shape = kind.rows(data.layout.height), kind.row_bytes(data.layout.width)
                rows = np.ndarray(
                    shape, np.uint8, mappings[plane.buffer], plane.offset, (plane.stride, 1)
                )
                np.ndarray(shape, np.uint8, memory, own.offset, (own.stride, 1))[:] = rows
                del rows
        seals = abi.F_SEAL_SHRINK | abi.F_SEAL_GROW | abi.F_SEAL_FUTURE_WRITE
        fcntl.fcntl(target.fileno(), abi.F_ADD_SEALS, seals)
    except BaseException:
        target.close()
        raise
    return target
