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

"""``zc_bench scale``: the search finds the limit, losses have reasons, a short run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
import sys
import threading
from types import SimpleNamespace
from typing import Any

from bench import scale
from bench.nodes_worker import MachineUse
from bench.rows import Condition, Row, Series
from bench.scale import (
    DROPS,
    explain,
    measure_scale,
    SCALE_BARS,
    ScalePlan,
    Search,
    Window,
    window_of,
)
from bench.subcommand import check_bars, FULL_HD
from bench.worker import BenchError
from bench_kit import run_bench
import pytest
from waiting import until

USE = {
    'process_percent': 50.0, 'machine_percent': 40.0, 'gil_wait_p50_us': 90.0,
    'gil_wait_p99_us': 2500.0,
}  # fmt: skip
RUN: dict[str, Any] = {
    'ran_s': 10.0, 'due': 600, 'published': 590, 'detections': 590, 'conversions': 0,
    'latencies_us': [2000.0] * 590, 'use': USE,
    'drops': {'no_slot': 1, 'newest_wins': 2, 'device': 3, 'late': 4},
}  # fmt: skip
WHOLE = {**RUN, 'published': 600, 'drops': {}}


def window(lost: int = 0, **use: float) -> Window:
    drops = dict.fromkeys(DROPS, 0) | {'newest_wins': lost}
    return Window(Series([1.0, 2.0], 100.0, lost, {**USE, **use}), drops)


def test_every_frame_that_was_due_and_is_not_there_is_lost_for_one_reason() -> None:
    found = window_of(RUN, received=585)
    assert found.drops == {'no_slot': 1, 'newest_wins': 2, 'device': 3, 'late': 4, 'unread': 5}
    assert found.series.lost == 15 and not found.holds
    # Half a CPU for ten seconds, over 600 frames.
    assert found.series.cpu_us_per_frame == pytest.approx(5e6 / 600)
    assert found.series.figures['lost_late'] == 4.0 and found.series.figures['fps'] == 59.0
    assert window_of(WHOLE, received=600).holds and window_of(WHOLE, received=603).holds
    assert not window_of(WHOLE, received=599).holds


@pytest.mark.parametrize(
    ('changes', 'message'),
    [({'conversions': 1}, 'became messages'), ({'latencies_us': [1.0]}, 'no frame came through')],
)
def test_a_run_that_measured_something_else_is_no_result(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BenchError, match=message):
        window_of({**RUN, **changes}, 590)


@pytest.mark.parametrize(
    ('process', 'machine', 'words'),
    [
        (95.0, 60.0, "the interpreter's lock: the process used 95 %"),
        (40.0, 97.0, 'the CPUs: 97 % of them were busy, 77 % with other programs'),
        (40.0, 50.0, 'a moment only: the CPUs were 50 % busy (30 % other'),
    ],
)
def test_what_gave_out_is_told_by_its_figures(process: float, machine: float, words: str) -> None:
    said = explain(window(7, process_percent=process, machine_percent=machine), cpus=2)
    assert said.startswith(words) and said.endswith('lost: 7 newest_wins')


def search(limit: int, noise: Iterable[int] = ()) -> tuple[Search, list[str]]:
    """Search on a simulated machine that can run *limit* cameras."""
    said: list[str] = []
    disturbed, number = set(noise), iter(range(1000))
    run = lambda cameras: window(int(cameras > limit or next(number) in disturbed))  # noqa: E731
    return Search(run, lambda cameras: '', said.append, 2), said


@pytest.mark.parametrize('limit', [0, 1, 5, 8, 15, 16, 23])
def test_the_limit_is_found_to_an_eighth(limit: int) -> None:
    made, said = search(limit)
    made.run(iter((1, 2, 4, 8, 16, 32)))
    assert made.held <= limit < made.failed and made.failed - made.held <= max(1, made.held // 8)
    assert all(made.windows[number][-1].holds == (number <= limit) for number in made.windows)
    assert len(said) == sum(map(len, made.windows.values()))
    assert 'lost: 1 newest_wins' in made.limit(2)


def test_one_disturbed_window_is_not_the_limit_and_two_are() -> None:
    made, _ = search(100, [1])
    made.run(iter((1, 2, 4)))
    assert (made.held, made.failed) == (4, 0)
    assert [w.holds for w in made.windows[2]] == [False, True]
    assert made.limit(2) == 'not reached: more cameras were not tried'
    made, _ = search(100, [1, 2])
    made.run(iter((1, 2, 4)))
    assert made.held == 1 and made.failed == 2


def test_the_row_is_that_of_the_last_window_and_says_what_was_lost_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = iter([(WHOLE, 600), (RUN, 585), (WHOLE, 600)])  # the first run warms up

    def cameras(topic: str, condition: Condition, *_: object) -> SimpleNamespace:
        assert condition == Condition(*FULL_HD, 30.0)
        return SimpleNamespace(
            cpus=(0, 1), grow=lambda cameras: '', close=lambda: None,
            run=lambda cameras, seconds, **more: next(runs),
        )  # fmt: skip

    monkeypatch.setattr(scale, 'Cameras', cameras)
    monkeypatch.setattr(scale, 'available_memory', lambda: 1 << 40)
    measured = measure_scale(ScalePlan((16,)), lambda line: None)
    (row,) = measured.rows
    assert (row.case, row.variant, row.lost_per_cent) == ('scale', '16_cameras', 0.0)
    assert row.figures['lost_in_earlier_windows'] == 15.0 and row.figures['windows'] == 2.0
    assert measured.facts['limits']['1920x1080@30']['cameras'] == 16
    assert [verdict.passed for verdict in check_bars(measured.rows, SCALE_BARS)] == [True]


@pytest.mark.parametrize(
    ('lost', 'seconds', 'passed'),
    [(0.0, 10.0, True), (0.01, 10.0, False), (0.0, 9.0, False), (0.0, None, False)],
)
def test_the_bar_needs_ten_seconds_without_a_loss(
    lost: float, seconds: float | None, passed: bool
) -> None:
    figures = {} if seconds is None else {'window_s': seconds}
    row = Row('scale', '16_cameras', *FULL_HD, 30.0, 1.0, 1.0, 1.0, 1)
    row = replace(row, lost_per_cent=lost, figures=figures)
    (verdict,) = check_bars([row], SCALE_BARS)
    assert verdict.passed is passed
    assert (verdict.measured == 'not measured') is (seconds != 10.0)


def test_a_thread_that_keeps_the_lock_is_seen_in_what_others_wait() -> None:
    """A computing thread releases the interpreter lock once in twenty milliseconds."""
    sys.setswitchinterval(0.02)
    begun, stop = threading.Event(), threading.Event()

    def compute() -> None:
        begun.set()
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    assert begun.wait(60.0)
    with MachineUse() as busy:
        try:
            until(lambda: busy.holders(), 'a wait for the lock')
        finally:
            stop.set()
            thread.join()
    figures, holders = busy.figures(), busy.holders()
    assert holders and 'test_scale.py:compute' in holders[0]['place'], 'the function is named'
    assert holders[0]['worst_us'] >= holders[0]['p99_us'] >= 1000 and holders[0]['times'] > 0
    assert figures['resident_mib'] > 1 and figures['buffers_mib'] >= 0
    assert figures['gil_wait_p50_us'] > 1000 and figures['process_percent'] > 0
    assert 0 < figures['machine_percent'] <= 100


def test_a_short_run_of_everything(free_domain: int, tmp_path: Path) -> None:
    words = 'scale --cameras 1 3 --sizes vga --seconds 1'
    document = run_bench(tmp_path, *words.split())
    limit = document['environment']['limits']['640x480@30']
    # How many cameras hold depends on the machine's load; the figures don't.
    assert 0 <= limit['cameras'] <= 3 and limit['limit'] and limit['cpus'] in (1, 2)
    first = next(row for row in document['rows'] if row['variant'] == '1_camera')
    assert first['median_us'] > 0 and first['cpu_us_per_frame'] > 0
    assert set(USE) <= set(first['figures'])
    lost = sum(first['figures'][f'lost_{name}'] for name in DROPS)
    assert first['figures']['fps'] > 0 and (lost == 0) == (first['lost_per_cent'] == 0)
