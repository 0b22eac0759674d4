"""Who is at the other end of a Unix socket, and whether that is somebody to talk to."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection
from typing import NamedTuple

_SO_PEERGROUPS = 59
_UCRED = struct.Struct('=iII')


class Peer(NamedTuple):
    """Credentials that the kernel noted when the peer connected or listened.

    :param groups: supplementary groups; empty where they weren't asked for.
    """

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def peer_of(sock: socket.socket, *, groups: bool = False) -> Peer:
    """SO_PEERCRED, and with *groups* SO_PEERGROUPS.

    :raises OSError: the socket isn't connected.
    """
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid, gid, _groups(sock) if groups else ())


def _groups(sock: socket.socket) -> tuple[int, ...]:
    try:
        # getsockopt() of Python takes at most 1024 bytes, which is 256 groups: a user with more is judged by the primary one.
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
    except OSError:
        return ()
    return struct.unpack(f'={len(raw) // 4}I', raw)


def consumer_allowed(peer: Peer, gids: Collection[int] = ()) -> bool:
    """A producer serves its own user, root, and members of *gids*."""
    return peer.uid in (0, os.geteuid()) or peer.gid in gids or any(group in gids for group in peer.groups)


def producer_allowed(peer: Peer, uids: Collection[int] = ()) -> bool:
    """A consumer talks to its own user, root, and *uids*."""
    return peer.uid in (0, os.geteuid()) or peer.uid in uids
