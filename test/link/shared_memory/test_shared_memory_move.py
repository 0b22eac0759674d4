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

"""Connections that continue when their producer changes its buffers."""

from __future__ import annotations

from collections.abc import Iterator
import os
from pathlib import Path
from typing import Any

import pytest
from shared_memory.memory_link import (
    all_free,
    FrameMessage,
    make_layout,
    make_pool,
    publish,
    PUBLISHER,
    RawPeer,
    settled,
)
from waiting import until

from zc_perception.link.shared_memory import server as server_module
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.protocol import MessageType, Requirements
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.pool import BufferPool

WIDE = make_layout(stride_align=256)


@pytest.fixture
def pools(no_fd_leak: None) -> Iterator[tuple[BufferPool, BufferPool]]:
    made = make_pool(6), make_pool(6, WIDE)
    yield made
    for pool in made:
        pool.close()


@pytest.fixture
def server(pools: tuple[BufferPool, BufferPool], folder: Path) -> Iterator[SharedMemoryServer]:
    with SharedMemoryServer('camera', PUBLISHER, pools[0], folder=folder) as opened:
        yield opened


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
    server: SharedMemoryServer, pools: tuple[BufferPool, BufferPool]
) -> None:
    before, after = pools
    with RawPeer.welcomed(server.path, window=2) as peer:
        first = publish(server, before, 1)
        held = peer.receive_frame()
        server.set_pool(after)
        second = publish(server, after, 2)
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
        assert server.statistics().ended == {}


def test_frames_that_wait_come_before_those_of_other_buffers(
    server: SharedMemoryServer, pools: tuple[BufferPool, BufferPool]
) -> None:
    before, after = pools
    with RawPeer.welcomed(server.path, window=1, depth=3) as peer:
        ids = [publish(server, before, number) for number in (1, 2)]
        held = peer.receive_frame()
        server.set_pool(after)
        ids.append(publish(server, after, 3))
        assert told(peer) == [(MessageType.BUFFER_RETIRED, ids[0][0])]
        peer.release(held)
        until(lambda: not peer.nothing_there())
        held = peer.receive_frame()
        assert (held.uid, held.sequence, held.dropped) == (ids[1][0], 2, 0)
        assert peer.receive_type() is MessageType.BUFFER_RETIRED
        peer.release(held)
        assert peer.receive_frame().sequence == 3
    settled(server, 'eof')
    until(lambda: all_free(before) and all_free(after))


def test_who_dies_with_frames_of_both_gives_all_of_them_back(
    server: SharedMemoryServer, pools: tuple[BufferPool, BufferPool]
) -> None:
    before, after = pools
    with RawPeer.welcomed(server.path, window=2, depth=2) as peer:
        for number in (1, 2, 3):
            publish(server, before, number)
        server.set_pool(after)
        publish(server, after, 4)
        assert peer.receive_frame().sequence == 1
    settled(server, 'eof')
    until(lambda: all_free(before) and all_free(after))
    assert after.unpromised == len(after.slots)


def test_who_dies_while_it_is_moved_leaves_no_promise(
    server: SharedMemoryServer,
    pools: tuple[BufferPool, BufferPool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer, grant = RawPeer.welcomed(server.path, window=2), server_module.grant

    def die(*values: Any) -> tuple[int, int]:
        peer.close()
        settled(server, 'eof')
        return grant(*values)

    monkeypatch.setattr(server_module, 'grant', die)
    server.set_pool(pools[1])
    assert pools[1].unpromised == len(pools[1].slots)


def test_whom_the_other_buffers_do_not_suit_is_told_to_come_again(
    server: SharedMemoryServer, pools: tuple[BufferPool, BufferPool]
) -> None:
    narrow = Requirements(options='max_stride=64')
    with (
        RawPeer.welcomed(server.path, requirements=narrow) as peer,
        RawPeer.welcomed(server.path) as other,
    ):
        server.set_pool(pools[1])
        assert peer.receive_refused().code == 4
        publish(server, pools[1], 1)
        assert other.receive_frame().sequence == 1
    until(lambda: all_free(pools[1]) and pools[1].unpromised == len(pools[1].slots))
