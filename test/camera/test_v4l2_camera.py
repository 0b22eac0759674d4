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

"""The V4L2 camera's decisions, with a driver written in Python; the rig has real ones."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
import ctypes
import errno
from fractions import Fraction
from functools import partial
import os
from pathlib import Path
import resource
from typing import Any

from camera.camera_options import NamedHeap
from camera.v4l2_double import Control, DriverDouble, Frame, opened, streaming, take
from descriptors import limited, next_free, open_descriptors
from hypothesis import given
from hypothesis import strategies as st
import pytest

from zc_perception.camera.camera import checked_value, ControlInfo, NO_CONTROLS, no_such_control
from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2 import choice as memory_module
from zc_perception.camera.v4l2.device import (
    call,
    DeviceFile,
    find_device,
    identity_of,
    V4l2Controls,
    V4l2Device,
)
from zc_perception.camera.v4l2.formats import (
    driver_layout,
    DriverFormat,
    DriverPlane,
    format_offers,
    least_bytes,
)
from zc_perception.errors import (
    CameraError,
    CameraLostError,
    ConfigError,
    FormatError,
    LayoutError,
)
from zc_perception.memory.heaps import working_heaps
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.colorimetry import Matrix, Range, V4l2Colorimetry
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.layout import validate_layout
from zc_perception.pixel.modifier import KnownModifier, LINEAR


def open_buffers() -> Counter[str]:
    """Count descriptors of frames' memory; other threads may change those of other kinds."""
    return Counter(
        {target: count for target, count in open_descriptors().items() if 'memfd' in target}
    )


@pytest.mark.parametrize(
    ('memory', 'heap'), [('export', 'v4l2/double'), ('import', 'memfd')]
)
@pytest.mark.parametrize(('name', 'buffers'), [('NV12', 1), ('NM12', 2)])
def test_frames_come_from_the_memory_that_was_asked_for(
    memory: str, heap: str, name: str, buffers: int
) -> None:
    before, driver = open_buffers(), DriverDouble(name, multiplanar=buffers == 2)
    with streaming(driver, memory=memory, heap='memfd') as camera:
        assert (camera.memory, camera.heap_name) == (memory, heap)
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
    """Notices name better heaps that the driver can't import."""
    rooms = {'dma_heap/vendor': 5000, 'udmabuf': 5000}
    names = ['dma_heap/vendor', 'dma_heap/system', 'dma_heap/linux,cma', 'udmabuf']
    offered = partial(
        working_heaps, order=names, opener=lambda name: NamedHeap(name, rooms.get(name, 1 << 30))
    )
    monkeypatch.setattr(memory_module, 'working_heaps', lambda name, order: offered(name))
    before, isp = open_buffers(), BufferConstraints('isp', contiguous=contiguous)
    with streaming(DriverDouble('NV12'), isp, width=320, height=180, memory='import') as camera:
        assert camera.constraints().heaps == ('dma_heap/system', 'dma_heap/linux,cma')
        assert [note.partition(':')[0] for note in camera.notices()] == ['dma_heap/vendor']
        buffers = [buffer for slot in camera.slots for buffer in slot.buffers]
        assert {camera.heap_name, *(buffer.heap for buffer in buffers)} == {heap}
        assert take(camera, 3) == [0, 1, 2]
    assert open_buffers() <= before and NamedHeap.open == 0


def test_what_memory_can_not_be_is_refused() -> None:
    with pytest.raises(CameraError, match=r"set parameter 'memory' to import"):
        opened(DriverDouble('NV12', memory=abi.BUF_CAP_SUPPORTS_DMABUF), memory='export')
    driver = DriverDouble('NV12', memory=abi.BUF_CAP_SUPPORTS_MMAP)
    with pytest.raises(
        CameraError, match=r'buffers of any heap: memfd: .*set the parameter memory to export'
    ):
        opened(driver, memory='import', heap='memfd')
    assert driver.closed
    driver = DriverDouble('NV12')
    driver.fail('EXPBUF', errno.EMFILE)
    with pytest.raises(CameraError, match=r'EXPBUF.*Too many open files'), streaming(driver):
        pass


