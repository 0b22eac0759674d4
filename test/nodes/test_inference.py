"""The inference node when its device is lost, as other programs see it: detections, diagnostics, log."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from nodes.managed import status
from nodes.ros_kit import alone, overrides, ros, spun, until
from rcl_interfaces.msg import Log
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from vision_msgs.msg import Detection2DArray

from zc_perception.errors import AcceleratorError, ConfigError, DeviceLostError
from zc_perception.frame import Frame, Header
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.inference_stream import accelerator_options
from zc_perception.nodes.process import NodeGroup
from zc_perception.npu import recovering_device
from zc_perception.npu.accelerator import Capabilities, ImportHandle
from zc_perception.npu.axl import accelerator as axl_accelerator
from zc_perception.npu.cpu import CpuAccelerator
from zc_perception.npu.manifest import ModelManifest
from zc_perception.npu.metis_card import HostTree, choose_card
from zc_perception.pixel.colorimetry import BT601_LIMITED


class Devices:
    """Makes accelerators that run HOG on the cpu, until they are told that they are lost."""

    def __init__(self) -> None:
        self.made: list[CpuAccelerator] = []
        self.present = True
        self.refusals = 0

    def __call__(self) -> CpuAccelerator:
        if not self.present:
            self.refusals += 1
            raise AcceleratorError('no card: check lspci')
        self.made.append(_Losable(self))
        return self.made[-1]


class _Losable(CpuAccelerator):
    def __init__(self, devices: Devices) -> None:
        super().__init__(CopyLedger(), 1)
        self._devices = devices
        self.closed = False

    def import_frame(self, frame: Frame) -> ImportHandle:
        if not self._devices.present:
            raise DeviceLostError('the card was removed')
        return super().import_frame(frame)

    def notices(self) -> tuple[str, ...]:
        return ('the link is PCIe x1, not x4: use another slot',)

    def facts(self) -> dict[str, object]:
        return {'pci_address': '0000:01:00.0'}

    def close(self) -> None:
        self.closed = True
        super().close()


class Reader(Node):
    """What another program receives of the node."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__('reader', context=context)
        self.detections = 0
        self.statuses: list[tuple[int, str, dict[str, str]]] = []
        self.log: Counter[tuple[int, str]] = Counter()
        self.create_subscription(Detection2DArray, 'detections', self._on_detections, 10)
        self.create_subscription(DiagnosticArray, '/diagnostics', self._on_diagnostics, 10)
        self.create_subscription(Log, '/rosout', self._on_log, QoSProfile(depth=1000, durability=DurabilityPolicy.TRANSIENT_LOCAL))

    def _on_detections(self, message: Detection2DArray) -> None:
        self.detections += 1

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for each in message.status:
            if each.name == 'inference: accelerator':
                self.statuses.append((number(each.level), each.message, {value.key: value.value for value in each.values}))

    def _on_log(self, message: Log) -> None:
        if message.name == 'inference':
            self.log[message.level, message.msg] += 1


class Running:
    """A node with a camera's queue that is filled while somebody waits for something."""

    def __init__(self, node: InferenceNode, reader: Reader, group: NodeGroup, pool: BufferPool) -> None:
        self.node, self.reader, self._group, self._pool = node, reader, group, pool
        self._sequence = 0

    def _feed(self) -> None:
        slot = self._pool.acquire()
        if slot is not None:
            now = time.monotonic_ns()
            header = Header(now, 'camera')
            frame = Frame.publish_slot(self._pool, slot, header=header, colorimetry=BT601_LIMITED, sequence=self._sequence, captured_ns=now)
            self._sequence += 1
            self.node.subscription.queue.put(frame)

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        def feed() -> None:
            assert self._group.failure is None, self._group.failure
            self._feed()
            time.sleep(0.01)

        until(condition, what, pause=feed)


@contextmanager
def running(domain: int, pool: BufferPool, devices: Devices, **parameters: Any) -> Iterator[Running]:
    with ros(domain) as context:
        options = overrides({'model': 'hog', 'timeout': 20.0, **parameters})
        node = InferenceNode(accelerator_factory=devices, context=context, parameter_overrides=options)
        reader = Reader(context)
        with spun(context, node) as group:
            group.add_node(reader)
            yield Running(node, reader, group, pool)
        reader.destroy_node()


@pytest.fixture
def pool(make_pool: Callable[..., BufferPool]) -> BufferPool:
    return make_pool(64, 128, slots=8)


def number(level: bytes | int) -> int:
    return level if isinstance(level, int) else level[0]


OK, WARN, ERROR = (number(level) for level in (DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR))


