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

"""Managed nodes, and components: resources, the manager's view, leaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import random
import threading
import time
from typing import Any
from unittest.mock import Mock

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetAvailableStates, GetAvailableTransitions
from long_form import LONG
from nodes import ros_kit
from nodes.programs import parameters, Program
from nodes.ros_kit import (
    ACTIVATE,
    CLEANUP,
    CONFIGURE,
    DEACTIVATE,
    Managed,
    set_or_why_not,
    status,
    wait_until_known,
)
import pytest
import rclpy
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger
from vision_msgs.msg import Detection2DArray

from zc_perception.errors import ConfigError, ZcError
from zc_perception.link.endpoints import IN_PROCESS
from zc_perception.memory.pool import SlotState
from zc_perception.nodes import components
from zc_perception.nodes import inference as inference_module
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.perception_node import process_ledger
from zc_perception.nodes.process import ros_context
from zc_perception.nodes.recorder import RecorderNode
from zc_perception.observe.diagnostics import Level

pytestmark = pytest.mark.usefixtures('ros_home')
SMALL = {'width': 128, 'height': 128, 'framerate': 60.0, 'heap': 'memfd'}
WAITING = {**SMALL, 'autostart': False}
HOG = {'model': 'hog', 'timeout': 20.0}


def frames(node: Any) -> int:
    return node.publisher.statistics().published


def captures() -> bool:
    """Return whether a camera's thread is there; a node waits only 1.5 s for its end."""
    return any(thread.name == 'camera' for thread in threading.enumerate())


def transitions(run: Managed) -> set[str]:
    kind = GetAvailableTransitions
    found = run.call(kind, '/capture/get_available_transitions', kind.Request())
    return {each.transition.label for each in found.available_transitions}


def test_without_autostart_a_node_waits_and_each_state_holds_what_it_should(run: Managed) -> None:
    node = run.make(CaptureNode, WAITING)
    node.start()
    assert run.state(node) == 'unconfigured' and transitions(run) == {'configure', 'shutdown'}
    kind, labels = GetAvailableStates, {'unconfigured', 'inactive', 'active', 'finalized'}
    states = run.call(kind, '/capture/get_available_states', kind.Request()).available_states
    assert {state.label for state in states} >= labels
    assert node.supervisor.camera is None and node.session is None
    assert status(node, 'lifecycle').level is Level.WARN
    before = ros_kit.held()
    assert run.change(node, CONFIGURE) and run.state(node) == 'inactive'
    assert transitions(run) == {'activate', 'cleanup', 'shutdown'}
    run.eventually(lambda: not captures(), 'no thread, nor one of an earlier test')
    assert len(node.camera.slots) == 8 and frames(node) == 0
    assert ros_kit.held()[0] > before[0]
    for _ in range(2):
        assert run.change(node, ACTIVATE)
        run.grows(lambda: frames(node), 5)
        assert captures() and status(node, 'lifecycle').level is Level.OK
        assert run.change(node, DEACTIVATE)
        off = 'the sensor is off, others may have the camera'
        run.eventually(lambda: not captures() and node.supervisor.camera is None, off)
        published = frames(node)
        time.sleep(0.1)
        assert frames(node) == published
    assert run.change(node, CLEANUP) and run.state(node) == 'unconfigured'
    run.eventually(lambda: ros_kit.given_back(before), f'{ros_kit.held()}, before: {before}')


def test_inference_loads_its_model_when_configured_and_holds_no_frame_while_inactive(
    run: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference_module, '_DRAIN_S', 60.0)
    capture = run.make(CaptureNode, SMALL)
    node = run.make(InferenceNode, {**HOG, 'autostart': False})
    capture.start()
    with pytest.raises(AttributeError, match='is unconfigured'):
        _ = node.scheduler
    assert status(node, 'lifecycle').level is Level.WARN
    assert run.change(node, CONFIGURE)
    assert node.manifest.engine == 'opencv_hog'
    run.grows(lambda: frames(capture), 10)
    for _ in range(3):
        processed = node.processed
        assert not capture.camera.pool_statistics().holders.get('inference'), (
            'every buffer was given back'
        )
        run.grows(lambda: frames(capture), 10)
        assert node.processed == processed
        assert run.change(node, ACTIVATE)
        run.grows(lambda: node.processed, 3)
        assert run.change(node, DEACTIVATE)
    assert run.change(node, CLEANUP) and run.state(capture) == 'active', (
        'the camera has not noticed'
    )


