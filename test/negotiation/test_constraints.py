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

"""Constraints that can't be satisfied are refused on creation, with one sentence."""

from __future__ import annotations

from dataclasses import replace
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from negotiation.kit import f, NV12, who
import pytest

from zc_perception.errors import NegotiationError
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.negotiation.constraints import BufferConstraints, formats_text, Placement
from zc_perception.negotiation.settings import (
    BufferSettings,
    heap_offer,
    HeapOffer,
    ImageLimits,
    joint_limits,
    violations,
)
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import compute_layout, ImageLayout, PlaneLayout
from zc_perception.pixel.modifier import INVALID, LINEAR


def test_of_many_formats_the_first_few_are_shown() -> None:
    nv12 = (fourcc_code('NV12'), LINEAR)
    assert formats_text(None) == 'any'
    assert formats_text([nv12] * 4) == ', '.join(['NV12 LINEAR'] * 4)
    assert formats_text([nv12] * 5) == 'NV12 LINEAR, NV12 LINEAR, NV12 LINEAR and 2 more'


def test_without_limits_a_layout_is_tight() -> None:
    (plane,) = ImageLimits().layout(fourcc_code('R8  '), (5, 3), None).planes
    assert (plane.stride, plane.size) == (5, 15)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        (
            {'stride_align': 0},
            "constraints of 'npu': stride_align 0 is not an integer in 1 .. 1073741824",
        ),
        ({'height_align': 1.5}, 'height_align 1.5 is not'),
        (
            {'formats': (f('NV12 linear'), f('NV12 linear'))},
            'NV12 LINEAR is listed twice; name each format once',
        ),
        ({'formats': ((NV12, 1 << 64),)}, 'NV12: modifier 0x10000000000000000'),
        (
            {'formats': (f('NV12 linear'),), 'costs': ()},
            'costs has 0 entries for 1 formats; state one for each',
        ),
        (
            {'formats': (f('NV12 linear'),), 'costs': (math.inf,)},
            'must be finite numbers; leave out formats that must not be chosen',
        ),
        ({'min_size': (10, 10), 'max_size': (20, 9)}, 'min_size 10x10 is above max_size 20x9'),
        ({'slots': 4, 'max_slots': 3}, 'slots 4 must be at most max_slots 3'),
    ],
)
def test_impossible_constraints_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NegotiationError) as refused:
        BufferConstraints('npu', **fields)
    assert message in str(refused.value) and "constraints of 'npu'" in str(refused.value)


@pytest.mark.parametrize(
    ('heaps', 'heap', 'accepted'),
    [
        (None, 'memfd', True),
        (('dma_heap/',), 'dma_heap/system', True),
        (('dma_heap/',), 'dma_heap', False),
        (('dma_heap/sys',), 'dma_heap/system', False),
        ((), 'memfd', False),
    ],
)
def test_heaps_are_names_or_prefixes(
    heaps: tuple[str, ...] | None, heap: str, accepted: bool
) -> None:
    assert BufferConstraints('npu', heaps=heaps).accepts_heap(heap) is accepted


@pytest.mark.parametrize(
    ('name', 'contiguous', 'reaches'),
    [
        ('dma_heap/system', False, True),
        ('udmabuf', False, True),
        ('memfd', False, False),
        ('v4l2/vivid', None, True),
    ],
)
def test_what_a_heap_s_name_tells(name: str, contiguous: bool | None, reaches: bool) -> None:
    offer = heap_offer(name)
    assert (offer.contiguous, offer.attachable) == (contiguous, reaches)


# The checks that apply both to late joiners and to allocators' answers.


BASE = BufferSettings(
    compute_layout(NV12, 640, 480, stride_align=64, offset_align=64),
    4,
    HeapOffer('dma_heap/system', contiguous=False),
)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        (
            {'formats': (f('NV12 tiled'), f('YUYV linear'))},
            'format NV12 LINEAR is not one of its formats (NV12 NVIDIA',
        ),
        ({'stride_align': 256}, 'plane 0: stride 640 is not a multiple of its stride_align 256'),
        (
            {'offset_align': 65536},
            'plane 1: offset 307200 is not a multiple of its offset_align 65536',
        ),
        ({'max_stride': 639}, 'a stride of 640 bytes is above max_stride 639'),
        ({'height_align': 64}, 'plane 0 has 307200 bytes, too few for 512 rows (height_align 64)'),
        ({'min_size': (641, 1)}, 'takes images of at least 641x1, not 640x480'),
        ({'max_size': (640, 479)}, 'takes images of at most 640x479, not 640x480'),
        (
            {'placement': Placement.BUFFER_PER_PLANE},
            'planes lie in 1 buffer(s), but it needs one buffer for each plane',
        ),
        ({'contiguous': True}, "needs contiguous memory, which heap 'dma_heap/system' is not"),
        ({'slots': 5}, 'there are 4 slots, but it needs 5'),
        ({'max_slots': 3}, 'there are 4 slots, but it allows at most 3 (max_slots)'),
    ],
)
def test_every_constraint_is_checked_against_the_buffers(
    fields: dict[str, Any], message: str
) -> None:
    found = violations(BufferConstraints('npu', **fields), BASE)
    assert message in found[0] and len(found) <= len(BASE.layout.planes), found


