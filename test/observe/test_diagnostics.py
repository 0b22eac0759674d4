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

"""``/diagnostics`` as another program receives it; and figures: latencies, recent rates."""

from __future__ import annotations

from collections.abc import Iterator
import socket
from types import SimpleNamespace
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from hypothesis import given, settings
from hypothesis import strategies as st
from nodes.ros_kit import Onlooker, overrides, ros
import numpy as np
import pytest
import rclpy
from rclpy.node import Node
from rclpy.serialization import deserialize_message

from zc_perception.observe import diagnostics
from zc_perception.observe.diagnostics import (
    DiagnosticsPublisher,
    Figures,
    Level,
    Part,
    Row,
    Status,
)
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


def number(level: int | bytes) -> int:
    return level if isinstance(level, int) else level[0]


NUMBERS = {
    Level.OK: number(DiagnosticStatus.OK), Level.WARN: number(DiagnosticStatus.WARN),
    Level.ERROR: number(DiagnosticStatus.ERROR),
}  # fmt: skip


class Desk:
    """A node whose statuses a test sets, and its diagnostics."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 50.0
        self.sent: list[DiagnosticArray] = []
        self.statuses: list[Status] = [Status('camera', Level.OK, 'streaming')]
        self.regular = 0
        monkeypatch.setattr(diagnostics, 'time', SimpleNamespace(monotonic=lambda: self.now))
        self.publisher = DiagnosticsPublisher(
            node, lambda: self.statuses, before_publishing=self._count
        )
        self.readers = 1
        self.publisher._publisher = SimpleNamespace(
            publish=lambda data: self.sent.append(deserialize_message(data, DiagnosticArray)),
            handle=SimpleNamespace(get_subscription_count=lambda: self.readers),
        )

    def _count(self) -> None:
        self.regular += 1

    def pass_time(self, seconds: float) -> int:
        """Advance the time; return how many messages came."""
        before = len(self.sent)
        for _ in range(round(seconds / diagnostics.LOOK_S)):
            self.now += diagnostics.LOOK_S
            self.publisher.look()
        return len(self.sent) - before

    def become(self, level: Level, message: str = 'something') -> None:
        advice = '' if level is Level.OK else 'do something'
        self.statuses = [Status('camera', level, message, advice=advice)]


@pytest.fixture
def node(free_domain: int) -> Iterator[Node]:
    with ros(free_domain) as context:
        made = rclpy.create_node('capture', context=context, namespace='front/left')
        yield made
        made.destroy_node()


@pytest.fixture
def desk(node: Node, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(node, monkeypatch)


def test_a_second_has_one_message_while_nothing_changes(desk: Desk) -> None:
    assert desk.pass_time(10.0) in (10, 11)
    assert desk.regular == 1, 'only what says something new is worth more'
    desk.become(Level.OK, 'streaming again')
    assert desk.pass_time(5.0) in (5, 6) and desk.regular == 2


def test_it_rests_while_nobody_reads_and_nothing_is_done(desk: Desk) -> None:
    signs, done = ['quiet'], [0]
    desk.publisher._signs, desk.publisher._progress = lambda: signs[0], lambda: done[0]
    # A text that counts is no reason to work.
    desk.publisher._collect = lambda: [Status('camera', Level.OK, f'for {desk.now:.0f} s')]
    desk.readers = 0
    desk.pass_time(2 * diagnostics._RESTLESS_S)
    assert desk.pass_time(20.0) == 4
    desk.readers = 1
    assert desk.pass_time(diagnostics.LOOK_S) == 1 and desk.pass_time(5.0) in (5, 6)
    desk.readers = 0
    desk.pass_time(10.0)
    for change in (lambda: done.__setitem__(0, 1), lambda: signs.__setitem__(0, 'loud')):
        change()
        assert desk.pass_time(diagnostics.LOOK_S) == 1, 'what has changed is told at once'
        desk.pass_time(10.0)


def test_a_figure_that_changes_ends_a_rest(desk: Desk) -> None:
    done = 0

    def collect() -> list[Status]:
        return [Status('camera', Level.OK, 'streaming', {'frames': done})]

    desk.publisher._signs, desk.readers = lambda: 'quiet', 0
    desk.publisher._collect = collect
    watch = desk.publisher._watch._watch
    desk.pass_time(2 * diagnostics._RESTLESS_S)
    assert watch.period_s == diagnostics.PERIOD_S
    done = 1
    while desk.publisher._regular[0][3]['frames'] == '0':
        desk.pass_time(diagnostics.LOOK_S)
    assert watch.period_s == diagnostics.LOOK_S
    desk.pass_time(2 * diagnostics.PERIOD_S)
    assert watch.period_s == diagnostics.PERIOD_S


def test_levels_are_looked_at_when_a_sign_has_changed_and_for_a_while_after_it(desk: Desk) -> None:
    looks: list[float] = []

    def collect() -> list[Status]:
        looks.append(desk.now)
        return desk.statuses

    def pass_time(seconds: float) -> int:
        before = len(looks)
        desk.pass_time(seconds)
        return len(looks) - before

    sign: list[object] = ['quiet']
    desk.publisher._collect, desk.publisher._signs = collect, lambda: sign[0]
    desk.pass_time(2 * diagnostics._RESTLESS_S)
    assert pass_time(10.0) in (10, 11), 'as often as messages go out'
    for told in ('trouble', 'quiet'):
        sign[0] = told
        desk.become(Level.WARN if told == 'trouble' else Level.OK)
        sent = len(desk.sent)
        assert pass_time(diagnostics.LOOK_S) == 1 and len(desk.sent) == sent + 1
        assert pass_time(2.0) == 10, 'what it announces may take a while'
    assert pass_time(20.0) < 50

    def fail() -> None:
        raise ZeroDivisionError

    desk.publisher._signs = fail  # type: ignore[assignment]
    assert pass_time(5.0) == 25, 'without signs there is nothing but levels'


@pytest.mark.parametrize('level', [Level.WARN, Level.ERROR])
def test_a_change_of_level_is_in_the_next_look_both_ways(desk: Desk, level: Level) -> None:
    desk.pass_time(1.2)
    for change in (level, Level.OK):
        desk.become(change)
        assert desk.pass_time(diagnostics.LOOK_S) == 1
        assert number(desk.sent[-1].status[0].level) == NUMBERS[change]
    assert desk.regular < len(desk.sent), 'what is done once a second is not done for changes'


def test_the_form_is_what_aggregators_sort_by(desk: Desk, node: Node) -> None:
    values = {'bad': 3, 'rate': '29.97'}
    desk.statuses = [
        Status('camera', Level.WARN, '3 bad', values, 'look at its cable', 'serial 7'),
        Status('copies', Level.OK, 'none'),
    ]
    desk.pass_time(1.0)
    assert [(one.name, one.message, one.hardware_id) for one in desk.sent[-1].status] == [
        ('front/left/capture: camera', '3 bad; look at its cable', 'serial 7'),
        ('front/left/capture: copies', 'none', socket.gethostname()),
    ]
    found = [(value.key, value.value) for value in desk.sent[-1].status[0].values]
    assert found == [('bad', '3'), ('rate', '29.97')]
    stamp = desk.sent[-1].header.stamp
    assert abs(stamp.sec - node.get_clock().now().nanoseconds / 1e9) < 60


def test_figures_are_made_when_they_are_published_and_not_at_each_look(desk: Desk) -> None:
    made: list[int] = []

    def make() -> dict[str, int]:
        made.append(1)
        return {'frames': len(made)}

    desk.publisher._collect = lambda: [Status('camera', Level.OK, 'streaming', Figures(make))]
    messages = desk.pass_time(5.0)
    assert len(made) == messages <= 6
    figures = Figures(make)
    assert len(figures) == 1 and list(figures) == ['frames']
    assert figures['frames'] == messages + 1, 'made once, however often it is read'


def test_whoever_collects_may_fail_and_the_node_lives(desk: Desk) -> None:
    def fail() -> Any:
        raise ZeroDivisionError('nobody had thought of that')

    well = Status('camera', Level.OK, 'streaming')
    desk.publisher._collect = fail
    assert desk.pass_time(2.0) >= 2
    (status,) = desk.sent[-1].status
    assert number(status.level) == NUMBERS[Level.ERROR]
    assert status.name == 'front/left/capture: diagnostics' and 'report it' in status.message
    assert 'ZeroDivisionError: nobody had thought of that' in status.message

    desk.publisher._collect = lambda: [Status('pool', Level.OK, 'well', Figures(fail)), well]
    desk.pass_time(1.0)
    assert [(each.name, number(each.level)) for each in desk.sent[-1].status] == [
        ('front/left/capture: pool', NUMBERS[Level.ERROR]),
        ('front/left/capture: camera', NUMBERS[Level.OK]),
    ]

    values: Any = {1: b'a kind of another package may name a value by anything'}
    desk.publisher._collect = lambda: [Status('camera', Level.OK, 'streaming', values)]
    desk.pass_time(1.0)
    (pair,) = desk.sent[-1].status[0].values
    assert (pair.key, pair.value) == ('1', str(values[1]))

    desk.publisher._collect = lambda: [well]
    desk.publisher._before_publishing = fail
    assert desk.pass_time(2.0) >= 2
    assert number(desk.sent[-1].status[0].level) == NUMBERS[Level.OK]


def test_it_goes_on_while_a_simulation_s_time_stands_still(free_domain: int) -> None:
    with Onlooker(free_domain) as reader:
        node = rclpy.create_node(
            'capture',
            context=reader.own_context,
            parameter_overrides=overrides({'use_sim_time': True}),
        )
        reader.executor.add_node(node)
        came: list[DiagnosticArray] = []
        reader.node.create_subscription(DiagnosticArray, '/diagnostics', came.append, 10)
        publisher = DiagnosticsPublisher(node, lambda: [Status('camera', Level.OK, 'streaming')])
        reader.until(lambda: len(came) >= 2)
        publisher.stop()
        publisher.stop()
        reader.executor.remove_node(node)
        node.destroy_node()


def test_the_first_row_that_holds_counts_and_those_that_join_are_said_together() -> None:
    part = Part(
        'camera',
        Row(lambda s: s.lost, Level.ERROR, 'lost: {reason}', 'plug it in'),
        Row(lambda s: s.bad, Level.WARN, '{bad} bad', 'look at the cable', joins=True),
        Row(lambda s: s.late, Level.WARN, '{late:.1f} s late', 'not joined'),
        Row(lambda s: s.slow, Level.WARN, 'slow', 'look at the cable', joins=True),
        well='{rate} Hz',
    )

    def said(**seen: object) -> tuple[Level, str]:
        nothing = {'lost': False, 'bad': 0, 'late': 0.0, 'slow': False, 'rate': 30, 'reason': ''}
        status = part.status({'n': 1}, 'serial 7', **{**nothing, **seen})
        assert (status.part, status.values, status.hardware_id) == ('camera', {'n': 1}, 'serial 7')
        return status.level, status.text()

    assert said() == (Level.OK, '30 Hz')
    assert said(lost=True, reason='{gone}', bad=1) == (Level.ERROR, 'lost: {gone}; plug it in')
    assert said(bad=2, late=1.0) == (Level.WARN, '2 bad; look at the cable')
    assert said(bad=2, slow=True) == (Level.WARN, '2 bad; slow; look at the cable')
    assert said(late=1.26, slow=True) == (Level.WARN, '1.3 s late; not joined')


# Latency windows.
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
