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
DmaBuf: size, identity, mapping, CPU access, names, foreign descriptors, owned descriptors.

And its allocators, and the ledger of copies.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import closing
import errno
import fcntl
import gc
import mmap
import os
from pathlib import Path
import resource
import struct
import threading
from typing import Any
from unittest import mock

from camera.camera_options import NamedHeap
from descriptors import limited, next_free
import numpy as np
import pytest

import zc_perception
from zc_perception.errors import AcceleratorError, AllocationError, ConfigError
from zc_perception.memory import dmabuf, heaps
from zc_perception.memory.dmabuf import BufferIdentity, BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.heaps import (
    DmaHeap,
    heap_order,
    HeapUse,
    is_contiguous,
    OfferedHeaps,
    open_heap,
    SealedMemfd,
    Udmabuf,
    working_heaps,
)
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.memory.owned_fd import OwnedFd

# _IOWR and _IOW of ('b', 2 and 3, { u32 flags; s32 fd }), as dma-buf.h writes them.
EXPORT_SYNC_FILE = 3 << 30 | 8 << 16 | ord('b') << 8 | 2
IMPORT_SYNC_FILE = 1 << 30 | 8 << 16 | ord('b') << 8 | 3
pytestmark = pytest.mark.usefixtures('no_fd_leak')


@pytest.fixture
def buffer() -> Iterator[DmaBuf]:
    buffer = SealedMemfd().allocate(8192)
    yield buffer
    buffer.close()


@pytest.fixture
def device_buffer() -> Iterator[DmaBuf]:
    """Yield a memfd that passes as a dma-buf, for calls that only dma-bufs get."""
    memory = OwnedFd(os.memfd_create('stand_in'))
    os.ftruncate(memory.fileno(), 4096)
    buffer = DmaBuf(memory, BufferKind.DMABUF, 'dma_heap/system')
    yield buffer
    buffer.close()


