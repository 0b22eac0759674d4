"""Fixtures of the link's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from link_ros import Ros


@pytest.fixture(params=['single', 'multi'])
def ros(request: pytest.FixtureRequest, free_domain: int) -> Iterator[Ros]:
    """A context with a spinning executor."""
    opened = Ros(free_domain, request.param)
    yield opened
    opened.close()