def test_the_last_row_need_not_be_whole() -> None:
    """A driver's buffer may end with the last pixel."""
    luma, chroma = compute_layout(NV12, 60, 48, stride_align=64).planes
    cut = replace(
        BASE,
        layout=ImageLayout(60, 48, NV12, LINEAR, (luma, replace(chroma, size=chroma.size - 4))),
    )
    assert violations(BufferConstraints('npu'), cut) == []
    assert 'too few for 64 rows' in violations(BufferConstraints('npu', height_align=64), cut)[0]
    shorter = replace(
        cut, layout=replace(cut.layout, planes=(luma, replace(chroma, size=chroma.size - 5)))
    )
    assert violations(BufferConstraints('npu'), shorter) == [
        'plane 1 has 1531 bytes, too few for 48 rows (height_align 1)'
    ]


@pytest.mark.parametrize(
    'fields', [{'heaps': ('udmabuf',)}, {'contiguous': True}, {'devices': ('/dev/metis-0:1:0',)}]
)
def test_memory_of_an_unknown_heap_is_no_promise(fields: dict[str, Any]) -> None:
    unknown = replace(BASE, heap=None)
    assert violations(BufferConstraints('npu', **fields), unknown) == [
        'it wants a certain kind of memory, but the heap of these buffers is not known'
    ]
    assert violations(BufferConstraints('viewer'), unknown) == []


def test_a_cpu_and_an_unknown_layout() -> None:
    implicit = replace(BASE, layout=replace(BASE.layout, modifier=INVALID))
    assert violations(who('cpu', cpu_access=CpuAccess.READ), implicit) == [
        'format NV12 INVALID is not one of its formats (only LINEAR for its CPU access)'
    ]
    assert violations(who('viewer'), implicit) == []


def test_mixed_planes_are_neither_placement() -> None:
    yu12 = f('YU12 linear')[0]
    planes = (
        PlaneLayout(0, 0, 64, 64 * 48),
        PlaneLayout(1, 0, 32, 32 * 24),
        PlaneLayout(1, 32 * 24, 32, 32 * 24),
    )
    settings = BufferSettings(ImageLayout(64, 48, yu12, LINEAR, planes), 1)
    assert settings.placement is None
    for placement in Placement:
        assert len(violations(BufferConstraints('npu', placement=placement), settings)) == 1
    one_plane = BufferSettings(compute_layout(f('YUYV linear')[0], 64, 48), 1)
    assert all(not violations(BufferConstraints('npu', placement=p), one_plane) for p in Placement)


STEPS = st.sampled_from([1, 3, 16, 64, 100])


@given(
    st.lists(
        st.tuples(STEPS, STEPS, STEPS, st.none() | st.integers(1, 9999)), min_size=1, max_size=4
    )
)
def test_joint_limits_keep_everybody_s(limits: list[tuple[int, int, int, int | None]]) -> None:
    joint = joint_limits([
        BufferConstraints(f'p{number}', stride_align=stride, offset_align=offset,
                          height_align=height, max_stride=most)
        for number, (stride, offset, height, most) in enumerate(limits)
    ])  # fmt: skip
    for stride, offset, height, most in limits:
        assert (
            joint.stride_align % stride
            == joint.offset_align % offset
            == joint.height_align % height
            == 0
        )
        assert most is None or (joint.max_stride is not None and joint.max_stride <= most)
    assert joint.max_stride in {most for *_, most in limits}
    layout = joint.layout(NV12, (64, 48), None)
    assert all(
        not violations(BufferConstraints('p', height_align=height), BufferSettings(layout, 1))
        for _, _, height, _ in limits
    )