class ScriptedIoctl:
    """Answers each call with the next error number, and records the calls."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[int, int, bytes]] = []

    @property
    def syncs(self) -> list[int]:
        return [struct.unpack('<Q', argument)[0] for _, _, argument in self.calls]

    def __call__(self, fd: int, request: int, argument: bytes | bytearray) -> int:
        self.calls.append((fd, request, bytes(argument)))
        answer = self.answers.pop(0) if self.answers else 0
        if answer:
            raise OSError(answer, os.strerror(answer))
        if request == EXPORT_SYNC_FILE:
            assert isinstance(argument, bytearray)
            struct.pack_into('<i', argument, 4, os.eventfd(1))
        return 0


@pytest.fixture
def ioctl(monkeypatch: pytest.MonkeyPatch) -> ScriptedIoctl:
    script = ScriptedIoctl()
    monkeypatch.setattr(dmabuf.fcntl, 'ioctl', script)
    monkeypatch.setattr(dmabuf, '_missing_ioctls', set())
    return script


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


def test_who_listens_is_told_once_after_the_owner_s_descriptor_is_closed(buffer: DmaBuf) -> None:
    told: list[tuple[BufferIdentity, bool]] = []

    def listener(identity: BufferIdentity) -> None:
        told.append((identity, buffer._fd.closed))

    for _ in range(2):
        buffer.tell_end(listener)
    assert told == []
    for _ in range(2):
        buffer.close()
    assert told == [(buffer.identity, True)]
    buffer.tell_end(listener)
    assert len(told) == 2, 'it has ended already: told at once'


def test_closing_closes_what_keeps_the_memory_after_it_and_once() -> None:
    class Keeper:
        closed = 0

        def close(self) -> None:
            with pytest.raises(ValueError, match='closed'):
                buffer.fileno()
            self.closed += 1

    keeper = Keeper()
    memory = SealedMemfd().allocate(4096)
    buffer = DmaBuf.from_fd(memory.dup(), heap='nvbufsurface', keeper=keeper)
    memory.close()
    buffer.close()
    buffer.close()
    assert keeper.closed == 1


# A process without free memory or descriptors


def in_use() -> int:
    return int(Path('/proc/self/statm').read_text(encoding='ascii').split()[0]) * os.sysconf(
        'SC_PAGESIZE'
    )


@pytest.mark.parametrize(('which', 'soft', 'words'), [
    (resource.RLIMIT_NOFILE, next_free, (r'Too many open files; this process has no file '
                                         r"descriptor left.*'ulimit -n'")),
    (resource.RLIMIT_AS, in_use, (r'Cannot allocate memory; use fewer slots or a smaller '
                                  r"image.*'ulimit -v'")),
])  # fmt: skip
def test_a_mapping_is_refused_with_advice_and_works_afterwards(
    which: int, soft: Callable[[], int], words: str
) -> None:
    large = SealedMemfd().allocate(256 << 20)
    with limited(which, soft()), pytest.raises(AllocationError, match=words):
        large.mapping()
    assert len(large.mapping()) == large.size


def test_cpu_access_is_bracketed_also_when_it_fails(
    device_buffer: DmaBuf, ioctl: ScriptedIoctl
) -> None:
    with device_buffer.cpu_access(CpuAccess.WRITE) as mapping:
        assert mapping is device_buffer.mapping()
        assert ioctl.syncs == [0b010]
        mapping[0] = 1
    with pytest.raises(KeyError), device_buffer.cpu_access(CpuAccess.READ):
        raise KeyError
    assert ioctl.syncs == [0b010, 0b110, 0b001, 0b101]
    ioctl.answers = [errno.EIO]
    with pytest.raises(OSError, match='Input/output'), device_buffer.cpu_access(CpuAccess.READ):
        pytest.fail('the block ran')
    assert len(ioctl.syncs) == 5, 'an access that did not begin is not ended'


def test_cpu_access_for_writing_needs_a_writable_buffer(buffer: DmaBuf) -> None:
    reader = DmaBuf(buffer.dup(), BufferKind.MEMFD, 'memfd', writable=False)
    with (
        pytest.raises(AllocationError, match=r'is read-only here; ask for CpuAccess.READ'),
        reader.cpu_access(CpuAccess.WRITE),
    ):
        pytest.fail('the block ran')
    with reader.cpu_access(CpuAccess.READ) as mapping:
        assert mapping[0] == 0


@pytest.mark.parametrize(
    ('readable', 'writable', 'access', 'free'),
    [
        (False, True, CpuAccess.READ, False),
        (True, False, CpuAccess.READ, True),
        (True, False, CpuAccess.WRITE, False),
        (True, False, CpuAccess.READ | CpuAccess.WRITE, False),
        (False, True, CpuAccess.WRITE, True),
    ],
)
def test_readers_wait_for_writers_and_writers_for_all(
    readable: bool, writable: bool, access: CpuAccess, free: bool, ioctl: ScriptedIoctl
) -> None:
    # An eventfd in place of a reservation object: it is readable above 0, and not writable at its
    # highest count.
    buffer = DmaBuf(OwnedFd(os.eventfd(0, os.EFD_NONBLOCK)), BufferKind.DMABUF, 'dma_heap/system')
    if readable:
        os.eventfd_write(buffer.fileno(), 1 if writable else 2**64 - 2)
    assert buffer.wait_for_devices(access, 0.0) == free
    if free:
        buffer.begin_cpu_access(access, 0.01)
    else:
        with pytest.raises(
            AcceleratorError, match=r'\(dma_heap/system\) is still in use by a device after 0.01 s'
        ):
            buffer.begin_cpu_access(access, 0.01)
    assert len(ioctl.calls) == free, 'SYNC would wait without end'


def test_an_older_kernel_is_asked_once(
    device_buffer: DmaBuf, ioctl: ScriptedIoctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dmabuf, 'is_dmabuf', lambda fd: True)
    ioctl.answers = [errno.ENOTTY] * 2
    with closing(SyncFile(OwnedFd(os.eventfd(1)))) as fence:
        for _ in range(3):
            assert device_buffer.export_fence(CpuAccess.READ) is None
            assert not device_buffer.import_fence(fence, CpuAccess.READ)
    assert not device_buffer.sync_supported
    assert [request for _, request, _ in ioctl.calls] == [EXPORT_SYNC_FILE, IMPORT_SYNC_FILE]
    assert device_buffer.set_name('camera'), 'it has that one'


def test_what_is_no_dma_buf_says_nothing_about_the_kernel(
    device_buffer: DmaBuf, ioctl: ScriptedIoctl
) -> None:
    ioctl.answers = [errno.ENOTTY]
    assert device_buffer.export_fence(CpuAccess.READ) is None
    assert device_buffer.sync_supported and len(ioctl.calls) == 2


def test_older_kernels_name_no_attached_buffer(
    device_buffer: DmaBuf, ioctl: ScriptedIoctl
) -> None:
    ioctl.answers = [errno.EBUSY, errno.EFAULT]
    assert not device_buffer.set_name('camera')
    with pytest.raises(OSError, match='Bad address'):
        device_buffer.set_name('camera')


# linux/fcntl.h; Python's fcntl module has these names only from 3.11.
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEAL, SHRINK, GROW, WRITE, FUTURE_WRITE = 1, 2, 4, 8, 16
PAGE = os.sysconf('SC_PAGE_SIZE')


def memfd(seals: int, size: int = PAGE, name: str = 'frame') -> int:
    number = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(number, size)
    fcntl.fcntl(number, F_ADD_SEALS, seals)
    return number


def _reopened(flags: int) -> int:
    with OwnedFd(memfd(SHRINK | GROW)) as memory:
        return os.open(f'/proc/self/fd/{memory.fileno()}', flags)


NO_BUFFER = 'can be a dma-buf or a sealed memfd, but this is '
FEW = '; there must be 1 or more'
SEALED = r'memfd /memfd:frame.* is sealed against writing; map it read-only'
REFUSED: dict[str, tuple[Callable[[], int], dict[str, Any], str]] = {
    'pipe': (
        lambda: (ends := os.pipe(), os.close(ends[1]), ends[0])[-1],
        {},
        NO_BUFFER + 'a pipe',
    ),
    'file of a tmpfs': (
        lambda: os.open('/dev/shm', os.O_RDWR | os.O_TMPFILE),
        {},
        NO_BUFFER + 'a plain file',
    ),
    'device': (lambda: os.open('/dev/zero', os.O_RDWR), {}, NO_BUFFER + 'a device file'),
    'eventfd': (
        lambda: os.eventfd(0),
        {},
        NO_BUFFER + 'no memory .*send a dma-buf, or a memfd with the seals SHRINK and GROW',
    ),
    'memfd without seals': (
        lambda: memfd(0),
        {},
        NO_BUFFER + r'a memfd .*its owner has to add F_SEAL_SHRINK\|F_SEAL_GROW$',
    ),
    'memfd that can grow': (
        lambda: memfd(SHRINK),
        {},
        NO_BUFFER + 'a memfd .*its owner has to add F_SEAL_GROW$',
    ),
    'memfd with other seals': (
        lambda: memfd(WRITE | SEAL),
        {},
        NO_BUFFER + 'a memfd .*can still change its size',
    ),
    # The size is the kernel's, not the sender's.
    'too small': (
        lambda: memfd(SHRINK | GROW),
        {'expected_size': PAGE + 1},
        f'has {PAGE} bytes, {PAGE + 1} were announced$',
    ),
    'empty': (lambda: memfd(SHRINK | GROW, 0), {}, f'has 0 bytes{FEW}'),
    'of size 0': (
        lambda: memfd(SHRINK | GROW),
        {'expected_size': 0},
        f'has {PAGE} bytes, 0 were announced{FEW}',
    ),
    'of size -1': (
        lambda: memfd(SHRINK | GROW),
        {'expected_size': -1},
        f'has {PAGE} bytes, -1 were announced{FEW}',
    ),
    'sealed': (lambda: memfd(SHRINK | GROW | WRITE), {'writable': True}, SEALED),
    'sealed later': (lambda: memfd(SHRINK | GROW | FUTURE_WRITE), {'writable': True}, SEALED),
    'read-only': (
        lambda: _reopened(os.O_RDONLY),
        {'writable': True},
        "was opened read-only; the buffer's owner has to send an O_RDWR descriptor",
    ),
    'write-only': (
        lambda: _reopened(os.O_WRONLY),
        {},
        (
            "opened with O_WRONLY, so it can not be mapped; the buffer's owner has to send an "
            'O_RDWR or O_RDONLY'
        ),
    ),
}


@pytest.mark.parametrize('kind', REFUSED)
def test_what_is_no_buffer_is_refused_by_what_it_is_and_closed(kind: str) -> None:
    make, options, words = REFUSED[kind]
    fd = OwnedFd(make())
    with pytest.raises(AllocationError, match=words):
        DmaBuf.from_fd(fd, **options)
    assert fd.closed


@pytest.mark.parametrize('seals', [SHRINK | GROW, SHRINK | GROW | FUTURE_WRITE | SEAL])
def test_a_sealed_memfd_is_taken_read_only(seals: int) -> None:
    number = memfd(SHRINK | GROW)
    os.pwrite(number, b'\x07', 0)
    fcntl.fcntl(number, F_ADD_SEALS, seals)
    buffer = DmaBuf.from_fd(OwnedFd(number), expected_size=PAGE)
    assert (buffer.kind, buffer.heap, buffer.size, buffer.writable) == (
        BufferKind.MEMFD,
        'foreign/memfd',
        PAGE,
        False,
    )
    assert buffer.mapping()[0] == 7
    with pytest.raises(TypeError):
        buffer.mapping()[0] = 1


ATTEMPTS: dict[str, Callable[[int], object]] = {
    'write': lambda number: os.pwrite(number, b'x', 0),
    'map for writing': lambda number: mmap.mmap(number, PAGE),
    'grow': lambda number: os.ftruncate(number, 3 * PAGE),
    'seal away the mapping': lambda number: fcntl.fcntl(number, F_ADD_SEALS, WRITE),
}


@pytest.mark.parametrize('attempt', ATTEMPTS)
def test_a_peer_can_not_change_what_was_sealed(attempt: str, buffer: DmaBuf) -> None:
    assert buffer.peers_can_write and not buffer.mapped
    assert buffer.seal_for_sharing() and not buffer.peers_can_write
    buffer.mapping()[0] = 11
    with buffer.dup() as peer, pytest.raises(OSError) as caught:
        ATTEMPTS[attempt](peer.fileno())
    assert caught.value.errno in (errno.EPERM, errno.EACCES)
    assert buffer.mapping()[0] == 11


def test_where_the_seal_can_not_be_had_peers_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, real = SealedMemfd().allocate(PAGE), fcntl.fcntl

    def older_kernel(fd: int, command: int, argument: int = 0) -> int:
        if command == F_ADD_SEALS and argument & FUTURE_WRITE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, command, argument)

    monkeypatch.setattr(dmabuf.fcntl, 'fcntl', older_kernel)
    assert not buffer.seal_for_sharing() and buffer.peers_can_write


@pytest.mark.parametrize(('access', 'trusted'), [(os.O_RDWR, True), (os.O_RDONLY, False)])
def test_a_dma_buf_can_not_be_narrowed(access: int, trusted: bool, tmp_path: Path) -> None:
    path = tmp_path / 'stand_in'
    path.write_bytes(bytes(PAGE))
    buffer = DmaBuf(OwnedFd.open(str(path), access), BufferKind.DMABUF, 'udmabuf')
    assert buffer.peers_can_write == trusted
    assert buffer.seal_for_sharing() != trusted
    assert not buffer.mapped, 'nothing to map for'


PACKAGE = Path(zc_perception.__file__).parent


def test_owning_makes_close_on_exec() -> None:
    number = os.dup(0)
    os.set_inheritable(number, True)
    with OwnedFd(number) as fd:
        assert fcntl.fcntl(fd.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_a_second_close_does_not_hit_the_number_s_next_user_and_use_after_it_raises() -> None:
    fd = OwnedFd(os.dup(0))
    number = fd.fileno()
    fd.close()
    os.dup2(0, number)
    fd.close()
    os.fstat(number)
    os.close(number)
    for use in (fd.fileno, fd.dup, fd.detach):
        with pytest.raises(ValueError, match='closed'):
            use()
    assert repr(fd) == 'OwnedFd(closed)'


def test_a_forgotten_descriptor_is_closed() -> None:
    fd = OwnedFd(os.dup(0))
    number = fd.fileno()
    del fd
    gc.collect()
    with pytest.raises(OSError, match='Bad file descriptor'):
        os.fstat(number)


def closings(source: str) -> list[int]:
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        node.lineno
        for node in calls
        if ast.unparse(node.func) in ('os.close', 'close', 'os.closerange', 'posix.close')
    ]


def test_nobody_else_in_the_rooms_of_frames_closes_a_number() -> None:
    """A borrower of a descriptor has only the number, and must not close it."""
    assert closings('import os\nos.close(3)\nfrom os import close\nclose(4)') == [2, 4], (
        'the search works'
    )
    rooms = ('pixel', 'memory', 'negotiation', 'detection', 'camera', 'npu')
    files = [path for room in rooms for path in (PACKAGE / room).rglob('*.py')] + [
        *PACKAGE.glob('*.py')
    ]
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in files
        if closings(path.read_text(encoding='utf-8'))
    }
    # whole_file is below these folders, and uses a folder's descriptor within one call.
    assert len(files) > 40 and found == {'memory/owned_fd.py', 'whole_file.py'}


# Allocators: the real sealed memfd, and the two device files with a scripted ioctl.

MISSING_HEAP = "can't be opened: No such file or directory; use heap: auto"


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder in which the allocators look for device files."""
    monkeypatch.setattr(heaps, 'DMA_HEAP_DIRECTORY', str(tmp_path / 'dma_heap'))
    monkeypatch.setattr(heaps, 'UDMABUF_DEVICE', str(tmp_path / 'udmabuf'))
    monkeypatch.setattr(heaps, 'NVMAP_DEVICE', str(tmp_path / 'nvmap'))
    (tmp_path / 'dma_heap').mkdir()
    return tmp_path


