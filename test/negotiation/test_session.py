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

"""One camera's agreement with all users of its buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any
from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st
from negotiation.kit import NV12, Producer, SIZE, TILED, who, YUYV
import pytest

from zc_perception.errors import AcceleratorError, ConfigError, NegotiationError
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.negotiation.constraints import (
    BufferConstraints,
    parse_stand_in,
    parse_stand_ins,
    Placement,
)
from zc_perception.negotiation.session import BufferSession, Consumer, Verdict
from zc_perception.negotiation.settings import Buffers, BufferSettings, heap_offer, violations
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import INVALID, LINEAR

CAMERA = who('camera', 'NV12 linear', slots=2)


@pytest.fixture
def producer(no_fd_leak: None) -> Iterator[Producer]:
    made = Producer()
    yield made
    made.close()


class Importer:
    """A trial import that records inodes, and returns the buffers that it kept."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.seen: list[int] = []
        self.given_back: list[int] = []

    def __call__(self, settings: BufferSettings, buffers: Buffers) -> object:
        if len(self.seen) == self.fails_at:
            raise OSError('EINVAL')
        inode = buffers[0].identity.inode
        self.seen.append(inode)
        return lambda: self.given_back.append(inode)


def test_everybody_who_fits_is_accepted_and_imports_every_slot(producer: Producer) -> None:
    importer = Importer()
    npu = Consumer(who('npu', 'NV12 linear', stride_align=128, slots=3), importer)
    session = BufferSession(
        CAMERA, SIZE, wanted_slots=4, stand_ins=[who('display', 'NV12 linear', slots=1)]
    )
    with pytest.raises(NegotiationError, match='not allocated yet'):
        session.settings  # noqa: B018
    assert session.objection(npu) == '', 'there are no buffers that it must not get'
    settings = session.allocate([npu], producer)
    assert (settings.slots, settings.layout.planes[0].stride) == (6, 128)
    assert (
        importer.seen == [buffer.identity.inode for buffer in producer.buffers]
        and not importer.given_back
    )
    assert {name: outcome.verdict for name, outcome in session.outcomes().items()} == {
        'camera': Verdict.ACCEPTED, 'npu': Verdict.ACCEPTED, 'display': Verdict.STAND_IN,
    }  # fmt: skip


def test_a_stand_in_that_does_not_fit_is_an_error_before_anything_is_allocated(
    producer: Producer,
) -> None:
    display = who('display', 'NV12 linear', max_size=(32, 24))
    session = BufferSession(CAMERA, SIZE, stand_ins=[display])
    with pytest.raises(NegotiationError, match='display takes images of at most 32x24, not 64x48'):
        session.allocate([], producer)
    assert not producer.requests and not session.settled


def test_who_does_not_fit_or_can_not_import_gets_no_buffers_and_the_others_go_on(
    producer: Producer,
) -> None:
    broken, whole = Importer(fails_at=2), Importer()
    tiled, vic = Consumer(who('gpu', 'NV12 tiled')), Consumer(who('vic'), broken)
    npu = Consumer(who('npu', 'NV12 linear'), whole)
    session = BufferSession(CAMERA, SIZE, wanted_slots=4)
    assert session.allocate([tiled, vic, npu], producer).format == (NV12, LINEAR)
    refused, fallen = session.outcomes()['gpu'], session.outcomes()['vic']
    assert refused.verdict is Verdict.REFUSED and 'gpu' in refused.reason
    assert 'every participant can use NV12, but no modifier is common' in refused.reason
    assert 'refused: ' in session.objection(tiled)
    assert fallen.verdict is Verdict.FELL_BACK
    why = 'fell back: trial import of slot 2 of 4 failed: OSError: EINVAL'
    assert session.objection(vic) == why
    assert broken.given_back == broken.seen[::-1], 'an import is undone, the last first'
    assert session.objection(npu) == '' and len(whole.seen) == 4


def test_what_the_allocator_pads_against_a_consumer_s_wish_costs_that_consumer_only(
    producer: Producer,
) -> None:
    """A driver may ignore the alignment that it was asked for."""
    producer.vary = lambda allocation: replace(allocation, layout=compute_layout(NV12, *SIZE))
    npu = Consumer(who('npu', stride_align=128))
    session = BufferSession(CAMERA, SIZE)
    session.allocate([npu], producer)
    assert session.objection(
        npu
    ) == 'refused: plane 0: stride 64 is not a multiple of stride_align 128; ' + (
        'plane 1: stride 64 is not a multiple of stride_align 128'
    )


