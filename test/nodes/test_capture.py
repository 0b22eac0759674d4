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

"""The capture node: its camera disappears, changes and returns; clock, controls, snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
import os
from pathlib import Path
import threading
import time
from typing import Any
from unittest.mock import create_autospec, Mock

from camera.video_kit import halved, rewritten, scenes, write_video
import cv2
from nodes.ros_kit import (
    alone,
    answer_of,
    CaptureBench,
    Managed,
    Onlooker,
    overrides,
    set_or_why_not,
    status,
    WAIT_S,
    wait_until_known,
)
import numpy as np
import pytest
from rcl_interfaces.srv import DescribeParameters, GetParameters
from rclpy.parameter import Parameter
from rclpy.time import Time
from sensor_msgs.msg import CameraInfo, Image
from sensor_msgs.srv import SetCameraInfo
from std_srvs.srv import Trigger
from waiting import until

from zc_perception.camera.calibration import CameraInfoStore
from zc_perception.camera.camera import CameraOptions, checked_value, ControlInfo
from zc_perception.camera.clock import CaptureClock
from zc_perception.camera.gstreamer import camera as gstreamer_camera
from zc_perception.camera.recording import Snapshot
from zc_perception.camera.replay.camera import open_source
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.camera.v4l2 import camera as v4l2_camera
from zc_perception.errors import CameraChangedError, CameraError, CameraLostError, ConfigError
from zc_perception.frame import Frame
from zc_perception.memory import heaps as heaps_module
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes import triggers
from zc_perception.nodes.capture import CameraFactory, CaptureNode
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.inference import InferenceNode
from zc_perception.observe.diagnostics import Level, Status
from zc_perception.parameters import ParameterSpec

pytestmark = pytest.mark.usefixtures('ros_home')
CONTROLS = {
    'brightness': ControlInfo('brightness', 'integer', 0, 255, 5, 128, 130, title='Brightness'),
    'horizontal_flip': ControlInfo('horizontal_flip', 'boolean', 0, 1, 1, 0, 0),
    'power_line_frequency': ControlInfo(
        'power_line_frequency', 'menu', 0, 2, 1, 1, 1, {0: 'Disabled', 1: '50 Hz', 2: '60 Hz'}
    ),
    'gain': ControlInfo('gain', 'integer', 0, 10, 1, 0, 7, read_only=True),
    'focus_absolute': ControlInfo('focus_absolute', 'integer', 0, 250, 1, 0, 10),
    'focus_automatic': ControlInfo('focus_automatic', 'boolean', 0, 1, 1, 1, 1),
}


class Plug:
    """A camera's connector: the plugged camera, and the driver's next events."""

    def __init__(self, *sizes: tuple[int, int]) -> None:
        self.sizes = list(sizes) or [(128, 96)]
        self.present = True
        self.opened: list[PluggedCamera] = []
        self.controls = dict(CONTROLS)
        self.says_inactive = True
        self.before_setting: Callable[[], None] = lambda: None

    def __call__(self, identity: str) -> PluggedCamera:
        if not self.present:
            raise CameraLostError(
                "camera '/dev/video0' can't be opened: No such device; plug it in"
            )
        size = self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0]
        self.opened.append(PluggedCamera(self, *size))
        return self.opened[-1]

    def pull(self) -> None:
        self.present = False
        self.opened[-1].error = CameraLostError('unplugged: ENODEV')

    def value(self, name: str) -> int | None:
        return self.controls[name].value


class PluggedCamera(SyntheticCamera):
    """Controls as in uvcvideo since Linux 5.15: setting an inactive one fails with EACCES."""

    has_lens = True  # type: ignore[assignment]

    def __init__(self, plug: Plug, width: int, height: int) -> None:
        super().__init__(
            width,
            height,
            60.0,
            'lens',
            seed=1,
            heap=SealedMemfd(),
            now_ns=time.time_ns,
            ledger=CopyLedger(),
        )
        self._plug = plug
        self.error: Exception | None = None

    def capture(self) -> Frame | None:
        if self.error is not None:
            raise self.error
        return super().capture()

    def controls(self) -> Mapping[str, ControlInfo]:
        controls = self._plug.controls
        automatic = self._plug.says_inactive and bool(controls['focus_automatic'].value)
        return {
            **controls,
            'focus_absolute': replace(controls['focus_absolute'], inactive=automatic),
        }

    def set_control(self, name: str, value: Any) -> int | None:
        self._plug.before_setting()
        if name == 'focus_absolute' and self._plug.value('focus_automatic'):
            raise CameraError(
                "control 'focus_absolute' could not be set: another control overrides it"
            )
        info = self._plug.controls[name]
        number = checked_value(self.device, info, value)
        number -= number % info.step
        self._plug.controls[name] = replace(info, value=number)
        return number


class Bench(CaptureBench):
    """A spun capture node on a plug, other nodes, and another program."""

    plug: Plug

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        self.eventually(lambda: self.status('camera').level is Level.OK)
        self.plug.pull()
        # Before that, it may be an error that no frame came for a second.
        self.eventually(lambda: self.status('camera').values['state'] == 'lost')
        assert self.status('camera').level is Level.ERROR
        opened = len(self.plug.opened)
        yield
        self.plug.present = True
        self.eventually(
            lambda: len(self.plug.opened) > opened and self.status('camera').level is Level.OK
        )


@contextmanager
def running(
    domain: int, plug: Any, *more: tuple[Any, dict[str, Any]], **values: Any
) -> Iterator[Bench]:
    """Run a capture node on a plug, and *more* nodes (kind, parameters)."""
    with Bench(domain) as bench:
        named = {name.replace('__', '.'): value for name, value in values.items()}
        bench.plug, bench.capture = plug, bench.make(CaptureNode, named, camera_factory=plug)
        for each in more:
            bench.make(*each)
        for node in reversed(bench.nodes):
            node.start()
        yield bench


HOG = InferenceNode, {'model': 'hog', 'timeout': 20.0}


def test_a_format_change_reconfigures_pool_links_and_imports_and_a_camera_comes_back(
    free_domain: int,
) -> None:
    plug = Plug((128, 96), (192, 128))
    with running(free_domain, plug, HOG) as bench:
        inference: Any = bench.nodes[1]
        sizes, infos = list[tuple[int, int]](), bench.hear(CameraInfo, 'camera_info')
        inference.observers.append(
            lambda entry, found: sizes.append((entry.frame.data.width, entry.frame.data.height))
        )
        bench.eventually(lambda: len(sizes) >= 3 and infos)
        plug.opened[-1].error = CameraChangedError('the source is 192x128 now')
        bench.eventually(lambda: (192, 128) in sizes)
        bench.eventually(lambda: (infos[-1].width, infos[-1].height) == (192, 128))
        assert sizes == sorted(sizes), 'none of the old size after the first of the new'
        assert bench.status('camera').values['times_lost'] == 0
        assert '192x128' in str(bench.status('negotiation').values['settings'])
        openings, first = bench.status('camera').values['openings'], bench.capture.camera
        with bench.unplugged():
            found = bench.status('camera')
            assert 'unplugged: ENODEV' in found.message or 'plug it in' in found.message
            bench.eventually(lambda: bench.status('camera').values['attempts'] >= 1)
            before = inference.processed
        bench.grows(lambda: inference.processed, 3)
        assert bench.capture.camera is not first and first.pool_statistics() is not None
        processed = inference.processed
        values = bench.status('camera').values
        assert values['openings'] == openings + 1 and values['times_lost'] == 1
        assert values['captured'] >= processed > before, 'counted over all openings'


def test_a_slow_camera_is_opened_on_its_own_thread_and_a_stop_does_not_wait_for_it(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, checked, threads = threading.Event(), [], []

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
            _ = bench.capture.camera
        bench.capture.supervisor.stop(timeout_s=WAIT_S)
        assert not bench.capture.supervisor._thread.is_alive()


def test_a_pipeline_that_can_not_be_made_ends_the_start_at_once(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = Mock(side_effect=ConfigError("no element 'deadsrc'"))
    monkeypatch.setattr(gstreamer_camera, 'check_description', refuse)
    with (
        pytest.raises(ConfigError, match="node 'capture': no element 'deadsrc'"),
        running(free_domain, None, camera='gstreamer', pipeline='deadsrc'),
    ):
        pytest.fail('never reached')


def calibration(width: int, height: int) -> SetCameraInfo.Request:
    info = CameraInfo(width=width, height=height, distortion_model='plumb_bob')
    info.d = [0.1, -0.2, 0.001, 0.002, 0.0]
    info.k = [100.0, 0.0, 64.0, 0.0, 101.0, 48.0, 0.0, 0.0, 1.0]
    info.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    info.p = [100.0, 0.0, 64.0, 0.0, 0.0, 101.0, 48.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    return SetCameraInfo.Request(camera_info=info)


def test_a_calibration_that_is_set_is_kept_published_and_set_anew_by_the_page_s_command(
    free_domain: int, ros_home: Path
) -> None:
    with running(free_domain, Plug(), camera_name='front') as bench:
        infos = bench.hear(CameraInfo, 'camera_info', 5)
        bench.eventually(lambda: infos)
        assert not infos[0].k.any() and (infos[0].width, infos[0].height) == (128, 96), (
            'uncalibrated, but of the right size'
        )
        assert 'not calibrated' in bench.status('calibration').message
        for size in ((640, 480), (128, 96)):
            done = bench.call(SetCameraInfo, 'set_camera_info', calibration(*size))
            assert done.success and 'front.yaml' in done.status_message
            if size != (128, 96):
                found = bench.status('calibration')
                assert found.level is Level.WARN
                assert found.text().count("calibrate at the camera's size") == 1
                assert '640x480' in found.message and '128x96' in found.message
        bench.eventually(lambda: infos[-1].k[0] == 100.0)
        assert infos[-1].header.frame_id == 'lens' and infos[-1].header.stamp.sec > 0
        assert bench.status('calibration').values['calibrated'] is True
    assert (ros_home / 'camera_info' / 'front.yaml').is_file()
    # The command of the page brings the calibrator, which subscribes to ``image`` and calls
    # ``camera/set_camera_info``, picture and service.
    page = (Path(__file__).parents[2] / 'docs' / 'calibration.md').read_text(encoding='utf-8')
    command = page.split('```sh\n')[1].split('```')[0].replace('\\\n', ' ')
    arguments = command[slice(command.index('--ros-args'), None)].split()
    with (
        running(free_domain, Plug(), camera_name='front', image_encoding='mono8') as bench,
        Onlooker(free_domain, 'cameracalibrator', *arguments) as calibrator,
    ):
        bench.eventually(lambda: bench.status('calibration').message == 'calibrated')
        pictures = calibrator.hear(Image, 'image', 1)
        client = calibrator.node.create_client(SetCameraInfo, 'camera/set_camera_info')
        assert client.wait_for_service(WAIT_S)
        calibrator.until(lambda: pictures, 'a picture')
        assert pictures[0].encoding == 'mono8'
        answer_of(client, calibration(640, 480), calibrator.done_within)
        assert '640x480' in bench.status('calibration').message


def test_frames_do_not_wait_for_the_disk_of_a_calibration(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(free_domain, Plug(), camera_name='front') as bench:
        infos, keep = bench.hear(CameraInfo, 'camera_info', 5), CameraInfoStore.replace
        bench.eventually(lambda: infos)

        def slowly(*arguments: Any) -> None:
            frames = bench.capture.publisher.statistics
            before = frames().published
            until(lambda: frames().published > before + 3, 'frames while the file is written')
            keep(*arguments)

        monkeypatch.setattr(CameraInfoStore, 'replace', slowly)
        assert bench.call(SetCameraInfo, 'set_camera_info', calibration(128, 96)).success
        bench.eventually(lambda: infos[-1].k[0] == 100.0)


SMALL = {'shared_memory': False, 'width': 128, 'height': 128, 'heap': 'memfd'}


def test_a_calibration_that_is_named_and_not_there_is_a_warning_and_a_damaged_one_an_error(
    run: Managed, ros_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    usual = status(run.make(CaptureNode, SMALL, camera_factory=Plug()), 'calibration')
    assert usual.level is Level.OK and "not calibrated: there is no '" in usual.message
    named = status(
        run.make(CaptureNode, {**SMALL, 'camera_info_url': 'file:///nowhere/x.yaml'}),
        'calibration',
    )
    assert named.level is Level.WARN and "there is no '/nowhere/x.yaml'" in named.message
    assert named.advice == "run camera_calibration, or set 'camera_info_url'"
    (ros_home / 'bad.yaml').write_text('- 1', encoding='utf-8')
    capfd.readouterr()
    bad = {**SMALL, 'camera_info_url': str(ros_home / 'bad.yaml')}
    node = run.make(CaptureNode, bad, camera_factory=Plug())
    node.start()
    run.grows(lambda: node.publisher.statistics().published, 2)
    assert status(node, 'calibration').level is Level.ERROR
    (line,) = [line for line in capfd.readouterr().err.splitlines() if 'not calibrated' in line]
    assert '[ERROR]' in line


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
    before = len(os.listdir('/proc/self/task'))
    for _ in range(3):
        attempt()
    # The kernel may list a thread for a moment after it was joined.
    until(lambda: len(os.listdir('/proc/self/task')) <= before, f'as few threads as {before}')


def test_a_simulation_that_tells_no_time_is_a_warning_until_it_does(free_domain: int) -> None:
    with alone(free_domain, CaptureNode, {'shared_memory': False}) as node:

        def stamped() -> Status:
            node.camera.clock.stamp(time.monotonic_ns(), CaptureClock.MONOTONIC)
            return status(node, 'clock')

        assert not set_or_why_not(node, 'use_sim_time', True)
        found = stamped()
        assert found.level is Level.WARN
        assert found.message.startswith('use_sim_time is true, but no message of /clock has come')
        assert 'ros2 bag play --clock' in found.advice
        clock = node.get_clock()
        clock.set_ros_time_override(Time(nanoseconds=5, clock_type=clock.clock_type))
        for _ in range(2):  # a clock that pauses is no reason to warn
            assert (stamped().level, stamped().message) == (Level.OK, 'simulated')
        assert not set_or_why_not(node, 'use_sim_time', False)
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


def factory(**values: Any) -> CameraFactory:
    parameters = {spec.name: spec.default for spec in NODES['capture']} | values
    return CameraFactory(CameraOptions(parameters, time.time_ns, CopyLedger()))


def test_a_parameter_that_changes_while_the_camera_opens_reaches_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    camera, parameters = Mock(), {'gain': 1, 'seed': 3}
    kind = Mock(PARAMETERS=[ParameterSpec(name, 1, '', '', 0, 9) for name in parameters])
    monkeypatch.setattr(CameraFactory, '_kind', lambda factory: kind)

    def slow(options: CameraOptions) -> Any:
        parameters['gain'] = 7
        return camera

    kind.open = slow
    opening = CameraFactory(CameraOptions(parameters, time.time_ns, CopyLedger()))
    assert opening.open('') is camera
    camera.tune.assert_called_once_with('gain', 7)
    camera.tune.side_effect = CameraError('no')
    parameters['gain'] = 1
    with pytest.raises(CameraError):
        opening.open('')
    camera.close.assert_called_once()


def test_a_lost_v4l2_camera_is_looked_for_where_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    made = create_autospec(v4l2_camera.V4l2Camera.__init__, return_value=None)
    monkeypatch.setattr(v4l2_camera.V4l2Camera, '__init__', made)
    monkeypatch.setattr(v4l2_camera, 'find_device', {'usb 7': '/dev/video5'}.get)
    for identity, path in (
        ('', '/dev/video0'),
        ('usb 7', '/dev/video5'),
        ('usb 8', '/dev/video0'),
    ):
        factory(camera='v4l2').open(identity)
        options, found = made.call_args.args[1:]
        assert (found or options.parameters['device']) == path


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


# A camera's controls are parameters. They are set in an order that the driver accepts, all or
# none, and again after the camera returns.
def setting(**values: Any) -> list[Parameter]:
    return overrides({f'controls.{name}': value for name, value in values.items()})


def test_controls_are_parameters_with_the_driver_s_ranges_and_one_that_it_lacks_is_a_warning(
    free_domain: int,
) -> None:
    plug = Plug()
    with running(free_domain, plug, controls__brightnes=5, controls__brightness=200) as bench:
        node = bench.capture
        bench.eventually(lambda: bench.status('camera').level is Level.OK)
        found = bench.status('controls')
        lacks = "has no control 'brightnes'; did you mean 'brightness'?; it has brightness, "
        assert found.level is Level.WARN and lacks in found.message
        assert found.advice == (
            'leave out controls that this camera does not have, or correct their names'
        )
        for name in ('brightnes', 'gain'):
            assert set_or_why_not(node, f'controls.{name}', 5)
        assert plug.value('brightness') == 200
        assert node.get_parameter('controls.brightness').value == 200
        assert node.get_parameter('controls.horizontal_flip').value is False
        names = DescribeParameters.Request(names=['controls.brightness', 'controls.gain'])
        asked = bench.call(DescribeParameters, '/capture/describe_parameters', names)
        described = asked.descriptors
        (limits,) = described[0].integer_range
        assert (limits.from_value, limits.to_value) == (0, 255) and described[1].read_only
        assert not set_or_why_not(node, 'controls.horizontal_flip', True)
        assert plug.value('horizontal_flip') == 1
        assert not set_or_why_not(node, 'controls.power_line_frequency', 2)
        reason = set_or_why_not(node, 'controls.power_line_frequency', 9)
        assert '0 (Disabled), 1 (50 Hz), 2 (60 Hz)' in reason
        assert set_or_why_not(node, 'controls.brightness', 256)
        assert not set_or_why_not(node, 'controls.brightness', 123)
        bench.eventually(lambda: node.get_parameter('controls.brightness').value == 120)
        assert plug.value('brightness') == 120, 'the driver rounds, and the parameter shows it'


@pytest.mark.parametrize('says_inactive', [True, False])
def test_controls_that_depend_on_each_other_are_set_in_any_order(
    free_domain: int, says_inactive: bool
) -> None:
    plug = Plug()
    plug.says_inactive = says_inactive
    with running(
        free_domain, plug, controls__focus_absolute=40, controls__focus_automatic=False
    ) as bench:
        assert (plug.value('focus_absolute'), plug.value('focus_automatic')) == (40, 0)
        assert bench.capture.get_parameter('controls.focus_absolute').value == 40
        found = bench.status('controls')
        assert found.level is Level.OK and found.values['focus_absolute'] == 40
        with bench.unplugged():
            plug.controls = dict(CONTROLS)
        assert (plug.value('focus_absolute'), plug.value('focus_automatic')) == (40, 0)


def test_what_the_driver_refuses_is_a_warning_and_all_are_set_or_none(free_domain: int) -> None:
    plug, wanted = Plug(), {'controls__focus_absolute': 40, 'controls__brightness': 200}
    with running(free_domain, plug, **wanted) as bench:
        bench.eventually(lambda: bench.status('camera').level is Level.OK)
        assert plug.value('brightness') == 200
        status = bench.status('controls')
        assert status.level is Level.WARN and 'another control overrides it' in status.message
        for second, words in (
            ({'power_line_frequency': 9}, '0 (Disabled)'),
            ({'focus_absolute': 5}, 'another control overrides it'),
        ):
            done = bench.capture.set_parameters_atomically(setting(brightness=50, **second))
            assert not done.successful and words in done.reason
            assert bench.capture.get_parameter('controls.brightness').value == 200
        with bench.unplugged():
            plug.controls['horizontal_flip'] = replace(plug.controls['horizontal_flip'], value=1)
        assert plug.value('brightness') == 200, 'nor is it set later'
        flip = 'controls.horizontal_flip'
        bench.eventually(lambda: bench.capture.get_parameter(flip).value is True)
        both = setting(focus_absolute=41, focus_automatic=False)
        assert bench.capture.set_parameters_atomically(both).successful
        assert plug.value('focus_absolute') == 41
        assert bench.status('controls').level is Level.OK


def test_no_camera_is_closed_while_a_control_is_set(free_domain: int) -> None:
    plug = Plug()
    with running(free_domain, plug) as bench:
        bench.eventually(lambda: bench.status('camera').level is Level.OK)
        camera = plug.opened[-1]
        closed, was_closed, close = threading.Event(), [], camera.close

        def pull() -> None:
            plug.pull()
            # Wait until the camera's thread has left capturing: its camera isn't closed yet, but
            # isn't the current one any more.
            bench.eventually(lambda: bench.capture.supervisor.camera is None)
            was_closed.append(closed.is_set())

        camera.close = lambda: (closed.set(), close())
        plug.before_setting = pull
        assert bench.capture.set_parameters(setting(brightness=50))[0].successful
        plug.before_setting = lambda: None
        assert was_closed == [False] and closed.wait(60.0)
        reason = set_or_why_not(bench.capture, 'controls.brightness', 60)
        assert 'the camera is not there' in reason


# Another program calls ``~/snapshot``.
def asked(bench: Bench) -> Any:
    """Call with a client of its own, so that several calls can wait at once; return the future."""
    client = bench.manager.create_client(Trigger, '/capture/snapshot')
    wait_until_known(client, bench.manager, bench.capture)
    return client.call_async(Trigger.Request())


def answer(bench: Bench) -> Trigger.Response:
    return bench.call(Trigger, '/capture/snapshot', Trigger.Request())


def no_snapshot_thread() -> bool:
    return 'snapshot' not in str(threading.enumerate())


def holds_a_slot(bench: Bench) -> bool:
    return any('snapshot' in holder for holder in bench.capture.camera.pool.statistics().holders)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeout, so that a running camera gives a frame in time on a slow machine."""
    monkeypatch.setattr(triggers, 'FRAME_WAIT_S', WAIT_S)


