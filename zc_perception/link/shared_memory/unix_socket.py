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
Read packets, descriptors and credentials from Unix sockets, and manage the folder of the sockets.

Each descriptor that arrives becomes an :class:`OwnedFd` at once, so that no code path can leak the
descriptor.

The second half of the file makes and checks the folder of the sockets. Only the user who runs this
process can enter the folder; if a group is given, so can the group's members. The second half also
removes sockets of publishers that were killed.
"""

from __future__ import annotations

import array
from collections.abc import Collection, Iterable, Mapping, Sequence
import contextlib
import errno
import os
from pathlib import Path
import socket
import stat
import struct
import time
from typing import NamedTuple

from zc_perception.errors import AcceleratorError, ConfigError, shown
from zc_perception.link.shared_memory.protocol import MAX_FDS, ProtocolError
from zc_perception.memory.fence import fence_from_fd, SyncFile
from zc_perception.memory.owned_fd import OwnedFd

_SO_PEERGROUPS = 59
_UCRED = struct.Struct('=iII')
# Plain numbers, because an operation on enum flags costs a Python call for each packet.
RECEIVE_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
TRUNCATED = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
TRUNCATED_TEXT = (
    f'a packet is too long, or has more than {MAX_FDS} descriptors, or more than '
    'this process may still open (RLIMIT_NOFILE)'
)
CONTROL_ROOM = socket.CMSG_SPACE(MAX_FDS * array.array('i').itemsize)
# drain() reads at most this many packets, which is more than a socket holds.
_DRAINED = 128
HIGHEST_ID = 2**32 - 2
"""The highest valid user or group id; the kernel reads the next number as -1, meaning no id."""
Ancillary = Iterable[tuple[int, int, bytes]]


class Peer(NamedTuple):
    """
    Credentials of the process at the other end, as they were when it connected or listened.

    :param groups: supplementary groups; empty if :func:`peer_of` wasn't asked for them.
    """

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def peer_of(sock: socket.socket, *, groups: bool = False) -> Peer:
    """
    Return the peer's credentials (SO_PEERCRED).

    :param groups: whether to ask for its supplementary groups, too (SO_PEERGROUPS).
    :raises OSError: the socket isn't connected.
    """
    pid, uid, gid = _UCRED.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    return Peer(pid, uid, gid, _groups(sock) if groups else ())


def _groups(sock: socket.socket) -> tuple[int, ...]:
    try:
        # Python's getsockopt() returns at most 1024 bytes: 256 groups. The call fails for a user
        # with more groups; then only the primary group is checked.
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024)
    except OSError:
        return ()
    return struct.unpack(f'={len(raw) // 4}I', raw)


def check_ids(ids: Collection[int], name: str) -> None:
    """
    Check that *ids* is a list of valid user or group ids.

    :param name: the parameter's name, for the error's text.
    :raises ConfigError: *ids* isn't a list, or an element isn't a valid id.
    """
    found = ids if isinstance(ids, Collection) and not isinstance(ids, str) else (ids,)
    for number in found:
        good = isinstance(number, int) and not isinstance(number, bool)
        if found is not ids or not good or not 0 <= number <= HIGHEST_ID:
            raise ConfigError(
                f'{name} has {shown(number)}; give a list of numbers from 0 to {HIGHEST_ID}'
            )


def consumer_allowed(peer: Peer, gids: Collection[int] = ()) -> bool:
    """
    Return whether the peer may read this process's frames.

    The peer's user must be root or this process's user, or one of its groups must be in *gids*.
    """
    return (
        peer.uid in (0, os.geteuid())
        or peer.gid in gids
        or any(group in gids for group in peer.groups)
    )


def producer_allowed(peer: Peer, uids: Collection[int] = ()) -> bool:
    """
    Return whether this process may take frames from the peer.

    The peer's user must be root, this process's user, or one of *uids*.
    """
    return peer.uid in (0, os.geteuid()) or peer.uid in uids


def descriptor_left() -> bool:
    """Return whether this process can open one more descriptor (limit: RLIMIT_NOFILE)."""
    try:
        os.close(os.eventfd(0, os.EFD_CLOEXEC))
    except OSError:
        return False
    return True


def adopt(ancillary: Ancillary) -> list[OwnedFd]:
    """Return an owner for each descriptor in a packet's control data, in the same order."""
    numbers = array.array('i')
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return own(numbers)


