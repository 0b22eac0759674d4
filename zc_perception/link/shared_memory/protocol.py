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

"""The constants and the errors of the protocol in docs/wire.md, and a consumer's requirements."""

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
    """The values of field ``type`` in a packet's header."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    BUFFERS = 4
    FRAME = 5
    RELEASE = 6
    BUFFER_RETIRED = 7
    NOTED = 8


class RefusalCode(IntEnum):
    """The values of field ``code`` in a REFUSED."""

    VERSION = 1
    NOT_ALLOWED = 2
    CONSTRAINTS = 3
    BUSY = 4
    PROTOCOL = 5
    OTHER_PUBLISHER = 6


class ProtocolError(ZcError):
    """
    The peer broke a rule of docs/wire.md, so the connection is closed.

    :param reason: one word for the kind of error; diagnostics count the errors of each kind.
    :param code: the code of the REFUSED that a producer sends before it closes the connection.
    """

    def __init__(self, reason: str, text: str, code: RefusalCode = RefusalCode.PROTOCOL) -> None:
        super().__init__(text)
        self.reason = reason
        self.code = code


class MisfitError(ZcError):
    """This consumer can't use the buffers: they break its constraints, or their import failed."""


class RefusedError(ZcError):
    """
    The producer sent REFUSED; the error's text is the text in REFUSED.

    :param code: the code in REFUSED; PROTOCOL if this version doesn't define the number.
    """

    def __init__(self, code: RefusalCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class PeerGoneError(ZcError):
    """No process listens at the socket, or the other end closed the connection."""


class SilentError(PeerGoneError):
    """A process listens at the socket but doesn't answer."""


MEMORY_BITS = {BufferKind.DMABUF: MEMORY_DMABUF, BufferKind.MEMFD: MEMORY_MEMFD}
_U32 = 0xFFFFFFFF
_UNLIMITED = MAX_DIMENSION - 1
_ENOUGH = 1 << 16
# A HELLO has fields of its own for these constraints. Its options must leave them at these
# neutral values, so that no constraint is given twice.
_NO_OPTIONS = {'stride_align': 1, 'offset_align': 1, 'slots': 0, 'max_slots': None}


@dataclass(frozen=True)
class Requirements:
    """
    One consumer's constraints on buffers, in the form in which HELLO sends them.

    The number of frames that the consumer may hold is not among them: HELLO has field ``window``
    for it.

    :param formats: (fourcc, modifier) pairs that the consumer can use; empty: any.
    :param memory: the kinds of memory that the consumer can use, as the sum of ``MEMORY_DMABUF``
        and ``MEMORY_MEMFD``. If a device reads the frames, only dma-bufs are possible.
    :param stride_align: strides must be a multiple of this many bytes.
    :param offset_align: plane offsets must be a multiple of this many bytes.
    :param max_width: largest width in pixels; 0: any.
    :param max_height: largest height in pixels; 0: any.
    :param options: all other constraints, written as in parameter ``participants``: ``cpu=read;
        contiguous; heap=udmabuf``.
    :raises ConfigError: a value that doesn't fit a HELLO, options that can't be understood, or
        constraints that no buffer can satisfy.
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
                f'{len(self.formats)} formats: at most {MAX_FORMATS} can be named; name '
                'none to take any format'
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
                f'the options have {size} bytes, at most {MAX_OPTIONS} can be sent; name fewer '
                'heaps or devices'
            )
        try:
            _ = self._constraints
        except NegotiationError as error:
            raise ConfigError(str(error)) from None

    @classmethod
    def of(cls, constraints: BufferConstraints) -> Requirements:
        """
        Return *constraints* as requirements for a HELLO.

        :raises ConfigError: the constraints don't fit a HELLO, or their list of formats is empty.
            In a HELLO, an empty list means any format.
        """
        if constraints.formats == ():
            raise ConfigError(
                f"constraints of '{constraints.participant}' take no format; name at least "
                'one format, or set formats to None for any format'
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
        # Limit the alignments, because BufferConstraints accepts at most MAX_ALIGNMENT. A
        # stride or offset that violates a larger alignment violates the limited one, too: apart
        # from offset 0, no real stride or offset is a multiple of MAX_ALIGNMENT.
        found = replace(
            options,
            formats=self.formats or None,
            stride_align=min(self.stride_align, MAX_ALIGNMENT),
            offset_align=min(self.offset_align, MAX_ALIGNMENT),
            max_size=self._max_size(options.max_size),
        )
        if self.memory == MEMORY_DMABUF and not options.devices:
            return replace(found, devices=('the device',))
        if self.memory == MEMORY_MEMFD and options.heaps is None:
            return replace(found, heaps=('memfd',))
        return found

    def _max_size(self, option: Size | None) -> Size | None:
        """Return *option*, limited to max_width and max_height; ``None``: any size."""
        if option is None and not (self.max_width or self.max_height):
            return None
        width, height = option or (_UNLIMITED, _UNLIMITED)
        return min(self.max_width or width, width), min(self.max_height or height, height)

    def constraints(self, participant: str) -> BufferConstraints:
        """
        Return these requirements as constraints named *participant*, for negotiating buffers.

        This is the reverse of :meth:`of`.
        """
        return replace(self._constraints, participant=participant)

    @property
    def reads_with_cpu(self) -> bool:
        """Whether the consumer said that it maps the buffers with the CPU."""
        return self._constraints.uses_cpu

    def misfit(self, layout: ImageLayout, kind: BufferKind, heap: HeapOffer | None) -> str:
        """
        Return why the consumer can't use slots of this layout and kind; empty if it can.

        :param heap: the heap of the buffers. If it is ``None``, the heap is unknown, and
            constraints on heaps and devices aren't checked.
        """
        if not self.memory & MEMORY_BITS[kind]:
            return f'the buffers are {kind.value}s, which the consumer does not take'
        constraints = self._constraints
        if heap is None:
            constraints = replace(constraints, heaps=None, contiguous=False, devices=())
        return '; '.join(violations(constraints, BufferSettings(layout, _ENOUGH, heap)))


ANYTHING = Requirements()
"""The requirements of a consumer that accepts any format in any memory."""
