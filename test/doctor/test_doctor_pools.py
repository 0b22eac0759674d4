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
The doctor expects of a pool what the capture node's negotiation makes of the parameters.

The cameras are real.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import errno
import os
import time
from typing import Any

from camera.camera_options import camera_options
from camera.v4l2_double import DriverDouble
from doctor.breakages import capture, inference
from doctor.vehicle import Vehicle
import pytest

from zc_perception.camera import kinds
from zc_perception.camera.camera import Camera, DrawnCamera
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.camera.v4l2.device import V4l2Device
from zc_perception.doctor.needs import pool_need, PoolNeed
from zc_perception.machine.checks import Finding
from zc_perception.memory.heaps import open_heap
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints, parse_stand_ins
from zc_perception.negotiation.session import BufferSession, Consumer
from zc_perception.negotiation.settings import Allocation, AllocationRequest
from zc_perception.npu.accelerator import with_frames
from zc_perception.npu.axl.device import AxlCapabilities
from zc_perception.npu.metis_card import Iommu
from zc_perception.npu.onnx.accelerator import OnnxAccelerator
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.modifier import LINEAR

PAGE = os.sysconf('SC_PAGE_SIZE')
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
    """Slots and their buffers' bytes, as the node gets them."""
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


def cpu(in_flight: int) -> BufferConstraints:
    accelerator = OnnxAccelerator(CopyLedger())
    try:
        return with_frames(
            accelerator.constraints(), in_flight, accelerator.capabilities().max_in_flight
        )
    finally:
        accelerator.close()


