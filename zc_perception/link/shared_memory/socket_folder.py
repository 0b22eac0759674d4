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

"""Where the sockets lie: a folder that no other user can enter, and what killed producers left."""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import errno
import os
from pathlib import Path
import socket
import stat
import time

from zc_perception.errors import ConfigError

SUFFIX = '.sock'
ANNOUNCEMENT_SUFFIX = '.announcement'
STARTING = '.starting-'
_STARTING_LENGTH = len(STARTING) + 8
_NAME = 'zc_perception'
_FALLBACK = Path('/tmp')
#: Bytes that a socket's address may have.
SUN_PATH = 107
_STARTING_S = 60.0
_BACKLOG = 128


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """
    Return the folder for sockets.

    It is ``$ZC_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/zc_perception`` where that is possible, else
    ``/tmp/zc_perception-UID``.
    """
    if named := environment.get('ZC_RUNTIME_DIR'):
        return Path(os.path.abspath(named))  # the announcement is read in other folders
    runtime = environment.get('XDG_RUNTIME_DIR')
    if runtime and _has_room(Path(runtime)):
        return Path(runtime) / _NAME
    return _FALLBACK / f'{_NAME}-{os.geteuid()}'


def _has_room(runtime: Path) -> bool:
    """
    Say whether the folder is there or can be made.

    Programs started by su, cron or docker often name a folder that isn't this user's.
    """
    return runtime.is_absolute() and (
        os.path.isdir(runtime / _NAME) or os.access(runtime, os.W_OK | os.X_OK, effective_ids=True)
    )


def folder_complaint(environment: Mapping[str, str] = os.environ) -> str:
    """
    Say that XDG_RUNTIME_DIR can't be used, where the sockets are, and what to do.

    Empty: all is well.
    """
    runtime = environment.get('XDG_RUNTIME_DIR')
    if environment.get('ZC_RUNTIME_DIR') or not runtime or _has_room(Path(runtime)):
        return ''
    return (
        f"XDG_RUNTIME_DIR is '{runtime}', which is no folder that this user may write to; "
        'shared memory uses '
        f"'{default_folder(environment)}' instead: make that folder ('loginctl enable-linger' "
        'does), or set ZC_RUNTIME_DIR to another one, '
        'the same for all nodes'
    )


def runtime_folder(group: int | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """
    Return the folder for sockets; make it where it isn't there.

    Its mode is 0700, or with *group* 0750 and that group.

    :raises ConfigError: it can't be made, is a symbolic link, is another user's, or is open to
        others.
    """
    folder = default_folder(environment)
    where = f"folder '{folder}' for shared-memory sockets"
    step = 'name another one in the environment variable ZC_RUNTIME_DIR'
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
            f'{where} belongs to user {status.st_uid}, this is user {os.geteuid()}; {step}'
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
            f"{where} is open to others (mode {mode:04o}); run 'chmod {allowed:04o}' on it, or "
            f'{step}'
        )


def socket_path(folder: Path, publisher_id: str) -> Path:
    """
    Return the path at which a publisher listens.

    :raises ConfigError: the folder's name is too long for a socket's address, or the id is no file
        name.
    """
    if not publisher_id or '/' in publisher_id or publisher_id.startswith('.'):
        raise ConfigError(
            f'publisher_id {publisher_id!r} is no file name; use the hexadecimal one of the '
            'announcement'
        )
    path = folder / f'{publisher_id}{SUFFIX}'
    excess = _excess(path)
    if excess > 0:
        raise ConfigError(
            f"folder '{folder}' has a name that is {excess} bytes too long for a socket's "
            f'address ({SUN_PATH} bytes); '
            'name a shorter one in the environment variable ZC_RUNTIME_DIR'
        )
    return path


def _excess(path: Path) -> int:
    """Return how many bytes a socket's path, or its first name, is too long for an address."""
    longest = max(len(os.fsencode(path.name)), _STARTING_LENGTH)
    return len(os.fsencode(path.parent)) + 1 + longest - SUN_PATH


def check_place(path: Path, parameter: str) -> None:
    """
    Check that a socket that the user has named may lie at *path*.

    Only the folder's owner may be able to put files there.

    :param parameter: what the user calls it, for messages.
    :raises ConfigError: it may not.
    """
    named = f"parameter '{parameter}' is '{path}'"
    if not path.is_absolute():
        raise ConfigError(f'{named}; give the whole path, such as /run/user/1000/front.sock')
    if (excess := _excess(path)) > 0:
        raise ConfigError(
            f"{named}, which is {excess} bytes too long for a socket's address ({SUN_PATH} "
            'bytes); give a shorter one'
        )
    try:
        status, found = os.stat(path.parent), path.lstat() if os.path.lexists(path) else None
    except OSError as error:
        raise ConfigError(
            f'{named}, whose folder cannot be used: {error.strerror}; make it, with mode 0700'
        ) from error
    who = f'{named}, whose folder'
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f'{who} is none; give a path in a folder of your own')
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f'{who} belongs to user {status.st_uid}, this is user {os.geteuid()}; name a '
            'folder of your own'
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"{who} can be written by others (mode {mode:04o}); run 'chmod go-w' on it, or "
            'name another one'
        )
    if found is not None and not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(
            f'{named}, which is there and no socket; remove it, or give another path'
        )


def announcement_path(socket: Path) -> Path:
    """Return the path of the announcement of the publisher that listens at *socket*."""
    return socket.with_suffix(ANNOUNCEMENT_SUFFIX)


def starting_path(path: Path) -> Path:
    """Return the first name of what will be *path*; no program takes it for a socket."""
    return path.with_name(f'{STARTING}{os.urandom(4).hex()}')


def listen(
    path: Path,
    group: int | None = None,
    *,
    kind: socket.SocketKind = socket.SOCK_SEQPACKET,
    step: str = 'name another folder in the environment variable ZC_RUNTIME_DIR',
) -> socket.socket:
    """
    Return a listening socket at *path*, not blocking.

    It gets its name only once it listens. So if no process listens at a socket of that name, it is
    a leftover, which may be removed.

    :param step: what to do if none can be made.
    :raises ConfigError: a process listens there, or the folder can't be written.
    """
    starting = starting_path(path)
    listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    try:
        if is_dead(path, kind) is False:
            raise ConfigError(
                f"somebody listens at '{path}' already; each publisher needs an id of its own"
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
    Say whether no process listens at *path* any more.

    ``None`` if there is no socket, or one that we can't judge.
    """
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as probe:
        try:
            if not stat.S_ISSOCK(path.lstat().st_mode):
                return None
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
        except BlockingIOError:
            return False  # its backlog is full
        except OSError:
            return None
        return False


def remove_stale(folder: Path) -> int:
    """
    Remove the sockets of killed producers, and their announcements; return how many sockets.

    It is safe while others start and run.
    """
    removed = 0
    for path in (
        *folder.glob(f'*{SUFFIX}'),
        *folder.glob(f'{STARTING}*'),
        *folder.glob(f'*{ANNOUNCEMENT_SUFFIX}'),
    ):
        with contextlib.suppress(OSError):
            # Under its first name a socket refuses connections until it listens; an announcement
            # is written when it does.
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
