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
Consumers that say nothing, never read or die.

Those that break a rule are in wire/test_wire_producer.py.
"""

from __future__ import annotations

from collections.abc import Callable
import socket
import threading
from typing import Any

from memory_link import all_free, make_frame, make_pool, publish, RawPeer, settled
import pytest
from waiting import until

from zc_perception.frame import Header
from zc_perception.link.shared_memory import connection
from zc_perception.link.shared_memory.protocol import MessageType, RefusalCode
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.fence import EventFence
from zc_perception.memory.pool import BufferPool, SlotState

pytestmark = pytest.mark.usefixtures('no_fd_leak')
Serve = Callable[..., SharedMemoryServer]


def test_a_silent_consumer_is_turned_away(
    pool: BufferPool, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('zc_perception.link.shared_memory.server.HANDSHAKE_S', 0.05)
    server = serve(pool)
    with RawPeer.connected(server.path) as peer:
        assert peer.receive_refused() == (RefusalCode.PROTOCOL, 'no HELLO within 0.05 s')
    assert (
        server.statistics().protocol_errors == {'silent': 1}
        and server.statistics().handshaking == 0
    )


@pytest.mark.parametrize('count', [0, 1, 2, 4])
@pytest.mark.parametrize('welcome', [True, False])
def test_an_empty_packet_is_an_end_whatever_comes_with_it(
    pool: BufferPool, serve: Serve, count: int, welcome: bool
) -> None:
    server = serve(pool)
    with RawPeer.welcomed(server.path) if welcome else RawPeer.connected(server.path) as peer:
        peer.send(b'', count * [0])
        assert peer.receive_type() == 0
        settled(server, 'eof' if welcome else 'before_hello')
    assert not server.statistics().protocol_errors


def test_more_consumers_than_allowed_are_told_to_come_back(
    pool: BufferPool, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        'zc_perception.link.shared_memory.server.HANDSHAKE_S', 120.0
    )  # the two silent ones stay until the crowd has gone
    monkeypatch.setattr('zc_perception.link.shared_memory.server.MAX_CONNECTIONS', 3)
    server = serve(pool)
    good = RawPeer.welcomed(server.path)
    silent, other = RawPeer.connected(server.path), RawPeer.connected(server.path)
    until(lambda: server.statistics().handshaking == 2, 'both')
    crowd = []
    for number in range(500):
        crowd.append(RawPeer.connected(server.path))
        if number % 10 == 0:  # nobody who is in notices
            publish(server, pool, number)
            received = good.receive_frame()
            assert (received.sequence, received.dropped) == (number, 0)
            good.release(received)
            until(lambda: server.statistics().consumers[0].held == 0, 'the release')
    for peer in crowd:
        assert peer.receive_refused().code == RefusalCode.BUSY
        peer.close()
    assert server.statistics().refused == {'connections': 500}
    silent.close()
    other.close()
    good.close()
    until(lambda: server.statistics().handshaking == server.consumers == 0, 'their end')
    with RawPeer.welcomed(server.path):
        pass


def test_out_of_descriptors_the_server_waits_without_spinning(
    pool: BufferPool, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(pool)
    listener, calls = server._listener, []

    class Exhausted:
        """The listener of a process without a descriptor left, for the first look."""

        fileno = staticmethod(listener.fileno)
        close = staticmethod(listener.close)

        def accept(self) -> Any:
            calls.append(threading.current_thread().name)
            if len(calls) == 1:
                raise OSError(24, 'Too many open files')
            return listener.accept()

    with RawPeer.welcomed(server.path, window=2) as served:
        monkeypatch.setattr(server, '_listener', Exhausted())
        monkeypatch.setattr('zc_perception.link.shared_memory.server._ACCEPT_PAUSE_S', 3600.0)
        with RawPeer.connected(server.path) as late:
            late.hello()
            until(lambda: server.statistics().refused == {'descriptors': 1}, 'the refusal')
            # Whoever is in goes on being served, and the door stays shut meanwhile.
            for sequence in range(20):
                publish(server, pool, sequence)
                served.release(served.receive_frame())
                until(lambda: server.statistics().consumers[0].held == 0, 'the release')
            assert calls == ['shared-memory camera']
            server._accept_at = 1.0  # the pause is over
            server._wake_up()
            assert late.receive_type() == MessageType.WELCOME
    assert server.statistics().refused == {'descriptors': 1} and set(calls) == {
        'shared-memory camera'
    }


def test_what_a_dead_consumer_held_is_quarantined_and_what_waited_for_it_is_free_at_once(
    pool: BufferPool, serve: Serve
) -> None:
    server = serve(pool, quarantine_timeout_s=0.5)
    with RawPeer.welcomed(server.path, window=1, depth=2):
        for sequence in range(3):
            publish(server, pool, sequence)
        assert pool.statistics().states == {SlotState.LEASED: 3, SlotState.FREE: 5}
        # Only the one that was sent can be in a device's hands.
        taken: list[dict[SlotState, int]] = []
        revoke = pool.revoke

        def observed(*arguments: Any, **options: Any) -> int:
            taken.append(pool.statistics().states)
            return revoke(*arguments, **options)

        pool.revoke = observed  # type: ignore[method-assign]
    settled(server, 'eof')
    assert taken == [{SlotState.LEASED: 1, SlotState.FREE: 7}]
    assert server.statistics().taken_back == 1 and pool.statistics().revoked == 1


def test_each_frame_of_a_dead_consumer_is_quarantined_once_whatever_pool_it_is_of(
    pool: BufferPool, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    fences: list[EventFence] = []

    def busy(buffers: Any, _: float) -> EventFence:
        asked.append(buffers[0].identity)
        fences.append(EventFence())
        return fences[-1]

    monkeypatch.setattr(connection, 'quarantine_fence', busy)
    server, other = serve(pool), make_pool(2)
    with RawPeer.welcomed(server.path, window=3):
        held = []
        for sequence, source in enumerate((pool, other, pool)):
            with make_frame(source, sequence) as frame:
                server.publish(frame)
                held.append(frame.data.buffers[0].identity)
    settled(server, 'eof')
    assert sorted(map(str, asked)) == sorted(map(str, held)), 'one fence for each'
    for source, count in ((pool, 2), (other, 1)):
        source.collect()
        assert source.statistics().states[SlotState.WAITING] == count
    for fence in fences:
        fence.signal()
    until(lambda: all_free(pool) and all_free(other), 'every slot')
    other.close()


def test_a_consumer_that_never_reads_holds_its_window_and_nothing_else(
    pool: BufferPool, serve: Serve
) -> None:
    server = serve(pool)
    with RawPeer.welcomed(server.path, window=2, depth=2):
        for sequence in range(500):
            publish(server, pool, sequence)
        consumer = server.statistics().consumers[0]
        assert (consumer.held, consumer.pending, consumer.dropped) == (2, 2, 496)
        assert pool.statistics().exhausted == 0
    settled(server, 'eof')
    until(lambda: all_free(pool), 'every slot')


def test_frames_that_do_not_go_into_a_full_socket_are_dropped_and_told(serve: Serve) -> None:
    pool = make_pool(10, reserve=1)
    server = serve(pool)
    with RawPeer.welcomed(server.path, window=6) as peer:
        # Every slot is known first, so that only FRAMEs are left to come.
        frames = [make_frame(pool, sequence) for sequence in range(8)]
        for frame in frames:
            server.publish(frame)
            peer.release(peer.receive_frame())
            until(lambda: server.statistics().consumers[0].held == 0, 'the release')
        for frame in frames:
            frame.release()
        connection = server._connections[0]
        connection.socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, 1
        )  # as small as the kernel lets it be
        for sequence in range(100, 106):
            publish(server, pool, sequence, header=Header(1, 255 * 'f'))
        sent = connection.statistics().sent - 8
        assert 0 < sent < 6 and (
            connection.statistics().held,
            connection.statistics().dropped,
        ) == (sent, 6 - sent)
        for sequence in range(100, 100 + sent):
            received = peer.receive_frame()
            assert (received.sequence, received.dropped) == (sequence, 0)
            peer.release(received)
        until(lambda: connection.statistics().held == 0, 'the releases')
        publish(server, pool, 106)
        received = peer.receive_frame()
        assert (received.sequence, received.dropped) == (106, 6 - sent)


@pytest.mark.parametrize('send', ['_send_with', '_send'], ids=['BUFFERS', 'FRAME'])
def test_a_slot_is_introduced_once_although_the_first_time_something_did_not_go_in(
    send: str, pool: BufferPool, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(pool)
    with RawPeer.welcomed(server.path) as peer:
        connection = server._connections[0]

        def full(*_: object) -> None:
            raise BlockingIOError

        with monkeypatch.context() as patch:
            patch.setattr(connection, send, full)
            publish(server, pool, 0)
        publish(server, pool, 1)  # in the same slot
        assert [peer.receive_type() for _ in range(2)] == [MessageType.BUFFERS, MessageType.FRAME]
        assert (
            peer.nothing_there()
            and not connection.failure
            and connection.statistics().dropped == 1
        )