class KernelDouble:
    """Allocates memfds for the two allocation ioctls."""

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
    full = limited(resource.RLIMIT_FSIZE, 0)
    with full, pytest.raises(AllocationError, match=r'memfd could not allocate .* too large'):
        SealedMemfd().allocate(size)


def test_a_dma_heap_is_asked_for_whole_pages_close_on_exec(
    devices: Path, kernel: KernelDouble
) -> None:
    (devices / 'dma_heap' / 'system').touch()
    heap = DmaHeap('system')
    buffer = heap.allocate(PAGE + 1)
    assert kernel.heap_requests == [(2 * PAGE, 0, os.O_RDWR | os.O_CLOEXEC, 0)]
    assert (buffer.kind, buffer.heap, buffer.size) == (
        BufferKind.DMABUF,
        'dma_heap/system',
        2 * PAGE,
    )


def test_udmabuf_gets_a_sealed_memfd_that_stays_writable(
    devices: Path, kernel: KernelDouble
) -> None:
    (devices / 'udmabuf').touch()
    heap = Udmabuf()
    buffer = heap.allocate(100)
    assert kernel.udmabuf_requests == [(1, 0, PAGE)]
    assert kernel.udmabuf_seals & (SHRINK | WRITE) == SHRINK
    assert (buffer.kind, buffer.heap, buffer.size) == (BufferKind.DMABUF, 'udmabuf', PAGE)


