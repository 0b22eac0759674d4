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

wire/test_wire_agreement.py covers the rules in the tables of docs/wire.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
import os
from pathlib import Path
import threading
from typing import Any

from memory_link import attempt, FakeProducer, left, make_layout, RawPeer, receive
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
Fake = Callable[..., tuple[FakeProducer, SharedMemoryClient, RawPeer]]
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


# Descriptors that a producer sends in place of a buffer.
NO_BUFFERS: dict[str, Callable[[], int]] = {
    'pipe': pipe,
    'file': lambda: os.open('/proc/self/exe', os.O_RDONLY | os.O_CLOEXEC),
    'eventfd': lambda: os.eventfd(0, os.EFD_CLOEXEC),
    'unsealed': unsealed,
}


@pytest.mark.parametrize('kind', NO_BUFFERS)
def test_only_a_dma_buf_or_a_sealed_memfd_is_a_buffer(fake: Fake, kind: str) -> None:
    producer, client, peer = fake()
    fd = NO_BUFFERS[kind]()
    producer.introduce(peer, fds=[fd])
    os.close(fd)
    left(client, 'buffers', NO_BUFFER)


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
            left(client, 'not_allowed', f'user {os.geteuid()} listens')
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
        (Requirements(formats=((fourcc_code('YUYV'), 0),)), 'one of its formats (YUYV LINEAR)'),
        (Requirements(stride_align=256), 'not a multiple of its stride_align 256'),
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
    why = f"buffer 0, a {kind.value}, was opened with O_WRONLY, so it can't be mapped; its owner"
    left(client, 'constraints', why)
    assert peer.receive_refused().code is RefusalCode.CONSTRAINTS
    assert client.approach() is None and not client.connected, 'it would be the same again'


def test_a_layout_that_is_not_known_comes_to_who_did_not_rule_it_out(fake: Fake) -> None:
    """With an unknown layout, strides and rows mean nothing, so the client can't check them."""
    planes = PlaneLayout(0, 0, 1, 3072), PlaneLayout(0, 3072, 0, 1536)
    producer, client, peer = fake()
    producer.introduce(peer, layout=ImageLayout(64, 48, NV12, INVALID, planes))
    producer.frame(peer)
    with receive(client) as frame:
        assert frame.data.modifier == INVALID


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
