"""The capture node's clock is the node's ROS clock, whoever drives it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from nodes.managed import status
from nodes.ros_kit import alone
from rclpy.parameter import Parameter
from rclpy.time import Time

from zc_perception.camera.clock import CaptureClock
from zc_perception.nodes.capture import CaptureNode
from zc_perception.observe.diagnostics import Level, Status


@pytest.fixture
def node(free_domain: int) -> Iterator[CaptureNode]:
    with alone(free_domain, CaptureNode, {'shared_memory': False}) as made:
        yield made


def simulate(node: CaptureNode, on: bool) -> None:
    assert node.set_parameters([Parameter('use_sim_time', value=on)])[0].successful


def tell(node: CaptureNode, time_ns: int) -> None:
    clock = node.get_clock()
    clock.set_ros_time_override(Time(nanoseconds=time_ns, clock_type=clock.clock_type))


def test_the_system_s_time_until_a_simulation_drives_the_clock_and_after_it(node: CaptureNode) -> None:
    before = time.time_ns()
    assert before <= node.now_ns() <= time.time_ns()
    simulate(node, True)
    for simulated_ns in (5_000_000_000, 7_000_000_001):
        tell(node, simulated_ns)
        assert node.now_ns() == simulated_ns == node.get_clock().now().nanoseconds
    simulate(node, False)
    assert node.now_ns() >= before


def test_a_simulation_that_tells_no_time_is_a_warning_until_it_does(node: CaptureNode) -> None:
    def stamped() -> Status:
        node.camera.clock.stamp(time.monotonic_ns(), CaptureClock.MONOTONIC)
        return status(node, 'clock')

    simulate(node, True)
    found = stamped()
    assert found.level is Level.WARN and found.message.startswith('use_sim_time is true and no /clock has come')
    assert 'ros2 bag play --clock' in found.advice
    tell(node, 5)
    for _ in range(2):  # it may pause
        assert (stamped().level, stamped().message) == (Level.OK, 'simulated')
    simulate(node, False)
    assert 'use_sim_time' not in stamped().message


@pytest.mark.parametrize('ahead_ns', [-400_000, 0, 400_000])
def test_a_simulation_at_the_time_of_day_is_known_for_one(node: CaptureNode, ahead_ns: int) -> None:
    stamps, now = node.camera.clock, time.time_ns()
    simulate(node, True)
    for simulated_ns in (now + ahead_ns, now + ahead_ns + 5):
        tell(node, simulated_ns)
        assert stamps.stamp(time.monotonic_ns(), CaptureClock.MONOTONIC) == simulated_ns
    assert stamps.statistics().simulated and stamps.statistics().steps == 0
    simulate(node, False)
    stamps.stamp(time.monotonic_ns(), CaptureClock.MONOTONIC)
    assert not stamps.statistics().simulated and stamps.statistics().steps == 1
