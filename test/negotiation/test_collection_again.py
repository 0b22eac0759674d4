"""Negotiating again, and from several threads: who waits, who allocates, what stays in force."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
from negotiation.kit import SOON_S, Session, who

from zc_perception.errors import AcceleratorError, NegotiationError
from zc_perception.negotiation.collection import BufferCollection, negotiate
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.membership import State
from zc_perception.negotiation.references import ReferenceKind
from zc_perception.negotiation.roster import Verdict
from zc_perception.negotiation.settings import BufferSettings
from zc_perception.pixel.fourcc import NV12, fourcc_code
from zc_perception.pixel.modifier import LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')


class Importer:
    """Keeps imports; fails at the slot that it is told to."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.held: list[int] = []
        self.calls = 0

    def __call__(self, settings: BufferSettings, buffers: Any) -> Any:
        number, self.calls = self.calls, self.calls + 1
        if number == self.fails_at:
            raise AcceleratorError('EINVAL')
        self.held.append(number)
        return lambda: self.held.remove(number)


def test_imports_are_kept_only_if_something_comes_of_them(session: Session) -> None:
    good, lame, needed = Importer(), Importer(fails_at=2), Importer(fails_at=1)
    session.camera(slots=3)
    session.join(who('good'), trial_import=good)
    session.join(who('lame'), trial_import=lame)
    session.allocate()
    assert (good.held, lame.held) == ([0, 1, 2], []), 'who falls back holds nothing'
    late = Importer(fails_at=1)
    session.late(who('late'), trial_import=late)
    assert late.held == [] and late.calls == 2
    other = Session()
    other.camera()
    other.join(who('good'), trial_import=(early := Importer()))
    other.join(who('needed'), trial_import=needed, required=True)
    with pytest.raises(NegotiationError, match='needed: trial import of slot 1 of 2'):
        other.allocate()
    assert (early.held, needed.held) == ([], []) and early.calls == 2, 'nothing holds buffers that are released'
    other.close()


# Renegotiation: GStreamer's reconfigure event.


def test_a_narrower_list_renegotiates_and_old_buffers_live_until_released(session: Session) -> None:
    camera = session.first.bind('camera')
    session.participants['camera'] = camera
    camera.set_constraints(who('camera', 'NV12 linear', 'YUYV linear', slots=1))
    sink = session.join(who('sink', slots=1))
    old = session.allocate()
    asked: list[tuple[str, Any]] = []
    session.collection.on_reconfigure(lambda name, wanted: asked.append((name, wanted.formats)))
    lease = sink.hold(ReferenceKind.LEASE, 'frame 1')
    narrower = who('sink', 'YUYV linear', 'XR24 x', slots=1)
    sink.reconfigure(narrower)
    assert asked == [('sink', narrower.formats)] and session.collection.settings is old, 'only the initiator renegotiates'
    new = session.collection.renegotiate(session.producer)
    assert new.format == narrower.formats[0] and old.format != new.format and session.collection.generation == 2
    assert sink.wait(SOON_S)[0] is new and camera.wait(SOON_S)[0] is new
    assert session.producer.released == [], 'a frame of the old buffers is still leased'
    lease.close()
    assert session.producer.released == [0]
    assert session.collection.references() == {'initiator': ('camera buffers',), 'participant': ('camera', 'sink')}
    with pytest.raises(NegotiationError, match='sink: a new negotiation takes a narrower list of formats than before'):
        sink.reconfigure(who('sink', 'NV12 linear'))
    with pytest.raises(NegotiationError, match='takes a narrower list'):
        sink.reconfigure(who('sink'))


def test_a_renegotiation_that_fails_leaves_the_old_buffers_in_force(session: Session) -> None:
    session.camera()
    sink = session.join(who('sink'))
    old = session.allocate()
    sink.reconfigure(who('sink', 'YUYV linear'))
    with pytest.raises(NegotiationError, match='sink shares none with camera'):
        session.collection.renegotiate(session.producer)
    assert session.collection.settings is old and session.collection.state is State.ALLOCATED and session.producer.released == []
    assert session.collection.renegotiate(session.producer).format == old.format, 'the wish that failed is forgotten'
    assert session.producer.released == [0]


def test_who_fell_back_gets_another_chance(session: Session) -> None:
    broken = [True]

    def trial(settings: BufferSettings, buffers: Any) -> None:
        if broken[0]:
            raise AcceleratorError('busy')

    session.camera()
    npu = session.join(who('npu'), trial_import=trial)
    session.allocate()
    assert npu.outcome.verdict is Verdict.FELL_BACK
    broken[0] = False
    session.collection.renegotiate(session.producer)
    assert npu.outcome.verdict is Verdict.ACCEPTED and npu.wait(SOON_S)[0].slots == 2


def test_only_one_negotiation_at_a_time_and_none_after_the_end(session: Session) -> None:
    session.camera()
    with pytest.raises(NegotiationError, match='a new negotiation needs allocated buffers'):
        session.collection.renegotiate(session.producer)
    session.allocate()
    inner: list[str] = []

    def allocator(request: Any) -> Any:
        with pytest.raises(NegotiationError, match='is being negotiated already') as refused:
            session.collection.renegotiate(session.producer)
        inner.append(str(refused.value))
        return session.producer(request)

    session.collection.renegotiate(allocator)
    assert len(inner) == 1

    def closes(request: Any) -> Any:
        session.collection.close()
        return session.producer(request)

    with pytest.raises(NegotiationError, match='camera buffers: was closed by its initiator meanwhile'):
        session.collection.renegotiate(closes)
    assert session.producer.released == [0, 2] and session.collection.generation == 2
    with pytest.raises(NegotiationError, match='was closed by its initiator'):
        session.collection.renegotiate(session.producer)


