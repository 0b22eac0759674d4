"""A second of :mod:`wire_fuzz` for each seed, both directions; a minute altogether in the long form."""

from __future__ import annotations

from pathlib import Path

import pytest
from long_form import LONG
from wire_fuzz import fuzz

pytestmark = pytest.mark.usefixtures('no_fd_leak')
SEEDS = range(1, 6)
SECONDS = (60.0 if LONG else 5.0) / len(SEEDS)


@pytest.mark.parametrize('seed', SEEDS)
def test_mutated_conversations_break_neither_end(folder: Path, seed: int) -> None:
    outcome = fuzz(seed, SECONDS, folder)
    # It came further than the first packet, and found several ways to be refused.
    assert len(outcome['protocol_errors']) >= 3 and len(outcome['client']) >= 4, outcome  # type: ignore[arg-type]
