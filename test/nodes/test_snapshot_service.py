"""``~/snapshot`` as another program calls it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import rclpy
from nodes.fault_kit import SIZE, CameraFaults
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

from zc_perception.camera.replay.camera import open_source
from zc_perception.camera.snapshot import Snapshot
from zc_perception.nodes import snapshot
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.process import NodeGroup

WAIT_S = 30.0


class Caller:
    """Another program; each call on a client of its own, so that several wait at the same time."""

    def __init__(self, domain: int, camera: CameraFaults, node: CaptureNode) -> None:
        self.camera, self.capture = camera, node
        self._context = rclpy.Context()
        rclpy.init(context=self._context, domain_id=domain)
        self.node = rclpy.create_node('caller', context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)

    def call(self) -> Any:
        client = self.node.create_client(Trigger, '/capture/snapshot')
        assert client.wait_for_service(WAIT_S)
        return client.call_async(Trigger.Request())

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, what
            self._executor.spin_once(timeout_sec=0.02)

    def answer(self) -> Trigger.Response:
        future = self.call()
        self.until(future.done, 'an answer')
        return future.result()

    def close(self) -> None:
        self._executor.shutdown()
        self.node.destroy_node()
        self._context.try_shutdown()


@contextmanager
def capturing(domain: int, **parameters: Any) -> Iterator[Caller]:
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain)
    camera = CameraFaults()
    caller: Caller | None = None
    try:
        overrides = [Parameter(name, value=value) for name, value in parameters.items()]
        node = CaptureNode(camera_factory=camera, context=context, parameter_overrides=overrides)
        failed = threading.Event()
        with NodeGroup(context, (node,), failed.set) as group:
            group.start()
            caller = Caller(domain, camera, node)
            yield caller
            assert group.failure is None, group.failure
        assert not [thread for thread in threading.enumerate() if thread.name.startswith('snapshot')], 'its thread has ended'
    finally:
        if caller is not None:
            caller.close()
        context.try_shutdown()


def test_a_picture_and_bytes_that_replay_plays(free_domain: int, tmp_path: Path) -> None:
    with capturing(free_domain, snapshot_folder=str(tmp_path / 'shots')) as run:
        assert not [thread for thread in threading.enumerate() if thread.name.startswith('snapshot')], 'nobody has asked for one yet'
        answers = [run.answer() for _ in range(2)]
        assert [answer.success for answer in answers] == [True, True], answers
        for answer in answers:
            paths = [Path(part) for part in answer.message.partition(': ')[2].split(', ')]
            assert [''.join(path.suffixes) for path in paths] == ['.nv12', '.nv12.yaml', '.png'] and all(path.exists() for path in paths)
            assert answer.message.startswith('frame ') and f'{SIZE[0]}x{SIZE[1]} NV12' in answer.message
            source = open_source(str(paths[0]))
            planes = [np.zeros((SIZE[1], SIZE[0]), np.uint8), np.zeros((SIZE[1] // 2, SIZE[0] // 2, 2), np.uint8)]
            assert source.seek(0, 0) is not None and source.read(planes)
            source.close()
            assert b''.join(plane.tobytes() for plane in planes) == paths[0].read_bytes() and planes[0].std() > 10
            assert cv2.imread(str(paths[2])).shape == (SIZE[1], SIZE[0], 3)
        assert answers[0].message != answers[1].message
        assert run.capture.ledger.count('snapshot') == 2
        run.until(lambda: not any('snapshot' in holder for holder in run.capture.camera.pool.statistics().holders), 'its leases are back')


def test_the_folder_changes_while_it_runs_and_may_be_below_the_home(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('ROS_HOME', str(tmp_path / 'ros'))
    monkeypatch.setenv('SHOTS', str(tmp_path))
    with capturing(free_domain) as run:
        assert f'{tmp_path}/ros/zc_perception/snapshots/capture_' in run.answer().message
        assert run.capture.set_parameters([Parameter('snapshot_folder', value='$SHOTS/else')])[0].successful
        assert f'{tmp_path}/else/capture_' in run.answer().message


def test_without_a_frame_the_answer_says_why_in_time(free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, 'FRAME_WAIT_S', 0.3)
    with capturing(free_domain, snapshot_folder=str(tmp_path)) as run:
        assert run.answer().success
        run.camera.mode = 'unplugged'
        run.until(lambda: run.capture.supervisor.camera is None, 'a loss')
        answer = run.answer()
        assert not answer.success
        assert answer.message.startswith('no frame came within 0.3 s: ') and answer.message.endswith('; see /diagnostics')
        assert 'ENODEV' in answer.message or 'No such device' in answer.message
        run.camera.mode = ''
        run.until(lambda: run.capture.supervisor.camera is not None, 'the camera')
        assert run.answer().success
    assert len(list(tmp_path.iterdir())) == 6


def test_a_folder_that_takes_no_file_is_one_sentence(free_domain: int, tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('')
    with capturing(free_domain, snapshot_folder=str(tmp_path / 'file' / 'below')) as run:
        answer = run.answer()
        assert not answer.success and '\n' not in answer.message
        assert answer.message.startswith(f"nothing was written to '{tmp_path}/file") and 'Not a directory' in answer.message
        assert "set parameter 'snapshot_folder'" in answer.message


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
        run.until(lambda: run.capture.camera.statistics().captured > captured + 10, 'the camera goes on')
        assert not any('snapshot' in holder for holder in run.capture.camera.pool.statistics().holders), 'no slot waits for the disk'
        client = run.node.create_client(_get_parameters(), '/capture/get_parameters')
        assert client.wait_for_service(WAIT_S)
        asked = client.call_async(_get_parameters().Request(names=['slots']))
        run.until(asked.done, 'the executor goes on')
        waiting = [run.call() for _ in range(4)]
        run.until(lambda: run.capture._snapshots._requests.qsize() == 4, 'four wait')
        refused = run.answer()
        assert not refused.success and refused.message.startswith('4 snapshots wait already') and 'is the disk slow?' in refused.message
        assert not first.done()
        disk.set()
        run.until(lambda: first.done() and all(future.done() for future in waiting), 'all are answered')
        assert all(future.result().success for future in (first, *waiting))
    assert len(list(tmp_path.iterdir())) == 15


def _get_parameters() -> Any:
    from rcl_interfaces.srv import GetParameters

    return GetParameters


def test_the_node_ends_while_a_snapshot_waits(free_domain: int, tmp_path: Path) -> None:
    with capturing(free_domain, snapshot_folder=str(tmp_path)) as run:
        assert run.answer().success
        run.camera.mode = 'silent'
        assert run.camera.silent.wait(WAIT_S), 'the last frame is out'
        run.call()
        run.until(lambda: run.capture._snapshots._wanted, 'it waits for a frame')
    assert os.listdir(tmp_path) and not [thread for thread in threading.enumerate() if thread.name.startswith('snapshot')]
