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
A consumer in another process: its needs, and which process starts first.

Frames flow as they do in one process, or the reason is reported. As a program,
``test_agreement_matrix VALUES ROW`` runs a row of cases, and writes a line of JSON for each.
VALUES are the capture node's parameters as JSON. The program forks the processes of a case from
itself to save imports, so it must not use ROS itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
import json
import os
from pathlib import Path
import subprocess
import sys
import threading
import time
from typing import Any

from camera.gstreamer_process import gstreamer
from long_form import LONG
from nodes.programs import environment
from nodes.ros_kit import overrides
import pytest
import rclpy
from rig.guest.link_kit import Remote
from waiting import eventually, until

from zc_perception import create_frame_subscription
from zc_perception.link.rungs import REFUSED
from zc_perception.negotiation.constraints import parse_stand_in
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.process import ExecutorThread, NodeGroup

ROWS = {
    'stride 64': 'NV12; stride_align=64',
    'offset align 4096': 'NV12; offset_align=4096',
    'contiguous heap': 'any; contiguous',
    'NV12 only': 'NV12',
    'YUYV only': 'YUYV',
    'tiled + linear': 'NV12:0x0300000000000010 NV12',
    'implicit': 'NV12:INVALID',
}
ALONE = 'one process'
ORDERS = (ALONE, 'consumer first', 'one dies in the middle')
if LONG:
    ORDERS += ('capture first', 'both at once', 'a third joins')
CAMERAS: dict[str, dict[str, Any]] = {
    'synthetic': {'camera': 'synthetic', 'width': 1366, 'height': 768, 'framerate': 15.0},
    'gstreamer': {
        'camera': 'gstreamer',
        'pipeline': 'videotestsrc is-live=true ! video/x-raw,width=1366,height=768,framerate=15/1',
    },
}
#: Limit after the last process is ready; it is long if other tests run at the same time.
WITHIN_S = 2.0 if LONG else 60.0
# Time for a case's result on a slow machine, which is either frames or a reported refusal.
PATIENCE_S = 120.0
_NAME = 'needy'


class Host:
    """A process with a ``capture_node``, a consumer, or both in one context."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._context = rclpy.Context()
        rclpy.init(context=self._context)
        self._ends.callback(self._context.try_shutdown)
        self._camera: Any = None
        self._came: list[float] = []

    def join(self, name: str, needs: str) -> float:
        node = rclpy.create_node(name, context=self._context)
        self._ends.callback(node.destroy_node)
        spinner = ExecutorThread(self._context, lambda: None)
        spinner.start()
        self._ends.callback(spinner.stop)
        self._subscription = create_frame_subscription(
            node,
            'image_raw',
            lambda frame: self._came.append(time.monotonic()),
            copy_free='required',
            constraints=parse_stand_in(f'{name}: {needs}'),
        )
        spinner.executor.add_node(node)
        return time.monotonic()

    def start(self, values: dict[str, Any]) -> float:
        """Start the camera as the program does; return the ready time."""
        self._camera = CaptureNode(context=self._context, parameter_overrides=overrides(values))
        self._ends.enter_context(NodeGroup(self._context, [self._camera], lambda: None)).start()
        return time.monotonic()

    def seen(self) -> dict[str, Any]:
        statistics = self._subscription.statistics()
        return {
            'frames': len(self._came),
            'at': self._came[0] if self._came else time.monotonic(),
            'refused': statistics.rung == REFUSED,
            'reason': statistics.reason,
        }

    def knows(self, name: str) -> bool:
        return any(name in each.participant for each in self._camera._offer.consumers())

    def told(self) -> list[str]:
        session = self._camera.session
        outcomes = session.outcomes() if session is not None else {}
        refused = [str(each) for each in outcomes.values() if not each.has_buffers]
        return [*self._camera._server.server.statistics().last_refusal.values(), *refused]

    def close(self) -> None:
        self._ends.close()


def run_case(values: dict[str, Any], needs: str, order: str) -> dict[str, Any]:
    with ExitStack() as stack:

        def process() -> Remote:
            made = stack.enter_context(Remote(Host))
            made.wait_longer(2 * PATIENCE_S)
            return made

        def joined(name: str = _NAME) -> tuple[float, Remote]:
            consumer = process()
            return consumer.call('join', name, needs), consumer

        def begun() -> tuple[float, Remote]:
            """Start both; return when the last one was ready, and the consumer under test."""
            if order == ALONE:
                camera.call('join', _NAME, needs)
                return camera.call('start', values), camera
            if order == 'both at once':
                consumer = process()
                camera.ask('start', values)
                consumer.ask('join', _NAME, needs)
                return max(camera.answer(), consumer.answer()), consumer
            if order == 'consumer first':
                _, consumer = joined()
                return camera.call('start', values), consumer
            camera.call('start', values)
            if order == 'capture first':
                return joined()
            witness = process()
            witness.call('join', 'witness', 'any')
            assert _served(witness, camera)['flows'], 'the witness got no frame'
            if order == 'a third joins':
                return joined()
            _, victim = joined('victim')
            eventually(lambda: camera.call('knows', 'victim'), 2.0)
            victim.kill()
            before = witness.call('seen')['frames']
            goes_on = lambda: witness.call('seen')['frames'] > before + 3  # noqa: E731
            until(goes_on, lambda: f'the witness: {witness.call("seen")}', PATIENCE_S)
            return joined()

        camera = process()
        ready, tested = begun()
        found = _served(tested, camera)
        found['seconds'] = round(found.pop('at') - ready, 2)
        return {**found, 'camera': camera.call('told')}


def _served(consumer: Remote, camera: Remote) -> dict[str, Any]:
    """Wait for a frame or a refusal; the camera must report the latter, too. Return the state."""

    def look() -> Any:
        seen = consumer.call('seen')
        return (seen['frames'] or (seen['refused'] and camera.call('told'))) and seen

    seen = until(look, lambda: consumer.call('seen'), PATIENCE_S, lambda: time.sleep(0.02))
    flows = bool(seen['frames'])
    return {'flows': flows, 'reason': '' if flows else seen['reason'], 'at': seen['at']}


def complaint(found: dict[str, Any], alone: dict[str, Any], within_s: float) -> str:
    """Return a case's error, empty if none; *alone* is the result in ``one process``."""
    if 'error' in found or 'error' in alone:
        return f'{found.get("error", "")} {alone.get("error", "")}'
    if found['flows'] != alone['flows']:
        return f'in one process it is {alone["flows"]} that frames flow, here: {found}'
    if found['flows']:
        late = found['seconds'] > within_s
        return f'the first frame came {found["seconds"]} s after all were ready' if late else ''
    ends = (found['reason'], ' '.join(found['camera']))
    silent = not all(_NAME in text and ';' in text and '…' not in text for text in ends)
    return f'it is not refused by name and with a next step at both ends: {ends}' if silent else ''


