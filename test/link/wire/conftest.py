"""Fixtures of the tests of the wire format: the C consumer, and a producer driven step by step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from wire_builder import build_consumer
from wire_spec import SpecServer


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no attempt of the package's consumer end before its test answers."""
    monkeypatch.setattr('zc_perception.link.shared_memory.client.HANDSHAKE_S', 60.0)


@pytest.fixture(scope='session')
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_consumer(tmp_path_factory.mktemp('wire'))


@pytest.fixture
def place(folder: Path) -> Path:
    """Where the server's socket is."""
    return folder / 'socket'


@pytest.fixture
def server(place: Path) -> Iterator[SpecServer]:
    server = SpecServer(place)
    yield server
    server.close()
