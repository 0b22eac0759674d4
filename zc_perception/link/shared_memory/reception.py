"""Where consumers arrive: accepting, credentials, and HELLO within a second. On the server's thread only."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import time
from collections.abc import Callable, Collection

from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.codes import HANDSHAKE_S, MAX_FDS, RefusalCode
from zc_perception.link.shared_memory.descriptors import PacketReader, close_all, drain
from zc_perception.link.shared_memory.errors import ProtocolError
from zc_perception.link.shared_memory.peer import Peer, consumer_allowed, peer_of
from zc_perception.link.shared_memory.server_statistics import ServerCounters
from zc_perception.link.shared_memory.wire import Hello, Refused

_ACCEPT_PAUSE_S = 0.1
_ACCEPTS_AT_ONCE = 16


class Newcomer:
    """A consumer that has connected and isn't welcome yet."""

    __slots__ = ('deadline', 'peer', 'socket')

    def __init__(self, sock: socket.socket, peer: Peer, deadline: float) -> None:
        self.socket = sock
        self.peer = peer
        self.deadline = deadline


class Reception:
    """See the module.

    :param listener: owned.
    :param epoll: gets the listener and the newcomers. Borrowed.
    :param allowed_gids: groups whose members are let in, besides this user and root.
    :param room: how many more consumers there may be, those that are here not counted.
    :param say: gets a sentence for the log.
    """

    def __init__(
        self,
        listener: socket.socket,
        epoll: select.epoll,
        reader: PacketReader,
        counters: ServerCounters,
        allowed_gids: Collection[int],
        room: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        self.listener = listener
        self._epoll = epoll
        self._reader = reader
        self._counters = counters
        self._allowed_gids = allowed_gids
        self._room = room
        self._say = say
        self._newcomers: dict[int, Newcomer] = {}
        self._accept_at = 0.0
        epoll.register(listener.fileno(), select.EPOLLIN)

    def __len__(self) -> int:
        return len(self._newcomers)

    def patience_s(self) -> float | None:
        """Until :meth:`look_at_clock` has something to do."""
        if not self._newcomers and not self._accept_at:
            return None
        # They stand in the order in which they came, and so do their deadlines.
        deadlines = [newcomer.deadline for newcomer in itertools.islice(self._newcomers.values(), 1)]
        if self._accept_at:
            deadlines.append(self._accept_at)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def look_at_clock(self) -> None:
        """Turn away who is silent for too long, and accept again after a pause."""
        if not self._newcomers and not self._accept_at:
            return
        now = time.monotonic()
        for number, newcomer in list(self._newcomers.items()):
            if newcomer.deadline > now:
                break
            self.turn_away(number, ProtocolError('silent', f'no HELLO within {HANDSHAKE_S:g} s'))
        if self._accept_at and self._accept_at <= now:
            self._accept_at = 0.0
            self._epoll.register(self.listener.fileno(), select.EPOLLIN)

    def accept(self) -> None:
        """Let in who waits at the door."""
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors: the listener stays readable, so looking again at once would spin.
                self._counters.refused['descriptors'] += 1
                self._say(f'a consumer could not connect: {error.strerror}; consumers are accepted again in {_ACCEPT_PAUSE_S:g} s')
                self._epoll.unregister(self.listener.fileno())
                self._accept_at = time.monotonic() + _ACCEPT_PAUSE_S
                return
            sock.setblocking(False)
            peer = peer_of(sock, groups=bool(self._allowed_gids))
            self._newcomers[sock.fileno()] = Newcomer(sock, peer, time.monotonic() + HANDSHAKE_S)
            if not consumer_allowed(peer, self._allowed_gids):
                text = f'user {peer.uid} may not read these frames; run as user {os.geteuid()}, or let a group in'
                self.turn_away(sock.fileno(), ProtocolError('not_allowed', text, RefusalCode.NOT_ALLOWED))
            elif len(self._newcomers) > self._room():
                text = 'as many consumers as allowed are connected already; raise the limit, or end one of them'
                self.turn_away(sock.fileno(), ProtocolError('connections', text, RefusalCode.BUSY))
            else:
                self._epoll.register(sock.fileno(), select.EPOLLIN)

    def hello(self, number: int) -> Hello | None:
        """What the newcomer says, if it has said it.

        :raises ProtocolError: something else. The caller turns it away.
        """
        received = self._reader.read(self._newcomers[number].socket, MAX_FDS)
        if received is None:
            return None
        size, fds = received
        close_all(fds)
        if not size:
            self.turn_away(number, None)
            return None
        hello = wire.parse_hello(self._reader.packet[:size])
        if fds:  # only now: a later version's HELLO may have some, and hears of its version
            raise ProtocolError('descriptors', f'HELLO with {len(fds)} descriptors')
        return hello

    def __contains__(self, number: int) -> bool:
        return number in self._newcomers

    def take(self, number: int) -> Newcomer:
        """The caller looks after it from here on."""
        return self._newcomers.pop(number)

    def turn_away(self, number: int, error: ProtocolError | None) -> None:
        """Close a newcomer that isn't welcome; ``None`` if it went by itself."""
        newcomer = self._newcomers.pop(number, None)
        if newcomer is None:
            return
        if error is None:
            self._counters.ended['before_hello'] += 1
        else:
            self._counters.refuse(error)
            with contextlib.suppress(OSError):
                newcomer.socket.send(wire.pack_refused(Refused(error.code, str(error))), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            drain(newcomer.socket)
        newcomer.socket.close()
        if error is not None:
            self._say(f'consumer pid {newcomer.peer.pid} was refused: {error}')

    def close(self) -> None:
        """Nobody comes any more."""
        for number in list(self._newcomers):
            self.turn_away(number, None)
        self.listener.close()

    def close_in_child(self) -> None:
        """After fork: close the copies of the sockets."""
        for newcomer in self._newcomers.values():
            newcomer.socket.close()
        self.listener.close()
