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

"""The numbers of docs/wire.md, and the errors between two processes."""

from __future__ import annotations

from enum import IntEnum

from zc_perception.errors import ZcError

VERSION = 1
MAGIC = 0x4B4C435A
MAX_PACKET = 4096
MAX_WINDOW = 64
MAX_DEPTH = 64
MAX_FORMATS = 64
MAX_OPTIONS = 1024
MAX_FDS = 4
MAX_FRAME_ID = 255
MAX_ID = 32
MAX_SLOTS = 256
MAX_OTHERS = 16 * MAX_SLOTS
HANDSHAKE_S = 1.0

FLAG_HISTORY = 1
FLAG_WAITS = 2
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
    NOTED = 8


class RefusalCode(IntEnum):
    """REFUSED's ``code``."""

    VERSION = 1
    NOT_ALLOWED = 2
    CONSTRAINTS = 3
    BUSY = 4
    PROTOCOL = 5
    OTHER_PUBLISHER = 6


class ProtocolError(ZcError):
    """
    The peer broke a rule of docs/wire.md.

    The connection is closed.

    :param reason: one word, to count by.
    :param code: what a producer says in REFUSED.
    """

    def __init__(self, reason: str, text: str, code: RefusalCode = RefusalCode.PROTOCOL) -> None:
        super().__init__(text)
        self.reason = reason
        self.code = code


class MisfitError(ZcError):
    """
    This consumer can't use the producer's buffers.

    Its constraints don't suit, or a trial import failed.
    """


class RefusedError(ZcError):
    """
    The producer said REFUSED, and why.

    :param code: PROTOCOL also where it was a number that this version doesn't know.
    """

    def __init__(self, code: RefusalCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class PeerGoneError(ZcError):
    """No process listens there, or the other end closed."""


class SilentError(PeerGoneError):
    """A process listens there and doesn't answer."""
