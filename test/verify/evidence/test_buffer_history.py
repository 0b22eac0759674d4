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

"""Attachment counts from looks and events, against a simulation that knows the truth."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from verify.verify_kit import event, look, MS

from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence.buffers import event_history, polled_history, Snapshot

DEVICES = ('0000:01:00.0', 'vivid.0')
STEP = 10 * MS


def simulate(
    before: list[str], changes: list[tuple[str, bool]]
) -> tuple[list[KernelEvent], list[Counter[str]]]:
    """
    Return events of one buffer every 10 ms, and the truth after each of them.

    Impossible detaches are left out.
    """
    state = Counter(before)
    events, truth = [], [Counter(state)]
    for device, attach in changes:
        if not attach and not state[device]:
            continue
        state[device] += 1 if attach else -1
        state = +state
        name = 'dma_buf_dynamic_attach' if attach else 'dma_buf_detach'
        events.append(event((len(events) + 1) * STEP, name, ino=5, dev_name=device))
        truth.append(Counter(state))
    return events, truth


def looks_at(truth: list[Counter[str]], indices: list[int]) -> list[Snapshot]:
    """At moments between two events."""
    return [
        look(index * STEP + STEP // 2, {5: sorted(truth[index].elements())})
        for index in sorted({i % len(truth) for i in indices})
    ]


CHANGES = st.lists(st.tuples(st.sampled_from(DEVICES), st.booleans()), max_size=12)
BEFORE = st.lists(st.sampled_from(DEVICES), max_size=3)


@given(BEFORE, CHANGES, st.lists(st.integers(0, 50), min_size=1, max_size=4))
def test_one_look_and_all_events_give_every_moment(
    before: list[str], changes: list[tuple[str, bool]], indices: list[int]
) -> None:
    events, truth = simulate(before, changes)
    history = event_history(
        5,
        looks_at(truth, indices),
        [*events, event(3 * STEP, 'dma_buf_detach', ino=6, dev_name=DEVICES[0])],
    )
    assert history.exact
    assert [+history.at(index * STEP + STEP // 3) for index in range(len(truth))] == truth
    assert [+state for state in history.during(0, len(truth) * STEP)] == truth
    assert [+state for state in history.during(STEP // 3, STEP // 2)] == truth[:1]


@given(BEFORE, CHANGES.filter(bool), st.integers(0, 50), st.data())
def test_a_lost_event_between_two_looks_is_noticed(
    before: list[str], changes: list[tuple[str, bool]], where: int, data: st.DataObject
) -> None:
    events, truth = simulate(before, changes)
    if not events:
        return
    lost = data.draw(st.integers(0, len(events) - 1))
    looks = looks_at(truth, [0, len(truth) - 1])
    history = event_history(5, looks, events[:lost] + events[slice(lost + 1, None)])
    assert history.exact is False


def test_a_look_during_a_change_is_no_base() -> None:
    events = [event(10 * MS, 'dma_buf_dynamic_attach', ino=5, dev_name=DEVICES[0])]
    hasty = look(10 * MS - 50_000, {5: []})
    assert event_history(5, [hasty], events).exact is False
    assert event_history(5, [hasty, look(30 * MS, {5: [DEVICES[0]]})], events).exact is True
    assert event_history(5, [hasty, look(30 * MS, {5: []})], events).exact is False


def test_an_attachment_is_in_the_list_a_little_before_its_event_and_after_that_of_its_end() -> (
    None
):
    attach = event(10 * MS, 'dma_buf_dynamic_attach', ino=5, dev_name=DEVICES[0])
    early, late = look(9 * MS, {5: [DEVICES[0]]}), look(30 * MS, {5: [DEVICES[0]]})
    history = event_history(5, [early, late], [attach])
    assert history.exact and not +history.at(5 * MS) and history.at(11 * MS) == {DEVICES[0]: 1}
    detach = event(10 * MS, 'dma_buf_detach', ino=5, dev_name=DEVICES[0])
    history = event_history(
        5, [look(10 * MS + 500_000, {5: [DEVICES[0]]}), look(30 * MS, {5: []})], [detach]
    )
    assert history.exact and history.at(5 * MS) == {DEVICES[0]: 1} and not history.at(11 * MS)


def test_a_failed_attach_changes_nothing() -> None:
    failed = event(
        10 * MS, 'dma_buf_dynamic_attach', ino=5, dev_name=DEVICES[0], result='0xfffffffffffffff4'
    )
    history = event_history(5, [look(0, {5: []}), look(50 * MS, {5: []})], [failed])
    assert history.exact and not history.at(20 * MS)


def test_what_is_older_than_all_looks_is_found_by_going_back() -> None:
    events = [
        event(10 * MS, 'dma_buf_dynamic_attach', ino=5, dev_name=DEVICES[0]),
        event(20 * MS, 'dma_buf_detach', ino=5, dev_name=DEVICES[0]),
    ]
    history = event_history(5, [look(50 * MS, {5: []})], events)
    assert [dict(history.at(moment * MS)) for moment in (5, 10, 15, 20, 25)] == [
        {},
        {DEVICES[0]: 1},
        {DEVICES[0]: 1},
        {},
        {},
    ]


def test_looks_alone_are_what_was_seen_at_least() -> None:
    history = polled_history(
        5,
        [
            look(10 * MS, {5: [DEVICES[0]]}),
            look(20 * MS, {}),
            look(30 * MS, {5: [DEVICES[0]] * 2}),
        ],
    )
    assert not history.exact
    assert [sum(history.at(moment * MS).values()) for moment in (0, 10, 15, 20, 25, 30, 40)] == [
        1,
        1,
        1,
        0,
        0,
        2,
        2,
    ]
    assert polled_history(5, []).at(7) == Counter()