@pytest.mark.parametrize('readable', [True, False])
def test_exports_can_only_be_read_where_the_driver_has_that_and_else_it_is_said(
    readable: bool,
) -> None:
    driver = DriverDouble('NV12')
    driver.readable_exports = readable
    with streaming(driver) as camera:
        assert camera.memory == 'export'
        buffers = [buffer for slot in camera.slots for buffer in slot.buffers]
        assert {buffer.writable for buffer in buffers} == {not readable}
        assert any('trusted' in note for note in camera.notices()) is not readable


def test_data_behind_a_header_in_strides_that_suit_consumers_are_where_the_layout_says() -> None:
    driver = DriverDouble('NM12', multiplanar=True, offset=128)
    wide = BufferConstraints('wide', stride_align=256)
    with streaming(driver, wide, width=320, height=180) as camera:
        planes = camera.slots[0].layout.planes
        assert [(plane.offset, plane.stride) for plane in planes] == [(128, 512), (128, 512)]
        assert len(take(camera, 2)) == 2
        driver.script = [Frame(offset=64)]
        with pytest.raises(CameraError, match=r'begins at \(64, 64\)'):
            take(camera)


@pytest.mark.parametrize(('formats', 'options', 'words'), [
    ((), {'width': 600, 'height': 300}, r"can't do 600x300; the nearest is 640x360: .* it "
     r'offers NV12 in 320x180, 640x360; also YUYV'),
    ((), {'pixel_format': 'NM12'}, r"no pixel format 'NM12'; it offers YUYV, NV12"),
    ((), {'pixel_format': 'nv12'}, r"set parameter 'pixel_format'; did you mean 'NV12'\?"),
    (('H264',), {}, 'no pixel format that can be used; it offers H264; .*compressed stream'),
    ((), {'input': 2}, r'has no input 2'),
])  # fmt: skip
def test_what_the_device_can_not_do_is_said_with_what_it_can(
    formats: tuple[str, ...], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(CameraError, match=words):
        opened(DriverDouble(*formats), **options)


def test_a_tiled_layout_is_for_consumers_that_take_it() -> None:
    tiled = NV12, int(KnownModifier.MTK_16L_32S_TILE)
    driver = DriverDouble('MM21', 'YUYV', multiplanar=True)
    with streaming(driver, BufferConstraints('scaler', formats=(tiled,))) as camera:
        layout = camera.slots[0].layout
        assert (layout.fourcc, layout.modifier, layout.num_buffers) == (*tiled, 2)
        assert take(camera, 2) == [0, 1] and camera.facts()['V4L2 format'] == 'MM21'


def test_a_format_that_is_too_slow_at_the_size_gives_way_to_one_that_keeps_the_rate() -> None:
    driver = DriverDouble('YUYV', 'NV12', 'UYVY')
    driver.rates = {'NV12': 5, 'UYVY': 29}
    with closing(opened(driver, framerate=30.0)) as camera:
        assert camera.constraints().formats == ((fourcc_code('YUYV'), LINEAR),)
        assert camera.framerate == 30.0 and camera.facts()['choice'] == (
            'YUYV, without conversion: NV12 does 5 Hz at this size; '
            'UYVY does 29 Hz at this size'
        )
    with closing(opened(DriverDouble(*driver.formats), framerate=0.0)) as camera:
        assert len(camera.constraints().formats or ()) == 3


def test_facts_for_diagnostics() -> None:
    driver = DriverDouble('NM12', multiplanar=True)
    facts = {'memory': 'export', 'V4L2 format': 'NM12', 'stream restarts': 0}
    facts['choice'] = 'NM12, without conversion'
    with streaming(driver) as camera:
        assert camera.facts()['timestamp source'] == 'no frame yet'
        flags = abi.BUF_FLAG_TIMESTAMP_MONOTONIC | abi.BUF_FLAG_TSTAMP_SRC_SOE
        driver.script = [Frame(flags=flags)]
        take(camera)
        driver.broken = True
        assert camera.facts() == {**facts, 'timestamp source': 'start of exposure'}
        take(camera)
        assert camera.facts() == {**facts, 'timestamp source': 'arrival', 'stream restarts': 1}


# V4L2 streams when frames, buffers or the device are missing.


def test_gaps_are_lost_frames_unless_consumers_held_all_slots() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver, slots=4) as camera:
        driver.script = [Frame(), Frame(sequence=5)]
        assert take(camera, 2) == [0, 5]
        assert (camera.statistics().lost, camera.statistics().no_slot) == (4, 0)
        held = [frame for frame in (camera.capture() for _ in camera.slots) if frame is not None]
        assert len(held) == len(camera.slots) and camera.capture() is None
        for frame in held:
            frame.release()
        driver.script = [Frame(sequence=20)]
        assert take(camera) == [20]
        found = camera.statistics()
        assert (found.lost, found.no_slot, found.dropped) == (4, 10, 14)


