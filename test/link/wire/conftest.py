"""Fixtures of the tests of the wire format: the C consumer, a producer that is driven step by step, slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from wire_builder import build_consumer, build_fake_kernel
from wire_process import ConsumerProcess
from wire_spec import Image, Slot, SpecServer

Start = Callable[..., ConsumerProcess]
MakeSlot = Callable[..., Slot]


@pytest.fixture(scope='session')
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_consumer(tmp_path_factory.mktemp('wire'))


@pytest.fixture(scope='session')
def fake_kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_fake_kernel(tmp_path_factory.mktemp('wire'))


@pytest.fixture
def place(folder: Path) -> Path:
    """Where the server's socket is."""
    return folder / 'socket'


@pytest.fixture
def server(place: Path) -> Iterator[SpecServer]:
    server = SpecServer(place)
    yield server
    server.close()


@pytest.fixture
def start(program: Path, place: Path) -> Iterator[Start]:
    """Starts consumers at the server's path, and ends those that still run."""
    running: list[ConsumerProcess] = []

    def run(*options: str, **more: object) -> ConsumerProcess:
        running.append(ConsumerProcess(program, place, *options, **more))  # type: ignore[arg-type]
        return running[-1]

    yield run
    for consumer in running:
        consumer.__exit__()


@pytest.fixture
def make_slot() -> Iterator[MakeSlot]:
    slots: list[Slot] = []

    def make(image: Image | None = None, **options: object) -> Slot:
        slots.append(Slot(image or Image.nv12(), **options))  # type: ignore[arg-type]
        return slots[-1]

    yield make
    for slot in slots:
        slot.close()