def test_auto_takes_the_best_that_allocates_and_says_in_a_line_what_there_is_not(
    devices: Path, kernel: KernelDouble
) -> None:
    (devices / 'udmabuf').touch()
    folder = f'{devices}/dma_heap'
    heap, reasons = open_heap()
    assert heap.name == 'udmabuf'
    assert reasons == [f'this machine has no {folder}/system and no CMA heap in {folder}']
    (devices / 'udmabuf').unlink()
    (devices / 'dma_heap').rmdir()
    heap, reasons = open_heap()
    assert heap.name == 'memfd'
    assert reasons == [f'this machine has no {folder} and no {devices}/udmabuf']


@pytest.mark.parametrize(
    ('name', 'error', 'words'),
    [
        ('dma_heap/system', AllocationError, MISSING_HEAP),
        ('udmabuf', AllocationError, MISSING_HEAP),
        *[(name, ConfigError, 'is not known; use auto')
          for name in ('dma_heap', 'dma_heap/../udmabuf', 'dma_heap/a/b')],
    ],
)  # fmt: skip
def test_a_named_heap_that_is_missing_is_refused_with_advice(
    devices: Path, name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=f"heap '{name}' {words}"):
        open_heap(name)


# The heap for each use: the table "Buffer allocation paths" in the ZED X document

