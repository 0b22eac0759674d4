"""Modifiers and GStreamer's drm-format strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.errors import FormatError
from zc_perception.pixel.fourcc import FORMATS, NV12
from zc_perception.pixel.modifier import INVALID, LINEAR, check_modifier, drm_format_string, modifier_name, parse_drm_format

INTEL_X_TILED = 1 << 56 | 1
NVIDIA_BLOCK = 3 << 56 | 0x10
fourccs = st.sampled_from(sorted(FORMATS))
tiled = st.integers(1, (1 << 64) - 1).filter(lambda modifier: modifier != INVALID)


@given(fourccs, st.one_of(st.just(LINEAR), tiled))
def test_strings_round_trip(fourcc: int, modifier: int) -> None:
    assert parse_drm_format(drm_format_string(fourcc, modifier)) == (fourcc, modifier)


@given(st.one_of(st.text(max_size=30), st.text(st.sampled_from('019afF_ g'), max_size=17).map('NV12:0x'.__add__)))
def test_any_text_is_a_format_or_refused(text: str) -> None:
    try:
        fourcc, modifier = parse_drm_format(text)
    except FormatError:
        return
    # What is accepted has one spelling but for zeros and letters' case.
    assert fourcc in FORMATS and modifier != INVALID
    head, _, digits = text.partition(':0x')
    assert head == drm_format_string(fourcc, LINEAR)
    assert set(digits) <= set('0123456789abcdefABCDEF') and int(digits or '0', 16) == modifier


def test_linear_is_written_without_a_modifier() -> None:
    assert drm_format_string(NV12, LINEAR) == 'NV12'
    assert drm_format_string(NV12, INTEL_X_TILED) == 'NV12:0x0100000000000001'


@pytest.mark.parametrize(
    'text',
    [
        'NV12:0x0',
        'NV12:0x00ffffffffffffff',
        'NV12:',
        'NV12:0x',
        'NV12:100',
        'NV12:0xzz',
        'NV12:0x1_0',
        'NV12:0x1 ',
        'NV12:0x\u0661',
        'NV12:0x-1',
        'NV12:0x10000000000000000',
        'NV12:0x1:0x1',
        'ZZZZ',
        'nv12',
        '',
    ],
)
def test_malformed_strings_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_drm_format(text)


def test_an_implicit_layout_has_no_string() -> None:
    with pytest.raises(FormatError, match='ask the allocator first'):
        drm_format_string(NV12, INVALID)


@pytest.mark.parametrize('modifier', [-1, 1 << 64])
def test_modifiers_are_64_bit(modifier: int) -> None:
    with pytest.raises(FormatError, match='outside'):
        check_modifier(modifier)


@pytest.mark.parametrize(
    ('modifier', 'name'),
    [
        (LINEAR, 'LINEAR'),
        (INVALID, 'INVALID'),
        (NVIDIA_BLOCK, 'NVIDIA:0x00000000000010'),
        (0x7F << 56 | 5, 'vendor 0x7f:0x00000000000005'),
    ],
)
def test_names_for_people(modifier: int, name: str) -> None:
    assert modifier_name(modifier) == name
