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

"""Latency windows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from zc_perception.observe.metrics import LatencyWindow, StageLatencies, WINDOW


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=50))
def test_percentiles_are_numpy_s(samples: list[int]) -> None:
    window = LatencyWindow()
    for sample in samples:
        window.record(sample)
    assert (window.percentiles().p50, window.percentiles().p99) == pytest.approx(
        tuple(np.percentile(samples, (50, 99)) / 1e6)
    )


def test_old_samples_leave_the_window_and_stay_counted() -> None:
    window = LatencyWindow()
    for _ in range(WINDOW):
        window.record(10**12)
    for _ in range(WINDOW):
        window.record(2_000_000)
    assert window.count == 2 * WINDOW
    assert (window.percentiles().p50, window.percentiles().p99) == (2.0, 2.0)


def test_a_summary_has_the_stages_that_happened() -> None:
    latencies = StageLatencies()
    latencies.record('infer', 3_000_000)
    assert {stage: p.p50 for stage, p in latencies.summary().items()} == {'infer': 3.0}
    with pytest.raises(KeyError):
        latencies.record('inference', 1)


def test_a_frame_s_stages_are_recorded_together() -> None:
    latencies = StageLatencies()
    assert latencies.summary() == {}
    for frame in range(1, WINDOW + 102):
        latencies.record_frame(*(stage * frame * 1000 for stage in range(1, 6)))
    latencies.record('capture', 7_000_000)
    summary = latencies.summary()
    assert (
        list(summary) == ['capture', 'link', 'infer', 'decode', 'publish', 'end_to_end']
        and summary['capture'].p50 == 7.0
    )
    middle = (102 + WINDOW + 101) / 2 / 1000
    assert [summary[stage].p50 for stage in StageLatencies.INFERENCE] == pytest.approx(
        [stage * middle for stage in range(1, 6)]
    )
    last = np.quantile(np.arange(102, WINDOW + 102), 0.99) / 1000
    assert summary['end_to_end'].p99 == pytest.approx(5 * last)
