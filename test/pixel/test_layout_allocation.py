"""What an allocator or a driver may answer: its modifier from the list, and padding."""

from __future__ import annotations

import tracemalloc
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.errors import FormatError, LayoutError
from zc_perception.pixel.fourcc import FORMATS, NV12, fourcc_code
from zc_perception.pixel.layout import ImageLayout, PlaneLayout, check_only_padded, compute_layout
from zc_perception.pixel.modifier import INVALID, LINEAR, modifier_name

X_TILED, Y_TILED = 1 << 56 | 1, 1 << 56 | 2


def changed(value: Any, **fields: Any) -> Any:
    """A copy with fields of any type, as a peer's parser makes them."""
    return replace(value, **fields)


@dataclass(frozen=True)
class Request:
    """All that a request has to have."""

    width: int
    height: int
    fourcc: int


ASKED = Request(1000, 1080, NV12)
TIGHT = compute_layout(NV12, 1000, 1080, stride_align=1, offset_align=1)
PADDED = compute_layout(NV12, 1000, 1080, stride_align=1024, offset_align=4096, height_align=16)
TWO = compute_layout(NV12, 1000, 1080, buffer_per_plane=True)
TILED = changed(PADDED, modifier=X_TILED)


@pytest.mark.parametrize(
    ('answer', 'acceptable'),
    [
        (TIGHT, [LINEAR]),
        (PADDED, [LINEAR]),
        (TWO, [LINEAR]),
        (PADDED, [X_TILED, LINEAR]),
        (TILED, [X_TILED, LINEAR]),
        (TILED, {X_TILED}),
        (changed(PADDED, modifier=INVALID), [INVALID]),
        (changed(PADDED, modifier=INVALID), []),
        (changed(PADDED, modifier=INVALID), [LINEAR, INVALID]),
        (PADDED, [INVALID]),
        (TILED, []),
    ],
    ids=['tight', 'padded in x and y', 'a buffer per plane', 'one of two', 'the other', 'a set', 'implicit', 'no list is implicit',
         'implicit is allowed', 'upgraded to LINEAR', 'upgraded to tiled'],
)  # fmt: skip
def test_padding_and_a_modifier_of_the_list_pass(answer: ImageLayout, acceptable: Collection[int]) -> None:
    check_only_padded(ASKED, answer, acceptable)
    check_only_padded(TIGHT, answer, acceptable)


@pytest.mark.parametrize(
    ('answer', 'acceptable', 'message'),
    [
        (changed(PADDED, fourcc=fourcc_code('NV21')), [LINEAR],
         "asked for 'NV12', the allocator answered 'NV21'; it may not vary the format"),
        (changed(PADDED, width=1024), [LINEAR],
         'asked for 1000x1080 pixels, the allocator answered 1024x1080; padding belongs into strides, offsets and sizes'),
        (changed(PADDED, height=1088), [LINEAR],
         'asked for 1000x1080 pixels, the allocator answered 1000x1088; padding belongs into strides, offsets and sizes'),
        (TILED, [LINEAR], 'the allocator chose modifier {X_TILED}, acceptable are LINEAR'),
        (TILED, [LINEAR, INVALID], 'the allocator chose modifier {X_TILED}, acceptable are LINEAR, INVALID'),
        (PADDED, [X_TILED, Y_TILED], 'the allocator chose modifier LINEAR, acceptable are {X_TILED}, {Y_TILED}'),
        (changed(PADDED, modifier=INVALID), [LINEAR], 'the allocator chose modifier INVALID, acceptable are LINEAR'),
        (changed(TIGHT, planes=(changed(TIGHT.planes[0], stride=999), TIGHT.planes[1])), [LINEAR],
         'plane 0: stride 999 is below the row of 1000 bytes'),
        (changed(TIGHT, planes=(TIGHT.planes[0], changed(TIGHT.planes[1], size=539_999))), [LINEAR],
         'plane 1: size 539999 is below the 540000 bytes that 540 rows need'),
        (changed(TIGHT, planes=(TIGHT.planes[0], changed(TIGHT.planes[1], offset=1000))), [LINEAR],
         'planes 0 and 1 overlap in buffer 0: one ends at byte 1080000, the other starts at 1000'),
        (changed(TIGHT, planes=TIGHT.planes[:1]), [LINEAR], 'NV12 LINEAR has 2 planes, the layout has 1'),
        (changed(TIGHT, planes=(TIGHT.planes[0], changed(TIGHT.planes[1], buffer=2))), [LINEAR], 'plane 1: buffer 2 is outside 0 .. 1'),
        (changed(TIGHT, width='1000'), [LINEAR], "width '1000' is not an integer; it must be one in 1 .. 65535"),
        (changed(TIGHT, modifier=[LINEAR]), [LINEAR], 'modifier [0] is not an integer; LINEAR is 0'),
    ],
)  # fmt: skip
def test_anything_else_is_refused(answer: ImageLayout, acceptable: Collection[int], message: str) -> None:
    with pytest.raises(LayoutError) as error:
        check_only_padded(ASKED, answer, acceptable)
    assert str(error.value) == message.replace('{X_TILED}', modifier_name(X_TILED)).replace('{Y_TILED}', modifier_name(Y_TILED))


def test_an_unknown_format_is_a_format_error() -> None:
    with pytest.raises(FormatError):
        check_only_padded(ASKED, changed(PADDED, fourcc=1), [LINEAR])


@given(
    st.sampled_from(sorted(FORMATS)), st.integers(1, 400), st.integers(1, 400), st.integers(1, 4096), st.integers(1, 4096),
    st.integers(1, 64), st.booleans(),
)  # fmt: skip
def test_padding_of_any_kind_passes(
    fourcc: int, width: int, height: int, stride_align: int, offset_align: int, height_align: int, split: bool
) -> None:
    width, height = width * FORMATS[fourcc].horizontal, height * FORMATS[fourcc].vertical
    answer = compute_layout(
        fourcc, width, height, stride_align=stride_align, offset_align=offset_align, height_align=height_align, buffer_per_plane=split
    )
    check_only_padded(Request(width, height, fourcc), answer, [LINEAR])


@pytest.mark.parametrize('field', ['buffer', 'offset', 'stride', 'size'])
@pytest.mark.parametrize('value', [1 << 31, (1 << 64) - 1, None, 'a'])
def test_wild_answers_cost_nothing(field: str, value: Any) -> None:
    # Overlapping from the start, so that no place in a large buffer is right either.
    plane = changed(PlaneLayout(0, 0, 1024, 1024 * 1088), **{field: value})
    tracemalloc.start()
    try:
        with pytest.raises(LayoutError, match=r'^planes? \d'):
            check_only_padded(ASKED, changed(PADDED, planes=(plane, plane)), [LINEAR])
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
