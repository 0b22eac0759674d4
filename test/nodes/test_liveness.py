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

"""What the watchdog of a service learns of nodes and executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import threading
from types import SimpleNamespace
from typing import Any

from nodes.ros_kit import overrides, spun
import pytest
import rclpy
from waiting import until

from zc_perception.camera.camera import CameraStatistics
from zc_perception.camera.supervisor import CameraCondition, CameraState
from zc_perception.errors import CameraLostError
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.nodes.perception_node import PATIENCE_S
from zc_perception.nodes.process import Liveness


@dataclass
class Node:
    """One that does what the test says."""

    name: str = '/capture'
    done: int | None = 0
    reason: str = ''
    patience_s: float = 3.0

    def get_fully_qualified_name(self) -> str:
        return self.name

    def progress(self) -> int | None:
        return self.done

    def given_up(self) -> str:
        return self.reason


class Scene:
    """Nodes, an executor that runs what it was given when it is told to, and a clock."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = list(nodes)
        self.waiting: list[Callable[[], object]] = []
        self.now = 100.0
        self.liveness = Liveness(
            lambda: self.nodes, {'the executor': self.waiting.append}, lambda: self.now
        )

    def after(self, seconds: float, *, run: bool = True) -> str:
        """Return what it says after that time; the executor runs meanwhile unless it hangs."""
        self.now += seconds
        if run:
            while self.waiting:
                self.waiting.pop()()
        return self.liveness.worry()


def test_who_gets_on_is_no_worry() -> None:
    node = Node()
    scene = Scene(node)
    for number in range(50):
        node.done = number
        assert scene.after(2.0) == ''


def test_who_stands_still_is_one_after_its_own_patience_and_none_when_it_moves_again() -> None:
    node, other = Node(), Node('/inference', 0, patience_s=60.0)
    scene = Scene(node, other)
    assert [scene.after(1.0) for _ in range(4)] == [''] * 4
    assert scene.after(1.0) == '/capture has made no progress for 4 s'
    node.done = 1
    assert scene.after(1.0) == ''


def test_who_knows_why_may_stand_still_and_starts_anew_afterwards() -> None:
    node = Node()
    scene = Scene(node)
    assert scene.after(3.0) == ''
    node.done = None
    assert [scene.after(100.0) for _ in range(3)] == ['', '', '']
    node.done = 0
    assert [scene.after(seconds) for seconds in (1.0, 3.0)] == ['', '']
    assert scene.after(1.0) != ''


def test_who_has_given_up_is_a_worry_at_once() -> None:
    node = Node(done=None, reason='no memory')
    assert Scene(node).after(0.1) == '/capture has given up: no memory'


def test_an_executor_that_runs_nothing_is_a_worry_and_is_asked_once() -> None:
    scene = Scene()
    assert scene.after(1.0) == ''
    for _ in range(3):
        scene.after(1.0, run=False)
    assert len(scene.waiting) == 1
    assert (
        scene.after(PATIENCE_S, run=False)
        == f'the executor has run nothing for {PATIENCE_S + 3:.0f} s'
    )
    assert scene.after(1.0) == ''
    assert len(scene.waiting) == 1, 'asked again'


@pytest.mark.parametrize(
    ('state', 'framerate', 'progress'),
    [
        (CameraState.STREAMING, 30.0, 7),
        (CameraState.STREAMING, 0.0, 7),
        (CameraState.STREAMING, 0.1, None),
        (CameraState.LOST, 30.0, None),
        (CameraState.ENDED, 30.0, None),
        (CameraState.FAILED, 30.0, None),
        (CameraState.CLOSED, 30.0, None),
    ],
)
def test_a_camera_s_progress_counts_while_its_silence_would_say_something(
    state: CameraState, framerate: float, progress: int | None
) -> None:
    supervisor: Any = SimpleNamespace(
        camera=SimpleNamespace(framerate=framerate), condition=CameraCondition(state, 'a reason')
    )
    counters = SimpleNamespace(total=lambda: CameraStatistics(5, 2, 0))
    node: Any = SimpleNamespace(
        _flowing=True, _kind=SimpleNamespace(PACED=True), supervisor=supervisor, _counters=counters
    )
    assert CaptureNode.progress(node) == progress
    assert CaptureNode.given_up(node) == ('a reason' if state is CameraState.FAILED else '')
    supervisor.camera = None
    assert CaptureNode.progress(node) is None


def test_real_nodes_say_how_far_they_are(context: rclpy.Context) -> None:
    graph = PerceptionGraph(
        context,
        {'capture': {'width': 128, 'height': 96}, 'inference': {'timeout': 4.0, 'threads': 1}},
    )
    assert graph.capture.progress() is None, 'nothing flows yet'
    with spun(context, *graph.nodes) as group:
        until(lambda: (graph.capture.progress() or 0) > 5)
        until(lambda: graph.inference.processed > 5)
        until(lambda: graph.inference.progress() is not None)
        assert graph.inference.patience_s == PATIENCE_S + 8.0
        assert graph.overlay.progress() is None and not any(
            node.given_up() for node in graph.nodes
        )

        now = [0.0]
        hold, held = threading.Event(), threading.Event()
        liveness = Liveness(lambda: graph.nodes, {'the executor': group.soon}, lambda: now[0])
        assert liveness.worry() == ''
        group.soon(lambda: (held.set(), hold.wait(60.0)))
        assert held.wait(60.0)
        now[0] += 1.0
        liveness.worry()
        now[0] += 1.0
        liveness.worry()
        now[0] += PATIENCE_S + 1.0
        assert 'the executor has run nothing for ' in liveness.worry()
        hold.set()


def test_a_camera_that_hangs_is_a_worry_and_one_that_is_lost_is_not(
    context: rclpy.Context,
) -> None:
    node = CaptureNode(
        context=context, parameter_overrides=overrides({'width': 128, 'height': 96})
    )
    with spun(context, node):
        hangs, go_on = threading.Event(), threading.Event()
        read = node.camera.capture

        def hang() -> object:
            hangs.set()
            go_on.wait(60.0)
            return read()

        node.camera.capture = hang  # type: ignore[method-assign, assignment]
        assert hangs.wait(60.0)
        now = [0.0]
        liveness = Liveness(lambda: [node], {}, lambda: now[0])
        assert liveness.worry() == ''
        now[0] += PATIENCE_S + 1.0
        assert liveness.worry() == f'/capture has made no progress for {PATIENCE_S + 1:.0f} s'

        def unplugged(*_: object) -> Any:
            raise CameraLostError('it was unplugged')

        node.camera.capture = unplugged  # type: ignore[method-assign]
        node.supervisor._open_camera = unplugged
        go_on.set()
        until(lambda: node.progress() is None)
        assert liveness.worry() == ''