CMA = ['dma_heap/linux,cma', 'dma_heap/reserved', 'dma_heap/default_cma_region']
SYSTEM, UDMABUF, MEMFD = 'dma_heap/system', 'udmabuf', 'memfd'


@pytest.mark.parametrize(
    ('use', 'jetson', 'order'),
    [
        (HeapUse.CAMERA, False, [SYSTEM, *CMA, UDMABUF, MEMFD]),
        (HeapUse.CAMERA, True, [*CMA, SYSTEM, UDMABUF, MEMFD]),
        (HeapUse.CAMERA_IMPORT, False, [SYSTEM, *CMA, UDMABUF]),
        (HeapUse.NPU_RESULT, True, [*CMA, SYSTEM, UDMABUF]),
    ],
)
def test_the_order_of_heaps_by_use(
    use: HeapUse, jetson: bool, order: list[str], devices: Path
) -> None:
    if jetson:
        (devices / 'nvmap').touch()
    assert heap_order(use) == order


def test_contiguous_memory_is_cma() -> None:
    assert all(map(is_contiguous, [*CMA, 'dma_heap/vidmem_cma']))
    assert not any(map(is_contiguous, [SYSTEM, 'v4l2/cma']))


@pytest.mark.parametrize('use', HeapUse)
def test_the_first_of_the_order_that_works_is_taken_and_the_others_are_explained(
    use: HeapUse, devices: Path, kernel: KernelDouble
) -> None:
    for name in ('system', 'reserved'):
        (devices / 'dma_heap' / name).touch()
    heap, reasons = open_heap(use=use)
    assert heap.name == ('dma_heap/reserved' if use is HeapUse.NPU_RESULT else SYSTEM)
    assert reasons == [f'this machine has no {devices}/udmabuf'], (
        'one CMA heap is enough, whatever its name'
    )


