"""The numbers of WIRE.md."""

from __future__ import annotations

from enum import IntEnum

VERSION = 1
MAGIC = 0x4B4C435A
MAX_PACKET = 4096
MAX_WINDOW = 64
MAX_DEPTH = 64
MAX_FORMATS = 64
# What producers of before the options take.
OLD_MAX_FORMATS = 32
MAX_OPTIONS = 1024
MAX_FDS = 4
MAX_FRAME_ID = 255
MAX_ID = 32
MAX_SLOTS = 256
MAX_OTHERS = 16 * MAX_SLOTS
HANDSHAKE_S = 1.0

FLAG_HISTORY = 1
FLAG_FENCE = 1
MEMORY_DMABUF = 1
MEMORY_MEMFD = 2


class MessageType(IntEnum):
    """The header's ``type``."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    BUFFERS = 4
    FRAME = 5
    RELEASE = 6
    BUFFER_RETIRED = 7


class RefusalCode(IntEnum):
    """REFUSED's ``code``."""

    VERSION = 1
    NOT_ALLOWED = 2
    CONSTRAINTS = 3
    BUSY = 4
    PROTOCOL = 5
    OTHER_PUBLISHER = 6
