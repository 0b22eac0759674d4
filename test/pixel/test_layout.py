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

"""Layouts that the package computes, and layouts from others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
import tracemalloc
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from pixel.format_samples import is_safe, PLANES
import pytest

from zc_perception.errors import FormatError, LayoutError
from zc_perception.pixel.fourcc import FORMATS, fourcc_code, NV12
from zc_perception.pixel.layout import (
    check_dimensions,
    compute_layout,
    ImageLayout,
    PlaneLayout,
    validate_layout,
)
from zc_perception.pixel.modifier import INVALID, LINEAR

P010, RG16, XR24, YU12 = map(fourcc_code, ('P010', 'RG16', 'XR24', 'YU12'))


def own_sizes(layout: ImageLayout) -> list[int]:
    return [layout.buffer_size(i) for i in range(layout.num_buffers)]


@given(
    st.sampled_from(sorted(FORMATS)),
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.one_of(st.integers(1, 300), st.integers(1, 1 << 30)),
    st.one_of(st.integers(1, 5000), st.integers(1, 1 << 30)),
    st.one_of(st.integers(1, 64), st.integers(1, 1 << 30)),
    st.booleans(),
)
def test_every_computed_layout_is_valid_and_has_the_alignments(
    fourcc: int,
    width: int,
    height: int,
    stride_align: int,
    offset_align: int,
    height_align: int,
    buffer_per_plane: bool,
) -> None:
    fmt = FORMATS[fourcc]
    layout = compute_layout(
        fourcc, width * fmt.horizontal, height * fmt.vertical,
        stride_align=stride_align, offset_align=offset_align, height_align=height_align,
        buffer_per_plane=buffer_per_plane,
    )  # fmt: skip
    validate_layout(layout, own_sizes(layout))
    assert layout.num_buffers == (len(fmt.planes) if buffer_per_plane else 1)
    if buffer_per_plane:
        assert own_sizes(layout) == [p.size for p in layout.planes]
        assert {p.offset for p in layout.planes} == {0}
    assert all(
        p.stride % stride_align == 0 and p.offset % offset_align == 0 for p in layout.planes
    )
    padded = -(-layout.height // height_align) * height_align
    assert all(
        p.size >= p.stride * (padded // element.vertical)
        for p, element in zip(layout.planes, fmt.planes, strict=True)
    )


def test_words_are_never_torn_whatever_alignment_is_asked() -> None:
    ten_bit = compute_layout(P010, 6, 4, stride_align=5, offset_align=3)
    assert [(p.stride, p.offset) for p in ten_bit.planes] == [(20, 0), (20, 84)]
    assert compute_layout(RG16, 5, 2, stride_align=11).planes == (PlaneLayout(0, 0, 22, 44),)
    # Samples of 10 bits in a row of bytes are no words.
    assert compute_layout(fourcc_code('NV15'), 4, 2, stride_align=3).planes[0].stride == 6


@pytest.mark.parametrize(
    ('width', 'height', 'message'),
    [
        (0, 48, 'width 0 is outside 1 .. 65535'),
        (65536, 48, 'width 65536 is outside 1 .. 65535'),
        pytest.param(
            64, 1 << 99999, 'height a number of 100000 bits is outside 1 .. 65535', id='huge'
        ),
        (63, 48, 'width 63 is not a multiple of 2, which NV12 needs; use 62 or 64'),
        (64, 47, 'height 47 is not a multiple of 2, which NV12 needs; use 46 or 48'),
        (1, 48, 'width 1 is not a multiple of 2, which NV12 needs; use 2'),
        (65535, 48, 'width 65535 is not a multiple of 2, which NV12 needs; use 65534'),
        (64.0, 48, 'width 64.0 is not an integer from 1 to 65535'),
        (64, True, 'height True is not an integer from 1 to 65535'),
        ('x' * 1000, 48, f"width '{'x' * 119}… is not an integer from 1 to 65535"),
    ],
)
def test_impossible_sizes_are_refused(width: Any, height: Any, message: str) -> None:
    for refuse in (
        lambda: compute_layout(NV12, width, height),
        lambda: check_dimensions(FORMATS[NV12], width, height),
    ):
        with pytest.raises(LayoutError) as error:
            refuse()
        assert str(error.value) == message


@pytest.mark.parametrize('name', ['stride_align', 'offset_align', 'height_align'])
@pytest.mark.parametrize('value', [0, (1 << 30) + 1, 64.0])
def test_alignments_are_integers_in_range(name: str, value: Any) -> None:
    with pytest.raises(LayoutError, match=rf'^{name} {value} is (outside|not an integer)'):
        compute_layout(NV12, 64, 48, **{name: value})


def test_a_description_has_format_size_and_planes() -> None:
    assert (
        compute_layout(NV12, 64, 48).describe()
        == 'NV12 LINEAR 64x48 ([0] +0 stride 64, [0] +3072 stride 64)'
    )


def test_no_layout_without_a_modifier() -> None:
    with pytest.raises(TypeError, match='modifier'):
        ImageLayout(width=64, height=48, fourcc=NV12, planes=())  # type: ignore[call-arg]


YUYV = fourcc_code('YUYV')
# INTEL's X tiling, which adds no plane.
TILED = 1 << 56 | 1


def changed(value: Any, **fields: Any) -> Any:
    """Return a copy with fields of any type, as a peer's parser makes them."""
    return replace(value, **fields)


