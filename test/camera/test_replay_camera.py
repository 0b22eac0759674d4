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

"""The replay camera on a small MJPEG file whose frames have numbers as grey levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import os
from pathlib import Path
import threading
import time
from typing import Any

from camera.replay_kit import captured, NOW_NS, played, replay
import cv2
import numpy as np
import pytest
from waiting import until

from zc_perception.camera.replay.camera import ReplayCamera
from zc_perception.camera.replay.pictures import ImageSource
from zc_perception.camera.supervisor import CameraCondition, CameraState, CameraSupervisor
from zc_perception.errors import ConfigError, LayoutError, RecordingError
from zc_perception.frame import Frame
from zc_perception.memory.ledger import CopyLedger, LedgerEntry

pytestmark = pytest.mark.usefixtures('no_fd_leak')
LENGTH, FPS = 8, 25.0
STEP = 28


def write_video(path: Path, width: int, height: int) -> str:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*'MJPG'), FPS, (width, height))
    assert writer.isOpened()
    for index in range(LENGTH):
        writer.write(np.full((height, width, 3), 10 + STEP * index, np.uint8))
    writer.release()
    return str(path)


@pytest.fixture(scope='module')
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_video(tmp_path_factory.mktemp('video') / 'levels.avi', 64, 48)


@pytest.fixture
def ledger() -> CopyLedger:
    return CopyLedger()


@pytest.fixture
def open_camera(video: str, ledger: CopyLedger) -> Iterator[Callable[..., ReplayCamera]]:
    cameras: list[ReplayCamera] = []

    def make(path: str = video, *, slots: int = 4, **parameters: Any) -> ReplayCamera:
        cameras.append(replay(path, ledger=ledger, constraints={'slots': slots}, **parameters))
        return cameras[-1]

    yield make
    for camera in cameras:
        camera.close()


def index_of(frame: Frame) -> int:
    """Return the number of the frame in the file, from its grey level."""
    picture = frame.bgr()
    level = float(picture.mean())
    assert np.ptp(picture.astype(int), axis=2).max() <= 6, 'grey has no colour'
    index = round((level - 10) / STEP)
    assert abs(level - 10 - STEP * index) < 5
    return index


def drained(camera: ReplayCamera) -> list[Frame]:
    return [frame for frame, _ in played(camera)]


def test_keep_all_gives_every_frame_once_with_the_file_s_times(
    open_camera: Callable[..., ReplayCamera], ledger: CopyLedger
) -> None:
    camera, seen = open_camera(loop=True), []
    assert (camera.width, camera.height, camera.framerate) == (64, 48, FPS)
    while not camera.ended:
        frame = camera.capture()
        if frame is not None:
            seen.append((index_of(frame), frame.data.sequence, frame.header.stamp_ns))
            frame.release()
    assert seen == [(i, i, NOW_NS + round(i * 1e9 / FPS)) for i in range(LENGTH)]
    assert camera.capture() is None and camera.ended
    assert (camera.statistics().captured, camera.statistics().dropped) == (LENGTH, 0)
    assert ledger.entries() == {'decode': LedgerEntry(LENGTH, LENGTH * 64 * 48 * 3 // 2)}


def test_keep_all_waits_for_a_slot_instead_of_dropping(
    open_camera: Callable[..., ReplayCamera],
) -> None:
    camera = open_camera(slots=2)
    held = [captured(camera), captured(camera)]
    threading.Timer(0.03, lambda: [frame.release() for frame in held]).start()
    frames = [*held, *drained(camera)]
    assert [frame.data.sequence for frame in frames] == list(range(LENGTH))
    assert camera.statistics().dropped == 0


def test_a_frame_that_has_no_slot_is_left_out_as_if_it_had_been_live(
    open_camera: Callable[..., ReplayCamera], ledger: CopyLedger
) -> None:
    camera = open_camera(slots=2, keep_all=False, framerate=1000.0)
    held = [captured(camera), captured(camera)]
    assert [camera.capture() for _ in range(3)] == [None] * 3
    for frame in held:
        frame.release()
    after = captured(camera)
    assert index_of(after) == after.data.sequence == 5
    assert ledger.count('decode') == 3, 'what nobody gets is not decoded'
    assert camera.statistics().no_slot == 3
    after.release()


@pytest.mark.parametrize(
    ('rate', 'framerate', 'pace'), [(1.0, 0.0, FPS), (0.5, 0.0, FPS / 2), (2.0, 12.5, 12.5)]
)
def test_the_file_s_own_pace_times_the_rate_or_the_pace_that_is_asked_for(
    open_camera: Callable[..., ReplayCamera], rate: float, framerate: float, pace: float
) -> None:
    camera = open_camera(keep_all=False, replay_rate=rate, framerate=framerate)
    assert camera.framerate == pace


def test_a_video_has_no_headers_of_its_own(open_camera: Callable[..., ReplayCamera]) -> None:
    with pytest.raises(ConfigError, match="has no headers: set parameter 'stamps' to 'now'"):
        open_camera(stamps='recorded')


def test_an_odd_last_row_and_column_are_cut_off(
    open_camera: Callable[..., ReplayCamera], tmp_path: Path
) -> None:
    camera = open_camera(write_video(tmp_path / 'odd.avi', 65, 49))
    assert (camera.width, camera.height) == (64, 48)
    assert [frame.data.width for frame in drained(camera)] == [64] * LENGTH


@pytest.mark.parametrize(('width', 'height'), [(32, 24), (40, 60)])
def test_other_sizes_are_scaled(
    open_camera: Callable[..., ReplayCamera], width: int, height: int
) -> None:
    camera = open_camera(width=width, height=height)
    for wanted in range(3):
        with captured(camera) as frame:
            found = frame.data.width, frame.data.height, index_of(frame)
        assert found == (width, height, wanted)


def test_odd_sizes_are_refused_with_advice(open_camera: Callable[..., ReplayCamera]) -> None:
    with pytest.raises(LayoutError, match='is not a multiple of 2, which NV12 needs; use '):
        open_camera(width=33)


def test_a_missing_file_is_named(open_camera: Callable[..., ReplayCamera], tmp_path: Path) -> None:
    words = "nothing.avi' does not exist; set parameter 'video' to the path of a video file or an"
    with pytest.raises(ConfigError, match=f"video '{tmp_path}/{words}"):
        open_camera(str(tmp_path / 'nothing.avi'))
    with pytest.raises(ConfigError, match="parameter 'video' is empty"):
        open_camera('')


@pytest.mark.parametrize('suffix', ['avi', 'mcap', 'png'])
def test_a_pipe_is_not_waited_for(
    open_camera: Callable[..., ReplayCamera], tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f'pipe.{suffix}'
    os.mkfifo(path)
    words = "is neither a file nor a folder; set parameter 'video' to"
    with pytest.raises(ConfigError, match=f"video '{path}' {words}"):
        open_camera(str(path), width=64, height=48)


def test_stopping_wakes_a_waiting_capture(open_camera: Callable[..., ReplayCamera]) -> None:
    camera = open_camera(keep_all=False, framerate=0.01)
    captured(camera).release()
    threading.Timer(0.03, camera.stop).start()
    started = time.monotonic()
    assert camera.capture() is None
    assert time.monotonic() - started < 60.0, 'the next frame would be due after 100 s'


def write_folder(folder: Path, *sizes: int) -> str:
    for number, size in enumerate(sizes):
        picture = np.full((size, size, 3), 10 + STEP * number, np.uint8)
        cv2.imwrite(str(folder / f'{number}.png'), picture)
    return str(folder)


def test_a_recording_that_fails_in_the_middle_ends_there(
    open_camera: Callable[..., ReplayCamera], tmp_path: Path
) -> None:
    """Reopening would start it at its first frame, again and again."""
    path, opened, delivered = write_folder(tmp_path, 64, 64, 64, 32, 64), [], []
    conditions: list[CameraCondition] = []

    def open_it(identity: str) -> ReplayCamera:
        opened.append(open_camera(path))
        return opened[-1]

    supervisor = CameraSupervisor(
        'replay',
        open_it,
        lambda camera: None,
        lambda frame: delivered.append(index_of(frame)),
        conditions.append,
        first_retry_s=0.001,
    )
    supervisor.open_now()
    supervisor.start()
    ends = (CameraState.FAILED, CameraState.LOST)
    until(lambda: conditions and conditions[-1].state in ends)
    supervisor.stop()
    assert supervisor.finished and conditions[-1].state is CameraState.FAILED
    reason = conditions[-1].reason
    assert reason.startswith('frame 3: picture ') and '3.png' in reason
    assert delivered == [0, 1, 2] and len(opened) == 1


def test_a_recording_that_can_not_be_read_up_to_its_start_is_no_matter_of_waiting(
    open_camera: Callable[..., ReplayCamera], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: ImageSource) -> None:
        raise RecordingError('the disk has gone')

    monkeypatch.setattr(ImageSource, 'advance', fail)
    with pytest.raises(ConfigError, match='frame 0: the disk has gone'):
        open_camera(write_folder(tmp_path, 64))
