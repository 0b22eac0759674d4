"""The reduced form of ``make faults``: every fault for a moment, on one stage, by the same code. The long form is all of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from long_form import LONG
from ros_domains import locked_domain

from faults import accounts, peers
from faults.harness import Fault, run_fault
from faults.outcome import ABSENT, HELD
from faults.run_faults import all_faults
from faults.stage import Stage

FAULTS = [each for each in all_faults().values() if LONG or not each.long_only]


@pytest.fixture(scope='module', autouse=True)
def _no_speed_is_judged() -> Iterator[None]:
    """``make faults`` judges pauses and rates on a machine that does nothing else; here others run beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounts, 'MOST_PAUSE_S', 20.0)
        patch.setattr(accounts, 'LEAST_RATE', 0.0)
        patch.setattr(peers, '_TURNED_AWAY_S', 60.0)
        patch.setattr(peers, '_LET_IN_S', 60.0)
        yield


@pytest.fixture(scope='module')
def stages() -> Iterator[list[Stage]]:
    """The one that is on, once a fault needs it; a broken one is replaced."""
    there: list[Stage] = []
    yield there
    for stage in there:
        stage.close()


@pytest.fixture(scope='module')
def place() -> Iterator[tuple[Path, int]]:
    """A folder whose name is short enough for sockets, and a domain."""
    with tempfile.TemporaryDirectory(prefix='zf-') as folder, locked_domain() as domain:
        yield Path(folder), domain


def _cases() -> Iterator[Any]:
    """What needs root is marked so: CI runs it as root, and all else as an ordinary user."""
    for each in FAULTS:
        yield pytest.param(each, id=each.name.replace(' ', '_'), marks=[pytest.mark.root] if each.needs == 'root' else [])


@pytest.mark.parametrize('each', _cases())
def test_the_promise_holds(each: Fault, stages: list[Stage], place: tuple[Path, int]) -> None:
    folder, domain = place
    while stages and not each.staged:
        stages.pop().close()
    if each.staged and not stages:
        stages.append(Stage(folder, domain))
    stage = stages[-1] if each.staged else None
    with contextlib.nullcontext(domain) if each.staged else locked_domain() as own:
        outcome = run_fault(each, stage, folder / str(FAULTS.index(each)), own, short=not LONG)
    if each.staged and outcome.status not in (HELD, ABSENT):
        stages.pop().close()
    if outcome.status == ABSENT and os.environ.get('ZC_RIG') != 'required':
        pytest.skip(outcome.reason)
    assert outcome.status == HELD, f'{outcome.promise}: {outcome.reason}; {outcome.as_dict()}'