@pytest.mark.parametrize(
    ('numbers', 'sequences', 'lost'),
    [
        ((0, 0, 0, 0, 0), [0, 1, 2, 3, 4], 0),
        ((100, 3, 5), [100, 101, 103], 1),
        ((2**32 - 2, 2**32 - 1, 1, 2), [2**32 - 2, 2**32 - 1, 2**32 + 1, 2**32 + 2], 1),
    ],
    ids=['never', 'anew', 'over 32 bits'],
)
def test_a_driver_that_does_not_count_or_begins_anew_loses_nothing(
    numbers: tuple[int, ...], sequences: list[int], lost: int
) -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        driver.script = [Frame(sequence=number) for number in numbers]
        assert take(camera, len(numbers)) == sequences
        assert camera.statistics().dropped == camera.statistics().lost == lost


def test_a_lease_that_ends_while_the_stream_starts_anew_has_its_buffer_queued_once() -> None:
    """The slot is free before its listener is called: listener and restart both find it."""
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        stream, start = camera._stream, driver._streamon
        assert stream is not None

        def late(argument: ctypes.c_int) -> None:
            stream.queue_again(camera.slots[0])
            start(argument)

        driver._streamon = late  # type: ignore[method-assign]
        driver.calls.clear()
        take(camera)
        # All slots, and the one that was taken.
        assert driver.calls.count('QBUF') == len(camera.slots) + 1


def test_a_pipeline_that_does_not_fit_is_no_matter_of_trying_again() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        driver.fail('STREAMON', errno.EPIPE)
        with pytest.raises(CameraError, match='media-ctl') as raised:
            camera.capture()
        assert not isinstance(raised.value, CameraLostError) and camera.restarts == 0
        assert not driver.queued


@pytest.mark.parametrize('bad', [Frame(flags=abi.BUF_FLAG_ERROR), Frame(used=100)])
def test_a_camera_that_gives_bad_frames_alone_is_as_good_as_silent(bad: Frame) -> None:
    driver = DriverDouble('NV12')
    with streaming(driver) as camera:
        take(camera)
        start, driver.script = driver.now, [bad] * 10_000
        while camera.restarts == 0:
            driver.now += 1 / 30
            assert camera.capture() is None
        assert 2.0 <= driver.now - start < 2.6
        assert len(driver.queued) + len(driver.waiting) == len(camera.slots)
        with pytest.raises(CameraLostError, match='no good frame for 2 s'):
            while True:
                driver.now += 1 / 30
                camera.capture()
        assert driver.now - start < 5.2 and camera.restarts == 1 and camera.statistics().bad > 20


def test_a_slow_camera_is_not_silent() -> None:
    driver = DriverDouble('NV12')
    with streaming(driver, framerate=1.0) as camera:
        take(camera)
        driver.silent, start = True, driver.now
        while driver.now - start < 9.5:
            camera.capture()
        assert camera.framerate == 1.0 and camera.restarts == 0
        while driver.now - start < 10.5:
            camera.capture()
        assert camera.restarts == 1


# The planes' places for all kinds of drivers.


