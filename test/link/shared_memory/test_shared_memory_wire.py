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
The code of docs/wire.md: packed messages parse again, and no input breaks the parser.

The last tests mutate packets in both directions; the producer's go to both forms of the receiver.
Their long form takes half a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
import os
from pathlib import Path
import random
import re
import socket
import struct
import time
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import LONG
from memory_link import (
    connected,
    FrameMessage,
    make_frame,
    make_pool,
    mutate,
    pack_frame,
    PUBLISHER,
    RawPeer,
)
import pytest
from two_receivers import compare, send_all
from waiting import until

from zc_perception.errors import ConfigError, printable
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import (
    MAX_OPTIONS,
    MAX_PACKET,
    MessageType,
    ProtocolError,
    RefusalCode,
    Requirements,
)
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.dmabuf import BufferKind, CpuAccess
from zc_perception.memory.pool import SlotState
from zc_perception.native import compiled
from zc_perception.negotiation.constraints import (
    BufferConstraints,
    options_text,
    parse_options,
    Placement,
)
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, Transfer
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import ImageLayout, PlaneLayout

PAGE = Path(__file__).resolve().parents[3] / 'docs/wire.md'
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
S64 = st.integers(-(2**63), 2**63 - 1)
ABOVE_0 = st.integers(1, 2**32 - 1)
HEAP = st.sampled_from(
    ['dma_heap/system', 'dma_heap/linux,cma', 'dma_heap/', 'udmabuf', 'memfd', 'v4l2/uvcvideo']
)
TEXT = st.text(st.characters(exclude_characters='\0', exclude_categories=['Cs']), max_size=10)
CONSTRAINTS = st.builds(
    BufferConstraints,
    st.just('consumer'),
    height_align=st.integers(1, 4096),
    max_stride=st.none() | ABOVE_0,
    min_size=st.none() | st.tuples(st.integers(1, 65535), st.integers(1, 65535)),
    heaps=st.none() | st.lists(HEAP, min_size=1, max_size=8, unique=True).map(tuple),
    contiguous=st.booleans(),
    devices=st.lists(
        st.from_regex(r'/dev/[a-z]{1,8}[0-9:-]{0,8}', fullmatch=True), max_size=4
    ).map(tuple),
    cpu_access=st.sampled_from(
        [CpuAccess(0), CpuAccess.READ, CpuAccess.WRITE, CpuAccess.READ | CpuAccess.WRITE]
    ),
    placement=st.none() | st.sampled_from(Placement),
)


def requirements(*values: Any) -> Requirements | None:
    with suppress(ConfigError):  # the smallest size may exceed the largest
        return Requirements(*values)
    return None


REQUIREMENTS = st.builds(
    requirements,
    st.lists(st.tuples(U32, U64), max_size=8, unique=True).map(tuple),
    st.integers(1, 3),
    ABOVE_0,
    ABOVE_0,
    U32,
    U32,
    CONSTRAINTS.map(options_text),
).filter(bool)
ID = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=32)
COUNT, YES = st.integers(1, 64), st.booleans()
LOWEST, HIGHEST = st.integers(0, 1), st.integers(1, 9)
HELLO = st.builds(
    wire.Hello, COUNT, COUNT, TEXT, st.just('') | ID, YES, REQUIREMENTS, LOWEST, HIGHEST, YES
)
WELCOME = st.builds(wire.Welcome, COUNT, COUNT, ID, st.integers(0, 65535))
FRAME = st.builds(FrameMessage, U64, U64, U64, S64, S64, S64, U64, U32, st.booleans())


@st.composite
def buffers_messages(draw: st.DrawFn) -> wire.BuffersMessage:
    sizes = tuple(draw(st.lists(U64, min_size=1, max_size=4)))
    plane = st.builds(PlaneLayout, st.integers(0, len(sizes) - 1), U64, U32, U64)
    planes = tuple(draw(st.lists(plane, min_size=1, max_size=4)))
    layout = ImageLayout(draw(U32), draw(U32), draw(U32), draw(U64), planes)
    colorimetry = Colorimetry(*(draw(st.sampled_from(k)) for k in (Matrix, Range, Transfer)))
    kind = draw(st.sampled_from(BufferKind))
    return wire.BuffersMessage(draw(U64), layout, colorimetry, kind, sizes)


