"""The consumer's end: against a real server, and against producers that do everything wrong."""

from __future__ import annotations

import gc
import os
import select
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_link import PUBLISHER, FakeProducer, RawPeer, make_layout, make_pool, publish, receive, wait_for

from zc_perception.errors import FrameReleasedError
from zc_perception.frame import Frame, FrameData, Header
from zc_perception.frame_queue import FrameQueue
from zc_perception.link.shared_memory import descriptors, wire
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.codes import MAX_SLOTS, MessageType
from zc_perception.link.shared_memory.errors import PeerGoneError, ProtocolError, RefusedError
from zc_perception.link.shared_memory.receiver import SharedMemoryReceiver
from zc_perception.link.shared_memory.requirements import Requirements
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.memory.fence import EventFence, SyncFile
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, SlotState
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import ImageLayout, PlaneLayout

pytestmark = pytest.mark.usefixtures('no_fd_leak')


def all_free(pool: BufferPool) -> bool:
    pool.collect()
    return pool.statistics().states == {SlotState.FREE: len(pool.slots)}


@pytest.fixture
def pool() -> Iterator[BufferPool]:
    made = make_pool(8, reserve=1)
    yield made
    wait_for(lambda: all_free(made), 'every slot')
    made.close()


@pytest.fixture
def server(folder: Path, pool: BufferPool) -> Iterator[SharedMemoryServer]:
    with SharedMemoryServer('camera', PUBLISHER, pool, folder=folder, quarantine_timeout_s=0.01) as made:
        yield made
        assert made.counters.internal_errors == 0, made.counters.last_internal_error


@pytest.fixture
def client(server: SharedMemoryServer) -> Iterator[SharedMemoryClient]:
    with SharedMemoryClient(server.path, name='npu', publisher_id=PUBLISHER, window=3, depth=2) as made:
        made.connect()
        yield made


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
        assert (data.layout, data.colorimetry, data.buffer_uid, data.generation) == (slot.layout, BT601_LIMITED, uid, generation)
        assert (data.sequence, data.capture_cost_ns, data.acquire_fence) == (5, 17, None)
        assert 0 < data.captured_ns <= frame.published_ns
        assert [b.identity for b in data.buffers] == [b.identity for b in slot.buffers]
        assert [b.size for b in data.buffers] == [b.size for b in slot.buffers]
        assert not data.buffers[0].writable
        # It is made without FrameData's constructor, and must not miss a field that is added there.
        assert vars(data).keys() == vars(FrameData(data.header, *[None] * 7, 0)).keys()  # type: ignore[arg-type]
    wait_for(lambda: held(server) == 0, 'the release')


def test_the_pixels_are_the_producers_and_mapped_once(pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient) -> None:
    for slot in pool.slots:
        slot.buffers[0].mapping()[:] = os.urandom(slot.buffers[0].size)
    for sequence in range(30):
        uid, _ = publish(server, pool, sequence)
        slot = next(slot for slot in pool.slots if slot.buffer_uid == uid)
        inode = slot.buffers[0].identity.inode
        with receive(client) as frame:
            with frame.map() as planes:
                luma = np.frombuffer(slot.buffers[0].mapping(), np.uint8)[: 48 * 64].reshape(48, 64)
                assert zlib.crc32(planes[0].tobytes()) == zlib.crc32(luma.tobytes())
                # No copy: what the producer writes now is seen here now.
                slot.buffers[0].mapping()[0] = sequence
                assert planes[0][0, 0] == sequence and mappings_of(inode) == 2, 'one of the producer, one of the consumer'
            del luma
        wait_for(lambda: held(server) == 0, 'the release')


def test_leases_of_this_process_are_counted_here_and_released_once(
    pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient
) -> None:
    publish(server, pool, 0)
    frame = receive(client)
    delivered, shared = frame.deliver('overlay'), frame.share()
    assert delivered is not None and delivered.data is frame.data
    frame.release()
    delivered.release()
    assert client.statistics().held == 1 and held(server) == 1
    shared.release()
    assert client.statistics().held == 0
    wait_for(lambda: held(server) == 0, 'the release')
    with pytest.raises(FrameReleasedError):
        shared.release()
    assert server.statistics().protocol_errors == {}


