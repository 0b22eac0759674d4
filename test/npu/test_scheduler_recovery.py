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

"""A device is lost at every possible step, and comes back."""

from __future__ import annotations

from collections.abc import Callable
import errno
from itertools import pairwise
import re
import threading
import time

from npu.scheduler_kit import Bench, check_balance, Factory, LONG_S, ScriptedAccelerator, SHORT_S
import pytest
from waiting import until

from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.memory.pool import SlotState
from zc_perception.npu import recovering_device, scheduler
from zc_perception.npu.axl.device import axl_error

pytestmark = pytest.mark.usefixtures('no_fd_leak')
QUICK_S = 0.005
Start = Callable[..., Bench]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovering_device, 'FIRST_DELAY_S', QUICK_S)


def lose_at(bench: Bench, step: str) -> None:
    """Lose the device at *step*, with frames 0 and 1 on it; frame 2 is the third."""
    accelerator, gone = bench.accelerator, DeviceLostError('the card is gone')
    bench.feed(0, 1)
    until(lambda: len(accelerator.jobs) == 2)
    if step in ('import', 'submit', 'release'):
        getattr(accelerator, f'{step}_errors').append(gone)
    if step == 'outputs':
        accelerator.jobs[0].output_error = gone
    if step in ('import', 'submit'):
        bench.feed(2)
    else:
        accelerator.finish(0, gone if step == 'fence' else None)


@pytest.mark.parametrize('step', ['import', 'submit', 'fence', 'outputs', 'release'])
def test_a_lost_device_costs_what_is_in_flight_and_comes_back(start: Start, step: str) -> None:
    bench = start(in_flight=4, reopen=Factory())
    lose_at(bench, step)
    until(lambda: bench.scheduler.statistics().recovered == 1)
    first, (second,) = bench.accelerator, bench.reopen.made
    assert first.closed == 1 and second.closed == 0 and bench.scheduler.accelerator is second
    expected = {'import': [2, 0, 1], 'submit': [2, 0, 1], 'release': [1]}.get(step, [0, 1])
    assert bench.lost == expected and bench.results == ([0] if step == 'release' else [])
    # Each lost job is named in its error. The device never had the job of frame 2.
    named = [None if entry is None else entry.frame.data.sequence for entry in bench.failing]
    assert named == [None if sequence == 2 else sequence for sequence in expected]
    for _, error in bench.errors:
        assert not isinstance(error, DeviceLostError) or 'the card is gone' in str(error)
    for job in first.jobs:
        job.fence.signal()
    bench.feed(3)
    second.finish(0)
    until(lambda: bench.results[-1:] == [3])
    until(bench.all_free)
    figures = bench.scheduler.statistics()
    assert (figures.losses, figures.recovered, figures.imports) == (1, 1, first.imports + 1)
    check_balance(bench)


def test_slots_of_lost_jobs_wait_until_the_device_has_let_go(start: Start) -> None:
    bench = start(in_flight=2, reopen=Factory())
    lose_at(bench, 'fence')
    until(lambda: len(bench.errors) == 2 and bench.scheduler.in_flight == 0)
    bench.pool.collect()
    # The fence of frame 0 has signalled its error; that of frame 1 has not been read yet.
    assert bench.pool.statistics().states == {SlotState.WAITING: 1, SlotState.FREE: 11}
    assert bench.pool.statistics().holders == {}
    bench.accelerator.jobs[1].fence.signal()
    until(bench.all_free)


@pytest.mark.parametrize('step', ['tidy', 'trial import'])
def test_a_loss_without_a_frame_is_one_too(start: Start, step: str) -> None:
    bench, gone = start(reopen=Factory()), DeviceLostError('the card is gone')
    if step == 'tidy':
        bench.accelerator.tidy_errors.append(gone)
    else:
        bench.accelerator.trial_errors.append(gone)
        assert bench.scheduler.trial_import(None, ()) is None
    until(lambda: bench.scheduler.statistics().recovered == 1)
    assert bench.errors == [] and bench.accelerator.closed == 1


