"""A frame log is another process's memory: whatever is in it, a reader gives records and facts, or says what it isn't; it never fails."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from observe.frame_log_kit import FIELDS, SIZE

from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.observe import frame_log
from zc_perception.observe.frame_log import FrameLogReader, RecordKind

CAPACITY, RECORD, FACTS, RING, ROOM = 4096, 192, 4096, 32 * 1024, 28 * 1024 - 16
#: Bytes of what the log says of its writer: when it began, pid, role, node.
WRITER = 8 + 4 + 4 + 16 + 256
ADD_SEALS, SHRINK_AND_GROW = 1033, 2 | 4
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
NESTED = b'[' * 20_000
DIGITS = b'{"n": ' + b'7' * 20_000 + b'}'


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """What isn't whole won't be after a moment either."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_log, '_A_MOMENT_S', 0.0)
        patch.setattr(frame_log, '_FACTS_ATTEMPTS', 3)
        yield


@contextmanager
def log_with(*pieces: tuple[int, bytes]) -> Iterator[FrameLogReader]:
    """A reader of a log that has the right head and size, and these bytes at these offsets."""
    fd = OwnedFd(os.memfd_create('zc_frame_log', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    with fd:
        os.ftruncate(fd.fileno(), SIZE)
        fcntl.fcntl(fd.fileno(), ADD_SEALS, SHRINK_AND_GROW)
        for offset, content in ((0, struct.pack('<4sIII', b'ZCFL', 1, RECORD, CAPACITY)), *pieces):
            assert os.pwrite(fd.fileno(), content, offset) == len(content)
        reader = FrameLogReader(fd)
    with reader:
        yield reader


def word(value: int) -> bytes:
    return struct.pack('<Q', value)


def facts(text: bytes, generation: int = 2, size: int | None = None) -> tuple[int, bytes]:
    return FACTS, struct.pack(
        '<QII', generation, len(text) if size is None else size, zlib.crc32(text)
    ) + text


def record(number: int, **fields: int) -> tuple[int, bytes]:
    """In its place of the ring."""
    content = bytearray(RECORD)
    for name, offset, letter in FIELDS:
        struct.pack_into(
            f'<{letter}',
            content,
            offset,
            number if name in ('number', 'number_again') else fields.get(name, 1),
        )
    return RING + (number - 1) % CAPACITY * RECORD, bytes(content)


def reads(reader: FrameLogReader) -> None:
    """It answers, and what it gives can be shown and is what its type says."""
    for _ in range(2):
        for entry in reader.read():
            assert isinstance(entry.kind, RecordKind)
            assert len(entry.inodes) <= 4
        assert isinstance(reader.facts(), dict)
    assert reader.lost >= 0
    assert (reader.alive, reader.ended, repr(reader), reader.role, reader.node)[1] in (True, False)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=8,
)


@given(
    st.binary(max_size=300)
    | JSON_VALUES.map(lambda value: json.dumps(value).encode())
    | st.text(max_size=100).map(str.encode)
)
@example(NESTED)
@example(b'{"a": ' * 4_000)
@example(DIGITS)
@example(b'\xff\xfe{\0}\0')
@example(b'{"a": "\xff"}')
@example(b'')
def test_facts_that_are_no_object_leave_the_earlier_ones(text: bytes) -> None:
    with log_with(facts(text)) as reader:
        found = reader.facts()
        try:
            expected = json.loads(text)
        except (ValueError, RecursionError):
            expected = None
        if isinstance(expected, dict):
            assert found.keys() == expected.keys()
        else:
            assert found == {'role': '', 'node': '', 'pid': 0}


@given(
    generation=U64, size=U32 | st.integers(0, ROOM + 1), checksum=U32, text=st.binary(max_size=100)
)
def test_whatever_the_head_of_the_facts_says(
    generation: int, size: int, checksum: int, text: bytes
) -> None:
    with log_with((FACTS, struct.pack('<QII', generation, size, checksum) + text)) as reader:
        reads(reader)


@pytest.mark.parametrize(
    ('size', 'expected'), [(ROOM, {'n': 1}), (ROOM + 1, {'role': '', 'node': '', 'pid': 0})]
)
def test_facts_end_where_the_ring_begins(size: int, expected: dict[str, object]) -> None:
    with log_with(facts(b'{"n": 1}'.ljust(size))) as reader:
        assert reader.facts() == expected


def test_a_kind_that_is_not_known_costs_that_record_alone() -> None:
    ring = [
        record(number, kind=kind)
        for number, kind in ((1, 1), (2, 77), (3, 3), (4, 0), (5, 2**32 - 1), (6, 2))
    ]
    with log_with((16, word(6)), *ring) as reader:
        assert [(entry.number, int(entry.kind)) for entry in reader.read()] == [
            (1, 1),
            (3, 3),
            (6, 2),
        ]
        assert reader.lost == 3
        assert reader.read() == []
        assert reader.lost == 3


@given(
    written=st.integers(0, 3 * CAPACITY) | U64, ended=U64,
    values=st.lists(st.tuples(st.integers(1, 2 * CAPACITY), U32, U32, U64), max_size=6),
    noise=st.lists(st.binary(min_size=1, max_size=RECORD), max_size=6), writer=st.binary(min_size=WRITER, max_size=WRITER),
)  # fmt: skip
@example(written=0, ended=0, values=[], noise=[], writer=b'\xff' * WRITER)
def test_whatever_is_in_the_ring_and_of_its_writer(
    written: int,
    ended: int,
    values: list[tuple[int, int, int, int]],
    noise: list[bytes],
    writer: bytes,
) -> None:
    pieces = [
        record(number, kind=kind, num_buffers=buffers, sequence=sequence)
        for number, kind, buffers, sequence in values
    ]
    pieces += [(RING + index * 977, content) for index, content in enumerate(noise)]
    with log_with((16, word(written) + word(ended) + writer), *pieces) as reader:
        reads(reader)


def test_records_that_seem_to_come_in_a_great_hurry_are_not_waited_for() -> None:
    """A count that no writer can have written: the reader looks, and goes on."""
    with log_with((16, word(2**64 - 1))) as reader:
        assert reader.read() == []
        assert reader.read() == []
