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
Layouts of others.

What passes lets nobody touch a byte outside the buffers, and what doesn't is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
import tracemalloc
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pixel.layout_oracle import is_safe, PLANES
import pytest

from zc_perception.errors import LayoutError
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.layout import compute_layout, ImageLayout, PlaneLayout, validate_layout
from zc_perception.pixel.modifier import INVALID, LINEAR

P010, RG16, YU12, YUYV = map(fourcc_code, ('P010', 'RG16', 'YU12', 'YUYV'))
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
        (nv12(LUMA), [4608], 'NV12 LINEAR has 2 planes, the layout has 1'),
        (nv12(), [4608], 'NV12 LINEAR has 2 planes, the layout has 0'),
        (nv12(LUMA, CHROMA, PlaneLayout(0, 4608, 64, 1)), [9999], ('NV12 LINEAR has 2 planes, the '
                                                                   'layout has 3')),
        (nv12(*[LUMA] * 100_000), [9999], 'NV12 LINEAR has 2 planes, the layout has 100000'),
        (nv12(LUMA, modifier=TILED), [4608], 'planes, the layout has 1'),
        (nv12(*[LUMA] * 5, modifier=TILED), [4608], 'planes, the layout has 5'),
        (nv12(*[LUMA] * 5, modifier=INVALID), [4608], ('NV12 INVALID has 2 to 4 planes, the '
                                                       'layout has 5')),
        (changed(GOOD, planes=[LUMA, CHROMA]), [4608], ('planes are a list; they must be a tuple '
                                                        'of at most 4 PlaneLayouts')),
        (changed(GOOD, planes=None), [4608], ('planes are a NoneType; they must be a tuple of '
                                              'at most 4 PlaneLayouts')),
        (nv12(LUMA, None), [4608], ('plane 1: None is not a PlaneLayout of buffer, offset, '
                                    'stride and size')),
        (nv12((0, 0, 64, 3072), CHROMA), [4608], ('plane 0: (0, 0, 64, 3072) is not a '
                                                  'PlaneLayout of buffer, offset, stride and '
                                                  'size')),
        (GOOD, [], '2 planes need 1 to 2 buffers, there are 0'),
        (GOOD, [4608] * 3, '2 planes need 1 to 2 buffers, there are 3'),
        (GOOD, [4608, 4608], ('2 planes use 1 of 2 buffers; leave out buffer 1, which has no '
                              'plane')),
        (nv12(LUMA, OWN_CHROMA), [4608], 'plane 1: buffer 1 is outside 0 .. 0'),
        (nv12(LUMA, changed(CHROMA, buffer=-1)), [4608], 'plane 1: buffer -1 is outside 0 .. 0'),
        (nv12(changed(LUMA, buffer=1), changed(CHROMA, buffer=0, offset=0)), [4608, 4608],
         'plane 0: buffer 1 comes before buffer 0; number buffers in the order of the planes'),
        (nv12(LUMA, OWN_CHROMA), [1536, 3072], ('plane 0: ends at byte 3072, its buffer 0 has '
                                                '1536')),
        (nv12(LUMA, OWN_CHROMA), [3072, 0], ('plane 1: its buffer 1 has 0 bytes; ask the '
                                             "kernel for the buffer's real size")),
        (GOOD, [-1], ("plane 0: its buffer 0 has -1 bytes; ask the kernel for the buffer's "
                      'real size')),
        (GOOD, [None], ("plane 0: its buffer 0 has None bytes; ask the kernel for the buffer's "
                        'real size')),
        (GOOD, [4607], 'plane 1: ends at byte 4608, its buffer 0 has 4607'),
        (nv12(LUMA, changed(CHROMA, offset=3071)), [9999],
         'planes 0 and 1 overlap in buffer 0: one ends at byte 3072, the other starts at 3071'),
        (nv12(LUMA, changed(CHROMA, offset=0)), [9999],
         'planes 1 and 0 overlap in buffer 0: one ends at byte 1536, the other starts at 0'),
        (nv12(changed(LUMA, stride=63), CHROMA), [4608], ('plane 0: stride 63 is below the row of '
                                                          '64 bytes')),
        (nv12(LUMA, changed(CHROMA, stride=0)), [4608], ('plane 1: stride 0 is below the row of '
                                                         '64 bytes')),
        (nv12(changed(LUMA, size=3071), CHROMA), [4608], ('plane 0: size 3071 is below the 3072 '
                                                          'bytes that 48 rows need')),
        (nv12(changed(LUMA, stride=65), CHROMA), [4608], ('plane 0: size 3072 is below the 3119 '
                                                          'bytes that 48 rows need')),
        (nv12(LUMA, changed(CHROMA, stride=(1 << 32) - 1)), [4608],
         'plane 1: size 1536 is below the 98784247849 bytes that 24 rows need'),
        (nv12(LUMA, changed(CHROMA, stride=1 << 32)), [4608], ('plane 1: stride 4294967296 is '
                                                               'outside 0 .. 4294967295')),
        (nv12(LUMA, changed(CHROMA, stride=-64)), [4608], ('plane 1: stride -64 is outside 0 .. '
                                                           '4294967295')),
        (nv12(changed(LUMA, offset=-1), CHROMA), [4608], ('plane 0: offset -1 is outside 0 .. '
                                                          f'{TOP}')),
        (nv12(LUMA, changed(CHROMA, size=0)), [4608], f'plane 1: size 0 is outside 1 .. {TOP}'),
        (nv12(LUMA, changed(CHROMA, offset=1 << 63)), [4608], (f'plane 1: offset {1 << 63} is '
                                                               f'outside 0 .. {TOP}')),
        (nv12(LUMA, changed(CHROMA, size=(1 << 64) - 1)), [4608],
         f'plane 1: size {(1 << 64) - 1} is outside 1 .. {TOP}'),
        (nv12(LUMA, changed(CHROMA, offset=TOP)), [4608], (f'plane 1: ends at byte {TOP + 1536}, '
                                                           f'above {TOP}, where any file ends')),
        (nv12(LUMA, changed(CHROMA, offset=(1 << 64) - 1536)), [4608],
         f'plane 1: offset {(1 << 64) - 1536} is outside 0 .. {TOP}'),
        (nv12(LUMA, changed(CHROMA, offset=MANY)), [4608], ('plane 1: offset a number of 100000 '
                                                            f'bits is outside 0 .. {TOP}')),
        (nv12(LUMA, changed(CHROMA, offset=3072.0)), [4608],
         f'plane 1: offset 3072.0 is not an integer; it must be one in 0 .. {TOP}'),
        (nv12(LUMA, changed(CHROMA, stride='64')), [4608],
         "plane 1: stride '64' is not an integer; it must be one in 0 .. 4294967295"),
        (nv12(LUMA, changed(CHROMA, size=None)), [4608], ('plane 1: size None is not an integer; '
                                                          f'it must be one in 1 .. {TOP}')),
        (nv12(LUMA, changed(CHROMA, buffer=False)), [4608], ('plane 1: buffer False is not an '
                                                             'integer; it must be one in 0 .. 0')),
        (nv12(LUMA, changed(CHROMA, size=[64])), [4608], ('plane 1: size [64] is not an integer; '
                                                          f'it must be one in 1 .. {TOP}')),
        (changed(GOOD, width=63), [4608], ('width 63 is not a multiple of 2, which NV12 needs; '
                                           'use 62 or 64')),
        (changed(GOOD, height=47), [4608], ('height 47 is not a multiple of 2, which NV12 '
                                            'needs; use 46 or 48')),
        (changed(GOOD, width=float('nan')), [4608], ('width nan is not an integer; it must be '
                                                     'one in 1 .. 65535')),
        (changed(GOOD, fourcc='NV12'), [4608], ("fourcc 'NV12' is not an integer; it must be "
                                                'one in 0 .. 4294967295')),
        (changed(GOOD, fourcc=float(NV12)), [4608], ('fourcc 842094158.0 is not an integer; it '
                                                     'must be one in 0 .. 4294967295')),
        (changed(GOOD, fourcc=NV12 + (1 << 32)), [4608], ('fourcc 5137061454 is outside 0 .. '
                                                          '4294967295')),
        (changed(GOOD, modifier=None), [4608], 'modifier None is not an integer; LINEAR is 0'),
        (changed(GOOD, modifier=0.0), [4608], 'modifier 0.0 is not an integer; LINEAR is 0'),
        (changed(GOOD, modifier=False), [4608], 'modifier False is not an integer; LINEAR is 0'),
        (ten_bit(PlaneLayout(0, 1, 12, 48), PlaneLayout(0, 50, 12, 24)), [99],
         'plane 0: offset 1 is not a multiple of 2, the bytes of a sample; align it'),
        (ten_bit(PlaneLayout(0, 0, 12, 48), PlaneLayout(0, 48, 13, 26)), [99],
         'plane 1: stride 13 is not a multiple of 2, the bytes of a sample; align it'),
        (ImageLayout(2, 2, RG16, LINEAR, (PlaneLayout(0, 3, 4, 8),)), [99],
         'plane 0: offset 3 is not a multiple of 2, the bytes of a sample; align it'),
    ],
)  # fmt: skip
def test_messages_name_the_plane_and_the_numbers(
    layout: ImageLayout, sizes: list[int], message: str
) -> None:
    with pytest.raises(LayoutError) as error:
        validate_layout(layout, sizes)
    assert (
        str(error.value).endswith(message)
        if message.startswith('planes,')
        else str(error.value) == message
    )