def nv12(*planes: Any, modifier: Any = LINEAR) -> ImageLayout:
    return ImageLayout(64, 48, NV12, modifier, planes)


LUMA = PlaneLayout(0, 0, 64, 3072)
CHROMA = PlaneLayout(0, 3072, 64, 1536)
OWN_CHROMA = PlaneLayout(1, 0, 64, 1536)
GOOD = nv12(LUMA, CHROMA)


def ten_bit(*planes: PlaneLayout) -> ImageLayout:
    return ImageLayout(6, 4, P010, LINEAR, planes)


@pytest.mark.parametrize(
    ('layout', 'sizes'),
    [
        (GOOD, [4608]),
        (nv12(LUMA, OWN_CHROMA), [3072, 1536]),
        (nv12(changed(LUMA, offset=4096), changed(CHROMA, offset=0)), [8192]),
        (nv12(PlaneLayout(0, 100, 80, 80 * 47 + 64), PlaneLayout(0, 4000, 72, 72 * 23 + 64)),
         [4000 + 72 * 23 + 64]),
        (ImageLayout(64, 48, YU12, LINEAR, (LUMA, PlaneLayout(1, 0, 32, 768),
                                            PlaneLayout(1, 768, 32, 768))), [3072, 1536]),
        (ImageLayout(64, 48, YU12, LINEAR, (LUMA, PlaneLayout(1, 0, 32, 768),
                                            PlaneLayout(0, 3072, 32, 768))), [4096, 4096]),
        (ImageLayout(1000, 1000, YUYV, LINEAR, (PlaneLayout(0, 0, 2048, 2048 * 1000),)),
         [2048 * 1000]),
        (ten_bit(PlaneLayout(0, 2, 14, 54), PlaneLayout(0, 56, 12, 24)), [80]),
        (ImageLayout(4, 1, fourcc_code('RG24'), LINEAR, (PlaneLayout(0, 1, 13, 12),)), [13]),
    ],
    ids=['one buffer', 'a buffer per plane', 'chroma first', 'padding in x and y, last row cut',
         'mixed buffers', 'back to a buffer',
         '1000 in 1024', 'words in order', 'bytes need no alignment'],
)  # fmt: skip
def test_true_layouts_pass(layout: ImageLayout, sizes: list[int]) -> None:
    validate_layout(layout, sizes)
    validate_layout(layout, sizes, [(7, inode) for inode in range(len(sizes))])


MANY = 1 << 99999
TOP = (1 << 63) - 1


