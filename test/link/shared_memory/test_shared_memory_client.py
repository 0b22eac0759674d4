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
The consumer's end, against a real server and against producers that break every rule.

wire/test_wire.py covers the rules in the tables of docs/wire.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
import gc
import os
from pathlib import Path
import threading
import time
from types import SimpleNamespace
from typing import Any

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
    readable,
    receive,
    settled,
)
import pytest
from waiting import until

from zc_perception import backoff
from zc_perception.errors import ConfigError
from zc_perception.frame import Frame, FrameData, Header
from zc_perception.link.shared_memory import unix_socket, wire
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import (
    MAX_OTHERS,
    MessageType,
    RefusalCode,
    Requirements,
)
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.memory.fence import EventFence, SyncFile
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.settings import Buffers, BufferSettings
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.layout import ImageLayout, PlaneLayout

pytestmark = pytest.mark.usefixtures('no_fd_leak', 'form')
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


def test_a_frame_is_held_from_its_receipt_and_if_forgotten_taken_back_and_counted(
    pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient
) -> None:
    publish(server, pool, 0)
    before_ns = time.monotonic_ns()
    frame = receive(client)
    ((_, held_s),) = client.statistics().in_hand
    assert held_s <= (time.monotonic_ns() - before_ns) / 1e9
    assert frame.published_ns < before_ns
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
    assert client.receive() is None and not readable(client)
    assert held(server) == 1 and client.statistics().held == 1
    fence.signal()
    assert readable(client, PATIENCE_S), 'the signal wakes the consumer'
    assert client.receive() is None
    until(lambda: held(server) == 0, 'the release')
    assert not readable(client), 'and does so once'
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


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> Callable[[SharedMemoryClient], float | None]:
    """Return a function that attempts to connect at once; for the pause after it, time stands."""

    def attempted(client: SharedMemoryClient) -> float | None:
        with monkeypatch.context() as patch:
            now = time.monotonic()
            patch.setattr(backoff, 'time', SimpleNamespace(monotonic=lambda: now))
            client._retry.due = 0.0
            return attempt(client)

    return attempted


def test_it_connects_when_there_is_somebody_and_backs_off_while_not(
    folder: Path, pool: BufferPool, paused: Callable[[SharedMemoryClient], float | None]
) -> None:
    with SharedMemoryClient(folder / f'{PUBLISHER}.sock', name='npu') as client:
        delays = [paused(client) for _ in range(7)]
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
                delay = paused(client)
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


def test_releases_that_found_the_socket_full_go_out_when_there_is_room(fake: Fake) -> None:
    """No other call triggers them: no frame comes, as the producer's window is full."""
    frames = 1000
    producer, client, peer = fake()
    producer.introduce(peer)
    for generation in range(1, frames + 1):
        producer.frame(peer, generation=generation)
        receive(client).release()
    assert not readable(client)
    released = 0
    while released < frames:
        if peer.nothing_there():
            assert readable(client, PATIENCE_S), f'{released} came'
            assert client.receive() is None
            continue
        assert peer.receive_type() == wire.MessageType.RELEASE
        released += 1
    assert client.receive() is None and not readable(client) and client.connected


def test_who_sends_no_frame_for_ever_is_left_and_not_met_again_at_once(fake: Fake) -> None:
    producer, client, peer = fake()
    buffer = producer.buffer()

    def flood() -> None:
        with suppress(OSError):  # the client may have closed its end
            for uid in range(100, 101 + MAX_OTHERS):
                peer.send(wire.pack_buffers(SLOT._replace(uid=uid)), [buffer.fileno()])
                peer.send(wire.pack_retired(uid))

    thread = threading.Thread(target=flood)
    thread.start()
    left(client, 'flood', f'more than {MAX_OTHERS} messages')
    peer.close()
    thread.join()
    assert (client.approach() or 0.0) > 1.0


def test_who_says_nothing_is_asked_less_and_less_often(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    paused: Callable[[SharedMemoryClient], float | None],
) -> None:
    monkeypatch.setattr('zc_perception.link.shared_memory.client.HANDSHAKE_S', 0.001)
    with FakeProducer(folder / 's'), SharedMemoryClient(folder / 's', name='npu') as client:
        delays = [paused(client) or 0.0 for _ in range(10)]
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
        why = 'trial import of slot 0 failed: OSError: the card refuses it'
        left(client, 'constraints', f"this node can't use the producer's buffers: {why}")
        settled(server, 'constraints')
        assert server.statistics().refused == {'constraints': 1}
        assert server.statistics().last_refusal == {'constraints': f'npu: {why}'}
        assert len(warned) == 1 and 'consumer npu@' in warned[0] and why in warned[0]
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