def test_two_descriptors_of_one_buffer_are_one_memory() -> None:
    """
    The document lets a handle be duplicated within an image.

    Then its planes must not overlap either.
    """
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
    # Rows of tiles: a stride may be anything, and odd places are the modifier's affair.
    layout = nv12(PlaneLayout(0, 1, 0, 3072), PlaneLayout(0, 3073, 7, 1), modifier=modifier)
    validate_layout(layout, [3074])
    with pytest.raises(LayoutError, match=r'^plane 1: ends at byte 3074, its buffer 0 has 3073$'):
        validate_layout(layout, [3073])
    with pytest.raises(LayoutError, match=r'^planes 0 and 1 overlap in buffer 0'):
        validate_layout(
            changed(layout, planes=(layout.planes[0], PlaneLayout(0, 3072, 0, 8))), [9999]
        )


@pytest.mark.parametrize(('modifier', 'count'), [(LINEAR, 1), (TILED, 1)])
def test_the_modifier_settles_the_number_of_planes(modifier: int, count: int) -> None:
    planes = tuple(PlaneLayout(0, 4096 * i, 256, 4096) for i in range(4))
    for given_count in range(1, 5):
        layout = ImageLayout(64, 16, fourcc_code('XR24'), modifier, planes[:given_count])
        if given_count == count:
            validate_layout(layout, [4 * 4096])
        else:
            with pytest.raises(
                LayoutError, match=rf'has {count} planes, the layout has {given_count}$'
            ):
                validate_layout(layout, [4 * 4096])


