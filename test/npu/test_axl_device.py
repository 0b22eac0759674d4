"""What the driver is told of an image: everything that it needs to read it, plane by plane. The kernel's side is checked in the rig."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zc_perception.errors import AcceleratorError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.npu.axl import abi as axl_abi
from zc_perception.npu.axl import device as axl_device
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.device import AxlDevice
from zc_perception.pixel.fourcc import NV12, fourcc_code
from zc_perception.pixel.layout import ImageLayout, PlaneLayout, compute_layout
from zc_perception.pixel.modifier import LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')
TILED = 1 << 56 | 2
YU12 = fourcc_code('YU12')


class Driver:
    """Answers every ioctl with success and keeps a copy of its argument."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Any]] = []

    def __call__(self, fd: int, request: int, argument: Any) -> int:
        self.calls.append((request, type(argument).from_buffer_copy(argument)))
        if hasattr(argument, 'handle'):
            argument.handle = 40 + len(self.calls)
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(axl_device.fcntl, 'ioctl', driver)
    return driver


@pytest.fixture
def device(driver: Driver) -> Iterator[AxlDevice]:
    device = AxlDevice('/dev/null')
    yield device
    device.close()


@pytest.fixture
def allocate() -> Iterator[Callable[[ImageLayout], list[DmaBuf]]]:
    made: list[DmaBuf] = []

    def make(layout: ImageLayout) -> list[DmaBuf]:
        buffers = [SealedMemfd().allocate(layout.buffer_size(index)) for index in range(layout.num_buffers)]
        made.extend(buffers)
        return buffers

    yield make
    for buffer in made:
        buffer.close()


LAYOUTS = {
    'one buffer': compute_layout(NV12, 64, 48, stride_align=256, offset_align=4096),
    'a buffer for each plane': compute_layout(YU12, 64, 48, buffer_per_plane=True),
    'mixed buffers': ImageLayout(8, 4, YU12, LINEAR, (PlaneLayout(0, 8, 16, 64), PlaneLayout(1, 4, 8, 16), PlaneLayout(1, 32, 8, 16))),
    'tiles': ImageLayout(64, 48, NV12, TILED, (PlaneLayout(0, 64, 0, 4096), PlaneLayout(0, 8192, 7, 2048))),
}


@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
def test_an_import_says_format_modifier_size_and_each_plane_with_its_own_handle(
    device: AxlDevice, driver: Driver, allocate: Callable[[ImageLayout], list[DmaBuf]], layout: ImageLayout
) -> None:
    buffers = allocate(layout)
    assert device.import_planes(layout, buffers, ImportFlags.TO_DEVICE) == 41
    ((request, said),) = driver.calls
    assert request == axl_abi.requests(None).import_planes
    assert (said.fourcc, said.modifier, said.width, said.height) == (layout.fourcc, layout.modifier, layout.width, layout.height)
    assert (said.struct_size, said.flags, said.pad, said.num_planes) == (ctypes.sizeof(said), 1, 0, len(layout.planes))
    planes = [(p.fd, p.offset, p.stride, p.size) for p in said.planes[: said.num_planes]]
    assert planes == [(buffers[p.buffer].fileno(), p.offset, p.stride, p.size) for p in layout.planes]
    assert not any(bytes(plane) != bytes(ctypes.sizeof(plane)) for plane in said.planes[said.num_planes :]), 'the rest is zero'


def test_importing_borrows_the_descriptors(device: AxlDevice, driver: Driver, allocate: Callable[[ImageLayout], list[DmaBuf]]) -> None:
    layout = LAYOUTS['mixed buffers']
    buffers = allocate(layout)
    numbers = [(buffer.fileno(), buffer.identity) for buffer in buffers]
    device.import_planes(layout, buffers, ImportFlags.TO_DEVICE)
    device.import_fd(buffers[0], 8, 4, YU12, ImportFlags.TO_DEVICE)
    device.release_import(41)
    assert [(buffer.fileno(), DmaBuf(buffer.dup(), buffer.kind, 'again').identity) for buffer in buffers] == numbers


def test_another_layout_is_another_import(device: AxlDevice, driver: Driver, allocate: Callable[[ImageLayout], list[DmaBuf]]) -> None:
    layout = LAYOUTS['one buffer']
    buffers = allocate(layout)
    shifted = replace(layout, planes=(layout.planes[0], replace(layout.planes[1], offset=layout.planes[1].offset - 64)))
    assert [device.import_planes(each, buffers, ImportFlags.TO_DEVICE) for each in (layout, shifted)] == [41, 42]
    first, second = (said for _, said in driver.calls)
    assert first.planes[1].offset == second.planes[1].offset + 64


@pytest.mark.parametrize('make', [lambda path: path.touch(), os.mkfifo])
def test_what_is_no_device_is_not_taken_for_a_driver_without_ioctls(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / 'metis-0:1:0'
    make(path)
    with pytest.raises(AcceleratorError) as caught:
        AxlDevice(str(path))
    message = str(caught.value)
    assert message.startswith(f"parameter 'accelerator_device' is '{path}', which is no device node; it must be a Metis card's (")
    assert 'ENOTTY' not in message and '\n' not in message
    assert str(path) not in [os.path.realpath(entry) for entry in Path('/proc/self/fd').iterdir()], 'while the exception still lives'


def test_a_driver_s_own_numbers_reach_its_ioctls(driver: Driver, allocate: Callable[[ImageLayout], list[DmaBuf]]) -> None:
    numbers = {'import_planes': 100, 'release_import': 101}
    device = AxlDevice('/dev/null', numbers)
    device.import_planes(LAYOUTS['one buffer'], allocate(LAYOUTS['one buffer']), ImportFlags.TO_DEVICE)
    device.release_import(1)
    device.import_fd(allocate(LAYOUTS['one buffer'])[0], 8, 4, YU12, ImportFlags.TO_DEVICE)
    device.close()
    assert [request & 0xFF for request, _ in driver.calls] == [100, 101, 64]
    assert {request >> 8 & 0xFF for request, _ in driver.calls} == {ord('U')}
