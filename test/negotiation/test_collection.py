"""Tokens, constraints, allocation, trial imports: who waits for whom, and what reaches everybody."""

from __future__ import annotations

from typing import Any

import pytest
from negotiation.kit import SOON_S, Producer, Session, who

from zc_perception.errors import AcceleratorError, NegotiationError
from zc_perception.negotiation.collection import BufferCollection
from zc_perception.negotiation.membership import State
from zc_perception.negotiation.roster import Verdict
from zc_perception.negotiation.settings import BufferSettings

pytestmark = pytest.mark.usefixtures('no_fd_leak')


def test_from_the_first_token_to_the_buffers() -> None:
    """The document's nine steps."""
    producer = Producer()
    collection = BufferCollection('camera', (64, 48))
    mine = collection.first_token()
    yours = mine.duplicate('npu')
    theirs = yours.duplicate('overlay')  # recursively
    participants = [token.bind() for token in (mine, yours, theirs)]
    for participant, name in zip(participants, ('camera', 'npu', 'overlay'), strict=True):
        participant.set_constraints(who(name, 'NV12 linear', slots=1))
    settings = collection.allocate(producer, SOON_S)
    assert settings.slots == 3 and collection.state is State.ALLOCATED and collection.generation == 1
    for participant in participants:
        seen, buffers = participant.wait(SOON_S)
        assert seen is settings and len(buffers) == 3 and buffers[0][0] is producer.buffers[0]
        assert participant.outcome.verdict is Verdict.ACCEPTED
        participant.close()
    collection.close()
    assert producer.released == [0]


def test_nothing_is_allocated_before_the_last_one_has_spoken(session: Session) -> None:
    session.camera()
    token = session.spare.duplicate('npu')
    session.spare.close()
    assert session.collection.pending() == ('npu (its token is not bound)',)
    with pytest.raises(
        NegotiationError, match=r'camera buffers: after 0 s still waiting for npu \(its token is not bound\); bind or close'
    ):
        session.collection.allocate(session.producer, 0.0)
    npu = token.bind('metis')
    assert session.collection.pending() == ('metis (has not set its constraints)',)
    with pytest.raises(NegotiationError, match=r'metis \(has not set its constraints\)'):
        session.collection.allocate(session.producer, 0.0)
    with pytest.raises(NegotiationError, match=r'no buffers within 0 s; missing: metis \(has not'):
        npu.wait(0.0)
    assert not session.producer.requests
    npu.set_constraints(who('ignored name', 'NV12 linear'))
    assert session.collection.pending() == ()
    assert session.allocate().slots == 2
    npu.close()


def test_a_closed_token_keeps_nobody_waiting(session: Session) -> None:
    session.camera()
    tokens = [session.spare.duplicate(f'maybe {i}') for i in range(3)]
    for token in tokens:
        token.close()
        token.close()
    assert session.allocate().slots == 2
    assert session.collection.outcomes()['maybe 1'].verdict is Verdict.LEFT


def test_a_token_is_bound_exactly_once(session: Session) -> None:
    token = session.spare.duplicate('npu')
    npu = token.bind()
    for again in (token.bind, lambda: token.duplicate('x'), token.set_dispensable, lambda: token.stand_in(who('npu'))):
        with pytest.raises(NegotiationError, match='the token of npu was bound or closed before; each is bound once'):
            again()
    token.close()
    assert npu.outcome.verdict is Verdict.PENDING, 'a used up token has nothing to close'
    npu.close()
    closed = session.spare.duplicate('gone')
    closed.close()
    with pytest.raises(NegotiationError, match='the token of gone was bound or closed before'):
        closed.bind()
    with pytest.raises(NegotiationError, match='the first token was taken before; duplicate that one'):
        session.collection.first_token()


def test_constraints_are_set_exactly_once(session: Session) -> None:
    camera = session.camera()
    with pytest.raises(NegotiationError, match=r'camera: has set its constraints already; use reconfigure\(\)'):
        camera.set_constraints(who('camera', 'YUYV linear'))
    assert session.allocate().layout.fourcc == who('x', 'NV12 linear').formats[0][0]
    left = session.late(who('viewer'))
    left.close()
    with pytest.raises(NegotiationError, match='viewer: left'):
        left.set_constraints(who('viewer'))


def test_it_is_allocated_once(session: Session) -> None:
    session.camera()
    session.allocate()
    for again in (lambda: session.allocate(), lambda: session.collection.allocate_when_complete(session.producer)):
        with pytest.raises(NegotiationError, match='is allocated already; make a new collection'):
            again()
    with pytest.raises(NegotiationError, match='was bound or closed before'):
        session.spare.duplicate('npu')
    assert len(session.producer.requests) == 1


