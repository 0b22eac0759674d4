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

"""
The programs' executor: entities destroyed by other threads don't end it, exceptions do.

Idle nodes must not wake it, because a wake-up costs time for all of its nodes. The threads'
real-time settings are tested here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
import gc
import os
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import call, Mock

import pytest
import rclpy
from rclpy.logging import LoggingSeverity, set_logger_level
from std_msgs.msg import String

from zc_perception.errors import ConfigError
from zc_perception.link.endpoints import IN_PROCESS
from zc_perception.nodes import realtime
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.nodes.process import ExecutorThread, NodeGroup, ros_context
from zc_perception.nodes.realtime import parse_cpus, Realtime
from zc_perception.observe.diagnostics import Level

WAIT_S = 60.0


@pytest.fixture
def context(free_domain: int, monkeypatch: pytest.MonkeyPatch) -> rclpy.Context:
    monkeypatch.setenv('ROS_DOMAIN_ID', str(free_domain))
    with ros_context(['--ros-args', '--log-level', 'error']) as made:
        yield made
    set_logger_level('', LoggingSeverity.INFO)  # it is global, and other tests read logs


@pytest.fixture
def spinning(context: rclpy.Context) -> Iterator[Any]:
    """Yield an executor's thread with a node; ``soon`` gives it work."""
    failed, node = threading.Event(), rclpy.create_node('spinning', context=context)
    thread = ExecutorThread(context, failed.set)
    thread.executor.add_node(node)
    thread.start()
    soon = thread.executor.create_task
    yield SimpleNamespace(failed=failed, node=node, thread=thread, soon=soon)
    thread.stop()
    node.destroy_node()


def test_subscriptions_may_be_destroyed_while_it_looks_at_them(spinning: Any) -> None:
    node, busy = spinning.node, threading.Event()

    def again() -> None:  # for each task, the executor looks at all entities again
        if not busy.is_set():
            spinning.soon(again)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    again()
    try:
        for _ in range(150):
            made = [node.create_subscription(String, 'text', lambda _: None, 1) for _ in range(4)]
            for subscription in made:
                node.destroy_subscription(subscription)
            assert not spinning.failed.is_set(), spinning.thread.failure
    finally:
        busy.set()
        sys.setswitchinterval(interval)
    answered = threading.Event()
    spinning.soon(answered.set)
    assert answered.wait(WAIT_S) and spinning.thread.failure is None


def test_what_a_callback_raises_does(spinning: Any) -> None:
    def fail() -> None:
        raise ValueError('it can not go on')

    spinning.soon(fail)
    assert spinning.failed.wait(WAIT_S)
    assert 'it can not go on' in spinning.thread.failure


def test_the_end_waits_for_a_callback_but_not_for_ever(spinning: Any) -> None:
    running, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def late() -> None:
        running.set()
        go_on.wait(WAIT_S)
        ended.set()
        raise ValueError('its node is gone by now')

    spinning.soon(late)
    assert running.wait(WAIT_S)
    spinning.thread.stop()
    spinning.node.destroy_node()
    assert not ended.is_set(), 'the end did not wait for ever'
    go_on.set()
    assert ended.wait(WAIT_S)
    time.sleep(0.1)  # let the exception arrive
    assert spinning.thread.failure is None and not spinning.failed.is_set()


def test_it_is_woken_neither_for_frames_nor_to_look_at_anything(context: rclpy.Context) -> None:
    small = {'width': 64, 'height': 64, 'framerate': 30.0}
    graph = PerceptionGraph(context, {'capture': small, 'inference': {'model': 'hog'}})
    executed: list[object] = []
    with NodeGroup(context, graph.nodes, lambda: None) as group:
        assert [timer for node in group.nodes for timer in node.timers] == []
        group.start()
        done = threading.Event()
        graph.inference.observers.append(
            lambda entry, found: done.set() if graph.inference.processed > 90 else None
        )
        executor = group._spinner.executor
        original = executor._spin_once_impl
        executor._spin_once_impl = lambda *arguments: (
            executed.append(arguments),
            original(*arguments),
        )[1]
        group.soon(lambda: None)
        assert done.wait(WAIT_S) and graph.inference.subscription.statistics().rung == IN_PROCESS
        # One turn is the request above; none is for a frame.
        assert len(executed) <= 3, f'for {graph.inference.processed} frames'


# Real-time settings: their effect, and the one-sentence advice if the system refuses.
CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return the system calls, which are recorded; those in ``refused`` fail."""
    found = Mock(refused=set())

    def refuse(name: str, *_: Any) -> None:
        if name in found.refused:
            raise PermissionError(1, 'Operation not permitted')

    found.side_effect = refuse
    for name in ('sched_setaffinity', 'sched_setscheduler'):
        monkeypatch.setattr(realtime.os, name, partial(found, name))
    monkeypatch.setattr(realtime, '_PROCESS', realtime._Process())
    monkeypatch.setattr(realtime, '_libc_call', found)
    return found


@pytest.fixture
def thread() -> Iterator[threading.Thread]:
    stop = threading.Event()
    running = threading.Thread(target=stop.wait, args=(60,), daemon=True)
    running.start()
    yield running
    stop.set()
    running.join(60.0)


def knobs(*threads: threading.Thread, node: Any = None, **values: Any) -> Realtime:
    parameters = {spec.name: spec.default for spec in NODES['inference']} | values
    return Realtime(node or Mock(), parameters, lambda: threads)


def test_cpus_are_numbers_and_ranges() -> None:
    assert parse_cpus([]) == set()
    assert parse_cpus([f' {CPUS[0]} ']) == parse_cpus([f'{CPUS[0]}-{CPUS[0]}']) == {CPUS[0]}
    assert parse_cpus([str(cpu) for cpu in CPUS]) == set(CPUS)


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
    refused: str, values: dict[str, Any], grant: str, calls: Mock, thread: threading.Thread
) -> None:
    calls.refused.add(refused)
    node = Mock()
    made = knobs(thread, node=node, **values)
    made.configure()
    made.activate()
    made.apply()
    ((said,),) = (one.args for one in node.get_logger().warning.call_args_list)
    assert grant in said and 'Operation not permitted' in said and '\n' not in said
    (status,) = made.statuses()
    assert status.level is Level.WARN and next(iter(values)) in status.message
    calls.refused.clear()
    made.cleanup()
    made.configure()
    made.activate()
    assert made.statuses() == [], 'it was granted meanwhile'


def test_what_is_the_process_s_ends_with_the_last_node_that_wants_it(calls: Mock) -> None:
    first, second = (knobs(lock_memory=True, gc_freeze=True) for _ in range(2))
    first.configure()
    second.configure()
    first.cleanup()
    first.cleanup()
    assert calls.mock_calls == [call('mlockall', 3)] and gc.get_freeze_count() > 0
    second.cleanup()
    assert calls.mock_calls[1:] == [call('munlockall')] and gc.get_freeze_count() == 0