BUFFERS = buffers_messages()
A_HELLO = wire.pack_hello(wire.Hello(1, 1, 'a', 'b', requirements=Requirements(((1, 2), (3, 4)))))
A_LAYOUT = ImageLayout(64, 48, 1, 0, (PlaneLayout(0, 0, 64, 3072),))
A_BUFFERS = wire.BuffersMessage(
    1, A_LAYOUT, Colorimetry(Matrix.BT601, Range.LIMITED), BufferKind.MEMFD, (4096,)
)
PACKETS = {
    'HELLO': A_HELLO,
    'WELCOME': wire.pack_welcome(wire.Welcome(1, 1, 'b')),
    'BUFFERS': wire.pack_buffers(A_BUFFERS),
    'FRAME': pack_frame(FrameMessage(1, 2, 3, 4, 5, 6, 7, 8, False), b'camera'),
    'RELEASE': wire.pack_release(1, 2, False),
    'BUFFER_RETIRED': wire.pack_retired(1),
    'NOTED': wire.pack_noted(''),
}
PARSERS: dict[str, Callable[[bytes], Any]] = {
    'HELLO': wire.parse_hello,
    'WELCOME': wire.parse_welcome,
    'REFUSED': wire.parse_refused,
    'BUFFERS': wire.parse_buffers,
    'FRAME': lambda packet: wire.parse_frame(packet, len(packet)),
    'RELEASE': lambda packet: wire.parse_release(packet, len(packet)),
    'BUFFER_RETIRED': wire.parse_retired,
    'NOTED': wire.parse_noted,
}


@settings(max_examples=40)
@given(HELLO)
def test_hello_comes_back(hello: wire.Hello) -> None:
    assert wire.parse_hello(wire.pack_hello(hello)) == hello._replace(name=printable(hello.name))


@given(CONSTRAINTS)
def test_options_say_every_constraint_that_has_no_field(constraints: BufferConstraints) -> None:
    assert parse_options(options_text(constraints)) == constraints
    needs = wire.parse_hello(
        wire.pack_hello(wire.Hello(1, 1, requirements=Requirements.of(constraints)))
    ).requirements
    assert parse_options(needs.options) == constraints and needs.memory == (
        1 if constraints.devices else 3
    )
    back = needs.constraints('consumer')
    assert (back.heaps, back.devices) == (constraints.heaps, constraints.devices)


def test_options_as_long_as_they_may_be() -> None:
    longest = Requirements(
        options='heap=' + '|'.join(f'dma_heap/{number:010}' for number in range(51))
    )
    longest = Requirements(options=longest.options + 'x' * (MAX_OPTIONS - len(longest.options)))
    packet = wire.pack_hello(wire.Hello(1, 1, requirements=longest))
    assert len(packet) == 128 + MAX_OPTIONS and wire.parse_hello(packet).requirements == longest
    with pytest.raises(ConfigError, match='the options have 1025 bytes, at most 1024 can be sent'):
        Requirements(options=longest.options + 'x')


@given(WELCOME, BUFFERS, U64, U64, YES)
def test_welcome_buffers_release_and_retired_come_back(
    welcome: wire.Welcome, message: wire.BuffersMessage, uid: int, generation: int, fence: bool
) -> None:
    assert wire.parse_welcome(wire.pack_welcome(welcome)) == welcome
    assert wire.parse_buffers(wire.pack_buffers(message)) == message
    packet = wire.pack_release(uid, generation, fence)
    assert wire.parse_release(packet, len(packet)) == (uid, generation, fence)
    assert wire.plain_release(packet, len(packet)) == (None if fence else (uid, generation))
    assert wire.parse_retired(wire.pack_retired(uid)) == uid


