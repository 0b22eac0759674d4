# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""The reduced form of ``make faults``: the same code runs each fault briefly on one stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
import mmap
import os
from pathlib import Path
import socket
import threading
from typing import Any
from unittest import mock

from faults import harness as limits
from faults.harness import (
    ABSENT,
    Absent,
    BROKEN,
    Fault,
    HELD,
    Outcome,
    Result,
    run_fault,
    Stretch,
    Tally,
    tally,
)
from faults.holdings import frame_buffers, frame_mappings, holding, settled_excess, with_slots
from faults.run_faults import all_faults, theatre
from long_form import LONG
from process_state import kept
import pytest

FAULTS = [each for each in all_faults().values() if LONG or not each.long_only]


@pytest.fixture(scope='module', autouse=True)
def _process_as_it_began() -> Iterator[None]:
    """
    Undo after the last fault, not after each, what a stage sets in this process.

    Check no pauses and rates, as other tests run in parallel; ``make faults`` checks them.
    """
    with kept(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, 'MOST_PAUSE_S', 20.0)
        patch.setattr(limits, 'LEAST_RATE', 0.0)
        yield


@pytest.fixture(scope='module')
def do() -> Iterator[Callable[[Fault], Outcome]]:
    with theatre(short=not LONG) as made:
        yield made


# The harness detects leaks of each kind, a missing frame, and a fault that raises.


OWN = os.getpid()


def test_a_leak_of_each_kind_is_seen() -> None:
    before = holding(OWN)
    assert not holding(OWN) - before
    one, other = socket.socketpair()
    timer, frame, stop = os.eventfd(0), os.memfd_create('zc_frame'), threading.Event()
    os.ftruncate(frame, mmap.PAGESIZE)
    memory = mmap.mmap(frame, mmap.PAGESIZE)
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        found = holding(OWN) - before
        assert found['fd unix socket'] == 2 and found['fd anon_inode:[eventfd]'] == 1
        assert found['fd /memfd:zc_frame'] == 2 and found['frame mappings'] == 1, (
            'the mapping has a descriptor of its own'
        )
        assert found['threads'] == 1
        assert frame_mappings(OWN) >= 1 and os.fstat(frame).st_ino in frame_buffers([OWN])
        # Frames left by an earlier test must not count here.
        bounded = holding(OWN) - with_slots(before, before['frame mappings'] + 1)
        assert 'frame mappings' not in bounded and bounded['threads'] == 1
        # A resource that is released late is no leak.
        threading.Timer(0.2, stop.set).start()
        assert 'threads' not in settled_excess(
            before + found - Counter(threads=1), lambda: holding(OWN), 20.0
        )
    finally:
        stop.set()
        thread.join()
        memory.close()
        one.close()
        other.close()
        os.close(timer)
        os.close(frame)


def raises(error: Exception) -> Any:
    return mock.Mock(side_effect=error)


@pytest.mark.parametrize(('run', 'status', 'words'), [
    (lambda trial: trial.frames(10, 7, newest_wins=3), HELD, ''),
    (lambda trial: trial.frames(10, 7, newest_wins=2), BROKEN, '1 frames unaccounted for'),
    (lambda trial: trial.frames(10, 12), BROKEN, '2 frames unaccounted for'),
    (lambda trial: trial.must(False, 'ends with a bang'), BROKEN, '1 ends with a bang'),
    (lambda trial: trial.must_be_zero('tracebacks', 0), HELD, ''),
    (lambda trial: trial.outcome.leaks.update(threads=2), BROKEN, '2 threads'),
    (raises(OSError(28, 'No space left on device')), BROKEN, 'OSError at mock.py'),
    (raises(Absent('no gcc')), BROKEN, 'no gcc'),
])  # fmt: skip
def test_what_is_not_zero_breaks_the_promise(
    run: Any, status: str, words: str, tmp_path: Path
) -> None:
    fault = Fault('a fault', 'tests', 'a promise', run, staged=False)
    outcome = run_fault(fault, None, tmp_path, 1, short=True)
    assert outcome.status == status and words in outcome.reason
    assert Result((outcome,), True, 1).holds is (status == HELD)
    assert outcome.name in Result((outcome,), True, 1).table()


def test_every_frame_since_the_last_one_before_is_looked_for() -> None:
    times = [ns * 10**9 for ns in range(1, 11)]
    last = Stretch(0, 5, 1, 2, times[0], times[:1], 2, 7).continued()
    assert last == Stretch(times[0] + 1, 7, 1, 2, times[0], [], 0, 7)
    last.captured, last.last_ns = times[3:], times[-1]
    assert tally([last], times) == Tally(9, 7, 0, 0, pytest.approx(9.0)), (
        'two before the first one are missed'
    )
    last.dropped = 2
    assert tally([last], times) == Tally(9, 7, 2, 0, pytest.approx(9.0))
    # A broken connection, one frame followed by none for four frames, and one without a record.
    first = Stretch(times[0], 0, 1, 2, times[1], times[:2])
    second = Stretch(times[6], 0, 1, 2, times[9], times[6:])
    assert tally([first, second], times[:-1]) == Tally(10, 6, 0, 4, 9.0)


# The promises. From the first of these tests on, the stage is in this process.


@pytest.mark.parametrize('each', FAULTS, ids=lambda each: each.name.replace(' ', '_'))
def test_the_promise_holds(each: Fault, do: Callable[[Fault], Outcome]) -> None:
    outcome = do(each)
    if outcome.status == ABSENT and os.environ.get('ZC_RIG') != 'required':
        pytest.skip(outcome.reason)
    assert outcome.status == HELD, f'{outcome.promise}: {outcome.reason}; {vars(outcome)}'
