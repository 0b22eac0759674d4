"""A few seconds of :mod:`wire_fuzz`; run it by hand for an hour."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from wire_fuzz import fuzz

pytestmark = pytest.mark.usefixtures('no_fd_leak')
SECONDS = float(os.environ.get('ZC_FUZZ_SECONDS', '2'))


@pytest.mark.parametrize('seed', [1, 2])
def test_mutated_conversations_break_neither_end(folder: Path, seed: int) -> None:
    outcome = fuzz(seed, SECONDS, folder)
    # It came further than the first packet, and found several ways to be refused.
    assert len(outcome['protocol_errors']) >= 3 and len(outcome['client']) >= 4, outcome  # type: ignore[arg-type]
