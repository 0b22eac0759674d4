"""The capture node when its camera goes, changes and comes back; its calibration service and its camera's controls."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nodes.managed import Managed, managed, status
from nodes.programs import Program, parameters
from nodes.ros_kit import WAIT_S, alone, until
from rcl_interfaces.srv import DescribeParameters
from rclpy.parameter import Parameter
from sensor_msgs.msg import CameraInfo
from sensor_msgs.srv import SetCameraInfo
from vision_msgs.msg import Detection2DArray

from zc_perception.camera.controls import ControlInfo, checked_value, no_such_control
from zc_perception.camera.gstreamer import camera as gstreamer_camera
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.errors import CameraBusyError, CameraChangedError, CameraLostError, ConfigError
from zc_perception.frame import Frame
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.observe.diagnostics import Level, Status

pytestmark = pytest.mark.usefixtures('ros_home')
CONTROLS = {
    'brightness': ControlInfo('brightness', 'integer', 0, 255, 5, 128, 128, title='Brightness'),
    'horizontal_flip': ControlInfo('horizontal_flip', 'boolean', 0, 1, 1, 0, 0),
    'power_line_frequency': ControlInfo('power_line_frequency', 'menu', 0, 2, 1, 1, 1, {0: 'Disabled', 1: '50 Hz', 2: '60 Hz'}),
    'gain': ControlInfo('gain', 'integer', 0, 10, 1, 0, 7, read_only=True),
}


class Plug:
    """A camera's socket: what is plugged in, and what the driver says next."""

    def __init__(self, *sizes: tuple[int, int]) -> None:
        self.sizes = list(sizes) or [(128, 96)]
        self.present = True
        self.opened: list[PluggedCamera] = []
        self.identity = 'serial 7'
        self.controls = dict(CONTROLS)

    def __call__(self, identity: str) -> PluggedCamera:
        if not self.present:
            raise CameraLostError("camera '/dev/video0' can't be opened: No such device; plug it in")
        size = self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0]
        self.opened.append(PluggedCamera(self, *size))
        return self.opened[-1]

    def pull(self) -> None:
        self.present = False
        self.opened[-1].error = CameraLostError('unplugged: ENODEV')


class PluggedCamera(SyntheticCamera):
    def __init__(self, plug: Plug, width: int, height: int) -> None:
        super().__init__(
            width, height, 60.0, 'lens', seed=1, heap=SealedMemfd(), now_ns=time.time_ns, ledger=CopyLedger()
        )  # fmt: skip
        self._plug = plug
        self.error: Exception | None = None

    @property
    def identity(self) -> str:
        return self._plug.identity

    def capture(self) -> Frame | None:
        if self.error is not None:
            raise self.error
        return super().capture()

    def controls(self) -> Mapping[str, ControlInfo]:
        return self._plug.controls

    def set_control(self, name: str, value: Any) -> int | None:
        info = self._plug.controls.get(name)
        if info is None:
            raise no_such_control(self.device, name, self._plug.controls)
        number = checked_value(self.device, info, value)
        number -= number % info.step
        self._plug.controls[name] = replace(info, value=number)
        return number


class Bench:
    """A capture node on a plug, spun, and another program that asks it.

    :param more: other nodes, as kinds and their parameters.
    """

    def __init__(self, run: Managed, plug: Plug, *more: tuple[Any, dict[str, Any]], **values: Any) -> None:
        self.node = run.make(CaptureNode, {name.replace('__', '.'): value for name, value in values.items()}, camera_factory=plug)
        self.others = [run.make(*each) for each in more]
        self.user, self.call, self.eventually = run.manager, run.call, run.eventually

    def status(self, part: str) -> Status:
        found: Status = status(self.node, part)
        return found


@contextmanager
def running(domain: int, plug: Plug, *more: tuple[Any, dict[str, Any]], **values: Any) -> Iterator[Bench]:
    with managed(domain) as run:
        bench = Bench(run, plug, *more, **values)
        for node in (*bench.others, bench.node):
            node.start()
        yield bench


HOG = InferenceNode, {'model': 'hog', 'timeout': 20.0}


