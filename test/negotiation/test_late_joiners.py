"""Who comes after the allocation must suit what is allocated, or fails alone; a stand-in made room for it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from negotiation.kit import SOON_S, Session, f, who

from zc_perception.errors import AcceleratorError, NegotiationError
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.negotiation.heap_offer import HeapOffer
from zc_perception.negotiation.membership import State
from zc_perception.negotiation.roster import Verdict

pytestmark = pytest.mark.usefixtures('no_fd_leak')
LATE = who('display', 'NV12 linear', stride_align=256, slots=2)


def test_without_a_stand_in_it_fails_with_one_it_joins() -> None:
    for stand_in in (False, True):
        session = Session()
        camera = session.camera()
        if stand_in:
            session.spare.duplicate('display').stand_in(LATE)
        session.allocate()
        if stand_in:
            display = session.late(LATE)
            assert display.wait(SOON_S) == camera.wait(SOON_S) and display.outcome.verdict is Verdict.ACCEPTED
            assert session.collection.chain == ('camera', 'display')
        else:
            with pytest.raises(NegotiationError, match="display can't use what is allocated for camera buffers: plane 0: stride 64"):
                session.late(LATE)
        assert session.collection.state is State.ALLOCATED and camera.wait(SOON_S)[0].slots == (4 if stand_in else 2)
        session.close()


@pytest.mark.parametrize(
    ('constraints', 'message'),
    [
        (who('late', 'YUYV linear'), 'format NV12 LINEAR is not one of its formats (YUYV LINEAR)'),
        (who('late', 'NV12 tiled'), 'format NV12 LINEAR is not one of its formats'),
        (who('late', 'NV12 implicit'), 'is not one of its formats (NV12 INVALID)'),
        (who('late', stride_align=128), 'is not a multiple of its stride_align 128'),
        (who('late', max_stride=63), 'above max_stride 63'),
        (who('late', max_size=(63, 48)), 'above its max_size 63x48'),
        (who('late', required_max_size=(66, 48)), 'its required_max_size is 66x48'),
        (who('late', placement=Placement.BUFFER_PER_PLANE), 'it needs one buffer for each plane'),
        (who('late', heaps=('udmabuf',)), "can't use buffers of heap 'dma_heap/system', only of udmabuf"),
        (who('late', contiguous=True), "needs contiguous memory, which heap 'dma_heap/system' does not say"),
        (who('late', devices=('/dev/metis-0:1:0',)), "/dev/metis-0:1:0 of late can't attach"),
        (who('late', slots=1), 'it needs 1 slots, 0 of 2 are not spoken for (camera 2); let a stand-in ask for them'),
        (who('late', min_slots=3), 'there are 2 slots, it needs 3'),
        (who('late', max_slots=1), 'it allows at most 1'),
    ],
)
def test_the_refusal_says_which_constraint(constraints: BufferConstraints, message: str) -> None:
    session = Session(heaps=[HeapOffer('dma_heap/system', devices=('/dev/dri/',))])
    camera = session.camera()
    session.allocate()
    with pytest.raises(NegotiationError) as refused:
        session.late(constraints)
    assert message in str(refused.value)
    outcome = session.participants['late'].outcome
    assert outcome.verdict is Verdict.REFUSED and message in outcome.reason
    assert set(session.collection.references()) == {'initiator', 'participant'}, 'its token lets go'
    with pytest.raises(NegotiationError, match='late has no buffers'):
        session.participants['late'].wait(SOON_S)
    assert camera.wait(SOON_S)[0].slots == 2 and session.collection.state is State.ALLOCATED
    session.late(who('modest', 'NV12 linear'))
    session.close()


def test_slots_come_free_when_somebody_leaves_or_dies(session: Session) -> None:
    session.camera()
    first = session.join(who('first', slots=1))
    session.allocate()
    with pytest.raises(NegotiationError, match=r'0 of 3 are not spoken for \(camera 2, first 1\)'):
        session.late(who('second', slots=1))
    first.fail('SIGKILL')
    second = session.late(who('second', slots=1))
    with pytest.raises(NegotiationError, match=r'\(camera 2, second 1\)'):
        session.late(who('third', slots=1))
    second.close()
    session.late(who('third', slots=1))


def test_who_fell_back_holds_no_slots(session: Session) -> None:
    def refuse(settings: Any, buffers: Any) -> None:
        raise AcceleratorError('EINVAL')

    session.camera()
    session.join(who('lame', slots=2), trial_import=refuse)
    assert session.allocate().slots == 4
    session.late(who('late', slots=2))
    with pytest.raises(NegotiationError, match=r'\(camera 2, late 2\)'):
        session.late(who('too late', slots=1))


def test_late_ones_come_one_after_the_other(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('zc_perception.negotiation.collection._TURN_S', 0.0)
    waited: list[str] = []

    def trial(settings: Any, buffers: Any) -> None:
        with pytest.raises(NegotiationError, match='another negotiation of camera buffers takes too long; try again') as refused:
            session.late(who('second'))
        waited.append(str(refused.value))
        with pytest.raises(NegotiationError, match='is being negotiated already'):
            session.collection.renegotiate(session.producer)

    session.camera(slots=1)
    session.allocate()
    session.late(who('first'), trial_import=trial)
    assert len(waited) == 1
    session.participants['second'].set_constraints(who('second'))
    assert session.participants['second'].outcome.verdict is Verdict.ACCEPTED, 'it may try again'


def test_a_late_one_s_death_is_nobody_else_s(session: Session) -> None:
    session.camera()
    session.allocate()
    session.late(who('npu'), required=True).fail('SIGKILL')
    assert session.collection.state is State.ALLOCATED


def test_the_reason_stays_after_a_leave_or_death(session: Session) -> None:
    def refuse(settings: Any, buffers: Any) -> None:
        raise AcceleratorError('EINVAL')

    session.camera()
    lame = session.join(who('lame'), trial_import=refuse)
    session.allocate()
    with pytest.raises(NegotiationError):
        session.late(who('odd', 'YUYV linear'))
    session.participants['odd'].fail('gone')
    lame.close()
    assert 'EINVAL' in lame.outcome.reason and lame.outcome.verdict is Verdict.FELL_BACK
    assert session.participants['odd'].outcome.verdict is Verdict.REFUSED


def test_other_image_sizes_must_suit_the_late_one_too(session: Session) -> None:
    session.camera()
    session.join(who('encoder', required_max_size=(130, 96)))
    settings = session.allocate()
    assert settings.with_size(130, 96).planes[0].stride == 130
    with pytest.raises(NegotiationError, match=r'images of 130x96, which others were promised, would not suit it: .*bytes of buffer 0'):
        session.late(who('late', stride_align=64))
    session.late(who('small', stride_align=2, min_size=(32, 32)))
    with pytest.raises(NegotiationError, match='which take 32x32 to 130x96'):
        session.collection.settings.with_size(16, 16)


def test_a_late_trial_import(session: Session) -> None:
    calls: list[int] = []

    def good(settings: Any, buffers: Any) -> None:
        calls.append(buffers[0].identity.inode)

    def bad(settings: Any, buffers: Any) -> None:
        raise AcceleratorError('EINVAL')

    session.camera(slots=3)
    session.allocate()
    session.late(who('npu'), trial_import=good)
    assert calls == [buffer.identity.inode for buffer in session.producer.buffers]
    lame = session.late(who('lame'), trial_import=bad)
    assert str(lame.outcome) == 'fell back: trial import of slot 0 of 3 failed: EINVAL'
    with pytest.raises(NegotiationError, match='needed: trial import of slot 0 of 3 failed: EINVAL'):
        session.late(who('needed'), trial_import=bad, required=True)
    assert session.collection.state is State.ALLOCATED and session.collection.references()['participant'] == ('camera', 'npu')


def test_a_late_one_may_die_at_every_stage(session: Session) -> None:
    session.camera(slots=3)
    session.spare.duplicate('room').stand_in(who('room', slots=1))
    session.allocate()
    session.collection.attach_token('a').fail('x')
    session.collection.attach_token('b').bind().fail('x')

    def dies(settings: Any, buffers: Any) -> None:
        participant.fail('x')

    participant = session.collection.attach_token('c').bind(trial_import=dies)
    participant.set_constraints(who('c', slots=1))
    session.late(who('d', slots=1)).fail('x')
    for name in 'abcd':
        assert session.collection.outcomes()[name].verdict is Verdict.DIED
    assert session.collection.references() == {'initiator': ('camera buffers',), 'participant': ('camera',)}
    session.late(who('e', slots=1))


def test_late_tokens_are_duplicated_and_closed_too(session: Session) -> None:
    with pytest.raises(NegotiationError, match='a late token needs allocated buffers; missing: camera buffers'):
        session.collection.attach_token('early')
    session.camera()
    session.allocate()
    token = session.collection.attach_token('late')
    copy = token.duplicate('copy')
    assert session.collection.references()['token'] == ('late', 'copy')
    for refused in (token.set_dispensable, lambda: token.stand_in(who('late'))):
        with pytest.raises(NegotiationError, match='a late token needs no stand-in'):
            refused()
    participant = copy.bind()
    with pytest.raises(NegotiationError, match=r'no buffers within 0 s; missing: copy \(has not set'):
        participant.wait(0.0)
    participant.set_constraints(who('copy'))
    token.close()
    assert session.collection.references()['participant'] == ('camera', 'copy')
    participant.close()


def test_several_join_at_once_without_sharing_a_slot() -> None:
    session = Session()
    session.camera()
    session.spare.duplicate('room').stand_in(who('room', slots=3))
    session.allocate()
    tokens = [session.collection.attach_token(f'late {i}') for i in range(6)]
    participants = [token.bind(trial_import=lambda settings, buffers: None) for token in tokens]
    gate = threading.Barrier(len(tokens))
    refused: list[str] = []

    def join(participant: Any) -> None:
        gate.wait(SOON_S)
        try:
            participant.set_constraints(who('x', slots=1))
        except NegotiationError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=join, args=(p,)) for p in participants]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    accepted = [p for p in participants if p.outcome.verdict is Verdict.ACCEPTED]
    assert len(accepted) == 3 and len(refused) == 3 and all('0 of 5 are not spoken for' in r for r in refused)
    for participant in participants:
        participant.close()
    session.close()


def test_a_late_one_renegotiates_and_its_stand_in_doesn_t_count_twice(session: Session) -> None:
    camera = session.first.bind('camera')
    session.participants['camera'] = camera
    camera.set_constraints(who('camera', 'NV12 linear', 'YUYV linear', slots=2))
    session.spare.duplicate('display').stand_in(who('display', slots=2))
    session.allocate()
    display = session.late(who('display', slots=2))
    waiting = session.collection.attach_token('later')
    display.reconfigure(who('display', 'YUYV linear', slots=2))
    settings = session.collection.renegotiate(session.producer)
    assert settings.slots == 4 and settings.format == f('YUYV linear')
    assert session.producer.released == [0], 'the waiting token holds the new buffers'
    assert session.collection.references()['token'] == ('later',)
    waiting.close()