def own(numbers: Sequence[int]) -> list[OwnedFd]:
    """
    Return owners of the descriptors *numbers*, in the same order.

    If a descriptor isn't open, return the owners of the earlier ones, and close the later ones.
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
    """Close all descriptors in *fds*."""
    for fd in fds:
        fd.close()


def drain(sock: socket.socket) -> None:
    """
    Read and discard all packets that have arrived; call this before closing the socket.

    If unread packets were left, closing would reset the connection, and the peer might miss our
    last messages.
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
    Return a fence for descriptor *fd*, which the peer sent; the fence owns the descriptor.

    :raises ProtocolError: the descriptor isn't a sync_file; this function has closed it.
    """
    try:
        return fence_from_fd(fd)
    except AcceleratorError as error:
        raise ProtocolError('descriptors', str(error)) from None


class PacketReader:
    """
    Reads packets into one buffer; use it from one thread only.

    :param size: size in bytes of the longest valid packet; longer ones are protocol errors.
    """

    def __init__(self, size: int) -> None:
        buffer = bytearray(size)
        self._buffers = [buffer]
        self.packet = memoryview(buffer)

    def read(self, sock: socket.socket, most_fds: int) -> tuple[int, list[OwnedFd]] | None:
        """
        Read the next packet into ``packet``; return its size and its descriptors.

        Return ``None`` if no packet has arrived. A size of 0 means that the connection has ended.

        :raises ProtocolError: the packet was truncated, or has more than *most_fds* descriptors.
        """
        try:
            try:
                size, ancillary, flags, _ = sock.recvmsg_into(
                    self._buffers, CONTROL_ROOM, RECEIVE_FLAGS
                )
            # The kernel reports a reset once, if the peer closed its socket before it read all our
            # packets. The next call returns the packets that the peer had sent.
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
            raise ProtocolError(
                'descriptors', f'{len(fds)} descriptors came, at most {most_fds} may come'
            )
        return size, fds


SUFFIX = '.sock'
ANNOUNCEMENT_SUFFIX = '.announcement'
STARTING = '.starting-'
_STARTING_LENGTH = len(STARTING) + 8
_NAME = 'zc_perception'
_FALLBACK = Path('/tmp')
#: The longest path that a socket's address can have, in bytes.
SUN_PATH = 107
_STARTING_S = 60.0
_BACKLOG = 128


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """
    Return the folder for sockets; don't make it.

    It is ``$ZC_RUNTIME_DIR`` if that is set, else ``$XDG_RUNTIME_DIR/zc_perception`` if this user
    can use it, else ``/tmp/zc_perception-UID``.
    """
    if named := environment.get('ZC_RUNTIME_DIR'):
        return _shortened(named)
    runtime = environment.get('XDG_RUNTIME_DIR')
    if runtime and _has_room(Path(runtime)):
        return _shortened(runtime) / _NAME
    return _FALLBACK / f'{_NAME}-{os.geteuid()}'


def _shortened(named: str) -> Path:
    """
    Return the absolute path, without needless slashes, ``.`` and ``..``.

    Processes in other working folders must compute the same text, because they compare paths of
    sockets as texts.
    """
    return Path('/', os.path.abspath(named).lstrip('/'))


def _has_room(runtime: Path) -> bool:
    """
    Return whether our folder exists in *runtime* or can be made there.

    Programs started by su, cron or docker often have another user's XDG_RUNTIME_DIR.
    """
    return runtime.is_absolute() and (
        os.path.isdir(runtime / _NAME) or os.access(runtime, os.W_OK | os.X_OK, effective_ids=True)
    )


def folder_complaint(environment: Mapping[str, str] = os.environ) -> str:
    """
    Return a warning if XDG_RUNTIME_DIR can't be used: which folder replaces it, and what to do.

    Return an empty text if XDG_RUNTIME_DIR can be used or isn't set, or if ZC_RUNTIME_DIR is set
    and replaces it.
    """
    runtime = environment.get('XDG_RUNTIME_DIR')
    if environment.get('ZC_RUNTIME_DIR') or not runtime or _has_room(Path(runtime)):
        return ''
    return (
        f"XDG_RUNTIME_DIR is '{runtime}', which is no folder that this user may write to; "
        'shared memory uses '
        f"'{default_folder(environment)}' instead: make the folder XDG_RUNTIME_DIR ('loginctl "
        "enable-linger' does this), or set ZC_RUNTIME_DIR to another folder, "
        'the same for all nodes'
    )


def runtime_folder(group: int | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """
    Return :func:`default_folder`; make it first if it doesn't exist.

    A new folder has mode 0700. With *group*, a new or old folder gets this group and mode 0750.

    :raises ConfigError: the folder can't be made or given to *group*, is a symbolic link, belongs
        to another user, or is open to other users.
    """
    folder = default_folder(environment)
    where = f"folder '{folder}' for shared-memory sockets"
    step = 'name another folder in the environment variable ZC_RUNTIME_DIR'
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        what = (
            'is a symbolic link or no folder'
            if error.errno in (errno.ELOOP, errno.ENOTDIR)
            else f"can't be used: {error.strerror}"
        )
        raise ConfigError(f'{where} {what}; {step}') from error
    try:
        _check(descriptor, group, where, step)
    finally:
        os.close(descriptor)
    return folder


def _check(descriptor: int, group: int | None, where: str, step: str) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f'{where} belongs to user {status.st_uid}, but this process runs as user '
            f'{os.geteuid()}; {step}'
        )
    if group is not None and (status.st_gid != group or stat.S_IMODE(status.st_mode) != 0o750):
        try:
            os.fchown(descriptor, -1, group)
            os.fchmod(descriptor, 0o750)
        except OSError as error:
            raise ConfigError(
                f"{where} can't be given to group {group}: {error.strerror}; join the group, "
                f'or {step}'
            ) from error
        status = os.fstat(descriptor)
    mode, allowed = stat.S_IMODE(status.st_mode), 0o700 if group is None else 0o750
    if mode & 0o777 & ~allowed:
        raise ConfigError(
            f"{where} is open to other users (mode {mode:04o}); run 'chmod {allowed:04o}' on it, "
            f'or {step}'
        )


def socket_path(folder: Path, publisher_id: str) -> Path:
    """
    Return the path at which a publisher listens.

    :raises ConfigError: the folder's name is too long for a socket's address, or *publisher_id*
        can't be a file name.
    """
    if not publisher_id or '/' in publisher_id or publisher_id.startswith('.'):
        raise ConfigError(
            f'publisher_id {publisher_id!r} is no file name; use the hexadecimal id in the '
            'announcement'
        )
    path = folder / f'{publisher_id}{SUFFIX}'
    excess = _excess(path)
    if excess > 0:
        raise ConfigError(
            f"folder '{folder}' has a path that is {excess} bytes too long for a socket's "
            f'address ({SUN_PATH} bytes); '
            'name a folder with a shorter path in the environment variable ZC_RUNTIME_DIR'
        )
    return path


def _excess(path: Path) -> int:
    """Return by how many bytes a socket's path, or its temporary path, exceeds SUN_PATH."""
    longest = max(len(os.fsencode(path.name)), _STARTING_LENGTH)
    return len(os.fsencode(path.parent)) + 1 + longest - SUN_PATH


