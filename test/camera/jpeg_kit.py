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
Pictures for tests: JPEGs, and a reader of the counter that ``camera/synthetic.py`` describes.

JPEGs are as webcams make them: by libjpeg, without the tables that webcams omit.
"""

from __future__ import annotations

import binascii
import os
import struct

import cv2
from environment.errors import SetupError
from environment.fixtures import load_turbojpeg
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.synthetic import TimeCode

SAMPLINGS = ('420', '422', '444', '440', '411')
FUZZED_SIZE = (64, 48)


def need_decoder() -> None:
    """Load libturbojpeg; without it, skip the test, or fail if it is required."""
    try:
        load_turbojpeg()
    except SetupError as error:
        if os.environ.get('ZC_RIG') == 'required':
            raise
        import pytest  # guests of the rig don't have pytest

        pytest.skip(f'no libturbojpeg for tests here: {error}')


def picture(width: int, height: int) -> NDArray[np.uint8]:
    """Return smooth colours of all hues (B, G, R) that survive halved chroma."""
    corners = np.random.default_rng(1).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return np.asarray(
        cv2.resize(corners, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8
    )


def jpeg(image: NDArray[np.uint8], sampling: str = '422', quality: int = 90) -> bytes:
    """Return *image* (B, G, R, or grey) as a JPEG."""
    factor = getattr(cv2, f'IMWRITE_JPEG_SAMPLING_FACTOR_{sampling}')
    good, data = cv2.imencode(
        '.jpg',
        image,
        [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor],
    )
    assert good
    return data.tobytes()


def segments(data: bytes) -> list[tuple[int, bytes]]:
    """Return a JPEG's segments before its picture data: last byte of the marker, whole segment."""
    found, at = [], 2
    while data[at + 1] != 0xDA:
        length = 2 + int.from_bytes(data[slice(at + 2, at + 4)], 'big')
        found.append((data[at + 1], data[slice(at, at + length)]))
        at += length
    return [*found, (0xDA, data[at:])]


def without_tables(data: bytes) -> bytes:
    """Remove the Huffman tables; :func:`jpeg` uses the standard's tables."""
    kept = [segment for marker, segment in segments(data) if marker != 0xC4]
    return data[:2] + b''.join(kept)


# The counter's picture.

_COLUMNS, _ROWS = 16, 8
_FIELDS = struct.Struct('>BBIqH')
_CHESS = (np.add.outer(np.arange(_ROWS), np.arange(_COLUMNS)) % 2).astype(np.uint8)
# Each cell is measured in its middle, because scaling and JPEG blur its edges.
_SAMPLES = 8
_MARGIN = 2
_MIN_CONTRAST = 32


def read_counter(luma: NDArray[np.uint8]) -> TimeCode | None:
    """Return the time code, or ``None``; *luma* is any grey version of the whole picture."""
    if luma.ndim != 2 or luma.shape[0] < _ROWS or luma.shape[1] < _COLUMNS:
        return None
    small = cv2.resize(luma, (_COLUMNS * _SAMPLES, _ROWS * _SAMPLES), interpolation=cv2.INTER_AREA)
    cells = small.reshape(_ROWS, _SAMPLES, _COLUMNS, _SAMPLES)[
        :, _MARGIN:-_MARGIN, :, _MARGIN:-_MARGIN
    ].mean(axis=(1, 3))
    low, high = float(cells.min()), float(cells.max())
    if high - low < _MIN_CONTRAST:
        return None
    content = np.packbits((cells > (low + high) / 2).astype(np.uint8) ^ _CHESS).tobytes()
    marker, seed, counter, stamp_ns, checksum = _FIELDS.unpack(content)
    if marker != 0xA5 or checksum != binascii.crc_hqx(content[:-2], 0xFFFF):
        return None
    return TimeCode(seed, counter, stamp_ns)