@pytest.mark.parametrize(
    ('layout', 'sizes', 'message'),
    [
        (nv12(*[LUMA] * 100_000), [9999], 'NV12 LINEAR has 2 planes, but the layout has 100000'),
        (nv12(LUMA, modifier=TILED), [4608],
         'NV12 INTEL:X_TILED has 2 planes, but the layout has 1'),
        (nv12(*[LUMA] * 5, modifier=INVALID), [4608],
         'NV12 INVALID has 2 to 4 planes, but the layout has 5'),
        (changed(GOOD, planes=None), [4608],
         'planes are a NoneType; they must be a tuple of at most 4 PlaneLayouts'),
        (nv12(LUMA, None), [4608],
         'plane 1: None is not a PlaneLayout of buffer, offset, stride and size'),
        (GOOD, [], '2 planes need 1 to 2 buffers, there are 0'),
        (GOOD, [4608] * 3, '2 planes need 1 to 2 buffers, there are 3'),
        (GOOD, [4608, 4608],
         '2 planes use 1 of 2 buffers; leave out buffer 1, which has no plane'),
        (nv12(LUMA, OWN_CHROMA), [4608], 'plane 1: buffer 1 is outside 0 .. 0'),
        (nv12(changed(LUMA, buffer=1), changed(CHROMA, buffer=0, offset=0)), [4608, 4608],
         'plane 0: buffer 1 comes before buffer 0; give the buffers '
         'their numbers in the order of the planes'),
        (nv12(LUMA, OWN_CHROMA), [3072, 0],
         "plane 1: its buffer 1 has 0 bytes; ask the kernel for the buffer's real size"),
        (GOOD, [None],
         "plane 0: its buffer 0 has None bytes; ask the kernel for the buffer's real size"),
        (GOOD, [4607], 'plane 1 ends at byte 4608, but its buffer 0 has 4607 bytes'),
        (nv12(LUMA, changed(CHROMA, offset=3071)), [9999],
         'planes 0 and 1 overlap in buffer 0: one ends at byte 3072, the other starts at 3071'),
        (nv12(changed(LUMA, stride=63), CHROMA), [4608],
         'plane 0: stride 63 is less than the 64 bytes of a row'),
        (nv12(changed(LUMA, size=3071), CHROMA), [4608],
         'plane 0: size 3071 is below the 3072 bytes that 48 rows need'),
        (nv12(LUMA, changed(CHROMA, stride=1 << 32)), [4608],
         'plane 1: stride 4294967296 is outside 0 .. 4294967295'),
        (nv12(LUMA, changed(CHROMA, size=0)), [4608], f'plane 1: size 0 is outside 1 .. {TOP}'),
        (nv12(LUMA, changed(CHROMA, offset=TOP)), [4608],
         f'plane 1 ends at byte {TOP + 1536}, above {TOP}, the largest possible offset'),
        (nv12(LUMA, changed(CHROMA, offset=MANY)), [4608],
         f'plane 1: offset a number of 100000 bits is outside 0 .. {TOP}'),
        (nv12(LUMA, changed(CHROMA, buffer=False)), [4608],
         'plane 1: buffer False is not an integer from 0 to 0'),
        (changed(GOOD, width=63), [4608],
         'width 63 is not a multiple of 2, which NV12 needs; use 62 or 64'),
        (changed(GOOD, fourcc=NV12 + (1 << 32)), [4608],
         'fourcc 5137061454 is outside 0 .. 4294967295'),
        (changed(GOOD, modifier=0.0), [4608], 'modifier 0.0 is not an integer; LINEAR is 0'),
        (ten_bit(PlaneLayout(0, 1, 12, 48), PlaneLayout(0, 50, 12, 24)), [99],
         'plane 0: offset 1 is not a multiple of 2, the bytes of a sample; align it'),
        (ten_bit(PlaneLayout(0, 0, 12, 48), PlaneLayout(0, 48, 13, 26)), [99],
         'plane 1: stride 13 is not a multiple of 2, the bytes of a sample; align it'),
    ],
)  # fmt: skip
def test_messages_name_the_plane_and_the_numbers(
    layout: ImageLayout, sizes: list[int], message: str
) -> None:
    with pytest.raises(LayoutError) as error:
        validate_layout(layout, sizes)
    assert str(error.value) == message


def test_a_format_and_a_modifier_that_there_are_not_are_refused() -> None:
    for wrong in ({'fourcc': 0x41414141}, {'modifier': 1 << 64}, {'modifier': -1}):
        with pytest.raises((FormatError, LayoutError)):
            validate_layout(changed(GOOD, **wrong), [4608])


def test_two_descriptors_of_one_buffer_are_one_memory() -> None:
    """The document allows duplicate handles within an image."""
    overlapping, apart = nv12(LUMA, OWN_CHROMA), nv12(LUMA, changed(OWN_CHROMA, offset=3072))
    validate_layout(overlapping, [4608, 4608])
    validate_layout(overlapping, [4608, 4608], [(1, 10), (1, 11)])
    validate_layout(apart, [4608, 4608], [(1, 10), (1, 10)])
    with pytest.raises(LayoutError) as error:
        validate_layout(overlapping, [4608, 4608], [(1, 10), (1, 10)])
    assert str(error.value) == (
        'planes 1 and 0 overlap in buffers 1 and 0, which are the same memory: one ends at '
        'byte 1536, the other starts at 0'
    )
    with pytest.raises(LayoutError, match=r'^1 identities for 2 buffers; give one for each$'):
        validate_layout(apart, [4608, 4608], [(1, 10)])