@pytest.mark.parametrize(
    ('vary', 'message'),
    [
        (lambda a: replace(a, layout=replace(a.layout, modifier=TILED)),
         'NV12 .LINEAR. 64x48, 2 slots; it chose modifier NVIDIA:0x00000000000010$'),
        (lambda a: replace(a, layout=replace(a.layout, fourcc=YUYV)),
         "asked for NV12 .*; it answered 'YUYV'; it may not change the format"),
        (lambda a: replace(a, layout=replace(a.layout, width=32)),
         ('asked for NV12 .* 64x48, .*; it answered 32x48 pixels; it may not change the size, '
          'only add padding by strides, offsets and buffer sizes')),
        (lambda a: replace(a, layout=compute_layout(NV12, *SIZE, stride_align=4096)),
         r'plane 0 ends at byte \d+, but its buffer 0 has'),
        (lambda a: replace(a, buffers=a.buffers[:1]), ('the allocator gave 1 slots, '
                                                       'participants need 2')),
    ],
)  # fmt: skip
def test_a_camera_that_answers_something_else_is_an_error(
    producer: Producer, vary: object, message: str
) -> None:
    producer.vary = vary
    session = BufferSession(CAMERA, SIZE)
    with pytest.raises(NegotiationError, match=message):
        session.allocate([], producer)
    assert not session.settled and session.objection(Consumer(who('npu'))) == ''


def test_an_implicit_layout_stays_implicit_whatever_the_allocator_tells_afterwards(
    producer: Producer,
) -> None:
    camera = who('camera', 'NV12 implicit')
    knows, reads = (
        Consumer(who('npu', 'NV12 implicit')),
        Consumer(who('cpu', cpu_access=CpuAccess.READ)),
    )
    producer.vary = lambda a: replace(a, layout=replace(a.layout, modifier=TILED))
    session = BufferSession(camera, SIZE)
    assert session.allocate([knows, reads], producer).layout.modifier == INVALID
    assert session.objection(knows) == '' and 'needs LINEAR' in session.objection(reads)


def test_who_comes_late_must_suit_what_is_there(producer: Producer) -> None:
    session = BufferSession(CAMERA, SIZE, wanted_slots=6)
    with pytest.raises(NegotiationError, match='not allocated yet'):
        session.join(Consumer(who('early')))
    session.allocate([], producer)
    importer = Importer()
    fits = Consumer(who('npu', 'NV12 linear', slots=3), importer)
    assert session.join(fits).verdict is Verdict.ACCEPTED and len(importer.seen) == 6
    assert (
        session.join(Consumer(who('gpu', 'YUYV linear'))).reason
        == 'format NV12 LINEAR is not accepted (accepted: YUYV LINEAR)'
    )
    refused = session.join(Consumer(who('greedy', slots=2)))
    assert refused.verdict is Verdict.REFUSED and refused.reason.startswith(
        'it needs 2 slots, but only 1 of 6 are not reserved (camera 2, npu 3)'
    )
    session.leave(fits)
    session.leave(fits)
    assert 'not part of the negotiation' in session.objection(fits)
    again = session.join(Consumer(who('greedy', slots=2)))
    assert again.verdict is Verdict.ACCEPTED, 'the place is free'


def test_what_was_chosen_and_why_is_one_line(producer: Producer) -> None:
    camera = replace(CAMERA, heaps=('dma_heap/system', 'dma_heap/linux,cma'))
    session = BufferSession(camera, SIZE, stand_ins=[who('metis', 'NV12 linear', contiguous=True)])
    assert session.allocate([Consumer(who('gpu', 'YUYV linear'))], producer).heap == heap_offer(
        'dma_heap/linux,cma'
    )
    line = session.describe()
    assert (
        '\n' not in line
        and "from heap 'dma_heap/linux,cma'" in line
        and 'metis needs contiguous memory' in line
    )
    assert 'gpu refused: ' in line and 'metis stand-in' in line and session.why in line


# Whether another setting would suit every participant, and which constraints forbid it.


@pytest.mark.parametrize('name', ['npu', 'npu (pid 7)'])
def test_a_consumer_takes_the_place_of_its_stand_in(producer: Producer, name: str) -> None:
    """Its slots count once, and its own constraints replace those of its stand-in."""
    consumer = Consumer(who(name, 'NV12 linear', slots=3), name='npu')
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
        'choose a narrower image or change a participant'
    )


def test_who_has_no_buffers_stands_against_nobody(producer: Producer) -> None:
    refuse = Mock(side_effect=AcceleratorError('the card refuses it'))
    refused = Consumer(who('refused', 'YUYV linear'))
    broken = Consumer(who('broken', max_stride=64), refuse)
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
        lambda found, **limits: who('one', *found, **limits),
        formats,
        stride_align=step,
        offset_align=step,
        height_align=st.sampled_from([1, 16, 40]),
        max_stride=st.sampled_from([None, 64, 128, 4096]),
        slots=st.integers(0, 3),
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

    def served(session: BufferSession) -> list[Consumer]:
        return [one for one in there if session.outcome(one).has_buffers]

    def agreed() -> BufferSession:
        session = BufferSession(camera, SIZE)
        settings = session.allocate(there, producer)
        assert not any(violations(one.constraints, settings) for one in served(session))
        return session

    try:
        there = [Consumer(each) for each in early]
        session = agreed()
        assert session.stands_against([]) == '', 'what is agreed on is a setting for all'
        for newcomer in (
            Consumer(replace(each, participant=f'late {each.participant}')) for each in late
        ):
            before = served(session)
            if session.join(newcomer).has_buffers or session.stands_against([newcomer]):
                continue
            there = [*before, newcomer]
            session = agreed()
            assert served(session) == there, 'a setting for all was promised'
    finally:
        producer.close()


