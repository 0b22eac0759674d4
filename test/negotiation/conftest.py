from __future__ import annotations

from collections.abc import Iterator

import pytest
from negotiation.kit import Session


@pytest.fixture
def session(no_fd_leak: None) -> Iterator[Session]:
    """One collection; what it allocated is closed at the end, and nothing stays open."""
    opened = Session()
    yield opened
    opened.close()