def test_a_forgotten_frame_is_taken_back_and_counted(pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient) -> None:
    publish(server, pool, 0)
    frame = receive(client)
    del frame
    gc.collect()
    assert client.receive() is None
    wait_for(lambda: held(server) == 0, 'the release')
    assert client.statistics().abandoned == 1


def test_releases_come_from_any_thread(pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient) -> None:
    for turn in range(50):
        for sequence in range(3):
            publish(server, pool, 3 * turn + sequence)
        frames = [receive(client) for _ in range(3)]
        assert [frame.data.sequence for frame in frames] == [3 * turn, 3 * turn + 1, 3 * turn + 2]
        threads = [threading.Thread(target=frame.release) for frame in frames]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(lambda: held(server) == 0, 'the releases')
    assert server.statistics().protocol_errors == {} and client.statistics().received == 150


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
    wait_for(lambda: held(server) == 0, 'the release')
    assert not poller.poll(0), 'and does so once'
    with pytest.raises(ValueError, match='closed'):
        fence.fileno()


def test_a_fence_that_is_waited_for_ends_with_the_conversation(
    pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient
) -> None:
    for sequence in range(2):
        publish(server, pool, sequence)
    fences = [EventFence(), EventFence()]
    frames = [receive(client) for _ in fences]
    frames[0].release(fences[0])
    client.close()
    frames[1].release(fences[1])
    for fence in fences:
        with pytest.raises(ValueError, match='closed'):
            fence.fileno()


def test_two_jobs_on_one_frame_release_it_together(pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient) -> None:
    publish(server, pool, 0)
    first, second = EventFence(), EventFence()
    frame = receive(client)
    frame.share().release(first)
    frame.release(second)
    first.signal()
    assert client.receive() is None and client.statistics().held == 1
    second.signal()
    assert client.receive() is None and client.statistics().held == 0
    wait_for(lambda: held(server) == 0, 'the release')


def test_a_sync_file_travels_with_the_release(folder: Path) -> None:
    with FakeProducer(folder / 's') as producer, SharedMemoryClient(folder / 's', name='npu') as client:
        peer = producer.serve(client)
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
        peer.close()


def test_an_acquire_fence_is_a_real_sync_file_and_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event = os.eventfd(0, os.EFD_CLOEXEC)
    with FakeProducer(folder / 's') as producer, SharedMemoryClient(folder / 's', name='npu') as client:
        peer = producer.serve(client)
        producer.introduce(peer)
        producer.frame(peer, fds=[event])
        wait_for(lambda: client.receive() is None and not client.connected, 'the refusal')
        assert client.statistics().ended == {'descriptors': 1} and 'sync_file' in client.last_end
        peer.close()
        # No driver is here to make one; what becomes of it is seen with a stand-in.
        monkeypatch.setattr(descriptors, 'fence_from_fd', SyncFile)
        peer = producer.serve(client)
        producer.introduce(peer)
        producer.frame(peer, fds=[event])
        with receive(client) as frame:
            fence = frame.data.acquire_fence
            assert isinstance(fence, SyncFile) and not fence.wait(0.0)
            os.eventfd_write(event, 1)
            assert fence.wait(0.0)
        peer.close()
    os.close(event)


def test_a_retired_slot_is_unmapped_with_its_last_frame(folder: Path) -> None:
    with FakeProducer(folder / 's') as producer, SharedMemoryClient(folder / 's', name='npu', window=2) as client:
        peer = producer.serve(client, window=2)
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
        wait_for(lambda: client.receive() is None and not mappings_of(inodes[1]), 'the idle one is unmapped')
        with frames[0].map() as planes:
            assert planes[0][0, 0] == 0, 'the held one stays'
        assert mappings_of(inodes[0]) == 1
        frames[0].release()
        assert not mappings_of(inodes[0])
        for generation in (1, 1):
            packet, _ = peer.receive()
            assert wire.parse_release(packet, len(packet)).generation == generation
        peer.close()


