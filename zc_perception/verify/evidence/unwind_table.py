"""Where a function ends, of a library without symbols: its unwind table lists the beginnings of all functions, those in assembler too.

Source: Linux Standard Base, *The .eh_frame_hdr section*; ELF-64 object file format.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

_LOAD, _EH_FRAME = 1, 0x6474E550
_HEADER = struct.Struct('<4sBBBB8xHHIQQQIHHHHHH')
_SEGMENT = struct.Struct('<IIQQQQQQ')
_UDATA4, _DATAREL_SDATA4 = 0x03, 0x3B


@dataclass(frozen=True)
class FunctionRange:
    """A function in a file: offsets of its first byte and behind its last.

    :ivar how: how the end is known.
    """

    start: int
    end: int
    how: str


def function_range(path: Path, offset: int, otherwise: int = 2048) -> FunctionRange:
    """The function that begins at *offset* of a 64-bit little-endian ELF file.

    :param otherwise: bytes that are taken for it where the file has no such table, or none that knows it.
    :raises OSError: the file can't be read.
    """
    data = path.read_bytes()
    try:
        end = _end(data, offset)
    except (struct.error, ValueError) as error:
        return FunctionRange(offset, offset + otherwise, f'{otherwise} bytes, because the unwind table does not tell: {error}')
    return FunctionRange(offset, end, 'to the next function of the unwind table (.eh_frame_hdr)')


def _end(data: bytes, offset: int) -> int:
    magic, bits, order, _, _, _, _, _, _, table, _, _, _, size, count, _, _, _ = _HEADER.unpack_from(data)
    if magic != b'\x7fELF' or bits != 2 or order != 1 or size != _SEGMENT.size:
        raise ValueError('not a 64-bit little-endian ELF file')
    segments = [_SEGMENT.unpack_from(data, table + index * size) for index in range(count)]
    loads = [(place, address, length) for kind, _, place, address, _, length, _, _ in segments if kind == _LOAD]
    header = next(((place, address) for kind, _, place, address, _, _, _, _ in segments if kind == _EH_FRAME), None)
    if header is None:
        raise ValueError('there is none')
    shift = next((address - place for place, address, length in loads if place <= offset < place + length), None)
    if shift is None:
        raise ValueError('the function is in no segment')
    starts = _starts(data, *header)
    index = bisect_right(starts, offset + shift)
    if not index or starts[index - 1] != offset + shift or index == len(starts):
        raise ValueError('it has no function that begins there')
    return int(starts[index] - shift)


def _starts(data: bytes, place: int, address: int) -> list[int]:
    """Addresses of all functions, in order."""
    version, pointer, number, table = data[place : place + 4]
    if version != 1 or number != _UDATA4 or table != _DATAREL_SDATA4 or pointer & 0x0F not in (0x03, 0x0B):
        raise ValueError('it is encoded in another way than linkers do')
    (count,) = struct.unpack_from('<I', data, place + 8)
    pairs = struct.unpack_from(f'<{2 * count}i', data, place + 12)
    return [address + start for start in pairs[::2]]
