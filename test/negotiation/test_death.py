"""Participants that leave and that die, at every stage, dispensable or not."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
from negotiation.kit import SOON_S, Session, who

from zc_perception.errors import NegotiationError
from zc_perception.negotiation.membership import State
from zc_perception.negotiation.roster import Verdict

pytestmark = pytest.mark.usefixtures('no_fd_leak')
CONSTRAINTS = who('npu', 'NV12 linear', stride_align=256, slots=3)
STAGES = ('token', 'bound', 'ready')


def at_stage(session: Session, stage: str, dispensable: bool) -> Any:
    """A token or participant 'npu' that has come so far."""
    token = session.spare.duplicate('npu')
    if dispensable:
        token.set_dispensable()
    if stage == 'token':
        return token
    participant = token.bind()
    if stage == 'ready':
        participant.set_constraints(CONSTRAINTS)
    return participant


@pytest.mark.parametrize('silently', [False, True])
@pytest.mark.parametrize('stage', STAGES)
def test_a_death_before_the_allocation_fails_it_for_all_and_names_who(session: Session, stage: str, silently: bool) -> None:
    camera = session.camera()
    handle = at_stage(session, stage, dispensable=False)
    if silently:
        del handle
        gc.collect()
    else:
        handle.fail('SIGKILL')
        handle.fail('twice')
    reason = 'it was forgotten, not closed' if silently else 'SIGKILL'
    expected = rf'camera buffers: npu died before the buffers were allocated \({reason}\); start it again and negotiate anew'
    with pytest.raises(NegotiationError, match=expected):
        session.allocate()
    with pytest.raises(NegotiationError, match=expected):
        camera.wait(SOON_S)
    assert session.collection.outcomes()['npu'].verdict is Verdict.DIED and not session.producer.requests


@pytest.mark.parametrize('silently', [False, True])
@pytest.mark.parametrize('stage', STAGES)
def test_a_dispensable_death_before_the_allocation_doesn_t_matter(session: Session, stage: str, silently: bool) -> None:
    session.camera()
    handle = at_stage(session, stage, dispensable=True)
    if silently:
        del handle
        gc.collect()
    else:
        handle.fail('SIGKILL')
    settings = session.allocate()
    counted = stage == 'ready'
    assert settings.slots == (5 if counted else 2), 'constraints that were set count as a stand-in'
    assert settings.layout.planes[0].stride == (256 if counted else 64)
    assert session.collection.outcomes()['npu'].verdict is Verdict.DIED


@pytest.mark.parametrize('dispensable', [False, True])
@pytest.mark.parametrize('stage', STAGES)
def test_a_clean_leave_before_the_allocation_takes_the_constraints_along(session: Session, stage: str, dispensable: bool) -> None:
    session.camera()
    handle = at_stage(session, stage, dispensable)
    handle.close()
    settings = session.allocate()
    assert (settings.slots, settings.layout.planes[0].stride) == (2, 64)
    assert session.collection.outcomes()['npu'].verdict is Verdict.LEFT


def test_copies_of_a_dispensable_token_are_dispensable(session: Session) -> None:
    session.camera()
    token = session.spare.duplicate('a')
    token.set_dispensable()
    forgotten = token.duplicate('b')
    copy = forgotten.duplicate('c')
    copy.fail('gone')
    token.close()
    with pytest.raises(NegotiationError, match=r'still waiting for b \(its token'):
        session.spare.close()
        session.collection.allocate(session.producer, 0.0)
    del forgotten
    gc.collect()
    assert session.collection.allocate(session.producer, SOON_S).slots == 2


def test_a_with_block_leaves_or_dies(session: Session) -> None:
    session.camera()
    with session.spare.duplicate('polite').bind() as polite:
        polite.set_constraints(CONSTRAINTS)
    with pytest.raises(KeyError), session.spare.duplicate('clumsy').bind() as clumsy:
        raise KeyError('x')
    assert clumsy.outcome.reason == "KeyError: 'x'" and polite.outcome.verdict is Verdict.LEFT
    with pytest.raises(NegotiationError, match=r"clumsy died before the buffers were allocated \(KeyError: 'x'\)"):
        session.allocate()


@pytest.mark.parametrize('dispensable', [False, True])
def test_a_death_while_it_is_allocated(session: Session, dispensable: bool) -> None:
    session.camera()
    npu = at_stage(session, 'ready', dispensable)
    session.spare.close()

    def allocator(request: Any) -> Any:
        thread = threading.Thread(target=npu.fail, args=('SIGKILL',))
        thread.start()
        thread.join(SOON_S)
        return session.producer(request)

    if dispensable:
        assert session.collection.allocate(allocator, SOON_S).slots == 5
        assert session.collection.references()['participant'] == ('camera',)
    else:
        with pytest.raises(NegotiationError, match='npu died before the buffers were allocated'):
            session.collection.allocate(allocator, SOON_S)
        assert session.producer.released == [0] and session.collection.state is State.FAILED


def test_a_death_during_its_own_trial_import(session: Session) -> None:
    session.camera()
    token = session.spare.duplicate('npu')

    def trial(settings: Any, buffers: Any) -> None:
        npu.fail('device lost')

    npu = token.bind(trial_import=trial)
    npu.set_constraints(CONSTRAINTS)
    with pytest.raises(NegotiationError, match='npu died before the buffers were allocated'):
        session.allocate()
    assert session.producer.released == [0]


def test_imports_are_given_back_when_somebody_died_meanwhile(session: Session) -> None:
    held: list[int] = []

    def keeps(settings: Any, buffers: Any) -> Any:
        held.append(len(held))
        if len(held) == 2:
            victim.fail('SIGKILL')
        return held.pop

    session.camera()
    victim = session.join(who('victim'))
    session.join(who('npu'), trial_import=keeps)
    with pytest.raises(NegotiationError, match='victim died before the buffers were allocated'):
        session.allocate()
    assert held == [] and session.producer.released == [0]


def test_a_late_one_that_dies_in_its_trial_keeps_nothing(session: Session) -> None:
    held: list[int] = []

    def keeps(settings: Any, buffers: Any) -> Any:
        held.append(len(held))
        if len(held) == 2:
            late.fail('SIGKILL')
        return held.pop

    session.camera()
    session.allocate()
    late = session.collection.attach_token('late').bind(trial_import=keeps)
    late.set_constraints(who('late'))
    assert held == [] and late.outcome.verdict is Verdict.DIED


def test_a_death_after_the_allocation_is_its_own(session: Session) -> None:
    camera = session.camera()
    npu = session.join(CONSTRAINTS)
    viewer = session.join(who('viewer', slots=1))
    session.allocate()
    npu.fail('SIGKILL')
    assert session.collection.state is State.ALLOCATED and camera.wait(SOON_S)[0].slots == 6
    assert session.collection.references()['participant'] == ('camera', 'viewer')
    with pytest.raises(NegotiationError, match=r'npu has no buffers \(died: SIGKILL\)'):
        npu.wait(SOON_S)
    session.late(who('second npu', 'NV12 linear', slots=3))
    viewer.close()
    assert session.collection.outcomes()['viewer'].verdict is Verdict.LEFT


@pytest.mark.parametrize('dispensable', [False, True])
def test_after_a_death_a_new_negotiation_counts_only_stand_ins(session: Session, dispensable: bool) -> None:
    session.camera()
    npu = at_stage(session, 'ready', dispensable)
    assert session.allocate().slots == 5
    npu.fail('SIGKILL')
    assert session.collection.renegotiate(session.producer).slots == (5 if dispensable else 2)


def test_a_required_death_after_the_allocation_ends_it_but_not_the_memory(session: Session) -> None:
    camera = session.camera()
    npu = session.join(CONSTRAINTS, required=True)
    session.allocate()
    npu.fail('card fell off the bus')
    assert 'npu, which is required, died (card fell off the bus)' in session.collection.failure
    for attempt in (lambda: session.collection.attach_token('late'), lambda: camera.wait(SOON_S), lambda: session.collection.settings):
        with pytest.raises(NegotiationError, match='npu, which is required, died'):
            attempt()
    assert session.producer.released == [], 'the camera still has its buffers'
    camera.close()
    session.collection.close()
    assert session.producer.released == [0]


def test_the_initiator_closes_before_the_allocation(session: Session) -> None:
    camera = session.camera()
    session.collection.close()
    session.collection.close()
    with pytest.raises(NegotiationError, match='camera buffers: its initiator closed it before the buffers were allocated'):
        camera.wait(SOON_S)


def test_the_initiator_closes_after_the_allocation(session: Session) -> None:
    camera = session.camera()
    session.allocate()
    session.collection.close()
    assert camera.wait(SOON_S)[0].slots == 2 and session.producer.released == []
    camera.close()
    assert session.producer.released == [0]


def test_waiters_wake_up_when_somebody_dies_elsewhere() -> None:
    session = Session()
    camera = session.camera()
    npu = session.spare.duplicate('npu').bind()
    session.spare.close()
    errors: list[str] = []
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        try:
            camera.wait(SOON_S)
        except NegotiationError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(SOON_S)
    npu.fail('SIGKILL')
    thread.join(SOON_S)
    assert len(errors) == 1 and 'npu died' in errors[0]
    session.close()


def test_a_stand_in_needs_no_holder(session: Session) -> None:
    session.camera()
    session.spare.duplicate('display').stand_in(who('ignored', 'NV12 linear', stride_align=256, slots=2))
    settings = session.allocate()
    assert settings.slots == 4 and settings.layout.planes[0].stride == 256
    assert session.collection.outcomes()['display'].verdict is Verdict.STAND_IN
    assert session.collection.references()['participant'] == ('camera',)