def test_held_frames_outlive_the_producer(pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient) -> None:
    for sequence in range(2):
        publish(server, pool, sequence)
    frames = [receive(client) for _ in range(2)]
    inodes = [frame.data.buffers[0].identity.inode for frame in frames]
    with frames[0].map() as planes:
        assert planes[0][0, 0] == 0
    server.close()
    wait_for(lambda: client.receive() is None and not client.connected, 'EOF')
    assert client.statistics().ended == {'eof': 1}
    for frame in frames:
        with frame.map() as planes:
            assert planes[0].shape == (48, 64) and planes[0][0, 0] == 0
    shared = frames[0].share()
    frames[0].release()
    frames[1].release(EventFence())
    assert mappings_of(inodes[0]) == 2
    shared.release()
    assert mappings_of(inodes[0]) == 1 and mappings_of(inodes[1]) == 1, 'only the producer has them now'


def make(producer: FakeProducer, **changes: Any) -> Callable[[RawPeer], None]:
    return lambda peer: (producer.introduce(peer, **changes), producer.frame(peer))[1]


def moved(**plane: int) -> ImageLayout:
    layout = make_layout()
    values = {'buffer': 0, 'offset': 0, 'stride': 64, 'size': 3072} | plane
    return ImageLayout(64, 48, NV12, 0, (PlaneLayout(**values), layout.planes[1]))


def a_fd(kind: str) -> int:
    """A descriptor of some kind, which the test closes."""
    if kind == 'pipe':
        read, write = os.pipe()
        os.close(write)
        return read
    if kind == 'file':
        return os.open('/proc/self/exe', os.O_RDONLY | os.O_CLOEXEC)
    if kind == 'eventfd':
        return os.eventfd(0, os.EFD_CLOEXEC)
    memory = os.memfd_create('unsealed', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, 8192)
    return memory


BAD_BUFFERS: dict[str, tuple[str, dict[str, Any]]] = {
    'a plane behind its end': ('buffers', {'layout': moved(offset=1 << 20)}),
    'an overflow': ('buffers', {'layout': moved(offset=2**64 - 1, size=2**64 - 1)}),
    'overlapping planes': ('buffers', {'layout': moved(offset=1000)}),
    'strides below the row': ('buffers', {'layout': moved(stride=32)}),
    'a plane too small': ('buffers', {'layout': moved(size=3071)}),
    'an unknown format': ('buffers', {'layout': ImageLayout(64, 48, 1, 0, (PlaneLayout(0, 0, 64, 3072),))}),
    'no pixels': ('buffers', {'layout': ImageLayout(0, 0, NV12, 0, make_layout().planes)}),
    'one plane only': ('buffers', {'layout': ImageLayout(64, 48, NV12, 0, make_layout().planes[:1])}),
    'smaller than announced': ('buffers', {'sizes': (1 << 20,)}),
    'a memfd as a dma-buf': ('buffers', {'kind': BufferKind.DMABUF}),
    'a format that was not asked for': ('buffers', {'layout': make_layout(128, 16)}),
    'no descriptor': ('descriptors', {'fds': []}),
    'fewer descriptors than announced': ('descriptors', {'sizes': (4096, 4096)}),
}


@pytest.mark.parametrize('what', BAD_BUFFERS)
def test_buffers_that_are_not_what_they_should_be_end_the_connection(folder: Path, what: str) -> None:
    reason, changes = BAD_BUFFERS[what]
    needs = Requirements(max_width=64)
    with FakeProducer(folder / 's') as producer, SharedMemoryClient(folder / 's', name='npu', requirements=needs) as client:
        peer = producer.serve(client)
        producer.introduce(peer, **changes)
        wait_for(lambda: client.receive() is None and not client.connected, 'the refusal')
        assert client.statistics().ended == {reason: 1}, client.last_end
        assert peer.receive()[0] == b'', 'the producer sees EOF'
        peer.close()


