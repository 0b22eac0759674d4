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

"""Pictures that are to be turned as their EXIF data say, in every container that has such data."""

from __future__ import annotations

from pathlib import Path
import struct
from typing import Any

from camera.replay_kit import compressed, NOW_NS, played, png_chunk, replay, write_bag
import cv2
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.camera.replay.pictures import orientation_of, UPRIGHT

pytestmark = pytest.mark.usefixtures('no_fd_leak')
WIDTH, HEIGHT = 64, 32
ORIENTATION, SHORT, LONG = 0x0112, 3, 4

# EXIF's own words: where the stored picture's first row is seen, and its first column.
SIDES = {
    1: ('top', 'left'),
    2: ('top', 'right'),
    3: ('bottom', 'right'),
    4: ('bottom', 'left'),
    5: ('left', 'top'),
    6: ('right', 'top'),
    7: ('right', 'bottom'),
    8: ('left', 'bottom'),
}


def seen(stored: NDArray[Any], value: int) -> NDArray[Any]:
    """Return the picture as a viewer has to show it, pixel by pixel from :data:`SIDES`."""
    rows, columns = stored.shape[:2]
    first_row, first_column = SIDES[value]
    upright = first_row in ('top', 'bottom')
    height, width = (rows, columns) if upright else (columns, rows)
    found = np.empty((height, width, 3), np.uint8)
    for row in range(rows):
        for column in range(columns):
            away_from = {first_row: row, first_column: column}
            y = away_from.get('top', height - 1 - away_from.get('bottom', 0))
            x = away_from.get('left', width - 1 - away_from.get('right', 0))
            found[y, x] = stored[row, column]
    return found


