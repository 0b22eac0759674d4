"""``zc_demo`` as ``make demo`` runs it, only shorter."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import cv2
import pytest
from nodes.programs import BIN, environment

from zc_perception.observe.metrics import StageLatencies

KEYS = {
    'frames', 'detections', 'dropped', 'fps', 'rung', 'heap', 'accelerator', 'latency_ms', 'pixel_copies_per_frame', 'boxes_iou_min',
}  # fmt: skip


def _demo(args: list[str], domain: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BIN / 'zc_demo'), *args], env=environment(domain), capture_output=True, text=True, timeout=90, check=False)


def test_a_bounded_run_writes_summary_and_picture(tmp_path: Path, free_domain: int) -> None:
    done = _demo(['--frames', '60', '--seed', '3', '--framerate', '15', '--out', str(tmp_path)], free_domain)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert set(summary) >= KEYS
    assert summary['frames'] >= 60 and summary['detections'] > 60
    assert summary['rung'] == 'in_process' and summary['accelerator'] == 'cpu'
    assert set(summary['latency_ms']) == set(StageLatencies.STAGES)
    assert all(0 <= stage['p50'] <= stage['p99'] for stage in summary['latency_ms'].values())
    copies = summary['pixel_copies_per_frame']
    assert copies['draw'] == 1 and 0.5 < copies['tensor'] <= 1.01 and 'to_ros' not in copies and 'from_ros' not in copies
    assert summary['boxes_iou_min'] >= 0.5
    picture = cv2.imread(str(tmp_path / 'detections.png'))
    assert picture is not None and picture.shape == (360, 640, 3)
    assert 'frames' in done.stdout and 'end_to_end' in done.stdout


@pytest.mark.parametrize(
    ('args', 'message'),
    [
        (['--frames', '0'], 'must be at least 1'),
        (['--duration', '-1'], 'must be a positive number'),
        (['--camera', 'replay'], "parameter 'video' is empty"),
        (['--model', 'nothing'], "model 'nothing' is not known"),
        (['--width', '99999'], "'width' is 99999"),
    ],
)
def test_bad_options_are_refused(args: list[str], message: str, free_domain: int) -> None:
    done = _demo(args, free_domain)
    assert done.returncode == 2
    assert message in done.stderr and 'Traceback' not in done.stderr