def test_an_unplugged_camera_is_an_error_until_it_is_back_and_detections_go_on(free_domain: int) -> None:
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
        inference.observers.append(lambda entry, found: sizes.append((entry.frame.data.width, entry.frame.data.height)))
        info = []
        bench.user.create_subscription(CameraInfo, 'camera_info', lambda m: info.append((m.width, m.height)), 5)
        bench.eventually(lambda: len(sizes) >= 3 and info)
        plug.opened[-1].error = CameraChangedError('the source is 192x128 now')
        bench.eventually(lambda: (192, 128) in sizes and (192, 128) in info)
        assert sizes == sorted(sizes), 'none of the old size after the first of the new'
        assert bench.status('camera').values['times_lost'] == 0
        assert '192x128' in str(bench.status('negotiation').values['settings'])


def test_another_process_gets_the_new_format_without_a_copy(free_domain: int) -> None:
    plug = Plug((320, 192), (384, 256))
    required = parameters(inference__copy_free='required', inference__timeout=20.0)
    detections = []
    with (
        running(free_domain, plug) as bench,
        Program('inference_node', *required, domain=free_domain).start('link is shared_memory') as program,
    ):
        bench.user.create_subscription(Detection2DArray, 'detections', lambda message: detections.append(message.header.stamp), 10)
        bench.eventually(lambda: len(detections) >= 3)
        plug.opened[-1].error = CameraChangedError('the source is 384x256 now')
        bench.eventually(lambda: len(plug.opened) == 2)
        before = len(detections)
        bench.eventually(lambda: len(detections) >= before + 5)
        assert 'ros_message' not in program.output
        assert bench.node.ledger.entries().get('convert') is None
        assert program.interrupt() == 0


def test_another_camera_in_its_place_is_not_taken_for_it(free_domain: int) -> None:
    plug = Plug()
    with running(free_domain, plug) as bench:
        bench.eventually(lambda: bench.status('camera').level is Level.OK)
        plug.identity = 'serial 8'
        plug.opened[-1].error = CameraLostError('unplugged')
        bench.eventually(lambda: "another camera ('serial 8')" in bench.status('camera').message)
        plug.identity = 'serial 7'
        bench.eventually(lambda: bench.status('camera').level is Level.OK)


def test_a_camera_that_is_not_there_at_the_start_comes_later(free_domain: int) -> None:
    plug = Plug()
    plug.present = False
    with running(free_domain, plug, HOG) as bench:
        assert bench.status('camera').level is Level.ERROR
        with pytest.raises(CameraLostError, match=r'no camera is open: .*plug it in'):
            _ = bench.node.camera
        plug.present = True
        bench.eventually(lambda: bench.others[0].processed >= 1)