def stored_picture() -> NDArray[np.uint8]:
    """No two of its eight turnings are alike."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    picture = np.stack([x * 3, y * 6, 120 + x], -1).astype(np.uint8)
    picture[:8, :16] = 250
    return picture


def directory(value: int, order: str = '<', kind: int = SHORT, prefix: bytes = b'') -> bytes:
    """EXIF data: a TIFF header and a directory of three entries."""
    number = struct.pack(order + {SHORT: 'HH', LONG: 'I'}[kind], *((value, 0)[: 5 - kind]))
    entries = [
        struct.pack(f'{order}HHII', 0x0100, LONG, 1, WIDTH),
        struct.pack(f'{order}HHI', ORIENTATION, kind, 1) + number,
        struct.pack(f'{order}HHII', 0x0213, LONG, 1, 6),
    ]
    mark = {'<': b'II', '>': b'MM'}[order]
    head = mark + struct.pack(f'{order}HI', 42, 8)
    return prefix + head + struct.pack(f'{order}H', 3) + b''.join(entries) + bytes(4)


def encoded(suffix: str, picture: NDArray[np.uint8]) -> bytes:
    return bytes(cv2.imencode(suffix, picture, [cv2.IMWRITE_JPEG_QUALITY, 100])[1])


def jpeg(picture: NDArray[np.uint8], exif: bytes) -> bytes:
    content = encoded('.jpg', picture)
    other = b'\xff\xe1' + struct.pack('>H', 2 + 29) + b'http://ns.adobe.com/xap/1.0/\0'
    segment = b'\xff\xe1' + struct.pack('>H', len(exif) + 8) + b'Exif\0\0' + exif
    return content[:2] + other + segment + content[2:]


def png(picture: NDArray[np.uint8], exif: bytes) -> bytes:
    content = encoded('.png', picture)
    behind_the_header = 8 + 25
    return content[:behind_the_header] + png_chunk(b'eXIf', exif) + content[behind_the_header:]


def webp(picture: NDArray[np.uint8], exif: bytes) -> bytes:
    """In the extended format, which alone has metadata; lossless."""
    plain = bytes(cv2.imencode('.webp', picture, [cv2.IMWRITE_WEBP_QUALITY, 101])[1])
    height, width = picture.shape[:2]
    size = struct.pack('<I', width - 1)[:3] + struct.pack('<I', height - 1)[:3]
    head = b'VP8X' + struct.pack('<II', 10, 0x08) + size
    tail = b'EXIF' + struct.pack('<I', len(exif)) + exif + bytes(len(exif) % 2)
    chunks = b'WEBP' + head + plain[12:] + tail
    return b'RIFF' + struct.pack('<I', len(chunks)) + chunks


def tiff(picture: NDArray[np.uint8], value: int) -> bytes:
    height, width = picture.shape[:2]
    pixels = np.ascontiguousarray(picture[..., ::-1]).tobytes()
    fields = [
        (0x100, width), (0x101, height), (0x102, 8), (0x103, 1), (0x106, 2), (0x111, 8),
        (ORIENTATION, value), (0x115, 3), (0x116, height), (0x117, len(pixels)),
    ]  # fmt: skip
    # Bits of each sample: three of one value, in front of the directory.
    at = 8 + len(pixels)
    bits = struct.pack('<3H', 8, 8, 8)
    entries = b''.join(
        struct.pack('<HHII', tag, SHORT, 3, at)
        if tag == 0x102
        else struct.pack('<HHII', tag, LONG if number > 65535 else SHORT, 1, number)
        for tag, number in fields
    )
    return (
        b'II*\0'
        + struct.pack('<I', at + len(bits))
        + pixels
        + bits
        + struct.pack('<H', len(fields))
        + entries
        + bytes(4)
    )


def picture_file(suffix: str, stored: NDArray[np.uint8], value: int) -> bytes:
    order = '<>'[value % 2]
    if suffix == '.tiff':
        return tiff(stored, value)
    if suffix == '.webp':
        return webp(stored, directory(value, order, prefix=b'Exif\0\0' if value > 4 else b''))
    return {'.jpg': jpeg, '.png': png}[suffix](
        stored, directory(value, order, LONG if value == 8 else SHORT)
    )


def frame_of(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    ((_, planes),) = played(replay(path))
    return planes[0], planes[1]


@pytest.mark.parametrize('value', SIDES)
@pytest.mark.parametrize('suffix', ['.jpg', '.png', '.webp', '.tiff'])
def test_a_picture_is_turned_as_its_exif_data_say(suffix: str, value: int, tmp_path: Path) -> None:
    stored = stored_picture()
    (tmp_path / f'a{suffix}').write_bytes(picture_file(suffix, stored, value))
    cv2.imwrite(str(tmp_path / 'seen.bmp'), seen(stored, value))
    found, wanted = frame_of(tmp_path / f'a{suffix}'), frame_of(tmp_path / 'seen.bmp')
    for plane, expected in zip(found, wanted, strict=True):
        assert plane.shape == expected.shape
        # JPEG has half the colour resolution, and loses a little.
        assert np.abs(plane.astype(int) - expected).mean() < (3 if suffix == '.jpg' else 0.01)


def test_a_compressed_message_is_turned_as_viewers_turn_it(tmp_path: Path) -> None:
    stored = stored_picture()
    content = np.frombuffer(jpeg(stored, directory(6)), np.uint8)
    message = compressed(NOW_NS, content, 'jpeg')
    luma, _ = frame_of(write_bag(tmp_path / 'bag', [('/i', NOW_NS, message)]))
    cv2.imwrite(str(tmp_path / 'seen.png'), seen(stored, 6))
    assert luma.shape == (WIDTH, HEIGHT)
    assert np.abs(luma.astype(int) - frame_of(tmp_path / 'seen.png')[0]).mean() < 3


def test_sizes_are_compared_after_the_turning(tmp_path: Path) -> None:
    stored = stored_picture()
    (tmp_path / '1.png').write_bytes(png(seen(stored, 8), directory(6)))
    (tmp_path / '2.png').write_bytes(png(stored, directory(UPRIGHT)))
    found = played(replay(tmp_path))
    assert np.array_equal(found[0][1][0], found[1][1][0])


@given(st.binary(max_size=60), st.integers(0, 40), st.sampled_from(['.jpg', '.png', '.webp']))
def test_damaged_exif_data_leave_the_picture_upright_or_turned(
    noise: bytes, at: int, suffix: str
) -> None:
    whole = picture_file(suffix, stored_picture(), 6)
    content = whole[:at] + noise + whole[slice(at + len(noise), None)]
    assert orientation_of(np.frombuffer(content, np.uint8)) in SIDES
    assert orientation_of(np.frombuffer(whole[: at + 2], np.uint8)) in SIDES


@pytest.mark.parametrize('value', [0, 9, 65535])
def test_a_value_that_there_is_not_says_nothing(value: int) -> None:
    content = np.frombuffer(jpeg(stored_picture(), directory(value)), np.uint8)
    assert orientation_of(content) == UPRIGHT
