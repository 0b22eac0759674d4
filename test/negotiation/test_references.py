"""Memory comes back exactly once, after the last reference of whatever kind, in whatever order they go."""

from __future__ import annotations

import itertools
import threading

import pytest
from negotiation.kit import SOON_S, Session, who

from zc_perception.errors import NegotiationError
from zc_perception.negotiation.references import ReferenceKind, References


def test_every_order_of_the_kinds_releases_once_and_last() -> None:
    for order in itertools.permutations(ReferenceKind):
        released: list[str] = []
        references = References(lambda: released.append('released'))  # noqa: B023
        held = {kind: references.take(kind, f'my {kind.value}') for kind in ReferenceKind}
        assert references.names() == {kind.value: (f'my {kind.value}',) for kind in ReferenceKind}
        for kind in order:
            assert not released and not references.ended, f'{kind} still holds: {order}'
            held[kind].close()
            held[kind].close()
            assert kind.value not in references.names()
        assert released == ['released'] and references.ended


def test_nobody_can_hold_what_is_gone() -> None:
    references = References(lambda: None)
    with references.take(ReferenceKind.IMPORT, 'npu'):
        pass
    with pytest.raises(NegotiationError, match='gpu: the buffers were destroyed with their last reference; negotiate new ones'):
        references.take(ReferenceKind.IMPORT, 'gpu')


def test_many_threads_release_once() -> None:
    for _ in range(20):
        released: list[int] = []
        references = References(lambda: released.append(1))  # noqa: B023
        held = [references.take(ReferenceKind.LEASE, str(i)) for i in range(8)]
        gate = threading.Barrier(len(held))

        def drop(index: int, held=held, gate=gate) -> None:
            gate.wait(SOON_S)
            held[index].close()

        threads = [threading.Thread(target=drop, args=(i,)) for i in range(len(held))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON_S)
        assert released == [1]


HOLDERS = ('initiator', 'camera', 'npu', 'token', 'lease', 'import', 'mapping')


@pytest.mark.parametrize('last', HOLDERS)
@pytest.mark.usefixtures('no_fd_leak')
def test_a_collection_s_buffers_live_as_long_as_anybody(last: str) -> None:
    # Every holder is the last one once; the others go in an order that differs each time.
    others = [name for name in HOLDERS if name != last]
    for turn in range(len(others)):
        order = [*others[turn:], *others[:turn]]
        session = Session((2, 2))
        camera = session.camera()
        npu = session.join(who('npu', 'NV12 linear'))
        session.allocate()
        closers = {
            'initiator': session.collection.close,
            'camera': camera.close,
            'npu': npu.close,
            'token': session.collection.attach_token('late').close,
            'lease': npu.hold(ReferenceKind.LEASE, 'frame 7').close,
            'import': npu.hold(ReferenceKind.IMPORT, 'slot 0').close,
            'mapping': camera.hold(ReferenceKind.MAPPING).close,
        }
        assert set(session.collection.references()) == {'initiator', 'participant', 'token', 'lease', 'import', 'mapping'}
        for name in (*order, last):
            assert session.producer.released == [], f'{name} still holds'
            closers[name]()
        assert session.producer.released == [0] and session.collection.references() == {}
        session.close()
        assert session.producer.released == [0]


def test_references_name_their_holders(session: Session) -> None:
    session.camera()
    npu = session.join(who('npu', 'NV12 linear'))
    assert session.collection.references() == {}
    session.allocate()
    late = session.collection.attach_token('viewer')
    with npu.hold(ReferenceKind.IMPORT, 'slot 3'):
        assert session.collection.references() == {
            'initiator': ('camera buffers',),
            'token': ('viewer',),
            'participant': ('camera', 'npu'),
            'import': ('npu slot 3',),
        }
    late.close()
    assert set(session.collection.references()) == {'initiator', 'participant'}


@pytest.mark.usefixtures('no_fd_leak')
def test_an_import_of_a_dead_participant_still_keeps_the_memory() -> None:
    session = Session()
    session.camera()
    npu = session.join(who('npu', 'NV12 linear'))
    session.allocate()
    held = npu.hold(ReferenceKind.IMPORT)
    npu.fail('SIGKILL')
    session.close_handles()
    assert session.collection.references() == {'import': ('npu',)} and session.producer.released == []
    held.close()
    assert session.producer.released == [0]


def test_only_an_accepted_participant_can_hold(session: Session) -> None:
    camera = session.camera()
    with pytest.raises(NegotiationError, match=r'a reference needs allocated buffers; missing: spare \(its token is not bound\)'):
        camera.hold(ReferenceKind.LEASE)
    gone = session.join(who('npu', 'NV12 linear'))
    session.allocate()
    gone.close()
    with pytest.raises(NegotiationError, match=r'npu has no buffers to hold \(left\)'):
        gone.hold(ReferenceKind.LEASE)
