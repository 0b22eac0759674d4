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

"""The consumer's end, against a real server and against producers that break every rule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
import gc
import os
from pathlib import Path
import select
import threading
import time

from memory_link import (
    attempt,
    connected,
    FakeProducer,
    left,
    make_frame,
    make_layout,
    PATIENCE_S,
    publish,
    PUBLISHER,
    RawPeer,
    receive,
    settled,
)
import pytest
from waiting import until

from zc_perception.errors import ConfigError
from zc_perception.frame import FrameData, Header
from zc_perception.link.shared_memory import unix_socket, wire
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import MAX_OTHERS, Requirements
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.memory.fence import EventFence, SyncFile
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.settings import Buffers, BufferSettings
from zc_perception.pixel.colorimetry import BT601_LIMITED

pytestmark = pytest.mark.usefixtures('no_fd_leak')
Serve = Callable[..., SharedMemoryServer]
Fake = Callable[..., tuple[FakeProducer, SharedMemoryClient, RawPeer]]


def held(server: SharedMemoryServer) -> int:
    return server.statistics().consumers[0].held


def mappings_of(inode: int) -> int:
    with open('/proc/self/maps', encoding='utf-8') as maps:
        return sum(entry.split()[4] == str(inode) for entry in maps)


def test_a_frame_arrives_with_everything_that_is_known_of_it(
    pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient
) -> None:
    uid, generation = publish(server, pool, 5)
    with receive(client) as frame:
        slot = next(slot for slot in pool.slots if slot.buffer_uid == uid)
        data = frame.data
        assert data.header == Header(1005, 'camera_optical_frame') and frame.header is data.header
        assert (data.layout, data.colorimetry, data.buffer_uid, data.generation) == (
            slot.layout,
            BT601_LIMITED,
            uid,
            generation,
        )
        assert (data.sequence, data.capture_cost_ns, data.acquire_fence) == (5, 17, None)
        assert 0 < data.captured_ns <= frame.published_ns
        assert [b.identity for b in data.buffers] == [b.identity for b in slot.buffers]
        assert [b.size for b in data.buffers] == [b.size for b in slot.buffers]
        assert not data.buffers[0].writable
        # This FrameData is made without its constructor, so it could miss a field that is added
        # there.
        assert vars(data).keys() == vars(FrameData(data.header, *[None] * 7, 0)).keys()
    until(lambda: held(server) == 0, 'the release')


def test_a_forgotten_frame_is_taken_back_and_counted(
    pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient
) -> None:
    publish(server, pool, 0)
    frame = receive(client)
    del frame
    gc.collect()
    assert client.receive() is None
    until(lambda: held(server) == 0, 'the release')
    assert client.statistics().abandoned == 1


def test_a_fence_of_this_process_holds_the_release_back_and_wakes_who_polls(
    pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient
) -> None:
    publish(server, pool, 0)
    fence = EventFence()
    receive(client).release(fence)
    poller = select.poll()
    poller.register(client.fileno(), select.POLLIN)
    assert client.receive() is None and not poller.poll(0)
    assert held(server) == 1 and client.statistics().held == 1
    fence.signal()
    assert poller.poll(20_000), 'the signal wakes the consumer'
    assert client.receive() is None
    until(lambda: held(server) == 0, 'the release')
    assert not poller.poll(0), 'and does so once'
    with pytest.raises(ValueError, match='closed'):
        fence.fileno()


def test_a_sync_file_travels_with_the_release(fake: Fake) -> None:
    producer, client, peer = fake()
    producer.introduce(peer)
    producer.frame(peer)
    event = os.eventfd(0, os.EFD_CLOEXEC)
    receive(client).release(SyncFile(OwnedFd(os.dup(event))))
    packet, fds = peer.receive()
    assert wire.parse_release(packet, len(packet)) == (7, 1, True) and len(fds) == 1
    os.eventfd_write(event, 3)
    assert os.eventfd_read(fds[0]) == 3
    for fd in (event, fds[0]):
        os.close(fd)


def test_an_acquire_fence_is_a_real_sync_file_and_waited_for(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = os.eventfd(0, os.EFD_CLOEXEC)
    producer, client, peer = fake()
    producer.introduce(peer)
    producer.frame(peer, fds=[event])
    left(client, 'descriptors', 'sync_file')
    # A sync_file needs a driver, which is missing here: a stand-in shows that the fence arrives.
    monkeypatch.setattr(unix_socket, 'fence_from_fd', SyncFile)
    with producer.serve(client) as peer:
        producer.introduce(peer)
        producer.frame(peer, fds=[event])
        with receive(client) as frame:
            fence = frame.data.acquire_fence
            assert isinstance(fence, SyncFile) and not fence.wait(0.0)
            os.eventfd_write(event, 1)
            assert fence.wait(0.0)
    os.close(event)


def test_a_retired_slot_is_unmapped_with_its_last_frame(fake: Fake) -> None:
    producer, client, peer = fake(2)
    inodes = [producer.introduce(peer, uid).identity.inode for uid in (7, 8)]
    for uid in (7, 8):
        producer.frame(peer, uid)
    frames = [receive(client) for _ in range(2)]
    for frame in frames:
        with frame.map() as planes:
            assert planes[0][0, 0] == 0
    frames[1].release()
    for uid in (7, 8):
        peer.send(wire.pack_retired(uid))
    until(
        lambda: client.receive() is None and not mappings_of(inodes[1]), 'the idle one is unmapped'
    )
    with frames[0].map() as planes:
        assert planes[0][0, 0] == 0, 'the held one stays'
    assert mappings_of(inodes[0]) == 1
    frames[0].release()
    assert not mappings_of(inodes[0])
    for generation in (1, 1):
        packet, _ = peer.receive()
        assert wire.parse_release(packet, len(packet)).generation == generation


def test_held_frames_outlive_the_producer(
    pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient
) -> None:
    for sequence in range(2):
        publish(server, pool, sequence)
    frames = [receive(client) for _ in range(2)]
    inodes = [frame.data.buffers[0].identity.inode for frame in frames]
    with frames[0].map() as planes:
        assert planes[0][0, 0] == 0
    server.close()
    until(lambda: client.receive() is None and not client.connected, 'EOF')
    assert client.statistics().ended == {'eof': 1}
    for frame in frames:
        with frame.map() as planes:
            assert planes[0].shape == (48, 64) and planes[0][0, 0] == 0
    shared = frames[0].keep()
    frames[0].release()
    frames[1].release(EventFence())
    assert mappings_of(inodes[0]) == 2
    shared.release()
    assert mappings_of(inodes[0]) == 1 and mappings_of(inodes[1]) == 1, (
        'only the producer has them now'
    )


def test_it_connects_when_there_is_somebody_and_backs_off_while_not(
    folder: Path, pool: BufferPool
) -> None:
    with SharedMemoryClient(folder / f'{PUBLISHER}.sock', name='npu') as client:
        delays = []
        for _ in range(7):
            client._retry.due = 0.0
            delays.append(attempt(client))
        assert all(delay is not None for delay in delays)
        assert [round(delay or 0, 2) for delay in delays] == [
            *(0.02 * 2**n for n in range(5)),
            0.5,
            0.5,
        ]
        assert client.statistics().ended == {'gone': 7}, 'calls before it is due do nothing'
        client._retry.due = time.monotonic() + PATIENCE_S
        with SharedMemoryServer('camera', PUBLISHER, pool, folder=folder):
            assert client.approach() is not None and not client.connected
            client.retarget(folder / f'{PUBLISHER}.sock', PUBLISHER)
            assert attempt(client) is None and client.connected
            client.retarget(folder / f'{PUBLISHER}.sock', PUBLISHER)
            assert client.connected, 'the same announcement again changes nothing'
        until(lambda: client.receive() is None and not client.connected, 'EOF')
        assert client._retry.pause_s == 0.02, 'it served nothing: no hurry'
        number = client.fileno()
        with SharedMemoryServer('camera', 'e' * 32, pool, folder=folder) as successor:
            client.retarget(successor.path, 'e' * 32)
            assert attempt(client) is None and client.fileno() == number
            publish(successor, pool, 0)
            receive(client).release()
            until(lambda: held(successor) == 0, 'the release')
            client._welcomed_at -= 1.0
        until(lambda: client.receive() is None and not client.connected, 'EOF')
        assert client._retry.due == 0.0, 'it served us for a second: the first retry comes at once'
        with SharedMemoryServer('camera', 'e' * 32, pool, folder=folder) as successor:
            assert attempt(client) is None and client.connected
            client.retarget(folder / 'nobody.sock', 'd' * 32)
            assert not client.connected and client.approach() is not None
            client.retarget(successor.path, 'c' * 32)
            for _ in range(12):
                client._retry.due = 0.0
                delay = attempt(client)
            assert delay is not None and 4.9 < delay <= 5.0, 'refused for good: another publisher'


@pytest.mark.parametrize('forgets', [False, True])
def test_what_is_held_beyond_the_end_of_the_consumer_stays_as_it_is(
    forgets: bool, pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient
) -> None:
    """The holder is a callback that ended its own subscription, or an array that was kept."""
    for slot in pool.slots:
        slot.buffers[0].mapping()[:] = bytes(slot.buffers[0].size)
    for sequence in range(3):
        publish(server, pool, sequence)
    frames = [receive(client) for _ in range(3)]
    with frames[1].map() as planes:
        kept = planes[0]
    client.close()
    inodes = [frame.data.buffers[0].identity.inode for frame in frames[1:]]
    frames.pop(0).release()
    for sequence in range(3, 3 * len(pool.slots)):
        with make_frame(pool, sequence) as frame, frame.map(write=True) as views:
            assert frame.data.buffers[0].identity.inode not in inodes
            views[0][:] = 255
            server.publish(frame)
            del views
    until(lambda: held(server) == 2, 'the release')
    assert not kept.any()
    if not forgets:
        del kept
    while frames:
        frame = frames.pop()
        if not forgets:
            frame.release()
    del frame
    kept = None
    until(lambda: server.statistics().ended == {'eof': 1}, 'the end, once nothing is held')
    assert not pool.statistics().holders


# Producers that keep a consumer busy or send nothing must not block its caller.


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_releases_that_found_the_socket_full_go_out_when_there_is_room(fake: Fake) -> None:
    """No other call triggers them: no frame comes, as the producer's window is full."""
    frames = 1000
    producer, client, peer = fake()
    producer.introduce(peer)
    for generation in range(1, frames + 1):
        producer.frame(peer, generation=generation)
        receive(client).release()
    assert not readable(client.fileno())
    released = 0
    while released < frames:
        if peer.nothing_there():
            assert select.select([client.fileno()], [], [], PATIENCE_S)[0], f'{released} came'
            assert client.receive() is None
            continue
        assert peer.receive_type() == wire.MessageType.RELEASE
        released += 1
    assert client.receive() is None and not readable(client.fileno()) and client.connected


