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
The constraints of one participant: the buffers that it can use.

Constraints can be written as text. A parameter file can state a stand-in: the constraints of a
consumer that comes later. A consumer in another process sends a part of its constraints as text,
in its first message, HELLO. An example:
``NAME: NV12 NV12:0x0300000000000010; stride_align=256; heap=dma_heap/; slots=2; contiguous``

Source: Fuchsia's *Sysmem overview* (constraints, heaps, dispensable participants) and the kernel's
*Exchanging pixel buffers* (enumeration; formats and modifiers are described together).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
import math
import re
from typing import Any

from zc_perception.errors import ConfigError, FormatError, nearest, NegotiationError
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.pixel.format_names import parse_drm_format
from zc_perception.pixel.fourcc import fourcc_name, pixel_format
from zc_perception.pixel.layout import ImageLayout, MAX_ALIGNMENT, MAX_DIMENSION, MAX_STRIDE
from zc_perception.pixel.modifier import check_modifier, LINEAR, modifier_name, same_layout

Format = tuple[int, int]
"""
A format is always the pair (fourcc, modifier). The modifier INVALID stands for an implicit layout,
which only the driver knows.
"""
Size = tuple[int, int]
"""Width and height in pixels."""
NO_CPU = CpuAccess(0)
_SHOWN = 3


class Placement(Enum):
    """How an image's planes are distributed over memory buffers."""

    ONE_BUFFER = 'one buffer for all planes'
    BUFFER_PER_PLANE = 'one buffer for each plane'


def placement_of(layout: ImageLayout) -> Placement | None:
    """Return the layout's placement; ``None``: one plane, or only some planes share a buffer."""
    planes = len(layout.planes)
    if planes == 1:
        return None
    return {1: Placement.ONE_BUFFER, planes: Placement.BUFFER_PER_PLANE}.get(layout.num_buffers)


def format_text(fmt: Format) -> str:
    """Return a format as text, such as ``NV12 LINEAR``."""
    return f'{fourcc_name(fmt[0])} {modifier_name(fmt[1])}'


def formats_text(formats: Iterable[Format] | None) -> str:
    """Return the first few formats as text: ``NV12 LINEAR, YUYV LINEAR and 32 more``."""
    if formats is None:
        return 'any'
    names = list(map(format_text, formats))
    shown = names if len(names) <= _SHOWN + 1 else names[:_SHOWN]
    rest = f' and {len(names) - len(shown)} more' if len(shown) < len(names) else ''
    return f'{", ".join(shown)}{rest}' if names else 'none'


def size_text(size: Size) -> str:
    """Return a size as text, such as ``640x480``."""
    return f'{size[0]}x{size[1]}'


def fits_within(size: Size, limit: Size) -> bool:
    """Return whether both width and height of *size* are at most those of *limit*."""
    return size[0] <= limit[0] and size[1] <= limit[1]


