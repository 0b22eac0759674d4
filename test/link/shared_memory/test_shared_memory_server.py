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

"""The producer's end against raw sockets: admission, messages sent, releases received."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, ExitStack
import itertools
import os
import socket
import threading
from types import SimpleNamespace
from typing import Any

from memory_link import (
    all_free,
    FrameMessage,
    make_frame,
    make_layout,
    make_pool,
    publish,
    PUBLISHER,
    RawPeer,
    settled,
)
import pytest
from waiting import until

from zc_perception.frame import Header
from zc_perception.link.shared_memory import server as server_module
from zc_perception.link.shared_memory import unix_socket, wire
from zc_perception.link.shared_memory.protocol import (
    MAX_DEPTH,
    MessageType,
    RefusalCode,
    Requirements,
)
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.fence import EventFence, SyncFile
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, SlotState
from zc_perception.negotiation.settings import heap_offer
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

pytestmark = pytest.mark.usefixtures('no_fd_leak')
Serve = Callable[..., SharedMemoryServer]


def test_buffers_come_once_for_each_slot_and_before_its_first_frame(
    pool: BufferPool, server: SharedMemoryServer
) -> None:
    with RawPeer.welcomed(server.path, window=2) as peer:
        sent = [publish(server, pool, sequence) for sequence in range(2)]
        for sequence, (uid, generation) in enumerate(sent):
            packet, fds = peer.receive()
            message = wire.parse_buffers(packet)
            slot = next(slot for slot in pool.slots if slot.buffer_uid == uid)
            assert (message.uid, message.layout) == (uid, slot.layout)
            assert message.sizes == tuple(b.size for b in slot.buffers)
            assert [os.fstat(fd).st_ino for fd in fds] == [b.identity.inode for b in slot.buffers]
            for fd in fds:
                os.close(fd)
            frame = peer.receive_frame()
            assert frame[:4] == (uid, generation, sequence, 1000 + sequence)
            assert frame[6:] == (17, 0, False)
            assert 0 < frame.captured_ns <= frame.published_ns
            peer.release(frame)
        until(lambda: all_free(pool), 'releases')
        assert publish(server, pool, 2)[0] == sent[0][0]
        packet, fds = peer.receive()
        assert wire.message_type(packet) is MessageType.FRAME and not fds, (
            'BUFFERS of a known slot came again'
        )
        assert packet[slice(wire.FRAME.size, None)] == b'camera_optical_frame'


def test_a_full_window_keeps_the_newest_and_tells_what_it_dropped(
    pool: BufferPool, server: SharedMemoryServer
) -> None:
    with (
        RawPeer.welcomed(server.path, window=2, depth=2) as slow,
        RawPeer.welcomed(server.path) as quick,
    ):
        for sequence in range(7):
            publish(server, pool, sequence)
            frame = quick.receive_frame()
            assert (frame.sequence, frame.dropped) == (sequence, 0)
            quick.release(frame)
            until(lambda: server.statistics().consumers[1].held == 0, 'the release')
        first, second = slow.receive_frame(), slow.receive_frame()
        assert [first.sequence, second.sequence] == [0, 1] and slow.nothing_there()
        consumer = server.statistics().consumers[0]
        assert (consumer.held, consumer.pending, consumer.sent, consumer.dropped) == (2, 2, 2, 3)
        until(
            lambda: pool.statistics().holders == {consumer.holder: 4},
            'the slot of the last release',
        )
        slow.release(second)
        third = slow.receive_frame()
        assert (third.sequence, third.dropped) == (5, 3), (
            'the newest two were kept, three were dropped'
        )
        assert slow.nothing_there()
        slow.release(first)
        fourth = slow.receive_frame()
        assert (fourth.sequence, fourth.dropped) == (6, 0)
        slow.release(fourth)
        slow.release(third)
        until(lambda: all_free(pool), 'releases')


def test_a_recording_waits_for_who_asks_for_all(
    pool: BufferPool, server: SharedMemoryServer
) -> None:
    with RawPeer.welcomed(server.path, window=1, depth=MAX_DEPTH) as peer:
        sent = 0
        while (slot := pool.acquire(wait_s=0.05)) is not None:
            pool.discard(slot)
            publish(server, pool, sent)
            sent += 1
        consumer = server.statistics().consumers[0]
        assert 2 <= sent < len(pool.slots)
        assert (consumer.held, consumer.pending, consumer.dropped) == (1, sent - 1, 0)
        peer.release(peer.receive_frame())
        slot = pool.acquire(wait_s=60.0)
        assert slot is not None, 'it goes on with the release'
        pool.discard(slot)


def test_windows_of_all_consumers_the_greatest_depth_and_the_reserve_fit_the_pool(
    pool: BufferPool, server: SharedMemoryServer
) -> None:
    peers = []
    for asked, window, depth in (((3, 1), 3, 1), ((2, 2), 2, 1), ((2, 9), 1, 1)):
        peers.append(RawPeer.connected(server.path))
        peers[-1].hello(window=asked[0], depth=asked[1])
        welcome = wire.parse_welcome(peers[-1].receive()[0])
        assert (welcome.window, welcome.depth, welcome.publisher_id) == (window, depth, PUBLISHER)
    with RawPeer.connected(server.path) as late:
        late.hello()
        refused = late.receive_refused()
    assert refused.code == RefusalCode.BUSY
    assert '0 of 8 slots can still be promised to a consumer' in refused.text
    assert server.statistics().refused == {'slots': 1}
    peers.pop(0).close()
    settled(server, 'eof')
    with RawPeer.welcomed(server.path, window=2, depth=2):
        assert pool.unpromised == 1
    for peer in peers:
        peer.close()
    settled(server, 'eof', 4)
    assert pool.unpromised == 7


@pytest.mark.parametrize(
    ('requirements', 'why'),
    [
        (Requirements(memory=1), 'the buffers are memfds, which the consumer does not take'),
        (Requirements(options='device=/dev/npu'), "can't attach to buffers of heap 'memfd'"),
    ],
)
def test_who_cannot_use_what_is_allocated_is_told_why(
    pool: BufferPool, serve: Serve, requirements: Requirements, why: str
) -> None:
    said: list[str] = []
    server = serve(None, report=said.append)
    server.set_pool(pool, heap_offer('memfd'))
    with RawPeer.connected(server.path) as peer:
        peer.hello(requirements=requirements)
        refused = peer.receive_refused()
    assert refused.code == RefusalCode.CONSTRAINTS
    assert refused.text.startswith("the allocated buffers don't suit raw:") and why in refused.text
    assert server.statistics().refused == {'constraints': 1} and pool.unpromised == 7
    assert server.statistics().last_refusal == {'constraints': refused.text}
    until(lambda: any(refused.text in line for line in said), 'the sentence')


def test_who_waits_is_told_why_and_let_in_when_there_are_buffers(
    pool: BufferPool, serve: Serve
) -> None:
    server = serve(None)
    with RawPeer.connected(server.path) as peer, RawPeer.connected(server.path) as gone:
        for each in (peer, gone):
            each.hello(waits=True, requirements=Requirements(stride_align=64))
            assert 'no buffers yet' in wire.parse_noted(each.receive()[0])
        assert server.await_consumers(2, 0.0) and not server.await_consumers(3, 0.0)
        consumer, about, window = server.participants()[0]
        assert (consumer.constraints.stride_align, about.pid, window) == (64, os.getpid(), 1)
        gone.socket.close()
        until(lambda: len(server.participants()) == 1, 'one participant')
        server.set_pool(pool)
        assert peer.receive_type() == wire.MessageType.WELCOME
        publish(server, pool, 0)
        assert peer.receive_frame().sequence == 0
        assert len(server.participants()) == 1
    settled(server, 'eof')
    assert not server.participants()


def test_who_talks_while_it_waits_is_turned_away(serve: Serve) -> None:
    server = serve(None)
    with RawPeer.connected(server.path) as peer:
        peer.hello(waits=True)
        assert peer.receive_type() == wire.MessageType.NOTED
        peer.send(wire.pack_release(1, 1, False))
        assert peer.receive_refused().code == RefusalCode.PROTOCOL
    assert server.statistics().protocol_errors == {'state': 1} and not server.participants()


def test_buffers_that_no_longer_fit_end_the_connection_with_the_reason(
    pool: BufferPool, server: SharedMemoryServer
) -> None:
    """The publisher has moved on to another pool; the server still serves the first."""
    wide = make_pool(1, compute_layout(NV12, 128, 16))
    with RawPeer.welcomed(server.path, requirements=Requirements(max_width=64)) as peer:
        publish(server, wide, 0)
        refused = peer.receive_refused()
        assert (
            refused.code == RefusalCode.CONSTRAINTS
            and 'takes images of at most 64x65535, not 128x16' in refused.text
        )
    settled(server, 'constraints')
    assert all_free(wide) and pool.unpromised == 7
    wide.close()


def test_a_fence_of_this_process_holds_back_its_frame_and_those_behind_it(
    pool: BufferPool, server: SharedMemoryServer
) -> None:
    fences = [EventFence() for _ in range(3)]
    with RawPeer.welcomed(server.path, window=3, depth=3) as peer:
        publish(server, pool, 0)
        publish(server, pool, 1, acquire_fence=fences[0])
        publish(server, pool, 2)
        assert peer.receive_frame().sequence == 0 and peer.nothing_there()
        fences[0].signal()
        assert [peer.receive_frame().sequence for _ in range(2)] == [1, 2], 'in their order'
        until(lambda: not server._fences, 'the fence was forgotten')
    settled(server, 'eof')
    with RawPeer.welcomed(server.path, window=2) as peer:
        publish(server, pool, 3, acquire_fence=fences[1])
        fences[1].signal(RuntimeError('no exposure'))
        until(lambda: server.statistics().consumers[0].dropped == 1, 'the drop')
        publish(server, pool, 4)
        frame = peer.receive_frame()
        assert (frame.sequence, frame.dropped) == (4, 1), 'a failed frame is not delivered'
    settled(server, 'eof', 2)
    with RawPeer.welcomed(server.path, window=2, depth=1) as peer:
        publish(server, pool, 5, acquire_fence=fences[2])
        publish(server, pool, 6)
        frame = peer.receive_frame()
        assert (frame.sequence, frame.dropped) == (6, 1), 'depth overtakes one that never signals'
    settled(server, 'eof', 3)
    until(lambda: all_free(pool), 'all slots')
    server.close()
    for fence in fences:
        fence.close()


def test_a_sync_file_travels_with_its_frame(pool: BufferPool, server: SharedMemoryServer) -> None:
    event = os.eventfd(0, os.EFD_CLOEXEC)
    fence = SyncFile(OwnedFd(event))
    with RawPeer.welcomed(server.path) as peer:
        publish(server, pool, 0, acquire_fence=fence)
        _, fds = peer.receive()
        os.close(fds[0])
        packet, fds = peer.receive()
        assert wire.parse_frame(packet, len(packet))[11] == 1 and len(fds) == 1
        os.eventfd_write(fds[0], 5)
        assert os.eventfd_read(event) == 5, 'the very same file'
        os.close(fds[0])
    fence.close()


def test_history_comes_first_and_only_to_those_that_ask(pool: BufferPool, serve: Serve) -> None:
    server = serve(pool, history=2)
    for sequence in range(4):
        publish(server, pool, sequence)
    assert pool.statistics().holders == {'camera:shared_memory_history': 2}
    with (
        RawPeer.welcomed(server.path, window=2, history=True) as late,
        RawPeer.welcomed(server.path) as plain,
    ):
        publish(server, pool, 4)
        for sequence in (2, 3, 4):
            frame = late.receive_frame()
            assert frame.sequence == sequence
            late.release(frame)
        assert plain.receive_frame().sequence == 4
    server.close()
    until(lambda: all_free(pool), 'all slots')


def test_a_real_sync_file_is_the_only_release_fence(
    pool: BufferPool, server: SharedMemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = os.eventfd(0, os.EFD_CLOEXEC)
    for fds, words in (
        ([event], ('sync_file', 'eventfd')),
        ([event, event], ('2 descriptors came, at most 1 may',)),
    ):
        with RawPeer.welcomed(server.path) as peer:
            uid, generation = publish(server, pool, 0)
            peer.receive_frame()
            peer.send(wire.pack_release(uid, generation, True), fds)
            refused = peer.receive_refused()
            assert refused.code == RefusalCode.PROTOCOL and all(
                word in refused.text for word in words
            ), refused
        until(lambda: all_free(pool), 'the quarantine')
    # A sync_file needs a driver, which is missing here: a stand-in shows that the fence arrives.
    monkeypatch.setattr(unix_socket, 'fence_from_fd', SyncFile)
    with RawPeer.welcomed(server.path) as peer:
        uid, generation = publish(server, pool, 1)
        frame = peer.receive_frame()
        peer.send(wire.pack_release(uid, generation, True), [event])
        until(
            lambda: pool.statistics().states.get(SlotState.WAITING) == 1,
            'the slot waits for the fence',
        )
        os.eventfd_write(event, 1)
        until(lambda: all_free(pool), 'the fence')
        assert server.statistics().consumers[0].held == 0 and frame.uid == uid
    os.close(event)


def test_closing_tells_everybody_and_leaves_nothing(
    pool: BufferPool, server: SharedMemoryServer
) -> None:
    with RawPeer.welcomed(server.path) as peer:
        publish(server, pool, 0)
        server.close()
        server.close()
        assert not server.path.exists()
        while peer.receive_type():
            pass
    until(lambda: not any('shared-memory' in each.name for each in threading.enumerate()))
    until(lambda: all_free(pool), 'every slot')
    publish(server, pool, 1)


# Consumers that send nothing, never read, or die.


def test_a_silent_consumer_is_turned_away(
    pool: BufferPool, server: SharedMemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('zc_perception.link.shared_memory.server.HANDSHAKE_S', 0.05)
    with RawPeer.connected(server.path) as peer:
        assert peer.receive_refused() == (RefusalCode.PROTOCOL, 'no HELLO within 0.05 s')
    found = server.statistics()
    assert found.protocol_errors == {'silent': 1} and found.handshaking == 0


@pytest.mark.parametrize(('count', 'welcome'), [(0, False), (4, True)])
def test_an_empty_packet_is_an_end_whatever_comes_with_it(
    pool: BufferPool, server: SharedMemoryServer, count: int, welcome: bool
) -> None:
    with RawPeer.welcomed(server.path) if welcome else RawPeer.connected(server.path) as peer:
        peer.send(b'', count * [0])
        assert peer.receive_type() == 0
        settled(server, 'eof' if welcome else 'before_hello')
    assert not server.statistics().protocol_errors


def test_more_consumers_than_allowed_are_told_to_come_back(
    pool: BufferPool, server: SharedMemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        'zc_perception.link.shared_memory.server.HANDSHAKE_S', 120.0
    )  # the two silent ones stay until the crowd has gone
    monkeypatch.setattr('zc_perception.link.shared_memory.server.MAX_CONNECTIONS', 3)
    good = RawPeer.welcomed(server.path)
    silent, other = RawPeer.connected(server.path), RawPeer.connected(server.path)
    until(lambda: server.statistics().handshaking == 2, 'both')
    crowd = []
    for number in range(60):
        crowd.append(RawPeer.connected(server.path))
        if number % 10 == 0:  # the connected consumer notices nothing
            publish(server, pool, number)
            received = good.receive_frame()
            assert (received.sequence, received.dropped) == (number, 0)
            good.release(received)
            until(lambda: server.statistics().consumers[0].held == 0, 'the release')
    for peer in crowd:
        assert peer.receive_refused().code == RefusalCode.BUSY
        peer.close()
    assert server.statistics().refused == {'connections': 60}
    silent.close()
    other.close()
    good.close()
    until(lambda: server.statistics().handshaking == server.consumers == 0, 'their end')
    with RawPeer.welcomed(server.path):
        pass


def test_out_of_descriptors_the_server_waits_without_spinning(
    pool: BufferPool, server: SharedMemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, calls = server._listener, []

    def accept() -> Any:
        """Fail the first time, because the process has no descriptor left."""
        calls.append(threading.current_thread().name)
        if len(calls) == 1:
            raise OSError(24, 'Too many open files')
        return listener.accept()

    exhausted = SimpleNamespace(fileno=listener.fileno, close=listener.close, accept=accept)
    with RawPeer.welcomed(server.path, window=2) as served:
        monkeypatch.setattr(server, '_listener', exhausted)
        monkeypatch.setattr('zc_perception.link.shared_memory.server._ACCEPT_PAUSE_S', 3600.0)
        with RawPeer.connected(server.path) as late:
            late.hello()
            until(lambda: server.statistics().refused == {'descriptors': 1}, 'the refusal')
            for sequence in range(20):
                publish(server, pool, sequence)
                served.release(served.receive_frame())
                until(lambda: server.statistics().consumers[0].held == 0, 'the release')
            assert calls == ['shared-memory camera']
            server._accept_at = 1.0  # end the pause
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
        # Only the frame that was sent can be in use by a device.
        taken: list[dict[SlotState, int]] = []
        revoke = pool.revoke

        def observed(*arguments: Any, **options: Any) -> int:
            taken.append(pool.statistics().states)
            return revoke(*arguments, **options)

        pool.revoke = observed  # type: ignore[method-assign]
    settled(server, 'eof')
    assert taken == [{SlotState.LEASED: 1, SlotState.FREE: 7}]
    assert server.statistics().taken_back == 1 and pool.statistics().revoked == 1


def test_a_consumer_that_ends_takes_no_frame_from_a_subscription_with_its_name(
    pool: BufferPool, server: SharedMemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, '_numbers', itertools.count(2))
    pool.grant('raw', 1, 1)
    second = pool.free_name('raw')
    pool.grant(second, 1, 1)
    with make_frame(pool, 1) as frame:
        own = frame.deliver(second)
    assert own is not None
    with RawPeer.welcomed(server.path, name='raw'):
        pass
    settled(server, 'eof')
    own.release()


def test_frames_that_do_not_go_into_a_full_socket_are_dropped_and_told(serve: Serve) -> None:
    pool = make_pool(10, reserve=1)
    server = serve(pool)
    with RawPeer.welcomed(server.path, window=6) as peer:
        # Introduce every slot first, so that only FRAMEs remain to be sent.
        frames = [make_frame(pool, sequence) for sequence in range(8)]
        for frame in frames:
            server.publish(frame)
            peer.release(peer.receive_frame())
            until(lambda: server.statistics().consumers[0].held == 0, 'the release')
        for frame in frames:
            frame.release()
        connection = server._connections[0]
        # The kernel's smallest send buffer.
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        for sequence in range(100, 106):
            publish(server, pool, sequence, header=Header(1, 255 * 'f'))
        found = connection.statistics()
        sent = found.sent - 8
        assert 0 < sent < 6 and (found.held, found.dropped) == (sent, 6 - sent)
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
    send: str, pool: BufferPool, server: SharedMemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RawPeer.welcomed(server.path) as peer:
        connection = server._connections[0]

        def full(*_: object) -> None:
            raise BlockingIOError

        with monkeypatch.context() as patch:
            patch.setattr(connection, send, full)
            publish(server, pool, 0)
        publish(server, pool, 1)
        assert [peer.receive_type() for _ in range(2)] == [MessageType.BUFFERS, MessageType.FRAME]
        assert peer.nothing_there() and not connection.failure
        assert connection.statistics().dropped == 1


# Connections that continue when their producer changes its buffers.

@pytest.fixture
def before() -> Iterator[BufferPool]:
    with closing(make_pool(6)) as pool:
        yield pool


@pytest.fixture
def after() -> Iterator[BufferPool]:
    """Yield other buffers; at the end nobody has them, and nothing is promised."""
    with closing(make_pool(6, make_layout(stride_align=256))) as pool:
        yield pool
        until(lambda: all_free(pool) and pool.unpromised == len(pool.slots))


@pytest.fixture
def moved(before: BufferPool, serve: Serve) -> SharedMemoryServer:
    return serve(before)


def told(peer: RawPeer) -> list[tuple[MessageType, int]]:
    """Return the types of all waiting messages, each with its slot's uid."""
    found = []
    while not peer.nothing_there():
        packet, fds = peer.receive()
        for fd in fds:
            os.close(fd)
        found.append((wire.message_type(packet), int.from_bytes(packet[8:16], 'little')))
    return found


