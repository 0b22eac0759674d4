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

"""Allocators: the real sealed memfd, and the two device files with a scripted ioctl."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
import resource
import struct
from unittest import mock

from descriptors import limited, next_free
import pytest

from zc_perception.errors import AllocationError, ConfigError
from zc_perception.memory import heaps
from zc_perception.memory.dmabuf import BufferKind
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

pytestmark = pytest.mark.usefixtures('no_fd_leak')

# From linux/fcntl.h; Python's fcntl module has these names only from 3.11.
F_GET_SEALS = 1034
SEAL_SHRINK, SEAL_GROW, SEAL_WRITE = 2, 4, 8
PAGE = os.sysconf('SC_PAGE_SIZE')


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
    assert kernel.udmabuf_seals & (SEAL_SHRINK | SEAL_WRITE) == SEAL_SHRINK
    assert (buffer.kind, buffer.heap, buffer.size) == (BufferKind.DMABUF, 'udmabuf', PAGE)


def test_auto_takes_the_best_that_allocates(devices: Path, kernel: KernelDouble) -> None:
    (devices / 'udmabuf').touch()
    heap, reasons = open_heap()
    assert heap.name == 'udmabuf'
    assert reasons == [
        f'this machine has no {devices}/dma_heap/system and no CMA heap in {devices}/dma_heap'
    ]


def test_a_machine_without_any_heap_is_one_plain_line(devices: Path) -> None:
    (devices / 'dma_heap').rmdir()
    heap, reasons = open_heap()
    assert heap.name == 'memfd'
    assert reasons == [f'this machine has no {devices}/dma_heap and no {devices}/udmabuf']


@pytest.mark.parametrize('name', ['dma_heap/system', 'udmabuf'])
def test_a_named_heap_that_is_missing_is_refused_with_advice(devices: Path, name: str) -> None:
    with pytest.raises(
        AllocationError,
        match=f"heap '{name}' can't be opened: No such file or directory; use heap: auto",
    ):
        open_heap(name)


@pytest.mark.parametrize('name', ['dma_heap', 'dma_heap/../udmabuf', 'dma_heap/a/b'])
def test_unknown_heaps_are_refused(devices: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"heap '{name}' is not known; use auto"):
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
        match="heap 'udmabuf' is not one of memfd; to offer it, set parameter 'heap' to its name",
    ):
        heaps.choose(UDMABUF)


class Counted(SealedMemfd):
    open = 0  # noqa: A003

    def __init__(self, name: str) -> None:
        self.name = name
        Counted.open += 1

    def close(self) -> None:
        Counted.open -= 1


def test_at_most_the_chosen_heap_is_open_and_none_after_closing() -> None:
    heaps = working_heaps('auto', ['a', 'b', 'c'], opener=Counted)
    assert heaps.names == ('a', 'b', 'c') and Counted.open == 0, 'they were tried'
    for name in ('b', 'b', 'c'):
        heaps.choose(name)
        assert Counted.open == 1
    heaps.remove('a', 'a: the camera refuses it')
    assert heaps.names == ('b', 'c') and heaps.reasons == ('a: the camera refuses it',)
    heaps.close()
    heaps.close()
    assert Counted.open == 0
    for name in ('b', 'c'):
        refused = f"heap '{name}' can't be opened: its owner was closed"
        with pytest.raises(AllocationError, match=refused):
            heaps.choose(name)
    never_chosen = OfferedHeaps(['a'], opener=Counted)
    never_chosen.close()
    with pytest.raises(AllocationError, match='closed'):
        never_chosen.allocate(1)
    assert Counted.open == 0


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
