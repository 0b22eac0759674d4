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

"""In any order of events each frame ends once, results stay in order, nothing is left over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import random
import threading
from typing import Any

from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
from npu.scheduler_kit import (
    Bench,
    check_balance,
    Factory,
    LONG_S,
    MakeFrame,
    MakePool,
    ScriptedAccelerator,
    ScriptedJob,
)
import pytest
from waiting import until

from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.npu import recovering_device, scheduler

FRAMES = 14
EVENTS = [
    *['frame'] * 4, *['done'] * 3, 'failed', 'lost', 'outputs lost', 'import refused',
    'submit refused', 'import lost', 'submit lost', 'reopen refused', 'callback', 'disabled',
    'trial', 'late end',
]  # fmt: skip


class Chaos:
    """Applies hypothesis's steps to a scheduler, whose thread runs freely meanwhile."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.fed = self.callback_errors = 0
        self.random = random.Random(seed)
        bench.on_result = self.on_result

    def on_result(self, entry: object) -> None:
        if self.callback_errors:
            self.callback_errors -= 1
            raise ValueError('callback')

    def signal(self, jobs: list[ScriptedJob], error: Exception | None = None) -> None:
        if jobs:
            self.random.choice(jobs).fence.signal(error)

    def do(self, event: str, enabled: list[bool]) -> None:
        device = self.bench.accelerators[-1]
        running = [job for job in device.jobs if not job.ends]
        lost, refused = DeviceLostError('gone'), AcceleratorError('refused')
        if event == 'frame':
            if self.fed < FRAMES:
                self.bench.feed(self.fed)
                self.fed += 1
        elif event in ('done', 'failed', 'lost'):
            self.signal(running, {'failed': refused, 'lost': lost}.get(event))
        elif event == 'late end':
            self.signal([job for job in device.jobs if job.ends and job.takes_place])
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
            enabled[0] = not enabled[0]
        else:
            undo = self.bench.scheduler.trial_import(None, ())
            if undo is not None:
                undo()


def finish_all(bench: Bench) -> bool:
    for job in bench.jobs:
        if job.takes_place:
            job.fence.signal()
    return len(bench.queue) == 0 and bench.scheduler.in_flight == 0


Make = Callable[..., tuple[Bench, Chaos]]


@pytest.fixture
def chaos(
    make_pool: MakePool, make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """Yield a function that starts a scheduler and a :class:`Chaos` for it."""
    monkeypatch.setattr(scheduler, '_IDLE_POLL_S', 0.01)
    # On a busy machine the thread may not run for a second, in which a trial must be made.
    monkeypatch.setattr(scheduler, '_CALL_MARGIN_S', LONG_S)

    def make(room: int, seed: int, **options: object) -> tuple[Bench, Chaos]:
        pool = make_pool(slots=FRAMES + 1, width=16, height=16)
        reopen = Factory(make=lambda: ScriptedAccelerator(room))
        bench = Bench(pool, make_frame, ScriptedAccelerator(room), reopen=reopen, **options)
        return bench, Chaos(bench, seed)

    yield make


def check_end(bench: Bench) -> None:
    """Check that every slot is free and that the figures add up; close the pool."""
    check_balance(bench)
    until(bench.all_free)
    bench.pool.close()


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
    chaos: Make, monkeypatch: pytest.MonkeyPatch, events: list[str], options: dict[str, Any],
    room: int, calm: bool, seed: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(recovering_device, 'FIRST_DELAY_S', 0.0005)
    monkeypatch.setattr(recovering_device, 'LONGEST_DELAY_S', 0.002)
    threads, enabled = set(threading.enumerate()), [True]
    bench, does = chaos(room, seed, accept=lambda: enabled[0], **options)
    most = min(options['in_flight'], room)

    def idle() -> bool:
        running = bench.scheduler
        return running.state.recovering or not bench.queue or running.in_flight >= most

    try:
        for event in events:
            does.do(event, enabled)
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
    check_end(bench)


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
    chaos: Make, monkeypatch: pytest.MonkeyPatch, events: list[str], in_flight: int, room: int,
    depth: int | None, keep_all: bool, seed: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(recovering_device, 'HANG_TIMEOUTS', 10**9)
    bench, does = chaos(
        room, seed, depth=depth, in_flight=in_flight, timeout_s=0.004, keep_all=keep_all
    )
    device = bench.accelerator
    try:
        for event in events:
            if event == 'given up':
                # With every place taken, frames wait. Unused places are used up first.
                until(lambda: bench.scheduler.in_flight == 0)
            else:
                does.do(event, [True])
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
    check_end(bench)
