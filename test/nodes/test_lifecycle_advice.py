"""What a node that isn't active tells people to do: something that works from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from nodes.managed import Managed, status
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

from zc_perception.nodes.capture import CaptureNode
from zc_perception.observe.diagnostics import Level

pytestmark = pytest.mark.usefixtures('ros_home')
SMALL = {'width': 128, 'height': 128, 'framerate': 60.0, 'heap': 'memfd'}


def refusal(node: Any) -> str:
    """Of a parameter that isn't dynamic."""
    done = node.set_parameters([Parameter('slots', value=node.parameters['slots'] + 1)])[0]
    return '' if done.successful else str(done.reason)


def test_each_state_has_its_own_advice(run: Managed) -> None:
    node = run.make(CaptureNode, {**SMALL, 'autostart': False})
    steps: list[tuple[Callable[[], Any] | None, str, str, str]] = [
        (None, 'unconfigured', '', 'ros2 lifecycle set /capture configure'),
        (node.trigger_configure, 'inactive', 'ros2 lifecycle set /capture cleanup', 'ros2 lifecycle set /capture activate'),
        (node.trigger_activate, 'active', 'ros2 lifecycle set /capture deactivate and cleanup', ''),
        (node.trigger_deactivate, 'inactive', 'ros2 lifecycle set /capture cleanup', 'ros2 lifecycle set /capture activate'),
        (node.trigger_shutdown, 'finalized', "parameter 'slots' can't change now, the node is finalized: restart it with that value",
         'only a restart brings it back'),
    ]  # fmt: skip
    for step, state, against_setting, against_snapshot in steps:
        if step is not None:
            step()
        reason = refusal(node)
        assert node.state == state and (against_setting in reason if against_setting else not reason)
        assert ('lifecycle set' in reason) == (state in ('inactive', 'active'))
        if against_snapshot:
            message = run.call(Trigger, '/capture/snapshot', Trigger.Request()).message
            assert message == f'no snapshot: the node is {state}, and no frames flow; {against_snapshot}'
            assert status(node, 'lifecycle').advice == against_snapshot


def test_parts_that_are_referred_to_are_there(run: Managed) -> None:
    node = run.make(CaptureNode, {**SMALL, 'autostart': False})

    def camera_is_told_of() -> bool:
        return any(each.part == 'camera' for each in node.collect_diagnostics())

    for step in (None, node.trigger_configure, node.trigger_activate, node.trigger_deactivate, node.trigger_cleanup, node.trigger_shutdown):
        if step is not None:
            step()
        found = status(node, 'negotiation')
        assert 'part camera' not in found.advice or camera_is_told_of()
        if node.state in ('unconfigured', 'finalized'):
            assert found.level is Level.OK and found.message == f'nothing to agree on: the node is {node.state}'
        elif node.state == 'active':
            assert found.level is Level.OK
        else:
            told = status(node, 'camera')
            assert (told.message, told.advice) == ('not started', 'start or activate the node'), 'nobody wants frames'


def test_a_disagreement_is_told_on_with_what_helps(run: Managed) -> None:
    node = run.make(CaptureNode, {**SMALL, 'autostart': False, 'participants': ['x: NV12; stride_align=256; max_stride=128']})
    node.trigger_configure()
    found = status(node, 'negotiation')
    assert found.level is Level.ERROR and found.advice.endswith('then configure the node again or restart it')
    node.trigger_shutdown()
    found = status(node, 'negotiation')
    assert found.level is Level.ERROR and found.advice.endswith('then restart the node')