def _variables(camera: str) -> dict[str, str]:
    if camera != 'gstreamer':
        return {}
    found = gstreamer().environment()
    # The middleware's libraries are in LD_LIBRARY_PATH, too.
    libraries = filter(None, (found['LD_LIBRARY_PATH'], os.environ.get('LD_LIBRARY_PATH')))
    return {**found, 'LD_LIBRARY_PATH': ':'.join(libraries)}


Cases = Mapping[str, dict[str, Any]]
Matrix = Callable[[str, str], Cases]


@pytest.fixture(scope='module')
def matrix(module_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """Return the results of a camera's row of cases, by order."""
    done: dict[tuple[str, str], Cases] = {}

    def of(camera: str, row: str) -> Cases:
        if (camera, row) not in done:
            folder = tmp_path_factory.mktemp('run')
            command = [sys.executable, '-m', f'nodes.{Path(__file__).stem}']
            variables = {
                'ZC_RUNTIME_DIR': str(folder / 'run'),
                'ROS_HOME': str(folder),
                'PYTHONPATH': os.pathsep.join(sys.path),
            }
            ended = subprocess.run(
                [*command, json.dumps(CAMERAS[camera]), row],
                env={**environment(module_domain), **_variables(camera), **variables},
                stdout=subprocess.PIPE,
                check=True,
            )
            done[camera, row] = dict(map(json.loads, ended.stdout.splitlines()))
        return done[camera, row]

    return of


@pytest.mark.parametrize('order', ORDERS[1:])
@pytest.mark.parametrize('row', ROWS if LONG else ('stride 64', 'YUYV only'))
@pytest.mark.parametrize('camera', CAMERAS if LONG else ('synthetic',))
def test_it_goes_as_in_one_process(camera: str, row: str, order: str, matrix: Matrix) -> None:
    cases = matrix(camera, row)
    wrong = complaint(cases[order], cases[ALONE], WITHIN_S)
    assert not wrong, wrong


@pytest.mark.parametrize(
    ('camera', 'row', 'flows'),
    [
        ('synthetic', 'stride 64', True),
        ('synthetic', 'YUYV only', False),
        pytest.param('gstreamer', 'YUYV only', True, marks=pytest.mark.long),
        pytest.param('gstreamer', 'implicit', False, marks=pytest.mark.long),
    ],
)
def test_in_one_process_it_goes_as_the_camera_can(
    camera: str, row: str, flows: bool, matrix: Matrix
) -> None:
    assert matrix(camera, row)[ALONE]['flows'] is flows


def main(values: str, row: str) -> None:
    for order in ORDERS:
        try:
            found = run_case(json.loads(values), ROWS[row], order)
        except Exception as error:
            found = {'error': f'{type(error).__name__}: {error}'}
        assert threading.active_count() == 1, 'this process must stay fit for forking'
        print(json.dumps([order, found]), flush=True)


if __name__ == '__main__':
    main(*sys.argv[1:])
