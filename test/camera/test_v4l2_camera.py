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
The V4L2 camera's decisions against a driver made of Python.

A real driver's turn comes in the rig.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from camera.named_heap import NamedHeap
from camera.v4l2_double import Control, DriverDouble, Frame, opened, streaming, take
from descriptors import open_descriptors
import pytest

from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2 import memory as memory_module
from zc_perception.errors import CameraError
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.heaps import working_heaps
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.modifier import LINEAR


def open_buffers() -> Counter[str]:
    """Descriptors of frames' memory. Other threads' own come and go."""
    return Counter(
        {target: count for target, count in open_descriptors().items() if 'memfd' in target}
    )


@pytest.mark.parametrize(
    ('formats', 'multiplanar', 'chosen', 'placement'),
    [
        (('YUYV', 'NV12', 'MJPG'), False, (NV12, fourcc_code('YUYV')), Placement.ONE_BUFFER),
        (('NM12', 'NV12', 'YUYV'), True, (NV12, fourcc_code('YUYV')), None),
        (('YUYV', 'NM12'), True, (NV12, fourcc_code('YUYV')), Placement.BUFFER_PER_PLANE),
        (('YUYV', 'UYVY'), False, (fourcc_code('YUYV'), fourcc_code('UYVY')), None),
    ],
)
def test_formats_are_offered_the_best_first(
    formats: tuple[str, ...],
    multiplanar: bool,
    chosen: tuple[int, ...],
    placement: Placement | None,
) -> None:
    camera = opened(DriverDouble(*formats, multiplanar=multiplanar))
    constraints = camera.constraints()
    assert constraints.formats == tuple((code, LINEAR) for code in chosen)
    assert constraints.placement is placement
    camera.close()


@pytest.mark.parametrize('memory', ['export', 'import'])
@pytest.mark.parametrize(
    ('formats', 'multiplanar', 'buffers'),
    [(('NV12',), False, 1), (('NV12',), True, 1), (('NM12',), True, 2)],
)
def test_frames_come_from_the_memory_that_was_asked_for(
    memory: str, formats: tuple[str, ...], multiplanar: bool, buffers: int
) -> None:
    before = open_buffers()
    driver = DriverDouble(*formats, multiplanar=multiplanar)
    with streaming(driver, memory=memory, heap='memfd') as camera:
        assert (camera.memory, camera.heap_name) == (
            memory,
            'v4l2/double' if memory == 'export' else 'memfd',
        )
        assert camera.slots[0].layout.num_buffers == buffers
        assert take(camera, 12) == list(range(12))
        assert set(driver.queue_order) == {slot.index for slot in camera.slots}
        assert camera.statistics().captured == 12 and not camera.statistics().dropped
    assert driver.closed
    assert open_buffers() <= before


