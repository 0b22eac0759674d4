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
Pack and parse the messages of docs/wire.md.

A parser can be called with any bytes. If they aren't a valid message of the parser's type, it
raises ProtocolError, and never another error. The functions for FRAME and RELEASE run for every
frame, so they read from a buffer that is reused for each packet.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from zc_perception.errors import ConfigError, printable, shown
from zc_perception.link.shared_memory.protocol import (
    ANYTHING,
    FLAG_FENCE,
    FLAG_HISTORY,
    FLAG_WAITS,
    MAGIC,
    MAX_DEPTH,
    MAX_FDS,
    MAX_FORMATS,
    MAX_FRAME_ID,
    MAX_ID,
    MAX_OPTIONS,
    MAX_WINDOW,
    MEMORY_DMABUF,
    MEMORY_MEMFD,
    MessageType,
    ProtocolError,
    RefusalCode,
    Requirements,
    VERSION,
)
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, Transfer
from zc_perception.pixel.layout import ImageLayout, PlaneLayout

HEADER = struct.Struct('<HHI')
HELLO = struct.Struct('<HHIIHHIIIIIIIIII32s40s')
_HELLO_BEGIN = struct.Struct('<HHIIHH')
FORMAT = struct.Struct('<IIQ')
WELCOME = struct.Struct('<HHIHHIIIQ32s')
REFUSED = struct.Struct('<HHII')
BUFFERS = struct.Struct('<HHIQIIIIQIIBBBBIQ' + 'IIQQ' * MAX_FDS + 'Q' * MAX_FDS)
FRAME = struct.Struct('<HHIQQQqqqQII')
RELEASE = struct.Struct('<HHIQQII')
RETIRED = struct.Struct('<HHIQ')
MAX_REFUSED = 512
MAX_NOTED = 512
MAX_FRAME = FRAME.size + MAX_FRAME_ID

_SIZES = {
    MessageType.HELLO: (HELLO.size, HELLO.size + MAX_FORMATS * FORMAT.size + MAX_OPTIONS),
    MessageType.WELCOME: (WELCOME.size, WELCOME.size),
    MessageType.REFUSED: (REFUSED.size, MAX_REFUSED),
    MessageType.BUFFERS: (BUFFERS.size, BUFFERS.size),
    MessageType.FRAME: (FRAME.size, MAX_FRAME),
    MessageType.RELEASE: (RELEASE.size, RELEASE.size),
    MessageType.BUFFER_RETIRED: (RETIRED.size, RETIRED.size),
    MessageType.NOTED: (HEADER.size, MAX_NOTED),
}
_KINDS = {1: BufferKind.DMABUF, 2: BufferKind.MEMFD}
_MATRICES = {1: Matrix.BT601, 2: Matrix.BT709, 3: Matrix.BT2020, 4: Matrix.RGB}
_RANGES = {1: Range.LIMITED, 2: Range.FULL}
_TRANSFERS = {1: Transfer.BT709, 2: Transfer.SRGB, 3: Transfer.PQ}
_KIND_CODES = {value: code for code, value in _KINDS.items()}
_MATRIX_CODES = {value: code for code, value in _MATRICES.items()}
_RANGE_CODES = {value: code for code, value in _RANGES.items()}
_TRANSFER_CODES = {value: code for code, value in _TRANSFERS.items()}
_REFUSAL_CODES = frozenset(map(int, RefusalCode))
_FRAME_TYPE, _RELEASE_TYPE = int(MessageType.FRAME), int(MessageType.RELEASE)

Packet = bytes | bytearray | memoryview


class Hello(NamedTuple):
    """
    A consumer's request; the fields are those of HELLO in docs/wire.md.

    :param waits: whether the consumer understands NOTED, and waits until there are buffers.
    """

    window: int
    depth: int
    name: str = ''
    publisher_id: str = ''
    history: bool = False
    requirements: Requirements = ANYTHING
    min_version: int = VERSION
    max_version: int = VERSION
    waits: bool = False


class Welcome(NamedTuple):
    """A producer's answer to HELLO; the fields are those of WELCOME in docs/wire.md."""

    window: int
    depth: int
    publisher_id: str
    version: int = VERSION


class Refused(NamedTuple):
    """Why a producer refuses a consumer, or why a consumer can't use the buffers."""

    code: RefusalCode
    text: str


