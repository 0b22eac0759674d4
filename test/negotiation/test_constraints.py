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

from collections.abc import Iterator
from dataclasses import replace
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from negotiation.kit import f, NV12, Producer, SIZE, who
import pytest

from zc_perception.errors import AcceleratorError, NegotiationError
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.negotiation.constraints import BufferConstraints, formats_text, Placement
from zc_perception.negotiation.session import BufferSession, Consumer, Verdict
from zc_perception.negotiation.settings import (
    Buffers,
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
        ({'max_stride': 639}, 'has a stride of 640 bytes, above max_stride 639'),
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


# Whether another setting would suit every participant, and which constraints forbid it.


CAMERA = who('camera', 'NV12 linear', slots=2)


@pytest.fixture
def producer(no_fd_leak: None) -> Iterator[Producer]:
    made = Producer()
    yield made
    made.close()


@pytest.mark.parametrize(
    'consumer',
    [
        Consumer(who('npu', 'NV12 linear', slots=3)),
        Consumer(who('npu (pid 7)', 'NV12 linear', slots=3), name='npu'),
    ],
    ids=['of this process', 'of another process'],
)
def test_a_consumer_takes_the_place_of_its_stand_in(
    producer: Producer, consumer: Consumer
) -> None:
    """Its slots count once, and its own constraints replace those of its stand-in."""
    npu = who('npu', 'YUYV linear', slots=3)
    display = who('display', 'NV12 linear', slots=1)
    session = BufferSession(CAMERA, SIZE, stand_ins=[npu, display])
    assert session.allocate([consumer], producer).slots == 2 + 3 + 1
    verdicts = {name: outcome.verdict for name, outcome in session.outcomes().items()}
    assert verdicts == {
        'camera': Verdict.ACCEPTED,
        consumer.constraints.participant: Verdict.ACCEPTED,
        'display': Verdict.STAND_IN,
    }


def test_a_stand_in_speaks_again_for_a_consumer_that_has_left(producer: Producer) -> None:
    npu = who('npu', 'NV12 linear', slots=3)
    consumer = Consumer(replace(npu, participant='npu (pid 7)'), name='npu')
    session = BufferSession(CAMERA, SIZE, stand_ins=[npu])
    session.allocate([consumer], producer)
    session.leave(consumer)
    assert session.outcome(consumer) is None
    assert session.outcomes()['npu'].verdict is Verdict.STAND_IN
    assert session.join(consumer).verdict is Verdict.ACCEPTED, 'the slots are for it'


def test_what_a_camera_could_make_if_it_were_opened_anew_counts(producer: Producer) -> None:
    late = Consumer(who('late', 'YUYV linear'))
    for possible, works in ((None, False), (who('camera', 'NV12 linear', 'YUYV linear'), True)):
        session = BufferSession(CAMERA, SIZE)
        session.possible = possible or CAMERA
        session.allocate([], producer)
        assert (session.stands_against([late]) == '') is works


def test_each_who_stands_against_a_newcomer_is_named(producer: Producer) -> None:
    camera = who('camera', 'NV12 linear', 'YUYV linear', slots=2)
    npu, viewer = Consumer(who('npu', 'NV12 linear')), Consumer(who('viewer', max_stride=64))
    session = BufferSession(camera, SIZE)
    session.allocate([npu, viewer], producer)
    reason = session.stands_against([Consumer(who('late', 'YUYV linear'))])
    assert 'npu: NV12 LINEAR' in reason and 'late: YUYV LINEAR' in reason, reason
    reason = session.stands_against([Consumer(who('wide', stride_align=128))])
    assert 'viewer takes at most 64' in reason and 'wide 128' in reason, reason
    session.leave(npu)
    assert session.stands_against([Consumer(who('late', 'YUYV linear', max_stride=128))]) == (
        'YUYV LINEAR 64x48 has a stride of 128 bytes, but viewer takes at most 64; '
        'choose a narrower image or change one of them'
    )


def test_who_has_no_buffers_stands_against_nobody(producer: Producer) -> None:
    def refuse(settings: BufferSettings, buffers: Buffers) -> None:
        raise AcceleratorError('the card refuses it')

    refused, broken = (
        Consumer(who('refused', 'YUYV linear')),
        Consumer(who('broken', max_stride=64), refuse),
    )
    session = BufferSession(CAMERA, SIZE)
    session.allocate([refused, broken], producer)
    assert str(session.outcome(broken)).startswith('fell back: trial import of slot 0')
    assert session.objection(broken).endswith('failed: the card refuses it')
    assert session.stands_against([Consumer(who('wide', stride_align=128))]) == ''
    assert session.stands_against([refused]) != ''


def _constraints() -> st.SearchStrategy[list[BufferConstraints]]:
    names = ['NV12 linear', 'YUYV linear', 'NV12 tiled', 'NV12 implicit']
    formats = st.lists(st.sampled_from(names), unique=True, max_size=3)
    step = st.sampled_from([1, 2, 48, 64, 100, 4096])
    one = st.builds(
        lambda found, stride, offset, height, most, slots: who(
            'one',
            *found,
            stride_align=stride,
            offset_align=offset,
            height_align=height,
            max_stride=most,
            slots=slots,
        ),
        formats,
        step,
        step,
        st.sampled_from([1, 16, 40]),
        st.sampled_from([None, 64, 128, 4096]),
        st.integers(0, 3),
    )
    return st.lists(one, max_size=4).map(
        lambda found: [replace(each, participant=f'c{index}') for index, each in enumerate(found)]
    )


@given(_constraints(), _constraints())
def test_whoever_comes_the_agreement_keeps_what_it_promised(
    early: list[BufferConstraints], late: list[BufferConstraints]
) -> None:
    """A consumer that has buffers keeps them."""
    # For other layouts only the allocator computes the sizes.
    camera = who('camera', 'NV12 linear', 'YUYV linear', slots=2)
    producer = Producer()
    consumers = [Consumer(each) for each in early]

    def agreed(there: list[Consumer]) -> BufferSession:
        session = BufferSession(camera, SIZE)
        settings = session.allocate(there, producer)
        for one in there:
            outcome = session.outcome(one)
            assert outcome is not None
            if outcome.has_buffers:
                assert not violations(one.constraints, settings)
        return session

    def served(session: BufferSession) -> list[Consumer]:
        return [
            one for one in there if (out := session.outcome(one)) is not None and out.has_buffers
        ]

    try:
        there = consumers
        session = agreed(there)
        assert session.stands_against([]) == '', 'what is agreed on is a setting for all'
        for newcomer in (
            Consumer(replace(each, participant=f'late {each.participant}')) for each in late
        ):
            before = served(session)
            if session.join(newcomer).has_buffers or session.stands_against([newcomer]):
                continue
            there = [*before, newcomer]
            session = agreed(there)
            assert served(session) == there, 'a setting for all was promised'
    finally:
        producer.close()
