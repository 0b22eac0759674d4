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

"""``zc_bench decode``: its peers are right, it detects a wrong decoder, a short run."""

from __future__ import annotations

from dataclasses import replace
import os
from pathlib import Path
from unittest.mock import call, Mock

from bench import __main__ as program
from bench import decode_cases
from bench.decode_cases import Case, check_same, measure_decoding
from bench.worker import BenchError
from bench_kit import written
import cv2
import numpy as np
import pytest

from zc_perception.detection.detections import Detections


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


def test_a_short_run_of_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
