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
Components find each other in one process in any order, and start by themselves.

Unloading one leaves the others running.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodes.managed import ACTIVATE, CONFIGURE, given_back, held, Managed, status
import pytest
import rclpy
from rclpy.parameter import Parameter

from zc_perception.errors import ConfigError, ZcError
from zc_perception.link.endpoints import IN_PROCESS
from zc_perception.memory.pool import SlotState
from zc_perception.nodes import components
from zc_perception.nodes.perception_node import process_ledger
from zc_perception.nodes.process import ros_context
from zc_perception.observe.diagnostics import Level

pytestmark = pytest.mark.usefixtures('ros_home')
SMALL = {'width': 128, 'height': 128, 'framerate': 60.0, 'heap': 'memfd'}
HOG = {'model': 'hog', 'timeout': 20.0}
KINDS = {
    'capture': (components.CaptureNode, SMALL),
    'inference': (components.InferenceNode, HOG),
    'overlay': (components.OverlayNode, {}),
}


def load(run: Managed, *names: str) -> list[Any]:
    return [run.make(*KINDS[name]) for name in names]


def frames_go_on(run: Managed, inference: Any) -> None:
    seen = inference.processed
    run.eventually(lambda: inference.processed >= seen + 3)
    assert (
        inference.subscription.statistics().rung == IN_PROCESS
        and inference.subscription.statistics().conversions == 0
    )


@pytest.mark.parametrize(
    'order', [('inference', 'capture'), ('capture', 'inference')], ids='-'.join
)
def test_they_meet_whatever_is_loaded_first(run: Managed, order: tuple[str, str]) -> None:
    nodes = dict(zip(order, load(run, order[0]), strict=False))
    run.eventually(lambda: nodes[order[0]].state == 'active')
    nodes[order[1]] = load(run, order[1])[0]
    capture, inference = nodes['capture'], nodes['inference']
    frames_go_on(run, inference)
    assert status(capture, 'negotiation').values['participant onnx accelerator'] == 'accepted'
    assert capture.camera.pool_statistics().quotas == {'inference': 2}, (
        'one in flight and one that waits'
    )
    assert capture.ledger is inference.ledger is process_ledger(run.context)
    assert set(capture.ledger.entries()) == {'draw', 'tensor'}, (
        'one ledger, and nobody else touched pixels'
    )


@pytest.mark.parametrize('gone', ['capture', 'inference'])
def test_the_other_goes_on_when_one_is_unloaded_and_meets_its_successor(
    run: Managed, gone: str
) -> None:
    nodes = dict(zip(('capture', 'inference'), load(run, 'capture', 'inference'), strict=True))
    for _ in range(2):
        frames_go_on(run, nodes['inference'])
        run.drop(nodes[gone])
        if gone == 'inference':
            count = nodes['capture'].publisher.statistics().published
            run.eventually(
                lambda count=count: nodes['capture'].publisher.statistics().published >= count + 5
            )
            pool = nodes['capture'].camera.pool_statistics()
            assert not pool.holders.get('inference') and pool.quotas == {}
            assert (
                'participant onnx accelerator'
                not in status(nodes['capture'], 'negotiation').values
            )
        else:
            assert nodes['inference'].state == 'active'
        nodes[gone] = load(run, gone)[0]
    frames_go_on(run, nodes['inference'])


def test_a_component_of_another_name_without_parameters_says_where_they_belong(
    run: Managed, capfd: pytest.CaptureFixture[str]
) -> None:
    run.make(components.OverlayNode, {}, cli_args=['--ros-args', '-r', '__node:=picture'])
    said = (
        "this overlay node has the name 'picture' and got no parameter; in a parameter file, "
        "its section must be '/**/picture'"
    )
    assert said in capfd.readouterr().err
    run.make(
        components.OverlayNode, {'scale': 0.5}, cli_args=['--ros-args', '-r', '__node:=other']
    )
    assert 'got no parameter' not in capfd.readouterr().err


