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

"""The capture node when its camera disappears, changes and returns; its service, its clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
import threading
import time
from typing import Any
from unittest.mock import create_autospec, Mock

from camera.video_kit import halved, rewritten, scenes, write_video
from nodes.managed import Managed, status
from nodes.plug_kit import HOG, Plug, running
from nodes.ros_kit import alone, Onlooker, set_or_why_not, WAIT_S
import pytest
from rclpy.time import Time
from sensor_msgs.msg import CameraInfo, Image
from sensor_msgs.srv import SetCameraInfo
from waiting import until

from zc_perception.camera.camera import Camera, CameraOptions
from zc_perception.camera.clock import CaptureClock, StampClock
from zc_perception.camera.gstreamer import camera as gstreamer_camera
from zc_perception.camera.v4l2 import camera as v4l2_camera
from zc_perception.errors import CameraChangedError, CameraLostError, ConfigError
from zc_perception.memory import heaps as heaps_module
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.nodes.capture import CameraFactory, CaptureNode
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.inference import InferenceNode
from zc_perception.observe.diagnostics import Level, Status

pytestmark = pytest.mark.usefixtures('ros_home')


def test_an_unplugged_camera_is_an_error_until_it_is_back_and_detections_go_on(
    free_domain: int,
) -> None:
    plug = Plug()
    with running(free_domain, plug, HOG) as bench:
        inference = bench.others[0]
        bench.eventually(lambda: inference.processed >= 3)
        first = bench.node.camera
        plug.pull()
        bench.eventually(lambda: bench.status('camera').level is Level.ERROR)
        found = bench.status('camera')
        assert 'unplugged: ENODEV' in found.message or 'plug it in' in found.message
        bench.eventually(lambda: bench.status('camera').values['attempts'] >= 1)
        before = inference.processed
        plug.present = True
        bench.eventually(lambda: inference.processed >= before + 3)
        assert bench.node.camera is not first and first.pool_statistics() is not None
        bench.eventually(lambda: bench.status('camera').level is Level.OK)
        processed = inference.processed
        found = bench.status('camera')
        assert found.values['openings'] == 2 and found.values['times_lost'] == 1
        assert found.values['captured'] >= processed, 'counted over both openings'


def test_a_format_change_reconfigures_pool_links_and_imports(free_domain: int) -> None:
    plug = Plug((128, 96), (192, 128))
    with running(free_domain, plug, HOG) as bench:
        inference = bench.others[0]
        sizes = []
        inference.observers.append(
            lambda entry, found: sizes.append((entry.frame.data.width, entry.frame.data.height))
        )
        info = []
        bench.user.create_subscription(
            CameraInfo, 'camera_info', lambda m: info.append((m.width, m.height)), 5
        )
        bench.eventually(lambda: len(sizes) >= 3 and info)
        plug.opened[-1].error = CameraChangedError('the source is 192x128 now')
        bench.eventually(lambda: (192, 128) in sizes and (192, 128) in info)
        assert sizes == sorted(sizes), 'none of the old size after the first of the new'
        assert bench.status('camera').values['times_lost'] == 0
        assert '192x128' in str(bench.status('negotiation').values['settings'])


def test_a_slow_camera_is_opened_on_its_own_thread_and_a_stop_does_not_wait_for_it(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, checked = threading.Event(), []
    threads: list[str] = []

    def dead(self: Any, options: CameraOptions) -> None:
        threads.append(threading.current_thread().name)
        opening.set()
        while not options.stopping():
            time.sleep(0.005)
        raise CameraLostError('stopped')

    monkeypatch.setattr(gstreamer_camera.GStreamerCamera, '__init__', dead)
    monkeypatch.setattr(gstreamer_camera, 'check_description', checked.append)
    with running(free_domain, None, camera='gstreamer', pipeline='deadsrc') as bench:
        assert opening.wait(WAIT_S) and threads == ['camera'] and checked == ['deadsrc']
        assert bench.status('camera').level is Level.WARN
        with pytest.raises(CameraLostError, match='no camera is open: it is not there yet'):
            _ = bench.node.camera
        bench.node.supervisor.stop(timeout_s=WAIT_S)
        assert not bench.node.supervisor._thread.is_alive()


def test_a_pipeline_that_can_not_be_made_ends_the_start_at_once(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(description: str) -> None:
        raise ConfigError(f"pipeline '{description}': no element 'deadsrc'")

    monkeypatch.setattr(gstreamer_camera, 'check_description', refuse)
    with (
        pytest.raises(ConfigError, match=r"node 'capture': pipeline 'deadsrc': no element"),
        running(free_domain, None, camera='gstreamer', pipeline='deadsrc'),  # type: ignore
    ):
        raise AssertionError('never reached')


def calibrated(width: int, height: int) -> CameraInfo:
    info = CameraInfo(width=width, height=height, distortion_model='plumb_bob')
    info.d = [0.1, -0.2, 0.001, 0.002, 0.0]
    info.k = [100.0, 0.0, 64.0, 0.0, 101.0, 48.0, 0.0, 0.0, 1.0]
    info.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    info.p = [100.0, 0.0, 64.0, 0.0, 0.0, 101.0, 48.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    return info


def test_a_calibration_that_is_set_is_kept_and_published_with_each_frame(
    free_domain: int, ros_home: Path
) -> None:
    with running(free_domain, Plug(), camera_name='front') as bench:
        infos: list[CameraInfo] = []
        bench.user.create_subscription(CameraInfo, 'camera_info', infos.append, 5)
        bench.eventually(lambda: infos)
        assert not infos[0].k.any() and (infos[0].width, infos[0].height) == (128, 96), (
            'uncalibrated, but of the right size'
        )
        assert 'not calibrated' in bench.status('calibration').message
        done = bench.call(
            SetCameraInfo,
            'set_camera_info',
            SetCameraInfo.Request(camera_info=calibrated(128, 96)),
        )
        assert done.success and 'front.yaml' in done.status_message
        asked = SetCameraInfo.Request(camera_info=calibrated(640, 480))
        assert bench.call(SetCameraInfo, 'set_camera_info', asked).success
        found = bench.status('calibration')
        assert (
            found.level is Level.WARN
            and found.text().count("calibrate at the camera's size") == 1
        )
        assert '640x480' in found.message and '128x96' in found.message
        asked = SetCameraInfo.Request(camera_info=calibrated(128, 96))
        assert bench.call(SetCameraInfo, 'set_camera_info', asked).success
        bench.eventually(lambda: infos[-1].k[0] == 100.0)
        assert infos[-1].header.frame_id == 'lens' and infos[-1].header.stamp.sec > 0
        assert bench.status('calibration').values['calibrated'] is True
    assert (ros_home / 'camera_info' / 'front.yaml').is_file()
    with running(free_domain, Plug(), camera_name='front') as bench:
        bench.eventually(lambda: bench.status('calibration').message == 'calibrated')


def test_the_command_of_the_page_brings_the_calibrator_picture_and_service(
    free_domain: int, ros_home: Path
) -> None:
    """The calibrator subscribes to ``image`` and calls ``camera/set_camera_info``."""
    page = (Path(__file__).parents[2] / 'docs' / 'calibration.md').read_text(encoding='utf-8')
    command = page.split('```sh\n')[1].split('```')[0].replace('\\\n', ' ')
    arguments = command[slice(command.index('--ros-args'), None)].split()
    with (
        running(free_domain, Plug(), camera_name='front', image_encoding='mono8') as bench,
        Onlooker(free_domain, 'cameracalibrator', *arguments) as calibrator,
    ):
        pictures = calibrator.hear(Image, 'image', 1)
        client = calibrator.node.create_client(SetCameraInfo, 'camera/set_camera_info')
        assert client.wait_for_service(WAIT_S)
        calibrator.until(lambda: pictures, 'a picture')
        assert pictures[0].encoding == 'mono8'
        done = client.call_async(SetCameraInfo.Request(camera_info=calibrated(128, 96)))
        calibrator.until(done.done, 'an answer')
        assert done.result().success
        assert bench.status('calibration').message == 'calibrated'
    assert (ros_home / 'camera_info' / 'front.yaml').is_file()


SMALL = {'shared_memory': False, 'width': 128, 'height': 128, 'heap': 'memfd'}


def test_a_file_that_is_named_and_not_there_is_a_warning_and_the_usual_one_is_not(
    run: Managed,
) -> None:
    usual = status(run.make(CaptureNode, SMALL, camera_factory=Plug()), 'calibration')
    assert usual.level is Level.OK and "not calibrated: there is no '" in usual.message
    named = status(
        run.make(CaptureNode, {**SMALL, 'camera_info_url': 'file:///nowhere/x.yaml'}),
        'calibration',
    )
    assert named.level is Level.WARN and "there is no '/nowhere/x.yaml'" in named.message
    assert named.advice == "run camera_calibration, or set 'camera_info_url'"


def _threads() -> int:
    return len(list(Path('/proc/self/task').iterdir()))


@pytest.mark.parametrize(
    ('kind', 'values'),
    [(CaptureNode, {'video': '/no/such', 'camera': 'replay'}), (InferenceNode, {'model': 'rood'})],
)
def test_a_node_that_cannot_be_made_leaves_no_participant(
    kind: Any, values: dict[str, Any], free_domain: int
) -> None:
    kept: list[Any] = []

    def attempt() -> None:
        with pytest.raises(ConfigError) as refused, alone(free_domain, kind, values):
            pass
        # Keep the error, so that the node can't be ended by the deletion of its traceback.
        kept.append(refused)

    attempt()
    before = _threads()
    for _ in range(3):
        attempt()
    # The kernel may list a thread for a moment after it was joined.
    until(lambda: _threads() <= before, lambda: f'{_threads()} threads, before: {before}')


@pytest.fixture
def node(free_domain: int) -> Iterator[CaptureNode]:
    with alone(free_domain, CaptureNode, {'shared_memory': False}) as made:
        yield made


def simulate(node: CaptureNode, on: bool) -> None:
    assert not set_or_why_not(node, 'use_sim_time', on)


def tell(node: CaptureNode, time_ns: int) -> None:
    clock = node.get_clock()
    clock.set_ros_time_override(Time(nanoseconds=time_ns, clock_type=clock.clock_type))


def test_a_simulation_that_tells_no_time_is_a_warning_until_it_does(node: CaptureNode) -> None:
    def stamped() -> Status:
        node.camera.clock.stamp(time.monotonic_ns(), CaptureClock.MONOTONIC)
        return status(node, 'clock')

    simulate(node, True)
    found = stamped()
    assert found.level is Level.WARN and found.message.startswith(
        'use_sim_time is true and no /clock has come'
    )
    assert 'ros2 bag play --clock' in found.advice
    tell(node, 5)
    for _ in range(2):  # a clock that pauses is no reason to warn
        assert (stamped().level, stamped().message) == (Level.OK, 'simulated')
    simulate(node, False)
    assert 'use_sim_time' not in stamped().message


def test_what_a_recording_lacks_is_said_at_its_end_before_diagnostics_are_due(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = Mock()
    monkeypatch.setattr(CaptureNode, 'get_logger', lambda node: logger)
    whole = write_video(tmp_path / 'whole.mkv', 'ffv1', scenes(20), options={'g': '1'})
    broken = rewritten(whole, tmp_path / 'broken.mkv', halved(2))
    content = broken.read_bytes()
    broken.write_bytes(content[: len(content) // 2])
    values = {'camera': 'replay', 'video': str(broken), 'keep_all': True, 'start_delay': 0.0}
    with alone(free_domain, CaptureNode, values) as node:
        node.configure_now()
        logger.warning.reset_mock()
        node.start()
        until(lambda: node.finished, 'the end')
    said = [call.args[0] for call in logger.warning.call_args_list]
    assert len(said) == 1
    assert 'counted as bad: frame 2' in said[0] and 'its header promises' in said[0]


def factory(
    clock: StampClock | None = None,
    *,
    now_ns: Callable[[], int] = time.time_ns,
    heard: Callable[[], Sequence[BufferConstraints]] = tuple,
    **values: Any,
) -> CameraFactory:
    parameters = {spec.name: spec.default for spec in NODES['capture']} | values
    return CameraFactory(CameraOptions(parameters, now_ns, CopyLedger(), clock), heard)


def constructor(kind: type[Camera], monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Replace a class's constructor by one that checks and records its arguments."""
    double = create_autospec(kind.__init__, return_value=None)
    monkeypatch.setattr(kind, '__init__', double)
    return double  # type: ignore[no-any-return]


