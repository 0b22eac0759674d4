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

"""A healthy vehicle has no complaint; each broken one has exactly the expected complaints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
import dataclasses
import errno
import json
import os
from pathlib import Path
import re
import signal
import sys
import tempfile
import time
from typing import Any

from camera.camera_options import camera_options
from camera.v4l2_double import DriverDouble
from doctor.vehicle import BROKEN, capture, Expected, inference, StandInCard, Vehicle
from hypothesis import example, given, HealthCheck, settings
from hypothesis import strategies as st
import pytest

from zc_perception.camera.camera import Camera
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.camera.v4l2.device import V4l2Device
from zc_perception.doctor import zc_doctor
from zc_perception.doctor.needs import node_need, pool_need, PoolNeed
from zc_perception.doctor.node_checks import running_agreements, runtime_socket_folder
from zc_perception.machine.asking import Question
from zc_perception.machine.checks import Finding, Needs, Status
from zc_perception.machine.system import System
from zc_perception.memory.heaps import open_heap
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints, parse_stand_ins
from zc_perception.negotiation.session import BufferSession, Consumer
from zc_perception.negotiation.settings import Allocation, AllocationRequest
from zc_perception.nodes import main, process
from zc_perception.npu.accelerator import with_frames
from zc_perception.npu.axl.device import axl_error, AxlCapabilities
from zc_perception.npu.metis_card import Iommu
from zc_perception.npu.onnx.accelerator import OnnxAccelerator
from zc_perception.observe.frame_log import FrameLog
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

PAGE = os.sysconf('SC_PAGE_SIZE')


def complaints(vehicle: Vehicle) -> Expected:
    return {
        where: status for where, status in vehicle.verdicts().items() if status in ('warn', 'fail')
    }


def test_a_healthy_vehicle_has_no_complaint(vehicle: Vehicle) -> None:
    assert complaints(vehicle) == {}


@pytest.mark.parametrize('name', BROKEN)
def test_a_broken_vehicle_has_exactly_the_complaints_it_should_have(
    name: str, vehicle: Vehicle
) -> None:
    breakage, expected = BROKEN[name]
    breakage(vehicle)
    findings = {(each.check.id, each.finding.subject): each.finding for each in vehicle.examine()}
    complaining = (Status.WARN, Status.FAIL)
    bad = {where: each for where, each in findings.items() if each.status in complaining}
    assert {where: each.status.value for where, each in bad.items()} == expected
    assert all(each.advice for each in bad.values()), 'whoever complains says what to do'
    assert json.dumps([dict(each.figures) for each in findings.values()], allow_nan=False)


def test_each_refused_node_comes_with_the_line_that_opens_it_and_it_is_in_the_shipped_rules(
    vehicle: Vehicle,
) -> None:
    rules = (Path(__file__).parents[2] / 'config/vehicle/70-zc-perception.rules').read_text(
        encoding='utf-8'
    )
    names = ('dma_heap/system', 'dma_heap/linux,cma', 'udmabuf', 'video0', 'metis-0:1:0')
    nodes = [f'/dev/{name}' for name in names]
    vehicle.refusals = dict.fromkeys(nodes, errno.EACCES)
    results = vehicle.examine('memory', 'cameras', 'metis')
    advice = [r.finding.advice for r in results if 'udevadm' in r.finding.advice]
    assert {node for node in nodes for text in advice if f'--device {node})' in text} == set(nodes)
    for text in advice:
        kernel, words = rule(text.partition('add there: ')[2].partition('),')[0])
        found = map(rule, rules.splitlines())
        assert any(kernel <= kernels and words <= more for kernels, more in found), text


def rule(line: str) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the kernel's names in a udev rule, and its other words."""
    words = dict(re.findall(r'(\w+)=+"([^"]+)"', line))
    return set(words.pop('KERNEL', '').split('|')), set(words.items())


