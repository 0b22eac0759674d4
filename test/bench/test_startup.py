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

"""``zc_bench startup`` and ``decode``: figures, programs and peers, wrong results, short runs."""

from __future__ import annotations

from collections.abc import Callable
import ctypes
from dataclasses import replace
import mmap
import os
from pathlib import Path
import tempfile
from unittest.mock import call, Mock

from bench import __main__ as program
from bench import decode_cases, startup
from bench.decode_cases import Case, check_same, measure_decoding
from bench.rows import Row
from bench.startup import (
    CAMERA,
    evict,
    find_program,
    PUBLISHED,
    RECEIVED,
    series_of,
    Start,
    Starter,
    STARTUP_BARS,
    StartupPlan,
    WARM,
)
from bench.subcommand import check_bars, Measured
from bench.worker import BenchError
from bench_kit import instead_of_measuring, run_bench, written
import cv2
import numpy as np
import pytest
from waiting import until

from zc_perception.detection.detections import Detections
from zc_perception.observe.frame_log import FrameRecord, RecordKind

MS = 1_000_000
RECORD = FrameRecord(1, RecordKind.PROCESSED, 0, 1, 1, *(0,) * 10, (1,), 0, 0, 3, 0, 1)


def start() -> Start:
    frame = RECORD._replace(kind=RecordKind.PUBLISHED, captured_ns=5600 * MS)
    detections = RECORD._replace(submitted_ns=5601 * MS, sent_ns=5620 * MS)
    stages = {'interpreter': 5030 * MS, 'imports': 5300 * MS, 'ready': 5590 * MS}
    return Start(5000 * MS, 5750 * MS, stages, frame, detections, 640_000.0)


def test_stages_are_ms_since_the_program_was_executed() -> None:
    assert start().figures() == {
        'interpreter_ms': 30.0, 'imports_ms': 300.0, 'ready_ms': 590.0, 'first_frame_ms': 600.0,
        'first_submitted_ms': 601.0, 'first_published_ms': 620.0, 'first_received_ms': 750.0,
    }  # fmt: skip
    found = series_of(start())
    assert found[PUBLISHED].latencies_us == [620_000.0] and found[RECEIVED].latencies_us == [
        750_000.0
    ]
    assert found[PUBLISHED].figures['cpu_ms'] == 640.0
    assert found[PUBLISHED].median_us == 620_000.0, 'one value is no warm-up'


@pytest.mark.parametrize(
    ('median_us', 'passed'), [(1_499_000.0, True), (1_501_000.0, False), (None, False)]
)
def test_the_bars_are_seconds_of_warm_starts(median_us: float | None, passed: bool) -> None:
    rows = [
        Row(case, WARM, CAMERA.width, CAMERA.height, CAMERA.rate_hz, median_us, None, None, 3)
        for case in (PUBLISHED, RECEIVED)
    ]
    assert [verdict.passed for verdict in check_bars(rows, STARTUP_BARS)] == [passed]
    cold = [replace(row, variant='cold') for row in rows]
    assert [verdict.measured for verdict in check_bars(cold, STARTUP_BARS)] == ['not measured']


def executable(folder: Path, text: str = '#!/bin/sh\n', name: str = 'perception') -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_program_is_the_installed_one_a_workspace_s_or_on_the_path(tmp_path: Path) -> None:
    assert find_program().name == 'perception'
    unknown = 'zc_nobody_has_this'
    with pytest.raises(BenchError, match=f"'{unknown}' is not installed beside"):
        find_program(unknown, {'PATH': str(tmp_path)})
    on_path = executable(tmp_path / 'bin', name=unknown)
    assert find_program(unknown, {'PATH': str(on_path.parent)}) == on_path
    built = executable(tmp_path / 'install' / 'lib' / 'zc_perception', name=unknown)
    environment = {
        'PATH': str(on_path.parent),
        'AMENT_PREFIX_PATH': f'{tmp_path / "other"}:{tmp_path / "install"}',
    }
    assert find_program(unknown, environment) == built


@pytest.fixture
def starter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Starter]:
    """Make a starter that runs a shell script, and whose reader never receives data."""

    def make(text: str) -> Starter:
        path = executable(tmp_path / 'bin', text)
        monkeypatch.setattr(startup, 'find_program', lambda: path)
        return Starter(StartupPlan())

    reader = Mock(ask=lambda **command: {'first_ns': 0})
    monkeypatch.setattr(startup, 'Worker', lambda *arguments: reader)
    return make