def test_a_lost_device_is_an_error_in_diagnostics_until_it_is_back(
    free_domain: int, pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('zc_perception.observe.recent.RECENT_S', 0.5)
    monkeypatch.setattr(recovering_device, 'LONGEST_DELAY_S', 0.2)
    devices = Devices()
    with running(free_domain, pool, devices) as run:
        node, reader, eventually = run.node, run.reader, run.eventually
        eventually(lambda: reader.detections > 5 and bool(reader.statuses), 'detections and diagnostics')
        level, message, values = reader.statuses[-1]
        assert (level, message, values['state']) == (OK, 'running', 'running')
        first = node.accelerator

        devices.present = False
        eventually(lambda: reader.statuses[-1][0] == ERROR, 'an error in diagnostics')
        eventually(
            lambda: devices.refusals >= 3 and 'no card' in reader.statuses[-1][1], 'attempts that fail, and diagnostics that say why'
        )
        level, message, values = reader.statuses[-1]
        assert message.startswith('recovering since ') and 'attempt ' in message and 'last error: no card: check lspci' in message
        assert int(values['device_losses']) == 1 and values['recovered'] == '0'
        assert isinstance(first, _Losable) and first.closed
        frozen = reader.detections
        eventually(lambda: int(reader.statuses[-1][2]['refused_recovering']) > 5, 'frames that are dropped meanwhile, and counted')
        assert reader.detections - frozen <= 1, 'there is nobody to detect anything'

        devices.present = True
        eventually(lambda: reader.statuses[-1][0] == OK, 'diagnostics that are well again')
        assert reader.statuses[-1][2]['recovered'] == '1' and reader.statuses[-1][2]['state'] == 'running'
        eventually(lambda: reader.detections > frozen + 5, 'detections again')
        assert node.accelerator is devices.made[1]
        errors = [text for (severity, text) in list(reader.log) if severity == 40 and 'the device was lost: ' in text]
        assert len(errors) == 1
        eventually(lambda: any(text.startswith('the device is back') for _, text in list(reader.log)), 'a line in the log')
    assert all(device.closed for device in devices.made if isinstance(device, _Losable)), 'the node closes the last one'


def test_the_real_time_knobs_turn_the_accelerator_s_threads_too(
    free_domain: int, pool: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    own = threading.Thread(target=stop.wait, name='of the accelerator')
    own.start()
    monkeypatch.setattr(_Losable, 'hot_threads', lambda _: (own,))
    cpu = max(os.sched_getaffinity(0))
    try:
        with running(free_domain, pool, Devices()) as run:
            run.node.set_parameters([Parameter('cpu_affinity', value=[str(cpu)])])
            assert own.native_id is not None and os.sched_getaffinity(own.native_id) == {cpu}
    finally:
        stop.set()
        own.join()


def test_notices_are_said_once_and_shown_always(free_domain: int, pool: BufferPool) -> None:
    with running(free_domain, pool, Devices()) as run:
        reader, eventually = run.reader, run.eventually
        eventually(lambda: len(reader.statuses) >= 2, 'diagnostics')
        notice = 'the link is PCIe x1, not x4: use another slot'
        for _, _, values in reader.statuses:
            assert values['notices'] == notice and values['pci_address'] == '0000:01:00.0'
        eventually(lambda: reader.log[30, notice] > 0, 'a warning')
        assert reader.log[30, notice] == 1
        eventually(lambda: int(reader.statuses[-1][2]['completed']) > 0, 'a job that is done')
        figures = reader.statuses[-1][2]
        assert int(figures['submitted']) >= int(figures['completed']) > 0 and figures['utilisation'].endswith('%')


def test_double_buffering_needs_more_frames_in_flight_and_says_so(free_domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = Capabilities('axruntime', 'metis-0:1:0', copy_free=False, max_in_flight=3)
    monkeypatch.setattr(_Losable, 'capabilities', lambda self: capabilities)
    for in_flight, said in ((1, True), (3, False)):
        values = {'model': 'hog', 'double_buffer': True, 'in_flight': in_flight}
        with alone(free_domain, InferenceNode, values, accelerator_factory=Devices()) as node:
            assert ('set in_flight to 3' in status(node, 'accelerator').values['notices']) is said


def test_the_node_ends_while_its_device_is_lost(free_domain: int, pool: BufferPool) -> None:
    devices = Devices()
    with running(free_domain, pool, devices) as run:
        node, reader, eventually = run.node, run.reader, run.eventually
        eventually(lambda: reader.detections > 0, 'detections')
        devices.present = False
        eventually(lambda: node.scheduler.state.recovering, 'a loss')
    assert not node.scheduler._thread.is_alive() and not any(thread.name == 'inference' for thread in threading.enumerate())


@pytest.mark.parametrize(
    ('parameters', 'message'),
    [
        ({'axl_ioctls': ['sumbit=70']}, "parameter 'axl_ioctls' has 'sumbit=70'"),
        ({'aipu_cores': 5}, "parameter 'aipu_cores' is 5; it must be an integer from 0 to 4"),
        ({'output_dmabuf': 'maybe'}, "parameter 'output_dmabuf' is 'maybe'; it must be one of auto, true, false"),
        ({'score_threshold': -0.5}, "parameter 'score_threshold' is -0.5; it must be a number from 0 to 1, or -1"),
        ({'nms_threshold': -0.01}, "parameter 'nms_threshold' is -0.01; it must be a number from 0 to 1 (IoU), or -1"),
        ({'double_buffer': 'yes'}, "parameter 'double_buffer' is 'yes'; it must be a boolean"),
        ({'accelerator': 'axel'}, "parameter 'accelerator' is 'axel'; it must be one of auto, axl, axruntime, cpu"),
        ({'accelerator': 'axruntime'}, "model 'road' (engine onnx) can't run on axruntime"),
    ],
)
def test_wrong_parameters_are_one_sentence(free_domain: int, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused, alone(free_domain, InferenceNode, parameters):
        pass
    assert message in str(refused.value) and '\n' not in str(refused.value)


@pytest.mark.parametrize('from_file', [True, False])
def test_what_yaml_takes_for_booleans_and_numbers_reaches_the_accelerator(free_domain: int, tmp_path: Path, from_file: bool) -> None:
    lines = ['model: hog', 'output_dmabuf: false', 'accelerator_device: 0', 'score_threshold: -1']
    file = tmp_path / 'parameters.yaml'
    file.write_text('/**:\n  ros__parameters:\n' + ''.join(f'    {line}\n' for line in lines), encoding='utf-8')
    single = [part for line in lines for part in ('-p', line.replace(': ', ':='))]
    with ros(free_domain, *(['--params-file', str(file)] if from_file else single)) as context:
        node = InferenceNode(context=context, accelerator_factory=Devices())
        options = accelerator_options(node.parameters)
        assert (options.output_dmabuf, options.device, node.score_threshold) == ('false', '0', 0.0)
        node.destroy_node()


def test_a_driver_without_our_ioctls_is_one_line_and_the_next_is_taken(free_domain: int, tmp_path: Any) -> None:
    """/dev/null answers ENOTTY to everything, as the shipped driver does to our ioctls."""
    (tmp_path / 'model.yaml').write_text(
        'head: boxes\nclasses: [person]\ninput: {resize: none}\nvariants:\n'
        '  - {engine: axl, outputs: [{name: boxes, dtype: float32, shape: [8, 6]}]}\n  - {engine: opencv_hog}\n',
        encoding='utf-8',
    )
    with alone(free_domain, InferenceNode, {'model': str(tmp_path), 'accelerator_device': '/dev/null'}) as node:
        said: list[str] = []
        node.get_logger = lambda: _Lines(said)
        node.start()
        assert node.accelerator.capabilities().name == 'cpu' and node.manifest.engine == 'opencv_hog'
        lines = [line for line in said if 'ENOTTY' in line]
        assert len(lines) == 1 and '\n' not in lines[0]
        assert '/dev/null has no import and submit ioctls (ENOTTY)' in lines[0] and 'accelerator: axruntime' in lines[0]


class _Lines:
    def __init__(self, lines: list[str], debug: list[str] | None = None) -> None:
        self.info = self.warning = self.error = lambda text, **options: lines.append(text)
        self.debug = lambda text, **options: debug is not None and debug.append(text)


def test_a_machine_without_a_card_is_told_where_it_runs_and_nothing_of_cards(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reasons are at debug level and in diagnostics; a card that is there and of no use is said, see the test above."""
    monkeypatch.setattr(axl_accelerator, 'choose_card', lambda wanted, tree: choose_card(wanted, HostTree(tmp_path, tmp_path)))
    for wanted, quiet in (('', True), ('01:00.0', False)):
        with alone(free_domain, InferenceNode, {'model': 'hog', 'accelerator_device': wanted}) as node:
            said: list[str] = []
            debug: list[str] = []
            monkeypatch.setattr(node, 'get_logger', partial(_Lines, said, debug))
            node.start()
            assert [line for line in said if line.startswith('running on the CPU')] == ['running on the CPU (model hog, OpenCV HOG)']
            reasons = [line for line in (debug if quiet else said) if "doesn't fit" in line]
            assert len(reasons) == 2 and 'no Metis card' in reasons[0] and 'engine: axruntime' in reasons[1]
            assert any('card' in line for line in said) is not quiet
            assert status(node, 'accelerator').values['why_no_better'] == '; '.join(reasons)


def test_a_factory_whose_accelerator_refuses_the_model_leaves_nothing_open(free_domain: int) -> None:
    devices = Devices()

    class Refusing(_Losable):
        def load(self, manifest: ModelManifest) -> None:
            raise ConfigError('not this model')

    made: list[Refusing] = []

    def make() -> Refusing:
        made.append(Refusing(devices))
        return made[-1]

    with pytest.raises(ConfigError, match='not this model'), alone(free_domain, InferenceNode, accelerator_factory=make):
        pass
    assert made[0].closed