class BuffersMessage(NamedTuple):
    """A BUFFERS message: the description of a slot's buffers, without their file descriptors."""

    uid: int
    layout: ImageLayout
    colorimetry: Colorimetry
    kind: BufferKind
    sizes: tuple[int, ...]


class ReleaseMessage(NamedTuple):
    """A RELEASE: the frame that the consumer gives back, and whether the message has a fence."""

    uid: int
    generation: int
    fence: bool


def _require(good: bool, reason: str, text: str) -> None:
    if not good:
        raise ProtocolError(reason, text)


def _require_window(window: int, depth: int, what: str) -> None:
    good = 1 <= window <= MAX_WINDOW and 1 <= depth <= MAX_DEPTH
    _require(
        good,
        'value',
        f'{what}: window {window} must be 1 .. {MAX_WINDOW} and depth {depth} 1 .. {MAX_DEPTH}',
    )


def message_type(packet: Packet) -> MessageType:
    """Return the type of a whole packet, after checking its header and its length."""
    size = len(packet)
    _require(size >= HEADER.size, 'length', f'a packet of {size} bytes has no header')
    kind, length, zero = HEADER.unpack_from(packet)
    _require(length == size, 'length', f'the header says {length} bytes, {size} came')
    _require(kind in _SIZES, 'type', f'message type {kind} is unknown')
    low, high = _SIZES[MessageType(kind)]
    _require(
        low <= size <= high,
        'length',
        f'{MessageType(kind).name} has {size} bytes, not {low} .. {high}',
    )
    _require(zero == 0, 'reserved', f'{MessageType(kind).name}: a reserved field is {zero}, not 0')
    return MessageType(kind)


def _expect(packet: Packet, expected: MessageType) -> None:
    kind = message_type(packet)
    _require(kind is expected, 'state', f'{kind.name} came, but only {expected.name} may come')


def _text_after(layout: struct.Struct, packet: Packet) -> str:
    start = layout.size
    return bytes(packet[start:]).decode(errors='replace')


def _parse_text(raw: bytes, what: str) -> str:
    text = raw.rstrip(b'\0')
    _require(b'\0' not in text, 'reserved', f'{what} has bytes after the zero byte that ends it')
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise ProtocolError('text', f'{what} is not UTF-8') from None


def _is_identifier(raw: bytes) -> bool:
    return 1 <= len(raw) <= MAX_ID and all(0x20 <= byte <= 0x7E for byte in raw)


def check_publisher_id(publisher_id: str) -> bytes:
    """
    Return *publisher_id* as bytes for HELLO.

    :raises ConfigError: *publisher_id* isn't 1 to 32 printable ASCII characters.
    """
    raw = publisher_id.encode(errors='replace')
    if not publisher_id.isascii() or not _is_identifier(raw):
        raise ConfigError(
            f'publisher_id {publisher_id!r} is not 1 to {MAX_ID} printable ASCII characters; '
            "use the publisher_id of the publisher's announcement"
        )
    return raw


def frame_id_bytes(frame_id: object, name: str = 'frame_id') -> bytes:
    """
    Return a frame_id as bytes for a FRAME message.

    :param name: the parameter's name, for the text of the error.
    :raises ConfigError: *frame_id* isn't text, has a character that a ROS message can't contain,
        or is too long for the message.
    """
    if not isinstance(frame_id, str):
        raise ConfigError(f'{name} is {shown(frame_id)}; it must be text')
    try:
        raw = frame_id.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f'{name} is {shown(frame_id)}; it cannot be encoded as UTF-8; remove its character '
            f'{shown(frame_id[error.start])}'
        ) from error
    if b'\0' in raw:
        raise ConfigError(
            f'{name} is {shown(frame_id)}; remove the character \\0: '
            'a ROS message would contain only the text before this character'
        )
    if len(raw) > MAX_FRAME_ID:
        raise ConfigError(
            f'{name} has {len(raw)} bytes; at most {MAX_FRAME_ID} can be sent to other processes: '
            f'{shown(frame_id)}'
        )
    return raw


def _parse_id(raw: bytes, what: str) -> str:
    text = raw.rstrip(b'\0')
    _require(
        _is_identifier(text),
        'publisher_id',
        f'{what}: publisher_id {text!r} is not 1 to {MAX_ID} printable ASCII characters',
    )
    return text.decode('ascii')