def test_frames_in_hand_stay_and_their_slots_are_retired(
    moved: SharedMemoryServer, before: BufferPool, after: BufferPool
) -> None:
    with RawPeer.welcomed(moved.path, window=2) as peer:
        first = publish(moved, before, 1)
        held = peer.receive_frame()
        moved.set_pool(after)
        second = publish(moved, after, 2)
        assert told(peer) == [
            (MessageType.BUFFER_RETIRED, first[0]),
            (MessageType.BUFFERS, second[0]),
            (MessageType.FRAME, second[0]),
        ]
        assert before.statistics().holders, 'it is still in hand'
        peer.release(held)
        until(lambda: all_free(before))
        peer.release(FrameMessage(*second, 2, 0, 0, 0, 0, 0, False))
        until(lambda: all_free(after))
        assert moved.statistics().ended == {}


def test_frames_that_wait_come_before_those_of_other_buffers(
    moved: SharedMemoryServer, before: BufferPool, after: BufferPool
) -> None:
    with RawPeer.welcomed(moved.path, window=1, depth=3) as peer:
        ids = [publish(moved, before, number) for number in (1, 2)]
        held = peer.receive_frame()
        moved.set_pool(after)
        ids.append(publish(moved, after, 3))
        assert told(peer) == [(MessageType.BUFFER_RETIRED, ids[0][0])]
        peer.release(held)
        until(lambda: not peer.nothing_there())
        held = peer.receive_frame()
        assert (held.uid, held.sequence, held.dropped) == (ids[1][0], 2, 0)
        assert peer.receive_type() is MessageType.BUFFER_RETIRED
        peer.release(held)
        assert peer.receive_frame().sequence == 3
    settled(moved, 'eof')
    until(lambda: all_free(before))