@dataclass(frozen=True)
class BufferConstraints:
    """
    One participant's constraints; ``None`` means that there is no such constraint.

    :param participant: the participant's name, for logs and errors.
    :param formats: the (fourcc, modifier) pairs that the participant can use, the best first.
        INVALID in the list means that it also takes buffers without a stated modifier; INVALID
        alone means that it doesn't support modifiers. If a layout has two modifiers
        (:func:`~zc_perception.pixel.modifier.same_layout`), either one is accepted.
    :param costs: for each format, the cost of its use; lower is better. By default, a format's
        cost is its position in the list.
    :param stride_align: strides must be a multiple of this many bytes.
    :param offset_align: plane offsets must be a multiple of this many bytes.
    :param height_align: planes must have memory for the image's height rounded up to this many
        rows.
    :param max_stride: largest stride in bytes.
    :param min_size: smallest image, width and height.
    :param max_size: largest image.
    :param placement: whether all planes must be in one buffer, or each plane in its own.
    :param heaps: names of heaps whose buffers it can use, or prefixes ending in ``/``.
    :param format_heaps: for some of a producer's formats, the heaps that replace ``heaps``.
    :param contiguous: whether it needs physically contiguous memory.
    :param memory_note: a reason for messages: why memory must be contiguous, or why the camera
        offers no other heaps.
    :param cpu_access: how the participant's CPU code accesses the pixels: it reads, writes or does
        both. CPU access needs LINEAR and a heap that can be mapped.
    :param devices: the names of the devices that will attach to the buffers.
    :param slots: the number of slots that it holds at the same time. The pool needs the sum of all
        participants' slots.
    :param max_slots: the largest total number of slots that it can work with.
    :raises NegotiationError: the constraints can never be satisfied.
    """

    participant: str
    formats: tuple[Format, ...] | None = None
    stride_align: int = 1
    offset_align: int = 1
    heaps: tuple[str, ...] | None = None
    slots: int = 0
    costs: tuple[float, ...] | None = None
    height_align: int = 1
    max_stride: int | None = None
    min_size: Size | None = None
    max_size: Size | None = None
    placement: Placement | None = None
    contiguous: bool = False
    cpu_access: CpuAccess = NO_CPU
    devices: tuple[str, ...] = ()
    max_slots: int | None = None
    memory_note: str = ''
    format_heaps: tuple[tuple[Format, tuple[str, ...]], ...] = ()

    def __post_init__(self) -> None:
        self._check_formats()
        for name in ('stride_align', 'offset_align', 'height_align'):
            self._check_range(name, getattr(self, name), 1, MAX_ALIGNMENT)
        if self.max_stride is not None:
            self._check_range('max_stride', self.max_stride, 1, MAX_STRIDE)
        for name in ('min_size', 'max_size'):
            for value in getattr(self, name) or ():
                self._check_range(name, value, 1, MAX_DIMENSION - 1)
        low, high = self.min_size, self.max_size
        if low and high and not fits_within(low, high):
            self._refuse(f'min_size {size_text(low)} is above max_size {size_text(high)}')
        self._check_range('slots', self.slots, 0, 1 << 16)
        if self.max_slots is not None:
            self._check_range('max_slots', self.max_slots, 1, 1 << 16)
            if self.slots > self.max_slots:
                self._refuse(f'slots {self.slots} must be at most max_slots {self.max_slots}')

    def _refuse(self, problem: str) -> None:
        raise NegotiationError(f"constraints of '{self.participant}': {problem}")

    def _check_range(self, name: str, value: int, low: int, high: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self._refuse(f'{name} {value!r} is not an integer in {low} .. {high}')

    def _check_formats(self) -> None:
        for fmt in self.formats or ():
            try:
                check_modifier(fmt[1])
            except FormatError as error:
                self._refuse(f'{fourcc_name(fmt[0])}: {error}')
        if self.formats is not None and len(set(self.formats)) != len(self.formats):
            twice = next(fmt for fmt in self.formats if self.formats.count(fmt) > 1)
            self._refuse(f'{format_text(twice)} is listed twice; name each format once')
        if self.costs is not None:
            if len(self.costs) != len(self.formats or ()):
                self._refuse(
                    f'costs has {len(self.costs)} entries for {len(self.formats or ())} '
                    'formats; state one for each'
                )
            if not all(map(math.isfinite, self.costs)):
                self._refuse(
                    f'costs {self.costs} must be finite numbers; leave out formats that must not '
                    'be chosen'
                )

    @property
    def uses_cpu(self) -> bool:
        """Whether the CPU reads or writes pixels for this participant."""
        return bool(self.cpu_access)

    @property
    def wants_certain_memory(self) -> bool:
        """Whether the participant restricts which heaps can be used."""
        return self.heaps is not None or self.contiguous or bool(self.devices)

    def accepts_format(self, fmt: Format) -> bool:
        """
        Return whether the participant can use images of *fmt*.

        If it uses the CPU, it accepts only LINEAR, because the CPU code accesses pixels by rows.
        """
        if self.uses_cpu and fmt[1] != LINEAR:
            return False
        return self.formats is None or self.listed(fmt) is not None

    def listed(self, fmt: Format) -> Format | None:
        """Return the entry of ``formats`` with the same layout as *fmt*; ``None``: none has it."""
        numbers = ((fmt[0], modifier) for modifier in same_layout(fmt[1]))
        return next((one for one in numbers if one in (self.formats or ())), None)

    def format_cost(self, fmt: Format) -> float:
        """Return the cost of *fmt*, see ``costs``; 0 if ``formats`` doesn't list *fmt*."""
        own = self.listed(fmt)
        if self.formats is None or own is None:
            return 0.0
        place = self.formats.index(own)
        return float(place) if self.costs is None else float(self.costs[place])

    def for_format(self, fmt: Format | None) -> BufferConstraints:
        """Return the constraints with the ``heaps`` for *fmt*; if *fmt* is ``None``, unchanged."""
        heaps = None if fmt is None else dict(self.format_heaps).get(fmt)
        return (
            self if heaps is None else replace(self, heaps=heaps, format_heaps=(), memory_note='')
        )

    def size_problems(self, size: Size) -> Iterator[str]:
        """Yield a message for each reason why the participant can't use images of *size*."""
        if self.min_size is not None and not fits_within(self.min_size, size):
            yield (
                f'takes images of at least {size_text(self.min_size)}, not '
                f'{size_text(size)}; choose a larger size'
            )
        if self.max_size is not None and not fits_within(size, self.max_size):
            yield (
                f'takes images of at most {size_text(self.max_size)}, not '
                f'{size_text(size)}; choose a smaller size'
            )

    def accepts_heap(self, heap: str) -> bool:
        return self.heaps is None or any(
            heap == h or (h.endswith('/') and heap.startswith(h)) for h in self.heaps
        )


SYNTAX = 'NAME: FORMAT FORMAT:MODIFIER …; OPTION=VALUE; heap=HEAP | HEAP …; …'
_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_./-]*')
# A heap's name may have a comma after the slash, as in dma_heap/linux,cma.
_HEAP = re.compile(r'[^,/]+(/[^/]*)?')
_SIZE = re.compile(r'([0-9]{1,5})x([0-9]{1,5})')


