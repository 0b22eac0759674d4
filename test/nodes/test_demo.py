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

"""``zc_demo`` as ``make demo`` runs it, only shorter."""

from __future__ import annotations

import json
from pathlib import Path
import re
import subprocess

import cv2
from nodes.programs import BIN, environment, Program
import pytest
from waiting import until
import warm_start

from zc_perception.errors import ConfigError
from zc_perception.nodes import demo
from zc_perception.observe.metrics import StageLatencies

KEYS = {
    'frames',
    'detections',
    'dropped',
    'fps',
    'rung',
    'heap',
    'accelerator',
    'latency_ms',
    'pixel_copies_per_frame',
    'boxes_iou_min',
}
IN_FLIGHT = 4
"""Frames whose tensor is made but whose detections aren't published when the demo ends."""


def _demo(args: list[str], domain: int) -> subprocess.CompletedProcess[str]:
    return warm_start.run([str(BIN / 'zc_demo'), *args], env=environment(domain), timeout=200)


def test_a_bounded_run_writes_summary_and_picture(tmp_path: Path, free_domain: int) -> None:
    done = _demo(
        ['--frames', '60', '--seed', '3', '--framerate', '15', '--out', str(tmp_path)], free_domain
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert set(summary) >= KEYS
    assert summary['frames'] >= 60 and summary['detections'] > 60
    assert summary['rung'] == 'in_process' and summary['accelerator'] == 'onnx'
    assert set(summary['latency_ms']) == set(StageLatencies.STAGES)
    assert all(0 <= stage['p50'] <= stage['p99'] for stage in summary['latency_ms'].values())
    copies = summary['pixel_copies_per_frame']
    assert copies['draw'] == 1 and 'to_ros' not in copies and 'from_ros' not in copies
    # A slow machine's inference takes fewer frames than the camera makes: one tensor for each.
    tensors = round(copies['tensor'] * summary['captured'])
    assert summary['frames'] <= tensors <= summary['frames'] + IN_FLIGHT
    assert summary['boxes_iou_min'] >= 0.5
    picture = cv2.imread(str(tmp_path / 'detections.png'))
    assert picture is not None and picture.shape == (360, 640, 3)
    assert 'frames' in done.stdout and 'end_to_end' in done.stdout


@pytest.mark.parametrize(
    ('args', 'message'),
    [
        (['--frames', '0'], '--frames is 0; it must be at least 1'),
        (['--duration', '-1'], '--duration is -1; it must be a positive number'),
        (['--camera', 'tally'], "--camera is 'tally'; it must be one of synthetic, replay; for"),
        (['--camera', 'replay'], '--camera replay needs a recording; add --video FILE'),
        (['--keep-all'], '--keep-all has no effect with --camera synthetic; add --camera replay'),
        (
            ['--camera', 'replay', '--video', 'drive.mp4', '--seed', '0'],
            '--seed has no effect with --camera replay; leave it out',
        ),
    ],
)
def test_options_that_can_not_be_meant_are_refused(args: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        demo.check(demo.option_parser().read(args))


def test_an_early_end_says_that_there_is_no_picture(tmp_path: Path, free_domain: int) -> None:
    (tmp_path / 'detections.png').write_bytes(b'of another run')
    words = '--duration', '600', '--framerate', '15', '--out', str(tmp_path)
    with Program('zc_demo', *words, domain=free_domain).start() as running:
        frames = re.compile(r'^ *[0-9.]+ s +[1-9][0-9]* frames', re.MULTILINE)
        until(lambda: frames.search(running.output), lambda: running.output, 120.0)
        assert running.interrupt() == 0, running.output
    assert json.loads((tmp_path / 'summary.json').read_text())['frames'] > 0
    (told,) = (line for line in running.lines if line.startswith('wrote'))
    assert told.startswith(
        f'wrote {tmp_path}/summary.json, no detections.png: the picture is taken in the second '
        'half of the run'
    )
    assert 'earlier run' in told and (tmp_path / 'detections.png').exists()