def test_it_is_tried_again_and_again_with_a_visible_reason(start: Start) -> None:
    bench = start(reopen=Factory(AcceleratorError('no such device'), OSError('also not')))
    bench.reopen.gate = threading.Event()
    lose_at(bench, 'fence')
    assert bench.reopen.entered.wait(LONG_S)
    state = bench.scheduler.state
    assert state.recovering and state.attempt == 1 and state.last_error == 'the card is gone'
    assert re.fullmatch(
        r'recovering for \d+\.\d s, attempt 1, last error: the card is gone', state.describe()
    )
    assert bench.scheduler.trial_import(None, ()) is None, (
        'buffers are taken unseen, though the thread is opening the device'
    )
    bench.reopen.gate.set()
    until(lambda: bench.scheduler.statistics().recovered == 1)
    assert len(bench.reopen.calls) == 3
    assert not bench.scheduler.state.recovering and bench.scheduler.state.describe() == 'running'


def test_a_device_that_comes_back_only_to_be_lost_is_tried_less_and_less_often(
    start: Start,
) -> None:
    def broken() -> ScriptedAccelerator:
        accelerator = ScriptedAccelerator()
        accelerator.tidy_errors.append(DeviceLostError('lost again'))
        return accelerator

    bench = start(reopen=Factory(make=broken))
    lose_at(bench, 'fence')
    until(lambda: bench.scheduler.state.attempt >= 4)
    bench.reopen._make = ScriptedAccelerator
    running = bench.scheduler
    until(lambda: not running.state.recovering and not running.accelerator.tidy_errors)
    gaps = [after - before for before, after in pairwise(bench.reopen.calls[:4])]
    assert all(gap >= QUICK_S * 2**number for number, gap in enumerate(gaps, 1)), gaps
    assert bench.scheduler.state.attempt >= 4, 'it has not proved itself'
    bench.feed(7)
    bench.scheduler.accelerator.finish(0)
    until(lambda: bench.results == [7])
    until(lambda: bench.scheduler.state.attempt == 0)


def test_frames_that_come_meanwhile_are_released_and_counted(start: Start) -> None:
    bench = start(reopen=Factory(*[AcceleratorError('not yet')] * 100))
    lose_at(bench, 'fence')
    until(lambda: bench.scheduler.state.recovering)
    bench.feed(5, 6, 7)
    until(lambda: bench.scheduler.statistics().refused_recovering == 3)
    bench.accelerator.jobs[1].fence.signal()
    until(bench.all_free)
    assert bench.lost == [0, 1]


def test_offline_frames_wait_for_the_device(start: Start) -> None:
    bench = start(reopen=Factory(AcceleratorError('not yet')), keep_all=True)
    bench.reopen.gate = threading.Event()
    lose_at(bench, 'fence')
    assert bench.reopen.entered.wait(LONG_S)
    bench.feed(5, 6)
    bench.reopen.gate.set()
    until(lambda: bench.scheduler.statistics().recovered == 1)
    for index in range(2):
        bench.reopen.made[0].finish(index)
    until(lambda: bench.results == [5, 6])
    assert bench.scheduler.statistics().refused_recovering == 0


@pytest.mark.parametrize('whose', ['ours', 'the driver'])
def test_timeouts_in_a_row_are_a_device_that_hangs(start: Start, whose: str) -> None:
    bench = start(in_flight=1, timeout_s=SHORT_S if whose == 'ours' else LONG_S, reopen=Factory())
    bench.feed(0, 1, 2)
    for index in range(3 if whose != 'ours' else 0):
        bench.accelerator.finish(index, axl_error('submit', errno.ETIMEDOUT))
    until(lambda: bench.scheduler.statistics().recovered == 1)
    assert bench.lost == [0, 1, 2] and bench.accelerator.closed == 1
    assert bench.scheduler.statistics().timed_out == 3
    # The next device's first timeout is the first of three.
    (second,) = bench.reopen.made
    second.instant.add(4)
    bench.feed(3)
    if whose == 'the driver':
        second.finish(0, axl_error('submit', errno.ETIMEDOUT))
    until(lambda: bench.lost == [0, 1, 2, 3])
    bench.feed(4)
    until(lambda: bench.results == [4])
    assert bench.scheduler.statistics().losses == 1 and bench.reopen.made == [second]
    for job in bench.jobs:
        job.fence.signal()
    until(bench.all_free)


def test_a_result_in_between_shows_that_it_does_not_hang(start: Start) -> None:
    bench = start(in_flight=1, timeout_s=SHORT_S, reopen=Factory())
    bench.accelerator.instant |= {2, 5}
    bench.feed(0, 1, 2, 3, 4, 5)
    until(lambda: bench.results == [2, 5])
    assert bench.lost == [0, 1, 3, 4] and bench.reopen.calls == []


