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

Idle nodes must not wake it, because a wake-up costs time for all of its nodes.
"""

from __future__ import annotations

import sys
import threading
import time

import pytest
import rclpy
from rclpy.logging import LoggingSeverity, set_logger_level
from rclpy.qos import QoSProfile
from std_msgs.msg import String

from zc_perception.link.endpoints import IN_PROCESS
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.nodes.process import ExecutorThread, NodeGroup, ros_context

WAIT_S = 60.0
ROUNDS = 150


@pytest.fixture
def context(free_domain: int, monkeypatch: pytest.MonkeyPatch) -> rclpy.Context:
    monkeypatch.setenv('ROS_DOMAIN_ID', str(free_domain))
    with ros_context(['--ros-args', '--log-level', 'error']) as made:
        yield made
    set_logger_level('', LoggingSeverity.INFO)  # it is global, and other tests read logs


class Spinning:
    def __init__(self, context: rclpy.Context) -> None:
        self.failed = threading.Event()
        self.node = rclpy.create_node('spinning', context=context)
        self.thread = ExecutorThread(context, self.failed.set)
        self.thread.executor.add_node(self.node)
        self.thread.start()

    def soon(self, function: object) -> None:
        self.thread.executor.create_task(function)

    def answers(self) -> bool:
        answered = threading.Event()
        self.soon(answered.set)
        return answered.wait(WAIT_S)

    def end(self) -> None:
        self.thread.stop()
        self.node.destroy_node()


@pytest.fixture
def spinning(context: rclpy.Context) -> Spinning:
    made = Spinning(context)
    yield made
    made.end()


def test_subscriptions_may_be_destroyed_while_it_looks_at_them(spinning: Spinning) -> None:
    node, busy = spinning.node, threading.Event()

    def again() -> None:  # for each task, the executor looks at all entities again
        if not busy.is_set():
            spinning.soon(again)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    again()
    try:
        for _ in range(ROUNDS):
            made = [
                node.create_subscription(String, 'text', lambda _: None, QoSProfile(depth=1))
                for _ in range(4)
            ]
            for subscription in made:
                node.destroy_subscription(subscription)
            assert not spinning.failed.is_set(), spinning.thread.failure
    finally:
        busy.set()
        sys.setswitchinterval(interval)
    assert spinning.answers()
    assert spinning.thread.failure is None


def test_what_a_callback_raises_does(spinning: Spinning) -> None:
    def fail() -> None:
        raise ValueError('it can not go on')

    spinning.soon(fail)
    assert spinning.failed.wait(WAIT_S)
    assert 'it can not go on' in spinning.thread.failure


def test_the_end_waits_for_a_callback_but_not_for_ever(context: rclpy.Context) -> None:
    spinning = Spinning(context)
    running, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def late() -> None:
        running.set()
        go_on.wait(WAIT_S)
        ended.set()
        raise ValueError('its node is gone by now')

    spinning.soon(late)
    assert running.wait(WAIT_S)
    spinning.end()
    assert not ended.is_set(), 'the end did not wait for ever'
    go_on.set()
    assert ended.wait(WAIT_S)
    time.sleep(0.1)  # let the exception arrive
    assert spinning.thread.failure is None and not spinning.failed.is_set()


SMALL = {
    'capture': {'width': 64, 'height': 64, 'framerate': 30.0},
    'inference': {'accelerator': 'onnx', 'model': 'hog'},
}


def test_it_is_woken_neither_for_frames_nor_to_look_at_anything(context: rclpy.Context) -> None:
    graph = PerceptionGraph(context, SMALL)
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
        assert graph.inference.processed > 90
        # One turn is the request above; none is for a frame.
        assert len(executed) <= 3, (
            f'the executor was woken {len(executed)} times for {graph.inference.processed} frames'
        )