@pytest.mark.parametrize('kind', ['pipe', 'file', 'eventfd', 'unsealed'])
def test_only_a_dma_buf_or_a_sealed_memfd_is_a_buffer(folder: Path, kind: str) -> None:
    fd = a_fd(kind)
    with FakeProducer(folder / 's') as producer, SharedMemoryClient(folder / 's', name='npu') as client:
        peer = producer.serve(client)
        producer.introduce(peer, fds=[fd])
        wait_for(lambda: client.receive() is None and not client.connected, 'the refusal')
        assert client.statistics().ended == {'buffers': 1} and 'a buffer can be a dma-buf or a sealed memfd' in client.last_end
        peer.close()
    os.close(fd)


def test_the_same_buffer_twice_in_a_slot_is_refused(folder: Path) -> None:
    layout = ImageLayout(64, 48, NV12, 0, (PlaneLayout(0, 0, 64, 3072), PlaneLayout(1, 0, 64, 1536)))
    with FakeProducer(folder / 's') as producer, SharedMemoryClient(folder / 's', name='npu') as client:
        peer = producer.serve(client)
        buffer = producer.buffer()
        producer.introduce(peer, layout=layout, sizes=(buffer.size,) * 2, fds=[buffer.fileno()] * 2)
        wait_for(lambda: client.receive() is None and not client.connected, 'the refusal')
        assert 'overlap' in client.last_end
        peer.close()


def frames(*which: tuple[int, int], **changes: Any) -> Callable[[FakeProducer, RawPeer], None]:
    def send(producer: FakeProducer, peer: RawPeer) -> None:
        for uid, generation in which:
            producer.frame(peer, uid, generation, **changes)

    return send


def raw(packet: bytes, fds: list[int] | None = None) -> Callable[[FakeProducer, RawPeer], None]:
    return lambda producer, peer: peer.send(packet, fds)


HOSTILE: dict[str, tuple[str, Callable[[FakeProducer, RawPeer], None]]] = {
    'a slot without buffers': ('state', frames((9, 1))),
    'more than the window': ('window', frames((7, 1), (8, 1))),
    'the same generation': ('state', frames((7, 1), (7, 1))),
    'a slot that is held': ('state', frames((7, 1), (7, 2))),
    'a flag without its fence': ('descriptors', frames((7, 1), fence=True)),
    'a fence without its flag': ('descriptors', frames((7, 1), fds=[0], fence=False)),
    'two fences': ('descriptors', frames((7, 1), fds=[0, 0])),
    'many descriptors': ('truncated', frames((7, 1), fds=[0] * 200)),
    'a frame_id that is no text': ('text', raw(wire.pack_frame(wire.FrameMessage(7, 1, 1, 1, 1, 1, 1, 1, False), b'\xff\xfe'))),
    'a long frame_id': ('length', raw(wire.pack_frame(wire.FrameMessage(7, 1, 1, 1, 1, 1, 1, 1, False), b'x' * 256))),
    'garbage': ('type', raw(b'\x63\0\x10\0\0\0\0\0' + b'x' * 8)),
    'a long packet': ('truncated', raw(b'x' * 5000)),
    'one byte': ('length', raw(b'x')),
    'hello': ('state', raw(wire.pack_hello(wire.Hello(1, 1)))),
    'a second welcome': ('state', raw(wire.pack_welcome(wire.Welcome(1, 1, 'x')))),
    'a release': ('state', raw(wire.pack_release(7, 1, False))),
    'retiring what was not there': ('state', raw(wire.pack_retired(9))),
    'a descriptor with retired': ('descriptors', raw(wire.pack_retired(7), [0])),
    'buffers twice': ('state', lambda producer, peer: producer.introduce(peer) and None),
    'refused': ('refused', raw(wire.pack_refused(wire.Refused(4, 'enough')))),
    'too many slots': ('value', lambda producer, peer: [producer.introduce(peer, uid) for uid in range(100, 101 + MAX_SLOTS)] and None),
}