@given(st.sampled_from(RefusalCode), st.text(max_size=600))
def test_refused_comes_back_as_far_as_a_packet_and_a_log_line_hold_it(
    code: RefusalCode, text: str
) -> None:
    packet = wire.pack_refused(wire.Refused(code, text))
    assert len(packet) <= 512
    refused = wire.parse_refused(packet)
    assert refused.code == code and (not refused.text or refused.text.isprintable())
    if text.isprintable() and len(text.encode()) <= 500:
        assert refused.text == text


@given(U32, st.binary(max_size=500))
def test_no_refusal_is_an_error_whatever_it_says(code: int, text: bytes) -> None:
    refused = wire.parse_refused(struct.pack('<HHII', 3, 12 + len(text), 0, code) + text)
    assert refused.code == (code if 1 <= code <= 6 else RefusalCode.PROTOCOL)
    assert not refused.text or refused.text.isprintable()


@given(FRAME, st.binary(max_size=255))
def test_frame_comes_back(message: FrameMessage, frame_id: bytes) -> None:
    packet = pack_frame(message, frame_id)
    fields = wire.parse_frame(bytearray(packet).ljust(MAX_PACKET, b'\xff'), len(packet))
    assert FrameMessage(*fields[3:11], bool(fields[11])) == message
    assert packet[slice(wire.FRAME.size, None)] == frame_id


@given(st.data())
def test_a_plain_release_is_one_that_the_parser_takes(data: st.DataObject) -> None:
    packet = bytearray(wire.pack_release(7, 3, False))
    for position in data.draw(st.lists(st.integers(0, len(packet) - 1), max_size=3)):
        packet[position] = data.draw(st.integers(0, 255))
    size = data.draw(st.sampled_from([len(packet), 0, 8, len(packet) - 1]))
    plain = wire.plain_release(packet, size)
    try:
        message = wire.parse_release(packet, size)
    except ProtocolError:
        assert plain is None
    else:
        assert plain == (None if message.fence else (message.uid, message.generation))


@pytest.mark.parametrize('name', PARSERS)
@given(data=st.data())
def test_a_parser_raises_nothing_but_protocol_error(name: str, data: st.DataObject) -> None:
    if data.draw(st.booleans()) or name not in PACKETS:
        packet = data.draw(st.binary(max_size=700))
        if data.draw(st.booleans()) and len(packet) >= 8:
            packet = struct.pack('<HHI', MessageType[name], len(packet), 0) + packet[8:]
    else:
        changed = bytearray(PACKETS[name])
        for position in data.draw(st.lists(st.integers(0, len(changed) - 1), max_size=5)):
            changed[position] = data.draw(st.integers(0, 255))
        packet = bytes(changed)
    try:
        PARSERS[name](packet)
    except ProtocolError as error:
        assert error.reason and str(error) and '\n' not in str(error)


@pytest.mark.parametrize('name', PACKETS)
def test_every_length_but_the_right_one_is_refused(name: str) -> None:
    packet = PACKETS[name]
    PARSERS[name](packet)
    for wrong in (packet[:-1], packet + b'\0', packet[:7], b''):
        with pytest.raises(ProtocolError):
            PARSERS[name](wrong)
    shorter = bytearray(packet)
    struct.pack_into('<H', shorter, 2, len(packet) - 1)
    with pytest.raises(ProtocolError, match='header says'):
        PARSERS[name](bytes(shorter))


# (message, offset) of every byte that must be 0.
RESERVED = [
    *((name, offset) for name in PACKETS for offset in range(4, 8)),
    *(('HELLO', offset) for offset in (25, 26, 27, 29, 30, 31, 132, 133, 134, 135)),
    *(('WELCOME', offset) for offset in (10, 11, *range(20, 32))),
    *(('BUFFERS', offset) for offset in (*range(51, 64), *range(88, 160), *range(168, 192))),
    *(('FRAME', offset) for offset in (69, 70, 71)),
    *(('RELEASE', offset) for offset in range(25, 32)),
]