# Threads: participants may be other nodes.


def test_allocate_waits_for_participants_in_other_threads() -> None:
    for order in range(6):
        session = Session()
        tokens = [session.spare.duplicate(f'p{i}') for i in range(4)]
        session.spare.close()
        gate = threading.Barrier(len(tokens) + 1)
        results: dict[str, Any] = {}
        done = threading.Event()

        def take_part(token: Any, turn: int, gate=gate, results=results, done=done) -> None:
            gate.wait(SOON_S)
            with token.bind() as participant:
                participant.set_constraints(who(token.name, 'NV12 linear', 'YUYV linear', slots=turn))
                results[participant.name] = participant.wait(SOON_S)
                done.wait(SOON_S)

        threads = [threading.Thread(target=take_part, args=(t, i)) for i, t in enumerate(tokens[order % 4 :] + tokens[: order % 4])]
        for thread in threads:
            thread.start()
        gate.wait(SOON_S)
        session.camera()
        settings = session.collection.allocate(session.producer, SOON_S)
        done.set()
        for thread in threads:
            thread.join(SOON_S)
        assert settings.slots == 2 + 0 + 1 + 2 + 3
        assert {name: result[0] for name, result in results.items()} == {f'p{i}': settings for i in range(4)}
        session.close()
        assert session.producer.released == [0]


def test_whoever_completes_the_constraints_allocates() -> None:
    session = Session()
    session.collection.allocate_when_complete(session.producer)
    with pytest.raises(NegotiationError, match='collecting constraints already'):
        session.collection.allocate_when_complete(session.producer)
    with pytest.raises(NegotiationError, match='already; make a new collection'):
        session.spare.close()
        session.camera().wait(SOON_S)
        session.allocate()
    assert session.collection.state is State.ALLOCATED and len(session.producer.requests) == 1
    session.close()


@pytest.mark.parametrize('last', ['constraints', 'closing a token', 'a stand-in', 'a leave', 'a dispensable death', 'a silent death'])
def test_whatever_comes_last_starts_the_allocation(last: str) -> None:
    session = Session()
    settled: list[State] = []
    session.collection.on_settled(lambda collection: settled.append(collection.state))
    session.collection.allocate_when_complete(session.producer)
    token = session.spare.duplicate('npu')
    if 'death' in last:
        token.set_dispensable()
    camera = session.camera()
    session.spare.close()
    assert settled == []
    npu = token.bind() if last in ('constraints', 'a leave', 'a dispensable death', 'a silent death') else None
    if last == 'constraints':
        npu.set_constraints(who('npu', 'NV12 linear'))
    elif last == 'closing a token':
        token.close()
    elif last == 'a stand-in':
        token.stand_in(who('npu', 'NV12 linear'))
    elif last == 'a leave':
        npu.close()
    elif last == 'a dispensable death':
        npu.fail('gone')
    else:
        del npu, token
        gc.collect()
        assert settled == [], 'a finalizer must not allocate'
        camera.wait(SOON_S)
    assert settled == [State.ALLOCATED] and session.collection.generation == 1
    late: list[State] = []
    session.collection.on_settled(lambda collection: late.append(collection.state))
    assert late == [State.ALLOCATED], 'who asks later hears it at once'
    if last == 'constraints':
        npu.close()
    session.close()


def test_a_failure_reaches_those_who_wait_not_who_came_last() -> None:
    session = Session()
    session.collection.allocate_when_complete(session.producer)
    camera = session.camera()
    npu = session.join(who('npu', 'NV12 tiled'))
    session.spare.close()
    for participant in (camera, npu):
        with pytest.raises(NegotiationError, match='no common pixel format'):
            participant.wait(SOON_S)
    session.close()


def test_a_callback_may_use_the_collection(session: Session) -> None:
    seen: list[Any] = []
    session.collection.on_settled(lambda collection: seen.append((collection.settings, collection.references(), collection.pending())))
    session.camera()
    settings = session.allocate()
    assert seen[0][0] is settings


@pytest.mark.parametrize('timeout_s', [float('nan'), float('inf'), -1.0])
def test_waits_have_an_end(timeout_s: float) -> None:
    collection = BufferCollection('camera', (64, 48))
    token = collection.first_token()
    other = token.duplicate('other')
    participant = token.bind()
    with pytest.raises(ValueError, match='waits are bounded'):
        participant.wait(timeout_s)
    with pytest.raises(ValueError, match='waits are bounded'):
        collection.allocate(lambda request: pytest.fail('allocated'), timeout_s)
    other.close()
    participant.close()
    collection.close()


@pytest.mark.parametrize(
    ('size', 'tiled'), [((63, 64), 0x0100000000000001), ((64, 64), 0x0100000000000004)], ids=['odd for NV12', 'CCS of NV12']
)
def test_a_tiled_format_that_can_not_be_leaves_the_choice_to_another(size: tuple[int, int], tiled: int) -> None:
    """X tiled NV12 of an odd width; Y tiled with compression status for a format that it doesn't exist for."""
    linear = (fourcc_code('AR24'), LINEAR)
    settings = negotiate([BufferConstraints('camera', formats=((NV12, tiled), linear), slots=1)], *size, heap='memfd')
    assert settings.format == linear
    with pytest.raises(NegotiationError, match='NV12'):
        negotiate([BufferConstraints('camera', formats=((NV12, tiled),), slots=1)], *size, heap='memfd')
