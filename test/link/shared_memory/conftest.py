"""Fixtures of the tests of rung 2."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose name is short enough for a socket's address; pytest's own may not be."""
    with tempfile.TemporaryDirectory(prefix='zc-') as name:
        yield Path(name)
