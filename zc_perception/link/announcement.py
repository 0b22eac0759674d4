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
Announce a publisher's shared-memory socket to consumers in other processes.

The publisher sends the announcement as a latched message on ``<topic>/_zc``, and writes it into a
file beside the socket. docs/wire.md defines the message and the file. Consumers read the file,
too, because a publisher without ROS sends no message, and Fast DDS 2.14 may lose or delay a
message. After a consumer was killed, Fast DDS may write the message for the next consumer into
shared memory that no longer exists. If the message is lost during discovery, Fast DDS repeats it
only with its next heartbeat, after 3 s.
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
# The limit of rmw_validate_full_topic_name(), in characters: a name in DDS may have 255, of which
# ROS uses up to 8 for a prefix.
_LONGEST_TOPIC = 247
_MAX_BYTES = 16_384
_MAX_FILES = 1_000
_OPTIONAL = ('possible_formats', 'possible_heaps', 'possible_sizes')


@dataclass(frozen=True)
class Announcement:
    """
    The JSON object of the announcement; docs/wire.md describes all fields.

    :param socket: path of the shared-memory socket; empty while this publisher offers no socket.
    :param formats: ``drm-format`` strings, as GStreamer writes a fourcc and a modifier.
    :param generation: a number that grows each time the publisher allocates new buffers; 0: the
        publisher has no buffers yet, or doesn't announce the number.
    :param possible_formats: ``drm-format`` strings that the publisher could use in place of
        *formats*; empty: unknown.
    :param possible_heaps: heaps from which the buffers could come; empty: unknown.
    :param possible_sizes: ``WIDTHxHEIGHT`` of images that could be published; empty: unknown.
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
        """Whether publisher_id and socket are valid; any program may send invalid ones."""
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
        Return the announcement in *text*; ``None`` if its version or a field is invalid.

        *text* may be invalid, because any program may write to the topic.
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
    """Return the strings of the list *value*, without its other items; empty if it is no list."""
    return tuple(v for v in value if isinstance(v, str)) if isinstance(value, list) else ()


def announcement_topic(topic: str) -> str:
    """
    Return the name of the topic on which the publishers of *topic* announce themselves.

    :param topic: the full name of the image topic.
    :raises ConfigError: the returned name would be longer than ROS allows.
    """
    name = topic + SUFFIX
    if len(name) > _LONGEST_TOPIC:
        raise ConfigError(
            f"topic '{topic}' has {len(topic)} characters, but at most "
            f"{_LONGEST_TOPIC - len(SUFFIX)} are possible, because '{SUFFIX}' is added for "
            'announcements; choose a shorter name or namespace'
        )
    return name


def new_publisher_id() -> str:
    """Return a random id; :func:`made_here` recognises the ids that this process has made."""
    return secrets.token_hex(8) + _process(os.getpid())


def made_here(publisher_id: str) -> bool:
    """Return whether this process made the id; the id's publisher may have ended already."""
    return publisher_id.endswith(_process(os.getpid()))


@functools.cache
def _process(pid: int) -> str:
    """
    Return a random text, always the same for *pid*.

    A forked child has another *pid*, so it gets a different text.
    """
    return secrets.token_hex(8)


def host_id() -> str:
    """
    Return an id that is the same in all processes of this host until its next boot.

    Containers on the host have the same id. The id is a hash, so it doesn't reveal the boot id.
    """
    try:
        boot = _boot_id()
    except OSError:
        boot = str(uuid.getnode())
    return hashlib.sha256(boot.encode()).hexdigest()[:32]


@functools.cache
def _boot_id() -> str:
    """Return the kernel's boot id; cached, as a later call might find no free file descriptor."""
    return Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()


def write_announcement(announcement: Announcement, topic: str, domain: int) -> None:
    """
    Write the announcement's file, or replace an earlier file, atomically.

    If the socket's group may connect, that group may also read the file.

    :param topic: the full name of the image topic, as in the ROS graph.
    :param domain: the ROS domain id.
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
    Yield each announcement in *folder* for *topic*, if a process listens on its socket.

    Any program may have written the files. So invalid files are ignored, and the caller must check
    that the process that listens is the announced publisher.

    :param known: sockets on which, as the caller knows, a process listens; this function doesn't
        connect to these sockets.
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
        return False  # no descriptor is left; the caller will read the announcements again


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
