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

from zc_perception.observe.metrics import (
    LatencyWindow,
    RATE_S,
    RECENT_S,
    RecentCount,
    RecentRates,
    Silence,
    StageLatencies,
    WINDOW,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=50))
def test_percentiles_are_numpy_s(samples: list[int]) -> None:
    window = LatencyWindow()
    for sample in samples:
        window.record(sample)
    found = window.percentiles()
    assert [found.p50, found.p99] == pytest.approx(np.percentile(samples, (50, 99)) / 1e6)


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


# Recent changes of counters: growth in a window, and rates over enough time.


class Clock:
    def __init__(self) -> None:  # noqa: CNL100
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_counter_that_began_anew_has_counted_that_much() -> None:
    counter = RecentCount(Clock())
    counter.see(100)
    assert counter.see(2) == 2 and counter.see(2) == 2


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, 50)), min_size=1, max_size=60))
def test_no_growth_is_lost_or_counted_twice(looks: list[tuple[float, int]]) -> None:
    clock = Clock()
    counter = RecentCount(clock)
    count, history = 0, []
    counter.see(count)
    for pause, growth in looks:
        clock.now += pause
        count += growth
        history.append((clock.now, growth))
        assert counter.see(count) == sum(
            grown for at, grown in history if clock.now - at < RECENT_S
        )


def test_a_rate_follows_within_its_window_and_ends_with_it() -> None:
    clock = Clock()
    rates = RecentRates(clock)
    count, found = 0, []
    for look in range(30):
        clock.now += 0.2
        count += 6 if look < 15 else 0
        found.append(rates.see(count))
    assert found[14] == (pytest.approx(30.0),)
    assert found[15] is not None and 20 < found[15][0] < 30
    assert found[20] == (0.0,)


def test_a_rate_of_few_events_waits_for_more_of_them() -> None:
    clock = Clock()
    rates = RecentRates(clock)
    found = []
    for look in range(150):
        clock.now += 0.2
        found.append(
            rates.see(look // 5, look // 10, at_least=10)
        )  # one a second, half of them done
    assert found[45] is None and found[60] is not None
    assert found[-1] == (pytest.approx(1.0, rel=0.1), pytest.approx(0.5, rel=0.2))
    before = len(rates._looks)
    for _ in range(5000):
        clock.now += 0.2
        rates.see(29, 14, at_least=10)
    assert len(rates._looks) <= before + 2, 'a time without events costs no memory'
    clock.now += 0.2
    assert rates.see(29, 14, at_least=10) is not None, 'the last ones are still the last ones'


@pytest.mark.parametrize(
    ('every_s', 'overdue_s'), [(0.03, 1.0), (0.2, 1.0), (0.5, 1.8), (2.0, 6.6), (30.0, 91.0)]
)
def test_silence_is_what_is_longer_than_the_usual_pause(every_s: float, overdue_s: float) -> None:
    clock = Clock()
    silence = Silence(clock)
    assert silence.see(5) == 0.0
    start = clock.now
    for _ in range(round(20 * every_s / 0.2) + 50):
        clock.now += 0.2
        count = 6 + int((clock.now - start) / every_s)
        # Before the second event the period is unknown.
        assert silence.see(count) == 0.0 or count < 9
    count = 6 + int((clock.now - start) / every_s)
    last = clock.now
    while not (silent := silence.see(count)):
        clock.now += 0.2
        assert clock.now - last < overdue_s + 0.3, 'it should have been noticed'
    assert silent >= min(overdue_s, 3 * every_s) - 0.3 and silent >= RATE_S - 0.01
    clock.now += 100
    assert silence.see(count) > 100
    for more in range(1, 10):
        assert silence.see(count + more) == 0.0
        clock.now += min(every_s, 0.2) if more < 9 else overdue_s + 0.3
    assert silence.see(count + 9) > 1.0, (
        'the silence that has ended is not taken for a usual pause'
    )


def test_what_never_came_is_not_missed() -> None:
    clock = Clock()
    silence = Silence(clock)
    for _ in range(100):
        clock.now += 1.0
        assert silence.see(0) == 0.0
    assert silence.see(1) == 0.0
    clock.now += 5.0
    assert silence.see(1) == 0.0, 'of one alone no pauses are known'
    clock.now += 1.5
    assert silence.see(1) == 6.5
    silence.forget()
    assert silence.see(1) == 0.0