def test_all_heaps_that_work_are_offered_and_the_one_that_is_chosen_gives_the_buffers(
    devices: Path, kernel: KernelDouble
) -> None:
    for name in ('system', 'linux,cma'):
        (devices / 'dma_heap' / name).touch()
    heaps = working_heaps()
    assert heaps.names == (SYSTEM, 'dma_heap/linux,cma', MEMFD) and heaps.name == SYSTEM
    assert heaps.reasons == (f'this machine has no {devices}/udmabuf',)
    for name in (*heaps.names, SYSTEM):
        heaps.choose(name)
        buffer = heaps.allocate(1)
        assert (heaps.name, buffer.heap) == (name, name)
        buffer.close()


def test_what_does_not_work_is_not_offered_and_says_why(devices: Path) -> None:
    # This device file opens but can't allocate: an ioctl on a plain file fails with ENOTTY.
    (devices / 'dma_heap' / 'system').touch()
    heaps = working_heaps()
    assert heaps.names == (MEMFD,)
    assert heaps.reasons == (
        f'this machine has no CMA heap in {devices}/dma_heap and no {devices}/udmabuf',
        'dma_heap/system could not allocate 1 bytes: Inappropriate ioctl for device',
    )
    heaps.close()
    with pytest.raises(
        AllocationError,
        match=r'no heap works: this machine has no CMA heap .*; dma_heap/system could not '
        r'allocate',
    ):
        working_heaps('auto', heap_order(HeapUse.CAMERA_IMPORT))


def test_a_heap_that_is_named_is_the_only_one(devices: Path) -> None:
    heaps = working_heaps('memfd')
    assert (heaps.names, heaps.reasons) == ((MEMFD,), ("parameter 'heap' is 'memfd'",))
    with pytest.raises(
        AllocationError,
        match="heap 'udmabuf' is not one of memfd; to use it, set the camera's parameter 'heap'",
    ):
        heaps.choose(UDMABUF)