# From each format's page in the kernel's documentation: per plane, the bytes of a row per pixel of
# width, and its share of the rows; and whether each plane has its own buffer.
_HALF = Fraction(1, 2)
PAGES = {
    'NV12': (((1, 1), (1, 2)), False), 'NM12': (((1, 1), (1, 2)), True),
    'NV16': (((1, 1), (1, 1)), False),
    'NM16': (((1, 1), (1, 1)), True), 'NV24': (((1, 1), (2, 1)), False),
    'YU12': (((1, 1), (_HALF, 2), (_HALF, 2)), False),
    'YM12': (((1, 1), (_HALF, 2), (_HALF, 2)), True), 'YUYV': (((2, 1),), False),
    'P010': (((2, 1), (2, 2)), False),
    'RGB3': (((3, 1),), False), 'GREY': (((1, 1),), False),
}  # fmt: skip
COLOURS = V4l2Colorimetry()


def _driver(name: str, *planes: DriverPlane, size: tuple[int, int] = (64, 32)) -> DriverFormat:
    return DriverFormat(*size, fourcc_code(name), planes, COLOURS)


@st.composite
def drivers(
    draw: st.DrawFn,
) -> tuple[DriverFormat, tuple[int, ...], list[tuple[int, int, int]]]:
    """Return a driver's answer with its padding, and each plane's buffer, offset and stride."""
    name = draw(st.sampled_from(sorted(PAGES)))
    planes, separate = PAGES[name]
    width, height = 2 * draw(st.integers(1, 2000)), 2 * draw(st.integers(1, 2000))
    padding, tail = 4 * draw(st.integers(0, 64)), draw(st.integers(0, 8192))
    offsets = [2 * draw(st.integers(0, 2048)) for _ in (planes if separate else planes[:1])]
    first, end = width * planes[0][0] + padding, offsets[0]
    sizes, places = [], []
    for index, (share, rows) in enumerate(planes):
        if separate:
            stride = int(width * share) + padding
            places.append((index, offsets[index], stride))
            sizes.append(DriverPlane(stride, offsets[index] + stride * (height // rows) + tail))
        else:
            stride = int(first * Fraction(share) / planes[0][0])
            places.append((0, end, stride))
            end += stride * (height // rows)
    sizes = sizes or [DriverPlane(int(first), end + tail)]
    driver = DriverFormat(width, height, fourcc_code(name), tuple(sizes), COLOURS)
    return driver, tuple(offsets), places


@given(drivers())
def test_planes_lie_where_the_documentation_draws_them(
    case: tuple[DriverFormat, tuple[int, ...], list[tuple[int, int, int]]],
) -> None:
    driver, offsets, places = case
    layout = driver_layout(driver, offsets)
    assert [(plane.buffer, plane.offset, plane.stride) for plane in layout.planes] == places
    assert (layout.width, layout.height, layout.modifier) == (driver.width, driver.height, LINEAR)
    validate_layout(layout, [plane.size for plane in driver.planes])
    for needed, plane in zip(least_bytes(layout), driver.planes, strict=True):
        assert needed <= plane.size


@given(
    st.sampled_from([*sorted(PAGES), 'MM21', 'ST12', 'MJPG', '????']),
    st.integers(0, 1 << 17),
    st.integers(0, 1 << 17),
    st.lists(st.builds(DriverPlane, st.integers(0, 1 << 32), st.integers(0, 1 << 32)), max_size=4),
    st.lists(st.integers(0, 1 << 32), max_size=4),
)
def test_whatever_a_driver_says_is_a_layout_or_a_sentence(
    name: str, width: int, height: int, planes: list[DriverPlane], offsets: list[int]
) -> None:
    try:
        layout = driver_layout(_driver(name, *planes, size=(width, height)), offsets)
    except (LayoutError, FormatError):
        return
    validate_layout(layout, [plane.size for plane in planes])


def test_tiled_formats_are_taken_only_where_nothing_is_left_to_guess() -> None:
    layout = driver_layout(_driver('MM21', DriverPlane(64, 2560), DriverPlane(64, 1024)))
    places = [(p.buffer, p.offset, p.size) for p in layout.planes]
    assert layout.modifier != LINEAR and places == [(0, 0, 2560), (1, 0, 1024)]
    padded = _driver('MM21', DriverPlane(64, 2816), DriverPlane(64, 1152))
    behind = driver_layout(padded, (256, 128))
    assert [(p.offset, p.size) for p in behind.planes] == [(256, 2560), (128, 1024)]
    assert driver_layout(_driver('ST12', DriverPlane(64, 3072))).planes[1].offset == 2048
    with pytest.raises(LayoutError, match='tiled and padded to 4096 bytes'):
        driver_layout(_driver('ST12', DriverPlane(64, 4096)))
    with pytest.raises(FormatError, match='no DRM modifier'):
        driver_layout(_driver('HM12', DriverPlane(64, 3072)))


def _codes(*names: str) -> list[int]:
    return [fourcc_code(name) for name in names]


def test_offers_are_in_order_of_preference_with_reasons_for_the_rest() -> None:
    offers, refused = format_offers(
        _codes('RGB3', 'MJPG', 'UYVY', 'NM12', 'HM12', 'YUYV', 'NV12', 'RGGB')
    )
    assert [offer.fourcc for offer in offers] == _codes('NV12', 'YUYV', 'UYVY', 'BG24')
    assert offers[0].codes == tuple(_codes('NV12', 'NM12'))
    assert set(refused) == {'MJPG', 'HM12', 'RGGB'}
    assert 'decoder' in refused['MJPG'] and 'ISP' in refused['RGGB']


@pytest.mark.parametrize(('name', 'fields', 'matrix', 'span'), [
    ('NV12', V4l2Colorimetry(3), Matrix.BT709, Range.LIMITED),
    # The package has no name for the transfer NONE, for SMPTE 240M, and for quantization 3.
    ('NV12', V4l2Colorimetry(3, xfer_func=5), Matrix.BT709, Range.LIMITED),
    ('NV12', V4l2Colorimetry(7, ycbcr_enc=8), Matrix.BT601, Range.FULL),
    ('NV12', V4l2Colorimetry(7, quantization=3), Matrix.BT601, Range.FULL),
    ('NV12', V4l2Colorimetry(2), Matrix.BT601, Range.LIMITED),
    ('RGB3', V4l2Colorimetry(8), Matrix.RGB, Range.FULL),
])  # fmt: skip
def test_colours_are_the_drivers_own_or_the_usual_ones(
    name: str, fields: V4l2Colorimetry, matrix: Matrix, span: Range
) -> None:
    driver = DriverFormat(64, 32, fourcc_code(name), (DriverPlane(64, 3072),), fields)
    assert (driver.colorimetry.matrix, driver.colorimetry.range) == (matrix, span)


# The camera's identity, from sysfs as the kernel arranges it.


def _identity(root: Path, place: str, serial: str = '', index: int = 0) -> str:
    """Make a device below /sys/devices with the video node /dev/null; return its identity."""
    number = os.stat('/dev/null').st_rdev
    device = root / 'devices' / place
    node = device / 'video4linux' / 'video0'
    node.mkdir(parents=True)
    (node / 'index').write_text(f'{index}\n')
    (node / 'device').symlink_to(device)
    if serial:
        (device.parent / 'serial').write_text(f'{serial}\n')
    link = root / 'dev' / 'char' / f'{os.major(number)}:{os.minor(number)}'
    link.parent.mkdir(parents=True)
    link.symlink_to(node)
    driver = DriverDouble()
    driver.path, driver.card = '/dev/null', b'Nice \x1b[2J Camera'
    return identity_of(V4l2Device(driver), root)


def test_a_serial_number_counts_wherever_the_camera_is_plugged_in(tmp_path: Path) -> None:
    first = _identity(tmp_path / 'a', 'pci/usb1/1-2/1-2:1.0', serial='SN1')
    second = _identity(tmp_path / 'b', 'pci/usb1/1-3/1-3:1.0', serial='SN1')
    # The name that a device gives itself moves no cursor.
    assert first == second == r'platform:double / Nice \x1b[2J Camera / serial SN1 / node 0'
    assert _identity(tmp_path / 'c', 'pci/usb1/1-2/1-2:1.0', serial='SN2') != first
    another_node = _identity(tmp_path / 'd', 'pci/usb1/1-2/1-2:1.0', serial='SN1', index=2)
    assert another_node != first
    controller = tmp_path / 'e/devices/pci/usb1/serial'
    controller.parent.mkdir(parents=True)
    controller.write_text('0000:00:14.0\n')
    assert 'serial' not in _identity(tmp_path / 'e', 'pci/usb1/1-2/1-2:1.0')


def test_a_camera_is_found_by_its_identity_alone() -> None:
    drivers: list[DriverDouble] = []

    def open_device(path: str) -> V4l2Device:
        if path == '/dev/video0':
            raise CameraError('busy')
        drivers.append(DriverDouble())
        device = V4l2Device(drivers[-1])
        device.bus_info = f'usb-{path}'
        return device

    paths = [(f'/dev/video{i}', '') for i in range(4)]
    find = partial(find_device, paths=lambda: paths, open_device=open_device)
    assert find('usb-/dev/video2 / Double Camera') == '/dev/video2'
    assert find('usb-/dev/video9 / Double Camera') is None
    assert drivers and all(driver.closed for driver in drivers)


def test_a_node_that_is_no_camera_is_refused_by_its_own_answer() -> None:
    words = r"camera '/dev/no_such_node' can't be opened: No such file.*devices found: .*'device'"
    with pytest.raises(CameraError, match=words):
        V4l2Device.open('/dev/no_such_node')
    with pytest.raises(CameraError, match=r"'/dev/null': VIDIOC_QUERYCAP failed"):
        V4l2Device.open('/dev/null')
    words = 'this process has no file descriptor left'
    with limited(resource.RLIMIT_NOFILE, next_free()), pytest.raises(CameraError, match=words):
        V4l2Device.open('/dev/video0')
    file = DeviceFile('/dev/null')
    file.close()
    with pytest.raises(CameraLostError, match=r"'/dev/null' was closed"):
        call(file, 'QUERYCAP', 0, ctypes.c_int(0))


# Controls.

INTEGER = ControlInfo('gain', 'integer', -5, 20, 5, 0, 10)
SWITCH = ControlInfo('flip', 'boolean', 0, 1)
MENU = ControlInfo('power_line', 'menu', 0, 3, menu={0: 'Disabled', 1: '50 Hz', 3: 'Auto'})
BITS = ControlInfo('bits', 'bitmask', 0, 0b1101)


@pytest.mark.parametrize(('info', 'value', 'words'), [
    (INTEGER, 21, r"cam: control 'gain' can't be 21; it takes -5 .. 20 in steps of 5"),
    (INTEGER, True, r"isn't boolean and can't be True; it takes -5 .. 20"),
    (INTEGER, 'much', r"'much'; it takes"), (SWITCH, 2, r'2; it takes true or false'),
    (MENU, 2, r'2; it takes 0 \(Disabled\), 1 \(50 Hz\), 3 \(Auto\)'),
    (MENU, '60 Hz', r"did you mean '50 Hz'"), (BITS, 0b10, r'2; it takes bits of 0xd'),
    (ControlInfo('temperature', 'integer', 0, 100, value=40, read_only=True), 1, 'only; it is 40'),
    (ControlInfo('label', 'string'), 'x', r'v4l2-ctl'),
])  # fmt: skip
def test_what_it_refuses(info: ControlInfo, value: int | bool | str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        checked_value('cam', info, value)


def test_an_unknown_name_gets_the_nearest_one() -> None:
    said = str(no_such_control('cam', 'brigthness', {'brightness': INTEGER, 'contrast': INTEGER}))
    assert "did you mean 'brightness'?; it has brightness, contrast" in said
    assert 'it has none' in str(no_such_control('cam', 'x', NO_CONTROLS))


BASE = 0x00980900


def _controlled() -> DriverDouble:
    driver, payload = DriverDouble(), abi.CTRL_FLAG_HAS_PAYLOAD
    only_class = abi.CTRL_FLAG_READ_ONLY | abi.CTRL_FLAG_WRITE_ONLY
    line, rates = {0: b'Disabled', 1: b'50 Hz', 3: b'Auto'}, {0: b'400000000000', 1: b'-3'}
    controls = [
        Control('Brightness', abi.CTRL_TYPE_INTEGER, 0, 255, 5, 100),
        Control('User Controls', abi.CTRL_TYPE_CTRL_CLASS, flags=only_class),
        Control('Gone', abi.CTRL_TYPE_INTEGER, 0, 1, flags=abi.CTRL_FLAG_DISABLED),
        Control('Matrix', abi.CTRL_TYPE_INTEGER, 0, 1, dims=2, flags=payload),
        Control('Compound', 0x0100, flags=payload),
        Control('Power Line', abi.CTRL_TYPE_MENU, 0, 3, menu=line),
        Control('Link Rate', abi.CTRL_TYPE_INTEGER_MENU, 0, 1, menu=rates),
        Control('Pixel Rate', abi.CTRL_TYPE_INTEGER64, -(1 << 62), 1 << 62, value=1 << 40),
        Control('Mask', abi.CTRL_TYPE_BITMASK, 0, -1, value=-1),
        Control('Gain', abi.CTRL_TYPE_INTEGER, 0, 9, flags=abi.CTRL_FLAG_INACTIVE),
        Control('Gain', abi.CTRL_TYPE_INTEGER, 0, 9),
        Control('Flip', abi.CTRL_TYPE_BOOLEAN, 0, 1),
        Control('Reset', abi.CTRL_TYPE_BUTTON, flags=abi.CTRL_FLAG_WRITE_ONLY),
        Control('Serial', abi.CTRL_TYPE_STRING, 0, 32, flags=payload),
    ]
    driver.controls = dict(enumerate(controls, BASE))
    return driver


@pytest.mark.parametrize(('name', 'value', 'in_force'), [
    ('brightness', 103, 100), ('brightness', 0, 0), ('power_line', 'auto', 3),
    ('power_line', 3, 3), ('link_rate', '-3', 1), ('pixel_rate', -(1 << 62), -(1 << 62)),
    ('mask', 0x80000001, 0x80000001), ('mask', 0, 0), ('gain', 9, 9), ('flip', True, 1),
    ('flip', 1, 1), ('flip', False, 0), ('reset', 'whatever', None),
])  # fmt: skip
def test_setting_returns_what_is_in_force(
    name: str, value: int | str, in_force: int | None
) -> None:
    assert V4l2Controls(V4l2Device(_controlled())).set(name, value) == in_force


@pytest.mark.parametrize(('name', 'number', 'kind', 'words'), [
    ('brightness', errno.EBUSY, CameraError,
     "'brightness' can't be changed while the camera streams"),
    ('brightness', errno.EIO, CameraError,
     'could not be set to 1: .*Input/output error; it takes 0 .. 255'),
    ('gain', errno.EACCES, CameraError, 'another control overrides it'),
    ('brightness', errno.ENODEV, CameraLostError, 'unplugged'),
])  # fmt: skip
def test_what_the_driver_refuses_is_said(
    name: str, number: int, kind: type[Exception], words: str
) -> None:
    driver = _controlled()
    driver.fail('S_EXT_CTRLS', number)
    with pytest.raises(kind, match=words):
        V4l2Controls(V4l2Device(driver)).set(name, 1)


def test_a_driver_without_controls_and_one_whose_enumeration_never_ends() -> None:
    assert V4l2Controls(V4l2Device(DriverDouble())).infos() == {}
    driver = _controlled()
    original = driver._query_ext_ctrl

    def stuck(argument: abi.QueryExtCtrl) -> None:
        original(argument)
        if argument.id > BASE:
            argument.id, argument.type = BASE, abi.CTRL_TYPE_INTEGER

    driver._query_ext_ctrl = stuck  # type: ignore[method-assign]
    assert list(V4l2Controls(V4l2Device(driver)).infos()) == ['brightness']
