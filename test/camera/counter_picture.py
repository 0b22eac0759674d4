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

"""Read the counter's picture, which a comment in ``camera/synthetic.py`` describes."""

from __future__ import annotations

import binascii
import struct

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.synthetic import TimeCode

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