def test_who_dies_with_frames_of_both_gives_all_of_them_back(
    moved: SharedMemoryServer, before: BufferPool, after: BufferPool
) -> None:
    with RawPeer.welcomed(moved.path, window=2, depth=2) as peer:
        for number in (1, 2, 3):
            publish(moved, before, number)
        moved.set_pool(after)
        publish(moved, after, 4)
        assert peer.receive_frame().sequence == 1
    settled(moved, 'eof')
    until(lambda: all_free(before))


def test_who_dies_while_it_is_moved_leaves_no_promise(
    moved: SharedMemoryServer, after: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, grant = RawPeer.welcomed(moved.path, window=2), server_module.grant

    def die(*values: Any) -> tuple[int, int]:
        peer.close()
        settled(moved, 'eof')
        return grant(*values)

    monkeypatch.setattr(server_module, 'grant', die)
    moved.set_pool(after)


def test_whom_the_other_buffers_do_not_suit_is_told_to_come_again(
    moved: SharedMemoryServer, after: BufferPool
) -> None:
    narrow = Requirements(options='max_stride=64')
    with (
        RawPeer.welcomed(moved.path, requirements=narrow) as peer,
        RawPeer.welcomed(moved.path) as other,
    ):
        moved.set_pool(after)
        assert peer.receive_refused().code == 4
        publish(moved, after, 1)
        assert other.receive_frame().sequence == 1


def test_who_connects_while_others_are_moved_ends_no_connection(
    moved: SharedMemoryServer, after: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = moved._move
    with ExitStack() as peers:
        peer = peers.enter_context(RawPeer.welcomed(moved.path))

        def disturbed(*values: Any) -> None:
            for _ in range(2):  # the second WELCOME shows that the first event is over
                peers.enter_context(RawPeer.welcomed(moved.path))
            move(*values)

        monkeypatch.setattr(moved, '_move', disturbed)
        moved.set_pool(after)
        publish(moved, after, 1)
        assert peer.receive_frame().sequence == 1