@pytest.mark.parametrize(
    'error', [CameraBusyError('another program has it'), CameraLostError('unplugged'), OSError(errno.EMFILE, 'Too many open files')]
)
def test_a_camera_that_fails_in_the_first_negotiation_is_waited_for(
    free_domain: int, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate, errors = PluggedCamera.allocate, [error]

    def failing(camera: PluggedCamera, request: Any) -> None:
        if errors:
            raise errors.pop()
        allocate(camera, request)

    monkeypatch.setattr(PluggedCamera, 'allocate', failing)
    plug = Plug()
    with running(free_domain, plug, HOG) as bench:
        bench.eventually(lambda: bench.others[0].processed >= 1)
        assert len(plug.opened) == 2 and bench.status('negotiation').level is Level.OK


def test_a_slow_camera_is_opened_on_its_own_thread_and_a_stop_does_not_wait_for_it(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, checked = threading.Event(), []
    threads: list[str] = []

    def dead(*_: Any, stopping: Callable[[], bool], **__: Any) -> None:
        threads.append(threading.current_thread().name)
        opening.set()
        while not stopping():
            time.sleep(0.005)
        raise CameraLostError('stopped')

    monkeypatch.setattr(gstreamer_camera.GStreamerCamera, '__init__', dead)
    monkeypatch.setattr(gstreamer_camera, 'check_description', checked.append)
    with running(free_domain, None, camera='gstreamer', pipeline='deadsrc') as bench:  # type: ignore[arg-type]
        assert opening.wait(WAIT_S) and threads == ['camera'] and checked == ['deadsrc']
        assert bench.status('camera').level is Level.WARN
        with pytest.raises(CameraLostError, match='no camera is open: it is not there yet'):
            _ = bench.node.camera
        bench.node.supervisor.stop(timeout_s=WAIT_S)
        assert not bench.node.supervisor._thread.is_alive()


def test_a_pipeline_that_can_not_be_made_ends_the_start_at_once(free_domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(description: str) -> None:
        raise ConfigError(f"pipeline '{description}': no element 'deadsrc'")

    monkeypatch.setattr(gstreamer_camera, 'check_description', refuse)
    with (
        pytest.raises(ConfigError, match=r"node 'capture': pipeline 'deadsrc': no element"),
        running(free_domain, None, camera='gstreamer', pipeline='deadsrc'),  # type: ignore[arg-type]
    ):
        raise AssertionError('never reached')


def calibrated(width: int, height: int) -> CameraInfo:
    info = CameraInfo(width=width, height=height, distortion_model='plumb_bob')
    info.d = [0.1, -0.2, 0.001, 0.002, 0.0]
    info.k = [100.0, 0.0, 64.0, 0.0, 101.0, 48.0, 0.0, 0.0, 1.0]
    info.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    info.p = [100.0, 0.0, 64.0, 0.0, 0.0, 101.0, 48.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    return info


def test_a_calibration_that_is_set_is_kept_and_published_with_each_frame(free_domain: int, ros_home: Path) -> None:
    with running(free_domain, Plug(), camera_name='front') as bench:
        infos: list[CameraInfo] = []
        bench.user.create_subscription(CameraInfo, 'camera_info', infos.append, 5)
        bench.eventually(lambda: infos)
        assert not infos[0].k.any() and (infos[0].width, infos[0].height) == (128, 96), 'uncalibrated, but of the right size'
        assert 'not calibrated' in bench.status('calibration').message
        done = bench.call(SetCameraInfo, 'set_camera_info', SetCameraInfo.Request(camera_info=calibrated(128, 96)))
        assert done.success and 'front.yaml' in done.status_message
        bench.eventually(lambda: infos[-1].k[0] == 100.0)
        assert infos[-1].header.frame_id == 'lens' and infos[-1].header.stamp.sec > 0
        assert bench.status('calibration').values['calibrated'] is True
    assert (ros_home / 'camera_info' / 'front.yaml').is_file()
    with running(free_domain, Plug(), camera_name='front') as bench:
        infos = []
        bench.user.create_subscription(CameraInfo, 'camera_info', infos.append, 5)
        bench.eventually(lambda: infos)
        assert list(infos[0].k) == list(calibrated(128, 96).k) and list(infos[0].d) == list(calibrated(128, 96).d)


def test_a_calibration_of_another_size_is_named_and_not_published(free_domain: int) -> None:
    with running(free_domain, Plug()) as bench:
        infos: list[CameraInfo] = []
        bench.user.create_subscription(CameraInfo, 'camera_info', infos.append, 5)
        done = bench.call(SetCameraInfo, 'set_camera_info', SetCameraInfo.Request(camera_info=calibrated(640, 480)))
        assert done.success
        found = bench.status('calibration')
        assert found.level is Level.WARN and '640x480' in found.message and '128x96' in found.message
        count = len(infos)
        bench.eventually(lambda: len(infos) > count + 2)
        assert not infos[-1].k.any()


def test_what_is_no_calibration_is_refused_by_the_service(free_domain: int) -> None:
    with running(free_domain, Plug()) as bench:
        bad = calibrated(128, 96)
        bad.d = [0.1]
        done = bench.call(SetCameraInfo, 'set_camera_info', SetCameraInfo.Request(camera_info=bad))
        assert not done.success and done.status_message
        assert bench.status('calibration').values['calibrated'] is False


@pytest.mark.parametrize('package', ['no_such_package', 'my pkg', 'p\u00e4ckchen', 'a.b'])
def test_a_package_that_is_not_or_can_not_be_is_named(package: str, free_domain: int) -> None:
    url = f'package://{package}/camera.yaml'
    values = {'shared_memory': False, 'camera_info_url': url}
    with pytest.raises(ConfigError, match=f"there is no ROS package '{package}'"), alone(free_domain, CaptureNode, values):
        pass


def test_a_file_that_is_named_and_not_there_is_a_warning_and_the_usual_one_is_not(run: Managed) -> None:
    values = {'shared_memory': False, 'width': 128, 'height': 128, 'heap': 'memfd'}
    usual = status(run.make(CaptureNode, values), 'calibration')
    assert usual.level is Level.OK and "there is no '" in usual.message
    named = status(run.make(CaptureNode, {**values, 'camera_info_url': 'file:///nowhere/x.yaml'}), 'calibration')
    assert named.level is Level.WARN and "there is no '/nowhere/x.yaml'" in named.message
    assert named.advice == "run camera_calibration, or set 'camera_info_url'"


def test_controls_are_parameters_with_the_driver_s_ranges(free_domain: int) -> None:
    plug = Plug()
    with running(free_domain, plug, controls__brightness=200) as bench:
        node = bench.node
        assert plug.controls['brightness'].value == 200 and node.get_parameter('controls.brightness').value == 200
        assert node.get_parameter('controls.horizontal_flip').value is False
        described = bench.call(
            DescribeParameters, '/capture/describe_parameters', DescribeParameters.Request(names=['controls.brightness', 'controls.gain'])
        ).descriptors
        (limits,) = described[0].integer_range
        assert (limits.from_value, limits.to_value) == (0, 255) and described[1].read_only
        assert node.set_parameters([Parameter('controls.horizontal_flip', value=True)])[0].successful
        assert plug.controls['horizontal_flip'].value == 1
        assert node.set_parameters([Parameter('controls.power_line_frequency', value=2)])[0].successful
        refused = node.set_parameters([Parameter('controls.power_line_frequency', value=9)])[0]
        assert not refused.successful and '0 (Disabled), 1 (50 Hz), 2 (60 Hz)' in refused.reason
        assert not node.set_parameters([Parameter('controls.brightness', value=256)])[0].successful
        assert node.set_parameters([Parameter('controls.brightness', value=123)])[0].successful
        bench.eventually(lambda: node.get_parameter('controls.brightness').value == 120)
        assert plug.controls['brightness'].value == 120, 'the driver rounds, and the parameter shows it'


def test_controls_are_set_again_when_the_camera_is_back(free_domain: int) -> None:
    plug = Plug()
    with running(free_domain, plug) as bench:
        assert bench.node.set_parameters([Parameter('controls.brightness', value=50)])[0].successful
        plug.pull()
        bench.eventually(lambda: 'unplugged' in bench.status('camera').message or 'plug it in' in bench.status('camera').message)
        refused = bench.node.set_parameters([Parameter('controls.brightness', value=60)])[0]
        assert not refused.successful and 'the camera is not there' in refused.reason
        plug.controls = dict(CONTROLS)
        plug.present = True
        bench.eventually(lambda: len(plug.opened) == 2 and plug.controls['brightness'].value == 50)


def _threads() -> int:
    return len(list(Path('/proc/self/task').iterdir()))


@pytest.mark.parametrize(('kind', 'values'), [(CaptureNode, {'video': '/no/such', 'camera': 'replay'}), (InferenceNode, {'model': 'rood'})])
def test_a_node_that_cannot_be_made_leaves_no_participant(kind: Any, values: dict[str, Any], free_domain: int) -> None:
    kept: list[Any] = []

    def attempt() -> None:
        with pytest.raises(ConfigError) as refused, alone(free_domain, kind, values):
            pass
        # What a test keeps of the error must not be what ends the node.
        kept.append(refused)

    attempt()
    before = _threads()
    for _ in range(3):
        attempt()
    # A thread that was joined is listed until the kernel is through with it.
    until(lambda: _threads() <= before, lambda: f'{_threads()} threads, before: {before}')
