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

"""The libcamera camera with a module that imitates two generations of bindings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, ExitStack
import sys
import time
from types import ModuleType
from typing import Any

from camera.camera_options import camera_options
from camera.gstreamer_kit import next_frame, WAIT_S
from doubles.libcamera_module import Camera, free_module, make_module
import pytest
from waiting import until

from zc_perception.camera.libcamera import LibcameraCamera
from zc_perception.errors import CameraBusyError, CameraError, CameraLostError, ConfigError
from zc_perception.frame import Frame
from zc_perception.memory.pool import SlotState
from zc_perception.negotiation.agreement import agree
from zc_perception.pixel.colorimetry import Matrix, Range

pytestmark = pytest.mark.usefixtures('no_fd_leak')


OpenCamera = Callable[..., LibcameraCamera]


@pytest.fixture(params=['new', 'old'])
def module(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, no_fd_leak: None
) -> Iterator[Any]:
    made = make_module(request.param)
    made.manager.cameras.append(Camera(made, '/base/soc/i2c0mux/i2c@1/imx708@1a'))
    monkeypatch.setitem(sys.modules, 'libcamera', made)
    yield made
    free_module(made)


@pytest.fixture
def open_camera(module: Any) -> Iterator[OpenCamera]:
    with ExitStack() as cameras:

        def opened(camera: str = '', **options: Any) -> LibcameraCamera:
            options = {'silent': WAIT_S, **options}
            made = LibcameraCamera(camera_options(libcamera_id=camera, **options))
            cameras.enter_context(closing(made))
            made.allocate(agree([made.constraints()], (made.width, made.height)))
            return made

        yield opened


def shown(frame: Frame) -> int:
    with frame.map() as (luma, chroma):
        number = int(luma[0, 0])
        assert (luma == number).all() and (chroma == (number + 1) % 256).all(), (
            'another frame was written over it'
        )
        return number


@pytest.mark.parametrize(
    ('memories', 'places'), [('shared', [(0, 0), (0, 384 * 46)]), ('split', [(0, 0), (1, 0)])]
)
def test_frames_are_the_camera_s_own_buffers(
    memories: str, places: list[tuple[int, int]], module: Any, open_camera: OpenCamera
) -> None:
    module.manager.cameras[0] = Camera(module, 'imx708', memories=memories)
    expected = Matrix.BT709, Range.FULL
    if memories == 'split':  # colours that nobody names are BT.601
        module.manager.cameras[0].color_space, expected = None, (Matrix.BT601, Range.LIMITED)
    camera = open_camera(width=322, height=46, framerate=50.0, pipeline_buffers=6)
    planes = camera.pool.layout.planes
    assert [(p.buffer, p.offset) for p in planes] == places and {p.stride for p in planes} == {384}
    seen = set()
    for number in range(15):
        with next_frame(camera) as frame:
            assert shown(frame) == number == frame.data.sequence
            seen.add(frame.data.buffer_uid)
            colours = frame.data.colorimetry
            assert (colours.matrix, colours.range) == expected
    assert 1 < len(seen) <= 6 == len(camera.slots)
    assert module.manager.cameras[0].started_with == {'FrameDurationLimits': (20000, 20000)}
    assert camera.statistics().captured == 15 and camera.statistics().dropped == 0


def test_a_buffer_is_not_filled_while_somebody_has_it(
    open_camera: OpenCamera,
) -> None:
    camera = open_camera(pipeline_buffers=4)
    held = [next_frame(camera) for _ in range(2)]
    before = [shown(frame) for frame in held]
    for _ in range(12):
        next_frame(camera).release()
    assert [shown(frame) for frame in held] == before
    for frame in held:
        frame.release()
    assert SlotState.LEASED not in camera.pool_statistics().states


def test_stamps_are_of_boottime(module: Any, open_camera: OpenCamera) -> None:
    camera, stamps, errors = open_camera(), [], []
    for _ in range(8):
        with next_frame(camera) as frame:
            stamps.append(frame.header.stamp_ns)
            age = time.time_ns() - frame.header.stamp_ns
            assert 0 <= age < 20_000_000_000
            errors.append(abs(age - (time.monotonic_ns() - frame.data.captured_ns)))
    assert min(errors) < 5_000_000, (
        'what comes between the reads of two clocks is an error: the least counts'
    )
    assert stamps == sorted(set(stamps)) and camera.clock.statistics().implausible == 0
    module.manager.cameras[0].stamps = False
    with next_frame(camera) as frame:
        assert abs(time.time_ns() - frame.header.stamp_ns) < 20_000_000_000


def test_frames_that_are_marked_bad_are_counted_and_queued_again(
    module: Any, open_camera: OpenCamera
) -> None:
    module.manager.cameras[0].bad = {3, 4}
    camera = open_camera(pipeline_buffers=3)
    for number in (0, 1, 2, 5, 6, 7, 8, 9):
        with next_frame(camera) as frame:
            assert frame.data.sequence == number
    found = camera.statistics()
    assert (found.bad, found.lost, found.dropped) == (2, 0, 2)


def lost(camera: LibcameraCamera, words: str) -> None:

    def drained() -> None:
        frame = camera.capture()
        if frame is not None:
            frame.release()

    with pytest.raises(CameraLostError, match=words):
        until(drained, 'the loss')


def test_an_unplugged_camera_is_lost(module: Any, open_camera: OpenCamera) -> None:
    camera = open_camera()
    kept = next_frame(camera)
    module.manager.cameras[0].silent.set()
    module.manager.cameras[0].unplug()
    lost(camera, 'cancelled its requests')
    camera.close()
    shown(kept)
    kept.release()


def test_a_camera_that_runs_on_after_cancelled_requests_is_opened_again(
    module: Any, open_camera: OpenCamera
) -> None:
    camera = open_camera()
    next_frame(camera).release()
    module.manager.cameras[0].cancels.set()
    for _ in range(2):
        lost(camera, 'cancelled its requests')
    camera.close()
    next_frame(open_camera()).release()


def test_a_silent_camera_is_lost(module: Any, open_camera: OpenCamera) -> None:
    camera = open_camera(silent=0.05)
    # The first frame may come later than that, too.
    module.manager.cameras[0].silent.set()
    lost(camera, 'gave no frame for')


def test_each_camera_gets_its_own_requests_in_its_own_thread(
    module: Any, open_camera: OpenCamera
) -> None:
    module.manager.cameras.append(Camera(module, 'imx219', largest=(64, 48)))

    def run(camera: LibcameraCamera) -> list[int]:
        found = []
        for _ in range(40):
            with next_frame(camera) as frame:
                assert frame.data.width == camera.width
                found.append(shown(frame))
        return found

    cameras = open_camera('imx708'), open_camera('imx219')
    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(run, cameras)] == [list(range(40))] * 2


def test_a_busy_camera_says_so(module: Any, open_camera: OpenCamera) -> None:
    module.manager.cameras[0].busy = True
    words = r'acquire the camera: .*busy; end the other program'
    with pytest.raises(CameraBusyError, match=words):
        open_camera()
    module.manager.cameras[0].busy = False
    first = open_camera()
    with pytest.raises(CameraBusyError):
        open_camera()
    first.close()
    assert not module.manager.cameras[0].acquired
    open_camera()


@pytest.mark.parametrize(('change', 'options', 'kind', 'words'), [
    (lambda m: m.manager.cameras.clear(), {}, CameraError, 'found no camera'),
    (lambda m: None, {'camera': '²'}, CameraError, "has 0 cameras with '²' in the id"),
    (lambda m: None, {'camera': 'ov5647'}, CameraError,
     "with 'ov5647' in the id; there are /base/soc/i2c0mux/i2c@1/imx708@1a"),
    (lambda m: m.manager.cameras.append(Camera(m, 'imx708 b')), {'camera': 'imx708'}, CameraError,
     'has 2 cameras'),
    (lambda m: None, {'width': 1280, 'height': 720}, ConfigError,
     "can't do 1280x720; the nearest is 640x480"),
    (lambda m: setattr(m.manager.cameras[0], 'formats', ['YUYV']), {}, ConfigError,
     'has no NV12 stream, it gives YUYV'),
])  # fmt: skip
def test_what_cannot_be_is_said(
    change: Callable[[Any], None], options: dict[str, Any], kind: type[Exception], words: str,
    module: Any,
    open_camera: OpenCamera,
) -> None:  # fmt: skip
    change(module)
    with pytest.raises(kind, match=words):
        open_camera(**options)
    assert not any(camera.acquired for camera in module.manager.cameras)


def test_without_bindings_the_advice_is_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'libcamera', None)
    with pytest.raises(ConfigError, match=r'Python bindings: .*python3-libcamera'):
        LibcameraCamera(camera_options())
    monkeypatch.setitem(sys.modules, 'libcamera', ModuleType('libcamera'))
    with pytest.raises(ConfigError, match="isn't libcamera's"):
        LibcameraCamera(camera_options())
