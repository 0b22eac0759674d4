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
How an adapted publisher announces itself: by a message and by a file.

The message is small and latched, on ``<topic>/_zc``. The file is beside the publisher's socket.
The format is pinned, see docs/wire.md. The file says the same as the message, for consumers that
the message doesn't reach. There are two such cases. After a consumer was killed, Fast DDS 2.14 may
write the message for the next consumer into shared memory that is gone. And if the message is lost
while writer and reader find each other, Fast DDS repeats it only with its next heartbeat, after
3 s. In both cases the ROS graph knows the publisher at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
import contextlib
from dataclasses import asdict, dataclass
import functools
import hashlib
from itertools import islice
import json
import os
from pathlib import Path
import secrets
import stat
from typing import Any
import uuid

from zc_perception.errors import ConfigError
from zc_perception.link.shared_memory.unix_socket import (
    announcement_path,
    ANNOUNCEMENT_SUFFIX,
    is_dead,
    starting_path,
    SUN_PATH,
)

VERSION = 1
SUFFIX = '/_zc'
_PUBLISHER_ID_BYTES = 32
# The limit of rmw_validate_full_topic_name(), in characters. DDS allows 255; ROS needs 8 of them.
_LONGEST_TOPIC = 247
_MAX_BYTES = 16_384
_MAX_FILES = 1_000
_OPTIONAL = ('possible_formats', 'possible_heaps', 'possible_sizes')


@dataclass(frozen=True)
class Announcement:
    """
    The JSON object of the announcement.

    :param socket: path of the shared-memory socket; empty while this publisher offers no socket.
    :param formats: ``drm-format`` strings.
    :param generation: number that grows each time the publisher allocates new buffers; 0: the
        publisher has no buffers yet, or doesn't tell the number.
    :param possible_formats: ``drm-format`` strings that the publisher could use in place of
        *formats*; empty: unknown.
    :param possible_heaps: heaps from which its memory could come; empty: unknown.
    :param possible_sizes: ``WIDTHxHEIGHT`` of images that it could publish; empty: unknown.
    """

    publisher_id: str
    host_id: str
    socket: str
    width: int
    height: int
    formats: tuple[str, ...]
    heap: str
    generation: int = 0
    version: int = VERSION
    possible_formats: tuple[str, ...] = ()
    possible_heaps: tuple[str, ...] = ()
    possible_sizes: tuple[str, ...] = ()

    @property
    def sensible(self) -> bool:
        """
        Whether the id is valid, and the socket is a valid path or empty.

        This is checked because other programs may announce anything.
        """
        path, publisher_id = self.socket, self.publisher_id
        try:
            length = len(os.fsencode(path))
        except UnicodeEncodeError:
            return False
        address = not path or (path.startswith('/') and '\0' not in path and length <= SUN_PATH)
        return (
            address
            and publisher_id.isascii()
            and publisher_id.isprintable()
            and 0 < len(publisher_id) <= _PUBLISHER_ID_BYTES
        )

    def to_json(self) -> str:
        """Return the announcement as one line of JSON."""
        values = {
            key: value for key, value in asdict(self).items() if key not in _OPTIONAL or value
        }
        return json.dumps(values, separators=(',', ':'))

    @classmethod
    def from_json(cls, text: str) -> Announcement | None:
        """
        Return the announcement in *text*; ``None`` if it has another version or makes no sense.

        This is checked because other programs may write to the topic.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(values, dict) or values.get('version') != VERSION:
            return None
        texts = {key: values.get(key) for key in ('publisher_id', 'host_id', 'socket', 'heap')}
        sizes = {key: values.get(key) for key in ('width', 'height')}
        formats, generation = values.get('formats'), values.get('generation', 0)
        good = all(isinstance(v, str) for v in texts.values()) and all(
            type(v) is int and v > 0 for v in sizes.values()
        )
        good = good and type(generation) is int and generation >= 0
        if (
            not good
            or not isinstance(formats, list)
            or not all(isinstance(f, str) for f in formats)
        ):
            return None
        possible = {key: _texts(values.get(key)) for key in _OPTIONAL}
        given: dict[str, Any] = {**texts, **sizes, **possible}
        return cls(**given, formats=tuple(formats), generation=generation)


def _texts(value: object) -> tuple[str, ...]:
    """
    Return the texts in a list, and nothing for any other value.

    Other programs may write any value. The texts are only shown to people.
    """
    return tuple(v for v in value if isinstance(v, str)) if isinstance(value, list) else ()


def announcement_topic(topic: str) -> str:
    """
    Return the topic where publishers of *topic* announce themselves.

    :param topic: its full name.
    :raises ConfigError: the returned name would be longer than ROS allows.
    """
    name = topic + SUFFIX
    if len(name) > _LONGEST_TOPIC:
        raise ConfigError(
            f"topic '{topic}' has {len(topic)} characters, and at most "
            f"{_LONGEST_TOPIC - len(SUFFIX)} leave room for '{SUFFIX}', where "
            'its publishers are announced; choose a shorter name or namespace'
        )
    return name


def new_publisher_id() -> str:
    """Return a random id that tells nothing about the host, but :func:`made_here` knows it."""
    return secrets.token_hex(8) + _process(os.getpid())


def made_here(publisher_id: str) -> bool:
    """Say whether this process made the id; the publisher may have ended since."""
    return publisher_id.endswith(_process(os.getpid()))


@functools.cache
def _process(pid: int) -> str:
    """Return a random text for this process; a forked child gets another one than its parent."""
    return secrets.token_hex(8)


def host_id() -> str:
    """
    Return an id that is the same in all processes of this host until its next boot.

    Containers on the host have the same id. Nobody can compute the machine's id from it.
    """
    try:
        boot = _boot_id()
    except OSError:
        boot = str(uuid.getnode())
    return hashlib.sha256(boot.encode()).hexdigest()[:32]


@functools.cache
def _boot_id() -> str:
    """Read the boot id once, because reading it later fails if no descriptor is free."""
    return Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()


def write_announcement(announcement: Announcement, topic: str, domain: int) -> None:
    """
    Write the announcement's file, or replace an earlier file, in one step.

    If the socket's group may connect, that group may also read the file.

    :param topic: its full name, as in the ROS graph.
    :raises OSError: the file can't be written, as on a full disk. An earlier file is unchanged.
    """
    path = announcement_path(Path(announcement.socket))
    starting = starting_path(path)
    text = json.dumps({'topic': topic, 'domain': domain, 'announcement': announcement.to_json()})
    try:
        socket = os.stat(announcement.socket)
        with open(
            os.open(starting, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600),
            'w',
            encoding='utf-8',
        ) as file:
            if socket.st_mode & stat.S_IWGRP:
                os.fchown(file.fileno(), -1, socket.st_gid)
                os.fchmod(file.fileno(), 0o640)
            file.write(text)
        starting.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            starting.unlink()
        raise


def remove_announcement(socket: Path) -> None:
    """Remove the announcement's file beside *socket*. Idempotent."""
    with contextlib.suppress(OSError):
        announcement_path(socket).unlink()