@pytest.mark.parametrize('what', HOSTILE)
def test_a_producer_that_breaks_a_rule_is_left(folder: Path, what: str) -> None:
    reason, attack = HOSTILE[what]
    with FakeProducer(folder / 's') as producer, SharedMemoryClient(folder / 's', name='npu') as client:
        peer = producer.serve(client)
        for uid in (7, 8):
            producer.introduce(peer, uid)
        failed = threading.Event()

        def attacking() -> None:
            try:
                attack(producer, peer)
            except OSError:
                failed.set()  # it was left before it had finished

        thread = threading.Thread(target=attacking)
        thread.start()
        kept: list[Frame] = []

        def left() -> bool:
            frame = client.receive()
            if frame is not None:
                kept.append(frame)
            return not client.connected

        wait_for(left, 'the end')
        thread.join()
        assert client.statistics().ended == {reason: 1}, client.last_end
        for frame in kept:
            with frame.map() as planes:
                assert planes[0].shape == (48, 64)
            frame.release()
        peer.close()


@pytest.mark.parametrize('generation', [4, 5])
def test_a_generation_comes_once_and_never_goes_back(folder: Path, generation: int) -> None:
    with FakeProducer(folder / 's') as producer, SharedMemoryClient(folder / 's', name='npu') as client:
        peer = producer.serve(client)
        producer.introduce(peer)
        producer.frame(peer, generation=5)
        receive(client).release()
        producer.frame(peer, generation=generation)
        wait_for(lambda: client.receive() is None and not client.connected, 'the end')
        assert client.statistics().ended == {'state': 1} and 'had generation 5 before' in client.last_end
        peer.close()


def test_a_retired_slot_gets_no_frame(folder: Path) -> None:
    with FakeProducer(folder / 's') as producer, SharedMemoryClient(folder / 's', name='npu', window=2) as client:
        peer = producer.serve(client, window=2)
        producer.introduce(peer)
        producer.frame(peer)
        frame = receive(client)
        peer.send(wire.pack_retired(7))
        producer.frame(peer, generation=2)
        wait_for(lambda: client.receive() is None and not client.connected, 'the end')
        assert client.statistics().ended == {'state': 1} and 'is retired' in client.last_end
        frame.release()
        peer.close()