# Stand-ins, as a parameter's text names them.


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        (f'npu: NV12 NV12:0x{TILED:016x}; stride_align=256; heap=dma_heap/; slots=2; contiguous',
         {'formats': ((NV12, LINEAR), (NV12, TILED)), 'stride_align': 256,
          'heaps': ('dma_heap/',), 'slots': 2, 'contiguous': True}),
        ('  npu :  NV12:INVALID   YUYV  ;slots = 1 ',
         {'formats': ((NV12, INVALID), (YUYV, LINEAR)), 'slots': 1}),
        ('a/b-c_d.e: any; offset_align=4096; height_align=16; max_stride=8192; min_size=16x16; '
         'max_size=1920x1080; max_slots=9',
         {'offset_align': 4096, 'height_align': 16, 'max_stride': 8192, 'min_size': (16, 16),
          'max_size': (1920, 1080), 'max_slots': 9}),
        ('npu: any; heap=udmabuf | dma_heap/; device=/dev/metis-0:1:0; cpu=read; one_buffer',
         {'heaps': ('udmabuf', 'dma_heap/'), 'devices': ('/dev/metis-0:1:0',),
          'cpu_access': CpuAccess.READ, 'placement': Placement.ONE_BUFFER}),
        ('npu: any; cpu=read_write; buffer_per_plane',
         {'cpu_access': CpuAccess.READ | CpuAccess.WRITE,
          'placement': Placement.BUFFER_PER_PLANE}),
    ],
)  # fmt: skip
def test_text_is_constraints(text: str, expected: dict[str, Any]) -> None:
    name = text.partition(':')[0].strip()
    assert parse_stand_in(text) == BufferConstraints(name, **expected)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', 'it must begin with a name (letters, digits, _ . / -), then a colon: NAME: FORMAT'),
        ('npu:', "npu has no format; write drm-formats such as NV12, or 'any'"),
        ('npu: NV99', "pixel format 'NV99' (0x3939564e) is not known"),
        ('npu: NV12:tiled', 'NV12:tiled'),
        (
            'npu: NV12; stide_align=256',
            (
                "option 'stide_align' is unknown; did you mean 'stride_align'?; known are "
                'stride_align,'
            ),
        ),
        ('npu: NV12; contiguous=yes', "option 'contiguous' takes no value; write it alone"),
        ('npu: NV12; slots', "option 'slots' needs a value: slots=…"),
        ('npu: NV12; slots=two', "option 'slots' is 'two'; it must be a whole number"),
        (
            'npu: NV12; max_size=1920',
            "option 'max_size' is '1920'; it must be WIDTHxHEIGHT, such as 1920x1080",
        ),
        (
            'npu: NV12; heap=a,,b',
            (
                "option 'heap' is 'a,,b'; it must be names with | between them, such as "
                'dma_heap/linux,cma'
            ),
        ),
        (
            'npu: NV12; cpu=raed',
            (
                "option 'cpu' is 'raed'; it must be one of read, write, read_write; did you mean "
                "'read'?"
            ),
        ),
        ('npu: NV12;', 'there is an empty option; remove a semicolon'),
        ('npu: NV12; slots=1; slots=2', "'slots=2' sets slots a second time"),
        (
            'npu: NV12; one_buffer; buffer_per_plane',
            "'buffer_per_plane' sets placement a second time",
        ),
    ],
)
def test_anything_else_is_one_sentence_with_the_nearest_word(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_stand_in(text)
    assert message in str(refused.value) and str(refused.value).startswith(
        f"parameter 'participants': '{text}'"
    )


def test_a_list_leaves_empty_entries_out_and_has_each_name_once() -> None:
    assert parse_stand_ins(['', '  ']) == []
    assert [c.participant for c in parse_stand_ins(['a: any', '', 'b: NV12'])] == ['a', 'b']
    with pytest.raises(ConfigError, match="'a' is listed twice; give each entry its own name"):
        parse_stand_ins(['a: any', 'a: NV12'])


@given(st.text(alphabet='npu: NV12;=xany_slots0', max_size=40))
def test_any_text_is_constraints_or_a_config_error(text: str) -> None:
    try:
        assert isinstance(parse_stand_in(text), BufferConstraints)
    except ConfigError as error:
        assert "parameter 'participants'" in str(error)


def test_every_constraint_can_be_written_but_costs_and_upgrade() -> None:
    from zc_perception.negotiation import constraints

    written = {name for name, *_ in (*constraints._OPTIONS.values(), *constraints._FLAGS.values())}
    own = {field.name for field in fields(BufferConstraints)} - {'participant', 'formats'}
    assert own - written == {'costs', 'memory_note', 'format_heaps'}
