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

"""Real-time settings: their effect, and the one-sentence advice if the system refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import gc
import os
import threading
from typing import Any

import pytest

from zc_perception.errors import ConfigError
from zc_perception.nodes import realtime
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.realtime import parse_cpus, Realtime
from zc_perception.observe.diagnostics import Level

CPUS = sorted(os.sched_getaffinity(0))


class Node:
    """A node with only a logger."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def get_logger(self) -> Node:
        return self

    def warning(self, text: str) -> None:
        self.said.append(text)


class Calls:
    """System calls that are recorded; those in ``refused`` fail."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []
        self.refused: set[str] = set()

    def __call__(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            self.made.append((name, *arguments))
            if name in self.refused:
                raise PermissionError(1, 'Operation not permitted')

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()
    for name in ('sched_setaffinity', 'sched_setscheduler'):
        monkeypatch.setattr(realtime.os, name, found(name))
    monkeypatch.setattr(realtime, '_PROCESS', realtime._Process())
    monkeypatch.setattr(realtime, '_libc_call', lambda name, *arguments: found(name)(*arguments))
    return found


@pytest.fixture
def thread() -> Iterator[threading.Thread]:
    stop = threading.Event()
    running = threading.Thread(target=stop.wait, args=(60,), daemon=True)
    running.start()
    yield running
    stop.set()
    running.join(60.0)


def knobs(*threads: threading.Thread, **values: Any) -> tuple[Realtime, Node, dict[str, Any]]:
    node, parameters = (
        Node(),
        {**{spec.name: spec.default for spec in NODES['inference']}, **values},
    )
    return Realtime(node, parameters, lambda: threads), node, parameters  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ('entries', 'expected'),
    [
        ([], set()),
        ([f' {CPUS[0]} '], {CPUS[0]}),
        ([f'{CPUS[0]}-{CPUS[0]}'], {CPUS[0]}),
        ([str(cpu) for cpu in CPUS], set(CPUS)),
    ],
)
def test_cpus_are_numbers_and_ranges(entries: Any, expected: set[int]) -> None:
    assert parse_cpus(list(entries)) == expected


@pytest.mark.parametrize('entry', ['4096', '', '1-', '3-1', '0-²', '9' * 5000, '0-9' + '9' * 18])
def test_what_is_no_cpu_of_this_process_is_refused(entry: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"parameter 'cpu_affinity' has .*; it must be CPUs that this process may use: ",
    ):
        parse_cpus([entry])


@pytest.mark.parametrize(
    ('refused', 'values', 'grant'),
    [
        (
            'sched_setscheduler',
            {'realtime_priority': 42},
            'LimitRTPRIO=42 (systemd) or rtprio 42 (limits.conf)',
        ),
        (
            'mlockall',
            {'lock_memory': True},
            'LimitMEMLOCK=infinity (systemd) or memlock unlimited (limits.conf)',
        ),
        ('sched_setaffinity', {'cpu_affinity': [str(CPUS[0])]}, 'cpuset'),
    ],
)
def test_a_refusal_is_one_warning_with_what_to_grant(
    refused: str, values: dict[str, Any], grant: str, calls: Calls, thread: threading.Thread
) -> None:
    calls.refused.add(refused)
    made, node, _ = knobs(thread, **values)
    made.configure()
    made.activate()
    made.apply()
    assert (
        len(node.said) == 1
        and grant in node.said[0]
        and 'Operation not permitted' in node.said[0]
        and '\n' not in node.said[0]
    )
    (status,) = made.statuses()
    assert status.level is Level.WARN and next(iter(values)) in status.message
    calls.refused.clear()
    made.cleanup()
    made.configure()
    made.activate()
    assert made.statuses() == [], 'it was granted meanwhile'


def test_what_is_the_process_s_ends_with_the_last_node_that_wants_it(calls: Calls) -> None:
    first, second = (
        knobs(lock_memory=True, gc_freeze=True)[0],
        knobs(lock_memory=True, gc_freeze=True)[0],
    )
    first.configure()
    second.configure()
    assert (
        [name for name, *_ in calls.made] == ['mlockall']
        and calls.made[0][1:] == (3,)
        and gc.get_freeze_count() > 0
    )
    first.cleanup()
    first.cleanup()
    assert [name for name, *_ in calls.made] == ['mlockall'] and gc.get_freeze_count() > 0
    second.cleanup()
    assert [name for name, *_ in calls.made] == [
        'mlockall',
        'munlockall',
    ] and gc.get_freeze_count() == 0


def test_the_real_system_binds_the_calling_thread() -> None:
    found: list[set[int]] = []

    def bound() -> None:
        made, _, _ = knobs(threading.current_thread(), cpu_affinity=[str(CPUS[-1])])
        made.activate()
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=bound)
    thread.start()
    thread.join(60.0)
    assert found == [{CPUS[-1]}] and os.sched_getaffinity(0) == set(CPUS)
