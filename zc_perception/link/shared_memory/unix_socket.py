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
What a Unix socket brings: packets, their descriptors, and the credentials of the peer.

Each descriptor is owned from the moment it arrives, so that no path forgets one.
"""

from __future__ import annotations

import array
from collections.abc import Collection, Iterable, Sequence
import contextlib
import os
import socket
import struct
from typing import NamedTuple

from zc_perception.errors import AcceleratorError, ConfigError, shown
from zc_perception.link.shared_memory.protocol import MAX_FDS, ProtocolError
from zc_perception.memory.fence import fence_from_fd, SyncFile
from zc_perception.memory.owned_fd import OwnedFd

_SO_PEERGROUPS = 59
_UCRED = struct.Struct('=iII')
# Plain numbers: an operation on an enum's flags is a call in Python, for every packet.
RECEIVE_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
TRUNCATED = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
TRUNCATED_TEXT = (
    f'a packet too long, or with more than {MAX_FDS} descriptors or more than '
    'this process may still open (RLIMIT_NOFILE)'
)
CONTROL_ROOM = socket.CMSG_SPACE(MAX_FDS * array.array('i').itemsize)
# More packets than a socket holds.
_DRAINED = 128
HIGHEST_ID = 2**32 - 2
"""Of a user or group: the one above is -1 to the kernel, which means that nothing changes."""
Ancillary = Iterable[tuple[int, int, bytes]]


class Peer(NamedTuple):
    """
    Credentials that the kernel noted when the peer connected or listened.

    :param groups: supplementary groups; empty where they weren't asked for.
    """

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def peer_of(sock: socket.socket, *, groups: bool = False) -> Peer:
    """
    Return SO_PEERCRED, and with *groups* also SO_PEERGROUPS.

    :raises OSError: the socket isn't connected.
    """
    pid, uid, gid = _UCRED.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    return Peer(pid, uid, gid, _groups(sock) if groups else ())


def _groups(sock: socket.socket) -> tuple[int, ...]:
    try:
        # getsockopt() of Python takes at most 1024 bytes, which is 256 groups: a user with more is
        # judged by the primary one.
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
    except OSError:
        return ()
    return struct.unpack(f'={len(raw) // 4}I', raw)


def check_ids(ids: Collection[int], name: str) -> None:
    """
    Check that these can be numbers of users or groups.

    :param name: what the user calls them.
    :raises ConfigError: they can't.
    """
    found = ids if isinstance(ids, Collection) and not isinstance(ids, str) else (ids,)
    for number in found:
        good = isinstance(number, int) and not isinstance(number, bool)
        if found is not ids or not good or not 0 <= number <= HIGHEST_ID:
            raise ConfigError(
                f'{name} has {shown(number)}; give a list of numbers from 0 to {HIGHEST_ID}'
            )


def consumer_allowed(peer: Peer, gids: Collection[int] = ()) -> bool:
    """Say whether a producer serves a consumer: its own user, root, and members of *gids*."""
    return (
        peer.uid in (0, os.geteuid())
        or peer.gid in gids
        or any(group in gids for group in peer.groups)
    )


def producer_allowed(peer: Peer, uids: Collection[int] = ()) -> bool:
    """Say whether a consumer talks to a producer: of its own user, root, and *uids*."""
    return peer.uid in (0, os.geteuid()) or peer.uid in uids


def descriptor_left() -> bool:
    """Say whether this process may open one more descriptor."""
    try:
        os.close(os.eventfd(0, os.EFD_CLOEXEC))
    except OSError:
        return False
    return True


def adopt(ancillary: Ancillary) -> list[OwnedFd]:
    """Return all descriptors in a packet's control data, in their order."""
    numbers = array.array('i')
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return own(numbers)


def own(numbers: Sequence[int]) -> list[OwnedFd]:
    """
    Return owners of descriptors that have just come.

    Those that can't be owned are closed.
    """
    owned: list[OwnedFd] = []
    try:
        for number in numbers:
            owned.append(OwnedFd(number))
    except OSError:
        first = len(owned)
        for number in numbers[first:]:
            with contextlib.suppress(OSError):
                os.close(number)
    return owned


def close_all(fds: Iterable[OwnedFd]) -> None:
    """Close what was adopted."""
    for fd in fds:
        fd.close()


def drain(sock: socket.socket) -> None:
    """
    Throw away what has come before closing.

    Otherwise closing would reset the connection, and the peer might miss our last messages.
    """
    buffer = bytearray(1)
    for _ in range(_DRAINED):
        try:
            size, ancillary, _, _ = sock.recvmsg_into([buffer], 1024, RECEIVE_FLAGS)
        except OSError:
            return
        close_all(adopt(ancillary))
        if not size:
            return


def adopt_fence(fd: OwnedFd) -> SyncFile:
    """
    Own a fence that came along.

    :raises ProtocolError: it is no sync_file; then it is closed.
    """
    try:
        return fence_from_fd(fd)
    except AcceleratorError as error:
        raise ProtocolError('descriptors', str(error)) from None


class PacketReader:
    """
    Reads packets into one buffer, for one thread.

    :param size: bytes of the longest packet that may come.
    """

    def __init__(self, size: int) -> None:
        buffer = bytearray(size)
        self._buffers = [buffer]
        self.packet = memoryview(buffer)

    def read(self, sock: socket.socket, most_fds: int) -> tuple[int, list[OwnedFd]] | None:
        """
        Return the size of the next packet in ``packet``, and its descriptors.

        ``None``: nothing there. Size 0 is EOF.

        :raises ProtocolError: truncated, or more descriptors than may come.
        """
        try:
            try:
                size, ancillary, flags, _ = sock.recvmsg_into(
                    self._buffers, CONTROL_ROOM, RECEIVE_FLAGS
                )
            # reported once, of a peer that closed with packets unread; the next call gets what it
            # had sent
            except ConnectionResetError:
                size, ancillary, flags, _ = sock.recvmsg_into(
                    self._buffers, CONTROL_ROOM, RECEIVE_FLAGS
                )
        except BlockingIOError:
            return None
        except OSError:
            return 0, []
        if not ancillary and not flags & TRUNCATED:
            return size, []
        fds = adopt(ancillary)
        if flags & TRUNCATED or len(fds) > most_fds or not size:
            close_all(fds)
            if flags & TRUNCATED:
                raise ProtocolError('truncated', TRUNCATED_TEXT)
            if not size:
                return 0, []
            raise ProtocolError('descriptors', f'{len(fds)} descriptors came where {most_fds} may')
        return size, fds