def cut_text(text: str, size: int) -> bytes:
    """Return *text* as UTF-8, cut after a whole character to at most *size* bytes."""
    return text.encode(errors='replace')[:size].decode(errors='ignore').encode()


def pack_hello(hello: Hello) -> bytes:
    """
    Return *hello* as a packet.

    :raises ConfigError: a value doesn't fit the message.
    """
    need = hello.requirements
    if not 1 <= hello.window <= MAX_WINDOW or not 1 <= hello.depth <= MAX_DEPTH:
        raise ConfigError(
            f'window {hello.window} and depth {hello.depth} must both be 1 .. {MAX_WINDOW}'
        )
    options = need.options.encode()
    length = HELLO.size + FORMAT.size * len(need.formats) + len(options)
    return (
        HELLO.pack(
            MessageType.HELLO,
            length,
            0,
            MAGIC,
            hello.min_version,
            hello.max_version,
            hello.window,
            hello.depth,
            FLAG_HISTORY * hello.history | FLAG_WAITS * hello.waits,
            need.memory,
            need.stride_align,
            need.offset_align,
            need.max_width,
            need.max_height,
            len(need.formats),
            len(options),
            check_publisher_id(hello.publisher_id) if hello.publisher_id else b'',
            cut_text(hello.name, 40),
        )
        + b''.join(FORMAT.pack(code, 0, modifier) for code, modifier in need.formats)
        + options
    )


def parse_hello(packet: Packet) -> Hello:
    """
    Return the HELLO in *packet*; raise ProtocolError if the packet is wrong.

    If the consumer speaks only other versions than this producer, the error has code VERSION.
    """
    # First check the fields that all versions share. So a consumer of a later version is refused
    # for its version, not for other fields.
    _require(
        len(packet) >= _HELLO_BEGIN.size, 'length', f'a packet of {len(packet)} bytes is no HELLO'
    )
    kind, length, _, magic, low, high = _HELLO_BEGIN.unpack_from(packet)
    _require(kind == MessageType.HELLO, 'state', f'message type {kind} came, not HELLO')
    _require(
        length == len(packet), 'length', f'the header says {length} bytes, {len(packet)} came'
    )
    _require(magic == MAGIC, 'magic', f'HELLO: magic 0x{magic:08x}, not 0x{MAGIC:08x}')
    _require(
        low <= high, 'value', f'HELLO: versions {low} .. {high}; the lowest is above the highest'
    )
    if not low <= VERSION <= high:
        text = (
            f'the consumer speaks versions {low} .. {high}, but this producer speaks versions '
            f'{VERSION} .. {VERSION}'
        )
        raise ProtocolError('version', text, RefusalCode.VERSION)
    _expect(packet, MessageType.HELLO)
    (
        _,
        _,
        _,
        _,
        _,
        _,
        window,
        depth,
        flags,
        memory,
        stride_align,
        offset_align,
        max_width,
        max_height,
        count,
        options_size,
        publisher_id,
        name,
    ) = HELLO.unpack_from(packet)
    _require_window(window, depth, 'HELLO')
    _require(
        flags & ~(FLAG_HISTORY | FLAG_WAITS) == 0
        and memory & ~(MEMORY_DMABUF | MEMORY_MEMFD) == 0,
        'reserved',
        'HELLO: unknown bits in field flags or memory',
    )
    _require(memory != 0, 'value', 'HELLO: the consumer takes no kind of memory')
    _require(stride_align >= 1 and offset_align >= 1, 'value', 'HELLO: an alignment is 0')
    options_at = HELLO.size + count * FORMAT.size
    good = (
        count <= MAX_FORMATS
        and options_size <= MAX_OPTIONS
        and len(packet) == options_at + options_size
    )
    _require(
        good,
        'length',
        f'HELLO of {len(packet)} bytes says {count} formats and {options_size} bytes of options, '
        'which does not match its size',
    )
    formats = []
    for index in range(count):
        code, zero, modifier = FORMAT.unpack_from(packet, HELLO.size + index * FORMAT.size)
        _require(
            zero == 0, 'reserved', f'HELLO: a reserved field of format {index} is {zero}, not 0'
        )
        formats.append((code, modifier))
    options = _parse_text(bytes(packet[options_at:]), 'options')
    try:
        needs = Requirements(
            tuple(formats), memory, stride_align, offset_align, max_width, max_height, options
        )
    except ConfigError as error:
        raise ProtocolError(
            'constraints',
            f"this producer can't read the constraints: {error}",
            RefusalCode.CONSTRAINTS,
        ) from None
    wanted = _parse_id(publisher_id, 'HELLO') if any(publisher_id) else ''
    return Hello(
        window,
        depth,
        printable(_parse_text(name, 'name')),
        wanted,
        bool(flags & FLAG_HISTORY),
        needs,
        low,
        high,
        bool(flags & FLAG_WAITS),
    )


