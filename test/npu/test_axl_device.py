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
What the driver is told about images and jobs, and what its answers mean.

Every errno is an exception with a diagnosis and a next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import ctypes
from dataclasses import replace
import errno
import os
from pathlib import Path
import re
import struct
from typing import Any

from npu.host_tree import Host
import pytest

from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.axl import abi as axl_abi
from zc_perception.npu.axl import device as axl_device
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.device import (
    ADVICE,
    axl_error,
    AxlDevice,
    AxlError,
    AxlGoneError,
    JobFence,
)
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.layout import compute_layout, ImageLayout, PlaneLayout
from zc_perception.pixel.modifier import LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')
HEADER = Path(__file__).resolve().parents[1] / 'rig/module/axl_ioctl.h'
LAYOUT = compute_layout(NV12, 64, 48)
TILED = 1 << 56 | 2
YU12 = fourcc_code('YU12')

LOST = (errno.ENODEV, errno.ENXIO, errno.ESHUTDOWN, errno.ENOLINK)


def kind_of(number: int) -> type[AxlError]:
    return AxlGoneError if number in LOST else AxlError


@pytest.mark.parametrize('number', ADVICE, ids=lambda n: errno.errorcode.get(n, str(n)))
def test_an_errno_has_its_exception_and_says_what_to_do(number: int) -> None:
    error = axl_error('submit2', number, 'import 3')
    assert type(error) is kind_of(number) and error.errno == number
    text = str(error)
    assert (
        text.startswith('axl submit2 (import 3) failed with ')
        and os.strerror(number) in text
        and text.endswith(ADVICE[number])
    )
    assert '\n' not in text


def test_every_errno_that_the_contract_names_has_advice() -> None:
    comments = ' '.join(
        re.findall(r'/\*.*?\*/', HEADER.read_text(encoding='utf-8'), flags=re.DOTALL)
    )
    named = {word for word in re.findall(r'\bE[A-Z0-9]{3,}\b', comments) if hasattr(errno, word)}
    assert len(named) >= 9, named
    assert {getattr(errno, name) for name in named} <= set(ADVICE)
    ours = ADVICE[errno.ENOTTY]
    assert 'accelerator: axruntime' in ours and "'axl_ioctls'" in ours, 'the shipped driver'


def test_an_errno_that_nobody_knows_is_still_an_error_with_a_next_step() -> None:
    error = axl_error('query', 4095)
    assert type(error) is AxlError and 'failed with 4095' in str(error) and 'dmesg' in str(error)


# Through the device.


class Driver:
    """
    Keeps a copy of each argument.

    It answers with an errno, or with success, a handle and a fence.
    """

    def __init__(self) -> None:
        self.number = 0
        self.before_success = 0
        self.calls: list[tuple[int, Any]] = []

    def __call__(self, fd: int, request: int, argument: Any) -> int:
        self.calls.append((request, type(argument).from_buffer_copy(argument)))
        if len(self.calls) <= self.before_success:
            raise InterruptedError(errno.EINTR, 'a signal')
        if self.number:
            raise OSError(self.number, os.strerror(self.number))
        if hasattr(argument, 'handle'):
            argument.handle = 40 + len(self.calls)
        if hasattr(argument, 'fence_fd'):
            argument.fence_fd = os.eventfd(0)
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(axl_device.fcntl, 'ioctl', driver)
    return driver


@pytest.fixture
def device(driver: Driver, host: Host) -> Iterator[AxlDevice]:
    device = AxlDevice(
        host.add_card(current_link_speed='2.5 GT/s PCIe', current_link_width='4'), tree=host.tree
    )
    yield device
    device.close()


@pytest.fixture
def buffer() -> Iterator[DmaBuf]:
    with_size = SealedMemfd().allocate(LAYOUT.buffer_size(0))
    yield with_size
    with_size.close()


CALLS: dict[str, Callable[[AxlDevice, DmaBuf], object]] = {
    'import_fd': lambda device, buffer: device.import_fd(
        buffer, 64, 48, NV12, ImportFlags.TO_DEVICE
    ),
    'import_planes': lambda device, buffer: device.import_planes(
        LAYOUT, [buffer], ImportFlags.TO_DEVICE
    ),
    'submit': lambda device, buffer: device.submit(1, buffer, 0, 1000),
    'submit2': lambda device, buffer: device.submit2(1, buffer, 0, 1000, None),
    'release_import': lambda device, buffer: device.release_import(1),
}


