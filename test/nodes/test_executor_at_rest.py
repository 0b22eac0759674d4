"""Nodes that nobody asks anything leave their executor alone: what it does for one of its nodes, it does at the cost of all of them."""

from __future__ import annotations

import threading

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.logging import LoggingSeverity, set_logger_level
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image

from zc_perception.link.endpoints import IN_PROCESS
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.nodes.process import NodeGroup, ros_context

WAIT_S = 60.0
SMALL = {'capture': {'width': 64, 'height': 64, 'framerate': 30.0}, 'inference': {'accelerator': 'cpu', 'model': 'hog'}}


@pytest.fixture
def context(free_domain: int, monkeypatch: pytest.MonkeyPatch) -> rclpy.Context:
    monkeypatch.setenv('ROS_DOMAIN_ID', str(free_domain))
    with ros_context(['--ros-args', '--log-level', 'error']) as made:
        yield made
    set_logger_level('', LoggingSeverity.INFO)  # it is the process's, and other tests read logs


def test_it_is_woken_neither_for_frames_nor_to_look_at_anything(context: rclpy.Context) -> None:
    graph = PerceptionGraph(context, SMALL)
    executed: list[object] = []
    with NodeGroup(context, graph.nodes, lambda: None) as group:
        assert [timer for node in group.nodes for timer in node.timers] == []
        group.start()
        done = threading.Event()
        graph.inference.observers.append(lambda entry, found: done.set() if graph.inference.processed > 90 else None)
        # From here on, what the executor does is counted, and put there so that it is done all the same.
        executor = group._spinner.executor
        original = executor._spin_once_impl
        executor._spin_once_impl = lambda *arguments: (executed.append(arguments), original(*arguments))[1]
        group.soon(lambda: None)
        assert done.wait(WAIT_S) and graph.inference.subscription.statistics().rung == IN_PROCESS
        assert graph.inference.processed > 90
        # One is the request above; none is a frame's.
        assert len(executed) <= 3, f'the executor was woken {len(executed)} times for {graph.inference.processed} frames'


def test_they_tell_their_state_and_notice_who_comes_all_the_same(context: rclpy.Context) -> None:
    heard: set[str] = set()
    everybody, picture = threading.Event(), threading.Event()

    def on_diagnostics(message: DiagnosticArray) -> None:
        heard.update(status.name.split(':')[0] for status in message.status)
        if heard >= {'capture', 'inference', 'overlay'}:
            everybody.set()

    graph = PerceptionGraph(context, SMALL)
    with NodeGroup(context, graph.nodes, lambda: None) as group:
        group.start()
        reader = rclpy.create_node('reader', context=context, parameter_overrides=[Parameter('use_sim_time', value=False)])
        reader.create_subscription(DiagnosticArray, '/diagnostics', on_diagnostics, 10)
        reader.create_subscription(Image, 'detections/image', lambda message: picture.set(), 1)
        group.add_node(reader)
        try:
            assert everybody.wait(WAIT_S), heard
            assert picture.wait(WAIT_S), 'the overlay begins to draw when somebody looks'
        finally:
            group.soon(reader.destroy_node)
