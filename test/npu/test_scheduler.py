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

"""The scheduler with an accelerator that the test controls completely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import errno
from itertools import pairwise
import random
import re
import select
import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from frame_kit import FrameQueue
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
from npu.scheduler_kit import (
    Bench,
    check_balance,
    Factory,
    LONG_S,
    MakeFrame,
    MakePool,
    QUICK_S,
    ScriptedAccelerator,
    SHORT_S,
)
import pytest
from waiting import until

from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.frame import Frame
from zc_perception.memory.pool import SlotState
from zc_perception.npu import recovering_device, scheduler
from zc_perception.npu.axl.device import axl_error
from zc_perception.npu.recovering_device import HangWatch
from zc_perception.npu.scheduler import InFlight, Scheduler, SchedulerStatistics

pytestmark = pytest.mark.usefixtures('no_fd_leak')
Start = Callable[..., Bench]


def test_results_keep_the_frames_order_when_jobs_do_not(start: Start) -> None:
    bench = start(in_flight=4)
    bench.feed(0, 1, 2, 3, 4, 5)
    until(lambda: len(bench.accelerator.jobs) == 4)
    entries = list(bench.scheduler._jobs)
    for index in (3, 1, 2):
        bench.accelerator.finish(index)
    # One wait sees every fence, not only the oldest.
    until(lambda: all(entry.signalled_ns > 0 for entry in entries[1:]))
    assert bench.results == [] and len(bench.accelerator.jobs) == 4, (
        'the oldest is not done, and four are in flight'
    )
    assert entries[0].signalled_ns == 0
    for index in (0, 5, 4):
        bench.accelerator.finish(index)
    until(lambda: len(bench.results) == 6)
    assert bench.results == [0, 1, 2, 3, 4, 5]
    until(bench.all_free)
    assert bench.accelerator.releases == bench.accelerator.imports == 6
    assert all(job.ends == ['closed'] for job in bench.accelerator.jobs)


@pytest.mark.parametrize(('asked', 'accepted', 'limit'), [(4, 8, 4), (4, 2, 2), (0, 8, 1)])
def test_no_more_jobs_are_in_flight_than_both_sides_allow(
    start: Start, asked: int, accepted: int, limit: int
) -> None:
    bench = start(ScriptedAccelerator(max_in_flight=accepted), in_flight=asked)
    bench.feed(*range(6))
    until(lambda: len(bench.accelerator.jobs) == bench.scheduler.in_flight == limit)
    time.sleep(0.02)
    assert len(bench.accelerator.jobs) == limit
    # A frame that is being submitted counts twice for a moment.
    until(lambda: bench.scheduler.in_flight == limit)


@pytest.mark.parametrize(
    'in_flight', [1, 2], ids=['the next comes after it', 'the next was done behind it']
)
def test_a_timeout_costs_that_frame_only_and_its_slot_waits_for_the_late_job(
    start: Start, in_flight: int
) -> None:
    bench = start(in_flight=in_flight, timeout_s=SHORT_S)
    bench.accelerator.instant.add(1)
    bench.feed(0, 1)
    until(lambda: bench.results == [1] and bench.scheduler.in_flight == 0)
    ((sequence, error),) = bench.errors
    assert sequence == 0 and isinstance(error, TimeoutError)
    assert str(error) == 'no result within 0.05 s'
    bench.pool.collect()
    assert bench.pool.statistics().states == {SlotState.WAITING: 1, SlotState.FREE: 11}
    assert bench.pool.statistics().holders == {}
    bench.accelerator.finish(0)
    until(bench.all_free)
    assert bench.pool.statistics().retired == 0 and bench.results == [1]


def test_a_late_job_whose_lease_was_taken_back_costs_that_frame_only(start: Start) -> None:
    bench = start()
    bench.feed(0)
    until(lambda: len(bench.scheduler._jobs) == 1)
    (holder,) = bench.pool.statistics().holders
    assert bench.pool.revoke(holder) == 1
    bench.scheduler._jobs[0].deadline_ns = 0
    until(lambda: bench.errors)
    bench.accelerator.finish(0)
    bench.accelerator.instant.update((1, 2))
    bench.feed(1, 2)
    until(lambda: bench.results == [1, 2])
    until(bench.all_free)


@pytest.mark.parametrize('kind', [OSError, SystemExit])
@pytest.mark.parametrize('step', ['import', 'submit'])
def test_a_refused_frame_is_reported_and_released(
    start: Start, step: str, kind: type[BaseException]
) -> None:
    bench, error = start(), kind('no more handles')
    getattr(bench.accelerator, f'{step}_errors').append(error)
    bench.feed(0, 1)
    bench.accelerator.finish(0)
    until(lambda: bench.results == [1])
    assert bench.errors == [(0, error)]
    until(bench.all_free)
    assert bench.accelerator.releases == bench.accelerator.imports


def test_a_callback_that_keeps_a_view_costs_its_frame_only(start: Start) -> None:
    bench, kept = start(), []

    def keep(entry: InFlight) -> None:
        with entry.frame.map() as planes:
            kept.extend(planes[:1] if entry.frame.data.sequence == 0 else [])

    bench.on_result = keep
    bench.feed(0, 1, 2)
    for index in range(3):
        bench.accelerator.finish(index)
    until(lambda: bench.results == [0, 1, 2])
    until(lambda: bench.pool.statistics().states == {SlotState.LEASED: 1, SlotState.FREE: 11})
    bench.stop()
    kept.clear()
    until(bench.all_free)
    assert bench.pool.statistics().abandoned == 1


def test_without_frames_the_accelerator_is_told_to_tidy_up_in_its_own_thread(start: Start) -> None:
    """A stopped camera's buffers would stay imported until the next camera's first frame."""
    bench = start()
    until(lambda: len(bench.accelerator.tidied) > 2)
    assert set(bench.accelerator.tidied) == {bench.scheduler._thread.ident}
    assert not bench.accelerator.jobs


@pytest.mark.parametrize('lost', [False, True])
def test_stopping_waits_for_the_jobs_in_flight_and_opens_nothing(start: Start, lost: bool) -> None:
    bench = start(in_flight=2, reopen=Factory())
    bench.feed(0, 1, 2)
    until(lambda: len(bench.accelerator.jobs) == 2)
    stopper = threading.Thread(target=bench.scheduler.stop)
    stopper.start()
    until(lambda: bench.scheduler._stop, 'else the third would be submitted')
    for index in (0, 1) if lost else (1, 0):
        bench.accelerator.finish(index, DeviceLostError('gone') if lost and index == 0 else None)
    stopper.join(LONG_S)
    assert not stopper.is_alive() and bench.scheduler.in_flight == 0
    assert (bench.results, bench.lost) == (([], [0, 1]) if lost else ([0, 1], []))
    assert bench.reopen.calls == [], 'nothing is opened for a node that ends'
    check_balance(bench)
    assert len(bench.queue) == 1, 'what was not submitted is the queue owner s'
    bench.queue.close()
    assert bench.all_free()


def test_a_queue_that_was_closed_is_not_polled_in_a_circle(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, looks = start(), []
    until(lambda: bench.scheduler._thread.is_alive())
    bench.queue.close()
    get = bench.queue.get
    monkeypatch.setattr(bench.queue, 'get', lambda: looks.append(1) or get())
    began = time.monotonic()
    time.sleep(0.1)
    assert len(looks) < 20 + 2 * (time.monotonic() - began) / 0.01, (
        'one look for each idle wait of 10 ms, not one after the other'
    )


def test_stop_does_not_wait_for_the_idle_poll(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, '_IDLE_POLL_S', 30.0)
    bench = start()
    until(lambda: bool(bench.accelerator.tidied))
    began = time.monotonic()
    assert bench.scheduler.stop() and time.monotonic() - began < 20.0


def test_whoever_takes_errors_cannot_end_the_thread(start: Start) -> None:
    bench = start()
    bench.scheduler._on_error = Mock(side_effect=ZeroDivisionError('report'))
    bench.accelerator.import_errors.append(AcceleratorError('no'))
    bench.accelerator.release_errors.append(AcceleratorError('no such handle'))
    bench.accelerator.tidy_errors.append(OSError('no'))
    bench.feed(0, 1)
    bench.accelerator.finish(0)
    until(lambda: bench.results == [1])
    until(bench.all_free)
    assert bench.scheduler.statistics().refused_device == 1


def test_the_figures_say_where_every_frame_went(start: Start) -> None:
    wanted = [True]
    bench = start(in_flight=2, timeout_s=SHORT_S, accept=lambda: wanted[0])
    bench.accelerator.instant.add(0)
    bench.accelerator.failing[5] = AcceleratorError('bus error')
    bench.feed(0, 1)
    until(lambda: (bench.results, bench.lost) == ([0], [1]))
    bench.accelerator.submit_errors.append(AcceleratorError('busy'))
    bench.feed(2)
    until(lambda: bench.lost == [1, 2])
    wanted[0] = False
    bench.feed(4)
    until(lambda: bench.scheduler.statistics().refused_disabled == 1)
    wanted[0] = True
    bench.feed(5)
    until(lambda: bench.lost == [1, 2, 5] and bench.scheduler.in_flight == 0)
    late, refused, failed = bench.failing
    assert late is not None and late.job is bench.accelerator.jobs[1] and late.signalled_ns == 0
    assert failed is not None and failed.handle.number == 4 and refused is None
    assert failed.received_ns <= failed.submitted_ns <= failed.signalled_ns
    until(lambda: bench.scheduler.failing is None)
    figures = bench.scheduler.statistics()
    assert replace(figures, busy_ns=0, at_ns=0) == SchedulerStatistics(
        taken=5, refused_disabled=1, refused_device=1, submitted=3, completed=1, timed_out=1,
        failed=1, imports=4,
    )  # fmt: skip
    assert figures.lost == 3
    check_balance(bench)


def test_utilisation_is_the_share_of_time_with_a_job(start: Start) -> None:
    bench = start(in_flight=2)
    idle = bench.scheduler.statistics()
    assert idle.busy_ns == 0 and bench.scheduler.statistics().utilisation_since(idle) == 0.0
    bench.feed(0, 1)
    until(lambda: len(bench.accelerator.jobs) == 2)
    first = bench.scheduler.statistics()
    bench.accelerator.finish(1)
    time.sleep(0.02)
    busy = bench.scheduler.statistics()
    assert busy.utilisation_since(first) > 0.9, 'one job is left'
    bench.accelerator.finish(0)
    until(lambda: bench.results == [0, 1] and bench.scheduler.in_flight == 0)
    done = bench.scheduler.statistics()
    time.sleep(0.02)
    assert bench.scheduler.statistics().busy_ns == done.busy_ns
    at_once = SchedulerStatistics(busy_ns=5, at_ns=10)
    assert at_once.utilisation_since(SchedulerStatistics(at_ns=10)) == 0.0


def test_a_source_that_joins_the_queue_is_waited_for(start: Start) -> None:
    """The queue's descriptor changes with the first source of another process."""
    bell = FrameQueue(1)
    source = SimpleNamespace(
        fileno=bell.fileno, wait=select.epoll.poll, receive=lambda: None
    )
    bench = start()
    bench.queue.attach(source)
    bench.feed(0)
    bench.accelerator.finish(0)
    until(lambda: bench.results == [0])
    bench.queue.detach(source)