def test_a_picture_and_bytes_that_replay_plays(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(free_domain, Plug(), snapshot_folder=str(tmp_path / 'shots')) as run:
        until(no_snapshot_thread, 'nobody has asked for one yet')
        answers = [answer(run) for _ in range(2)]
        assert all(each.success for each in answers), answers
        for message in (each.message for each in answers):
            paths = [Path(part) for part in message.partition(': ')[2].split(', ')]
            assert [path.suffix for path in paths] == ['.mcap', '.png']
            assert message.startswith('frame ') and '128x96 NV12' in message
            source = open_source(str(paths[0]))
            planes = [np.zeros(shape, np.uint8) for shape in ((96, 128), (48, 64, 2))]
            assert source.advance() is not None and source.read(planes)
            source.close()
            assert planes[0].std() > 10
            assert cv2.imread(str(paths[1])).shape == (96, 128, 3)
        assert answers[0].message != answers[1].message
        assert run.capture.ledger.count('snapshot') == 2
        run.eventually(lambda: not holds_a_slot(run), 'its leases are back')
        # Without a frame the answer says why, in time.
        with run.unplugged(), monkeypatch.context() as patch:
            patch.setattr(triggers, 'FRAME_WAIT_S', 0.3)
            failed = answer(run)
        assert not failed.success
        assert failed.message.startswith('no snapshot: no frame came within 0.3 s: ')
        assert failed.message.endswith('; see /diagnostics')
        assert 'ENODEV' in failed.message or 'No such device' in failed.message
        assert answer(run).success
    until(no_snapshot_thread, 'its thread has ended')
    assert len(list(tmp_path.glob('shots/capture_*'))) == 6


def test_the_folder_changes_while_it_runs_and_may_be_below_the_home(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'file').write_text('')
    monkeypatch.setenv('ROS_HOME', str(tmp_path / 'ros'))
    monkeypatch.setenv('SHOTS', str(tmp_path))
    with running(free_domain, Plug()) as run:
        assert f'{tmp_path}/ros/zc_perception/snapshots/capture_' in answer(run).message
        assert not set_or_why_not(run.capture, 'snapshot_folder', '$SHOTS/else')
        assert f'{tmp_path}/else/capture_' in answer(run).message
        monkeypatch.chdir(tmp_path)
        assert not set_or_why_not(run.capture, 'snapshot_folder', 'below')
        assert f': {tmp_path}/below/capture_' in answer(run).message, (
            'who reads the answer is in another folder'
        )
        assert set_or_why_not(run.capture, 'snapshot_folder', ' ')
        assert not set_or_why_not(run.capture, 'snapshot_folder', str(tmp_path / 'file' / 'below'))
        failed = answer(run)
        assert not failed.success and '\n' not in failed.message
        written = f"no snapshot: nothing was written to '{tmp_path}/file"
        assert failed.message.startswith(written) and 'Not a directory' in failed.message
        assert "set parameter 'snapshot_folder'" in failed.message


def test_a_slow_disk_keeps_neither_the_camera_nor_the_executor_nor_later_callers(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, began = threading.Event(), threading.Event()
    real = Snapshot.write

    def slow(*arguments: Any) -> Any:
        began.set()
        disk.wait(WAIT_S)
        return real(*arguments)

    monkeypatch.setattr(Snapshot, 'write', slow)
    with running(free_domain, Plug(), snapshot_folder=str(tmp_path)) as run:
        first = asked(run)
        run.eventually(began.is_set, 'the write begins')
        captured = run.capture.camera.statistics().captured
        run.eventually(
            lambda: run.capture.camera.statistics().captured > captured + 10, 'the camera goes on'
        )
        assert not holds_a_slot(run), 'no slot waits for the disk'
        slots = GetParameters.Request(names=['slots'])
        assert run.call(GetParameters, '/capture/get_parameters', slots), 'the executor goes on'
        waiting = [asked(run) for _ in range(4)]
        run.eventually(lambda: run.capture._snapshots._requests.qsize() == 4, 'four wait')
        refused = answer(run)
        assert not refused.success and refused.message == (
            'no snapshot: 4 snapshots wait already; perhaps the disk is slow; call again later'
        )
        assert not first.done()
        disk.set()
        run.eventually(lambda: all(each.done() for each in (first, *waiting)), 'all are answered')
        assert all(each.result().success for each in (first, *waiting))
    assert len(list(tmp_path.glob('capture_*'))) == 10


def test_a_node_that_is_not_active_refuses_at_once_and_those_who_wait_too(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, 'FRAME_WAIT_S', 10 * WAIT_S)  # a call that waits this long fails
    with running(free_domain, Plug(), snapshot_folder=str(tmp_path)) as run:
        assert answer(run).success
        silent = threading.Event()
        run.capture.camera.capture = lambda: (silent.set(), time.sleep(0.05))[1]
        assert silent.wait(WAIT_S), 'the last frame is out'
        waiting = asked(run)
        run.eventually(lambda: run.capture._snapshots._wanted, 'it waits for a frame')
        run.capture.trigger_deactivate()
        run.eventually(waiting.done, 'an answer to who waits')
        refused = waiting.result()  # the node may still be deactivating
        assert not refused.success and refused.message.startswith('no snapshot: the node is ')
        run.capture.trigger_activate()
        assert answer(run).success, 'as test_lifecycle.py reads in the advice'
