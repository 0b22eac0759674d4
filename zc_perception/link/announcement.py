"""``<topic>/_zc``: the small latched message by which an adapted publisher says that it is there. Pinned; see docs/wire.md."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from zc_perception.errors import ConfigError

VERSION = 1
SUFFIX = '/_zc'
_PUBLISHER_ID_BYTES = 32
_SUN_PATH = 107
# rmw_validate_full_topic_name(): DDS has 255, and ROS needs some of them.
_LONGEST_TOPIC = 247


@dataclass(frozen=True)
class Announcement:
    """The JSON object of the announcement.

    :param socket: path of the shared-memory socket; empty while this publisher offers none.
    :param formats: ``drm-format`` strings.
    :param generation: grows whenever the publisher has allocated buffers anew. 0: a publisher that doesn't say so.
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

    @property
    def sensible(self) -> bool:
        """Whether a consumer could say HELLO there, or knows that it can't: strangers may announce anything."""
        path, publisher_id = self.socket, self.publisher_id
        try:
            length = len(os.fsencode(path))
        except UnicodeEncodeError:
            return False
        address = not path or (path.startswith('/') and '\0' not in path and length <= _SUN_PATH)
        return address and publisher_id.isascii() and publisher_id.isprintable() and 0 < len(publisher_id) <= _PUBLISHER_ID_BYTES

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), separators=(',', ':'))

    @classmethod
    def from_json(cls, text: str) -> Announcement | None:
        """The announcement, or ``None`` if it is another version's or not one at all: strangers may write to the topic."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(values, dict) or values.get('version') != VERSION:
            return None
        texts = {key: values.get(key) for key in ('publisher_id', 'host_id', 'socket', 'heap')}
        sizes = {key: values.get(key) for key in ('width', 'height')}
        formats, generation = values.get('formats'), values.get('generation', 0)
        good = all(isinstance(v, str) for v in texts.values()) and all(type(v) is int and v > 0 for v in sizes.values())
        good = good and type(generation) is int and generation >= 0
        if not good or not isinstance(formats, list) or not all(isinstance(f, str) for f in formats):
            return None
        return cls(**texts, **sizes, formats=tuple(formats), generation=generation)  # type: ignore[arg-type]


def announcement_topic(topic: str) -> str:
    """Where publishers of *topic* announce themselves.

    :param topic: in full.
    :raises ConfigError: no ROS topic can have so long a name.
    """
    name = topic + SUFFIX
    if len(name) > _LONGEST_TOPIC:
        raise ConfigError(
            f"topic '{topic}' has {len(topic)} characters, and at most {_LONGEST_TOPIC - len(SUFFIX)} leave room for '{SUFFIX}', where "
            'its publishers are announced; choose a shorter name or namespace'
        )
    return name


def new_publisher_id() -> str:
    """A random id; says nothing of the host."""
    return uuid.uuid4().hex


def host_id() -> str:
    """The same for all processes of one boot of one kernel, hence of all containers on it; not reversible to the machine's id."""
    try:
        boot = _boot_id()
    except OSError:
        boot = str(uuid.getnode())
    return hashlib.sha256(boot.encode()).hexdigest()[:32]


@functools.cache
def _boot_id() -> str:
    """Read once: a process that runs out of descriptors later is not on another host for it."""
    return Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()