@pytest.mark.parametrize('modifier', [INVALID, 1 << 56 | 6])
def test_an_unknown_layout_may_have_planes_of_its_own(modifier: int) -> None:
    """
    Compression, such as I915_FORMAT_MOD_Y_TILED_GEN12_RC_CCS, adds planes behind the format's.

    INVALID says nothing of how many.
    """
    planes = (
        PlaneLayout(0, 0, 0, 3072),
        PlaneLayout(0, 3072, 0, 1536),
        PlaneLayout(0, 4608, 0, 512),
    )
    validate_layout(nv12(*planes, modifier=modifier), [5120])


@pytest.mark.parametrize(
    'value', [1 << 31, 1 << 62, 1 << 63, (1 << 64) - 1, 1 << 4000], ids=int.bit_length
)
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


@dataclass(frozen=True)
class Case:
    """A good layout and the real sizes of its buffers."""

    name: str
    layout: ImageLayout
    sizes: list[int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(sorted(PLANES)))
    layout = compute_layout(
        fourcc_code(name),
        4 * draw(st.integers(1, 5)),
        2 * draw(st.integers(1, 6)),
        stride_align=draw(st.integers(1, 64)),
        offset_align=draw(st.integers(1, 64)),
        height_align=draw(st.integers(1, 16)),
        buffer_per_plane=draw(st.booleans()),
    )
    spare = draw(st.sampled_from([0, 1, 4096]))
    return Case(name, layout, [layout.buffer_size(i) + spare for i in range(layout.num_buffers)])


def refused_or_safe(case: Case, layout: ImageLayout, sizes: Sequence[int]) -> None:
    try:
        validate_layout(layout, sizes)
    except LayoutError as error:
        assert any(
            word in str(error) for word in ('plane 0:', 'plane 1:', 'plane 2:', 'planes')
        ), f'names no plane: {error}'
    else:
        assert is_safe(case.name, layout, sizes), f'{layout} passed with buffers of {sizes} bytes'


WILD = [-1, 0, 1, 2, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64]


@settings(max_examples=400)
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