def test_no_duplicates_once_it_is_allocated() -> None:
    session = Session()
    kept = session.first.duplicate('kept')
    session.camera()
    session.spare.close()
    with pytest.raises(NegotiationError, match='kept'):
        session.collection.allocate(session.producer, 0.0)
    copies: list[str] = []

    def allocator(request: Any) -> Any:
        with pytest.raises(NegotiationError, match='bound or closed'):
            kept.duplicate('too late')
        copies.append('tried')
        return session.producer(request)

    kept.close()
    session.collection.allocate(allocator, SOON_S)
    assert copies == ['tried']
    session.close()


def test_nobody_can_agree_reaches_everybody(session: Session) -> None:
    camera = session.camera()
    npu = session.join(who('npu', 'NV12 tiled'))
    settled: list[State] = []
    session.collection.on_settled(lambda collection: settled.append(collection.state))
    with pytest.raises(NegotiationError, match='no common pixel format and modifier'):
        session.allocate()
    for participant in (camera, npu):
        with pytest.raises(NegotiationError, match='camera buffers: no common pixel format'):
            participant.wait(SOON_S)
        assert participant.outcome.verdict is Verdict.REFUSED and 'NV12 is common' in participant.outcome.reason
    with pytest.raises(NegotiationError, match='no common'):
        session.collection.attach_token('late')
    with pytest.raises(NegotiationError, match='no common'):
        session.allocate()
    assert settled == [State.FAILED] and 'no common' in session.collection.failure and not session.producer.requests


def test_the_name_that_was_bound_is_the_one_in_messages(session: Session) -> None:
    session.camera()
    with session.spare.duplicate('token').bind('metis') as participant:
        participant.set_constraints(who('something else', 'NV12 tiled'))
        with pytest.raises(NegotiationError, match='metis: NV12'):
            session.allocate()


def test_an_allocator_that_raises_fails_it_for_all(session: Session) -> None:
    camera = session.camera()
    session.spare.close()

    def allocator(request: Any) -> Any:
        raise MemoryError

    with pytest.raises(MemoryError):
        session.collection.allocate(allocator, SOON_S)
    with pytest.raises(NegotiationError, match='camera buffers: MemoryError'):
        camera.wait(SOON_S)


# Trial imports.


def test_every_buffer_is_imported_by_everybody_after_the_allocation(session: Session) -> None:
    seen: list[tuple[str, int]] = []

    def trial(name: str) -> Any:
        def trial_import(settings: BufferSettings, buffers: Any) -> None:
            assert settings.slots == 6 and session.collection.state is State.ALLOCATING
            seen.append((name, buffers[0].identity.inode))

        return trial_import

    session.camera()
    session.join(who('npu', 'NV12 linear', slots=3), trial_import=trial('npu'))
    session.join(who('gpu', 'NV12 linear', slots=1), trial_import=trial('gpu'))
    session.allocate()
    inodes = [buffer.identity.inode for buffer in session.producer.buffers]
    assert seen == [(name, inode) for name in ('npu', 'gpu') for inode in inodes] and len(inodes) == 6
    assert session.collection.chain == ('camera', 'npu', 'gpu')


def test_who_cannot_import_falls_back_alone(session: Session) -> None:
    def fails_at_the_second(settings: BufferSettings, buffers: Any, calls: list[int] = []) -> None:  # noqa: B006
        calls.append(1)
        if len(calls) == 2:
            raise AcceleratorError('EINVAL: no IOVA space')

    camera = session.camera()
    npu = session.join(who('npu', 'NV12 linear', slots=1), trial_import=fails_at_the_second)
    session.allocate()
    assert (npu.outcome.verdict, npu.outcome.reason) == (
        Verdict.FELL_BACK,
        'trial import of slot 1 of 3 failed: EINVAL: no IOVA space',
    )
    assert camera.outcome.verdict is Verdict.ACCEPTED and camera.wait(SOON_S)[0].slots == 3
    with pytest.raises(NegotiationError, match=r'npu has no buffers \(fell back: trial import.*use the next link, which copies'):
        npu.wait(SOON_S)
    assert session.collection.references()['participant'] == ('camera',) and session.collection.chain == ('camera',)
    assert str(npu.outcome).startswith('fell back: ')


def test_an_error_without_words_has_its_name(session: Session) -> None:
    def trial(settings: BufferSettings, buffers: Any) -> None:
        raise TimeoutError

    session.camera()
    npu = session.join(who('npu'), trial_import=trial)
    session.allocate()
    assert npu.outcome.reason == 'trial import of slot 0 of 2 failed: TimeoutError'


def test_a_required_participant_that_cannot_import_fails_it_for_all(session: Session) -> None:
    def trial(settings: BufferSettings, buffers: Any) -> None:
        raise AcceleratorError('ENOTTY')

    camera = session.camera()
    session.join(who('npu'), trial_import=trial, required=True)
    with pytest.raises(NegotiationError, match='npu: trial import of slot 0 of 2 failed: ENOTTY'):
        session.allocate()
    with pytest.raises(NegotiationError, match='ENOTTY'):
        camera.wait(SOON_S)
    assert session.producer.released == [0], 'what was allocated goes back at once'