def test_at_most_the_chosen_heap_is_open_and_none_after_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NamedHeap, 'open', 0)
    heaps = working_heaps('auto', ['a', 'b', 'c'], opener=NamedHeap)
    assert heaps.names == ('a', 'b', 'c') and NamedHeap.open == 0, 'they were tried'
    for name in ('b', 'b', 'c'):
        heaps.choose(name)
        assert NamedHeap.open == 1
    heaps.remove('a', 'a: the camera refuses it')
    assert heaps.names == ('b', 'c') and heaps.reasons == ('a: the camera refuses it',)
    heaps.close()
    heaps.close()
    assert NamedHeap.open == 0
    for name in ('b', 'c'):
        refused = f"heap '{name}' can't be opened: its OfferedHeaps was closed"
        with pytest.raises(AllocationError, match=refused):
            heaps.choose(name)
    never_chosen = OfferedHeaps(['a'], opener=NamedHeap)
    never_chosen.close()
    with pytest.raises(AllocationError, match='closed'):
        never_chosen.allocate(1)
    assert NamedHeap.open == 0


@pytest.mark.parametrize(
    ('heap', 'number', 'advice'),
    [
        (
            'dma_heap/linux,cma',
            errno.ENOMEM,
            (
                'use fewer slots or a smaller image, see CmaFree in /proc/meminfo, or use '
                'dma_heap/system'
            ),
        ),
        ('dma_heap/system', errno.EMFILE, 'no file descriptor left; raise the limit'),
        ('dma_heap/system', errno.ENFILE, 'the machine has no file descriptor left'),
        ('udmabuf', errno.EINVAL, 'see /sys/module/udmabuf/parameters/size_limit_mb'),
    ],
)
def test_a_refusal_names_the_next_step(
    heap: str, number: int, advice: str, devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (devices / heap).touch()
    opened, _ = open_heap(heap)
    refuse = mock.Mock(side_effect=OSError(number, os.strerror(number)))
    monkeypatch.setattr(heaps.fcntl, 'ioctl', refuse)
    with pytest.raises(
        AllocationError,
        match=f'{heap} could not allocate 5000 bytes: {os.strerror(number)}.*{advice}',
    ):
        opened.allocate(5000)


def test_a_device_file_of_somebody_else_names_the_group(
    devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root can open every file, so file permissions can't simulate the refusal.
    refuse = mock.Mock(side_effect=PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    monkeypatch.setattr('zc_perception.memory.owned_fd.os.open', refuse)
    with pytest.raises(
        AllocationError,
        match=r"heap 'dma_heap/system' can't be opened: Permission denied; add the user to the "
        r'group',
    ):
        open_heap('dma_heap/system')
    heap, reasons = open_heap()
    assert heap.name == 'memfd' and all(
        'add the user to the group' in reason for reason in reasons
    )


@pytest.mark.parametrize('name', ['memfd', 'udmabuf'])
def test_an_allocation_without_descriptors_says_so(devices: Path, name: str) -> None:
    (devices / 'udmabuf').touch()
    heap, _ = open_heap(name)
    with (
        limited(resource.RLIMIT_NOFILE, next_free()),
        pytest.raises(
            AllocationError,
            match=rf"{name} could not allocate 4096 bytes: Too many open files.*'ulimit -n'",
        ),
    ):
        heap.allocate(4096)


# The ledger of copies.


def test_bookings_add_up_by_reason() -> None:
    ledger = CopyLedger()
    ledger.book('tensor', 100)
    ledger.book('tensor', 50)
    ledger.book('to_ros', 7)
    assert ledger.entries() == {'tensor': LedgerEntry(2, 150), 'to_ros': LedgerEntry(1, 7)}
    assert ledger.count('tensor') == 2


def test_no_booking_of_several_threads_is_lost() -> None:
    ledger, start = CopyLedger(), threading.Barrier(4)

    def book() -> None:
        start.wait()
        for _ in range(500):
            ledger.book('draw', 3)

    threads = [threading.Thread(target=book) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.entries() == {'draw': LedgerEntry(2000, 6000)}
