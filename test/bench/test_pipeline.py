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

"""``zc_bench pipeline`` and ``timeline``: their parts, failing runs, and short runs."""

from __future__ import annotations

from collections.abc import Iterator
import json
from pathlib import Path
import time
from typing import Any

from bench.pipeline import series_of, SETUPS
from bench.stand_ins import DelayedAccelerator, fixed_result, OBJECTS, PrefilledCamera, TimerFence
from bench.worker import BenchError
from bench_kit import run_bench
import numpy as np
import pytest

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
        began = time.monotonic()
        fence.arm()
        assert not fence.wait(0.0)
        with pytest.raises(AcceleratorError, match='not signalled'):
            fence.check()
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
