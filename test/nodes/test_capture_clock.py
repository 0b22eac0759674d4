"""The capture node's clock is the node's ROS clock, whoever drives it."""

from __future__ import annotations

import time

import pytest
from nodes.managed import status
from rclpy.parameter import Parameter
from rclpy.time import Time

from zc_perception.camera.clock import CaptureClock
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.process import ros_context
from zc_perception.observe.diagnostics import Level, Status


def test_the_system_s_time_until_a_simulation_drives_the_clock_and_after_it(free_domain: int) -> None:
    with ros_context([]) as context:
        node = CaptureNode(context=context, parameter_overrides=[Parameter('shared_memory', value=False)])
        try:
            before = time.time_ns()
            assert before <= node.now_ns() <= time.time_ns()
            node.set_parameters([Parameter('use_sim_time', value=True)])
            clock = node.get_clock()
            for simulated_ns in (5_000_000_000, 7_000_000_001):
                clock.set_ros_time_override(Time(nanoseconds=simulated_ns, clock_type=clock.clock_type))
                assert node.now_ns() == simulated_ns == clock.now().nanoseconds
            node.set_parameters([Parameter('use_sim_time', value=False)])
            assert node.now_ns() >= before
        finally:
            node.stop()
            node.destroy_node()


def test_a_simulation_that_tells_no_time_is_a_warning_until_it_does(free_domain: int) -> None:
    with ros_context([]) as context:
        overrides = [Parameter('shared_memory', value=False), Parameter('use_sim_time', value=True)]
        node = CaptureNode(context=context, parameter_overrides=overrides)

        def stamped() -> Status:
            node.camera.clock.stamp(time.monotonic_ns(), CaptureClock.MONOTONIC)
            return status(node, 'clock')

        try:
            found = stamped()
            assert found.level is Level.WARN and found.message.startswith('use_sim_time is true and no /clock has come')
            assert 'ros2 bag play --clock' in found.advice
            clock = node.get_clock()
            clock.set_ros_time_override(Time(nanoseconds=5, clock_type=clock.clock_type))
            for _ in range(2):  # it may pause
                assert (stamped().level, stamped().message) == (Level.OK, 'simulated')
            node.set_parameters([Parameter('use_sim_time', value=False)])
            assert 'use_sim_time' not in stamped().message
        finally:
            node.stop()
            node.destroy_node()


@pytest.mark.parametrize('ahead_ns', [-400_000, 0, 400_000])
def test_a_simulation_at_the_time_of_day_is_known_for_one(free_domain: int, ahead_ns: int) -> None:
    with ros_context([]) as context:
        overrides = [Parameter('shared_memory', value=False), Parameter('use_sim_time', value=True)]
        node = CaptureNode(context=context, parameter_overrides=overrides)
        try:
            clock, stamps = node.get_clock(), node.camera.clock
            now = time.time_ns()
            for simulated_ns in (now + ahead_ns, now + ahead_ns + 5):
                clock.set_ros_time_override(Time(nanoseconds=simulated_ns, clock_type=clock.clock_type))
                assert stamps.stamp(time.monotonic_ns(), CaptureClock.MONOTONIC) == simulated_ns
            assert stamps.statistics().simulated and stamps.statistics().steps == 0
            node.set_parameters([Parameter('use_sim_time', value=False)])
            stamps.stamp(time.monotonic_ns(), CaptureClock.MONOTONIC)
            assert not stamps.statistics().simulated and stamps.statistics().steps == 1
        finally:
            node.stop()
            node.destroy_node()