def read_announcements(
    folder: Path, topic: str, domain: int, known: Collection[str] = ()
) -> Iterator[Announcement]:
    """
    Yield the announcements in *folder* whose publishers listen on their sockets.

    Other programs may have written the files. So files that make no sense are ignored, and the
    caller checks at the socket that the right process listens.

    :param known: sockets for which nobody checks here that a publisher listens, because the
        caller knows them already.
    """
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name
                for entry in islice(entries, 2 * _MAX_FILES)
                if entry.name.endswith(ANNOUNCEMENT_SUFFIX)
            ]
    except OSError:
        return
    for name in sorted(names)[:_MAX_FILES]:
        announcement = _read(folder / name, topic, domain)
        socket = folder / name.replace(ANNOUNCEMENT_SUFFIX, '.sock')
        if (
            announcement is not None
            and announcement.socket == str(socket)
            and (str(socket) in known or _listens(socket))
        ):
            yield announcement


def _listens(path: Path) -> bool:
    try:
        return is_dead(path) is False
    except OSError:
        return False  # no descriptor is left; the next look may have one


def _read(path: Path, topic: str, domain: int) -> Announcement | None:
    try:
        with open(
            os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), 'rb'
        ) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            values = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if (
        not isinstance(values, dict)
        or values.get('topic') != topic
        or values.get('domain') != domain
    ):
        return None
    text = values.get('announcement')
    return Announcement.from_json(text) if isinstance(text, str) else None