# _option() puts the words "option '...' is '...'; it" before the messages of these functions.
def _number(text: str) -> int:
    if not re.fullmatch('[0-9]{1,10}', text):
        raise ValueError('must be a whole number')
    return int(text)


def _size(text: str) -> Size:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError('must be WIDTHxHEIGHT, such as 1920x1080')
    return int(match[1]), int(match[2])


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(','))
    if not all(names):
        raise ValueError('must be names with commas between them')
    return names


def _heaps(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split('|'))
    if not all(map(_HEAP.fullmatch, names)):
        raise ValueError(
            'must be names with | between them, such as dma_heap/linux,cma | dma_heap/system'
        )
    return names


_CPU = {
    'read': CpuAccess.READ,
    'write': CpuAccess.WRITE,
    'read_write': CpuAccess.READ | CpuAccess.WRITE,
}


def _cpu(text: str) -> CpuAccess:
    if text not in _CPU:
        raise ValueError(f'must be one of {", ".join(_CPU)}{nearest(text, _CPU)}')
    return _CPU[text]


def _cpu_text(access: CpuAccess) -> str:
    return next(word for word, meaning in _CPU.items() if meaning == access)


# For each option: the field of the constraints, and the functions that parse and format its value.
_OPTIONS: dict[str, tuple[str, Callable[[str], Any], Callable[[Any], str]]] = {
    **{
        name: (name, _number, str)
        for name in (
            'stride_align', 'offset_align', 'height_align', 'max_stride', 'slots', 'max_slots',
        )
    },
    **{name: (name, _size, size_text) for name in ('min_size', 'max_size')},
    'heap': ('heaps', _heaps, '|'.join),
    'device': ('devices', _names, ','.join),
    'cpu': ('cpu_access', _cpu, _cpu_text),
}  # fmt: skip
_DEFAULTS = {field.name: field.default for field in fields(BufferConstraints)}
_FLAGS: dict[str, tuple[str, Any]] = {
    'contiguous': ('contiguous', True),
    'one_buffer': ('placement', Placement.ONE_BUFFER),
    'buffer_per_plane': ('placement', Placement.BUFFER_PER_PLANE),
}


def _format(word: str) -> Format:
    """Parse GStreamer's ``drm-format``, whose modifier may also be the word ``INVALID``."""
    # A fourcc such as 'R8  ' ends with blanks. The caller split its text at blanks, so add them.
    name, colon, value = word.partition(':')
    fourcc, modifier = parse_drm_format(name.ljust(4) + colon + value, implicit=True)
    # Refuse a fourcc that this package doesn't know: none of its cameras can give such images, so
    # the fourcc is most likely a typing error.
    pixel_format(fourcc)
    return fourcc, modifier


