"""Every errno of the driver is an exception with a diagnosis and a next step, whether an ioctl or a job's fence ends with it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from npu.host_tree import Host

from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import SyncFile, SyncFileInfo
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.axl import abi as axl_abi
from zc_perception.npu.axl import device as axl_device
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.device import ADVICE, ENOTSUPP, AxlDevice, AxlError, AxlGoneError, JobFence, axl_error
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

pytestmark = pytest.mark.usefixtures('no_fd_leak')
HEADER = Path(__file__).resolve().parents[1] / 'rig/module/axl_ioctl.h'
LAYOUT = compute_layout(NV12, 64, 48)

#: Each errno with words of its advice.
TABLE: dict[int, tuple[str, ...]] = {
    errno.EBADF: ('keep the frame leased',),
    errno.EINVAL: ('no dma-buf', 'stride'),
    errno.EACCES: ('read-only', 'TO_DEVICE'),
    errno.EPERM: ('group of the device node',),
    errno.ENOENT: ('import the buffer again',),
    errno.EBUSY: ("'in_flight'",),
    errno.EAGAIN: ("'in_flight'",),
    errno.ENOTTY: ('no import and submit ioctls', 'accelerator: axruntime', 'cpu', "'axl_ioctls'"),
    errno.EOPNOTSUPP: ('IOMMU', 'dma_heap/linux,cma'),
    ENOTSUPP: ('IOMMU',),
    errno.ENOSYS: ('accelerator: axruntime',),
    errno.ENOLINK: ('lspci -d 1f9d:',),
    errno.ETIME: ('PCIe link',),
    errno.E2BIG: ('driver is older', 'update'),
    errno.ENODEV: ('lspci -d 1f9d:', 'open it anew'),
    errno.ENXIO: ('lspci -d 1f9d:',),
    errno.ESHUTDOWN: ('lspci -d 1f9d:',),
    errno.ENOMEM: ('CmaFree', "'slots'"),
    errno.ENOSPC: ("'slots'",),
    errno.EMFILE: ('ulimit -n',),
    errno.ENFILE: ('zc_doctor',),
    errno.EFAULT: ('dmesg', 'smmu'),
    errno.ETIMEDOUT: ('back-pressured', 'PCIe link', "'timeout'"),
    errno.EIO: ('dmesg', "'model_id'"),
    errno.ECANCELED: ('closed while the job was in flight',),
}
LOST = (errno.ENODEV, errno.ENXIO, errno.ESHUTDOWN, errno.ENOLINK)


def kind_of(number: int) -> type[AxlError]:
    return AxlGoneError if number in LOST else AxlError


@pytest.mark.parametrize('number', TABLE, ids=lambda n: errno.errorcode.get(n, str(n)))
def test_an_errno_has_its_exception_and_says_what_to_do(number: int) -> None:
    words = TABLE[number]
    error = axl_error('submit2', number, 'import 3')
    assert type(error) is kind_of(number) and error.errno == number
    text = str(error)
    assert text.startswith('axl submit2 (import 3) failed with ') and os.strerror(number) in text
    assert all(word in text for word in words), text
    assert '\n' not in text


def test_every_errno_that_the_contract_names_is_in_the_table() -> None:
    comments = ' '.join(re.findall(r'/\*.*?\*/', HEADER.read_text(encoding='utf-8'), flags=re.DOTALL))
    named = {word for word in re.findall(r'\bE[A-Z0-9]{3,}\b', comments) if hasattr(errno, word)}
    assert len(named) >= 9, named
    assert {getattr(errno, name) for name in named} <= set(TABLE)
    assert set(TABLE) == set(ADVICE)


def test_an_errno_that_nobody_knows_is_still_an_error_with_a_next_step() -> None:
    error = axl_error('query', 4095)
    assert type(error) is AxlError and 'failed with 4095' in str(error) and 'dmesg' in str(error)


def test_an_input_output_error_of_a_card_that_is_gone_is_its_loss() -> None:
    lost = axl_error('submit2', errno.EIO, gone=True)
    assert isinstance(lost, DeviceLostError) and lost.errno == errno.EIO
    assert not isinstance(axl_error('submit2', errno.EIO), DeviceLostError)
    assert type(axl_error('submit2', errno.EINVAL, gone=True)) is AxlError


# Through the device.


class Driver:
    """Answers with an errno, or with success and a fence."""

    def __init__(self) -> None:
        self.number = 0
        self.calls = 0
        self.before_success = 0

    def __call__(self, fd: int, request: int, argument: Any) -> int:
        self.calls += 1
        if self.calls <= self.before_success:
            raise InterruptedError(errno.EINTR, 'a signal')
        if self.number:
            raise OSError(self.number, os.strerror(self.number))
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
    device = AxlDevice(host.add_card(current_link_speed='2.5 GT/s PCIe', current_link_width='4'), tree=host.tree)
    yield device
    device.close()


@pytest.fixture
def buffer() -> Iterator[DmaBuf]:
    with_size = SealedMemfd().allocate(LAYOUT.buffer_size(0))
    yield with_size
    with_size.close()


CALLS: dict[str, Callable[[AxlDevice, DmaBuf], object]] = {
    'import_fd': lambda device, buffer: device.import_fd(buffer, 64, 48, NV12, ImportFlags.TO_DEVICE),
    'import_planes': lambda device, buffer: device.import_planes(LAYOUT, [buffer], ImportFlags.TO_DEVICE),
    'submit': lambda device, buffer: device.submit(1, buffer, 0, 1000),
    'submit2': lambda device, buffer: device.submit2(1, buffer, 0, 1000, None),
    'release_import': lambda device, buffer: device.release_import(1),
}


@pytest.mark.parametrize('number', TABLE, ids=lambda n: errno.errorcode.get(n, str(n)))
@pytest.mark.parametrize('name', CALLS)
def test_each_ioctl_raises_the_errno_s_exception(device: AxlDevice, driver: Driver, buffer: DmaBuf, name: str, number: int) -> None:
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
    assert driver.calls == 6
    driver.before_success = 1 << 30
    with pytest.raises(AxlError, match='EINTR'):
        device.release_import(1)


@pytest.mark.parametrize(
    ('answer', 'words'),
    [({'max_in_flight': 0}, 'max_in_flight 0'), ({'stride_align': 48}, 'stride_align 48'), ({'offset_align': 0}, 'offset_align 0')],
)
def test_a_query_that_makes_no_sense_is_refused(
    device: AxlDevice, monkeypatch: pytest.MonkeyPatch, answer: dict[str, int], words: str
) -> None:
    def ioctl(fd: int, request: int, argument: Any) -> int:
        for name, value in {'max_in_flight': 4, 'stride_align': 64, 'offset_align': 64, 'num_formats': 1, **answer}.items():
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
    device: AxlDevice, monkeypatch: pytest.MonkeyPatch, query: int, release: int, import_fd: int, level: int
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
def test_a_query_brings_all_formats_however_many(device: AxlDevice, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
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
    host: Host, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[AcceleratorError], words: str
) -> None:
    node = host.add_card()

    def refuse(path: str, flags: int) -> OwnedFd:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(OwnedFd, 'open', refuse)
    with pytest.raises(AcceleratorError, match=words) as raised:
        AxlDevice(node, tree=host.tree)
    assert type(raised.value) is kind and f"'{node}' can't be opened: {os.strerror(number)}" in str(raised.value)


def test_without_any_card_a_node_that_is_missing_says_so(host: Host) -> None:
    with pytest.raises(AcceleratorError, match=r"can't be opened: No such file or directory; no Metis card"):
        AxlDevice('/dev/metis-9:9:9', tree=host.tree)


# Fences of jobs.


def ended(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sync_file has ended with this status."""
    monkeypatch.setattr(SyncFile, '_status', lambda self: status)
    monkeypatch.setattr(SyncFile, 'info', lambda self: SyncFileInfo('', status, ()))


@pytest.mark.parametrize('number', TABLE, ids=lambda n: errno.errorcode.get(n, str(n)))
@pytest.mark.parametrize('name', ['submit', 'submit2'])
def test_a_job_s_errno_is_explained_as_an_ioctl_s(
    device: AxlDevice, driver: Driver, buffer: DmaBuf, monkeypatch: pytest.MonkeyPatch, name: str, number: int
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
    assert 'import 7, timeout 50 ms' in text and 'the PCIe link of 0000:01:00.0 runs at 2.5 GT/s x4' in text and 'LnkSta' in text
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
def test_a_job_that_has_not_failed_has_no_errno(monkeypatch: pytest.MonkeyPatch, status: int, words: str) -> None:
    fence = JobFence(OwnedFd(os.eventfd(0)), lambda number: pytest.fail('asked for an explanation'))
    ended(status, monkeypatch)
    if words:
        with pytest.raises(AcceleratorError, match=words):
            fence.check()
    else:
        fence.check()
    fence.close()
