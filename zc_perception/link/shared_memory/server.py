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
The producer's end: each publisher has one listening socket and one thread for all its consumers.

:class:`SharedMemoryServer` owns the socket, the thread, the connections, and the epoll object on
which the thread waits. Its method ``publish`` runs on the caller's thread and never blocks. The
server's thread does the other work:

- It accepts consumers; each must send HELLO within a second.
- The :class:`Door` checks the consumer's constraints. If there are no suitable buffers yet, the
  consumer gets NOTED and waits, and its constraints count when buffers are negotiated.
- :func:`admit` reserves slots of the pool for the consumer, which gets WELCOME and a
  :class:`~zc_perception.link.shared_memory.connection.Connection`.
- The thread reads the consumer's RELEASEs and sends frames that had to wait.
- When the consumer closes its end, the thread takes back the frames that the consumer held.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection
import contextlib
from dataclasses import dataclass, field, replace
from enum import Enum
import itertools
import os
from pathlib import Path
import select
from socket import socket as Socket
import threading
import time
from typing import Protocol

from zc_perception.errors import one_line, StaleFrameError
from zc_perception.forking import in_child, Turn
from zc_perception.frame import Frame
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.connection import Connection, ConsumerStatistics
from zc_perception.link.shared_memory.protocol import (
    HANDSHAKE_S,
    MAX_DEPTH,
    MAX_FDS,
    MAX_PACKET,
    MessageType,
    ProtocolError,
    RefusalCode,
)
from zc_perception.link.shared_memory.unix_socket import (
    adopt_fence,
    close_all,
    consumer_allowed,
    drain,
    folder_complaint,
    listen,
    PacketReader,
    Peer,
    peer_of,
    remove_stale,
    runtime_folder,
    SEND_FLAGS,
    socket_path,
)
from zc_perception.link.shared_memory.wire import Hello, Refused, Welcome
from zc_perception.memory.fence import Fence
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, QUARANTINE_S, Slot
from zc_perception.native import compiled
from zc_perception.negotiation.session import Consumer
from zc_perception.negotiation.settings import HeapOffer

_ACCEPT_PAUSE_S = 0.1
_ACCEPTS_AT_ONCE = 16
# Refuse further consumers with BUSY if this many are connected.
MAX_CONNECTIONS = 32
_EVENTS = 64
_numbers = itertools.count(1)


@dataclass
class ServerStatistics:
    """
    The server's counters, for diagnostics.

    :param consumers: the connected consumers.
    :param handshaking: number of consumers that haven't sent HELLO yet, or wait for buffers.
    :param welcomed: number of consumers that got WELCOME since start.
    :param refused: number of refused consumers, for each reason (version, not_allowed,
        connections, slots, constraints, ...).
    :param last_refusal: the text of the latest refusal, for each reason.
    :param protocol_errors: number of peers that broke a rule of docs/wire.md, for each reason.
    :param ended: number of connections that have ended, for each reason. A connection that ended
        before WELCOME without a refusal has reason ``before_hello``. Other reasons are eof,
        closed, pool, send and so on, or the reason of a protocol error.
    :param taken_back: number of frames that consumers held when their connections ended.
    :param internal_errors: number of unexpected exceptions; each ends one connection at most.
    :param last_internal_error: the text of the latest exception.
    """

    consumers: tuple[ConsumerStatistics, ...] = ()
    handshaking: int = 0
    welcomed: int = 0
    refused: dict[str, int] = field(default_factory=Counter)
    last_refusal: dict[str, str] = field(default_factory=dict)
    protocol_errors: dict[str, int] = field(default_factory=Counter)
    ended: dict[str, int] = field(default_factory=Counter)
    taken_back: int = 0
    internal_errors: int = 0
    last_internal_error: str = ''

    def refuse(self, error: ProtocolError) -> None:
        """Count a refusal by its code and reason."""
        if error.code is RefusalCode.PROTOCOL:
            self.protocol_errors[error.reason] += 1
        else:
            self.refused[error.reason] += 1
            self.last_refusal[error.reason] = str(error)

    def internal(self, error: Exception) -> None:
        """Count an unexpected exception."""
        self.internal_errors += 1
        self.last_internal_error = one_line(error)

    @property
    def troubles(self) -> int:
        """The number of refusals, protocol errors and internal errors since start."""
        return sum((self.internal_errors, *self.refused.values(), *self.protocol_errors.values()))

    def copy(
        self, consumers: tuple[ConsumerStatistics, ...], handshaking: int
    ) -> ServerStatistics:
        """Return a copy of the counters with *consumers* and *handshaking*."""
        return replace(
            self,
            consumers=consumers,
            handshaking=handshaking,
            refused=dict(self.refused),
            last_refusal=dict(self.last_refusal),
            protocol_errors=dict(self.protocol_errors),
            ended=dict(self.ended),
        )