def _option(part: str) -> tuple[str, Any]:
    key, equals, value = (word.strip() for word in part.partition('='))
    if key in _FLAGS:
        if equals:
            raise ValueError(f"option '{key}' takes no value; write it alone")
        return _FLAGS[key]
    if key not in _OPTIONS:
        known = [*_OPTIONS, *_FLAGS]
        raise ValueError(
            f"option '{key}' is unknown{nearest(key, known)}; known are {', '.join(known)}"
        )
    name, convert, _ = _OPTIONS[key]
    if not equals or not value:
        raise ValueError(f"option '{key}' needs a value: {key}=…")
    try:
        return name, convert(value)
    except ValueError as error:
        raise ValueError(f"option '{key}' is '{value}'; it {error}") from None


def _options(parts: Sequence[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for part in parts:
        if not part.strip():
            raise ValueError('there is an empty option; remove a semicolon')
        field, value = _option(part.strip())
        if field in fields:
            raise ValueError(f"'{part.strip()}' sets {field} a second time")
        fields[field] = value
    return fields


def parse_options(text: str) -> BufferConstraints:
    """
    Parse options that :func:`options_text` has formatted as text.

    The result has the ``participant`` 'consumer' and accepts any format.

    :raises ConfigError: an option isn't known, or the constraints can never be satisfied.
    """
    try:
        return BufferConstraints('consumer', **(_options(text.split(';')) if text else {}))
    except (ValueError, NegotiationError) as error:
        raise ConfigError(f"options '{text}': {error}") from None


def parse_stand_in(text: str) -> BufferConstraints:
    """
    Parse one entry of the parameter ``participants``, which has the form :data:`SYNTAX`.

    Formats are GStreamer's ``drm-format`` strings, or ``any``. A linear format has no modifier;
    ``NV12:INVALID`` is an implicit layout. Each option sets the field of
    :class:`BufferConstraints` that has the option's name, except ``heap`` (field ``heaps``),
    ``device`` (``devices``) and ``cpu`` (``cpu_access``). ``contiguous``, ``one_buffer`` and
    ``buffer_per_plane`` take no value; the last two set ``placement``.

    :raises ConfigError: the entry has another form, or the constraints can never be satisfied.
    """
    head, *parts = text.split(';')
    name, colon, words = (word.strip() for word in head.partition(':'))

    try:
        if not colon or not _NAME.fullmatch(name):
            raise ValueError(
                f'it must begin with a name (letters, digits, _ . / -), then a colon: {SYNTAX}'
            )
        if not words:
            raise ValueError(f"{name} has no format; write drm-formats such as NV12, or 'any'")
        formats = None if words == 'any' else tuple(_format(word) for word in words.split())
        return BufferConstraints(name, formats=formats, **_options(parts))
    except (ValueError, FormatError, NegotiationError) as error:
        raise ConfigError(f"parameter 'participants': '{text}': {error}") from None


def parse_stand_ins(entries: Sequence[str]) -> list[BufferConstraints]:
    """
    Parse all entries of the parameter ``participants``; empty entries are ignored.

    :raises ConfigError: as :func:`parse_stand_in`, or if two entries have the same name.
    """
    found: dict[str, BufferConstraints] = {}
    for entry in filter(None, (entry.strip() for entry in entries)):
        constraints = parse_stand_in(entry)
        if constraints.participant in found:
            raise ConfigError(
                f"parameter 'participants': '{constraints.participant}' is listed twice; "
                'give each entry its own name'
            )
        found[constraints.participant] = constraints
    return list(found.values())


def options_text(constraints: BufferConstraints) -> str:
    """Return the options of *constraints* as text for :func:`parse_options`; may be empty."""
    found = [
        f'{key}={write(getattr(constraints, field))}'
        for key, (field, _, write) in _OPTIONS.items()
        if getattr(constraints, field) != _DEFAULTS[field]
    ]
    found += [
        key for key, (field, value) in _FLAGS.items() if getattr(constraints, field) == value
    ]
    return '; '.join(found)
