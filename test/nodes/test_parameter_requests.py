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
What other programs may ask of a running node's parameters.

Everything wrong is refused with a reason, and nothing ends the executor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import os
from typing import Any

from nodes.managed import Managed, managed
import pytest
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.msg import ParameterValue
from rcl_interfaces.srv import SetParameters, SetParametersAtomically
from rclpy.parameter import Parameter
from std_srvs.srv import SetBool

from zc_perception.errors import ConfigError
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode

CPU = min(os.sched_getaffinity(0))
NO_TYPE = ParameterMessage(name='enabled', value=ParameterValue(type=42))


class Bench:
    """A graph, and a program that sets its parameters."""

    def __init__(self, run: Managed) -> None:
        self.run = run
        capture = run.make(
            CaptureNode, {'width': 128, 'height': 128, 'heap': 'memfd', 'framerate': 30.0}
        )
        inference = run.make(InferenceNode, {'threads': 1, 'timeout': 20.0})
        self.nodes = {'capture': capture, 'inference': inference}
        for node in (inference, capture):
            node.start()

    def set(self, node: str, *parameters: Any) -> list[str]:  # noqa: A003
        """Each by itself; the reasons, empty ones for those that are set."""
        answer = self.run.call(
            SetParameters,
            f'/{node}/set_parameters',
            SetParameters.Request(parameters=self._messages(parameters)),
        )
        assert all(result.successful == (not result.reason) for result in answer.results)
        return [result.reason for result in answer.results]

    def set_together(self, node: str, *parameters: Any) -> str:
        """All or none; the reason, empty if they are set."""
        request = SetParametersAtomically.Request(parameters=self._messages(parameters))
        result = self.run.call(
            SetParametersAtomically, f'/{node}/set_parameters_atomically', request
        ).result
        assert result.successful == (not result.reason)
        return str(result.reason)

    @staticmethod
    def _messages(parameters: Sequence[Any]) -> list[ParameterMessage]:
        return [
            each.to_parameter_msg() if isinstance(each, Parameter) else each for each in parameters
        ]

    def value(self, node: str, name: str) -> Any:
        """As the node and ROS have it, which is the same."""
        shown = self.nodes[node].get_parameter(name).value
        own = self.nodes[node].parameters[name]
        assert shown == own or (own, shown) == ([], [''])
        return own


@pytest.fixture(scope='module')
def bench(module_domain: int) -> Iterator[Bench]:
    with managed(module_domain) as run:  # which fails if the executor has ended
        yield Bench(run)


def named(name: str, value: Any) -> Parameter:
    return Parameter(name, value=value)


def test_what_the_start_takes_is_taken_while_the_node_runs_too(bench: Bench) -> None:
    assert (
        bench.set('inference', named('max_rate', 50)) == ['']
        and type(bench.value('inference', 'max_rate')) is float
    )
    assert bench.set_together('inference', named('max_rate', 0), named('classes', [1, 2])) == ''
    assert (bench.value('inference', 'max_rate'), bench.value('inference', 'classes')) == (
        0.0,
        ['1', '2'],
    )
    for nothing in (
        Parameter('classes', Parameter.Type.BYTE_ARRAY, []),
        Parameter('classes', Parameter.Type.STRING_ARRAY, []),
    ):
        assert bench.set('inference', named('classes', ['', 'car']), nothing) == ['', '']
        assert bench.value('inference', 'classes') == []
    assert bench.set('capture', named('cpu_affinity', [CPU])) == [''] and bench.value(
        'capture', 'cpu_affinity'
    ) == [str(CPU)]
    assert bench.set('capture', named('cpu_affinity', [''])) == ['']


def test_a_request_that_rclpy_can_not_read_is_refused(bench: Bench) -> None:
    on, off = named('enabled', True), named('enabled', False)
    first, second, third = bench.set('inference', off, NO_TYPE, on)
    assert (
        first == ''
        and "it can't be read" in second
        and third == second
        and bench.value('inference', 'enabled') is False
    )
    assert (
        "it can't be read" in bench.set_together('inference', on, NO_TYPE)
        and bench.value('inference', 'enabled') is False
    )
    assert bench.set('inference', on) == ['']


def test_the_enable_service_sets_the_parameter_and_detections_stop_and_go_on(bench: Bench) -> None:
    inference = bench.nodes['inference']
    for on in (False, True):
        assert bench.run.call(SetBool, '/inference/enable', SetBool.Request(data=on)).success
        assert bench.value('inference', 'enabled') is on
        seen = inference.processed, inference.scheduler.statistics().refused_disabled
        bench.run.eventually(
            lambda on=on, seen=seen: (
                inference.processed > seen[0] + 3
                if on
                else inference.scheduler.statistics().refused_disabled > seen[1] + 3
            )
        )


def test_a_user_that_does_not_exist_is_refused_at_once(free_domain: int) -> None:
    with managed(free_domain) as run:
        node = run.make(OverlayNode, {'autostart': False})
        done = node.set_parameters([named('shared_memory_users', ['²'])])[0]
        assert not done.successful and "there is no user '²'; see /etc/passwd" in done.reason
        with pytest.raises(ConfigError, match="there is no user '²'"):
            run.make(OverlayNode, {'shared_memory_users': ['²']})