class FenceWatch:
    """
    Adds fences to the server's epoll, so that the server's thread wakes when one signals.

    The epoll gets duplicates of the fences' descriptors, because a fence's owner may close the
    fence at any time. Thread-safe.

    :param epoll: the server's epoll, which this object doesn't close.
    """

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[OwnedFd, Fence]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, fence: Fence) -> None:
        """Watch *fence*; repeated calls add it once."""
        with self._lock:
            if self._closed or any(watched is fence for _, watched in self._watched.values()):
                return
            fd = OwnedFd.duplicate(fence.fileno())
            self._watched[fd.fileno()] = fd, fence
            self._epoll.register(fd.fileno(), select.EPOLLIN)

    def signalled(self, number: int) -> bool:
        """Return whether *number* is a watched fence's descriptor; if so, no longer watch it."""
        with self._lock:
            fd, _ = self._watched.pop(number, (None, None))
            if fd is None:
                return False
            self._epoll.unregister(fd.fileno())
            fd.close()
            return True

    def close(self) -> None:
        """Close the duplicates of all watched fences."""
        with self._lock:
            self._closed = True
            for fd, _ in self._watched.values():
                fd.close()
            self._watched.clear()


@dataclass(eq=False)
class Newcomer:
    """
    A consumer that has connected but hasn't got WELCOME yet.

    :param deadline: latest time for its HELLO, in seconds of CLOCK_MONOTONIC.
    :param hello: its HELLO; ``None``: not received yet.
    :param consumer: its name and constraints, to negotiate buffers; ``None`` before HELLO.
    :param noted: the text of the last NOTED sent to it; empty: none.
    """

    socket: Socket
    peer: Peer
    deadline: float
    hello: Hello | None = None
    consumer: Consumer | None = None
    noted: str = ''


class Answer(Enum):
    """The answer to a consumer's HELLO."""

    WELCOME = 'welcome'
    WAIT = 'wait'
    REFUSE = 'refuse'


class Door(Protocol):
    """
    Decides for a server which consumers get the publisher's buffers.

    The server calls these methods on its own thread, with no lock held.
    """

    def judge(self, consumer: Consumer, peer: Peer) -> tuple[Answer, str]:
        """Return the answer to *consumer*; if it must wait or is refused, also the reason."""

    def starved(self, consumer: Consumer, peer: Peer) -> tuple[Answer, str]:
        """Return answer and reason for a *consumer* for which the pool has too few slots."""

    def left(self, consumer: Consumer, why: str) -> None:
        """
        Forget *consumer*, whose connection has ended.

        :param why: why the consumer can't use the buffers; empty: it left for another reason.
        """


def grant(hello: Hello, holder: str, pool: BufferPool, window: int, depth: int) -> tuple[int, int]:
    """Reserve slots of *pool* for *holder*; return the granted window and depth."""
    # The largest depth in a HELLO means keep_all QoS: a producer that can wait, such as one that
    # plays a recording, then waits so that this consumer loses no frame.
    return pool.grant(holder, window, depth, lossless=hello.depth == MAX_DEPTH)


