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
The numbers of docs/wire.md, the errors between two processes, and what a HELLO asks for.

Both ends check by this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

from zc_perception.errors import ConfigError, NegotiationError, ZcError
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.negotiation.constraints import (
    BufferConstraints,
    options_text,
    parse_options,
    Size,
)
from zc_perception.negotiation.settings import BufferSettings, HeapOffer, violations
from zc_perception.pixel.layout import ImageLayout, MAX_ALIGNMENT, MAX_DIMENSION

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


MEMORY_BITS = {BufferKind.DMABUF: MEMORY_DMABUF, BufferKind.MEMFD: MEMORY_MEMFD}
_U32 = 0xFFFFFFFF
_UNLIMITED = MAX_DIMENSION - 1
_ENOUGH = 1 << 16
# What constraints have and a HELLO says elsewhere, with its value where nothing is asked for.
_NO_OPTIONS = {'stride_align': 1, 'offset_align': 1, 'slots': 0, 'max_slots': None}


@dataclass(frozen=True)
class Requirements:
    """
    One consumer's constraints.

    They don't say how many frames it holds: the window in its HELLO does.

    :param formats: (fourcc, modifier) pairs that it can use; empty: any.
    :param memory: bits of the kinds of memory that it takes; a device's consumer takes dma-bufs
        only.
    :param stride_align: strides must be a multiple of this many bytes.
    :param offset_align: plane offsets must be a multiple of this many bytes.
    :param max_width: in pixels; 0: any.
    :param max_height: in pixels; 0: any.
    :param options: everything else, as parameter ``participants`` writes it: ``cpu=read;
        contiguous; heap=udmabuf``.
    :raises ConfigError: a value that can't be said in a HELLO, options that can't be understood,
        or constraints that nothing could satisfy.
    """

    formats: tuple[tuple[int, int], ...] = ()
    memory: int = MEMORY_DMABUF | MEMORY_MEMFD
    stride_align: int = 1
    offset_align: int = 1
    max_width: int = 0
    max_height: int = 0
    options: str = ''

    def __post_init__(self) -> None:
        if len(self.formats) > MAX_FORMATS:
            raise ConfigError(
                f'{len(self.formats)} formats: at most {MAX_FORMATS} can be named; leave them '
                'out to take any'
            )
        if not 1 <= self.memory <= MEMORY_DMABUF | MEMORY_MEMFD:
            raise ConfigError(
                f'memory {self.memory}: name dma-bufs ({MEMORY_DMABUF}), memfds '
                f'({MEMORY_MEMFD}), or both (3)'
            )
        for name, low in (
            ('stride_align', 1),
            ('offset_align', 1),
            ('max_width', 0),
            ('max_height', 0),
        ):
            if not low <= getattr(self, name) <= _U32:
                raise ConfigError(f'{name} {getattr(self, name)} is outside {low} .. {_U32}')
        size = len(self.options.encode(errors='replace'))
        if size > MAX_OPTIONS:
            raise ConfigError(
                f'the options have {size} bytes, at most {MAX_OPTIONS} can be said; name fewer '
                'heaps or devices'
            )
        try:
            _ = self._constraints
        except NegotiationError as error:
            raise ConfigError(str(error)) from None

    @classmethod
    def of(cls, constraints: BufferConstraints) -> Requirements:
        """
        Return what a HELLO says about *constraints*.

        :raises ConfigError: more than fits a HELLO, or no format at all: on the wire, no formats
            are any.
        """
        if constraints.formats == ():
            raise ConfigError(
                f"constraints of '{constraints.participant}' take no format; name at least "
                'one, or None for any'
            )
        width, height = constraints.max_size or (0, 0)
        rest = replace(
            constraints, stride_align=1, offset_align=1, max_size=None, slots=0, max_slots=None
        )
        return cls(
            constraints.formats or (),
            MEMORY_DMABUF if constraints.devices else MEMORY_DMABUF | MEMORY_MEMFD,
            constraints.stride_align,
            constraints.offset_align,
            width,
            height,
            options_text(rest),
        )

    @cached_property
    def _constraints(self) -> BufferConstraints:
        options = parse_options(self.options)
        for name, value in _NO_OPTIONS.items():
            if getattr(options, name) != value:
                raise ConfigError(
                    f"options '{self.options}': {name} is no option of a HELLO; leave it out"
                )
        # An alignment that no layout can have refuses every layout.
        found = replace(
            options,
            formats=self.formats or None,
            stride_align=min(self.stride_align, MAX_ALIGNMENT),
            offset_align=min(self.offset_align, MAX_ALIGNMENT),
            max_size=self._max_size(options.max_size),
        )
        if self.memory == MEMORY_DMABUF and not options.devices:
            return replace(found, devices=('its device',))
        if self.memory == MEMORY_MEMFD and options.heaps is None:
            return replace(found, heaps=('memfd',))
        return found

    def _max_size(self, option: Size | None) -> Size | None:
        """Return the limit by the fields and the option, which may both give one."""
        if option is None and not (self.max_width or self.max_height):
            return None
        width, height = option or (_UNLIMITED, _UNLIMITED)
        return min(self.max_width or width, width), min(self.max_height or height, height)

    def constraints(self, participant: str) -> BufferConstraints:
        """
        Return the constraints of the consumer called *participant*, for an agreement.

        This is the reverse of :meth:`of`.
        """
        return replace(self._constraints, participant=participant)

    @property
    def reads_with_cpu(self) -> bool:
        """Whether the consumer said that its CPU maps the buffers."""
        return self._constraints.uses_cpu

    def misfit(self, layout: ImageLayout, kind: BufferKind, heap: HeapOffer | None) -> str:
        """
        Say why a slot of that layout and kind can't be used; empty if it can.

        :param heap: where the buffers come from; ``None``: unknown, so that it can't be judged.
        """
        if not self.memory & MEMORY_BITS[kind]:
            return f'the buffers are {kind.value}s, which it does not take'
        constraints = self._constraints
        if heap is None:
            constraints = replace(constraints, heaps=None, contiguous=False, devices=())
        return '; '.join(violations(constraints, BufferSettings(layout, _ENOUGH, heap)))


ANYTHING = Requirements()
"""Any format in any memory."""