def test_a_parameter_that_changes_while_the_accelerator_opens_reaches_it(
    run: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = run.make(InferenceNode, {**HOG, 'autostart': False})
    select, tuned = inference_module.select_accelerator, Mock()

    def slow(*arguments: Any) -> Any:
        selected = select(*arguments)
        monkeypatch.setattr(selected.accelerator, 'tune', tuned)
        (result,) = node.set_parameters([Parameter('timeout', value=30.0)])
        assert result.successful and not tuned.called
        return selected

    monkeypatch.setattr(inference_module, 'select_accelerator', slow)
    assert run.change(node, CONFIGURE)
    assert tuned.call_args.args[0]['timeout'] == 30.0


def test_a_transition_that_is_refused_by_its_label_is_told_with_those_that_there_are(
    run: Managed, capfd: pytest.CaptureFixture[str]
) -> None:
    node = run.make(OverlayNode)
    node.start()
    for transition in (CLEANUP, 99):
        assert not run.change(node, transition)
    assert not run.change(node, 0, 'cleanup')
    assert (
        "the node is active: there is no transition 'cleanup' from this state; possible: "
        'deactivate, shutdown'
    ) in capfd.readouterr().err
    assert run.change(node, 0, 'deactivate')
    assert not run.change(node, CLEANUP, 'configure'), 'a label counts for more than a number'
    assert not run.change(node, 0, 'fl\x1b[31my')
    assert "there is no transition 'fl\\x1b[31my' from this state" in capfd.readouterr().err


def test_the_executor_serves_others_during_a_transition(
    run: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = run.make(CaptureNode, WAITING), run.make(OverlayNode, {'autostart': False})
    entered, go_on = threading.Event(), threading.Event()
    opened = node._factory.open

    def slow(identity: str) -> Any:
        entered.set()
        assert go_on.wait(60)
        return opened(identity)

    node._camera_factory = slow
    client = run.manager.create_client(ChangeState, '/capture/change_state')
    wait_until_known(client, run.manager, node)
    configured = client.call_async(ChangeState.Request(transition=Transition(id=CONFIGURE)))
    run.eventually(entered.is_set)
    assert run.state(node) == 'configuring', 'its own state can be asked for'
    assert run.change(other, CONFIGURE) and not configured.done()
    go_on.set()
    run.eventually(configured.done)
    assert configured.result().success


@pytest.mark.parametrize(
    ('where', 'error'),
    [
        ('_agree', RuntimeError('the lens fell off')),
        ('_agree', SystemExit('no licence')),
        ('_deactivate', SystemExit('no licence')),
    ],
)
def test_an_unforeseen_error_is_recovered_from_by_configuring_again(
    where: str, error: BaseException, run: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = run.make(CaptureNode, WAITING)
    before = ros_kit.held()
    work, errors = getattr(node, where), [error]

    def failing() -> None:
        if errors:
            raise errors.pop()
        work()

    monkeypatch.setattr(node, where, failing)
    steps = [CONFIGURE] if where == '_agree' else [CONFIGURE, ACTIVATE, DEACTIVATE]
    results = [run.change(node, step) for step in steps]
    assert results[-1] is False and all(results[:-1]) and run.state(node) == 'unconfigured'
    assert f'{type(error).__name__}: {error}' in status(node, 'lifecycle').message
    run.eventually(lambda: ros_kit.given_back(before), f'{ros_kit.held()}, before: {before}')
    assert run.change(node, CONFIGURE) and run.change(node, ACTIVATE)
    run.eventually(lambda: frames(node) >= 3)
    assert status(node, 'lifecycle').level is Level.OK


def test_another_process_s_consumer_loses_the_camera_and_finds_it_again(
    run: Managed, free_domain: int
) -> None:
    capture = run.make(CaptureNode, SMALL)
    capture.start()
    seen = run.hear(Detection2DArray, 'detections')
    required = parameters(copy_free='required', model='hog', timeout=20.0)
    with Program('inference_node', *required, domain=free_domain).start(
        'link is shared_memory'
    ) as program:
        for steps in ([], [DEACTIVATE, ACTIVATE], [DEACTIVATE, CLEANUP, CONFIGURE, ACTIVATE]):
            for step in steps:
                assert run.change(capture, step)
            run.grows(lambda: len(seen), 3, f'detections after {steps}\n{program.output}')
        assert run.change(capture, DEACTIVATE)
        holders = capture._server.server._pool.statistics
        run.eventually(lambda: not any(holders().holders.values()), 'leases came back')
        assert 'ros_message' not in program.output and program.interrupt() == 0


def test_each_state_has_its_own_advice(run: Managed) -> None:
    node = run.make(CaptureNode, {**SMALL, 'autostart': False})
    change = 'ros2 lifecycle set /capture '
    gone = "parameter 'slots' can't change now, the node is finalized: restart it with that value"
    steps: list[tuple[Callable[[], Any], str, str, str]] = [
        (lambda: None, 'unconfigured', '', f'{change}configure'),
        (node.trigger_configure, 'inactive', f'{change}cleanup', f'{change}activate'),
        (node.trigger_activate, 'active', f'{change}deactivate, then the same with cleanup', ''),
        (node.trigger_shutdown, 'finalized', gone, 'only a restart of the node helps'),
    ]
    for step, state, against_setting, against_snapshot in steps:
        step()
        done = node.set_parameters([Parameter('slots', value=node.parameters['slots'] + 1)])[0]
        assert node.state == state and against_setting in done.reason
        assert done.successful is (state == 'unconfigured')
        if against_snapshot:
            message = run.call(Trigger, '/capture/snapshot', Trigger.Request()).message
            why = f'no snapshot: the node is {state}, and no frames flow; {against_snapshot}'
            assert message == why
            assert status(node, 'lifecycle').advice == against_snapshot


def test_random_transitions_while_frames_flow_leak_nothing(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[str] = []
    monkeypatch.setattr(threading, 'excepthook', lambda args: errors.append(str(args.exc_value)))
    monkeypatch.setattr(inference_module, '_DRAIN_S', 60.0)  # a job that is given up has failed
    chance, count = random.Random(20_261_121), 500 if LONG else 40
    with Managed(free_domain) as run:
        values = {**SMALL, 'framerate': 200.0, 'jpeg_quality': 50}
        capture, inference = run.make(CaptureNode, values), run.make(InferenceNode, HOG)
        overlay = run.make(OverlayNode)
        record = {'path': str(tmp_path / 'a'), 'disk_floor': 0, 'max_frames': 0}
        nodes = [capture, inference, overlay, run.make(RecorderNode, record)]
        for node in reversed(nodes):
            node.start()
        run.eventually(lambda: inference.processed >= 3)
        ros_kit.settle(run, nodes)  # loads libraries and connects clients
        for node in nodes:
            assert run.change(node, CONFIGURE) and run.change(node, ACTIVATE)
        ros_kit.settle(run, nodes)
        before = ros_kit.held()
        allowed = refused = 0
        for _ in range(count):
            node = chance.choices(nodes, (4, 4, 1, 1))[0]
            state = run.state(node)
            # Mostly valid transitions that make frames flow, now and then an invalid one.
            options = {
                'unconfigured': [CONFIGURE],
                'inactive': [ACTIVATE, ACTIVATE, CLEANUP],
                'active': [DEACTIVATE],
            }[state]
            any_one = [CONFIGURE, ACTIVATE, DEACTIVATE, CLEANUP]
            wanted = chance.choice(options if chance.random() < 0.9 else any_one)
            done = run.change(node, wanted)
            said = node.get_name(), state, wanted, status(node, 'lifecycle')
            assert done is (wanted in options), said
            allowed, refused = allowed + done, refused + (not done)
            if chance.random() < 0.3:
                time.sleep(chance.uniform(0.0, 0.05))
        assert allowed > count // 2 and refused > 0
        ros_kit.settle(run, nodes)
        run.eventually(lambda: ros_kit.given_back(before), f'{ros_kit.held()}, before: {before}')
        for node in nodes:
            assert run.change(node, CONFIGURE) and run.change(node, ACTIVATE)
        run.grows(lambda: inference.processed, 3)
        pool = capture.camera.pool_statistics()
        assert (pool.abandoned, pool.retired, inference.failed) == (0, 0, 0)
        assert set(pool.holders) <= {'camera', 'inference', 'recorder', '/capture:to_ros'}
        assert not errors, errors


# Components find each other in one process in any order, and start by themselves. Unloading one
# leaves the others running.
KINDS = {
    'capture': (components.CaptureNode, SMALL),
    'inference': (components.InferenceNode, HOG),
    'overlay': (components.OverlayNode, {}),
}


def load(run: Managed, *names: str) -> list[Any]:
    return [run.make(*KINDS[name]) for name in names]


def have_met(run: Managed, capture: Any, inference: Any) -> None:
    run.grows(lambda: inference.processed, 3)
    statistics = inference.subscription.statistics()
    assert (statistics.rung, statistics.conversions) == (IN_PROCESS, 0)
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
    other = {'capture': 'inference', 'inference': 'capture'}[gone]
    nodes = {other: load(run, other)[0]}
    run.eventually(lambda: nodes[other].state == 'active')
    nodes[gone] = load(run, gone)[0]
    for _ in range(2):
        have_met(run, **nodes)
        run.drop(nodes[gone])
        if gone == 'inference':
            capture = nodes['capture']
            run.grows(lambda of=capture: of.publisher.statistics().published, 5)
            pool = capture.camera.pool_statistics
            run.eventually(lambda of=pool: not of().holders.get('inference'))
            assert pool().quotas == {}
            assert 'participant onnx accelerator' not in status(capture, 'negotiation').values
        else:
            assert nodes['inference'].state == 'active'
        nodes[gone] = load(run, gone)[0]
    have_met(run, **nodes)


def test_a_component_of_another_name_without_parameters_says_where_they_belong(
    run: Managed, capfd: pytest.CaptureFixture[str]
) -> None:
    renamed = {'cli_args': ['--ros-args', '-r', '__node:=picture']}
    run.make(components.OverlayNode, {}, **renamed)
    said = (
        "this overlay node has the name 'picture' and got no parameter; in a parameter file, "
        "its section must be '/**/picture'"
    )
    assert said in capfd.readouterr().err
    run.make(components.OverlayNode, {'scale': 0.5}, **renamed)
    assert 'got no parameter' not in capfd.readouterr().err


def test_unloading_gives_everything_back(run: Managed) -> None:
    def cycle() -> None:
        nodes = load(run, 'inference', 'capture', 'overlay')
        run.eventually(lambda: nodes[0].processed >= 2)
        pool = nodes[1].camera.pool
        for node in nodes:
            run.drop(node)
        # A node doesn't wait for ever for its threads.
        run.eventually(lambda: not pool.statistics().states.get(SlotState.LEASED))
        run.eventually(lambda: not pool.statistics().holders)

    cycle()
    before = ros_kit.held()
    for _ in range(6):
        cycle()
    # The first cycle may allocate objects that stay. A leak in each cycle would exceed this limit.
    most = before[0] + 4, before[1] + 4, before[2]
    run.eventually(lambda: ros_kit.given_back(most), f'{ros_kit.held()}, before: {before}')


def test_what_is_wrong_is_the_constructor_s_error(run: Managed) -> None:
    for kind, values, message in (
        (components.CaptureNode, {'heap': 'dma_heap/nowhere'}, 'dma_heap/nowhere'),
        (components.InferenceNode, {'model': 'rood'}, "did you mean 'road'"),
        (components.RecorderNode, {}, "'path' is empty"),
    ):
        with pytest.raises(ZcError, match=message):
            run.make(kind, values)


def test_quality_of_service_of_a_topic_of_another_of_our_nodes_is_none(
    run: Managed, capfd: pytest.CaptureFixture[str]
) -> None:
    everybodys = {
        f'qos_overrides./{end}.depth': 2
        for end in (
            'image_raw.publisher',
            'image_raw.subscription',
            'rear/image_raw.publisher',
            'detections.subscription',
        )
    }
    for kind, values in KINDS.values():
        run.make(kind, everybodys | values)
    assert 'is unknown' not in capfd.readouterr().err
    unknown = ('qos_overrides./image_raw.publisher.deepth', 'qos_overrides./imag.publisher.depth')
    values = {**dict.fromkeys(unknown, 2), 'scael': 0.5, 'global_of_another_package': True}
    run.make(components.OverlayNode, values, namespace='/b')
    said = capfd.readouterr().err
    assert '[WARN]' in said and "parameter 'scael' is unknown; did you mean 'scale'?" in said
    for name in (*unknown, 'global_of_another_package'):
        assert f"parameter '{name}' is unknown" in said


def test_a_start_that_fails_later_is_said_and_can_be_mended(
    run: Managed, logged: Callable[[], str]
) -> None:
    node = run.make(
        components.CaptureNode, {**SMALL, 'participants': ['display: NV12; heap=dma_heap/']}
    )
    run.eventually(lambda: status(node, 'lifecycle').level is Level.ERROR)
    run.eventually(lambda: 'the node did not start' in logged())
    run.eventually(lambda: not set_or_why_not(node, 'participants', ['']))
    assert run.change(node, CONFIGURE) and run.change(node, ACTIVATE)


def test_a_section_that_misses_a_component_of_another_name_ends_its_load(
    free_domain: int, tmp_path: Path
) -> None:
    path = tmp_path / 'vehicle.yaml'
    path.write_text('/**/capture: {ros__parameters: {camera: replay}}\n')
    context = rclpy.Context()
    with ros_context(['--ros-args', '--params-file', str(path)], context):
        own = {'context': context, 'cli_args': ['--ros-args', '-r', '__node:=cam']}
        said = r"node '/cam', which is the capture node; write '/\*\*/cam' \(line 1\)"
        with pytest.raises(ConfigError, match=said):
            components.CaptureNode(**own)
        assert components.CaptureNode(**own, use_global_arguments=False).destroy_node() is None
