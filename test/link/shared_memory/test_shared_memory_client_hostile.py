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
Producers that break rules: every violation ends the connection.

Those of the page's tables are in wire/test_wire_agreement.py.
"""

from __future__ import annotations

from collections.abc import Callable
import os
from pathlib import Path
import threading
from typing import Any

from memory_link import attempt, FakeProducer, make_layout, RawPeer, receive
import pytest
from waiting import until

from zc_perception.frame import Frame
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import MessageType, RefusalCode, Requirements
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.layout import ImageLayout, PlaneLayout
from zc_perception.pixel.modifier import INVALID

pytestmark = pytest.mark.usefixtures('no_fd_leak', 'form')


def a_fd(kind: str) -> int:
    """Yield a descriptor of some kind, which the test closes."""
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


def test_buffers_of_an_unknown_format_end_the_connection(folder: Path) -> None:
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu') as client,
    ):
        peer = producer.serve(client)
        producer.introduce(peer, layout=ImageLayout(64, 48, 1, 0, (PlaneLayout(0, 0, 64, 3072),)))
        until(lambda: client.receive() is None and not client.connected, 'the refusal')
        assert client.statistics().ended == {'buffers': 1}, client.last_end
        peer.close()


@pytest.mark.parametrize('kind', ['pipe', 'file', 'eventfd', 'unsealed'])
def test_only_a_dma_buf_or_a_sealed_memfd_is_a_buffer(folder: Path, kind: str) -> None:
    fd = a_fd(kind)
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu') as client,
    ):
        peer = producer.serve(client)
        producer.introduce(peer, fds=[fd])
        until(lambda: client.receive() is None and not client.connected, 'the refusal')
        assert (
            client.statistics().ended == {'buffers': 1}
            and 'a buffer can be a dma-buf or a sealed memfd' in client.last_end
        )
        peer.close()
    os.close(fd)


SLOT = wire.BuffersMessage(9, make_layout(), BT601_LIMITED, BufferKind.MEMFD, (4608,))


def frames(*which: tuple[int, int], **changes: Any) -> Callable[[FakeProducer, RawPeer], None]:
    def send(producer: FakeProducer, peer: RawPeer) -> None:
        for uid, generation in which:
            producer.frame(peer, uid, generation, **changes)

    return send


def raw(packet: bytes, fds: list[int] | None = None) -> Callable[[FakeProducer, RawPeer], None]:
    return lambda producer, peer: peer.send(packet, fds)


HOSTILE: dict[str, tuple[str, Callable[[FakeProducer, RawPeer], None]]] = {
    'a fence without its flag': ('descriptors', frames((7, 1), fds=[0], fence=False)),
    'two fences': ('descriptors', frames((7, 1), fds=[0, 0])),
    'many descriptors': ('truncated', frames((7, 1), fds=[0] * 200)),
    'a descriptor with retired': ('descriptors', raw(wire.pack_retired(7), [0])),
    'buffers twice': ('state', lambda producer, peer: producer.introduce(peer) and None),
    'buffers without one': ('descriptors', raw(wire.pack_buffers(SLOT))),
    'a frame in hand': ('state', frames((7, 1), (7, 2))),
    'one frame too many': ('window', frames((7, 1), (8, 1))),
    'a refusal': ('refused', raw(wire.pack_refused(wire.Refused(RefusalCode.BUSY, 'full')))),
}


@pytest.mark.parametrize('what', HOSTILE)
def test_a_producer_that_breaks_a_rule_is_left(folder: Path, what: str) -> None:
    reason, attack = HOSTILE[what]
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu') as client,
    ):
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

        until(left, 'the end')
        thread.join()
        assert client.statistics().ended == {reason: 1}, client.last_end
        for frame in kept:
            with frame.map() as planes:
                assert planes[0].shape == (48, 64)
            frame.release()
        peer.close()


def test_a_retired_slot_gets_no_frame(folder: Path) -> None:
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu', window=2) as client,
    ):
        peer = producer.serve(client, window=2)
        producer.introduce(peer)
        producer.frame(peer)
        frame = receive(client)
        peer.send(wire.pack_retired(7))
        producer.frame(peer, generation=2)
        until(lambda: client.receive() is None and not client.connected, 'the end')
        assert client.statistics().ended == {'state': 1} and 'is retired' in client.last_end
        frame.release()
        peer.close()


def test_a_producer_that_closes_instead_of_an_answer_has_gone(folder: Path) -> None:
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu') as client,
    ):
        assert client.approach() is not None
        with RawPeer(producer.listener.accept()[0]) as peer:
            assert peer.receive_type() == MessageType.HELLO
        attempt(client)
        assert (
            not client.connected
            and client.statistics().ended == {'gone': 1}
            and 'closed the connection' in client.last_end
        )


def test_a_wrong_user_is_not_talked_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        'zc_perception.link.shared_memory.client.producer_allowed',
        lambda peer, uids: peer.uid in uids,
    )
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu') as client,
    ):
        attempt(client)
        assert (
            client.statistics().ended == {'not_allowed': 1}
            and f'user {os.geteuid()} listens' in client.last_end
        )
        peer = RawPeer(producer.listener.accept()[0])
        assert peer.receive()[0] == b'', 'not a word was said'
        peer.close()
    with (
        FakeProducer(folder / 't') as producer,
        SharedMemoryClient(folder / 't', name='npu', allowed_uids=(os.geteuid(),)) as client,
    ):
        producer.serve(client).close()


def test_a_foreign_users_memfd_has_to_be_narrowed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu') as client,
    ):
        peer = producer.serve(client)
        slots = client._slots
        assert slots is not None
        slots.peer = slots.peer._replace(uid=os.geteuid() + 1)
        producer.introduce(peer)
        until(lambda: client.receive() is None and not client.connected, 'the refusal')
        assert client.statistics().ended == {'buffers': 1} and 'FUTURE_WRITE' in client.last_end
        peer.close()


@pytest.mark.parametrize(
    ('needs', 'why'),
    [
        (Requirements(max_width=32), 'takes images of at most 32x65535, not 64x48'),
        (Requirements(formats=((fourcc_code('YUYV'), 0),)), 'one of its formats (YUYV LINEAR)'),
        (Requirements(stride_align=256), 'not a multiple of its stride_align 256'),
        (Requirements(memory=1), 'the buffers are memfds, which it does not take'),
    ],
)
def test_buffers_that_the_consumer_ruled_out_are_refused_by_name(
    folder: Path, needs: Requirements, why: str
) -> None:
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu', requirements=needs) as client,
    ):
        peer = producer.serve(client)
        producer.introduce(peer)
        until(lambda: client.receive() is None and not client.connected, 'the refusal')
        assert client.statistics().ended == {'constraints': 1} and why in client.last_end
        refused = peer.receive_refused()
        assert refused.code is RefusalCode.CONSTRAINTS and why in refused.text
        peer.close()


def test_one_memory_behind_two_descriptors_is_no_two_buffers(folder: Path) -> None:
    layout = ImageLayout(
        64, 48, NV12, 0, (PlaneLayout(0, 0, 64, 3072), PlaneLayout(1, 0, 64, 1536))
    )
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu') as client,
    ):
        peer, buffer = producer.serve(client), producer.buffer()
        producer.introduce(
            peer, layout=layout, sizes=(buffer.size,) * 2, fds=[buffer.fileno()] * 2
        )
        until(lambda: client.receive() is None and not client.connected, 'the refusal')
        assert 'the same memory' in client.last_end
        peer.close()


def test_a_layout_that_is_not_known_comes_to_who_did_not_rule_it_out(folder: Path) -> None:
    """Its lines mean nothing: less than a row, more rows than there are bytes."""
    layout = ImageLayout(
        64, 48, NV12, INVALID, (PlaneLayout(0, 0, 1, 3072), PlaneLayout(0, 3072, 0, 1536))
    )
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu') as client,
    ):
        peer = producer.serve(client)
        producer.introduce(peer, layout=layout)
        producer.frame(peer)
        with receive(client) as frame:
            assert frame.data.modifier == INVALID
        peer.close()


def test_256_slots_are_the_most_and_retired_ones_that_are_held_do_not_count(folder: Path) -> None:
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu', window=3) as client,
    ):
        peer, buffer, held = producer.serve(client, window=3), producer.buffer(), []

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
        peer.close()
