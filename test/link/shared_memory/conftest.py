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

"""Fixtures of the tests of rung 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from memory_link import (
    all_free,
    connected,
    FakeProducer,
    make_pool,
    PATIENCE_S,
    PUBLISHER,
    RawPeer,
)
import pytest
from waiting import until

from zc_perception.link.shared_memory.client import SharedMemoryClient as Client
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.pool import BufferPool

Serve = Callable[..., SharedMemoryServer]
Fake = Callable[..., tuple[FakeProducer, Client, RawPeer]]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise both handshake timeouts, so that a slow machine doesn't end a connection."""
    for end in ('server', 'client'):
        monkeypatch.setattr(f'zc_perception.link.shared_memory.{end}.HANDSHAKE_S', PATIENCE_S)


@pytest.fixture
def pool() -> Iterator[BufferPool]:
    made = make_pool(8, reserve=1)
    yield made
    until(lambda: all_free(made), 'every slot')
    made.close()


@pytest.fixture
def serve(folder: Path) -> Iterator[Serve]:
    servers: list[SharedMemoryServer] = []

    def start(pool: BufferPool | None, **options: Any) -> SharedMemoryServer:
        options = {'folder': folder, 'quarantine_timeout_s': 0.01} | options
        servers.append(SharedMemoryServer('camera', PUBLISHER, pool, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
        assert server.counters.internal_errors == 0, server.counters.last_internal_error


@pytest.fixture
def server(pool: BufferPool, serve: Serve) -> SharedMemoryServer:
    return serve(pool)


@pytest.fixture
def client(server: SharedMemoryServer) -> Iterator[Client]:
    with Client(server.path, name='npu', publisher_id=PUBLISHER, window=3, depth=2) as made:
        connected(made)
        yield made


@pytest.fixture
def fake(folder: Path) -> Iterator[Fake]:
    """Make a producer that a test controls, with a client that it has welcomed."""
    with ExitStack() as ends:

        def make(window: int = 1, **options: Any) -> tuple[FakeProducer, Client, RawPeer]:
            producer = ends.enter_context(FakeProducer(folder / 's'))
            made = ends.enter_context(Client(producer.path, name='npu', window=window, **options))
            return producer, made, ends.enter_context(producer.serve(made, window))

        yield make