def test_a_lost_v4l2_camera_is_looked_for_where_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    double = constructor(v4l2_camera.V4l2Camera, monkeypatch)
    monkeypatch.setattr(
        v4l2_camera, 'find_device', lambda identity: '/dev/video5' if identity == 'usb 7' else None
    )
    for identity, path in (
        ('', '/dev/video0'),
        ('usb 7', '/dev/video5'),
        ('usb 8', '/dev/video0'),
    ):
        factory(camera='v4l2').open(identity)
        options, found = double.call_args.args[1:]
        assert (found or options.parameters['device']) == path


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        ({'camera': 'gstreamer'}, "'pipeline' is empty"),
        ({'camera': 'replay'}, "'video' is empty"),
        (
            {'heap': 'nvbufsurface'},
            "heap 'nvbufsurface' is not known; use auto, dma_heap/NAME .*, udmabuf or memfd",
        ),
    ],
)
def test_parameters_that_do_not_go_together_are_named(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        factory(**{'heap': 'memfd', **values}).open('')


@pytest.mark.parametrize(
    ('heap', 'offered', 'note'),
    [
        ('memfd', ('memfd',), "parameter 'heap' is 'memfd'"),
        ('auto', ('udmabuf', 'memfd'), 'this machine has no {}'),
    ],
)
def test_a_named_heap_is_the_only_offer_and_auto_offers_all_that_work(
    heap: str, offered: tuple[str, ...], note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heaps_module, 'DMA_HEAP_DIRECTORY', str(tmp_path / 'dma_heap'))
    monkeypatch.setattr(heaps_module, 'UDMABUF_DEVICE', '/dev/null')
    monkeypatch.setattr(heaps_module.Udmabuf, 'allocate', heaps_module.SealedMemfd.allocate)
    camera = factory(heap=heap, width=64, height=64).open('')
    constraints = camera.constraints()
    camera.close()
    assert (constraints.heaps, constraints.memory_note) == (
        offered,
        note.format(tmp_path / 'dma_heap'),
    )