@pytest.mark.parametrize(('name', 'offset'), RESERVED)
def test_reserved_bytes_are_checked(name: str, offset: int) -> None:
    packet = bytearray(PACKETS[name])
    assert packet[offset] == 0
    packet[offset] = 2
    with pytest.raises(ProtocolError):
        PARSERS[name](bytes(packet))


def test_the_version_is_one_that_both_speak() -> None:
    for low, high in ((2, 9), (0, 0)):  # a good HELLO comes back
        packet = wire.pack_hello(wire.Hello(1, 1, min_version=low, max_version=high))
        said = rf'speaks versions {low} \.\. {high}, but this producer speaks versions 1 \.\. 1'
        with pytest.raises(ProtocolError, match=said):
            wire.parse_hello(packet)


@pytest.mark.parametrize(
    'name', ['HELLO', 'WELCOME', 'REFUSED', 'BUFFERS', 'FRAME', 'RELEASE', 'BUFFER_RETIRED']
)
def test_types_and_sizes_are_those_of_the_page(name: str) -> None:
    pattern = rf'^## {name} \(type (\d)\), (?:\w+ → \w+|both directions), (\d+)([^,\n]*) bytes'
    heading = re.search(pattern, PAGE.read_text(encoding='utf-8'), re.MULTILINE)
    assert heading is not None
    assert MessageType[name] == int(heading[1])
    kind: struct.Struct = getattr(wire, {'BUFFER_RETIRED': 'RETIRED'}.get(name, name))
    assert kind.size == int(heading[2])
    upper = {'HELLO': ' + 16·n + m', 'REFUSED': ' … 512', 'FRAME': ' … 327'}.get(name, '')
    assert heading[3] == upper


@pytest.mark.parametrize(
    ('window', 'depth', 'publisher_id'),
    [
        *((*values, '') for values in ((0, 1), (1, 0), (65, 1), (1, 65))),
        *((1, 1, wrong) for wrong in ('x' * 33, 'a\0', 'a\n', '\x7f', 'é', '\udcff')),
    ],
)
def test_what_cannot_be_said_is_a_config_error(window: int, depth: int, publisher_id: str) -> None:
    with pytest.raises(ConfigError):
        wire.pack_hello(wire.Hello(window, depth, publisher_id=publisher_id))
    with pytest.raises(ConfigError, match='1 to 32 printable ASCII'):  # '' is no publisher's
        wire.pack_welcome(wire.Welcome(1, 1, publisher_id))