def test_without_a_way_to_reopen_each_frame_is_lost_by_itself(start: Start) -> None:
    bench = start(in_flight=1)
    bench.accelerator.import_errors.append(DeviceLostError('gone'))
    bench.accelerator.instant.add(1)
    bench.feed(0, 1)
    until(lambda: bench.results == [1])
    assert (bench.lost, bench.accelerator.closed) == ([0], 0)
    assert not bench.scheduler.state.recovering


def test_a_trial_import_runs_between_two_frames_on_the_scheduler_s_thread(start: Start) -> None:
    bench = start()
    undo = bench.scheduler.trial_import(None, ())
    assert bench.accelerator.trials == [bench.scheduler._thread.ident]
    undo()
    assert bench.accelerator.undone == [bench.scheduler._thread.ident]
    bench.accelerator.trial_errors.append(AcceleratorError('a tiled layout'))
    with pytest.raises(AcceleratorError, match='a tiled layout'):
        bench.scheduler.trial_import(None, ())
    bench.scheduler.stop()
    bench.accelerator.trials.clear()
    bench.scheduler.trial_import(None, ())
    assert bench.accelerator.trials == [threading.get_ident()], 'without a thread it is the caller'


def test_the_import_of_a_device_that_was_lost_is_not_undone_on_the_next(start: Start) -> None:
    bench = start(reopen=Factory())
    undo = bench.scheduler.trial_import(None, ())
    lose_at(bench, 'fence')
    until(lambda: bench.scheduler.statistics().recovered == 1)
    undo()
    assert bench.accelerator.undone == [] and bench.reopen.made[0].undone == []


def test_stopping_while_it_waits_to_try_again_is_immediate(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovering_device, 'FIRST_DELAY_S', 1000.0)
    monkeypatch.setattr(recovering_device, 'LONGEST_DELAY_S', 1000.0)
    bench = start(reopen=Factory())
    lose_at(bench, 'fence')
    until(lambda: bench.scheduler.state.recovering)
    assert bench.scheduler.stop() and bench.reopen.calls == []


def test_stopping_while_the_device_is_opened_leaves_nothing_open(start: Start) -> None:
    """The call doesn't return in time: stop abandons it, and the thread closes its result."""
    bench = start(timeout_s=SHORT_S, reopen=Factory())
    bench.reopen.gate = threading.Event()
    lose_at(bench, 'fence')
    assert bench.reopen.entered.wait(LONG_S)
    began = time.monotonic()
    assert not bench.scheduler.stop()
    assert time.monotonic() - began < LONG_S
    with pytest.raises(AcceleratorError, match='not available: the node is stopping'):
        bench.scheduler._between_frames(lambda: None)
    bench.reopen.gate.set()
    bench.scheduler._thread.join(LONG_S)
    assert not bench.scheduler._thread.is_alive() and bench.reopen.made[0].closed == 1
    assert bench.scheduler.stop()


@pytest.mark.parametrize('lost', [False, True])
def test_a_loss_while_it_stops_ends_what_is_in_flight(
    start: Start, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, '_LONGEST_STOP_S', LONG_S)
    bench = start(in_flight=2, reopen=Factory())
    bench.feed(0, 1)
    until(lambda: len(bench.accelerator.jobs) == 2)
    stopper = threading.Thread(target=bench.scheduler.stop)
    stopper.start()
    until(lambda: bench.scheduler._stop)
    bench.accelerator.finish(0, DeviceLostError('gone') if lost else None)
    bench.accelerator.finish(1)
    stopper.join(LONG_S)
    assert not stopper.is_alive()
    assert (bench.results, bench.lost) == (([], [0, 1]) if lost else ([0, 1], []))
    assert bench.reopen.calls == [], 'nothing is opened for a node that ends'
    check_balance(bench)


def test_an_accelerator_whose_end_fails_is_replaced_all_the_same(start: Start) -> None:
    bench = start(reopen=Factory())
    bench.accelerator.close = lambda: 1 // 0  # type: ignore[method-assign, return-value]
    lose_at(bench, 'fence')
    until(lambda: bench.scheduler.statistics().recovered == 1)
