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

"""Producers that keep a consumer busy, or say nothing: nobody who calls waits for them."""

from __future__ import annotations

import itertools
from pathlib import Path
import select
import socket
import threading

from memory_link import attempt, FakeProducer, make_layout, PATIENCE_S, PUBLISHER, RawPeer, receive
import pytest
from waiting import until

from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import MAX_OTHERS
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.pixel.colorimetry import BT601_LIMITED

pytestmark = pytest.mark.usefixtures('no_fd_leak')


def come_and_go(peer: RawPeer, buffer: DmaBuf, uid: int) -> None:
    """BUFFERS and BUFFER_RETIRED of a slot that never has a frame."""
    message = wire.BuffersMessage(
        uid, make_layout(), BT601_LIMITED, BufferKind.MEMFD, (buffer.size,)
    )
    peer.send(wire.pack_buffers(message), [buffer.fileno()])
    peer.send(wire.pack_retired(uid))


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_one_call_takes_only_so_much_that_brings_no_frame_and_the_rest_is_still_readable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        'zc_perception.link.shared_memory.client._PACKETS_AT_ONCE', range(8)
    )  # a socket holds fewer than the real number
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu') as client,
    ):
        peer, buffer = producer.serve(client), producer.buffer()
        for uid in range(100, 108):
            come_and_go(peer, buffer, uid)
        producer.introduce(peer)
        producer.frame(peer)
        for _ in range(2):
            assert client.receive() is None and client.connected and readable(client.fileno())
        with receive(client) as frame:
            assert frame.data.sequence == 1
        peer.close()


def test_releases_that_found_the_socket_full_go_out_when_there_is_room(folder: Path) -> None:
    """
    The producer reads nothing meanwhile.

    No other call would come: there is no frame, and for the producer the window is full.
    """
    frames = 1000
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu') as client,
    ):
        peer = producer.serve(client)
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
        peer.close()


def test_who_sends_no_frame_for_ever_is_left_and_not_met_again_at_once(folder: Path) -> None:
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu') as client,
    ):
        peer, buffer = producer.serve(client), producer.buffer()

        def flood() -> None:
            try:
                for uid in range(100, 101 + MAX_OTHERS):
                    come_and_go(peer, buffer, uid)
            except OSError:
                pass  # it was left

        thread = threading.Thread(target=flood)
        thread.start()
        until(lambda: client.receive() is None and not client.connected, 'the end')
        peer.close()
        thread.join()
        assert (
            client.statistics().ended == {'flood': 1}
            and f'more than {MAX_OTHERS} messages' in client.last_end
        )
        assert (client.approach() or 0.0) > 1.0


def test_an_attempt_goes_on_from_call_to_call(folder: Path) -> None:
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu', publisher_id=PUBLISHER) as client,
    ):
        assert client.awaited is None
        assert client.approach() is not None and not client.connected and not client.listens
        with RawPeer(producer.listener.accept()[0]) as peer:
            wire.parse_hello(peer.receive()[0])
            awaited = client.awaited
            assert awaited is not None and not readable(awaited)
            assert (
                client.approach() is not None
                and client.awaited == awaited
                and client.statistics().ended == {}
            )
            peer.send(wire.pack_welcome(wire.Welcome(1, 1, PUBLISHER)))
            assert readable(awaited)
            assert (
                client.approach() is None
                and client.connected
                and client.listens
                and client.awaited is None
            )
            producer.introduce(peer)
            producer.frame(peer)
            receive(client).release()


def test_who_says_nothing_is_asked_less_and_less_often(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('zc_perception.link.shared_memory.client.HANDSHAKE_S', 0.001)
    with FakeProducer(folder / 's'), SharedMemoryClient(folder / 's', name='npu') as client:
        delays = []
        for _ in range(10):
            client._retry.due = 0.0  # time has passed
            delays.append(attempt(client) or 0.0)
        assert [round(delay, 2) for delay in delays] == [
            0.02,
            0.04,
            0.08,
            0.16,
            0.32,
            0.64,
            1.28,
            2.56,
            5.0,
            5.0,
        ]
        assert client.listens and client.statistics().ended == {'gone': 10}


def test_a_socket_with_a_full_backlog_is_somebody_s(folder: Path) -> None:
    waiting = []
    with (
        FakeProducer(folder / 's') as producer,
        SharedMemoryClient(folder / 's', name='npu') as client,
    ):
        producer.listener.listen(0)
        for _ in itertools.repeat(None, 20):
            waiting.append(
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            )
            if waiting[-1].connect_ex(str(folder / 's')):
                break
        assert client.approach() is not None and client.awaited is None
        assert client.listens and 'does not answer' in client.last_end
        for sock in waiting:
            sock.close()