def test_a_card_without_imports_sends_to_the_check_that_tells_why(
    vehicle: Vehicle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(card: StandInCard) -> None:
        raise axl_error('query', errno.EIO)

    def advice() -> list[str]:
        return [finding.advice for finding in vehicle.found('buffers.import').values()]

    monkeypatch.setattr(StandInCard, 'query', silent)
    assert advice() == ['see check metis.ioctls']
    BROKEN['card refused'][0](vehicle)
    assert advice() == ['see check metis.access']


# Without a parameter file no hardware is required, so these can't fail. The doctor still checks
# everything that is present.
NOT_ASKED = (
    'no card', 'card without driver', 'card refused', 'shipped driver', 'link with one lane',
    'camera refused', 'camera in use', 'no camera', 'another heap refused', 'heap without memory',
    'no heap at all', 'heap that the card cannot map', 'size of the pool that can not be read',
    # Without a camera, a common picture must fit into the segment.
    'Fast DDS profile with too small a segment',
)  # fmt: skip


@pytest.mark.parametrize('name', NOT_ASKED)
def test_without_a_parameter_file_hardware_is_only_warned_of(name: str, vehicle: Vehicle) -> None:
    BROKEN[name][0](vehicle)
    vehicle.yaml = None
    found = complaints(vehicle)
    assert set(found.values()) == {'warn'}
    # Its software is incomplete, but no complaint comes if the file doesn't use that software.
    assert not {'gstreamer.elements', 'libcamera.bindings'} & {check for check, _ in found}


def test_the_first_kernel_with_fences_needs_no_buffer_to_show_them(vehicle: Vehicle) -> None:
    vehicle.write('proc/sys/kernel/osrelease', '6.0.0-vehicle')
    for name in ('dma_heap/system', 'dma_heap/linux,cma', 'udmabuf'):
        (vehicle.root / 'dev' / name).unlink()
    assert vehicle.found('kernel.sync_file_ioctls')[''].status is Status.OK


def test_a_folder_of_another_user_is_refused(
    vehicle: Vehicle, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = vehicle.sockets
    folder.mkdir(mode=0o700)
    assert complaints(vehicle) == {}
    folder.chmod(0o755)
    assert complaints(vehicle) == {('link.runtime_folder', ''): 'fail'}
    folder.chmod(0o700)
    own = folder.stat().st_uid
    monkeypatch.setattr('os.geteuid', lambda: own + 1)
    assert complaints(vehicle) == {('link.runtime_folder', ''): 'fail'}


def test_what_the_parameter_file_does_not_use_is_left_out(vehicle: Vehicle) -> None:
    inference(accelerator='onnx')(vehicle)
    capture(camera='synthetic', heap='memfd', memory='auto')(vehicle)
    for step in ('no card', 'camera in use', 'heap of the parameter file refused', 'CMA used up'):
        BROKEN[step][0](vehicle)
    assert complaints(vehicle) == {}


def test_of_several_cards_the_one_that_is_named_is_looked_at(vehicle: Vehicle) -> None:
    vehicle.host.add_card(
        '0000:02:00.0',
        'metis-0:2:0',
        port='0000:00:1d.0',
        current_link_speed='8.0 GT/s PCIe',
        current_link_width='1',
    )
    assert vehicle.found('metis.link')['metis-0:1:0'].status is Status.OK
    for check in ('metis.link', 'metis.access', 'metis.ioctls'):
        assert set(vehicle.found(check)) == {'metis-0:1:0'}
    inference(accelerator_device='0000:02:00.0')(vehicle)
    ((card, found),) = vehicle.found('metis.link').items()
    assert (card, found.status) == ('metis-0:2:0', Status.FAIL)
    imports = vehicle.found('buffers.import')
    assert {subject.rpartition(' ')[2] for subject in imports} == {'metis-0:2:0'}
    vehicle.yaml = None
    assert set(vehicle.found('metis.link')) == {'metis-0:1:0', 'metis-0:2:0'}


def test_two_cameras_need_twice_the_pool(vehicle: Vehicle) -> None:
    """8 slots of 1920x1080 are 23.8 MiB: one pool fits into 250 MiB, 11 pools don't."""
    assert vehicle.yaml is not None
    pages = -(-1920 * 1080 * 3 // 2 // PAGE)
    values = vehicle.yaml.pop('/**/capture') | {
        'camera': 'synthetic',
        'width': 1920,
        'height': 1080,
    }
    vehicle.yaml |= {f'/camera{number}/capture': values for number in range(11)}
    found = vehicle.found('memory.cma_pool')['']
    assert found.status.value == 'fail' and found.figures['needed'] == 11 * 8 * pages * PAGE
    for number in range(1, 11):
        vehicle.yaml.pop(f'/camera{number}/capture')
    assert vehicle.verdicts('memory')['memory.cma_pool', ''] == 'ok'


WORDS = st.sampled_from([
    '', 'auto', 'true', 'v4l2', 'argus', 'replay', 'libcamera', 'axl', 'axruntime', 'NV12', 'XX',
    '/dev/video0', 'dma_heap/system', 'udmabuf', 'memfd', 'import', 'metis-0:1:0', '0000:01:00.0',
    '1', 'a=b', 'submit=70', 'videotestsrc !', 'ä',
])  # fmt: skip
VALUES = (
    WORDS
    | st.integers(-3, 9000)
    | st.booleans()
    | st.none()
    | st.floats()
    | st.lists(WORDS, max_size=2)
)
NAMES = [name for kind in ('capture', 'inference') for name in node_need(kind, {}).values]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8))
@example(values={'accelerator_device': '/dev/video0'})
@example(values={'width': -1})
@example(values={'camera': 'v4l2', 'device': '/dev/video9', 'height': 100000, 'width': 640})
@example(values={'slots': -3, 'framerate': -1.0})
def test_no_parameter_file_makes_a_check_stumble(
    values: dict[str, object], vehicle: Vehicle
) -> None:
    vehicle.yaml = {'/**': values}
    assert not [r for r in vehicle.examine() if r.finding.found.startswith('could not be checked')]


# The doctor's checks of buffer negotiation: by the parameter file, and by running nodes.


# The doctor sees all nodes of this machine, also those of other tests.
CAMERA = f'/front_{os.getpid()}/capture'
WHY = (
    f'{CAMERA}: no common pixel format and modifier (camera: NV12 LINEAR; npu (pid 7): '
    'YUYV LINEAR)'
)
STEP = f"set parameter 'renegotiate' of {CAMERA} to true"


def test_an_accelerator_that_the_camera_does_not_suit_is_named_with_both_nodes(
    vehicle: Vehicle,
) -> None:
    capture(camera='synthetic', memory='auto', heap='memfd')(vehicle)
    for copy_free, status in (('preferred', Status.WARN), ('required', Status.FAIL)):
        inference(copy_free=copy_free)(vehicle)
        (found,) = vehicle.found('agreement.planned').values()
        assert found.status is status and "can't attach to buffers of heap 'memfd'" in found.found
        assert '/capture' in found.advice and '/inference' in found.advice


def running() -> list[Finding]:
    return [one for one in running_agreements(System(), Needs()) if one.subject == CAMERA]


def test_cameras_that_run_say_what_they_give_and_whom_they_refuse() -> None:
    with FrameLog('capture', CAMERA) as log:
        assert not running(), 'it has no buffers yet'
        facts = {
            'agreed': 'NV12 LINEAR 640x360, 8 slots',
            'possible_formats': 'NV12 LINEAR, YUYV LINEAR',
            'possible_heaps': ['memfd'],
        }
        log.describe({**facts, 'refused': {'npu (pid 7)': f'{WHY}; {STEP}'}})
        agreed, refused = running()
        assert agreed.status is Status.OK and 'could give NV12 LINEAR, YUYV LINEAR' in agreed.found
        assert refused.status is Status.WARN and refused.advice == STEP
        assert refused.found == f'npu (pid 7) is refused: {WHY}'
    assert not running()


# The doctor and the nodes judge a parameter file alike.


# Parameters of a node; ``camera: synthetic`` and ``accelerator: onnx`` run everywhere.
CAPTURE, INFERENCE = (
    '/capture: {{ros__parameters: {{camera: synthetic, {}}}}}\n'.format,
    '/inference: {{ros__parameters: {{accelerator: onnx, {}}}}}\n'.format,
)
GOOD = CAPTURE('width: 64, height: 64')
QOS = '/**: {{ros__parameters: {{qos_overrides: {}}}}}\n'.format
#: Whether the capture node starts, or the inference node where the file has its section.
FILES: dict[str, tuple[bool, str]] = {
    'good': (True, GOOD),
    'no ros__parameters': (False, '/capture: {camera: synthetic}\n'),
    'unknown key': (False, CAPTURE('widht: 64')),
    'unknown key of any node': (True, GOOD + '/**: {ros__parameters: {widht: 64}}\n'),
    'out of range, overridden': (
        True,
        '/**/capture: {ros__parameters: {slots: 0, camera: synthetic}}\n' + CAPTURE('slots: 8'),
    ),
    'node misspelt': (False, '/captrue: {ros__parameters: {slots: 4}}\n'),
    'replay of nothing': (False, '/capture: {ros__parameters: {camera: replay}}\n'),
    'calibration of a package that is not there': (
        True,
        CAPTURE("camera_info_url: 'package://rowboat/x.yaml', width: 64, height: 64"),
    ),
    'class that the model has not': (False, INFERENCE('classes: [nope]')),
    'user that is not there': (False, INFERENCE('shared_memory_users: [nobody9]')),
    'no such reliability': (False, GOOD + QOS('{/image_raw: {publisher: {reliability: foo}}}')),
    'more frames latched than there are': (
        False,
        GOOD + QOS('{/image_raw: {publisher: {depth: 7, durability: transient_local}}}'),
    ),
    "another's QoS, wrong": (True, GOOD + QOS('{/lidar: {publisher: {reliability: foo}}}')),
}


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch, free_domain: int, tmp_path: Path) -> Iterator[None]:
    """Let programs end as soon as they are ready; restore this process's signals."""
    monkeypatch.setattr(process, 'serve', lambda stop, liveness: None)
    monkeypatch.chdir(tmp_path)  # for relative folders
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setenv('ZC_RUNTIME_DIR', f'{short}/zc')
        yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _asked(question: Question, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(json.dumps(question(*arguments)))
    return answer


def doctor(path: Path, *arguments: str) -> int:
    """Let the doctor check a parameter file, with questions that this process answers."""
    words = ['--params-file', str(path), '--only', 'parameters', *arguments]
    return zc_doctor.main(words, dataclasses.replace(System(), ask=_asked))


@pytest.mark.parametrize('case', FILES)
@pytest.mark.usefixtures('as_before')
def test_a_node_starts_with_a_file_exactly_if_the_doctor_says_so(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    starts, content = FILES[case]
    path = tmp_path / 'vehicle.yaml'
    path.write_text(content)
    program = 'inference_node' if '/inference' in content else 'capture_node'
    monkeypatch.setattr(sys, 'argv', [program, '--ros-args', '--params-file', str(path)])
    code = getattr(main, program)()
    said = capfd.readouterr().err
    assert code == (0 if starts else 2), said
    verdict, report = doctor(path), capfd.readouterr()
    assert (verdict == 0) is starts, report
    if not starts:
        assert 'Traceback' not in report.err and str(path) in report.out + report.err


@pytest.mark.parametrize(
    ('text', 'starts', 'warned'),
    [
        (CAPTURE('slots: 8').replace('/capture', '/front/capture'), True, ''),
        (CAPTURE('slots: 0').replace('/capture', '/rear/capture'), True, ''),
        (CAPTURE('slots: 8'), False, "write '/**/capture'"),
        (CAPTURE('slots: 8').replace('/capture', '/*/*/capture'), False, "write '/**/capture'"),
        ('/overlay: {ros__parameters: {scale: 1.0}}\n', False, "write '/**/overlay'"),
        ('/rear/recorder: {ros__parameters: {max_frames: 1}}\n', True, ''),
        (
            '/**/capture: {ros__parameters: {score_threshold: 0.5}}\n',
            False,
            "parameter 'score_threshold' is unknown",
        ),
    ],
)
@pytest.mark.usefixtures('as_before')
def test_sections_for_other_cameras_are_judged_as_perception_does(
    text: str,
    starts: bool,
    warned: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / 'vehicle.yaml'
    everybody = (
        '/**: {ros__parameters: {camera: synthetic, width: 64, height: 64, accelerator: onnx}}\n'
    )
    path.write_text(everybody + text)
    monkeypatch.setattr(
        sys, 'argv', ['perception', '--cameras', 'front', '--ros-args', '--params-file', str(path)]
    )
    assert main.perception() == (0 if starts else 2)
    assert warned in capfd.readouterr().err
    assert doctor(path, '--cameras', 'front') == (0 if starts else 1)
    report = capfd.readouterr().out
    assert warned in report and 'warn  parameters.file' not in report


def test_no_start_is_promised_where_a_section_misses_the_cameras_that_the_file_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / 'vehicle.yaml'
    path.write_text(
        CAPTURE('slots: 8').replace('/capture', '/front/capture')
        + '/*/*/overlay: {ros__parameters: {scale: 1.0}}\n'
    )
    assert doctor(path) == 0
    said = capfd.readouterr().out
    assert "'*/*/overlay' does not match node '/front/overlay'" in said
    assert '--cameras' in said and 'in any case' not in said
    assert doctor(path, '--cameras', 'front') == 1


# The doctor expects the pool that the capture node's negotiation makes of the parameters.


SIZE = (320, 180)
PARTICIPANTS = [
    [],
    ['recorder: NV12; stride_align=4096; slots=12'],
    ['a: any; height_align=64', 'b: NV12; offset_align=65536; slots=3'],
    ['planar: NV12; buffer_per_plane'],
    ['more: NV12; slots=11; max_stride=8192'],
]  # fmt: skip


def made(
    camera: Camera, slots: int, participants: Sequence[str], consumer: BufferConstraints
) -> tuple[int, list[int]]:
    """Return the number of slots and the bytes of their buffers, as the node gets them."""
    size = (camera.width, camera.height)
    session = BufferSession(
        camera.constraints(), size, wanted_slots=slots, stand_ins=parse_stand_ins(participants)
    )

    def allocate(request: AllocationRequest) -> Allocation:
        camera.allocate(request)
        return Allocation(camera.slots[0].layout, tuple(slot.buffers for slot in camera.slots))

    session.allocate([Consumer(consumer)], allocate)
    return len(camera.slots), [buffer.size for buffer in camera.slots[0].buffers]


def expected(vehicle: Vehicle) -> PoolNeed:
    needs = vehicle.needs()
    need = pool_need(vehicle.system(), needs, needs.cameras[0])
    assert not need.refusal and not need.problem
    return need


def assert_expected(vehicle: Vehicle, count: int, sizes: Sequence[int]) -> None:
    need = expected(vehicle)
    assert (need.slots, list(need.buffers)) == (count, [-(-size // PAGE) * PAGE for size in sizes])
    assert need.total == count * sum(need.buffers)


@pytest.mark.parametrize('participants', PARTICIPANTS)
def test_a_synthetic_cameras_pool_is_the_nodes(participants: list[str], vehicle: Vehicle) -> None:
    capture(
        camera='synthetic', heap='memfd', memory='auto', width=SIZE[0], height=SIZE[1], slots=3,
        participants=participants,
    )(vehicle)  # fmt: skip
    inference(accelerator='onnx', in_flight=4)(vehicle)
    camera = SyntheticCamera(
        *SIZE, 30.0, frame_id='', seed=1, heap=open_heap('memfd')[0], now_ns=lambda: 1,
        ledger=CopyLedger(),
    )  # fmt: skip
    with closing(camera), closing(OnnxAccelerator(CopyLedger())) as cpu:
        consumer = with_frames(cpu.constraints(), 4, cpu.capabilities().max_in_flight)
        assert_expected(vehicle, *made(camera, 3, participants, consumer))


@pytest.mark.parametrize('driver', [{}, {'min_stride': 512}, {'multiplanar': True}])
@pytest.mark.parametrize(
    'participants',
    [[], ['recorder: NV12; stride_align=1024; slots=9'], ['a: any; slots=4', 'b: any; slots=4']],
)
def test_a_v4l2_cameras_pool_is_the_nodes(
    driver: dict[str, Any], participants: list[str], vehicle: Vehicle
) -> None:
    formats = ('NV12', 'NM12') if driver.get('multiplanar') else ('YUYV', 'NV12')
    vehicle.videos['/dev/video0'] = DriverDouble(*formats, **driver)
    capture(memory='export', width=SIZE[0], height=SIZE[1], participants=participants)(vehicle)
    consumer = AxlCapabilities(2, 4, 64, 64, ((NV12, LINEAR),)).constraints(
        '/dev/metis-0:1:0', Iommu(True, '')
    )
    options = camera_options(width=SIZE[0], height=SIZE[1], framerate=30.0)
    device = V4l2Device(DriverDouble(*formats, **driver))
    with closing(V4l2Camera(options, open_device=lambda _: device)) as camera:
        assert_expected(vehicle, *made(camera, 8, participants, with_frames(consumer, 1, 4)))


def slots_with(vehicle: Vehicle, nodes: dict[str, dict[str, Any]]) -> list[int]:
    vehicle.yaml = nodes
    needs = vehicle.needs()
    return [pool_need(vehicle.system(), needs, camera).slots for camera in needs.cameras]


SYNTHETIC = {'camera': 'synthetic', 'slots': 3}


@pytest.mark.parametrize(
    ('values', 'slots'),
    [
        ({'accelerator': 'axruntime', 'in_flight': 9}, 2 + 3),
        ({'accelerator': 'axruntime', 'in_flight': 9, 'double_buffer': True}, 2 + 4),
        ({'accelerator': 'axruntime', 'in_flight': 3, 'aipu_cores': 4}, 2 + 4),
        ({'accelerator': 'axl', 'in_flight': 9}, 2 + 5),  # its driver takes four
        # which accelerator "auto" selects is unknown
        ({'accelerator': 'auto', 'in_flight': 9}, 2 + 5),
    ],
)
def test_inference_holds_what_its_accelerator_takes_and_one_more(
    values: dict[str, Any], slots: int, vehicle: Vehicle
) -> None:
    assert slots_with(vehicle, {'/**/capture': SYNTHETIC, '/**/inference': values}) == [slots]


def test_each_camera_has_the_inference_of_its_namespace(vehicle: Vehicle) -> None:
    both = {'/a/capture': SYNTHETIC, '/b/capture': SYNTHETIC}
    deep = {'accelerator': 'axl', 'in_flight': 4}
    assert slots_with(
        vehicle, {**both, '/a/inference': deep, '/b/inference': {'accelerator': 'onnx'}}
    ) == [2 + 5, 2 + 2]
    assert slots_with(vehicle, {**both, '/a/inference': deep}) == [2 + 5, 3]
    assert slots_with(vehicle, {**both, '/**/inference': deep}) == [2 + 5, 2 + 5], (
        'it is for every camera'
    )


SYSTEM, CMA = 'dma_heap/system', 'dma_heap/linux,cma'
AUTO = {'camera': 'synthetic', 'heap': 'auto', 'memory': 'auto', 'participants': []}
NO_IOMMU = BROKEN['no IOMMU'][0]
IMPORTING = {'camera': 'v4l2', 'heap': 'auto', 'memory': 'import', 'participants': []}


@pytest.mark.parametrize(
    ('values', 'accelerator', 'change', 'heap'),
    [
        (AUTO, 'axl', None, SYSTEM),
        (AUTO, 'axl', NO_IOMMU, CMA),
        (AUTO, 'onnx', NO_IOMMU, SYSTEM),
        (AUTO, 'onnx', Vehicle.tegra, CMA),
        (AUTO | {'participants': ['isp: NV12; contiguous']}, 'onnx', None, CMA),
        (AUTO | {'participants': [f'isp: NV12; heap={CMA}']}, 'onnx', None, CMA),
        (AUTO | {'participants': ['cpu_only: NV12; heap=memfd']}, 'onnx', None, 'memfd'),
        (IMPORTING, 'axl', NO_IOMMU, CMA),
        (AUTO | {'heap': CMA}, 'axl', None, CMA),
    ],
)
def test_the_heap_is_that_which_the_nodes_negotiation_chooses(
    values: dict[str, Any],
    accelerator: str,
    change: Callable[[Vehicle], object] | None,
    heap: str,
    vehicle: Vehicle,
) -> None:
    capture(**values)(vehicle)
    inference(accelerator=accelerator)(vehicle)
    if change is not None:
        change(vehicle)
    need = expected(vehicle)
    assert (need.memory, need.contiguous) == (heap, heap == CMA)
    assert vehicle.open_things == 0


@pytest.mark.parametrize(
    ('participants', 'words'),
    [
        (['a: any; slots=40'], ('slots are needed', 'v4l2 camera allows at most 32')),
        (['a: YUYV', 'b: NV12'], ('no common pixel format', 'a: YUYV LINEAR')),
        (['a'], ("'a': it must begin with a name",)),
    ],
)
def test_participants_that_the_node_refuses_fail_in_its_words(
    participants: list[str], words: tuple[str, ...], vehicle: Vehicle
) -> None:
    capture(participants=participants)(vehicle)
    assert vehicle.found('memory.cma_pool')[''].status.value == 'skip'
    (found, running) = (result.finding for result in vehicle.examine('agreement'))
    assert (found.status.value, found.subject) == ('fail', '/capture')
    assert all(text in found.found for text in words) and '/capture' in found.advice
    assert running.status.value == 'skip'


@pytest.mark.parametrize('member', [True, False])
def test_a_user_must_be_in_the_group_that_may_use_the_sockets(
    vehicle: Vehicle, monkeypatch: pytest.MonkeyPatch, member: bool
) -> None:
    capture(shared_memory_group='root')(vehicle)
    monkeypatch.setattr(os, 'getegid', lambda: 1000)
    monkeypatch.setattr(os, 'getgroups', lambda: [0] if member else [])
    system = dataclasses.replace(vehicle.system(), user=1000)
    found = [one.advice for one in runtime_socket_folder(system, vehicle.needs())]
    assert ('usermod -aG root' in str(found)) is not member


@pytest.mark.parametrize(('pixel_format', 'half_bytes'), [('auto', 3), ('YUYV', 4), ('MJPG', 3)])
def test_a_camera_that_is_not_there_is_counted_in_the_format_that_is_named(
    pixel_format: str, half_bytes: int, vehicle: Vehicle
) -> None:
    capture(device='/dev/video9', pixel_format=pixel_format)(vehicle)
    assert expected(vehicle).buffers == (-(-640 * 360 * half_bytes // 2 // PAGE) * PAGE,)
    capture(slots=33)(vehicle)
    assert expected(vehicle).slots == 32, 'a V4L2 driver has no more'


def test_a_driver_that_opens_for_one_file_only_is_asked_by_one_check_at_a_time(
    vehicle: Vehicle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups run in parallel; each ioctl takes long enough that they would overlap."""
    driver = vehicle.videos['/dev/video0']
    opened, answer = vehicle._open_video, driver.ioctl

    refused = []

    def open_once(path: str) -> DriverDouble:
        if not driver.closed and driver.calls:
            refused.append(path)
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return opened(path)

    def slowly(request: int, argument: Any) -> None:
        time.sleep(0.002)
        answer(request, argument)

    monkeypatch.setattr(vehicle, '_open_video', open_once)
    monkeypatch.setattr(driver, 'ioctl', slowly)
    vehicle.examine('cameras', 'memory', 'limits')
    assert refused == []