def check_place(path: Path, parameter: str) -> None:
    """
    Check that it is safe to make a socket at *path*, which the user has set.

    The folder of *path* must belong to the user who runs this process, and no other user may be
    able to write to the folder.

    :param parameter: the parameter's name, for the error's text.
    :raises ConfigError: *path* is relative or too long, its folder doesn't exist or isn't safe, or
        a file that isn't a socket has this path.
    """
    named = f"parameter '{parameter}' is '{path}'"
    if not path.is_absolute():
        raise ConfigError(f'{named}; give the whole path, such as /run/user/1000/front.sock')
    if (excess := _excess(path)) > 0:
        raise ConfigError(
            f"{named}, which is {excess} bytes too long for a socket's address ({SUN_PATH} "
            'bytes); give a shorter path'
        )
    try:
        status, found = os.stat(path.parent), path.lstat() if os.path.lexists(path) else None
    except OSError as error:
        raise ConfigError(
            f'{named}, whose folder cannot be used: {error.strerror}; make this folder, with mode '
            '0700'
        ) from error
    who = f'{named}, whose folder'
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f'{named}, which is not in a folder; give a path in your own folder')
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f'{who} belongs to user {status.st_uid}, but this process runs as user '
            f'{os.geteuid()}; name a folder of your own'
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"{who} can be written by other users (mode {mode:04o}); run 'chmod go-w' on it, "
            'or name another folder'
        )
    if found is not None and not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(
            f'{named}, which exists and is no socket; remove it, or give another path'
        )