@pytest.mark.parametrize(('answer', 'error'), [
    (wire.pack_refused(wire.Refused(4, 'no slots')), RefusedError), (wire.pack_welcome(wire.Welcome(2, 1, PUBLISHER)), ProtocolError),
    (wire.pack_welcome(wire.Welcome(1, 2, PUBLISHER)), ProtocolError), (wire.pack_welcome(wire.Welcome(1, 1, 'somebody')), ProtocolError),
    (wire.pack_welcome(wire.Welcome(1, 1, PUBLISHER, 2)), ProtocolError), (wire.pack_retired(1), ProtocolError),
    (b'x' * 5000, ProtocolError), (None, PeerGoneError),
])  # fmt: skip
def test_answers_to_hello_that_are_no_welcome(folder: Path, answer: bytes | None, error: type[Exception]) -> None:
    with FakeProducer(folder / 's') as producer, SharedMemoryClient(folder / 's', name='npu', publisher_id=PUBLISHER) as client:

        def serve() -> None:
            with RawPeer(producer.listener.accept()[0]) as peer:
                assert peer.receive_type() == MessageType.HELLO
                if answer is not None:
                    peer.send(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(error):
            client.connect(20.0)
        thread.join()
        assert not client.connected and sum(client.statistics().ended.values()) == 1 and client.last_end


def test_a_stopped_producer_is_waited_for_no_longer_than_said(folder: Path) -> None:
    with (
        FakeProducer(folder / 's'),
        SharedMemoryClient(folder / 's', name='npu') as client,
        pytest.raises(PeerGoneError, match='not answer'),
    ):
        client.connect(0.01)


def test_a_wrong_user_is_not_talked_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('zc_perception.link.shared_memory.handshake.producer_allowed', lambda peer, uids: peer.uid in uids)
    with FakeProducer(folder / 's') as producer, SharedMemoryClient(folder / 's', name='npu') as client:
        with pytest.raises(ProtocolError, match=f'user {os.geteuid()} listens'):
            client.connect()
        peer = RawPeer(producer.listener.accept()[0])
        assert peer.receive()[0] == b'', 'not a word was said'
        peer.close()
    with FakeProducer(folder / 't') as producer, SharedMemoryClient(folder / 't', name='npu', allowed_uids=(os.geteuid(),)) as client:
        producer.serve(client).close()


def test_a_foreign_users_memfd_has_to_be_narrowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeProducer(folder / 's') as producer, SharedMemoryClient(folder / 's', name='npu') as client:
        peer = producer.serve(client)
        slots = client._slots
        assert slots is not None
        slots.peer = slots.peer._replace(uid=os.geteuid() + 1)
        producer.introduce(peer)
        wait_for(lambda: client.receive() is None and not client.connected, 'the refusal')
        assert client.statistics().ended == {'buffers': 1} and 'FUTURE_WRITE' in client.last_end
        peer.close()


def test_maintain_connects_when_there_is_somebody_and_backs_off_while_not(folder: Path, pool: BufferPool) -> None:
    with SharedMemoryClient(folder / f'{PUBLISHER}.sock', name='npu') as client:
        delays = []
        for _ in range(7):
            client._retry_at = 0.0  # time has passed
            delays.append(client.maintain())
        assert all(delay is not None for delay in delays)
        assert [round(delay or 0, 2) for delay in delays] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]
        assert client.statistics().ended == {'gone': 7}, 'calls before it is due do nothing'
        with SharedMemoryServer('camera', PUBLISHER, pool, folder=folder):
            assert client.maintain() is not None and not client.connected
            client.retarget(folder / f'{PUBLISHER}.sock', PUBLISHER)
            assert client.maintain() is None and client.connected
            client.retarget(folder / f'{PUBLISHER}.sock', PUBLISHER)
            assert client.connected, 'the same announcement again changes nothing'
        wait_for(lambda: client.receive() is None and not client.connected, 'EOF')
        assert client._retry_s == 0.02, 'it served nothing: no hurry'
        number = client.fileno()
        with SharedMemoryServer('camera', 'e' * 32, pool, folder=folder) as successor:
            client.retarget(successor.path, 'e' * 32)
            assert client.maintain() is None and client.fileno() == number
            publish(successor, pool, 0)
            receive(client).release()
            wait_for(lambda: held(successor) == 0, 'the release')
        wait_for(lambda: client.receive() is None and not client.connected, 'EOF')
        assert client._retry_at == 0.0, 'it served us: the first retry comes at once'
        with SharedMemoryServer('camera', 'e' * 32, pool, folder=folder) as successor:
            assert client.maintain() is None and client.connected
            client.retarget(folder / 'nobody.sock', 'd' * 32)
            assert not client.connected and client.maintain() is not None
            client.retarget(successor.path, 'c' * 32)
            for _ in range(12):
                client._retry_at = 0.0
                delay = client.maintain()
            assert delay is not None and 4.9 < delay <= 5.0, 'refused for good: another publisher'


