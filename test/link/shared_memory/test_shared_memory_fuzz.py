"""A few seconds of :mod:`wire_fuzz` for each seed, both directions; in CI a minute altogether. ``ZC_FUZZ_SECONDS`` is another total."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from wire_fuzz import fuzz

pytestmark = pytest.mark.usefixtures('no_fd_leak')
IN_CI = os.environ.get('ZC_RIG') == 'required' or bool(os.environ.get('CI'))
SEEDS = range(1, 6)
SECONDS = float(os.environ.get('ZC_FUZZ_SECONDS') or (60 if IN_CI else 5)) / len(SEEDS)


@pytest.mark.parametrize('seed', SEEDS)
def test_mutated_conversations_break_neither_end(folder: Path, seed: int) -> None:
    outcome = fuzz(seed, SECONDS, folder)
    # It came further than the first packet, and found several ways to be refused.
    assert len(outcome['protocol_errors']) >= 3 and len(outcome['client']) >= 4, outcome  # type: ignore[arg-type]
