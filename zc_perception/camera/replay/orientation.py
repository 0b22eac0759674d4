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
How a JPEG, PNG or WebP picture has to be turned, as its EXIF data say, and the turning.

Old versions of OpenCV do not read EXIF data of WebP. So OpenCV has to leave a picture as it is,
and we turn it here: every version does the same. TIFF is left out, since OpenCV always turns it.

Sources: CIPA DC-008 (EXIF: tag 0x0112 in the first directory), ISO/IEC 10918-1 (segments of JPEG),
the PNG specification (eXIf), Google's WebP container (EXIF).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import struct
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

UPRIGHT = 1
_JPEG, _PNG = b'\xff\xd8', b'\x89PNG\r\n\x1a\n'
_EXIF = b'Exif\0'
_TAG = 0x0112
_ENTRY_BYTES = 12
_NUMBERS = {3: 'H', 4: 'I'}
_NO_LENGTH = (0x01, *range(0xD0, 0xD8))
_SCAN, _APP1 = 0xDA, 0xE1
# The name is that of the corner where the stored picture's first row begins, seen upright.
_TURNS: Mapping[int, Callable[[NDArray[Any]], Any]] = {
    2: lambda picture: cv2.flip(picture, 1),
    3: lambda picture: cv2.rotate(picture, cv2.ROTATE_180),
    4: lambda picture: cv2.flip(picture, 0),
    5: cv2.transpose,
    6: lambda picture: cv2.rotate(picture, cv2.ROTATE_90_CLOCKWISE),
    7: lambda picture: cv2.rotate(cv2.transpose(picture), cv2.ROTATE_180),
    8: lambda picture: cv2.rotate(picture, cv2.ROTATE_90_COUNTERCLOCKWISE),
}


def orientation_of(content: NDArray[np.uint8]) -> int:
    """Return EXIF's orientation of an encoded picture, 1 to 8; :data:`UPRIGHT` without one."""
    view = content.data
    try:
        for block in _exif_blocks(view):
            found = _orientation_in(block)
            if found:
                return found
    except (struct.error, IndexError):
        pass  # the picture is cut, or a length in it is wrong; whoever decodes it says so
    return UPRIGHT


def turned(picture: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return *picture* (height, width, …) as it is to be seen; upright ones are not copied."""
    turn = _TURNS.get(orientation)
    return picture if turn is None else np.asarray(turn(picture))


def _exif_blocks(view: memoryview) -> Iterator[memoryview]:
    """Return the blocks of EXIF data, each a little TIFF file."""
    if view[:2] == _JPEG:
        yield from _in_jpeg(view)
    elif view[:8] == _PNG:
        yield from _in_chunks(view, 8, '>I4s', b'eXIf', after=4, padded=False)
    elif bytes(view[:4]) == b'RIFF' and bytes(view[8:12]) == b'WEBP':
        yield from _in_chunks(view, 12, '<4sI', b'EXIF', after=0, padded=True)


def _in_jpeg(view: memoryview) -> Iterator[memoryview]:
    at = 2
    while True:
        # Decoders skip fill bytes and stray ones between segments.
        while view[at] != 0xFF or view[at + 1] in (0x00, 0xFF):
            at += 1
        marker, at = view[at + 1], at + 2
        if marker == _SCAN:
            return
        if marker in _NO_LENGTH:
            continue
        (length,) = struct.unpack_from('>H', view, at)
        segment = view[at + 2 : at + length]
        if marker == _APP1 and segment[: len(_EXIF)] == _EXIF:
            yield segment[len(_EXIF) + 1 :]
        at += max(2, length)


def _in_chunks(
    view: memoryview, at: int, head: str, wanted: bytes, *, after: int, padded: bool
) -> Iterator[memoryview]:
    """
    Yield chunks of PNG and RIFF.

    :param after: bytes behind a chunk's content.
    :param padded: whether contents of an odd length have one more.
    """
    while at < len(view):
        first, second = struct.unpack_from(head, view, at)
        kind, length = (first, second) if isinstance(first, bytes) else (second, first)
        at += struct.calcsize(head)
        if kind == wanted:
            content = view[at : at + length]
            # Some writers put JPEG's prefix in front of it.
            prefixed = content[: len(_EXIF)] == _EXIF
            yield content[len(_EXIF) + 1 :] if prefixed else content
        at += length + after + (length % 2 if padded else 0)


def _orientation_in(block: memoryview) -> int:
    """Return the orientation in the first directory; 0: it has none."""
    order = {b'II': '<', b'MM': '>'}.get(bytes(block[:2]))
    if order is None:
        return 0
    (directory,) = struct.unpack_from(f'{order}I', block, 4)
    (count,) = struct.unpack_from(f'{order}H', block, directory)
    for number in range(count):
        at = directory + 2 + _ENTRY_BYTES * number
        tag, kind = struct.unpack_from(f'{order}HH', block, at)
        if tag == _TAG and kind in _NUMBERS:
            (value,) = struct.unpack_from(order + _NUMBERS[kind], block, at + 8)
            return int(value) if value in _TURNS else 0
    return 0
