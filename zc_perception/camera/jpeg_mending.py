"""Pictures that are whole, but not as JPEG wants them.

Some webcams leave out the end marker and fill the rest of the buffer with zeros, some write stray
bytes between the segments of the header. Every viewer shows such pictures.

Nothing of the picture's data is changed: what is missing from it is still missing, and the decoder
says so.

Source: ISO/IEC 10918-1, annex B (markers, fill bytes, segments) and F.1.2.3 (the last byte of the
data is filled up with ones).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Data = NDArray[np.uint8]

_BEGIN = b'\xff\xd8'
_END = b'\xff\xd9'
_FILL = 0xFF
_SCAN = 0xDA
# Markers of segments that have a length: SOFn, DHT, DAC, SOS, DQT, DNL, DRI, DHP, EXP, APPn, COM.
_SEGMENTS = frozenset((*range(0xC0, 0xC8), *range(0xC9, 0xD0), *range(0xDA, 0xF0), 0xFE))
# What has more of them is no picture.
_MOST_STRAY = 4096
_CHUNK = 1 << 16


def mended(data: Data) -> Data:
    """*data* as JPEG wants it: a copy, or *data* itself if it is, or if it is no picture at all.

    :param data: one picture and what may follow it, contiguous.
    """
    kept = _header(data)
    if kept is None:
        return data
    end = data.size if _ends(data, data.size) else _last(data)
    complete = _ends(data, end)
    if complete and kept == [(0, data.size)]:
        return data
    if not complete:
        end = _with_zeros(data, end)
    parts = [data[start : min(stop, end)] for start, stop in kept]
    return np.concatenate([*parts, *([] if complete else [np.frombuffer(_END, np.uint8)])])


def _header(data: Data) -> list[tuple[int, int]] | None:
    """What to keep of *data*, up to its end, so that the header has no stray bytes.

    :returns: begins and ends; ``None``: no picture's data begins.
    """
    begin = data[: _MOST_STRAY + len(_BEGIN)].tobytes().find(_BEGIN)
    if begin < 0:
        return None
    start, at, stray = begin, begin + len(_BEGIN), begin
    kept: list[tuple[int, int]] = []
    while at + 4 <= data.size and stray <= _MOST_STRAY:
        marker = int(data[at + 1])
        length = int(data[at + 2]) << 8 | int(data[at + 3])
        if data[at] != _FILL or marker not in _SEGMENTS or length < 2:
            if start < at:
                kept.append((start, at))
            at += 1
            start, stray = at, stray + 1
        elif marker == _SCAN:
            return [*kept, (start, data.size)]
        else:
            at += 2 + length
    return None


def _ends(data: Data, end: int) -> bool:
    return data[max(0, end - len(_END)) : end].tobytes() == _END


def _last(data: Data) -> int:
    """Where the zeros begin that *data* ends with."""
    for start in range((data.size - 1) // _CHUNK * _CHUNK, -1, -_CHUNK):
        found = np.flatnonzero(data[start : start + _CHUNK])
        if found.size:
            return start + int(found[-1]) + 1
    return 0


def _with_zeros(data: Data, end: int) -> int:
    """Where to end in place of *end*, with the zeros that may be the picture's.

    A byte of ones is always followed by a zero byte. And up to ten bits at the end of a picture
    may be zero: two blocks of chroma without any difference. That is one whole byte at most. All
    other zeros are not the picture's own: with them the rest of a picture that is cut off would be
    made up.
    """
    stuffed = end > 0 and data[end - 1] == _FILL
    return min(data.size, end + (2 if stuffed else 1))
