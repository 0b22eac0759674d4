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
Whether another setting would suit every participant, and what stands against it.

Also for which consumers a stand-in speaks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from negotiation.kit import Producer, SIZE, who
import pytest

from zc_perception.errors import AcceleratorError
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.session import BufferSession, Consumer, Verdict
from zc_perception.negotiation.settings import Buffers, BufferSettings, violations

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
    """Its slots are counted once, and its own constraints hold, not those that spoke for it."""
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


def test_a_setting_that_suits_the_newcomer_too_is_known_before_it_is_made(
    producer: Producer,
) -> None:
    session = BufferSession(CAMERA, SIZE)
    session.allocate([Consumer(who('npu', stride_align=64))], producer)
    late = Consumer(who('late', 'NV12 linear', stride_align=256))
    assert session.join(late).verdict is Verdict.REFUSED
    assert session.stands_against([late]) == ''
    assert len(producer.requests) == 1


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
    """
    A consumer that has buffers keeps them.

    A newcomer for which a setting exists gets it, without harm to the others.
    """
    # Of other layouts only their allocator knows what they need.
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
