"""The consumer's first words: connecting, HELLO, and what the producer answers."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Collection
from pathlib import Path

from zc_perception.errors import ZcError
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.codes import MAX_PACKET, VERSION, MessageType, RefusalCode
from zc_perception.link.shared_memory.descriptors import CONTROL_ROOM, RECEIVE_FLAGS, TRUNCATED, TRUNCATED_TEXT, adopt, close_all
from zc_perception.link.shared_memory.errors import PeerGoneError, ProtocolError, RefusedError, SilentError
from zc_perception.link.shared_memory.peer import peer_of, producer_allowed
from zc_perception.link.shared_memory.wire import Hello, Welcome


class Greeting:
    """HELLO is said at a producer's socket; the answer is awaited. Nothing but :meth:`wait` waits. The caller takes the socket, or closes.

    :param timeout_s: from now until the answer has to be there.
    :raises PeerGoneError: nobody listens there.
    :raises SilentError: as many wait there already as can.
    :raises ProtocolError: somebody listens who is not trusted.
    """

    def __init__(self, path: Path, hello: Hello, timeout_s: float, allowed_uids: Collection[int] = ()) -> None:
        packet = wire.pack_hello(hello)
        self.deadline = time.monotonic() + timeout_s
        self._path = path
        self._hello = hello
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self.socket.connect(os.fspath(path))
            self.peer = peer_of(self.socket)
            if not producer_allowed(self.peer, allowed_uids):
                text = f"user {self.peer.uid} listens at '{path}', who is not trusted; name the user if that is right"
                raise ProtocolError('not_allowed', text)
            self.socket.send(packet, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            self.close()
            raise self._silent() from None
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):  # after those REFUSED may be waiting
                self.close()
                raise PeerGoneError(f"no producer at '{path}': {os.strerror(error.errno or 0)}") from error
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Readable when :meth:`answer` has one."""
        return self.socket.fileno()

    def wait(self) -> Welcome:
        """See :meth:`answer`; waits for it."""
        poller = select.poll()
        poller.register(self.fileno(), select.POLLIN)
        while (welcome := self.answer()) is None:
            poller.poll(max(0.0, self.deadline - time.monotonic()) * 1000 + 1)
        return welcome

    def answer(self) -> Welcome | None:
        """What the producer grants, or ``None``: it hasn't answered yet.

        :raises SilentError: the time is over.
        :raises PeerGoneError: the producer has gone.
        :raises RefusedError: the producer said why.
        :raises ProtocolError: the producer isn't one that we talk to, or breaks the protocol.
        """
        packet = self._packet()
        if packet is None:
            return None
        if wire.message_type(packet) is MessageType.REFUSED:
            refused = wire.parse_refused(packet)
            raise RefusedError(refused.code, refused.text)
        welcome, hello = wire.parse_welcome(packet), self._hello
        if hello.publisher_id and welcome.publisher_id != hello.publisher_id:
            text = f"publisher {welcome.publisher_id} listens at '{self._path}', not {hello.publisher_id}"
            raise ProtocolError('other_publisher', text)
        if welcome.version != VERSION or welcome.window > hello.window or welcome.depth > hello.depth:
            text = f'WELCOME grants version {welcome.version}, window {welcome.window}, depth {welcome.depth}; that was not asked for'
            raise ProtocolError('value', text)
        return welcome

    def _packet(self) -> memoryview | None:
        buffer = bytearray(MAX_PACKET)
        while True:
            try:
                size, ancillary, flags, _ = self.socket.recvmsg_into([buffer], CONTROL_ROOM, RECEIVE_FLAGS)
                break
            except BlockingIOError:
                if time.monotonic() < self.deadline:
                    return None
                raise self._silent() from None
            except ConnectionResetError:
                continue  # told once; what was sent before comes with the next call
        fds = adopt(ancillary)
        close_all(fds)
        if not size:
            raise PeerGoneError(f"the producer at '{self._path}' closed the connection")
        if flags & TRUNCATED:
            raise ProtocolError('truncated', TRUNCATED_TEXT)
        if fds:
            raise ProtocolError('descriptors', f'{len(fds)} descriptors came where only WELCOME may')
        return memoryview(buffer)[:size]

    def _silent(self) -> SilentError:
        return SilentError(f"the producer at '{self._path}' does not answer; it may be stopped")

    def close(self) -> None:
        """Give up. Idempotent."""
        self.socket.close()


def somebody_listens(error: ZcError) -> bool:
    """Whether an attempt that ended by *error* has met somebody who may be the publisher that was asked for."""
    if isinstance(error, RefusedError):
        return error.code != RefusalCode.OTHER_PUBLISHER
    return isinstance(error, SilentError)


def worth_patience(error: ZcError) -> bool:
    """Whether to try again every few seconds only: what isn't there yet comes soon, but what was refused for good comes with a new
    announcement, and who is silent may stay so.
    """
    return isinstance(error, SilentError) or (isinstance(error, RefusedError) and error.code != RefusalCode.BUSY)