@pytest.mark.parametrize('number', [errno.EINVAL, errno.ENODEV])
@pytest.mark.parametrize('name', CALLS)
def test_each_ioctl_raises_the_errno_s_exception(
    device: AxlDevice, driver: Driver, buffer: DmaBuf, name: str, number: int
) -> None:
    driver.number = number
    with pytest.raises(kind_of(number), match=f'axl {name}') as raised:
        CALLS[name](device, buffer)
    assert raised.value.errno == number and isinstance(raised.value.__cause__, OSError)


def test_the_loss_of_a_card_shows_in_sysfs(device: AxlDevice, driver: Driver, host: Host) -> None:
    driver.number = errno.EIO
    with pytest.raises(AxlError, match='EIO') as raised:
        device.release_import(1)
    assert not isinstance(raised.value, DeviceLostError)
    (host.tree.pci('0000:01:00.0') / 'config').write_bytes(b'\xff\xff\xff\xff')
    with pytest.raises(DeviceLostError, match='EIO'):
        device.release_import(1)


def test_a_signal_in_an_ioctl_is_no_failure(device: AxlDevice, driver: Driver) -> None:
    driver.before_success = 5
    device.release_import(1)
    assert len(driver.calls) == 6
    driver.before_success = 1 << 30
    with pytest.raises(AxlError, match='EINTR'):
        device.release_import(1)


