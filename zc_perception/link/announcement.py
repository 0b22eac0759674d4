"""``<topic>/_zc``: the small latched message by which an adapted publisher says that it is there. Pinned; see the README."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

VERSION = 1
SUFFIX = '/_zc'


@dataclass(frozen=True)
class Announcement:
    """The JSON object of the announcement.

    :param socket: path of the shared-memory socket; empty while this publisher offers none.
    :param formats: ``drm-format`` strings.
    """

    publisher_id: str
    host_id: str
    socket: str
    width: int
    height: int
    formats: tuple[str, ...]
    heap: str
    version: int = VERSION

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), separators=(',', ':'))

    @classmethod
    def from_json(cls, text: str) -> Announcement | None:
        """The announcement, or ``None`` if it is another version's or not one at all: strangers may write to the topic."""
        try:
            values = json.loads(text)
            if not isinstance(values, dict) or values.get('version') != VERSION:
                return None
            return cls(
                publisher_id=str(values['publisher_id']),
                host_id=str(values['host_id']),
                socket=str(values['socket']),
                width=int(values['width']),
                height=int(values['height']),
                formats=tuple(str(f) for f in values['formats']),
                heap=str(values['heap']),
            )
        except (ValueError, KeyError, TypeError):
            return None


def new_publisher_id() -> str:
    """A random id; says nothing of the host."""
    return uuid.uuid4().hex


def host_id() -> str:
    """The same for all processes of one boot of one kernel, hence of all containers on it; not reversible to the machine's id."""
    try:
        boot = Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()
    except OSError:
        boot = str(uuid.getnode())
    return hashlib.sha256(boot.encode()).hexdigest()[:32]
