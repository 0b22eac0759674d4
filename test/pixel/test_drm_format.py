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
GStreamer's drm-format strings.

One spelling for each format, and every other is refused with what to write.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from zc_perception.errors import FormatError
from zc_perception.pixel.format_names import drm_format_string, parse_drm_format
from zc_perception.pixel.fourcc import FORMATS, fourcc_code, NV12
from zc_perception.pixel.modifier import INVALID, LINEAR

# Names of GStreamer's that are four capitals and digits, and no DRM fourcc.
GSTREAMER_ONLY = {'I420', 'Y42B', 'Y444', 'YUY2', 'BGRA', 'RGBA', 'ABGR', 'ARGB'}
names = st.from_regex(r'\A[A-Z0-9]{1,4}\Z').map(lambda name: f'{name:<4}')
fourccs = st.one_of(
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from(sorted(GSTREAMER_ONLY)).map(fourcc_code),
    names.map(fourcc_code),
)
modifiers = st.integers(1, (1 << 64) - 1).filter(lambda modifier: modifier != INVALID)


@given(fourccs, st.one_of(st.just(LINEAR), modifiers))
def test_what_is_written_is_read_again(fourcc: int, modifier: int) -> None:
    name = fourcc.to_bytes(4, 'little').decode()
    if name in GSTREAMER_ONLY:
        with pytest.raises(FormatError):
            drm_format_string(fourcc, modifier)
    else:
        assert parse_drm_format(drm_format_string(fourcc, modifier)) == (fourcc, modifier)


@given(fourccs.filter(lambda fourcc: fourcc.to_bytes(4, 'little').decode() not in GSTREAMER_ONLY))
def test_an_implicit_layout_is_written_outside_of_caps_only(fourcc: int) -> None:
    text = drm_format_string(fourcc, INVALID, implicit=True)
    assert text == f'{fourcc.to_bytes(4, "little").decode()}:INVALID'
    assert parse_drm_format(text, implicit=True) == (fourcc, INVALID)
    with pytest.raises(FormatError, match='16 hexadecimal digits'):
        parse_drm_format(text)
    with pytest.raises(FormatError, match=r"write '.{4}:INVALID'"):
        parse_drm_format(f'{text[:4]}:0x00ffffffffffffff', implicit=True)


@given(
    st.one_of(
        st.text(max_size=30),
        st.text(st.sampled_from('019afF_ gx:'), max_size=17).map('NV12:0x'.__add__),
        st.text(st.sampled_from('NVY12 8R:'), max_size=6),
    )
)
def test_any_text_is_a_format_in_its_one_spelling_or_refused(text: str) -> None:
    try:
        pair = parse_drm_format(text)
    except FormatError:
        return
    head, colon, digits = text.partition(':')
    assert drm_format_string(*pair) == head + colon + digits.lower()


@pytest.mark.parametrize(
    ('text', 'fourcc', 'modifier'),
    [
        ('NV12', 'NV12', LINEAR),
        ('NV12:0x0100000000000002', 'NV12', 0x0100000000000002),
        ('AR24:0x0100000000000002', 'AR24', 0x0100000000000002),
        # From the document's list: codes that are no formats of ours.
        ('AR39:0x0100000000000002', 'AR39', 0x0100000000000002),
        ('AYUV:0x0100000000000002', 'AYUV', 0x0100000000000002),
        # GST_FOURCC_FORMAT prints all four characters.
        ('R8  ', 'R8  ', LINEAR),
        ('R8  :0x0300000000606014', 'R8  ', 0x0300000000606014),
        ('YU08:0x0a00000000000101', 'YU08', 0x0A00000000000101),
    ],
)
def test_both_ways(text: str, fourcc: str, modifier: int) -> None:
    assert parse_drm_format(text) == (fourcc_code(fourcc), modifier)
    assert drm_format_string(fourcc_code(fourcc), modifier) == text


def test_the_modifier_s_digits_may_be_capitals() -> None:
    assert parse_drm_format('NV12:0x03000000006FE014') == (NV12, 0x03000000006FE014)


@pytest.mark.parametrize(
    ('text', 'why'),
    [
        ('NV12:0x0000000000000000', "LINEAR is not written out; the linear format is 'NV12'"),
        ('NV12:0x00ffffffffffffff', 'INVALID'),
        # The document's own misprint.
        ('NV12:0x0x0100000000000001', "the modifier must be '0x' and 16 hexadecimal digits"),
        # The document's second example writes GStreamer's names.
        ('I420', "'I420' is GStreamer's name; the DRM fourcc is 'YU12'"),
        ('BGRA:0x0100000000000002', "'BGRA' is GStreamer's name; the DRM fourcc is 'AR24'"),
        ('YUY2', "the DRM fourcc is 'YUYV'"),
        ('RGB', "'RGB' is GStreamer's name; the DRM fourcc is 'BG24'"),
        ('P010_10LE', "the DRM fourcc is 'P010'"),
        ('GRAY8', "the DRM fourcc is 'R8  '"),
        ('R8', "write 'R8  ' with its trailing blanks"),
        ('R8:0x0100000000000001', "write 'R8  ' with its trailing blanks"),
        ('nv12', "'nv12' is no DRM fourcc.*did you mean 'NV12'"),
        ('N 12', 'is no DRM fourcc'),
        ('    ', 'is no DRM fourcc'),
        ('', 'is no DRM fourcc'),
        ('ÑV12', 'is no DRM fourcc'),
        ('NV12:', "the modifier must be '0x' and 16"),
        ('NV12:0x', 'must be'),
        ('NV12:0x1', 'must be'),
        ('NV12:100000000000001', 'must be'),
        ('NV12:0100000000000001', 'must be'),
        ('NV12:0X0100000000000001', 'must be'),
        ('NV12:0x010000000000000g', 'must be'),
        ('NV12:0x01000000000_0001', 'must be'),
        ('NV12:0x0100000000000001 ', 'must be'),
        ('NV12:0x010000000000000\u0661', 'must be'),
        ('NV12:0x00100000000000001', 'must be'),
        ('NV12:0x0100000000000001:0x0100000000000001', 'must be'),
        ('NV12\n', 'is no DRM fourcc'),
    ],
)
def test_what_is_refused_says_what_to_write(text: str, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        parse_drm_format(text)


@pytest.mark.parametrize(
    ('fourcc', 'modifier', 'why'),
    [
        (NV12, INVALID, 'ask the allocator first'),
        (NV12, 1 << 64, 'outside'),
        (NV12 | 1 << 31, LINEAR, 'has no drm-format string'),
        (fourcc_code('nv12'), LINEAR, 'has no drm-format string'),
        (0, LINEAR, 'has no drm-format string'),
        (-1, LINEAR, 'has no drm-format string'),
        (NV12 << 32 | NV12, LINEAR, 'has no drm-format string'),
        (fourcc_code('I420'), LINEAR, "the DRM fourcc is 'YU12'"),
    ],
)
def test_what_has_no_string(fourcc: int, modifier: int, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        drm_format_string(fourcc, modifier)
