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

"""Another program calls ``~/snapshot``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import threading
from typing import Any

import cv2
from nodes.fault_kit import CameraFaults, SIZE
from nodes.ros_kit import Onlooker, overrides, ros, set_or_why_not, spun, WAIT_S, wait_until_known
import numpy as np
import pytest
from rcl_interfaces.srv import GetParameters
from std_srvs.srv import Trigger

from zc_perception.camera.recording import Snapshot
from zc_perception.camera.replay.camera import open_source
from zc_perception.nodes import triggers
from zc_perception.nodes.capture import CaptureNode


class Caller(Onlooker):
    """Another program; each call has its own client, so that several can wait at once."""

    def __init__(self, domain: int, camera: CameraFaults, node: CaptureNode) -> None:
        super().__init__(domain)
        self.camera, self.capture = camera, node

    def call(self) -> Any:
        client = self.node.create_client(Trigger, '/capture/snapshot')
        wait_until_known(client, self.node, self.capture)
        return client.call_async(Trigger.Request())

    def answer(self) -> Trigger.Response:
        future = self.call()
        self.until(future.done, 'an answer')
        return future.result()


@contextmanager
def capturing(domain: int, **parameters: Any) -> Iterator[Caller]:
    camera = CameraFaults()
    with ros(domain) as context:
        node = CaptureNode(
            camera_factory=camera, context=context, parameter_overrides=overrides(parameters)
        )
        with spun(context, node), Caller(domain, camera, node) as caller:
            yield caller
    assert not has_a_thread(), 'it has ended'


def has_a_thread() -> bool:
    return any(thread.name.startswith('snapshot') for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeout, so that a running camera gives a frame in time on a slow machine."""
    monkeypatch.setattr(triggers, 'FRAME_WAIT_S', WAIT_S)