def test_a_receiver_reconnects_by_itself_and_hands_frames_on(folder: Path, pool: BufferPool) -> None:
    queue, states = FrameQueue(10), []
    client = SharedMemoryClient(folder / f'{PUBLISHER}.sock', name='npu', publisher_id=PUBLISHER, window=2)
    with SharedMemoryReceiver(client, queue.put, lambda connected, why: states.append((connected, why))) as receiver:
        for turn in range(3):
            with SharedMemoryServer('camera', PUBLISHER, pool, folder=folder, quarantine_timeout_s=0.01) as server:
                wait_for(lambda server=server: server.consumers, 'the connection')
                publish(server, pool, turn)
                frame = queue.get(20.0)
                assert frame is not None and frame.data.sequence == turn
                fence = EventFence()
                frame.release(fence)
                assert held(server) == 1
                fence.signal()
                wait_for(lambda server=server: held(server) == 0, 'the release after its fence')
        wait_for(lambda: len(states) == 6, 'the last end')
        assert [state for state, _ in states] == [True, False] * 3 and 'closed the connection' in states[1][1]
        assert receiver.failures == 0
    queue.close()
    assert not any('shared-memory' in thread.name for thread in threading.enumerate())


def test_what_a_callback_raises_does_not_end_the_receiver(folder: Path, pool: BufferPool) -> None:
    seen: list[int] = []

    def deliver(frame: Frame) -> None:
        with frame:
            seen.append(frame.data.sequence)
            raise RuntimeError('callback')

    client = SharedMemoryClient(folder / f'{PUBLISHER}.sock', name='npu', window=2)
    with SharedMemoryServer('camera', PUBLISHER, pool, folder=folder) as server, SharedMemoryReceiver(client, deliver) as receiver:
        wait_for(lambda: server.consumers, 'the connection')
        for sequence in range(3):
            publish(server, pool, sequence)
            wait_for(lambda sequence=sequence: seen[-1:] == [sequence], 'the frame')
        wait_for(lambda: receiver.failures == 3, 'the failures')
        assert receiver.last_failure == 'RuntimeError: callback'
        wait_for(lambda: held(server) == 0, 'the releases')


def test_a_source_of_a_frame_queue(pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient) -> None:
    queue = FrameQueue(1)
    queue.attach(client)
    publish(server, pool, 3)
    frame = queue.get(20.0)
    assert frame is not None and frame.data.sequence == 3
    frame.release()
    queue.detach(client)
    queue.close()


def test_no_descriptor_is_left_over_many_frames(pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient) -> None:
    def turn(sequence: int) -> None:
        publish(server, pool, sequence)
        with receive(client) as frame, frame.map() as planes:
            assert planes[0].shape == (48, 64)
        wait_for(lambda: held(server) == 0, 'the release')

    for sequence in range(20):
        turn(sequence)
    before = len(os.listdir('/proc/self/fd')), len(Path('/proc/self/maps').read_text(encoding='utf-8').splitlines())
    for sequence in range(20, 2000):
        turn(sequence)
    after = len(os.listdir('/proc/self/fd')), len(Path('/proc/self/maps').read_text(encoding='utf-8').splitlines())
    assert after[0] == before[0] and after[1] - before[1] < 8, 'the heap may grow by a few areas, a mapping for each frame would be 2000'


def test_a_forked_child_hides_nobodys_end(pool: BufferPool, server: SharedMemoryServer, client: SharedMemoryClient) -> None:
    publish(server, pool, 0)
    frame = receive(client)
    go_read, go_write = os.pipe()
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go_write)  # the child ends with its parent, whatever becomes of that
            server.close()
            server.publish(frame)
            assert client.receive() is None and not client.connected
            client.close()
            os.write(ready_write, b'1' if server.path.exists() else b'0')
            os.read(go_read, 1)
        finally:
            os._exit(0)
    assert os.read(ready_read, 1) == b'1', 'the child has removed nothing'
    assert client.connected and held(server) == 1
    # The child lives on, and yet closing here is EOF there.
    client.close()
    wait_for(lambda: server.statistics().ended == {'eof': 1}, 'EOF')
    os.write(go_write, b'x')
    os.waitpid(pid, 0)
    for fd in (go_read, go_write, ready_read, ready_write):
        os.close(fd)
    frame.release()
