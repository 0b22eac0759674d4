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
The consumer's end: it receives frames of another process's publisher as :class:`Frame` objects.

A :class:`Greeting` connects, sends HELLO and waits for the answer. The client's owner calls
:meth:`SharedMemoryClient.approach` until there is a connection. Then a thread of the owner polls
:meth:`SharedMemoryClient.fileno` and calls :meth:`~SharedMemoryClient.receive`, which reads the
socket. The client has no thread. Its descriptor stays the same for all connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
import contextlib
from dataclasses import dataclass
import errno
import math
import os
from pathlib import Path
import select
import socket
import threading
import time

from zc_perception.backoff import BackOff
from zc_perception.errors import NO_DESCRIPTOR, one_line, ZcError
from zc_perception.forking import in_child, Turn
from zc_perception.frame import Frame
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.protocol import (
    ANYTHING,
    HANDSHAKE_S,
    MAX_FDS,
    MAX_PACKET,
    MessageType,
    MisfitError,
    PeerGoneError,
    ProtocolError,
    RefusalCode,
    RefusedError,
    Requirements,
    SilentError,
    VERSION,
)
from zc_perception.link.shared_memory.remote_slots import CameUnread, RemoteSlots
from zc_perception.link.shared_memory.unix_socket import (
    adopt_fence,
    close_all,
    descriptor_left,
    PacketReader,
    peer_of,
    producer_allowed,
    TRUNCATED_TEXT,
)
from zc_perception.link.shared_memory.wire import Hello, Welcome
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.native import compiled
from zc_perception.negotiation.settings import TrialImport

_FIRST_RETRY_S = 0.02
_LAST_RETRY_S = 0.5
# If a connection lasted this long, connect again at once. If it was shorter, pause, because the
# producer may end each new connection soon.
_SETTLED_S = 1.0
_PATIENT_RETRY_S = 5.0
# One call of receive() reads at most this many packets without a frame, so that a producer that
# never stops sending such packets can't block the caller.
_PACKETS_AT_ONCE = range(64)
# Reasons for which this client, not the producer, ends a connection.
_FROM_HERE = ('closed', 'retargeted', 'constraints')


