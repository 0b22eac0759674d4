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

"""Capture and inference as managed nodes: resources, the manager's view, leaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import random
import threading
import time
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from long_form import LONG
from nodes.managed import (
    ACTIVATE,
    CLEANUP,
    CONFIGURE,
    DEACTIVATE,
    given_back,
    held,
    Managed,
    managed,
    settle,
    status,
    threads_named,
)
from nodes.programs import parameters, Program
from nodes.ros_kit import wait_until_known
import pytest
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger
from vision_msgs.msg import Detection2DArray

from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.recorder import RecorderNode
from zc_perception.observe.diagnostics import Level

pytestmark = pytest.mark.usefixtures('ros_home')
SMALL = {'width': 128, 'height': 128, 'framerate': 60.0, 'heap': 'memfd'}
WAITING = {**SMALL, 'autostart': False}
HOG = {'model': 'hog', 'timeout': 20.0}


def frames(node: Any) -> int:
    return node.publisher.statistics().published


def test_without_autostart_a_node_waits_and_each_state_holds_what_it_should(run: Managed) -> None:
    node = run.make(CaptureNode, WAITING)
    node.start()
    assert run.state(node) == 'unconfigured' and run.transitions(node) == {'configure', 'shutdown'}
    assert {'unconfigured', 'inactive', 'active', 'finalized'} <= run.states(node)
    assert node.supervisor.camera is None and node.session is None
    lifecycle = status(node, 'lifecycle')
    assert (
        lifecycle.level is Level.WARN
        and 'ros2 lifecycle set /capture configure' in lifecycle.advice
    )
    before = held()

    assert run.change(node, CONFIGURE) and run.state(node) == 'inactive'
    assert run.transitions(node) == {'activate', 'cleanup', 'shutdown'}
    assert len(node.camera.slots) == 8 and not threads_named('camera') and frames(node) == 0
    assert held()[0] > before[0]

    assert run.change(node, ACTIVATE)
    run.eventually(lambda: frames(node) >= 5)
    assert threads_named('camera') and status(node, 'lifecycle').level is Level.OK

    assert run.change(node, DEACTIVATE)
    published = frames(node)
    assert not threads_named('camera') and node.supervisor.camera is None, (
        'the sensor is off, others may have the camera'
    )
    time.sleep(0.1)
    assert frames(node) == published

    assert run.change(node, ACTIVATE)
    run.eventually(lambda: frames(node) >= published + 5)
    assert (
        run.change(node, DEACTIVATE)
        and run.change(node, CLEANUP)
        and run.state(node) == 'unconfigured'
    )
    run.eventually(lambda: given_back(before), f'{held()}, before: {before}')
    assert run.change(node, CONFIGURE) and run.change(node, ACTIVATE)
    run.eventually(lambda: frames(node) >= 5)


def test_inference_loads_its_model_when_configured_and_holds_no_frame_while_inactive(
    run: Managed,
) -> None:
    capture = run.make(CaptureNode, SMALL)
    node = run.make(InferenceNode, {**HOG, 'autostart': False})
    capture.start()
    with pytest.raises(AttributeError, match='is unconfigured'):
        _ = node.scheduler
    assert [each.level for each in node.collect_diagnostics() if each.part == 'lifecycle'] == [
        Level.WARN
    ]
    for step in (CONFIGURE, ACTIVATE):
        assert run.change(node, step)
    run.eventually(lambda: node.processed >= 3, 'libraries are loaded')
    settle(run, [node, capture])
    before, processed = held(), node.processed
    assert (
        run.change(capture, CONFIGURE)
        and run.change(capture, ACTIVATE)
        and run.change(node, CONFIGURE)
    )
    assert node.manifest.engine == 'opencv_hog'
    run.eventually(lambda: frames(capture) >= 10)
    assert (
        'inference' not in capture.camera.pool_statistics().holders and node.processed == processed
    )
    for _ in range(2):
        seen = node.processed
        assert run.change(node, ACTIVATE)
        run.eventually(lambda seen=seen: node.processed >= seen + 3)
        assert run.change(node, DEACTIVATE)
        seen = node.processed
        assert capture.camera.pool_statistics().holders.get('inference', 0) == 0, (
            'every buffer was given back'
        )
        count = frames(capture)
        run.eventually(lambda count=count: frames(capture) >= count + 10)
        assert node.processed == seen
    assert run.change(node, CLEANUP) and run.state(capture) == 'active', (
        'the camera has not noticed'
    )
    settle(run, [capture])
    run.eventually(lambda: given_back(before), f'{held()}, before: {before}')


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


@pytest.mark.parametrize('where', ['_agree', '_deactivate'])
def test_an_unforeseen_error_is_recovered_from_by_configuring_again(
    where: str, run: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = run.make(CaptureNode, WAITING)
    before = held()
    work, errors = getattr(node, where), [RuntimeError('the lens fell off')]

    def failing() -> None:
        if errors:
            raise errors.pop()
        work()

    monkeypatch.setattr(node, where, failing)
    steps = [CONFIGURE] if where == '_agree' else [CONFIGURE, ACTIVATE, DEACTIVATE]
    results = [run.change(node, step) for step in steps]
    assert results[-1] is False and all(results[:-1]) and run.state(node) == 'unconfigured'
    assert 'RuntimeError: the lens fell off' in status(node, 'lifecycle').message
    run.eventually(lambda: given_back(before), f'{held()}, before: {before}')
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
            count = len(seen)
            run.eventually(
                lambda count=count: len(seen) >= count + 3,
                f'detections after {steps}\n{program.output}',
            )
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
        (node.trigger_activate, 'active', f'{change}deactivate and cleanup', ''),
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


TRANSITIONS = 500 if LONG else 40


def test_the_last_frame_has_gone_before_deactivate_answers(free_domain: int) -> None:
    with managed(free_domain) as run:
        capture, inference = run.make(CaptureNode, SMALL), run.make(InferenceNode, HOG)
        latest = {'capture': 0.0, 'inference': 0.0}
        capture.configure_now()
        for name, owner, publisher in (
            ('capture', capture.publisher, capture.publisher),
            ('inference', inference, inference._publisher),
        ):
            publish = publisher.publish

            def spy(item: Any, name: str = name, publish: Any = publish) -> None:
                publish(item)
                latest[name] = time.monotonic()

            publisher.publish = spy
            assert owner
        inference.start()
        capture.start()
        for _ in range(3):
            seen = inference.processed
            run.eventually(lambda seen=seen: inference.processed >= seen + 2)
            for name, node in (('inference', inference), ('capture', capture)):
                assert run.change(node, DEACTIVATE)
                answered = time.monotonic()
                time.sleep(0.15)
                assert 0.0 < latest[name] <= answered, name
            for node in (inference, capture):
                assert run.change(node, ACTIVATE)


def test_random_transitions_while_frames_flow_leak_nothing(
    free_domain: int, tmp_path: Path
) -> None:
    chance = random.Random(20_261_121)
    with managed(free_domain) as run:
        values = {**SMALL, 'framerate': 200.0, 'jpeg_quality': 50}
        capture, inference = run.make(CaptureNode, values), run.make(InferenceNode, HOG)
        overlay = run.make(OverlayNode)
        recorder = run.make(
            RecorderNode, {'path': str(tmp_path / 'a'), 'disk_floor': 0, 'max_frames': 0}
        )
        nodes = [capture, inference, overlay, recorder]
        for node in reversed(nodes):
            node.start()
        run.eventually(lambda: inference.processed >= 3)
        errors: list[str] = []
        threading.excepthook, hook = (
            lambda args: errors.append(str(args.exc_value)),
            threading.excepthook,
        )
        try:
            settle(run, nodes)  # loads libraries and connects clients
            for node in nodes:
                assert run.change(node, CONFIGURE) and run.change(node, ACTIVATE)
            settle(run, nodes)
            before = held()
            allowed = refused = 0
            for _ in range(TRANSITIONS):
                node = chance.choices(nodes, (4, 4, 1, 1))[0]
                state = run.state(node)
                # Mostly valid transitions that make frames flow, now and then an invalid one.
                options = {
                    'unconfigured': [CONFIGURE],
                    'inactive': [ACTIVATE, ACTIVATE, CLEANUP],
                    'active': [DEACTIVATE],
                }[state]
                wanted = (
                    chance.choice(options)
                    if chance.random() < 0.9
                    else chance.choice([CONFIGURE, ACTIVATE, DEACTIVATE, CLEANUP])
                )
                done = run.change(node, wanted)
                assert done is (wanted in options), (
                    node.get_name(),
                    state,
                    wanted,
                    status(node, 'lifecycle'),
                )
                allowed, refused = allowed + done, refused + (not done)
                if chance.random() < 0.3:
                    time.sleep(chance.uniform(0.0, 0.05))
            assert allowed > TRANSITIONS // 2 and refused > 0
            settle(run, nodes)
            run.eventually(lambda: given_back(before), f'{held()}, before: {before}')
            for node in nodes:
                assert run.change(node, CONFIGURE) and run.change(node, ACTIVATE)
            seen = inference.processed
            run.eventually(lambda: inference.processed >= seen + 3)
            pool = capture.camera.pool_statistics()
            assert (
                pool.abandoned == 0
                and pool.retired == 0
                and set(pool.holders) <= {'camera', 'inference', 'recorder', '/capture:to_ros'}
            )
        finally:
            threading.excepthook = hook
        assert not errors and inference.failed == 0, errors