def test_a_program_that_ends_is_named_with_its_last_words(
    starter: Callable[[str], Starter],
) -> None:
    with pytest.raises(BenchError) as caught:
        starter('#!/bin/sh\necho first >&2\necho "perception: error: no" >&2\nexit 2\n').start()
    assert str(caught.value) == "'perception' ended with exit code 2: perception: error: no"


def test_one_that_never_detects_is_given_up_and_ended(
    starter: Callable[[str], Starter], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(startup, '_PATIENCE_S', 0.3)
    mark = tmp_path / 'pid'

    def ask(op: str, **command: object) -> dict[str, int]:
        # The program may take longer to begin than it is waited for.
        assert op != 'first' or until(lambda: mark.exists() and mark.read_text())
        return {'first_ns': 0}

    monkeypatch.setattr(startup, 'Worker', lambda *arguments: Mock(ask=ask))
    with pytest.raises(BenchError, match='no detections within'):
        starter(f'#!/bin/sh\necho $$ > {mark}\nexec sleep 1000\n').start()
    assert not Path(f'/proc/{mark.read_text().strip()}').exists()


def cached_bytes(path: Path) -> int:
    with path.open('rb') as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as memory:
        address, pages = ctypes.c_char.from_buffer(memory), -(-len(memory) // mmap.PAGESIZE)
        vector = (ctypes.c_ubyte * pages)()
        failed = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(ctypes.addressof(address)), ctypes.c_size_t(len(memory)), vector
        )
        del address
        assert not failed
        return sum(byte & 1 for byte in vector) * mmap.PAGESIZE


def test_files_leave_the_page_cache() -> None:
    # This needs a folder on disk: tmpfs has no other place for its pages.
    folder = Path(__file__).resolve().parents[2] / 'build'
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        kept, dropped = Path(name, 'kept'), Path(name, 'dropped')
        for path in (kept, dropped):
            path.write_bytes(b'z' * (1 << 20))
            assert cached_bytes(path) == 1 << 20
        evict([dropped, Path(name, 'not there')])
        assert cached_bytes(kept) == 1 << 20, 'nobody else is slowed down'
        assert cached_bytes(dropped) < (1 << 20) // 2
        assert dropped.read_bytes() == b'z' * (1 << 20)


def test_options_become_the_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Row(PUBLISHED, WARM, 640, 360, 30.0, 1e6, 1e6, 1e6, 1)
    planned = instead_of_measuring(monkeypatch, startup, 'measure_startup', Measured([row]))
    words = 'startup --repetitions 2 --variants warm --parameters model:=hog accelerator:=onnx'
    assert program.main(words.split()) == 0
    assert planned == [StartupPlan(2, ('warm',), ('model:=hog', 'accelerator:=onnx'))]
    assert program.main(['startup', '--check']) == 0 and planned[-1] == StartupPlan()
    assert 'published ≤ 1.5 s: 1.00 s' in capsys.readouterr().out


def test_a_short_run_of_starts(free_domain: int, tmp_path: Path) -> None:
    words = 'startup --variants warm --repetitions 1 --parameters accelerator:=onnx'
    document = run_bench(tmp_path, *words.split())
    assert document['environment']['program'] == 'perception'
    rows = {row['case']: row for row in document['rows']}
    assert set(rows) == {PUBLISHED, RECEIVED}
    figures = rows[PUBLISHED]['figures']
    order = ['interpreter', 'imports', 'ros', 'camera', 'accelerator_asked', 'accelerator',
             'nodes', 'ready', 'first_frame',
             'first_submitted', 'first_published']  # fmt: skip
    times = [figures[f'{name}_ms'] for name in order]
    # Frames may flow and be detected before the starting thread reports that all are ready.
    ready = times.pop(order.index('ready'))
    assert figures['nodes_ms'] <= ready
    assert times == sorted(times) and times[0] > 0 and figures['cpu_ms'] > 0
    assert rows[PUBLISHED]['median_us'] == pytest.approx(figures['first_published_ms'] * 1e3)
    assert rows[RECEIVED]['median_us'] == pytest.approx(figures['first_received_ms'] * 1e3)


# ``zc_bench decode``: its peers are right, it detects a wrong decoder, a short run.
def test_every_object_of_the_scene_is_found_once_by_each_peer() -> None:
    """More than ten cells on average find each of the 100 true objects."""
    levels = decode_cases.make_levels()
    rows = decode_cases.decoded_output(levels).values[0]
    assert np.count_nonzero(rows[4:].max(axis=0) >= decode_cases.LIMITS.score) > 1000
    found = {
        'filter_first': decode_cases.filter_first(rows),
        'numpy_usual': decode_cases.numpy_usual(rows),
        'levels': decode_cases.numpy_levels(levels),
    }
    assert {len(one) for one in found.values()} == {decode_cases.OBJECTS}
    check_same('x', found)
    boxes = found['filter_first'].boxes
    assert boxes.min() > 0 and boxes[:, 2].max() < 1920 and boxes[:, 3].max() < 1080
    sparse = decode_cases.decoded_output(decode_cases.make_levels(decode_cases.SPARSE)).values[0]
    count = np.count_nonzero(sparse[4:].max(axis=0) >= decode_cases.LIMITS.score)
    assert count == pytest.approx(3 * decode_cases.OBJECTS, abs=6)
    assert len(decode_cases.filter_first(sparse)) == decode_cases.OBJECTS


def test_different_boxes_are_no_result() -> None:
    rows = decode_cases.decoded_output(decode_cases.make_levels()).values[0]
    found = decode_cases.filter_first(rows)
    order = np.random.default_rng(0).permutation(len(found))
    check_same('x', {'a': found, 'b': found.chosen(order)})
    boxes = found.boxes.copy()
    boxes[7, 2] += 0.05
    seventh = np.arange(len(found)) == 7
    for wrong in (
        replace(found, boxes=boxes),
        replace(found, classes=(found.classes + seventh) % 80),
        replace(found, scores=found.scores - seventh * np.float32(1e-3)),
        found.chosen(slice(1, None)),
    ):
        with pytest.raises(BenchError, match="case 'x': b found"):
            check_same('x', {'a': found, 'b': wrong})
    with pytest.raises(BenchError, match='a found nothing'):
        check_same('x', {'a': Detections.empty(), 'b': Detections.empty()})


def test_the_check_comes_before_the_figures_of_each_repetition() -> None:
    calls = Mock()
    calls.check.side_effect = [{}, BenchError('they differ')]
    case = Case('c', (640, 480), {'ours': calls.ours}, calls.check)
    with pytest.raises(BenchError, match='differ'):
        measure_decoding(3, 4, lambda line: None, [case])
    assert calls.mock_calls == [call.check(), *[call.ours()] * 4, call.check()]


def test_it_measures_on_one_cpu_without_threads_and_leaves_both_as_they_were() -> None:
    before = os.sched_getaffinity(0), cv2.getNumThreads()
    seen: list[tuple[int, int]] = []
    ours = lambda: seen.append((len(os.sched_getaffinity(0)), cv2.getNumThreads()))  # noqa: E731
    case = Case('c', (640, 480), {'ours': ours}, lambda: {})
    measure_decoding(1, 1, lambda line: None, [case])
    assert seen == [(1, 1)] and (os.sched_getaffinity(0), cv2.getNumThreads()) == before


def test_a_short_run_of_decoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / 'decode.json'
    words = ['decode', '--repetitions', '2', '--frames', '3', '--json', str(path)]
    assert program.main(words) == 0
    document = written(path)
    rows = {(row['case'], row['variant'], row['width']): row for row in document['rows']}
    every = decode_cases.cases()
    heads = {(case.name, variant, case.size[0]) for case in every for variant in case.variants}
    assert set(rows) == heads and len(document['rows']) == len(rows)
    for (case, variant, _), row in rows.items():
        assert row['repetitions'] == 2 and row['cpu_us_per_frame'] > 0
        assert 0 < row['median_us'] <= row['p99_us']
        others = {f'{case}/{v}' for c, v, _ in rows if c == case and v != variant}
        assert set(row['ratio_to']) == others
    for case in ('yolov8_decoded', 'yolov8_sparse'):
        assert rows[case, 'ours', 1920]['figures'] == {'boxes': 100.0}
    tensor = rows['tensor', 'ours', 1920]['figures']
    assert tensor['noise_max_off_levels'] <= 1.0 and tensor['road_mean_off_levels'] < 0.2
    assert document['environment']['opencv_threads'] == 1
    assert 'yolov8_dfl_int8/numpy_usual' in capsys.readouterr().out