def pack_welcome(welcome: Welcome) -> bytes:
    """Return *welcome* as a packet; raise ConfigError if its ``publisher_id`` isn't valid."""
    return WELCOME.pack(
        MessageType.WELCOME,
        WELCOME.size,
        0,
        welcome.version,
        0,
        welcome.window,
        welcome.depth,
        0,
        0,
        check_publisher_id(welcome.publisher_id),
    )


def parse_welcome(packet: Packet) -> Welcome:
    """Return the WELCOME in *packet*."""
    _expect(packet, MessageType.WELCOME)
    _, _, _, version, zero1, window, depth, zero2, zero3, publisher_id = WELCOME.unpack_from(
        packet
    )
    _require(zero1 == zero2 == zero3 == 0, 'reserved', 'WELCOME: a reserved field is not 0')
    _require_window(window, depth, 'WELCOME')
    return Welcome(window, depth, _parse_id(publisher_id, 'WELCOME'), version)


def pack_refused(refused: Refused) -> bytes:
    """Return *refused* as a packet; a text that is too long is cut."""
    text = cut_text(refused.text, MAX_REFUSED - REFUSED.size)
    return REFUSED.pack(MessageType.REFUSED, REFUSED.size + len(text), 0, refused.code) + text


def parse_refused(packet: Packet) -> Refused:
    """Return the REFUSED in *packet*; an unknown code becomes PROTOCOL."""
    _expect(packet, MessageType.REFUSED)
    text = _text_after(REFUSED, packet)
    code = REFUSED.unpack_from(packet)[3]
    known = RefusalCode(code) if code in _REFUSAL_CODES else RefusalCode.PROTOCOL
    return Refused(known, printable(text))


def pack_noted(text: str) -> bytes:
    """Return a NOTED as a packet; a text that is too long is cut."""
    raw = cut_text(text, MAX_NOTED - HEADER.size)
    return HEADER.pack(MessageType.NOTED, HEADER.size + len(raw), 0) + raw


def parse_noted(packet: Packet) -> str:
    """Return the text of a NOTED: why the consumer must wait."""
    _expect(packet, MessageType.NOTED)
    return printable(_text_after(HEADER, packet))


def pack_buffers(message: BuffersMessage) -> bytes:
    """Return *message* as a packet, without its descriptors."""
    layout, colorimetry = message.layout, message.colorimetry
    planes = [
        number
        for plane in layout.planes
        for number in (plane.buffer, plane.stride, plane.offset, plane.size)
    ]
    return BUFFERS.pack(
        MessageType.BUFFERS,
        BUFFERS.size,
        0,
        message.uid,
        layout.width,
        layout.height,
        layout.fourcc,
        len(layout.planes),
        layout.modifier,
        len(message.sizes),
        _KIND_CODES[message.kind],
        _MATRIX_CODES[colorimetry.matrix],
        _RANGE_CODES[colorimetry.range],
        _TRANSFER_CODES[colorimetry.transfer],
        0,
        0,
        0,
        *planes,
        *[0] * (4 * (MAX_FDS - len(layout.planes))),
        *message.sizes,
        *[0] * (MAX_FDS - len(message.sizes)),
    )