def test_more_frames_are_taken_and_given_up_sooner(start: Start) -> None:
    bench = start(in_flight=1)
    bench.feed(0, 1, 2, 3)
    until(lambda: len(bench.accelerator.jobs) == bench.scheduler.in_flight == 1)
    bench.scheduler.tune({'in_flight': 3, 'timeout': SHORT_S})
    until(lambda: len(bench.accelerator.jobs) == 3)
    bench.accelerator.finish(0)
    # the second with the new timeout; the first had the old one
    until(lambda: bench.lost[:2] == [1, 2])
    assert bench.results == [0]
    assert {str(error) for _, error in bench.errors} == {'no result within 0.05 s'}


def test_a_change_is_made_on_its_thread_or_before_it_runs(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    note = threads.append
    monkeypatch.setattr(
        ScriptedAccelerator, 'tune', lambda self, values: note(threading.current_thread().name)
    )
    never_started = Scheduler(
        ScriptedAccelerator(), FrameQueue(1), print, print, in_flight=1, timeout_s=1.0
    )
    for scheduler_of in (never_started, start().scheduler):
        scheduler_of.tune({'in_flight': 2, 'timeout': 1.0})
    assert threads == [threading.current_thread().name, 'inference']
    never_started.stop()


# Given-up jobs keep their places until the device ends them: frames wait meanwhile.


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never treat a late device as hanging, however slow the machine."""
    monkeypatch.setattr(recovering_device, 'HANG_TIMEOUTS', 10**6)


def given_up(bench: Bench, *sequences: int) -> None:
    until(lambda: bench.lost == [*sequences] and bench.scheduler.in_flight == 0)


def at_once(max_in_flight: int) -> ScriptedAccelerator:
    """Return a device that ends its jobs at once: none is late, however slow the machine."""
    made = ScriptedAccelerator(max_in_flight)
    made.instant_all = True
    return made


@pytest.mark.parametrize(
    ('room', 'in_flight', 'keep_all'), [(1, 4, False), (2, 2, True), (8, 4, False)]
)
def test_a_device_that_never_ends_its_jobs_hangs_after_three_timeouts(
    start: Start, room: int, in_flight: int, keep_all: bool
) -> None:
    options = {'in_flight': in_flight, 'keep_all': keep_all, 'timeout_s': SHORT_S}
    fed = threading.Event()
    # If the first were late before others come, it would hang with fewer jobs.
    options['accept'] = lambda: fed.wait(LONG_S)
    bench = start(ScriptedAccelerator(room), reopen=Factory(make=lambda: at_once(room)), **options)
    bench.feed(*range(12))
    began = time.monotonic()
    fed.set()
    until(lambda: bench.scheduler.statistics().recovered == 1)
    assert time.monotonic() - began > 3 * SHORT_S
    assert bench.accelerator.closed == 1 and bench.scheduler.statistics().losses == 1
    had = in_flight if keep_all else min(room, 3 * in_flight)
    assert len(bench.accelerator.jobs) == len(bench.lost) == had
    # Late jobs of the lost device take no place on the next.
    until(lambda: SlotState.FREE in bench.pool.statistics().states)
    bench.feed(12)
    until(lambda: bench.results[-1:] == [12])
    assert not keep_all or len(bench.results) == 13 - in_flight
    for job in bench.jobs:
        job.fence.signal()


@pytest.mark.parametrize('case', ['a device', 'a CPU', 'abandon fails', 'no descriptor'])
def test_without_a_way_to_reopen_the_device_itself_is_asked_again(
    start: Start, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(24, 'Too many open files')
    device = ScriptedAccelerator(1, may_hang=case != 'a CPU')
    device.abandon_error = error if case == 'abandon fails' else None
    keep_all = case in ('a device', 'a CPU')
    bench = start(device, in_flight=1, timeout_s=SHORT_S, keep_all=keep_all)
    with monkeypatch.context() as patch:
        if case == 'no descriptor':
            patch.setattr(scheduler.os, 'dup', Mock(side_effect=error))
        bench.feed(0)
        given_up(bench, 0)
    device.instant_all = True
    bench.feed(1)
    if case == 'a CPU':
        time.sleep(4 * SHORT_S)
        assert bench.results == [], 'a CPU comes to its end'
        device.finish(0)
    until(lambda: bench.results == [1])
    if case == 'abandon fails':
        until(bench.all_free)  # the slot waits for another timeout
        assert device.jobs[0].ends == ['closed']


@pytest.mark.usefixtures('patient')
def test_a_frame_that_cannot_be_released_still_gives_its_place_back(start: Start) -> None:
    bench = start(ScriptedAccelerator(1), in_flight=1, timeout_s=SHORT_S)
    kept: list[object] = []

    def look(frame: Frame, error: Exception) -> None:
        with frame.map() as planes:
            kept.append(planes[0])
        bench.errors.append((frame.data.sequence, error))

    bench.scheduler._on_error = look
    bench.feed(0)
    given_up(bench, 0)
    bench.accelerator.instant.add(1)
    bench.feed(1)
    bench.accelerator.finish(0)
    until(lambda: bench.results == [1])
    kept.clear()
    until(bench.all_free)


def test_stopping_gives_up_after_a_second_whatever_the_timeout(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovering_device, 'HANG_TIMEOUTS', 1)
    monkeypatch.setattr(scheduler, '_LONGEST_STOP_S', 0.05)
    bench = start(in_flight=3, timeout_s=LONG_S, reopen=Factory())
    bench.feed(0, 1, 2)
    until(lambda: len(bench.accelerator.jobs) == 3)
    began = time.monotonic()
    bench.scheduler.stop()
    assert time.monotonic() - began < LONG_S / 2
    bench.scheduler._thread.join(LONG_S)
    assert bench.lost == [0, 1, 2]
    assert [str(error) for _, error in bench.errors] == ['no result when the node stopped'] * 3
    assert bench.scheduler.statistics().losses == 0, (
        'that is no hang, and whoever stops opens nothing anew'
    )
    assert not bench.scheduler._late.fences


def test_only_late_again_and_again_or_no_place_for_two_timeouts_is_hanging() -> None:
    watch, second = HangWatch(1.0), 1_000_000_000
    now = time.monotonic_ns()
    assert watch.timed_out(now) == watch.timed_out(now) == '', 'together'
    assert watch.timed_out(time.monotonic_ns()) == ''
    words = 'hangs: 3 times in a row there was no result within 1 s'
    assert words in watch.timed_out(time.monotonic_ns())
    watch.start()
    assert watch.timed_out(time.monotonic_ns()) == ''
    assert [watch.full(True, second), watch.full(True, 3 * second)] == ['', '']
    assert 'ended none of its jobs within 3 s' in watch.full(True, 3 * second + 1)
    for full, at_ns in ((False, 3 * second + 2), (True, 4 * second), (True, 6 * second)):
        assert watch.full(full, at_ns) == ''
    assert watch.full(True, 6 * second + 1)


# A device is lost at every possible step, and comes back.


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
    undo = bench.scheduler.trial_import(None, ())
    lose_at(bench, step)
    until(lambda: bench.scheduler.statistics().recovered == 1)
    first, (second,) = bench.accelerator, bench.reopen.made
    undo()
    assert first.undone == second.undone == [], "it was not the next device's import"
    assert first.closed == 1 and second.closed == 0 and bench.scheduler.accelerator is second
    expected = {'import': [2, 0, 1], 'submit': [2, 0, 1], 'release': [1]}.get(step, [0, 1])
    assert bench.lost == expected and bench.results == ([0] if step == 'release' else [])
    # Each lost job is named in its error. The device never had the job of frame 2.
    named = [None if entry is None else entry.frame.data.sequence for entry in bench.failing]
    assert named == [None if sequence == 2 else sequence for sequence in expected]
    for _, error in bench.errors:
        assert not isinstance(error, DeviceLostError) or 'the card is gone' in str(error)
    until(lambda: bench.scheduler.in_flight == 0)
    bench.pool.collect()
    states, waiting = bench.pool.statistics().states, 2 if step in ('import', 'submit') else 1
    assert states == {SlotState.WAITING: waiting, SlotState.FREE: 12 - waiting}, (
        'slots wait until the lost device has let go'
    )
    assert bench.pool.statistics().holders == {}
    for job in first.jobs:
        job.fence.signal()
    bench.feed(3)
    second.finish(0)
    until(lambda: bench.results[-1:] == [3])
    until(bench.all_free)
    figures = bench.scheduler.statistics()
    assert (figures.losses, figures.recovered, figures.imports) == (1, 1, first.imports + 1)
    check_balance(bench)


@pytest.mark.parametrize('text', ['the card is gone', ''])
@pytest.mark.parametrize('step', ['tidy', 'trial import'])
def test_a_loss_without_a_frame_is_one_too(start: Start, step: str, text: str) -> None:
    bench, gone = start(reopen=Factory()), DeviceLostError(text)
    if step == 'tidy':
        # A library may call sys.exit(); the last error is raised first.
        bench.accelerator.tidy_errors += [gone, SystemExit('a library ends')]
    else:
        bench.accelerator.trial_errors.append(gone)
        assert bench.scheduler.trial_import(None, ()) is None
    until(lambda: bench.scheduler.statistics().recovered == 1)
    assert bench.errors == [] and bench.accelerator.closed == 1


def test_it_is_tried_again_and_again_with_a_visible_reason_and_offline_frames_wait(
    start: Start,
) -> None:
    reopen = Factory(AcceleratorError('no such device'), SystemExit('also not'))
    bench = start(reopen=reopen, keep_all=True)
    # A library may call sys.exit().
    bench.accelerator.close = Mock(side_effect=SystemExit)  # type: ignore[method-assign]
    reopen.gate = threading.Event()
    lose_at(bench, 'fence')
    assert reopen.entered.wait(LONG_S)
    state = bench.scheduler.state
    assert state.recovering and state.attempt == 1 and state.last_error == 'the card is gone'
    assert re.fullmatch(
        r'recovering for \d+\.\d s, attempt 1, last error: the card is gone', state.describe()
    )
    assert bench.scheduler.trial_import(None, ()) is None, (
        'buffers are taken unseen, though the thread is opening the device'
    )
    bench.feed(5, 6)
    reopen.gate.set()
    until(lambda: bench.scheduler.statistics().recovered == 1)
    assert len(reopen.calls) == 3
    until(lambda: bench.scheduler.state.describe() == 'running')
    assert not bench.scheduler.state.recovering
    for index in range(2):
        reopen.made[0].finish(index)
    until(lambda: bench.results == [5, 6])
    assert bench.scheduler.statistics().refused_recovering == 0


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
    running, whole = bench.scheduler, ScriptedAccelerator()
    bench.reopen._make = lambda: whole
    until(lambda: running.accelerator is whole and not running.state.recovering)
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


def test_timeouts_in_a_row_are_a_device_that_hangs(start: Start) -> None:
    bench, late = start(in_flight=1, reopen=Factory()), axl_error('submit', errno.ETIMEDOUT)
    bench.feed(0, 1, 2)
    for index in range(3):
        bench.accelerator.finish(index, late)
    until(lambda: bench.scheduler.statistics().recovered == 1)
    assert bench.lost == [0, 1, 2] and bench.accelerator.closed == 1
    assert bench.scheduler.statistics().timed_out == 3
    # The next device's first timeout is the first of three.
    (second,) = bench.reopen.made
    second.instant.add(4)
    bench.feed(3)
    second.finish(0, late)
    until(lambda: bench.lost == [0, 1, 2, 3])
    bench.feed(4)
    until(lambda: bench.results == [4])
    assert bench.scheduler.statistics().losses == 1 and bench.reopen.made == [second]
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


# In any order of events each frame ends once, results stay in order, nothing is left over.

FRAMES = 14
EVENTS = [
    *['frame'] * 4, *['done'] * 3, 'failed', 'lost', 'outputs lost', 'import refused',
    'submit refused', 'import lost', 'submit lost', 'reopen refused', 'callback', 'disabled',
    'trial', 'late end',
]  # fmt: skip


class Chaos:
    """Applies hypothesis's steps to a scheduler, whose thread runs freely meanwhile."""

    def __init__(self, bench: Bench, enabled: list[bool], seed: int) -> None:
        self.bench, self.enabled, self.random = bench, enabled, random.Random(seed)
        self.fed = self.callback_errors = 0
        bench.on_result = self.on_result

    def on_result(self, entry: object) -> None:
        if self.callback_errors:
            self.callback_errors -= 1
            raise ValueError('callback')

    def do(self, event: str) -> None:
        device = self.bench.accelerators[-1]
        lost, refused = DeviceLostError('gone'), AcceleratorError('refused')
        if event == 'frame':
            if self.fed < FRAMES:
                self.bench.feed(self.fed)
                self.fed += 1
        elif event in ('done', 'failed', 'lost', 'late end'):
            late = event == 'late end'
            jobs = [job for job in device.jobs if bool(job.ends) == late and job.takes_place]
            if jobs:
                error = {'failed': refused, 'lost': lost}.get(event)
                self.random.choice(jobs).fence.signal(error)
        elif event == 'outputs lost':
            for job in device.jobs[-1:]:
                job.output_error = lost
        elif event.startswith(('import', 'submit')):
            errors = getattr(device, f'{event.split()[0]}_errors')
            errors.append(lost if 'lost' in event else refused)
        elif event == 'reopen refused':
            assert self.bench.reopen is not None
            self.bench.reopen.errors.append(refused)
        elif event == 'callback':
            self.callback_errors += 1
        elif event == 'disabled':
            self.enabled[0] = not self.enabled[0]
        elif undo := self.bench.scheduler.trial_import(None, ()):
            undo()


def finish_all(bench: Bench) -> bool:
    for job in bench.jobs:
        if job.takes_place:
            job.fence.signal()
    return len(bench.queue) == 0 and bench.scheduler.in_flight == 0


@pytest.fixture
def chaos(
    make_pool: MakePool, make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Chaos]:
    """Return a function that starts a scheduler and a :class:`Chaos` for it."""
    monkeypatch.setattr(scheduler, '_IDLE_POLL_S', 0.01)
    # On a busy machine the thread may not run for a second, in which a trial must be made.
    monkeypatch.setattr(scheduler, '_CALL_MARGIN_S', LONG_S)

    def make(room: int, seed: int, **options: object) -> Chaos:
        pool, enabled = make_pool(slots=FRAMES + 1, width=16, height=16), [True]
        options |= {'reopen': Factory(make=lambda: ScriptedAccelerator(room))}
        options |= {'accept': lambda: enabled[0]}
        bench = Bench(pool, make_frame, ScriptedAccelerator(room), **options)
        return Chaos(bench, enabled, seed)

    return make


ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@settings(ANY, max_examples=200)
@given(
    events=st.lists(st.sampled_from(EVENTS), max_size=50),
    options=st.fixed_dictionaries(
        {
            'in_flight': st.integers(1, 4),
            'keep_all': st.booleans(),
            'depth': st.sampled_from([1, None]),
            'timeout_s': st.sampled_from([0.004, 10.0]),
        }
    ),
    room=st.sampled_from([1, 2, 8]),
    calm=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_every_frame_ends_once_and_nothing_is_left(
    chaos: Callable[..., Chaos], monkeypatch: pytest.MonkeyPatch, events: list[str],
    options: dict[str, Any], room: int, calm: bool, seed: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(recovering_device, 'FIRST_DELAY_S', 0.0005)
    monkeypatch.setattr(recovering_device, 'LONGEST_DELAY_S', 0.002)
    threads, does = set(threading.enumerate()), chaos(room, seed, **options)
    bench, most = does.bench, min(options['in_flight'], room)

    def idle() -> bool:
        running = bench.scheduler
        return running.state.recovering or not bench.queue or running.in_flight >= most

    try:
        for event in events:
            does.do(event)
            if calm:
                until(idle)
        if calm:
            until(lambda: finish_all(bench))
    finally:
        bench.end()
    until(lambda: set(threading.enumerate()) <= threads)
    figures = bench.scheduler.statistics()
    if calm:
        assert figures.taken + figures.dropped == does.fed, 'no frame was forgotten'
    # Frames that were not taken have been released with the queue.
    assert figures.taken + figures.dropped <= does.fed
    assert bench.results == sorted(bench.results)
    ends = [*bench.results, *bench.lost]
    assert len({*ends}) == len(ends), 'no frame has two ends'
    *lost, _ = bench.accelerators
    assert [accelerator.closed for accelerator in lost] == [1] * len(lost)
    assert figures.losses >= figures.recovered == len(lost)
    check_balance(bench)
    until(bench.all_free)
    bench.pool.close()


@settings(ANY, max_examples=60)
@given(
    events=st.lists(
        st.sampled_from(['frame', 'frame', 'frame', 'given up', 'late end', 'done']), max_size=30
    ),
    in_flight=st.integers(1, 4),
    room=st.integers(1, 4),
    depth=st.sampled_from([1, None]),
    keep_all=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_device_that_is_only_late_costs_what_it_had(
    chaos: Callable[..., Chaos], monkeypatch: pytest.MonkeyPatch, events: list[str],
    in_flight: int, room: int, depth: int | None, keep_all: bool, seed: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(recovering_device, 'HANG_TIMEOUTS', 10**9)
    options = {'depth': depth, 'in_flight': in_flight, 'keep_all': keep_all}
    does = chaos(room, seed, timeout_s=0.004, **options)
    bench, device = does.bench, does.bench.accelerator
    try:
        for event in events:
            if event == 'given up':
                # With every place taken, frames wait. Unused places are used up first.
                until(lambda: bench.scheduler.in_flight == 0)
            else:
                does.do(event)
        device.instant_all = True
        until(lambda: finish_all(bench))
    finally:
        bench.end()
    figures = bench.scheduler.statistics()
    refused = figures.refused_device, figures.refused_recovering
    assert (figures.losses, figures.failed, *refused) == (0, 0, 0, 0)
    assert sorted([*bench.results, *bench.lost]) == [job.sequence for job in device.jobs], (
        'each that the device had, and no other'
    )
    assert len(device.jobs) + figures.dropped == does.fed
    if depth is None:
        assert figures.dropped == 0
    elif does.fed:
        assert device.jobs[-1].sequence == does.fed - 1, 'the newest was taken'
    if keep_all and depth is None:
        assert device.most_places <= min(in_flight, room), 'none is sent after a late one'
    check_balance(bench)
    until(bench.all_free)
    bench.pool.close()