@pytest.mark.parametrize(
    ('contiguous', 'heap'), [(False, 'dma_heap/system'), (True, 'dma_heap/linux,cma')]
)
def test_the_heap_of_imported_buffers_is_the_one_that_is_agreed_on(
    contiguous: bool, heap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Those whose buffers the driver can't import are not offered.

    Notices name the ones that would have been better.
    """
    rooms = {'dma_heap/vendor': 5000, 'udmabuf': 5000}
    names = ['dma_heap/vendor', 'dma_heap/system', 'dma_heap/linux,cma', 'udmabuf']
    offered = partial(
        working_heaps, order=names, opener=lambda name: NamedHeap(name, rooms.get(name, 1 << 30))
    )
    monkeypatch.setattr(memory_module, 'working_heaps', lambda name, order: offered(name))
    before = open_buffers()
    camera = opened(DriverDouble('NV12'), 320, 180, memory='import')
    try:
        constraints = camera.constraints()
        assert constraints.heaps == ('dma_heap/system', 'dma_heap/linux,cma')
        assert [note.partition(':')[0] for note in camera.notices()] == ['dma_heap/vendor']
        camera.allocate(
            agree([constraints, BufferConstraints('isp', contiguous=contiguous)], (320, 180))
        )
        assert camera.heap_name == heap and {
            buffer.heap for slot in camera.slots for buffer in slot.buffers
        } == {heap}
        assert take(camera, 3) == [0, 1, 2]
    finally:
        camera.close()
    assert open_buffers() <= before and NamedHeap.open == 0


def test_what_memory_can_not_be_is_refused() -> None:
    with pytest.raises(CameraError, match=r'try memory: import'):
        opened(DriverDouble('NV12', memory=abi.BUF_CAP_SUPPORTS_DMABUF), memory='export')
    driver = DriverDouble('NV12', memory=abi.BUF_CAP_SUPPORTS_MMAP)
    with pytest.raises(
        CameraError, match=r'imports buffers of no heap: memfd: .*try memory: export'
    ):
        opened(driver, memory='import', heap='memfd')
    assert driver.closed


@pytest.mark.parametrize('readable', [True, False])
def test_exports_can_only_be_read_where_the_driver_has_that_and_else_it_is_said(
    readable: bool,
) -> None:
    driver = DriverDouble('NV12')
    driver.readable_exports = readable
    with streaming(driver) as camera:
        assert camera.memory == 'export'
        assert {buffer.writable for slot in camera.slots for buffer in slot.buffers} == {
            not readable
        }
        assert any('trusted' in note for note in camera.notices()) is not readable


def test_data_behind_a_header_is_where_the_layout_says() -> None:
    driver = DriverDouble('NM12', multiplanar=True, offset=128)
    with streaming(driver) as camera:
        assert [plane.offset for plane in camera.slots[0].layout.planes] == [128, 128]
        assert len(take(camera, 2)) == 2
        driver.script = [Frame(offset=64)]
        with pytest.raises(CameraError, match=r'begins at \(64, 64\)'):
            take(camera)


def test_the_driver_is_asked_for_strides_that_suit_consumers() -> None:
    driver = DriverDouble('NV12')
    camera = opened(driver, 320, 180)
    try:
        camera.allocate(
            agree([camera.constraints(), BufferConstraints('wide', stride_align=256)], (320, 180))
        )
        assert [plane.stride for plane in camera.slots[0].layout.planes] == [512, 512]
    finally:
        camera.close()


def test_what_the_device_can_not_do_is_said_with_what_it_can() -> None:
    with pytest.raises(
        CameraError,
        match=r"can't do 600x300; the nearest is 640x360: .* it offers NV12 in 320x180, "
        r'640x360; also YUYV',
    ):
        opened(DriverDouble(), 600, 300)
    with pytest.raises(CameraError, match=r"no pixel format 'NM12'; it offers YUYV, NV12"):
        opened(DriverDouble(), pixel_format='NM12')
    with pytest.raises(CameraError, match=r"set parameter 'pixel_format'; did you mean 'NV12'\?"):
        opened(DriverDouble(), pixel_format='nv12')
    with pytest.raises(
        CameraError, match=r'no pixel format that can be used; it offers H264; .*compressed stream'
    ):
        opened(DriverDouble('H264'))
    with pytest.raises(CameraError, match=r'has no input 2'):
        opened(DriverDouble(), input=2)


@pytest.mark.parametrize('others', [(), ('YUYV',)])
def test_a_tiled_layout_is_for_consumers_that_take_it(others: tuple[str, ...]) -> None:
    driver = DriverDouble('MM21', *others, multiplanar=True)
    camera = opened(driver)
    try:
        own = camera.constraints()
        *linear, (code, modifier) = own.formats or ()
        assert (
            code == NV12
            and modifier != LINEAR
            and linear == [(fourcc_code(name), LINEAR) for name in others]
        )
        camera.allocate(
            agree([own, BufferConstraints('scaler', formats=((NV12, modifier),))], (640, 360))
        )
        layout = camera.slots[0].layout
        assert (layout.fourcc, layout.modifier, layout.num_buffers) == (NV12, modifier, 2)
        assert take(camera, 2) == [0, 1] and camera.facts()['V4L2 format'] == 'MM21'
    finally:
        camera.close()


@pytest.mark.parametrize('consumers', [[], [BufferConstraints('cpu', cpu_access=CpuAccess.READ)]])
def test_a_tiled_layout_is_not_taken_where_a_linear_one_is_there(
    consumers: list[BufferConstraints],
) -> None:
    camera = opened(DriverDouble('MM21', 'YUYV', multiplanar=True))
    try:
        camera.allocate(agree([camera.constraints(), *consumers], (640, 360)))
        assert (camera.slots[0].layout.fourcc, camera.slots[0].layout.modifier) == (
            fourcc_code('YUYV'),
            LINEAR,
        )
        assert take(camera, 2) == [0, 1]
    finally:
        camera.close()


def test_a_format_that_is_too_slow_at_the_size_gives_way_to_one_that_keeps_the_rate() -> None:
    driver = DriverDouble('YUYV', 'NV12', 'UYVY')
    driver.rates = {'NV12': 5, 'UYVY': 29}
    camera = opened(driver, framerate=30.0)
    assert (camera.constraints().formats, camera.framerate) == (
        ((fourcc_code('YUYV'), LINEAR),),
        30.0,
    )
    assert (
        camera.facts()['choice']
        == 'YUYV, taken as the driver fills it: NV12 does 5 Hz there; UYVY does 29 Hz there'
    )
    camera.close()
    camera = opened(DriverDouble(*driver.formats), framerate=0.0)
    assert len(camera.constraints().formats or ()) == 3
    camera.close()


def test_facts_for_diagnostics() -> None:
    driver = DriverDouble('NM12', multiplanar=True)
    with streaming(driver) as camera:
        assert camera.facts()['timestamp source'] == 'no frame yet'
        driver.script = [
            Frame(flags=abi.BUF_FLAG_TIMESTAMP_MONOTONIC | abi.BUF_FLAG_TSTAMP_SRC_SOE)
        ]
        take(camera)
        driver.broken = True
        assert camera.facts() | {'stream restarts': 0} == {
            'memory': 'export',
            'V4L2 format': 'NM12',
            'choice': 'NM12, taken as the driver fills it',
            'timestamp source': 'start of exposure',
            'stream restarts': 0,
        }
        take(camera)
        assert (camera.facts()['timestamp source'], camera.facts()['stream restarts']) == (
            'arrival',
            1,
        )


def test_a_driver_that_needs_more_buffers_gets_them() -> None:
    driver = DriverDouble('NV12')
    driver.controls[abi.CID_MIN_BUFFERS_FOR_CAPTURE] = Control(
        'Min Number of Capture Buffers',
        abi.CTRL_TYPE_INTEGER,
        0,
        32,
        value=5,
        flags=abi.CTRL_FLAG_READ_ONLY,
    )
    camera = opened(driver)
    assert camera.constraints().slots == 6
    camera.close()
