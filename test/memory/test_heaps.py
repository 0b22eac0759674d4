"""Allocators: the sealed memfd for real; the two device files with a scripted ioctl, for machines that lack them."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

import pytest

from zc_perception.errors import AllocationError, ConfigError
from zc_perception.memory import heaps
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.memory.heaps import DmaHeap, SealedMemfd, Udmabuf, open_heap

pytestmark = pytest.mark.usefixtures('no_fd_leak')

# linux/fcntl.h; Python's fcntl module has these names from 3.11 on.
F_GET_SEALS = 1034
SEAL_SHRINK, SEAL_GROW, SEAL_WRITE = 2, 4, 8
PAGE = os.sysconf('SC_PAGE_SIZE')


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which the device files are looked for."""
    monkeypatch.setattr(heaps, 'DMA_HEAP_DIRECTORY', str(tmp_path / 'dma_heap'))
    monkeypatch.setattr(heaps, 'UDMABUF_DEVICE', str(tmp_path / 'udmabuf'))
    (tmp_path / 'dma_heap').mkdir()
    return tmp_path


class KernelDouble:
    """Allocates memfds for the two allocation ioctls, from the documented layout of their arguments."""

    def __init__(self) -> None:
        self.heap_requests: list[tuple[int, int, int, int]] = []
        self.udmabuf_requests: list[tuple[int, int, int]] = []
        self.udmabuf_seals = -1

    def __call__(self, fd: int, request: int, argument: bytearray) -> int:
        # _IOWR('H', 0, struct dma_heap_allocation_data): u64 len; u32 fd, fd_flags; u64 heap_flags
        if request == 3 << 30 | 24 << 16 | ord('H') << 8:
            self.heap_requests.append(struct.unpack('<QIIQ', argument))
            memory = os.memfd_create('heap')
            os.ftruncate(memory, self.heap_requests[-1][0])
            struct.pack_into('<I', argument, 8, memory)
            return 0
        # _IOW('u', 0x42, struct udmabuf_create): u32 memfd, flags; u64 offset, size
        assert request == 1 << 30 | 24 << 16 | ord('u') << 8 | 0x42
        memory, flags, offset, size = struct.unpack('<IIQQ', argument)
        self.udmabuf_requests.append((flags, offset, size))
        self.udmabuf_seals = fcntl.fcntl(memory, F_GET_SEALS)
        return os.dup(memory)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> KernelDouble:
    double = KernelDouble()
    monkeypatch.setattr(heaps.fcntl, 'ioctl', double)
    return double


@pytest.mark.parametrize(('size', 'rounded'), [(1, PAGE), (PAGE, PAGE), (PAGE + 1, 2 * PAGE)])
def test_memfd_sizes_are_whole_zeroed_pages(size: int, rounded: int) -> None:
    buffer = SealedMemfd().allocate(size)
    assert buffer.size == rounded
    assert buffer.mapping()[:] == bytes(rounded)
    buffer.close()


def test_a_memfd_can_not_change_its_size_and_stays_writable() -> None:
    buffer = SealedMemfd().allocate(PAGE)
    assert fcntl.fcntl(buffer.fileno(), F_GET_SEALS) & (SEAL_SHRINK | SEAL_GROW | SEAL_WRITE) == SEAL_SHRINK | SEAL_GROW
    for size in (0, 2 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(buffer.fileno(), size)
    buffer.mapping()[0] = 1
    buffer.close()


def test_a_memfd_is_close_on_exec_and_never_called_a_dma_buf() -> None:
    buffer = SealedMemfd().allocate(PAGE)
    assert fcntl.fcntl(buffer.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert buffer.kind is BufferKind.MEMFD
    buffer.close()


@pytest.mark.parametrize('size', [0, -1])
def test_sizes_are_positive(size: int) -> None:
    with pytest.raises(AllocationError, match=f'buffer size {size} must be positive'):
        SealedMemfd().allocate(size)


def test_a_memfd_that_the_kernel_refuses_is_an_allocation_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(heaps.os, 'ftruncate', refuse)
    with pytest.raises(AllocationError, match='memfd could not allocate 4096 bytes: Cannot allocate memory'):
        SealedMemfd().allocate(4096)


def test_a_dma_heap_is_asked_for_whole_pages_close_on_exec(devices: Path, kernel: KernelDouble) -> None:
    (devices / 'dma_heap' / 'system').touch()
    heap = DmaHeap('system')
    buffer = heap.allocate(PAGE + 1)
    assert kernel.heap_requests == [(2 * PAGE, 0, os.O_RDWR | os.O_CLOEXEC, 0)]
    assert (buffer.kind, buffer.heap, buffer.size) == (BufferKind.DMABUF, 'dma_heap/system', 2 * PAGE)
    buffer.close()
    heap.close()


def test_udmabuf_gets_a_sealed_memfd_that_stays_writable(devices: Path, kernel: KernelDouble) -> None:
    (devices / 'udmabuf').touch()
    heap = Udmabuf()
    buffer = heap.allocate(100)
    assert kernel.udmabuf_requests == [(1, 0, PAGE)]
    assert kernel.udmabuf_seals & (SEAL_SHRINK | SEAL_WRITE) == SEAL_SHRINK
    assert (buffer.kind, buffer.heap, buffer.size) == (BufferKind.DMABUF, 'udmabuf', PAGE)
    buffer.close()
    heap.close()


def test_auto_takes_the_best_that_allocates(devices: Path, kernel: KernelDouble) -> None:
    (devices / 'udmabuf').touch()
    heap, reasons = open_heap()
    assert heap.name == 'udmabuf'
    assert reasons[0] == 'dma_heap/system: No such file or directory'
    heap.close()


def test_auto_falls_to_memfd_and_says_why_each_better_heap_failed(devices: Path) -> None:
    # A device file that opens and then allocates nothing: an ioctl on a plain file is ENOTTY.
    (devices / 'dma_heap' / 'system').touch()
    heap, reasons = open_heap('auto')
    assert heap.name == 'memfd'
    assert reasons[0] == 'dma_heap/system could not allocate 1 bytes: Inappropriate ioctl for device'
    assert reasons[-1] == 'udmabuf: No such file or directory'
    heap.close()


@pytest.mark.parametrize('name', ['dma_heap/system', 'udmabuf'])
def test_a_named_heap_that_is_missing_is_refused_with_advice(devices: Path, name: str) -> None:
    with pytest.raises(AllocationError, match=f"heap '{name}' can't be opened: No such file or directory; use heap: auto"):
        open_heap(name)


@pytest.mark.parametrize('name', ['', 'memfs', 'dma_heap', 'dma_heap/../udmabuf', 'dma_heap/a/b'])
def test_unknown_heaps_are_refused(devices: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"heap '{name}' is not known; use auto"):
        open_heap(name)


def test_a_named_memfd_needs_no_reasons() -> None:
    heap, reasons = open_heap('memfd')
    assert (heap.name, reasons) == ('memfd', [])