def test_impossible_requirements_are_config_errors() -> None:
    for wrong in (
        {'formats': ((1, 2),) * 65}, {'options': 'colour=red'}, {'memory': 0}, {'memory': 4},
        {'stride_align': 0}, {'offset_align': 2**32}, {'max_width': -1},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            Requirements(**wrong)  # type: ignore[arg-type]


def test_a_long_name_is_cut_at_a_character() -> None:
    assert wire.parse_hello(wire.pack_hello(wire.Hello(1, 1, 'ü' * 21))).name == 'ü' * 20
    assert wire.cut_text('aü', 2) == b'a'


class ServerFuzz:
    def __init__(self, folder: Path) -> None:
        self.pool = make_pool(12, reserve=1)
        self.server = SharedMemoryServer(
            'fuzz', PUBLISHER, self.pool, folder=folder, quarantine_timeout_s=0.0
        )
        self.good = SharedMemoryClient(self.server.path, name='good', window=2, depth=2)
        connected(self.good)
        self.sequence = 12
        # Use every slot once: later frames then open no new descriptor or mapping at either end.
        frames = [make_frame(self.pool, sequence) for sequence in range(12)]
        for frame in frames:
            self.server.publish(frame)
            with until(self.good.receive, 'the frame') as received, received.map() as planes:
                assert planes[0].shape == (48, 64)
        for frame in frames:
            frame.release()

    def turn(self, rng: random.Random, spare: list[int]) -> None:
        needs = Requirements(((NV12, 0), (1, 2)) if rng.random() < 0.5 else ())
        window, name = rng.choice((1, 2, 64)), rng.choice(('', PUBLISHER))
        hello = wire.Hello(window, 1, 'fuzz', name, rng.random() < 0.3, needs)
        releases = [
            (wire.pack_release(slot.buffer_uid, slot.generation + 1, False), [])
            for slot in self.pool.slots[:3]
        ]
        whole = rng.random() < 0.5
        with RawPeer.connected(self.server.path) as peer:
            conversation = mutate(rng, [(wire.pack_hello(hello), []), *releases], spare)
            cut = rng.randrange(len(conversation) + 1)
            send_all(peer.socket, conversation[:cut])
            self.publish(rng.randrange(4))
            send_all(peer.socket, conversation[cut:])
            if whole:
                peer.socket.shutdown(socket.SHUT_WR)
            while (whole or not peer.nothing_there()) and peer.receive_type():
                pass
        if rng.random() < 0.1:
            self.check()

    def publish(self, count: int) -> None:
        for _ in range(count):
            if self.pool.statistics().states.get(SlotState.FREE) or self.pool.waiting:
                with make_frame(self.pool, self.sequence) as frame:
                    self.server.publish(frame)
                self.sequence += 1
                while (received := self.good.receive()) is not None:
                    with received, received.map() as planes:
                        assert planes[0].shape == (48, 64)

    def check(self) -> None:
        until(
            lambda: self.server.statistics().handshaking == 0 and self.server.consumers == 1,
            'the end of the hostile ones',
        )
        assert self.good.connected, self.good.last_end
        until(self.idle, f'every slot: {self.pool.describe_holders()}')
        received = self.good.statistics().received
        self.publish(1)
        until(
            lambda: self.idle() and self.good.statistics().received > received,
            'a frame for the good one',
        )
        assert self.server.counters.internal_errors == 0, self.server.counters.last_internal_error

    def idle(self) -> bool:
        while (received := self.good.receive()) is not None:
            received.release()
        self.pool.collect()
        return self.pool.statistics().states == {SlotState.FREE: 12}

    def close(self) -> None:
        self.check()
        self.good.close()
        self.server.close()
        until(self.idle, 'every slot')
        self.pool.close()


@pytest.mark.usefixtures('no_fd_leak')
def test_mutated_conversations_break_no_server(folder: Path) -> None:
    """No input makes the server raise, leak, keep a lease, or stop serving others."""
    rng = random.Random(1)
    spare = [
        os.eventfd(0, os.EFD_CLOEXEC),
        os.open('/dev/null', os.O_RDWR | os.O_CLOEXEC),
        os.memfd_create('fuzz', os.MFD_CLOEXEC),
    ]
    server = ServerFuzz(folder)
    for _ in range(20):
        server.turn(rng, spare)
    server.check()
    fds = len(os.listdir('/proc/self/fd'))
    turns, deadline = 0, time.monotonic() + (30.0 if LONG else 1.0)
    while time.monotonic() < deadline or turns < 50:  # enough on a slow machine, too
        server.turn(rng, spare)
        turns += 1
    server.check()
    # The server forgets a connection shortly before it closes the socket.
    until(lambda: len(os.listdir('/proc/self/fd')) <= fds, f'no more than {fds} descriptors')
    refused = server.server.statistics().protocol_errors
    server.close()
    for fd in spare:
        os.close(fd)
    # The conversations went past the first packet, and were refused in several ways.
    assert len(refused) >= 3, refused


@pytest.mark.usefixtures('no_fd_leak')
@pytest.mark.skipif(compiled is None, reason='there is one form here: plain Python')
def test_both_forms_receive_the_same() -> None:
    assert compiled is not None
    ends = compare(2, 50_000 if LONG else 3_000, compiled)
    assert ends['frame'] > 500 and len(ends) > 6, ends