@pytest.mark.parametrize('participants', PARTICIPANTS)
@pytest.mark.parametrize(('slots', 'in_flight'), [(8, 1), (3, 4)])
def test_a_synthetic_cameras_pool_is_the_nodes(
    slots: int, in_flight: int, participants: list[str], vehicle: Vehicle
) -> None:
    capture(
        camera='synthetic',
        heap='memfd',
        memory='auto',
        width=SIZE[0],
        height=SIZE[1],
        slots=slots,
        participants=participants,
    )(vehicle)
    inference(accelerator='onnx', in_flight=in_flight)(vehicle)
    camera = SyntheticCamera(
        *SIZE,
        30.0,
        frame_id='',
        seed=1,
        heap=open_heap('memfd')[0],
        now_ns=lambda: 1,
        ledger=CopyLedger(),
    )
    try:
        count, sizes = made(camera, slots, participants, cpu(in_flight))
    finally:
        camera.close()
    need = expected(vehicle)
    assert (need.slots, list(need.buffers)) == (count, [-(-size // PAGE) * PAGE for size in sizes])
    assert need.total == count * sum(need.buffers)


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
    camera = V4l2Camera(
        options, open_device=lambda _: V4l2Device(DriverDouble(*formats, **driver))
    )
    try:
        count, sizes = made(camera, 8, participants, with_frames(consumer, 1, 4))
    finally:
        camera.close()
    need = expected(vehicle)
    assert (need.slots, list(need.buffers)) == (count, [-(-size // PAGE) * PAGE for size in sizes])


def test_the_driver_is_left_as_it_is(vehicle: Vehicle) -> None:
    driver = vehicle.videos['/dev/video0']
    before = driver.code, driver.size, driver.stride, driver.count
    expected(vehicle)
    assert (driver.code, driver.size, driver.stride, driver.count) == before and driver.closed
    assert not {'S_FMT', 'REQBUFS', 'S_PARM', 'S_EXT_CTRLS'} & set(driver.calls)


def slots_with(vehicle: Vehicle, nodes: dict[str, dict[str, Any]]) -> list[int]:
    vehicle.yaml = nodes
    needs = vehicle.needs()
    return [pool_need(vehicle.system(), needs, camera).slots for camera in needs.cameras]


SYNTHETIC = {'camera': 'synthetic', 'slots': 3}


@pytest.mark.parametrize(
    ('values', 'slots'),
    [
        ({'accelerator': 'onnx', 'in_flight': 9}, 2 + 3),
        ({'accelerator': 'axruntime', 'in_flight': 9}, 2 + 3),
        ({'accelerator': 'axruntime', 'in_flight': 9, 'double_buffer': True}, 2 + 4),
        ({'accelerator': 'axruntime', 'in_flight': 9, 'aipu_cores': 4}, 2 + 9),
        ({'accelerator': 'axruntime', 'in_flight': 3, 'aipu_cores': 4}, 2 + 4),
        ({'accelerator': 'axl', 'in_flight': 9}, 2 + 5),  # its driver takes four
        (
            {'accelerator': 'axl', 'in_flight': 9, 'accelerator_device': 'metis-0:9:0'},
            2 + 10,
        ),  # who knows
        ({'accelerator': 'auto', 'in_flight': 9}, 2 + 5),
    ],
)
def test_inference_holds_what_its_accelerator_takes_and_one_more(
    values: dict[str, Any], slots: int, vehicle: Vehicle
) -> None:
    assert slots_with(vehicle, {'/**/capture': SYNTHETIC, '/**/inference': values}) == [slots]


def test_an_accelerator_that_the_session_refuses_holds_no_slot(vehicle: Vehicle) -> None:
    """A card can't import memfds: its node gets the frames as messages."""
    camera = SYNTHETIC | {'heap': 'memfd'}
    assert slots_with(
        vehicle, {'/**/capture': camera, '/**/inference': {'accelerator': 'axl', 'in_flight': 9}}
    ) == [3]


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


def no_iommu(vehicle: Vehicle) -> None:
    (vehicle.pci / 'iommu_group').unlink()


def passes_through(vehicle: Vehicle) -> None:
    vehicle.write('sys/kernel/iommu_groups/7/type', 'identity\n')


SYSTEM, CMA = 'dma_heap/system', 'dma_heap/linux,cma'
AUTO = {'camera': 'synthetic', 'heap': 'auto', 'memory': 'auto', 'participants': []}
IMPORTING = {'camera': 'v4l2', 'heap': 'auto', 'memory': 'import', 'participants': []}


@pytest.mark.parametrize(
    ('values', 'accelerator', 'change', 'heap'),
    [
        (AUTO, 'axl', None, SYSTEM),
        (AUTO, 'axl', no_iommu, CMA),
        (AUTO, 'axl', passes_through, CMA),
        (AUTO, 'onnx', no_iommu, SYSTEM),
        (AUTO, 'onnx', Vehicle.tegra, CMA),
        (AUTO | {'participants': ['isp: NV12; contiguous']}, 'onnx', None, CMA),
        (AUTO | {'participants': [f'isp: NV12; heap={CMA}']}, 'onnx', None, CMA),
        (AUTO | {'participants': ['gpu: NV12; heap=udmabuf | memfd']}, 'onnx', None, 'udmabuf'),
        (AUTO | {'participants': ['cpu_only: NV12; heap=memfd']}, 'onnx', None, 'memfd'),
        (IMPORTING, 'axl', None, SYSTEM),
        (IMPORTING, 'axl', no_iommu, CMA),
        (AUTO | {'heap': CMA}, 'axl', None, CMA),
    ],
)
def test_the_heap_is_that_which_the_nodes_negotiation_chooses(
    values: dict[str, Any],
    accelerator: str,
    change: Callable[[Vehicle], None] | None,
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


def findings(vehicle: Vehicle) -> dict[str, Finding]:
    return {
        result.check.id: result.finding
        for result in vehicle.examine('memory', 'limits')
        if not result.finding.subject
    }


def test_the_verdicts_name_slots_and_bytes_of_all_participants(vehicle: Vehicle) -> None:
    """The tester's own case: a recorder that holds forty frames, with padded rows."""
    capture(camera='synthetic', memory='auto', width=1920, height=1080)(vehicle)
    before = findings(vehicle)
    assert '8 slots of 1920x1080, 23.8 MiB' in before['memory.cma_pool'].found
    capture(participants=['recorder: NV12; stride_align=4096; slots=40'])(vehicle)
    after = findings(vehicle)
    slot = 4096 * 1080 * 3 // 2
    assert (
        '44 slots of 1920x1080, 278.4 MiB' in after['memory.cma_pool'].found
        and after['memory.cma_pool'].status.value == 'fail'
    )
    assert after['memory.cma_pool'].figures['needed'] == 44 * slot
    assert (
        after['limits.descriptors'].figures['needed']
        - before['limits.descriptors'].figures['needed']
        == 6 * 36
    )


@pytest.mark.parametrize(
    ('participants', 'words'),
    [
        (['a: any; slots=40'], ('slots are needed', 'v4l2 camera allows at most 32')),
        (['a: YUYV', 'b: NV12'], ('no common pixel format', 'a: YUYV LINEAR')),
        (['a: NV12; heap=dma_heap/system'], ("a can't use buffers of heap 'dma_heap/linux,cma'",)),
        (['a: NV12; max_size=320x180'], ('a takes images of at most 320x180',)),
        (['a'], ("'a': it must begin with a name",)),
        (['a: NV12; stride_aling=3'], ("option 'stride_aling' is unknown",)),
    ],
)
def test_participants_that_the_node_refuses_fail_in_its_words(
    participants: list[str], words: tuple[str, ...], vehicle: Vehicle
) -> None:
    capture(participants=participants)(vehicle)
    assert findings(vehicle)['memory.cma_pool'].status.value == 'skip'
    (found, running) = (result.finding for result in vehicle.examine('agreement'))
    assert (found.status.value, found.subject) == ('fail', '/capture')
    assert all(text in found.found for text in words) and '/capture' in found.advice
    assert running.status.value == 'skip'


class RgbCamera(DrawnCamera):
    """As a new camera of this package: its size and format are class attributes."""

    SIZE = (128, 96)
    fourcc = fourcc_code('BG24')


def test_a_new_kind_of_camera_that_draws_says_its_size_and_format_itself(
    vehicle: Vehicle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kinds.CAMERAS.built_in, 'rgb', f'{__name__}:RgbCamera')
    for size, buffer in (((0, 0), 128 * 96 * 3), ((256, 0), 256 * 96 * 3)):
        capture(
            camera='rgb',
            heap='memfd',
            memory='auto',
            width=size[0],
            height=size[1],
            participants=['a: any'],
        )(vehicle)
        need = expected(vehicle)
        assert (need.memory, need.size, need.buffers) == (
            'memfd',
            (size[0] or 128, 96),
            (-(-buffer // PAGE) * PAGE,),
        )


@pytest.mark.parametrize(
    ('pixel_format', 'half_bytes'), [('auto', 3), ('YUYV', 4), ('MJPG', 3), ('XX', 3)]
)
def test_a_camera_that_is_not_there_is_counted_in_the_format_that_is_named(
    pixel_format: str, half_bytes: int, vehicle: Vehicle
) -> None:
    capture(device='/dev/video9', pixel_format=pixel_format)(vehicle)
    need = expected(vehicle)
    assert need.buffers == (-(-640 * 360 * half_bytes // 2 // PAGE) * PAGE,)
    capture(slots=33)(vehicle)
    needs = vehicle.needs()
    assert pool_need(vehicle.system(), needs, needs.cameras[0]).slots == 32, (
        'a V4L2 driver has no more'
    )


def test_a_driver_that_opens_for_one_file_only_is_asked_by_one_check_at_a_time(
    vehicle: Vehicle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups run side by side; each of its ioctls takes so long that they would meet."""
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
