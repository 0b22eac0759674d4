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

"""``zc_bench pipeline``, ``timeline`` and ``scale``: parts, failing runs, and short runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
import json
from pathlib import Path
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

from bench import scale
from bench.nodes_worker import MachineUse
from bench.pipeline import series_of, SETUPS
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
from bench.stand_ins import DelayedAccelerator, fixed_result, OBJECTS, PrefilledCamera, TimerFence
from bench.subcommand import check_bars, FULL_HD
from bench.worker import BenchError
from bench_kit import run_bench
import numpy as np
import pytest
from waiting import until

from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.agreement import agree
from zc_perception.npu.manifest import load_manifest
from zc_perception.observe.timeline import STAGES as TIMELINE_STAGES
from zc_perception.observe.timeline import WHOLE

LONG_S, SHORT_S = 3600.0, 0.02
SIZE = (320, 180)


def test_the_fixed_result_is_ten_objects_to_the_model_s_head() -> None:
    manifest = load_manifest('road')
    result = fixed_result(manifest)
    assert result.shape == tuple(manifest.tensors[0].shape) and result.dtype == np.float32
    limits = DecodeLimits(manifest.score_threshold, manifest.nms_threshold, 100)
    box = Letterbox.fit(1920, 1080, manifest.input.width, manifest.input.height)
    found = make_head(manifest.head).decode([RawTensor(result)], box, limits)
    assert len(found) == OBJECTS
    assert np.count_nonzero(result[0, 4:].max(axis=0) >= manifest.score_threshold) > 3 * OBJECTS


def test_a_timer_fence_signals_once_its_time_has_come_and_again() -> None:
    fence = TimerFence(SHORT_S)
    for _ in range(2):
        fence._delay_ns = round(LONG_S * 1e9)
        fence.arm()
        assert not fence.wait(0.0)
        with pytest.raises(AcceleratorError, match='not signalled'):
            fence.check()
        fence._delay_ns = round(SHORT_S * 1e9)
        began = time.monotonic()
        fence.arm()
        assert fence.wait(60.0) and time.monotonic() - began >= SHORT_S
        fence.check()
    fence.close()


@pytest.fixture
def source() -> Iterator[PrefilledCamera]:
    made = PrefilledCamera(
        *SIZE, 1000.0, 'optical', now_ns=time.monotonic_ns, ledger=CopyLedger(), unthrottled=False
    )
    made.allocate(agree([made.constraints()], SIZE, wanted_slots=3))
    made.running.set()
    yield made
    made.close()


def test_prefilled_frames_are_filled_before_and_cost_no_pass_over_pixels(
    source: PrefilledCamera,
) -> None:
    frames = [source.capture() for _ in range(3)]
    assert [frame.data.sequence for frame in frames] == [0, 1, 2]
    assert source._ledger.entries() == {}
    with frames[0].map() as planes:
        assert all((plane == 128).all() for plane in planes)
    # No slot is free: the frame is lost and counted, and the sequence number skips it.
    assert source.capture() is None
    assert (source.statistics().captured, source.statistics().dropped) == (3, 1)
    frames.pop(0).release()
    frames.append(source.capture())
    assert frames[-1].data.sequence == 4
    for frame in frames:
        frame.release()
    source.running.clear()
    assert source.capture() is None and source.statistics().dropped == 1


def test_the_delayed_accelerator_imports_each_buffer_once_and_its_jobs_overlap(
    source: PrefilledCamera,
) -> None:
    accelerator = DelayedAccelerator(LONG_S)
    accelerator.load(load_manifest('road'))
    try:
        jobs = []
        for _ in range(2):
            # All slots are leased, so that each one is used.
            for frame in [source.capture() for _ in range(3)]:
                job = accelerator.submit(accelerator.import_frame(frame), frame)
                assert not job.fence.wait(0.0)
                assert (job.letterbox.source_width, job.letterbox.source_height) == SIZE
                jobs.append(job)
                frame.release()
        used = {job.fence.fileno() for job in jobs}
        assert accelerator.imports == 3 and len(used) == 6
        for job in jobs:
            job.close()
        with source.capture() as frame:
            again = accelerator.submit(accelerator.import_frame(frame), frame)
        assert again.fence.fileno() in used
        again.close()
    finally:
        accelerator.close()


STAGES = {
    'capture': 1.0, 'link': 2.0, 'infer': 9.0, 'decode': 3.0, 'publish': 4.0, 'end_to_end': 9.0,
}  # fmt: skip
RUN: dict[str, Any] = {
    'cpu_us': 9000.0, 'wall_s': 2.0, 'due': 21, 'drops': {'late': 1},
    'detections': 190, 'latencies_us': [500.0] * 19, 'conversions': 0, 'imports': 8,
    'stages_us': STAGES, 'cpu_each_us': [600.0, 450.0, 400.0],
}  # fmt: skip


def test_what_the_process_does_at_rest_is_no_frame_s() -> None:
    """1000 µs per second at rest: 2000 of the 9000 µs do not belong to the 20 frames."""
    series = series_of(RUN, {'cpu_us': 3000.0}, 3.0, 20)
    assert series.cpu_us_per_frame == pytest.approx(350.0)
    # 2000 µs belong to the rest: 100 µs for each of the 20 frames.
    assert series.figures['cpu_p50_us'] == pytest.approx(350.0)
    assert series.lost == 1 and series.median_us == 500.0
    assert series.figures['detections_per_frame'] == 10.0 and series.figures['decode_us'] == 3.0
    assert series_of(RUN, {'cpu_us': 3e6}, 3.0, 20).cpu_us_per_frame == 0.0
    none = series_of({**RUN, 'cpu_each_us': []}, {'cpu_us': 0.0}, 3.0, 20)
    assert 'cpu_p50_us' not in none.figures
    unread = series_of(RUN, {'cpu_us': 0.0}, 3.0, 17)
    assert unread.lost == 3, 'what the reader did not get is lost too'


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'conversions': 1}, 'became messages'),
        ({'latencies_us': []}, 'no frame came through'),
        ({'detections': 0}, 'no frame came through'),
    ],
)
def test_a_run_that_measured_something_else_is_no_result(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BenchError, match=message):
        series_of({**RUN, **changes}, {'cpu_us': 0.0}, 1.0, 20)


def test_a_short_run_of_everything(free_domain: int, tmp_path: Path) -> None:
    document = run_bench(tmp_path, 'pipeline', '--repetitions', '1', '--seconds', '0.5')
    assert document['environment']['model'] == 'road' and document['environment']['rmw']
    rows = {
        (row['variant'], row['width'], row['height'], row['rate_hz']): row
        for row in document['rows']
    }
    assert set(rows) == {(setup.variant, *setup.size, setup.rate_hz) for setup in SETUPS}
    for row in rows.values():
        assert row['median_us'] > 0 and row['cpu_us_per_frame'] >= 0
        assert row['figures']['detections_per_frame'] == OBJECTS
        assert ('cpu_p50_us' in row['figures']) == (row['variant'] == '1_camera')
        # Each slot was imported once, in the earlier run: a frame costs no import.
        assert row['figures']['imports'] == 8 * int(row['variant'].split('_')[0])


def test_a_short_timeline(free_domain: int, tmp_path: Path) -> None:
    trace = tmp_path / 'trace.json'
    document = run_bench(tmp_path, 'timeline', '--seconds', '1', '--trace', str(trace))
    rows = {row['variant']: row for row in document['rows']}
    assert list(rows) == [*(name for name, _ in TIMELINE_STAGES), WHOLE]
    # The stand-in accelerator takes two milliseconds, which count in this stage only.
    assert rows[WHOLE]['median_us'] >= rows['infer']['median_us'] >= 2000
    assert rows['decode']['median_us'] > 0 and rows['publish']['median_us'] > 0
    events = json.loads(trace.read_text(encoding='utf-8'))['traceEvents']
    kinds = {event.get('cat') for event in events}
    assert {'capture', 'link', 'infer', 'decode', 'publish'} <= kinds


# ``zc_bench scale``: the search finds the limit, losses have reasons, a short run.
USE = {
    'process_percent': 50.0, 'machine_percent': 40.0, 'gil_wait_p50_us': 90.0,
    'gil_wait_p99_us': 2500.0,
}  # fmt: skip
SCALE_RUN: dict[str, Any] = {
    'ran_s': 10.0, 'due': 600, 'published': 590, 'detections': 590, 'conversions': 0,
    'latencies_us': [2000.0] * 590, 'use': USE,
    'drops': {'no_slot': 1, 'newest_wins': 2, 'device': 3, 'late': 4},
}  # fmt: skip
SCALE_WHOLE = {**SCALE_RUN, 'published': 600, 'drops': {}}


def window(lost: int = 0, **use: float) -> Window:
    drops = dict.fromkeys(DROPS, 0) | {'newest_wins': lost}
    return Window(Series([1.0, 2.0], 100.0, lost, {**USE, **use}), drops)


def test_every_frame_that_was_due_and_is_not_there_is_lost_for_one_reason() -> None:
    found = window_of(SCALE_RUN, received=585)
    assert found.drops == {'no_slot': 1, 'newest_wins': 2, 'device': 3, 'late': 4, 'unread': 5}
    assert found.series.lost == 15 and not found.holds
    # Half a CPU for ten seconds, over 600 frames.
    assert found.series.cpu_us_per_frame == pytest.approx(5e6 / 600)
    assert found.series.figures['lost_late'] == 4.0 and found.series.figures['fps'] == 59.0
    holds = [window_of(SCALE_WHOLE, received=received).holds for received in (599, 600, 603)]
    assert holds == [False, True, True]


@pytest.mark.parametrize(
    ('changes', 'message'),
    [({'conversions': 1}, 'became messages'), ({'latencies_us': [1.0]}, 'no frame came through')],
)
def test_a_window_that_measured_something_else_is_no_result(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BenchError, match=message):
        window_of({**SCALE_RUN, **changes}, 590)


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
    runs = iter([(SCALE_WHOLE, 600), (SCALE_RUN, 585), (SCALE_WHOLE, 600)])  # the first warms up

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
    try:
        # It computes until the last look: while nobody computes, nobody waits.
        with MachineUse() as busy:
            until(lambda: busy.holders(), 'a wait for the lock')
    finally:
        stop.set()
        thread.join()
    figures, holders = busy.figures(), busy.holders()
    assert holders and 'test_pipeline.py:compute' in holders[0]['place'], 'the function is named'
    assert holders[0]['worst_us'] >= holders[0]['p99_us'] >= 1000 and holders[0]['times'] > 0
    assert figures['resident_mib'] > 1 and figures['buffers_mib'] >= 0
    assert figures['gil_wait_p50_us'] > 1000 and figures['process_percent'] > 0
    assert 0 < figures['machine_percent'] <= 100


def test_a_short_search(free_domain: int, tmp_path: Path) -> None:
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