@pytest.mark.parametrize('modifier', [TILED, INVALID])
def test_planes_without_rows_are_checked_by_their_extent_alone(modifier: int) -> None:
    # Rows of tiles: the stride may be anything, and the modifier defines the places.
    layout = nv12(PlaneLayout(0, 1, 0, 3072), PlaneLayout(0, 3073, 7, 1), modifier=modifier)
    validate_layout(layout, [3074])
    with pytest.raises(LayoutError, match=r'^plane 1 ends at byte 3074, but its .* 3073 bytes$'):
        validate_layout(layout, [3073])
    with pytest.raises(LayoutError, match=r'^planes 0 and 1 overlap in buffer 0'):
        validate_layout(
            changed(layout, planes=(layout.planes[0], PlaneLayout(0, 3072, 0, 8))), [9999]
        )


@pytest.mark.parametrize('modifier', [INVALID, 1 << 56 | 6])
def test_an_unknown_layout_may_have_planes_of_its_own(modifier: int) -> None:
    """Compression adds planes after the format's own, and INVALID leaves the number open."""
    planes = (
        PlaneLayout(0, 0, 0, 3072),
        PlaneLayout(0, 3072, 0, 1536),
        PlaneLayout(0, 4608, 0, 512),
    )
    validate_layout(nv12(*planes, modifier=modifier), [5120])


@pytest.mark.parametrize('value', [1 << 31, 1 << 4000], ids=int.bit_length)
@pytest.mark.parametrize('field', ['buffer', 'offset', 'stride', 'size'])
def test_no_field_s_value_costs_memory(field: str, value: int) -> None:
    layouts = [
        nv12(changed(LUMA, **{field: value}), CHROMA),
        nv12(*[LUMA] * 1_000_000),
        changed(GOOD, width=value, height=value),
    ]
    tracemalloc.start()
    try:
        for layout in layouts:
            with pytest.raises(LayoutError):
                validate_layout(layout, [4608])
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


class Case(NamedTuple):
    name: str
    layout: ImageLayout
    sizes: list[int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(sorted(PLANES)))
    layout = compute_layout(
        fourcc_code(name), 4 * draw(st.integers(1, 5)), 2 * draw(st.integers(1, 6)),
        stride_align=draw(st.integers(1, 64)), offset_align=draw(st.integers(1, 64)),
        height_align=draw(st.integers(1, 16)), buffer_per_plane=draw(st.booleans()),
    )  # fmt: skip
    spare = draw(st.sampled_from([0, 1, 4096]))
    return Case(name, layout, [layout.buffer_size(i) + spare for i in range(layout.num_buffers)])


@given(cases())
def test_no_sample_of_a_computed_layout_leaves_its_buffer_or_meets_another(case: Case) -> None:
    assert is_safe(case.name, case.layout, own_sizes(case.layout))


def refused_or_safe(case: Case, layout: ImageLayout, sizes: Sequence[int]) -> None:
    try:
        validate_layout(layout, sizes)
    except LayoutError as error:
        assert 'plane' in str(error) and 10 < len(str(error)) < 6000 and '\n' not in str(error)
    else:
        assert is_safe(case.name, layout, sizes), f'{layout} passed with buffers of {sizes} bytes'


#: Values of a broken or hostile peer.
WILD = [
    -1, 0, 1, 2, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 20000, 0.0,
    float('nan'), float('inf'), '64', b'64', None, True, (), [64], {'offset': 0}, 1j, object(),
]  # fmt: skip


@settings(max_examples=250)
@given(cases(), st.data())
def test_a_corrupted_field_is_refused_or_harmless(case: Case, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(case.layout.planes) - 1))
    plane = case.layout.planes[index]
    name = data.draw(st.sampled_from(['buffer', 'offset', 'stride', 'size']))
    good = getattr(plane, name)
    near = st.integers(-300, 300).map(lambda delta: good + delta)
    value = data.draw(
        st.one_of(
            near, st.integers(-(1 << 66), 1 << 66), st.sampled_from([good // 2, good * 2, *WILD])
        )
    )
    planes = list(case.layout.planes)
    planes[index] = changed(plane, **{name: value})
    refused_or_safe(case, changed(case.layout, planes=tuple(planes)), case.sizes)


@given(cases(), st.data())
def test_planes_in_the_same_memory_never_share_a_byte(case: Case, data: st.DataObject) -> None:
    identities = [data.draw(st.integers(1, 2)) for _ in case.sizes]
    try:
        validate_layout(case.layout, case.sizes, identities)
    except LayoutError as error:
        assert 'overlap in buffers' in str(error)
        assert not is_safe(case.name, case.layout, case.sizes, identities)
    else:
        assert is_safe(case.name, case.layout, case.sizes, identities)