def announcement_path(socket: Path) -> Path:
    """Return the path of the announcement of the publisher that listens at *socket*."""
    return socket.with_suffix(ANNOUNCEMENT_SUFFIX)


def starting_path(path: Path) -> Path:
    """Return a temporary name for a file that is renamed to *path* when it is complete."""
    return path.with_name(f'{STARTING}{os.urandom(4).hex()}')


def listen(
    path: Path,
    group: int | None = None,
    *,
    kind: socket.SocketKind = socket.SOCK_SEQPACKET,
    step: str = 'name another folder in the environment variable ZC_RUNTIME_DIR',
) -> socket.socket:
    """
    Return a non-blocking socket that listens at *path*.

    The socket gets a temporary name first, and is renamed to *path* after it listens. So a socket
    at *path* at which no process listens was left by a killed process, and may be removed.

    :param step: advice for the error's text if the socket can't be made.
    :raises ConfigError: a process listens at *path* already, or the folder can't be written.
    """
    starting = starting_path(path)
    listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    try:
        if is_dead(path, kind) is False:
            raise ConfigError(
                f"another process listens at '{path}'; each publisher needs its own socket"
            )
        listener.bind(os.fspath(starting))
        os.chmod(starting, 0o600 if group is None else 0o660)
        if group is not None:
            os.chown(starting, -1, group)
        listener.listen(_BACKLOG)
        starting.rename(path)
    except OSError as error:
        listener.close()
        with contextlib.suppress(OSError):
            starting.unlink()
        raise ConfigError(
            f"no socket can be made at '{path}': {error.strerror}; {step}"
        ) from error
    except BaseException:
        listener.close()
        raise
    return listener


def is_dead(path: Path, kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> bool | None:
    """
    Return whether *path* is a socket at which no process listens.

    Return ``False`` if a process listens, ``None`` if *path* isn't a socket or can't be checked.
    """
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as probe:
        try:
            if not stat.S_ISSOCK(path.lstat().st_mode):
                return None
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except BlockingIOError:
            return False  # a process listens, but its backlog is full
        except OSError:
            return None
        return False


def remove_stale(folder: Path) -> int:
    """
    Remove the sockets of killed publishers, and their announcements.

    This is safe while other publishers start and run.

    :return: how many sockets were removed.
    """
    removed = 0
    for path in (
        *folder.glob(f'*{SUFFIX}'),
        *folder.glob(f'{STARTING}*'),
        *folder.glob(f'*{ANNOUNCEMENT_SUFFIX}'),
    ):
        with contextlib.suppress(OSError):
            # Keep files younger than _STARTING_S, because a starting producer may still need them:
            # its socket has a temporary name and may not listen yet. An old announcement without a
            # socket is a dead producer's: a producer announces a socket only when it listens.
            young = time.time() - path.lstat().st_mtime < _STARTING_S
            if path.suffix == ANNOUNCEMENT_SUFFIX:
                if not young and not os.path.lexists(path.with_suffix(SUFFIX)):
                    path.unlink()
            elif path.name.startswith(STARTING):
                if not young and is_dead(path) is not False:
                    path.unlink()
                    removed += 1
            elif is_dead(path):
                announcement_path(path).unlink(missing_ok=True)
                path.unlink()
                removed += 1
    return removed