def test_who_sends_no_frame_for_ever_is_left_and_not_met_again_at_once(fake: Fake) -> None:
    producer, client, peer = fake()
    buffer, slot = (
        producer.buffer(),
        wire.BuffersMessage(
            0, make_layout(), BT601_LIMITED, BufferKind.MEMFD, (make_layout().buffer_size(0),)
        ),
    )

    def flood() -> None:
        with suppress(OSError):  # the client may have closed its end
            for uid in range(100, 101 + MAX_OTHERS):
                peer.send(wire.pack_buffers(slot._replace(uid=uid)), [buffer.fileno()])
                peer.send(wire.pack_retired(uid))

    thread = threading.Thread(target=flood)
    thread.start()
    left(client, 'flood', f'more than {MAX_OTHERS} messages')
    peer.close()
    thread.join()
    assert (client.approach() or 0.0) > 1.0


def test_who_says_nothing_is_asked_less_and_less_often(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('zc_perception.link.shared_memory.client.HANDSHAKE_S', 0.001)
    with FakeProducer(folder / 's'), SharedMemoryClient(folder / 's', name='npu') as client:
        delays = []
        for _ in range(10):
            client._retry.due = 0.0
            delays.append(attempt(client) or 0.0)
        assert [round(delay, 2) for delay in delays] == [
            *(0.02 * 2**n for n in range(8)),
            5.0,
            5.0,
        ]
        assert client.listens and client.statistics().ended == {'gone': 10}


# Consumers that can't use the buffers.


def test_a_failed_trial_import_is_told_to_both_ends_and_not_tried_again(
    pool: BufferPool, serve: Serve
) -> None:
    warned: list[str] = []
    server, error = serve(pool, warn=warned.append), OSError('the card refuses it')

    def trial(settings: BufferSettings, buffers: Buffers) -> None:
        assert settings.layout.width == 64
        if error is not None:
            raise error

    with SharedMemoryClient(
        server.path, name='npu', publisher_id=PUBLISHER, trial_import=trial
    ) as client:
        connected(client)
        publish(server, pool, 0)
        why = 'trial import of slot 0 failed: the card refuses it'
        left(client, 'constraints', f"this node can't use the publisher's buffers: {why}")
        settled(server, 'constraints')
        assert server.statistics().refused == {'constraints': 1}
        assert server.statistics().last_refusal == {'constraints': f'npu: {why}'}
        assert len(warned) == 1 and 'consumer npu#' in warned[0] and why in warned[0]
        assert client.approach() is None and not client.connected
        error = None
        client.retarget(server.path, PUBLISHER)
        assert attempt(client) is None and client.statistics().connections == 2
        publish(server, pool, 1)
        receive(client).release()
    settled(server, 'eof')


def test_constraints_without_a_format_do_not_become_any_format() -> None:
    with pytest.raises(ConfigError, match="'npu' take no format"):
        Requirements.of(BufferConstraints('npu', formats=()))
    assert Requirements.of(BufferConstraints('npu')).formats == ()
