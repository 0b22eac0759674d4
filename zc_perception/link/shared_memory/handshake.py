"""The consumer's first words: connecting, HELLO, and what the producer answers."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Collection
from pathlib import Path

from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.codes import MAX_PACKET, VERSION, MessageType
from zc_perception.link.shared_memory.descriptors import CONTROL_ROOM, RECEIVE_FLAGS, TRUNCATED, TRUNCATED_TEXT, adopt, close_all
from zc_perception.link.shared_memory.errors import PeerGoneError, ProtocolError, RefusedError
from zc_perception.link.shared_memory.peer import Peer, peer_of, producer_allowed
from zc_perception.link.shared_memory.wire import Hello, Welcome


def greet(path: Path, hello: Hello, timeout_s: float, allowed_uids: Collection[int] = ()) -> tuple[socket.socket, Peer, Welcome]:
    """Connect and be welcomed; the caller owns the socket. Waits no longer than *timeout_s*.

    :raises PeerGoneError: nobody listens there, or nobody answers.
    :raises RefusedError: the producer said why.
    :raises ProtocolError: the producer isn't one that we talk to, or breaks the protocol.
    """
    deadline = time.monotonic() + timeout_s
    packet = wire.pack_hello(hello)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        try:
            sock.connect(os.fspath(path))
            peer = peer_of(sock)
            if not producer_allowed(peer, allowed_uids):
                text = f"user {peer.uid} listens at '{path}', who is not trusted; name the user if that is right"
                raise ProtocolError('not_allowed', text)
            sock.send(packet, socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):  # after those REFUSED may be waiting
                raise PeerGoneError(f"no producer at '{path}': {os.strerror(error.errno or 0)}") from error
        welcome = _answer(sock, path, deadline)
        if hello.publisher_id and welcome.publisher_id != hello.publisher_id:
            raise ProtocolError('other_publisher', f"publisher {welcome.publisher_id} listens at '{path}', not {hello.publisher_id}")
        if welcome.version != VERSION or welcome.window > hello.window or welcome.depth > hello.depth:
            text = f'WELCOME grants version {welcome.version}, window {welcome.window}, depth {welcome.depth}; that was not asked for'
            raise ProtocolError('value', text)
        return sock, peer, welcome
    except BaseException:
        sock.close()
        raise


def _answer(sock: socket.socket, path: Path, deadline: float) -> Welcome:
    buffer = bytearray(MAX_PACKET)
    poller = select.poll()
    poller.register(sock.fileno(), select.POLLIN)
    while True:
        try:
            size, ancillary, flags, _ = sock.recvmsg_into([buffer], CONTROL_ROOM, RECEIVE_FLAGS)
            break
        except BlockingIOError:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0.0 or not poller.poll(remaining_s * 1000 + 1):
                raise PeerGoneError(f"the producer at '{path}' does not answer; it may be stopped") from None
        except ConnectionResetError:
            continue  # told once; what was sent before comes with the next call
    fds = adopt(ancillary)
    close_all(fds)
    if not size:
        raise PeerGoneError(f"the producer at '{path}' closed the connection")
    if flags & TRUNCATED:
        raise ProtocolError('truncated', TRUNCATED_TEXT)
    if fds:
        raise ProtocolError('descriptors', f'{len(fds)} descriptors came where only WELCOME may')
    packet = memoryview(buffer)[:size]
    if wire.message_type(packet) is MessageType.REFUSED:
        refused = wire.parse_refused(packet)
        raise RefusedError(refused.code, refused.text)
    return wire.parse_welcome(packet)
