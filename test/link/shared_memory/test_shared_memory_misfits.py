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
A consumer that can't use what it gets.

A trial import fails, or the buffers are of another kind than it asked for.
"""

from __future__ import annotations

from collections.abc import Callable
import os
from pathlib import Path

from memory_link import attempt, connected, FakeProducer, publish, PUBLISHER, receive, settled
import pytest
from waiting import until

from zc_perception.errors import ConfigError
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import RefusalCode, Requirements
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.settings import Buffers, BufferSettings

pytestmark = pytest.mark.usefixtures('no_fd_leak')
Serve = Callable[..., SharedMemoryServer]


class Importer:
    """A trial import that remembers inodes, and fails while it is told to."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.seen: list[tuple[int, ...]] = []

    def __call__(self, settings: BufferSettings, buffers: Buffers) -> None:
        self.seen.append(tuple(buffer.identity.inode for buffer in buffers))
        assert settings.layout.width == 64
        if self.fails:
            raise OSError('the card refuses it')


def test_each_slot_is_imported_on_trial_once_before_its_first_frame(
    pool: BufferPool, serve: Serve
) -> None:
    server, importer = serve(pool), Importer()
    with SharedMemoryClient(server.path, name='npu', window=2, trial_import=importer) as client:
        connected(client)
        for sequence in range(4):
            publish(server, pool, sequence)
            with receive(client) as frame:
                assert (
                    tuple(buffer.identity.inode for buffer in frame.data.buffers) in importer.seen
                )
        assert len(importer.seen) == len(set(importer.seen)) < 4, (
            'a slot that comes again is known'
        )


def test_a_failed_trial_import_is_told_to_both_ends_and_not_tried_again(
    pool: BufferPool, serve: Serve
) -> None:
    said: list[str] = []
    warned: list[str] = []
    server, importer = serve(pool, report=said.append, warn=warned.append), Importer(fails=True)
    with SharedMemoryClient(
        server.path, name='npu', publisher_id=PUBLISHER, trial_import=importer
    ) as client:
        connected(client)
        publish(server, pool, 0)
        until(lambda: client.receive() is None and not client.connected, 'the end')
        why = 'trial import of slot 0 failed: the card refuses it'
        assert client.statistics().ended == {'constraints': 1}
        assert client.last_end == f"this node can't use the publisher's buffers: {why}"
        settled(server, 'constraints')
        assert server.statistics().refused == {'constraints': 1}
        assert server.statistics().last_refusal == {'constraints': f'npu: {why}'}
        assert len(warned) == 1 and 'consumer npu#' in warned[0] and why in warned[0]
        # Nothing has changed: it would fail again.
        assert client.approach() is None and not client.connected
        importer.fails = False
        client.retarget(server.path, PUBLISHER)
        assert (
            attempt(client) is None and client.connected and client.statistics().connections == 2
        )
        publish(server, pool, 1)
        receive(client).release()
    settled(server, 'eof')


@pytest.mark.parametrize(
    ('options', 'kind'),
    [('', BufferKind.MEMFD), ('cpu=read', BufferKind.DMABUF), ('', BufferKind.DMABUF)],
)
def test_memory_that_nobody_can_map_is_refused_by_name(
    folder: Path, options: str, kind: BufferKind
) -> None:
    needs = Requirements(options=options)
    with (
        FakeProducer(folder / 's') as fake,
        SharedMemoryClient(folder / 's', name='npu', requirements=needs) as client,
    ):
        peer, buffer = fake.serve(client), fake.buffer()
        write_only = os.open(f'/proc/self/fd/{buffer.fileno()}', os.O_WRONLY | os.O_CLOEXEC)
        fake.introduce(peer, kind=kind, fds=[write_only])
        os.close(write_only)
        until(lambda: client.receive() is None and not client.connected, 'the end')
        if (
            kind is BufferKind.DMABUF and not options
        ):  # a device would take it: that it is no dma-buf is another matter
            assert client.statistics().ended == {'buffers': 1}
        else:
            why = (
                f"buffer 0, a {kind.value}, was opened with O_WRONLY, so it can't be "
                'mapped; its owner has to send an O_RDWR or'
            )
            assert client.statistics().ended == {'constraints': 1} and why in client.last_end
            assert peer.receive_refused().code is RefusalCode.CONSTRAINTS
            assert client.approach() is None and not client.connected, 'it would be the same again'
        peer.close()


def test_constraints_without_a_format_do_not_become_any_format() -> None:
    with pytest.raises(ConfigError, match="'npu' take no format"):
        Requirements.of(BufferConstraints('npu', formats=()))
    assert Requirements.of(BufferConstraints('npu')).formats == ()


def test_buffers_of_before_the_newest_announcement_don_t_keep_from_trying_those_of_after_it(
    folder: Path,
) -> None:
    """The announcement overtakes BUFFERS that were sent before and wait in the socket."""
    importer = Importer(fails=True)
    with (
        FakeProducer(folder / 's') as fake,
        SharedMemoryClient(folder / 's', name='npu', trial_import=importer) as client,
    ):
        first = fake.serve(client)
        client.retarget(folder / 's')
        fake.introduce(first)
        until(lambda: client.receive() is None and not client.connected, 'the end')
        assert client.statistics().ended == {'constraints': 1} and client.approach() is not None, (
            'worth another attempt'
        )
        second = fake.serve(client)
        fake.introduce(second)
        until(lambda: client.receive() is None and not client.connected, 'the end')
        assert client.approach() is None, 'nothing is announced: these are the newest ones'
        for peer in (first, second):
            peer.close()