# Producers that break rules: every violation ends the connection.

SLOT = wire.BuffersMessage(9, make_layout(), BT601_LIMITED, BufferKind.MEMFD, (4608,))
APART = (PlaneLayout(0, 0, 64, 3072), PlaneLayout(1, 0, 64, 1536))
NO_BUFFER = 'a buffer can be a dma-buf or a sealed memfd'


def unsealed() -> int:
    memory = os.memfd_create('unsealed', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, 8192)
    return memory


def write_only() -> int:
    memory = unsealed()
    fd = os.open(f'/proc/self/fd/{memory}', os.O_WRONLY | os.O_CLOEXEC)
    os.close(memory)
    return fd


def pipe() -> int:
    read, write = os.pipe()
    os.close(write)
    return read


def no_buffer(make: Callable[[], int]) -> Callable[[FakeProducer, RawPeer], None]:
    def send(producer: FakeProducer, peer: RawPeer) -> None:
        fd = make()
        producer.introduce(peer, 9, fds=[fd])
        os.close(fd)

    return send


def frames(*which: tuple[int, int], **changes: Any) -> Callable[[FakeProducer, RawPeer], None]:
    def send(producer: FakeProducer, peer: RawPeer) -> None:
        for uid, generation in which:
            producer.frame(peer, uid, generation, **changes)

    return send


def raw(packet: bytes, fds: list[int] | None = None) -> Callable[[FakeProducer, RawPeer], None]:
    return lambda producer, peer: peer.send(packet, fds)


def same_memory(producer: FakeProducer, peer: RawPeer) -> None:
    buffer, layout = producer.buffer(), ImageLayout(64, 48, NV12, 0, APART)
    sizes, fds = (buffer.size,) * 2, [buffer.fileno()] * 2
    producer.introduce(peer, 9, layout=layout, sizes=sizes, fds=fds)


def unknown_format(producer: FakeProducer, peer: RawPeer) -> None:
    producer.introduce(peer, 9, layout=ImageLayout(64, 48, 1, 0, (PlaneLayout(0, 0, 64, 3072),)))


def frame_of_a_retired_slot(producer: FakeProducer, peer: RawPeer) -> None:
    producer.frame(peer)
    peer.send(wire.pack_retired(7))
    producer.frame(peer, generation=2)


HOSTILE: dict[str, tuple[str, str, Callable[[FakeProducer, RawPeer], object]]] = {
    'a fence without its flag': ('descriptors', '', frames((7, 1), fds=[0], fence=False)),
    'two fences': ('descriptors', '', frames((7, 1), fds=[0, 0])),
    'many descriptors': ('truncated', '', frames((7, 1), fds=[0] * 200)),
    'a descriptor with retired': ('descriptors', '', raw(wire.pack_retired(7), [0])),
    'buffers twice': ('state', '', lambda producer, peer: producer.introduce(peer)),
    'buffers without one': ('descriptors', '', raw(wire.pack_buffers(SLOT))),
    'buffers of one memory': ('buffers', 'the same memory', same_memory),
    **{
        f'in place of a buffer, {name}': ('buffers', NO_BUFFER, no_buffer(make))
        for name, make in (
            ('a pipe', pipe),
            ('a file', lambda: os.open('/proc/self/exe', os.O_RDONLY | os.O_CLOEXEC)),
            ('an eventfd', lambda: os.eventfd(0, os.EFD_CLOEXEC)),
            ('an unsealed memfd', unsealed),
        )
    },
    'an unknown format': ('buffers', '', unknown_format),
    'a frame in hand': ('state', '', frames((7, 1), (7, 2))),
    'a frame of a retired slot': ('state', 'is retired', frame_of_a_retired_slot),
    'one frame too many': ('window', '', frames((7, 1), (8, 1), (6, 1))),
    'a refusal': ('refused', '', raw(wire.pack_refused(wire.Refused(RefusalCode.BUSY, 'full')))),
}


