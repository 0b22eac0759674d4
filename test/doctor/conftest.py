"""A vehicle for each test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from doctor.vehicle import Vehicle


@pytest.fixture
def vehicle(tmp_path: Path, no_fd_leak: None) -> Iterator[Vehicle]:
    """A healthy one, from which nothing may be left open."""
    with tempfile.TemporaryDirectory() as short:
        yield Vehicle(tmp_path, Path(short) / 'zc')
