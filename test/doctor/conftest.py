"""A vehicle for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import tempfile

from doctor.vehicle import Vehicle
import pytest

from zc_perception.doctor import machine_checks


@pytest.fixture
def vehicle(
    tmp_path: Path, no_fd_leak: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Vehicle]:
    """
    Yield a healthy vehicle, of which nothing may be left open.

    It has the compiled steps, whether or not these tests have them.
    """
    monkeypatch.setattr(machine_checks, 'compiled', True)
    with tempfile.TemporaryDirectory() as short:
        yield Vehicle(tmp_path, Path(short) / 'zc')