def parse_buffers(packet: Packet) -> BuffersMessage:
    """
    Return the BUFFERS in *packet*.

    Only ranges and reserved fields are checked. The caller must check with validate_layout() that
    the planes fit into the buffers.
    """
    _expect(packet, MessageType.BUFFERS)
    fields = BUFFERS.unpack_from(packet)
    (
        uid,
        width,
        height,
        fourcc,
        num_planes,
        modifier,
        num_buffers,
        kind,
        matrix,
        range_,
        transfer,
        zero1,
        zero2,
        zero3,
    ) = fields[3:17]
    _require(zero1 == zero2 == zero3 == 0, 'reserved', 'BUFFERS: a reserved field is not 0')
    _require(
        1 <= num_planes <= MAX_FDS and 1 <= num_buffers <= MAX_FDS,
        'value',
        f'BUFFERS: {num_planes} planes in {num_buffers} buffers; one number is out of range',
    )
    _require(kind in _KINDS, 'value', f'BUFFERS: kind of memory {kind} is unknown')
    good = matrix in _MATRICES and range_ in _RANGES and transfer in _TRANSFERS
    _require(good, 'value', f'BUFFERS: colorimetry {matrix}, {range_}, {transfer} is unknown')
    planes = [fields[slice(17 + 4 * i, 21 + 4 * i)] for i in range(MAX_FDS)]
    sizes = fields[slice(17 + 4 * MAX_FDS, None)]
    _require(
        not any(any(p) for p in planes[num_planes:]) and not any(sizes[num_buffers:]),
        'reserved',
        'BUFFERS: an unused entry is not 0',
    )
    _require(
        all(p[0] < num_buffers for p in planes[:num_planes]),
        'value',
        f'BUFFERS: a plane lies outside buffers 0 .. {num_buffers - 1}',
    )
    layout = ImageLayout(
        width,
        height,
        fourcc,
        modifier,
        tuple(
            PlaneLayout(b, offset, stride, size) for b, stride, offset, size in planes[:num_planes]
        ),
    )
    return BuffersMessage(
        uid,
        layout,
        Colorimetry(_MATRICES[matrix], _RANGES[range_], _TRANSFERS[transfer]),
        _KINDS[kind],
        tuple(sizes[:num_buffers]),
    )


def parse_frame(buffer: Packet, size: int) -> tuple[int, ...]:
    """
    Return the fields of the FRAME at the start of *buffer*, from ``type`` to ``flags``.

    The message has *size* bytes. After these fields comes its frame_id, which isn't returned.
    """
    if FRAME.size <= size <= MAX_FRAME:
        fields = FRAME.unpack_from(buffer)
        if (
            fields[0] == _FRAME_TYPE
            and fields[1] == size
            and not fields[2]
            and fields[11] <= FLAG_FENCE
        ):
            return fields
    _expect(memoryview(buffer)[:size], MessageType.FRAME)
    raise ProtocolError('reserved', 'FRAME: unknown flags')


def plain_release(buffer: Packet, size: int) -> tuple[int, int] | None:
    """
    Return uid and generation if the first *size* bytes of *buffer* are a RELEASE without a fence.

    Return ``None`` for any other message. Nearly all messages from consumers are such RELEASEs,
    and this function handles them quickly.
    """
    if size != RELEASE.size:
        return None
    kind, length, zero, uid, generation, flags, zero2 = RELEASE.unpack_from(buffer)
    return (
        None
        if kind != _RELEASE_TYPE or length != size or zero or flags or zero2
        else (uid, generation)
    )


def parse_release(buffer: Packet, size: int) -> ReleaseMessage:
    """Return the RELEASE in the first *size* bytes of *buffer*."""
    if size == RELEASE.size:
        kind, length, zero, uid, generation, flags, zero2 = RELEASE.unpack_from(buffer)
        if (
            kind == _RELEASE_TYPE
            and length == size
            and not zero
            and not zero2
            and flags <= FLAG_FENCE
        ):
            return ReleaseMessage(uid, generation, flags == FLAG_FENCE)
    _expect(memoryview(buffer)[:size], MessageType.RELEASE)
    raise ProtocolError('reserved', 'RELEASE: unknown flags, or a reserved field is not 0')


def pack_release(uid: int, generation: int, fence: bool) -> bytes:
    """Return a RELEASE as a packet."""
    return RELEASE.pack(_RELEASE_TYPE, RELEASE.size, 0, uid, generation, fence, 0)


def pack_retired(uid: int) -> bytes:
    """Return a BUFFER_RETIRED as a packet."""
    return RETIRED.pack(MessageType.BUFFER_RETIRED, RETIRED.size, 0, uid)


def parse_retired(packet: Packet) -> int:
    """Return the slot's uid in a BUFFER_RETIRED."""
    _expect(packet, MessageType.BUFFER_RETIRED)
    return int(RETIRED.unpack_from(packet)[3])