@pytest.mark.parametrize(
    ('answer', 'words'),
    [
        ({'max_in_flight': 0}, 'max_in_flight 0'),
        ({'stride_align': 48}, 'stride_align 48'),
        ({'offset_align': 0}, 'offset_align 0'),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(
    device: AxlDevice, monkeypatch: pytest.MonkeyPatch, answer: dict[str, int], words: str
) -> None:
    def ioctl(fd: int, request: int, argument: Any) -> int:
        for name, value in {
            'max_in_flight': 4,
            'stride_align': 64,
            'offset_align': 64,
            'num_formats': 1,
            **answer,
        }.items():
            setattr(argument, name, value)
        return 0

    monkeypatch.setattr(axl_device.fcntl, 'ioctl', ioctl)
    with pytest.raises(AcceleratorError, match=f'QUERY.*{words}'):
        device.query()


@pytest.mark.parametrize(
    ('release', 'import_fd', 'level'),
    [
        (errno.ENOENT, errno.EBADF, 1),
        (errno.EINVAL, errno.EBADF, 1),
        (errno.EINVAL, errno.EINVAL, 0),
        (errno.EINVAL, errno.ENOTTY, 0),
        (errno.ENOTTY, errno.ENOTTY, 0),
        (errno.ENOSYS, errno.ENOSYS, 0),
    ],
)
@pytest.mark.parametrize('query', [errno.ENOTTY, errno.EINVAL, errno.ENOSYS])
def test_what_a_driver_knows_is_found_out_whatever_it_answers_to_unknown_numbers(
    device: AxlDevice,
    monkeypatch: pytest.MonkeyPatch,
    query: int,
    release: int,
    import_fd: int,
    level: int,
) -> None:
    def ioctl(fd: int, request: int, argument: Any) -> int:
        if isinstance(argument, axl_abi.AxlQuery):
            number = query
        elif isinstance(argument, axl_abi.AxlImportFd):
            assert argument.fd == -1
            number = import_fd
        else:
            number = release
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(axl_device.fcntl, 'ioctl', ioctl)
    assert device.query().level == level


@pytest.mark.parametrize('count', [1, 64, 65, 300])
def test_a_query_brings_all_formats_however_many(
    device: AxlDevice, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    def ioctl(fd: int, request: int, query: axl_abi.AxlQuery) -> int:
        room, query.num_formats = query.num_formats, count
        query.max_in_flight, query.stride_align, query.offset_align = 4, 64, 64
        table = (axl_abi.AxlFormat * room).from_address(query.formats_ptr)
        for number in range(min(room, count)):
            table[number].fourcc, table[number].modifier = number + 1, 1 << 56
        return 0

    monkeypatch.setattr(axl_device.fcntl, 'ioctl', ioctl)
    assert device.query().formats == tuple((number + 1, 1 << 56) for number in range(count))


# Opening.


@pytest.mark.parametrize(
    ('number', 'kind', 'words'),
    [
        (errno.ENOENT, AcceleratorError, 'found .*metis-0:1:0'),
        (errno.EACCES, AcceleratorError, 'group of the device node'),
        (errno.EPERM, AcceleratorError, '--device'),
        (errno.EBUSY, AcceleratorError, 'lsof'),
        (errno.EMFILE, AcceleratorError, 'ulimit -n'),
        (errno.ENODEV, DeviceLostError, 'link of the card'),
        (errno.ENXIO, DeviceLostError, 'link of the card'),
    ],
)
def test_a_node_that_can_t_be_opened_is_explained(
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[AcceleratorError],
    words: str,
) -> None:
    node = host.add_card()

    def refuse(path: str, flags: int) -> OwnedFd:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(OwnedFd, 'open', refuse)
    with pytest.raises(AcceleratorError, match=words) as raised:
        AxlDevice(node, tree=host.tree)
    assert type(
        raised.value
    ) is kind and f"'{node}' can't be opened: {os.strerror(number)}" in str(raised.value)


# Fences of jobs.


def ended(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sync_file has ended with this status."""
    monkeypatch.setattr(SyncFile, 'status', lambda self: status)


@pytest.mark.parametrize('number', ADVICE, ids=lambda n: errno.errorcode.get(n, str(n)))
@pytest.mark.parametrize('name', ['submit', 'submit2'])
def test_a_job_s_errno_is_explained_as_an_ioctl_s(
    device: AxlDevice,
    driver: Driver,
    buffer: DmaBuf,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: int,
) -> None:
    fence: Any = CALLS[name](device, buffer)
    ended(-number, monkeypatch)
    with pytest.raises(kind_of(number), match=r'axl job \(import 1') as raised:
        fence.check()
    assert isinstance(raised.value, DeviceLostError) == (number in LOST)
    fence.close()


def test_a_timeout_names_its_length_and_looks_at_the_link(
    device: AxlDevice, driver: Driver, buffer: DmaBuf, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = device.submit2(7, buffer, 0, 50_000, None)
    ended(-errno.ETIMEDOUT, monkeypatch)
    with pytest.raises(AxlError) as raised:
        fence.check()
    text = str(raised.value)
    assert (
        'import 7, timeout 50 ms' in text
        and 'the PCIe link of 0000:01:00.0 runs at 2.5 GT/s x4' in text
        and 'LnkSta' in text
    )
    host.write(host.tree.pci('0000:01:00.0'), current_link_speed='8.0 GT/s PCIe')
    with pytest.raises(AxlError, match=r'its PCIe link is good now \(8 GT/s x4\)'):
        fence.check()
    fence.close()


def test_a_job_that_fails_on_a_card_that_is_gone_is_its_loss(
    device: AxlDevice, driver: Driver, buffer: DmaBuf, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = device.submit2(7, buffer, 0, 50_000, None)
    ended(-errno.EIO, monkeypatch)
    (host.tree.dev / 'metis-0:1:0').unlink()
    with pytest.raises(DeviceLostError):
        fence.check()
    fence.close()


@pytest.mark.parametrize(('status', 'words'), [(0, 'has not signalled'), (1, '')])
def test_a_job_that_has_not_failed_has_no_errno(
    monkeypatch: pytest.MonkeyPatch, status: int, words: str
) -> None:
    fence = JobFence(
        OwnedFd(os.eventfd(0)), lambda number: pytest.fail('asked for an explanation')
    )
    ended(status, monkeypatch)
    if words:
        with pytest.raises(AcceleratorError, match=words):
            fence.check()
    else:
        fence.check()
    fence.close()


# What it is told.


@pytest.fixture
def allocate() -> Iterator[Callable[[ImageLayout], list[DmaBuf]]]:
    made: list[DmaBuf] = []

    def make(layout: ImageLayout) -> list[DmaBuf]:
        buffers = [
            SealedMemfd().allocate(layout.buffer_size(index))
            for index in range(layout.num_buffers)
        ]
        made.extend(buffers)
        return buffers

    yield make
    for buffer in made:
        buffer.close()


LAYOUTS = {
    'one buffer': compute_layout(NV12, 64, 48, stride_align=256, offset_align=4096),
    'a buffer for each plane': compute_layout(YU12, 64, 48, buffer_per_plane=True),
    'mixed buffers': ImageLayout(
        8,
        4,
        YU12,
        LINEAR,
        (PlaneLayout(0, 8, 16, 64), PlaneLayout(1, 4, 8, 16), PlaneLayout(1, 32, 8, 16)),
    ),
    'tiles': ImageLayout(
        64, 48, NV12, TILED, (PlaneLayout(0, 64, 0, 4096), PlaneLayout(0, 8192, 7, 2048))
    ),
}


@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
def test_an_import_says_format_modifier_size_and_each_plane_with_its_own_handle(
    device: AxlDevice,
    driver: Driver,
    allocate: Callable[[ImageLayout], list[DmaBuf]],
    layout: ImageLayout,
) -> None:
    buffers = allocate(layout)
    assert device.import_planes(layout, buffers, ImportFlags.TO_DEVICE) == 41
    ((request, said),) = driver.calls
    assert request == axl_abi.requests(None).import_planes
    assert (said.fourcc, said.modifier, said.width, said.height) == (
        layout.fourcc,
        layout.modifier,
        layout.width,
        layout.height,
    )
    assert (said.struct_size, said.flags, said.pad, said.num_planes) == (
        ctypes.sizeof(said),
        1,
        0,
        len(layout.planes),
    )
    planes = [(p.fd, p.offset, p.stride, p.size) for p in said.planes[: said.num_planes]]
    assert planes == [
        (buffers[p.buffer].fileno(), p.offset, p.stride, p.size) for p in layout.planes
    ]
    assert not any(
        bytes(plane) != bytes(ctypes.sizeof(plane))
        for plane in said.planes[slice(said.num_planes, None)]
    ), 'the rest is zero'


def test_importing_borrows_the_descriptors(
    device: AxlDevice, driver: Driver, allocate: Callable[[ImageLayout], list[DmaBuf]]
) -> None:
    layout = LAYOUTS['mixed buffers']
    buffers = allocate(layout)
    numbers = [(buffer.fileno(), buffer.identity) for buffer in buffers]
    device.import_planes(layout, buffers, ImportFlags.TO_DEVICE)
    device.import_fd(buffers[0], 8, 4, YU12, ImportFlags.TO_DEVICE)
    device.release_import(41)
    assert [
        (buffer.fileno(), DmaBuf(buffer.dup(), buffer.kind, 'again').identity)
        for buffer in buffers
    ] == numbers


def test_another_layout_is_another_import(
    device: AxlDevice, driver: Driver, allocate: Callable[[ImageLayout], list[DmaBuf]]
) -> None:
    layout = LAYOUTS['one buffer']
    buffers = allocate(layout)
    shifted = replace(
        layout,
        planes=(layout.planes[0], replace(layout.planes[1], offset=layout.planes[1].offset - 64)),
    )
    assert [
        device.import_planes(each, buffers, ImportFlags.TO_DEVICE) for each in (layout, shifted)
    ] == [41, 42]
    first, second = (said for _, said in driver.calls)
    assert first.planes[1].offset == second.planes[1].offset + 64


@pytest.mark.parametrize('make', [lambda path: path.touch(), os.mkfifo])
def test_what_is_no_device_is_not_taken_for_a_driver_without_ioctls(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / 'metis-0:1:0'
    make(path)
    with pytest.raises(AcceleratorError) as caught:
        AxlDevice(str(path))
    message = str(caught.value)
    assert message.startswith(
        f"parameter 'accelerator_device' is '{path}', which is no device node; it must be a "
        "Metis card's ("
    )
    assert 'ENOTTY' not in message and '\n' not in message
    assert str(path) not in [
        os.path.realpath(entry) for entry in Path('/proc/self/fd').iterdir()
    ], 'while the exception still lives'


def test_a_driver_s_own_numbers_reach_its_ioctls(
    driver: Driver, allocate: Callable[[ImageLayout], list[DmaBuf]]
) -> None:
    numbers = {'import_planes': 100, 'release_import': 101}
    device = AxlDevice('/dev/null', numbers)
    device.import_planes(
        LAYOUTS['one buffer'], allocate(LAYOUTS['one buffer']), ImportFlags.TO_DEVICE
    )
    device.release_import(1)
    device.import_fd(allocate(LAYOUTS['one buffer'])[0], 8, 4, YU12, ImportFlags.TO_DEVICE)
    device.close()
    assert [request & 0xFF for request, _ in driver.calls] == [100, 101, 64]
    assert {request >> 8 & 0xFF for request, _ in driver.calls} == {ord('U')}


@pytest.mark.parametrize(('name', 'expected'), [('submit2', 0x1_0000_0007), ('submit', 0)])
def test_the_number_is_that_which_the_ioctl_gave(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: int
) -> None:
    def answer(fd: int, request: int, argument: Any) -> int:
        """
        Answer as the driver does.

        ``struct axl_submit2``: fence_fd at 28, seqno at 40; ``struct axl_submit``: fence_fd at 16.
        """
        size = request >> 16 & 0x3FFF
        memory = memoryview(argument).cast('B')
        struct.pack_into('<i', memory, 28 if size == 48 else 16, os.eventfd(0))
        if size == 48:
            struct.pack_into('<Q', memory, 40, expected)
        return 0

    monkeypatch.setattr(axl_device.fcntl, 'ioctl', answer)
    device, buffer = AxlDevice('/dev/null'), SealedMemfd().allocate(4096)
    fence = (
        device.submit2(1, buffer, 0, 1000, None)
        if name == 'submit2'
        else device.submit(1, buffer, 0, 1000)
    )
    assert fence.seqno == expected
    fence.close()
    buffer.close()
    device.close()
