"""A publisher's announcement once more, as a file beside its socket: for consumers whom the latched message doesn't reach.

After a consumer was killed, Fast DDS 2.14 may write what is meant for its successor into shared memory that is gone. And a sample that is
lost while two ends find each other comes again with the next heartbeat only, after 3 s. The graph knows the publisher at once in either
case; the file says the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

from zc_perception.link.announcement import Announcement
from zc_perception.link.shared_memory.socket_folder import ANNOUNCEMENT_SUFFIX, STARTING, is_dead

_MAX_BYTES = 16_384
_MAX_FILES = 1_000


def announcement_path(socket: Path) -> Path:
    """Where the announcement of who listens at *socket* lies."""
    return socket.with_suffix(ANNOUNCEMENT_SUFFIX)


def write_announcement(announcement: Announcement, topic: str, domain: int) -> None:
    """Write it, or replace an earlier one, in one step; with the socket's group where that is let in. A disk that is full is no error: the
    message says the same.

    :param topic: as the graph knows it.
    """
    path = announcement_path(Path(announcement.socket))
    starting = path.with_name(f'{STARTING}{os.urandom(4).hex()}')
    text = json.dumps({'topic': topic, 'domain': domain, 'announcement': announcement.to_json()})
    try:
        socket = os.stat(announcement.socket)
        with open(os.open(starting, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), 'w', encoding='utf-8') as file:
            if socket.st_mode & stat.S_IWGRP:
                os.fchown(file.fileno(), -1, socket.st_gid)
                os.fchmod(file.fileno(), 0o640)
            file.write(text)
        starting.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            starting.unlink()


def remove_announcement(socket: Path) -> None:
    """Idempotent."""
    with contextlib.suppress(OSError):
        announcement_path(socket).unlink()


def read_announcements(folder: Path, topic: str, domain: int, known: Collection[str] = ()) -> Iterator[Announcement]:
    """Those in *folder* of publishers that listen. Somebody else may have written the files: what makes no sense is passed over, and who
    listens is checked at the socket.

    :param known: sockets that are tried anyway, and not for this.
    """
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, 2 * _MAX_FILES) if entry.name.endswith(ANNOUNCEMENT_SUFFIX)]
    except OSError:
        return
    for name in sorted(names)[:_MAX_FILES]:
        announcement = _read(folder / name, topic, domain)
        socket = folder / name.replace(ANNOUNCEMENT_SUFFIX, '.sock')
        if announcement is not None and announcement.socket == str(socket) and (str(socket) in known or _listens(socket)):
            yield announcement


def _listens(path: Path) -> bool:
    try:
        return is_dead(path) is False
    except OSError:
        return False  # no descriptor is left; the next look may have one


def _read(path: Path, topic: str, domain: int) -> Announcement | None:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), 'rb') as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            values = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or values.get('topic') != topic or values.get('domain') != domain:
        return None
    text = values.get('announcement')
    return Announcement.from_json(text) if isinstance(text, str) else None