def test_unloading_gives_everything_back(run: Managed) -> None:
    def cycle() -> None:
        nodes = load(run, 'inference', 'capture', 'overlay')
        run.eventually(lambda: nodes[0].processed >= 2)
        pool = nodes[1].camera.pool
        for node in nodes:
            run.drop(node)
        assert not pool.statistics().states.get(SlotState.LEASED) and not pool.statistics().holders

    cycle()
    before = held()
    for _ in range(6):
        cycle()
    # The first cycle may allocate objects that stay. A leak in each cycle would exceed this limit.
    most = before[0] + 4, before[1] + 4, before[2]
    run.eventually(lambda: given_back(most), f'{held()}, before: {before}')


def test_what_is_wrong_is_the_constructor_s_error(run: Managed) -> None:
    for kind, values, message in (
        (components.CaptureNode, {'heap': 'dma_heap/nowhere'}, 'dma_heap/nowhere'),
        (components.InferenceNode, {'model': 'rood'}, "did you mean 'road'"),
        (components.RecorderNode, {}, "'path' is empty"),
    ):
        with pytest.raises(ZcError, match=message):
            run.make(kind, values)


def test_a_key_that_nobody_knows_is_a_warning_with_the_nearest_name(
    run: Managed, capfd: pytest.CaptureFixture[str]
) -> None:
    run.make(components.CaptureNode, {**SMALL, 'widht': 3, 'global_of_another_package': True})
    said = capfd.readouterr().err
    assert '[WARN]' in said and "parameter 'widht' is unknown; did you mean 'width'?" in said
    assert "parameter 'global_of_another_package' is unknown" in said


def test_quality_of_service_of_a_topic_of_another_of_our_nodes_is_none(
    run: Managed, capfd: pytest.CaptureFixture[str]
) -> None:
    ends = (
        '/image_raw.publisher',
        '/image_raw.subscription',
        '/rear/image_raw.publisher',
        '/detections.subscription',
    )
    everybodys = {f'qos_overrides.{end}.depth': 2 for end in ends}
    for kind, values in KINDS.values():
        run.make(kind, everybodys | values)
    assert 'is unknown' not in capfd.readouterr().err
    run.make(
        components.OverlayNode,
        {'qos_overrides./image_raw.publisher.deepth': 2, 'qos_overrides./imag.publisher.depth': 2},
        namespace='/b',
    )
    said = capfd.readouterr().err
    assert "publisher.deepth' is unknown" in said and "/imag.publisher.depth' is unknown" in said


def test_a_start_that_fails_later_is_said_and_can_be_mended(
    run: Managed, logged: Callable[[], str]
) -> None:
    node = run.make(
        components.CaptureNode, {**SMALL, 'participants': ['display: NV12; heap=dma_heap/']}
    )
    run.eventually(lambda: status(node, 'lifecycle').level is Level.ERROR)
    run.eventually(lambda: 'the node did not start' in logged())
    run.eventually(
        lambda: node.set_parameters([Parameter('participants', value=[''])])[0].successful
    )
    assert run.change(node, CONFIGURE) and run.change(node, ACTIVATE)


def test_a_section_that_misses_a_component_of_another_name_ends_its_load(
    free_domain: int, tmp_path: Path
) -> None:
    path = tmp_path / 'vehicle.yaml'
    path.write_text('/**/capture: {ros__parameters: {camera: replay}}\n')
    context = rclpy.Context()
    with ros_context(['--ros-args', '--params-file', str(path)], context):
        own = {'context': context, 'cli_args': ['--ros-args', '-r', '__node:=cam']}
        with pytest.raises(
            ConfigError,
            match=r"node '/cam', which is the capture node; write '/\*\*/cam' \(line 1\)",
        ):
            components.CaptureNode(**own)
        assert components.CaptureNode(**own, use_global_arguments=False).destroy_node() is None