class Greeting:
    """
    One attempt to connect: send HELLO to a producer's socket, then poll for the answer.

    No method blocks. After a WELCOME, the caller owns the socket; otherwise the caller must close
    this object.

    ``noted`` is the text of NOTED, the reason why this consumer must wait; empty if no NOTED
    came. After a NOTED, there is no deadline for the answer.

    :raises PeerGoneError: no process listens at *path*.
    :raises SilentError: the socket's queue of new connections is full.
    :raises ProtocolError: another user's process listens, and that user isn't trusted.
    """

    def __init__(self, path: Path, hello: Hello, allowed_uids: Collection[int]) -> None:
        packet = wire.pack_hello(hello)
        self.deadline = time.monotonic() + HANDSHAKE_S
        self.noted = ''
        self._path = path
        self._hello = hello
        self._reader = PacketReader(MAX_PACKET)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self.socket.connect(os.fspath(path))
            self.peer = peer_of(self.socket)
            if not producer_allowed(self.peer, allowed_uids):
                text = (
                    f"user {self.peer.uid}, who is not trusted, listens at '{path}'; if you trust "
                    "this user, add it to parameter 'shared_memory_users' or argument trusted_uids"
                )
                raise ProtocolError('not_allowed', text)
            self.socket.send(packet, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            self.close()
            raise self._silent() from None
        except OSError as error:
            # After EPIPE and ECONNRESET, answer() reads what the producer sent before it
            # closed the connection.
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                self.close()
                raise PeerGoneError(
                    f"no producer at '{path}': {os.strerror(error.errno or 0)}"
                ) from error
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the socket's descriptor; it is readable when the answer has arrived."""
        return self.socket.fileno()

    def answer(self) -> Welcome | None:
        """
        Return the producer's WELCOME; ``None`` if it hasn't come yet, or NOTED came.

        :raises SilentError: the producer didn't answer in time.
        :raises PeerGoneError: the producer closed the connection.
        :raises RefusedError: the producer sent REFUSED.
        :raises ProtocolError: another publisher listens at the socket, or the answer is invalid.
        """
        packet = self._packet()
        if packet is None:
            return None
        if wire.message_type(packet) is MessageType.NOTED:
            self.noted = wire.parse_noted(packet)
            self.deadline = math.inf
            return None
        if wire.message_type(packet) is MessageType.REFUSED:
            refused = wire.parse_refused(packet)
            raise RefusedError(refused.code, refused.text)
        welcome, hello = wire.parse_welcome(packet), self._hello
        if hello.publisher_id and welcome.publisher_id != hello.publisher_id:
            text = (
                f"at '{self._path}' listens publisher {welcome.publisher_id} instead of publisher "
                f'{hello.publisher_id}'
            )
            raise ProtocolError('other_publisher', text)
        if (
            welcome.version != VERSION
            or welcome.window > hello.window
            or welcome.depth > hello.depth
        ):
            text = (
                f'WELCOME grants version {welcome.version}, window {welcome.window}, depth '
                f'{welcome.depth}; this is not what HELLO asked for'
            )
            raise ProtocolError('value', text)
        return welcome

    def _packet(self) -> memoryview | None:
        found = self._reader.read(self.socket, 0)
        if found is None:
            if time.monotonic() < self.deadline:
                return None
            raise self._silent()
        if not found[0]:
            raise PeerGoneError(f"the producer at '{self._path}' closed the connection")
        return self._reader.packet[: found[0]]

    def _silent(self) -> SilentError:
        return SilentError(
            f"the producer at '{self._path}' does not answer; perhaps its process is suspended"
        )

    def close(self) -> None:
        """Give up the connection attempt and close the socket. Idempotent."""
        self.socket.close()


def somebody_listens(error: ZcError) -> bool:
    """
    Return whether an attempt that failed with *error* reached a process at the socket.

    Return ``False`` if that process is surely another publisher than the requested one.
    """
    if isinstance(error, RefusedError):
        return error.code != RefusalCode.OTHER_PUBLISHER
    return isinstance(error, SilentError)


def worth_patience(error: ZcError) -> bool:
    """
    Return whether to pause for _PATIENT_RETRY_S after an attempt that failed with *error*.

    Return ``True`` if the producer doesn't answer, or refused for a lasting reason. Return
    ``False`` if no process listens yet or the producer is busy, because that may end soon.
    """
    return isinstance(error, SilentError) or (
        isinstance(error, RefusedError) and error.code != RefusalCode.BUSY
    )


@dataclass(frozen=True)
class ClientStatistics:
    """
    A snapshot of a client's counters for diagnostics.

    :param window: largest number of frames that this consumer may hold, as WELCOME granted it; 0
        while not connected.
    :param asked: the window that HELLO asked for.
    :param depth: largest number of frames that may wait in the producer; 0 while not connected.
    :param held: number of frames sent to this consumer for which no RELEASE was sent yet.
    :param received: number of frames received since start.
    :param dropped: number of frames that the producer dropped because this consumer was too slow.
    :param abandoned: number of frames that the garbage collector released, because the program
        didn't release them.
    :param connections: number of WELCOMEs since start.
    :param ended: number of connections and attempts that ended, for each reason (eof, refused,
        gone, or the reason of a protocol error).
    :param last_end: why the latest connection or attempt ended, as text; empty: none has ended.
    :param in_hand: for each held frame its sequence number, and for how many seconds it is held.
    """

    connected: bool
    window: int
    asked: int
    depth: int
    held: int
    received: int
    dropped: int
    abandoned: int
    connections: int
    ended: dict[str, int]
    last_end: str
    in_hand: tuple[tuple[int, float], ...] = ()


class SharedMemoryClient:
    """
    Receives one publisher's frames from another process of this host.

    The client owns the attempt to connect, the :class:`RemoteSlots` of the connection, and the
    epoll whose descriptor :meth:`fileno` returns. Received frames own their leases, so they stay
    readable after the connection has ended. Any thread may call any method, and only :meth:`wait`
    blocks. Locks are taken in this order: ``_connecting``, held during an attempt; ``_lock``; the
    lock of the slots.

    :param path: the path of the publisher's socket, as its announcement names it.
    :param name: this consumer's name in the diagnostics of both ends.
    :param publisher_id: the ``publisher_id`` of the announcement; empty: any publisher that
        listens at *path*.
    :param window: number of frames that this consumer may hold at the same time.
    :param depth: how many of the newest frames wait in the producer while the window is full.
    :param history: whether to ask for the frames that a transient_local publisher keeps.
    :param requirements: the constraints that buffers must satisfy.
    :param trial_import: imports a slot's buffers before its first frame, on the thread that
        receives. If it raises, or the buffers break *requirements*, the client sends the reason to
        the producer and disconnects. It connects again only after :meth:`retarget`, because only
        then there may be other buffers.
    :param allowed_uids: ids of users whose producers are trusted, besides our own user and root.

    ``last_end`` says why the latest connection or attempt ended. ``listens`` says whether that
    attempt reached a process that may be the publisher. ``parted_s`` is the time at which the
    latest connection ended, in seconds of CLOCK_MONOTONIC; connections of less than a second don't
    count; 0: none has ended. ``dropped`` counts the frames that the producer dropped because this
    consumer was too slow; it is updated with each frame.
    """

    # __slots__ gives these attributes fixed offsets, by which native/links.c accesses them.
    __slots__ = ('__dict__', '__weakref__', '_lock', '_received', '_slots', 'dropped')

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        publisher_id: str = '',
        window: int = 1,
        depth: int = 1,
        history: bool = False,
        requirements: Requirements = ANYTHING,
        trial_import: TrialImport | None = None,
        allowed_uids: Collection[int] = (),
    ) -> None:
        self.name = name
        self._path = path
        self._hello = Hello(window, depth, name, publisher_id, history, requirements, waits=True)
        self._requirements = requirements
        self._trial_import = trial_import
        wire.pack_hello(self._hello)  # raise now if a value doesn't fit a HELLO
        self._allowed_uids = frozenset(allowed_uids)
        self._epoll = select.epoll()
        # Finalizers of frames write to this eventfd to wake the receiving thread. It must stay
        # open until the last frame is freed, so the garbage collector closes it.
        self._bell: OwnedFd | None = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._epoll.register(self._bell.fileno(), select.EPOLLIN)
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._slots: RemoteSlots | None = None
        self._greeting: Greeting | None = None
        self._target = 0
        # Whether this consumer can't use the producer's buffers; reset by a new announcement.
        self._unusable = False
        self._announced = self._announced_before = 0
        self._welcomed_at = 0.0
        self._closed = False
        self._retry = BackOff(_FIRST_RETRY_S, _LAST_RETRY_S)
        self._received = self.dropped = self._connections = self._abandoned = self._depth = 0
        self._ended: Counter[str] = Counter()
        self.last_end = ''
        self.listens = False
        self.parted_s = 0.0
        in_child(Turn.LINKS, self._after_fork)

    def fileno(self) -> int:
        """
        Return the descriptor that is readable when :meth:`receive` should be called.

        It is readable if a frame has arrived, or a RELEASE can be sent: the garbage collector
        freed a frame, a release fence of this process has signalled, or the socket has room again.
        """
        return self._epoll.fileno()

    @property
    def connected(self) -> bool:
        """Whether there is a connection on which WELCOME came."""
        return self._slots is not None

    def _attempt(self) -> None:
        """Continue the current attempt to connect, or begin one; called with _connecting held."""
        with self._lock:
            greeting, self._greeting = self._greeting, None
            target, path, hello = self._target, self._path, self._hello
        welcome = None
        try:
            try:
                greeting = greeting or Greeting(path, hello, self._allowed_uids)
                welcome = greeting.answer()
            # No descriptor or memory is left. A later attempt may succeed.
            except OSError as error:
                reason = NO_DESCRIPTOR.get(error.errno or 0, error.strerror)
                text = f"no connection to the producer at '{path}': {reason}"
                raise PeerGoneError(text) from error
        except BaseException as error:
            if greeting is not None:
                greeting.close()
            if isinstance(error, ZcError):
                with self._lock:
                    self.listens = somebody_listens(error)
                    self._count_end(_reason(error), str(error))
            raise
        with self._lock:
            if self._closed or target != self._target:
                greeting.close()
            elif welcome is None:
                self._greeting = greeting
                if greeting.noted:
                    self.listens = True
                    self.last_end = greeting.noted
            else:
                self.listens = True
                self._connections += 1
                self._announced_before = self._announced
                self._welcomed_at = time.monotonic()
                self._depth = welcome.depth
                slots = RemoteSlots(
                    greeting.socket,
                    self._epoll,
                    greeting.peer,
                    self.name,
                    welcome.window,
                    self._requirements,
                    self._trial_import,
                    _ringer(self._bell),
                )
                self._epoll.register(greeting.fileno(), select.EPOLLIN)
                self._slots = slots

    def approach(self) -> float | None:
        """
        Begin an attempt to connect if one is due, or continue the current one; never block.

        Call it again when :attr:`awaited` is readable, or after the returned time. After a
        connection that lasted a second or more, the first attempt is due at once. Then the pauses
        between attempts grow up to half a second. The pauses are 5 s if the producer doesn't
        answer, or refuses for a lasting reason (not allowed, constraints, version, another
        publisher).

        :returns: seconds until the next call is useful; ``None`` while connected, after close,
            and while the client waits for :meth:`retarget`.
        """
        with self._connecting:
            if self.approachable and (self._greeting is not None or not self._retry.remaining_s):
                try:
                    self._attempt()
                except ZcError as error:
                    self._retry.failed(_PATIENT_RETRY_S if worth_patience(error) else None)
        if not self.approachable:
            return None
        greeting = self._greeting
        return (
            self._retry.remaining_s
            if greeting is None
            else max(0.0, min(greeting.deadline - time.monotonic(), _PATIENT_RETRY_S))
        )

    @property
    def approachable(self) -> bool:
        """Whether the client isn't connected, and :meth:`approach` may connect it now or later."""
        return self._slots is None and not self._closed and not self._unusable

    @property
    def noted(self) -> str:
        """The reason in NOTED why this consumer must wait for WELCOME; empty: there is none."""
        greeting = self._greeting
        return '' if greeting is None else greeting.noted

    @property
    def awaited(self) -> int | None:
        """The descriptor on which an answer to HELLO will arrive; ``None``: no HELLO was sent."""
        greeting = self._greeting
        fd = -1 if greeting is None else greeting.fileno()
        return fd if fd >= 0 else None

    def retarget(self, path: Path, publisher_id: str = '') -> None:
        """
        Make the next :meth:`approach` connect to *path*; end a connection to another target.

        Call this for each new announcement: if the client couldn't use the earlier buffers, it
        then tries again.
        """
        with self._lock:
            self._announced += 1
            self._unusable = False
            if path != self._path or publisher_id != self._hello.publisher_id:
                self._target += 1
                self._path, self._hello = path, self._hello._replace(publisher_id=publisher_id)
                if self._slots is not None:
                    self._end('retargeted', f"there is a new announcement: '{path}'")
                self._give_up()
            self._retry.start_over()

    def _give_up(self) -> None:
        greeting, self._greeting = self._greeting, None
        if greeting is not None:
            greeting.close()

    def receive(self) -> Frame | None:
        """
        Return the next frame, which the caller owns; ``None`` if no frame has arrived.

        ``None`` may also mean that many packets without a frame came; then :meth:`fileno` stays
        readable. This method never blocks and never raises: errors end the connection and are
        counted in :meth:`statistics`.
        """
        with self._lock:
            slots = self._slots
            if slots is None:
                self._answer_bell()
                return None
            if slots.attention:
                self._answer_bell()
                slots.attend()
            receive = slots.receiver.receive
            for _ in _PACKETS_AT_ONCE:
                try:
                    came = receive(slots)
                    if came is None:
                        return None
                    if isinstance(came, CameUnread):
                        admitted = self._other_packet(slots, came)
                        if admitted is None:
                            if self._slots is None:
                                return None
                            continue
                        frame, dropped = admitted
                    else:
                        frame, dropped = came
                except MisfitError as error:
                    slots.refuse(str(error))
                    self._end(
                        'constraints', f"this node can't use the producer's buffers: {error}"
                    )
                    return None
                except ProtocolError as error:
                    self._end(error.reason, f'the producer broke the protocol: {error}')
                    return None
                except Exception as error:
                    # Catch every error, because none may end the thread that polls this client.
                    self._end('internal', one_line(error))
                    return None
                self._received += 1
                if dropped:
                    self.dropped += dropped
                return frame
            return None

    def wait(self, epoll: select.epoll, timeout_s: float) -> None:
        """Wait for an event of *epoll*, with which :meth:`fileno` is registered."""
        slots = self._slots
        if slots is None:
            epoll.poll(timeout_s)
        else:
            slots.receiver.wait(epoll, timeout_s)

    def _answer_bell(self) -> None:
        if self._bell is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._bell.fileno())

    def _other_packet(self, slots: RemoteSlots, came: CameUnread) -> tuple[Frame, int] | None:
        """
        Handle any packet except a FRAME without a fence; take over the packet's descriptors.

        :return: for a FRAME with a fence, the frame and the number of frames dropped before it;
            ``None`` for other packets.
        :raises ProtocolError: the packet is invalid, or the producer must not send it now.
        """
        packet, fds, truncated, gone = came
        try:
            if truncated:
                if (
                    not descriptor_left()
                ):  # this process can open no more descriptors; the producer made no error
                    self._end(
                        'gone',
                        f"no descriptor for the producer's buffers: {NO_DESCRIPTOR[errno.EMFILE]}",
                    )
                    return None
                raise ProtocolError('truncated', TRUNCATED_TEXT)
            if gone:
                self._end('eof', f'the producer is gone: {os.strerror(gone)}')
                return None
            if not packet:
                self._end('eof', 'the producer has closed the connection')
                return None
            kind = wire.message_type(packet)
            if kind is not MessageType.FRAME:
                slots.count_other()
            most = {MessageType.BUFFERS: MAX_FDS, MessageType.FRAME: 1}.get(kind, 0)
            if len(fds) > most:
                raise ProtocolError(
                    'descriptors', f'{kind.name} with {len(fds)} descriptors, which are too many'
                )
            if kind is MessageType.BUFFERS:
                message = wire.parse_buffers(packet)
                owned, fds = fds, []
                slots.introduce(message, owned)
            elif kind is MessageType.FRAME:
                fence = adopt_fence(fds.pop()) if fds else None
                return slots.admit(packet, len(packet), fence)
            elif kind is MessageType.BUFFER_RETIRED:
                slots.retire(wire.parse_retired(packet))
            elif kind is MessageType.REFUSED:
                refused = wire.parse_refused(packet)
                self._end('refused', f'the producer refused: {refused.text}')
            else:
                raise ProtocolError('state', f'{kind.name} came after WELCOME')
            return None
        finally:
            close_all(fds)

    def _count_end(self, reason: str, text: str) -> None:
        self._ended[reason] += 1
        self.last_end = text

    def _end(self, reason: str, text: str) -> None:
        """End the connection; called with the lock held."""
        slots, now = self._slots, time.monotonic()
        settled = slots is not None and now - self._welcomed_at >= _SETTLED_S
        if settled:
            # Set this before _slots: other threads read parted_s once _slots is None.
            self.parted_s = now
        self._slots = None
        if slots is not None:
            self._count_end(reason, text)
            self._abandoned += slots.abandoned
            if reason in _FROM_HERE:
                slots.leave()
            else:
                slots.end()
            if settled:
                self._retry.start_over()
                if slots.admitted and reason == 'eof':
                    return  # no pause: the next attempt begins at once
            if reason == 'constraints' and self._announced == self._announced_before:
                self._unusable = True
            elif reason == 'flood':
                self._retry.pause(_PATIENT_RETRY_S)
            elif reason != 'retargeted':
                # Pause, because the producer may end each new connection. After 'constraints', the
                # client tries again only if an announcement has come since WELCOME: only then may
                # the producer have other buffers.
                self._retry.failed()

    def statistics(self) -> ClientStatistics:
        """Return a snapshot of the counters."""
        with self._lock:
            slots = self._slots
            window, depth, held, abandoned = (
                (0, 0, 0, 0)
                if slots is None
                else (slots.window, self._depth, slots.out, slots.abandoned)
            )
            return ClientStatistics(
                slots is not None,
                window,
                self._hello.window,
                depth,
                held,
                self._received,
                self.dropped,
                self._abandoned + abandoned,
                self._connections,
                dict(self._ended),
                self.last_end,
                () if slots is None else slots.in_hand(),
            )

    def close(self) -> None:
        """Disconnect for good. Held frames stay readable. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._end('closed', 'this consumer was closed')
            self._give_up()
            self._epoll.close()
            self._bell = None

    def __enter__(self) -> SharedMemoryClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _after_fork(self) -> None:
        """Close the child's copy of the socket; else the parent couldn't end the connection."""
        self._closed = True
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.close_in_child()
        self._give_up()
        self._epoll.close()


if compiled is not None:
    compiled.join(SharedMemoryClient)


def _ringer(bell: OwnedFd | None) -> Callable[[], None]:
    def ring() -> None:
        if bell is None:
            return
        # A frame's finalizer calls this function. Ignore errors: the garbage collector may close
        # the eventfd before it runs the finalizer.
        with contextlib.suppress(ValueError, OSError):
            os.eventfd_write(bell.fileno(), 1)

    return ring


def _reason(error: ZcError) -> str:
    if isinstance(error, ProtocolError):
        return error.reason
    return (
        'refused'
        if isinstance(error, RefusedError)
        else 'gone'
        if isinstance(error, PeerGoneError)
        else 'error'
    )
