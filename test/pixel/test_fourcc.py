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
The format table: what its entries promise, and how unknown ones are refused.

The headers' part is in test_fourcc_headers.py.
"""

from __future__ import annotations

import pytest

from zc_perception.errors import FormatError
from zc_perception.pixel.fourcc import format_by_name, FORMATS, fourcc_code, NV12, pixel_format


def test_codes_are_little_endian_words() -> None:
    # Literal values of DRM_FORMAT_NV12, DRM_FORMAT_R8 and DRM_FORMAT_XRGB8888.
    assert fourcc_code('NV12') == NV12 == 0x3231564E
    assert fourcc_code('R8  ') == 0x20203852
    assert fourcc_code('XR24') == 0x34325258


def test_odd_sizes_round_up_to_whole_chroma_samples() -> None:
    chroma = format_by_name('NV12').planes[1]
    assert (chroma.row_bytes(5), chroma.rows(3)) == (6, 2)


def test_names_of_one_system_are_unique() -> None:
    for system in ('name', 'v4l2', 'v4l2_multiplanar', 'gstreamer', 'ros'):
        names = [
            getattr(entry, system)
            for entry in FORMATS.values()
            if getattr(entry, system) is not None
        ]
        assert len(names) == len(set(names)), system


@pytest.mark.parametrize('name', ['', 'NV1', 'NV123', 'NÜ12'])
def test_names_that_are_no_fourcc_are_refused(name: str) -> None:
    with pytest.raises(FormatError, match='four ASCII characters'):
        fourcc_code(name)


def test_unknown_codes_are_refused_with_the_known_ones() -> None:
    with pytest.raises(FormatError, match=r"'ZZZZ' \(0x5a5a5a5a\) is not known; known are NV12, "):
        pixel_format(0x5A5A5A5A)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(FormatError, match="'YUYW' is not known; did you mean 'YUYV'"):
        format_by_name('YUYW')