def admit(
    hello: Hello, holder: str, pool: BufferPool | None, heap: HeapOffer | None
) -> tuple[BufferPool, int, int]:
    """
    Reserve slots of *pool* for a new consumer; return the pool, the window and the depth.

    :param holder: the consumer's name in the pool's leases.
    :param heap: the heap of the pool's buffers; ``None``: unknown.
    :raises ProtocolError: the consumer can't be served; the error has the code of the
        REFUSED message to send.
    """
    slots = () if pool is None else pool.slots
    if pool is None or not slots:
        raise ProtocolError(
            'no_buffers', 'the publisher has no buffers yet; connect again later', RefusalCode.BUSY
        )
    unfit = hello.requirements.misfit(slots[0].layout, slots[0].buffers[0].kind, heap)
    if unfit:
        raise ProtocolError(
            'constraints',
            f"the allocated buffers don't suit {hello.name or 'this consumer'}: {unfit}",
            RefusalCode.CONSTRAINTS,
        )
    window, depth = grant(hello, holder, pool, hello.window, hello.depth)
    if not window:
        raise ProtocolError('slots', pool.too_few, RefusalCode.BUSY)
    return pool, window, depth


class SharedMemoryServer:
    """
    Sends one publisher's frames to other processes of this host.

    The server's thread makes and ends connections; ``publish`` only reads an immutable tuple of
    them. The lock guards that tuple, the history and the pool. A thread that needs the server's
    lock and a connection's lock takes the server's first.

    :param name: the publisher's name, for threads, leases and messages.
    :param publisher_id: the id in the announcement; the socket's file is named after it.
    :param pool: the pool of the published frames. Without one, consumers wait or are refused until
        :meth:`set_pool` is called.
    :param folder: a folder made by :func:`runtime_folder`; ``None``: the server calls it.
    :param allowed_gids: members of these groups are served, besides our own user and root; the
        first group gets access to the socket.
    :param quarantine_timeout_s: how long the longest job of any consumer's device takes, in
        seconds. See :func:`quarantine_fence`.
    :param history: number of frames kept for consumers that ask for them, as with
        transient_local; the server holds leases on these frames.
    :param door: decides which consumers get the buffers; ``None``: all consumers that can use
        them.
    :param report: called with a sentence when a consumer connects, is refused or disconnects; on
        the server's thread, with no lock held.
    :param warn: called in place of *report* for problems, such as a smaller window than a consumer
        asked for; ``None``: call *report*.
    :raises ConfigError: the folder can't be used, *publisher_id* is invalid, or another process
        listens under that id.
    """

    def __init__(
        self,
        name: str,
        publisher_id: str,
        pool: BufferPool | None = None,
        *,
        folder: Path | None = None,
        allowed_gids: Collection[int] = (),
        quarantine_timeout_s: float = QUARANTINE_S,
        history: int = 0,
        door: Door | None = None,
        report: Callable[[str], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        wire.check_publisher_id(publisher_id)
        self.publisher_id = publisher_id
        group = next(iter(allowed_gids), None)
        self._quarantine_timeout_s = quarantine_timeout_s
        self._report = report
        self._warn = warn or report
        self._pid = os.getpid()
        self.counters = ServerStatistics()
        self.door = door
        self._lock = threading.Lock()
        self._heard = threading.Condition(self._lock)
        self._consumers: dict[int, tuple[Consumer, Peer, int]] = {}
        self._connections: tuple[Connection, ...] = ()
        # Consumers by their socket's descriptor: those that haven't sent HELLO, those that
        # wait for buffers, and those that got WELCOME. Only the server's thread uses the tables.
        self._newcomers: dict[int, Newcomer] = {}
        self._waiting: dict[int, Newcomer] = {}
        self._established: dict[int, Connection] = {}
        self._accept_at = 0.0
        self._history: deque[Frame] | None = deque() if history else None
        self._history_depth = history
        self._history_holder = f'{name}:shared_memory_history'
        self._stopping = False
        self._reader = PacketReader(MAX_PACKET)
        self._pool: BufferPool | None = None
        self._heap: HeapOffer | None = None
        self._forget_pool: Callable[[], None] | None = None
        self._pool_changed = False
        if folder is None:
            folder = runtime_folder(group)
            if complaint := folder_complaint():
                self._say(complaint, warn=True)
        self.path = socket_path(folder, publisher_id)
        self.stale_removed = remove_stale(folder)
        self._allowed_gids = frozenset(allowed_gids)
        self._listener = listen(self.path, group)
        self._wake = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._epoll = select.epoll()
        self._epoll.register(self._wake.fileno(), select.EPOLLIN)
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._fences = FenceWatch(self._epoll)
        in_child(Turn.LINKS, self._after_fork)
        self.set_pool(pool)
        self._thread = threading.Thread(
            target=self._run, name=f'shared-memory {name}', daemon=True
        )
        self._thread.start()

    @property
    def consumers(self) -> int:
        """The number of consumers that get frames: the server has sent them WELCOME."""
        return len(self._connections)

    def publish(self, frame: Frame) -> None:
        """
        Send *frame* to every consumer, or let it wait if a consumer's window is full; never block.

        The caller keeps its own lease.

        :raises FrameReleasedError: the frame was released.
        """
        connections = self._connections
        if not connections and self._history is None:
            return
        if not frame.published_ns:
            frame.published_ns = time.monotonic_ns()
        if self._history is not None:
            connections = self._remember(frame)
        for connection in connections:
            connection.offer(frame)

    def _remember(self, frame: Frame) -> tuple[Connection, ...]:
        """
        Add *frame* to the history; return the connections to which publish() sends it.

        The frame is added and the connections are read under one lock, so that each consumer gets
        the frame once: a consumer that connects later gets it from the history.
        """
        kept = frame.deliver(self._history_holder)
        overflow = None
        with self._lock:
            if self._history is None:
                overflow = kept  # the server is closed, so keep no frame
            elif kept is not None:
                kept.published_ns = frame.published_ns
                self._history.append(kept)
                overflow = (
                    self._history.popleft() if len(self._history) > self._history_depth else None
                )
            connections = self._connections
        if overflow is not None:
            overflow.release()
        return connections

    def participants(self) -> list[tuple[Consumer, Peer, int]]:
        """Return (consumer, peer, requested window) for each HELLO, in the order of arrival."""
        with self._lock:
            return list(self._consumers.values())

    def await_consumers(self, count: int, timeout_s: float) -> bool:
        """Wait up to *timeout_s* seconds for *count* consumers' HELLO; return whether all came."""
        with self._heard:
            return self._heard.wait_for(lambda: len(self._consumers) >= count, timeout_s)

    def look_again(self) -> None:
        """Make the server's thread ask its :class:`Door` again about all waiting consumers."""
        self._pool_changed = True
        self._wake_up()

    def set_pool(self, pool: BufferPool | None, heap: HeapOffer | None = None) -> None:
        """
        Serve the slots of *pool* from now on.

        A consumer of the earlier pool stays connected if it can use the new buffers, and the new
        pool grants it the same depth and window (the number of frames that it may hold).
        Otherwise the server disconnects the consumer, which then connects again.

        :param heap: the heap of the pool's buffers, to check constraints on memory. If it is
            ``None``, the heap is unknown, and these constraints aren't checked.
        """
        with self._lock:
            self._heap = heap
            if pool is self._pool:
                return
            forget, self._forget_pool = self._forget_pool, None
            before, self._pool = self._pool, pool
            history = self._take_history()
        for frame in history:
            frame.release()
        if forget is not None:
            forget()
        if self._history_depth:
            if before is not None:
                before.set_quota(self._history_holder, None)
            if pool is not None:
                # Allow one lease more than the history's depth, because _remember() adds the new
                # frame before it releases the oldest.
                pool.set_quota(self._history_holder, 0, depth=self._history_depth + 1)
        if pool is not None:
            self._forget_pool = pool.add_retire_listener(self._on_retired)
            # Move the connections now, before the first frame of the new pool is published.
            for connection in self._connections:
                self._move(connection, pool, heap)
        # Wake the thread only now, because it ends all connections that were not moved.
        self._pool_changed = True
        self._wake_up()

    def _move(self, connection: Connection, pool: BufferPool, heap: HeapOffer | None) -> None:
        slots, needs = pool.slots, connection.hello.requirements
        if not slots or needs.misfit(slots[0].layout, slots[0].buffers[0].kind, heap):
            return
        hello, (window, depth) = connection.hello, connection.granted
        # WELCOME has fixed the connection's window and depth. If the new pool could grant a larger
        # window, don't move the connection: the consumer then connects again and gets the larger
        # window. If the new pool could grant only a larger depth, move the connection: if the
        # consumer had to connect again, another consumer might take its slots meanwhile.
        promised = grant(hello, connection.holder, pool, hello.window, hello.depth)
        if promised[0] == window:
            promised = grant(hello, connection.holder, pool, window, depth)
        if promised != (window, depth) or not connection.move(pool):
            pool.set_quota(connection.holder, None)

    def _take_history(self) -> list[Frame]:
        """Empty the history and return its frames; called with the lock held."""
        frames = list(self._history or ())
        if self._history is not None:
            self._history.clear()
        return frames

    def _on_retired(self, slot: Slot) -> None:
        for connection in self._connections:
            connection.retire(slot.buffer_uid)

    def _wake_up(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            os.eventfd_write(self._wake.fileno(), 1)

    def _run(self) -> None:
        while not self._stopping:
            waits = self._newcomers or self._accept_at
            for number, _ in self._epoll.poll(self._patience_s() if waits else None, _EVENTS):
                connection = self._established.get(number)
                try:
                    if connection is not None:
                        self._receive(number, connection)
                    else:
                        self._other_event(number)
                except Exception as error:
                    # Catch every error: only this consumer may lose its connection.
                    self.counters.internal(error)
                    self._drop(number, 'internal', one_line(error))
            if not (self._newcomers or self._accept_at or self._pool_changed):
                continue
            try:
                self._look_around()
            except Exception as error:
                self.counters.internal(error)
        self._shut_down()

    def _look_around(self) -> None:
        """Handle deadlines and a changed pool; called after each ``epoll.poll()``."""
        if self._newcomers or self._accept_at:
            self._look_at_clock()
        if self._pool_changed:
            self._pool_changed = False
            for number, connection in list(self._established.items()):
                if connection.pool is not self._pool:
                    connection.refuse(
                        RefusalCode.BUSY, 'the publisher has other buffers now; connect again'
                    )
                    self._drop(number, 'pool', 'the publisher has other buffers now')
            for number, newcomer in list(self._waiting.items()):
                self._answer(number, newcomer)

    def _patience_s(self) -> float:
        """Return the seconds until a HELLO is late, or until consumers are accepted again."""
        # The first newcomer is enough, because newcomers are in the order of their deadlines.
        deadlines = [
            newcomer.deadline for newcomer in itertools.islice(self._newcomers.values(), 1)
        ]
        if self._accept_at:
            deadlines.append(self._accept_at)
        return max(0.0, min(deadlines) - time.monotonic())

    def _look_at_clock(self) -> None:
        """Refuse newcomers whose HELLO is late; accept consumers again after a pause."""
        now = time.monotonic()
        for number, newcomer in list(self._newcomers.items()):
            if newcomer.deadline > now:
                break
            self._turn_away(number, ProtocolError('silent', f'no HELLO within {HANDSHAKE_S:g} s'))
        if self._accept_at and self._accept_at <= now:
            self._accept_at = 0.0
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    def _other_event(self, number: int) -> None:
        if number in self._newcomers:
            self._greet(number)
        elif number in self._waiting:
            self._receive_waiting(number)
        elif number == self._listener.fileno():
            self._accept()
        elif number == self._wake.fileno():
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(number)
        elif self._fences.signalled(number):
            for connection in self._connections:
                connection.flush()

    def _accept(self) -> None:
        """Accept up to _ACCEPTS_AT_ONCE connections, so that other events aren't delayed."""
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # No descriptor is left. Pause, because the listener stays readable, and accepting
                # at once again would keep the thread busy.
                self.counters.refused['descriptors'] += 1
                self._say(
                    f'a consumer could not connect: {error.strerror}; consumers are accepted '
                    f'again in {_ACCEPT_PAUSE_S:g} s'
                )
                self._epoll.unregister(self._listener.fileno())
                self._accept_at = time.monotonic() + _ACCEPT_PAUSE_S
                return
            sock.setblocking(False)
            peer = peer_of(sock, groups=bool(self._allowed_gids))
            self._newcomers[sock.fileno()] = Newcomer(sock, peer, time.monotonic() + HANDSHAKE_S)
            if not consumer_allowed(peer, self._allowed_gids):
                text = (
                    f'user {peer.uid} may not read these frames; run as user {os.geteuid()}, or '
                    "set parameter 'shared_memory_group' or argument trusted_gids"
                )
                self._turn_away(
                    sock.fileno(), ProtocolError('not_allowed', text, RefusalCode.NOT_ALLOWED)
                )
            elif (
                len(self._newcomers) + len(self._waiting) + len(self._established)
                > MAX_CONNECTIONS
            ):
                text = (
                    f'{MAX_CONNECTIONS} consumers are connected already, and more are '
                    'not allowed; end one of them'
                )
                self._turn_away(
                    sock.fileno(), ProtocolError('connections', text, RefusalCode.BUSY)
                )
            else:
                self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _turn_away(self, number: int, error: ProtocolError | None) -> None:
        """Close a newcomer's socket; with *error*, first tell the newcomer why it is refused."""
        newcomer = self._newcomers.pop(number, None) or self._waiting.pop(number, None)
        if newcomer is None:
            return
        self._forget(number, newcomer.consumer, '')
        if error is None:
            self.counters.ended['before_hello'] += 1
        else:
            self.counters.refuse(error)
            with contextlib.suppress(OSError):
                newcomer.socket.send(
                    wire.pack_refused(Refused(error.code, str(error))), SEND_FLAGS
                )
            drain(newcomer.socket)
        newcomer.socket.close()
        if error is not None:
            self._say(f'consumer pid {newcomer.peer.pid} was refused: {error}')

    def _greet(self, number: int) -> None:
        """Read a newcomer's first message, which must be HELLO, and answer it."""
        newcomer = self._newcomers[number]
        try:
            received = self._reader.read(newcomer.socket, MAX_FDS)
            if received is None:
                return
            size, fds = received
            close_all(fds)
            if not size:
                self._turn_away(number, None)
                return
            hello = wire.parse_hello(self._reader.packet[:size])
            # parse_hello() has refused later versions, whose HELLO may have descriptors. In this
            # version, a HELLO has none.
            if fds:
                raise ProtocolError(
                    'descriptors', f'HELLO with {len(fds)} descriptors; a HELLO has none'
                )
            # The HELLO may be old. If its consumer has closed the socket and connected again,
            # don't reserve slots for it twice.
            poller = select.poll()
            poller.register(newcomer.socket, 0)
            if any(events & select.POLLHUP for _, events in poller.poll(0)):
                self._turn_away(number, None)
                return
            if hello.publisher_id not in ('', self.publisher_id):
                text = f'this is publisher {self.publisher_id}, not {hello.publisher_id}'
                raise ProtocolError('other_publisher', text, RefusalCode.OTHER_PUBLISHER)
        except ProtocolError as error:
            self._turn_away(number, error)
            return
        newcomer.hello = hello
        name = hello.name or 'consumer'
        constraints = hello.requirements.constraints(f'{name} (pid {newcomer.peer.pid})')
        newcomer.consumer = Consumer(constraints, name=name)
        with self._heard:
            self._consumers[number] = newcomer.consumer, newcomer.peer, hello.window
            self._heard.notify_all()
        self._answer(number, newcomer)

    def _answer(self, number: int, newcomer: Newcomer) -> None:
        """Answer a consumer's HELLO by WELCOME, NOTED or REFUSED."""
        hello = newcomer.hello
        assert hello is not None
        # This name must differ from all names that BufferPool.free_name() gives to subscriptions
        # of this process: all leases with this name are taken back when the connection ends.
        holder = f'{hello.name or "consumer"}@{next(_numbers)}'
        try:
            if self.door is not None and newcomer.consumer is not None:
                answer, text = self.door.judge(newcomer.consumer, newcomer.peer)
            elif self._pool is None or not self._pool.slots:
                answer, text = Answer.WAIT, 'the publisher has no buffers yet'
            else:
                answer, text = Answer.WELCOME, ''
            if answer is Answer.WAIT:
                self._note(number, newcomer, text)
                return
            if answer is Answer.REFUSE:
                raise ProtocolError('constraints', text, RefusalCode.CONSTRAINTS)
            try:
                pool, window, depth = admit(hello, holder, self._pool, self._heap)
            except ProtocolError as error:
                if error.reason == 'slots' and self.door is not None:
                    assert newcomer.consumer is not None
                    answer, text = self.door.starved(newcomer.consumer, newcomer.peer)
                if answer is not Answer.WAIT:
                    raise
                self._note(number, newcomer, text)
                return
        except ProtocolError as error:
            self._turn_away(number, error)
            return
        self._newcomers.pop(number, None)
        self._waiting.pop(number, None)
        self._welcome(number, newcomer, hello, holder, pool, window, depth)

    def _note(self, number: int, newcomer: Newcomer, text: str) -> None:
        """
        Make the consumer wait, and send it NOTED with the reason *text*.

        :raises ProtocolError: the flags of its HELLO say that it doesn't wait.
        """
        assert newcomer.hello is not None
        if not newcomer.hello.waits:
            raise ProtocolError('no_buffers', f'{text}; connect again later', RefusalCode.BUSY)
        self._newcomers.pop(number, None)
        self._waiting[number] = newcomer
        if text == newcomer.noted:
            return
        newcomer.noted = text
        with contextlib.suppress(OSError):
            newcomer.socket.send(wire.pack_noted(text), SEND_FLAGS)
        name = newcomer.consumer.constraints.participant  # type: ignore[union-attr]
        self._say(f'{name} waits: {text}')

    def _receive_waiting(self, number: int) -> None:
        """Turn a waiting consumer away: it closed its socket, or sent a forbidden message."""
        try:
            received = self._reader.read(self._waiting[number].socket, MAX_FDS)
            if received is None:
                return
            close_all(received[1])
            if received[0]:
                raise ProtocolError('state', 'a message came before WELCOME')
        except ProtocolError as error:
            self._turn_away(number, error)
        else:
            self._turn_away(number, None)

    def _forget(self, number: int, consumer: Consumer | None, why: str) -> None:
        """Remove a consumer, so that its constraints no longer count; *why*: see Door.left()."""
        with self._lock:
            known = self._consumers.pop(number, None)
        if known is not None and consumer is not None and self.door is not None:
            self.door.left(consumer, why)

    def _welcome(
        self,
        number: int,
        newcomer: Newcomer,
        hello: Hello,
        holder: str,
        pool: BufferPool,
        window: int,
        depth: int,
    ) -> None:
        connection = Connection(
            newcomer.socket, newcomer.peer, hello, holder, pool, window, depth, self._fences.add
        )
        self._established[number] = connection
        self.counters.welcomed += 1
        kept: list[Frame] = []
        with self._lock:

            def join() -> None:
                self._connections = (*self._connections, connection)

            # Send WELCOME and call join() under one lock. So the consumer gets no frame before
            # WELCOME, and every frame published after it.
            connection.welcome(Welcome(window, depth, self.publisher_id), join)
            if hello.history and self._history is not None:
                with contextlib.suppress(StaleFrameError):
                    kept = [frame.keep() for frame in self._history]
                for frame in kept:
                    connection.offer(frame)
        for frame in kept:
            frame.release()
        text = (
            f'consumer {holder} (pid {newcomer.peer.pid}) is connected: window {window}, '
            f'depth {depth}'
        )
        if window < hello.window:
            self._say(
                f'{text}; it asked for a window of {hello.window}: {pool.too_few}', warn=True
            )
        else:
            self._say(text)

    def _receive(self, number: int, connection: Connection) -> None:
        try:
            received = self._reader.read(connection.socket, 1)
            if received is None:
                return
            size, fds = received
            if not fds and (released := wire.plain_release(self._reader.packet, size)) is not None:
                connection.release(*released, None)
            elif not size:
                self._drop(number, 'eof', '')
            elif not fds and wire.message_type(self._reader.packet[:size]) is MessageType.REFUSED:
                self._refused_by(
                    number, connection, wire.parse_refused(self._reader.packet[:size])
                )
            else:
                self._receive_with_fence(connection, size, fds)
        except ProtocolError as error:
            self.counters.refuse(error)
            connection.refuse(error.code, str(error))
            self._drop(number, error.reason, str(error))

    def _refused_by(self, number: int, connection: Connection, refused: Refused) -> None:
        """
        Disconnect a consumer that sent REFUSED, because it can't use the buffers.

        :raises ProtocolError: REFUSED has another code than CONSTRAINTS.
        """
        code, text = refused
        if code is not RefusalCode.CONSTRAINTS:
            raise ProtocolError(
                'value',
                (
                    f'REFUSED with code {code:d} ({text}); a consumer may only send code '
                    f'{RefusalCode.CONSTRAINTS:d}'
                ),
            )
        self.counters.refuse(
            ProtocolError(
                'constraints',
                f'{connection.hello.name or "consumer"}: {text}',
                RefusalCode.CONSTRAINTS,
            )
        )
        self._say(
            (
                f"consumer {connection.holder} can't use the buffers: {text}; it gets messages, "
                'which are copies, or nothing if it allows no copies'
            ),
            warn=True,
        )
        self._drop(number, 'constraints', text)

    def _receive_with_fence(self, connection: Connection, size: int, fds: list[OwnedFd]) -> None:
        """
        Handle a RELEASE that has a fence; refuse any other packet.

        :meth:`_receive` has already handled each valid RELEASE without a fence.

        :raises ProtocolError: the packet isn't a valid RELEASE.
        """
        try:
            message = wire.parse_release(self._reader.packet, size)
            if message.fence is not bool(fds):
                raise ProtocolError(
                    'descriptors',
                    f'RELEASE with {len(fds)} descriptors and flags {int(message.fence)}; only a '
                    'RELEASE with flag 1 (FENCE) has a descriptor',
                )
        except ProtocolError:
            close_all(fds)
            raise
        connection.release(message.uid, message.generation, adopt_fence(fds[0]) if fds else None)

    def _drop(self, number: int, reason: str, text: str) -> None:
        """End the connection, or turn away the newcomer, whose descriptor is *number*."""
        self._turn_away(number, None)
        connection = self._established.pop(number, None)
        if connection is None:
            return
        with self._lock:
            self._connections = tuple(c for c in self._connections if c is not connection)
            consumer, _, _ = self._consumers.get(number, (None, None, 0))
        self._forget(number, consumer, text if reason == 'constraints' else '')
        if connection.failure and reason == 'eof':
            reason, _, text = connection.failure.partition(': ')
        drain(connection.socket)
        held = connection.end(self._quarantine_timeout_s)
        self.counters.taken_back += held
        self.counters.ended[reason] += 1
        why = f'was disconnected: {text}' if text else 'has gone'
        self._say(f'consumer {connection.holder} {why}; it held {held} frames')

    def _say(self, text: str, *, warn: bool = False) -> None:
        say = self._warn if warn else self._report
        if say is not None:
            say(f'{self.name}: {text}')

    def _shut_down(self) -> None:
        for number in [*self._newcomers, *self._waiting]:
            self._turn_away(number, None)
        self._listener.close()
        for number in list(self._established):
            self._drop(number, 'closed', 'the publisher was closed')
        with self._lock:
            history = self._take_history()
            self._history = None
        self._fences.close()
        for frame in history:
            frame.release()
        self._epoll.close()

    def statistics(self) -> ServerStatistics:
        """Return a snapshot of the counters."""
        return self.counters.copy(
            tuple(connection.statistics() for connection in self._connections),
            len(self._newcomers) + len(self._waiting),
        )

    def close(self) -> None:
        """Disconnect all consumers, stop the thread, close the socket; in a fork, do nothing."""
        if self._pid != os.getpid() or self._stopping:
            return
        # Remove the socket's file first, so that no consumer connects while the server closes.
        with contextlib.suppress(OSError):
            self.path.unlink()
        self._stopping = True
        self._wake_up()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self.set_pool(None)
        self._wake.close()

    def __enter__(self) -> SharedMemoryServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _after_fork(self) -> None:
        """Close a forked child's copies of sockets; else the parent couldn't end a connection."""
        connections, self._connections = self._connections, ()
        self._history = None
        self._lock = threading.Lock()
        self._heard = threading.Condition(self._lock)
        for connection in connections:
            connection.close_in_child()
        for newcomer in [*self._newcomers.values(), *self._waiting.values()]:
            newcomer.socket.close()
        self._listener.close()
        self._epoll.close()
        self._wake.close()


if compiled is not None:
    compiled.join(SharedMemoryServer)