@pytest.mark.parametrize('what', HOSTILE)
def test_a_producer_that_breaks_a_rule_is_left(fake: Fake, what: str) -> None:
    reason, words, attack = HOSTILE[what]
    producer, client, peer = fake(2)
    for uid in (6, 7, 8):
        producer.introduce(peer, uid)

    def attacking() -> None:
        with suppress(OSError):  # the client may close its end first
            attack(producer, peer)

    thread = threading.Thread(target=attacking)
    thread.start()
    kept: list[Frame] = []

    def is_left() -> bool:
        frame = client.receive()
        if frame is not None:
            kept.append(frame)
        return not client.connected

    until(is_left, 'the end')
    thread.join()
    assert client.statistics().ended == {reason: 1} and words in client.last_end, client.last_end
    for frame in kept:
        with frame.map() as planes:
            assert planes[0].shape == (48, 64)
        frame.release()


def test_a_producer_that_closes_instead_of_an_answer_has_gone(folder: Path) -> None:
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu') as client,
    ):
        assert client.approach() is not None
        with RawPeer(producer.listener.accept()[0]) as peer:
            assert peer.receive_type() == MessageType.HELLO
        attempt(client)
        left(client, 'gone', 'closed the connection')


def test_a_wrong_user_is_not_talked_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        'zc_perception.link.shared_memory.client.producer_allowed',
        lambda peer, uids: peer.uid in uids,
    )
    for name, uids in (('s', ()), ('t', (os.geteuid(),))):
        with (
            FakeProducer(folder / name) as producer,
            SharedMemoryClient(producer.path, name='npu', allowed_uids=uids) as client,
        ):
            if uids:
                producer.serve(client).close()
                continue
            attempt(client)
            left(client, 'not_allowed', f'user {os.geteuid()}, who is not trusted, listens')
            with RawPeer(producer.listener.accept()[0]) as peer:
                assert peer.receive()[0] == b'', 'not a word was said'


def test_a_foreign_users_memfd_has_to_be_narrowed(fake: Fake) -> None:
    producer, client, peer = fake()
    slots = client._slots
    assert slots is not None
    slots.peer = slots.peer._replace(uid=os.geteuid() + 1)
    producer.introduce(peer)
    left(client, 'buffers', 'FUTURE_WRITE')


@pytest.mark.parametrize(
    ('needs', 'why'),
    [
        (Requirements(max_width=32), 'takes images of at most 32x65535, not 64x48'),
        (Requirements(formats=((fourcc_code('YUYV'), 0),)), 'not accepted (accepted: YUYV LINEAR'),
        (Requirements(stride_align=256), 'not a multiple of stride_align 256'),
        (Requirements(memory=1), 'the buffers are memfds, which the consumer does not take'),
    ],
)
def test_buffers_that_the_consumer_ruled_out_are_refused_by_name(
    fake: Fake, needs: Requirements, why: str
) -> None:
    producer, client, peer = fake(requirements=needs)
    producer.introduce(peer)
    left(client, 'constraints', why)
    refused = peer.receive_refused()
    assert refused.code is RefusalCode.CONSTRAINTS and why in refused.text


@pytest.mark.parametrize(
    ('options', 'kind'),
    [('', BufferKind.MEMFD), ('cpu=read', BufferKind.DMABUF), ('', BufferKind.DMABUF)],
)
def test_memory_that_nobody_can_map_is_refused_by_name(
    fake: Fake, options: str, kind: BufferKind
) -> None:
    producer, client, peer = fake(requirements=Requirements(options=options))
    fd = write_only()
    producer.introduce(peer, kind=kind, fds=[fd])
    os.close(fd)
    if kind is BufferKind.DMABUF and not options:
        # No CPU access is required, but the descriptor still isn't a dma-buf.
        left(client, 'buffers')
        return
    why = (
        f"buffer 0, a {kind.value}, was opened with O_WRONLY, so it can't be mapped; "
        "the buffer's owner"
    )
    left(client, 'constraints', why)
    assert peer.receive_refused().code is RefusalCode.CONSTRAINTS
    assert client.approach() is None and not client.connected, 'it would be the same again'


def test_256_slots_are_the_most_and_retired_ones_that_are_held_do_not_count(fake: Fake) -> None:
    producer, client, peer = fake(3)
    buffer, held = producer.buffer(), []

    def introduce(uid: int) -> None:
        slot = SLOT._replace(uid=uid, sizes=(buffer.size,))
        peer.send(wire.pack_buffers(slot), [buffer.fileno()])

    for uid in range(259):
        introduce(uid)
        if uid < 3:
            producer.frame(peer, uid)
            held.append(receive(client))
            peer.send(wire.pack_retired(uid))
        assert client.receive() is None and client.connected, client.last_end
    introduce(1000)
    until(lambda: client.receive() is None and not client.connected, 'the end')
    assert '256 slots' in client.last_end
    for frame in held:
        frame.release()
