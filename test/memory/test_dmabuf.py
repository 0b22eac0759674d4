"""DmaBuf on memfd: size, identity, one cached mapping; and the SYNC protocol against a scripted ioctl."""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from zc_perception.errors import AllocationError
from zc_perception.memory import dmabuf
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.owned_fd import OwnedFd

pytestmark = pytest.mark.usefixtures('no_fd_leak')


@pytest.fixture
def buffer() -> Iterator[DmaBuf]:
    buffer = SealedMemfd().allocate(8192)
    yield buffer
    buffer.close()


@pytest.fixture
def device_buffer() -> Iterator[DmaBuf]:
    """A memfd that says it is a dma-buf, for the calls that only those get."""
    buffer = DmaBuf(OwnedFd(os.memfd_create('stand_in')), BufferKind.DMABUF, 'dma_heap/system')
    yield buffer
    buffer.close()


class ScriptedIoctl:
    """Answers each call with the next error number (0: success), then with success, and keeps the calls."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[int, int, int]] = []

    def __call__(self, fd: int, request: int, argument: bytes) -> int:
        self.calls.append((fd, request, struct.unpack('<Q', argument)[0]))
        answer = self.answers.pop(0) if self.answers else 0
        if answer:
            raise OSError(answer, os.strerror(answer))
        return 0


@pytest.fixture
def ioctl(monkeypatch: pytest.MonkeyPatch) -> ScriptedIoctl:
    script = ScriptedIoctl()
    monkeypatch.setattr(dmabuf.fcntl, 'ioctl', script)
    return script


def test_size_is_the_kernel_s(buffer: DmaBuf) -> None:
    assert buffer.size == os.fstat(buffer.fileno()).st_size == 8192


def test_identity_is_that_of_every_duplicate_and_of_no_other_buffer(buffer: DmaBuf) -> None:
    again = DmaBuf(buffer.dup(), BufferKind.MEMFD, 'memfd')
    other = SealedMemfd().allocate(4096)
    assert again.identity == buffer.identity != other.identity
    again.close()
    other.close()


def test_a_buffer_that_only_devices_touch_is_never_mapped(buffer: DmaBuf) -> None:
    assert not buffer.mapped
    buffer.mapping()
    assert buffer.mapped


def test_the_mapping_is_made_once_and_shared_with_other_mappings(buffer: DmaBuf) -> None:
    assert buffer.mapping() is buffer.mapping()
    buffer.mapping()[5000] = 42
    with buffer.dup() as fd, mmap.mmap(fd.fileno(), buffer.size, mmap.MAP_SHARED, mmap.PROT_READ) as other:
        assert other[5000] == 42


def test_a_read_only_buffer_is_mapped_for_reading() -> None:
    buffer = SealedMemfd().allocate(4096)
    read_only = DmaBuf(buffer.dup(), BufferKind.MEMFD, 'memfd', writable=False)
    with pytest.raises(TypeError):
        read_only.mapping()[0] = 1
    read_only.close()
    buffer.close()


def test_a_refused_mapping_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / 'write_only'
    path.write_bytes(bytes(4096))
    buffer = DmaBuf(OwnedFd.open(str(path), os.O_WRONLY), BufferKind.DMABUF, 'nvmap')
    with pytest.raises(AllocationError, match=r"\(nvmap\) can't be mapped for the CPU: Permission denied; use a consumer that imports it"):
        buffer.mapping()
    buffer.close()


def test_closing_under_a_view_is_refused_and_possible_afterwards(buffer: DmaBuf) -> None:
    view = np.frombuffer(buffer.mapping(), np.uint8)
    with pytest.raises(BufferError):
        buffer.close()
    assert view[0] == 0 and buffer.fileno() >= 0
    del view
    buffer.close()
    assert not buffer.mapped
    with pytest.raises(ValueError, match='closed'):
        buffer.fileno()


def test_closing_twice_does_nothing(buffer: DmaBuf) -> None:
    buffer.close()
    buffer.close()


@pytest.mark.parametrize(
    ('access', 'begin', 'end'),
    [(CpuAccess.READ, 0b001, 0b101), (CpuAccess.WRITE, 0b010, 0b110), (CpuAccess.READ | CpuAccess.WRITE, 0b011, 0b111)],
)
def test_sync_brackets_carry_the_direction(device_buffer: DmaBuf, ioctl: ScriptedIoctl, access: CpuAccess, begin: int, end: int) -> None:
    device_buffer.begin_cpu_access(access)
    device_buffer.end_cpu_access(access)
    # _IOW('b', 0, struct dma_buf_sync), as dma-buf.h writes it.
    request = 1 << 30 | 8 << 16 | ord('b') << 8 | 0
    assert ioctl.calls == [(device_buffer.fileno(), request, begin), (device_buffer.fileno(), request, end)]


@pytest.mark.parametrize('number', [errno.EINTR, errno.EAGAIN])
def test_an_interrupted_sync_is_tried_again(device_buffer: DmaBuf, ioctl: ScriptedIoctl, number: int) -> None:
    ioctl.answers = [number, number, 0]
    device_buffer.begin_cpu_access(CpuAccess.READ)
    assert len(ioctl.calls) == 3


def test_a_sync_that_never_succeeds_is_given_up(device_buffer: DmaBuf, ioctl: ScriptedIoctl) -> None:
    ioctl.answers = [errno.EINTR] * 10_000
    with pytest.raises(TimeoutError, match='interrupted 100 times'):
        device_buffer.begin_cpu_access(CpuAccess.READ)


def test_other_sync_errors_are_raised(device_buffer: DmaBuf, ioctl: ScriptedIoctl) -> None:
    ioctl.answers = [errno.EIO]
    with pytest.raises(OSError) as caught:
        device_buffer.end_cpu_access(CpuAccess.READ)
    assert caught.value.errno == errno.EIO and len(ioctl.calls) == 1


def test_a_memfd_needs_no_sync(buffer: DmaBuf, ioctl: ScriptedIoctl) -> None:
    buffer.begin_cpu_access(CpuAccess.READ)
    buffer.end_cpu_access(CpuAccess.READ)
    assert ioctl.calls == []


def test_the_exporter_is_the_kernel_s_word_for_a_dma_buf_only(buffer: DmaBuf, device_buffer: DmaBuf) -> None:
    assert buffer.exporter() == 'memfd'
    # Its fdinfo has no exp_name, because it is none.
    assert device_buffer.exporter() == 'unknown'