def test_a_picture_and_bytes_that_replay_plays(free_domain: int, tmp_path: Path) -> None:
    with capturing(free_domain, snapshot_folder=str(tmp_path / 'shots')) as run:
        assert not has_a_thread(), 'nobody has asked for one yet'
        answers = [run.answer() for _ in range(2)]
        assert [answer.success for answer in answers] == [True, True], answers
        for answer in answers:
            paths = [Path(part) for part in answer.message.partition(': ')[2].split(', ')]
            assert [path.suffix for path in paths] == ['.mcap', '.png']
            assert (
                answer.message.startswith('frame ')
                and f'{SIZE[0]}x{SIZE[1]} NV12' in answer.message
            )
            source = open_source(str(paths[0]))
            planes = [
                np.zeros((SIZE[1], SIZE[0]), np.uint8),
                np.zeros((SIZE[1] // 2, SIZE[0] // 2, 2), np.uint8),
            ]
            assert source.advance() is not None and source.read(planes)
            source.close()
            assert planes[0].std() > 10
            assert cv2.imread(str(paths[1])).shape == (SIZE[1], SIZE[0], 3)
        assert answers[0].message != answers[1].message
        assert run.capture.ledger.count('snapshot') == 2
        run.until(
            lambda: (
                not any(
                    'snapshot' in holder for holder in run.capture.camera.pool.statistics().holders
                )
            ),
            'its leases are back',
        )


def test_the_folder_changes_while_it_runs_and_may_be_below_the_home(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'file').write_text('')
    monkeypatch.setenv('ROS_HOME', str(tmp_path / 'ros'))
    monkeypatch.setenv('SHOTS', str(tmp_path))
    with capturing(free_domain) as run:
        assert f'{tmp_path}/ros/zc_perception/snapshots/capture_' in run.answer().message
        assert not set_or_why_not(run.capture, 'snapshot_folder', '$SHOTS/else')
        assert f'{tmp_path}/else/capture_' in run.answer().message
        monkeypatch.chdir(tmp_path)
        assert not set_or_why_not(run.capture, 'snapshot_folder', 'below')
        assert f': {tmp_path}/below/capture_' in run.answer().message, (
            'who reads the answer is in another folder'
        )
        assert set_or_why_not(run.capture, 'snapshot_folder', ' ')
        assert not set_or_why_not(run.capture, 'snapshot_folder', str(tmp_path / 'file' / 'below'))
        answer = run.answer()
        assert not answer.success and '\n' not in answer.message
        written = f"no snapshot: nothing was written to '{tmp_path}/file"
        assert answer.message.startswith(written) and 'Not a directory' in answer.message
        assert "set parameter 'snapshot_folder'" in answer.message


def test_without_a_frame_the_answer_says_why_in_time(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capturing(free_domain, snapshot_folder=str(tmp_path)) as run:
        assert run.answer().success
        run.camera.mode = 'unplugged'
        run.until(lambda: run.capture.supervisor.camera is None, 'a loss')
        with monkeypatch.context() as patch:
            patch.setattr(triggers, 'FRAME_WAIT_S', 0.3)
            answer = run.answer()
        assert not answer.success
        assert answer.message.startswith(
            'no snapshot: no frame came within 0.3 s: '
        ) and answer.message.endswith('; see /diagnostics')
        assert 'ENODEV' in answer.message or 'No such device' in answer.message
        run.camera.mode = ''
        run.until(lambda: run.capture.supervisor.camera is not None, 'the camera')
        assert run.answer().success
    assert len(list(tmp_path.iterdir())) == 4


def test_a_slow_disk_keeps_neither_the_camera_nor_the_executor_nor_later_callers(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    began = threading.Event()
    real = Snapshot.write

    def slow(self: Snapshot, folder: Path, prefix: str) -> Any:
        began.set()
        disk.wait(WAIT_S)
        return real(self, folder, prefix)

    monkeypatch.setattr(Snapshot, 'write', slow)
    with capturing(free_domain, snapshot_folder=str(tmp_path)) as run:
        first = run.call()
        run.until(began.is_set, 'the write begins')
        captured = run.capture.camera.statistics().captured
        run.until(
            lambda: run.capture.camera.statistics().captured > captured + 10, 'the camera goes on'
        )
        assert not any(
            'snapshot' in holder for holder in run.capture.camera.pool.statistics().holders
        ), 'no slot waits for the disk'
        client = run.node.create_client(GetParameters, '/capture/get_parameters')
        wait_until_known(client, run.node, run.capture)
        asked = client.call_async(GetParameters.Request(names=['slots']))
        run.until(asked.done, 'the executor goes on')
        waiting = [run.call() for _ in range(4)]
        run.until(lambda: run.capture._snapshots._requests.qsize() == 4, 'four wait')
        refused = run.answer()
        assert not refused.success and refused.message == (
            'no snapshot: 4 snapshots wait already; is the disk slow?; call again later'
        )
        assert not first.done()
        disk.set()
        run.until(
            lambda: first.done() and all(future.done() for future in waiting), 'all are answered'
        )
        assert all(future.result().success for future in (first, *waiting))
    assert len(list(tmp_path.iterdir())) == 10


def test_a_node_that_is_not_active_refuses_at_once_and_those_who_wait_too(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, 'FRAME_WAIT_S', 10 * WAIT_S)  # a call that waits this long fails
    with capturing(free_domain, snapshot_folder=str(tmp_path)) as run:
        assert run.answer().success
        run.camera.mode = 'silent'
        assert run.camera.silent.wait(WAIT_S), 'the last frame is out'
        waiting = run.call()
        run.until(lambda: run.capture._snapshots._wanted, 'it waits for a frame')
        run.capture.trigger_deactivate()
        run.until(waiting.done, 'an answer to who waits')
        answer = waiting.result()  # the node may still be deactivating
        assert not answer.success and answer.message.startswith('no snapshot: the node is ')
        assert run.answer().message == (
            'no snapshot: the node is inactive, and no frames flow; ros2 lifecycle set '
            '/capture activate'
        )
        run.capture.trigger_cleanup()
        assert run.answer().message == (
            'no snapshot: the node is unconfigured, and no frames flow; ros2 lifecycle set '
            '/capture configure'
        )
        run.camera.mode = ''
        run.capture.trigger_configure()
        run.capture.trigger_activate()
        assert run.answer().success, 'the advice helps'
