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
Descriptors from other processes.

Which are taken as buffers, and what their senders and receivers can do to the pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import ctypes
import errno
import fcntl
import mmap
import os
from pathlib import Path
import socket
import tempfile

import pytest

from zc_perception.errors import AllocationError
from zc_perception.memory import dmabuf
from zc_perception.memory import kernel_abi as abi
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.owned_fd import OwnedFd

pytestmark = pytest.mark.usefixtures('no_fd_leak')

# linux/fcntl.h, falloc.h
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEAL, SHRINK, GROW, WRITE, FUTURE_WRITE = 1, 2, 4, 8, 16
PUNCH_HOLE_KEEP_SIZE = 3
PAGE = os.sysconf('SC_PAGE_SIZE')


def memfd(seals: int, size: int = PAGE, name: str = 'frame') -> int:
    number = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(number, size)
    fcntl.fcntl(number, F_ADD_SEALS, seals)
    return number


def _one_end(pair: tuple[int, int]) -> int:
    os.close(pair[1])
    return pair[0]


def _socket() -> int:
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours.detach()


def _shm_file() -> int:
    with tempfile.TemporaryFile(dir='/dev/shm') as file:
        file.truncate(PAGE)
        return os.dup(file.fileno())


REFUSED: dict[str, tuple[Callable[[], int], str]] = {
    'pipe': (lambda: _one_end(os.pipe()), 'a pipe'),
    'socket': (_socket, 'a socket'),
    'file': (lambda: os.open(__file__, os.O_RDONLY), 'a plain file'),
    'file of a tmpfs': (_shm_file, 'a plain file'),
    'directory': (lambda: os.open('/', os.O_RDONLY), 'a directory'),
    'device': (lambda: os.open('/dev/zero', os.O_RDWR), 'a device file'),
    'eventfd': (
        lambda: os.eventfd(0),
        'no memory .*send a dma-buf, or a memfd with the seals SHRINK and GROW',
    ),
    'memfd without seals': (
        lambda: memfd(0),
        r'a memfd .*its owner has to add F_SEAL_SHRINK\|F_SEAL_GROW$',
    ),
    'memfd that can grow': (lambda: memfd(SHRINK), 'a memfd .*its owner has to add F_SEAL_GROW$'),
    'memfd that can shrink': (
        lambda: memfd(GROW),
        'a memfd .*its owner has to add F_SEAL_SHRINK$',
    ),
    'memfd with other seals': (lambda: memfd(WRITE | SEAL), 'a memfd .*can still change its size'),
}


@pytest.mark.parametrize('kind', REFUSED)
def test_what_is_no_buffer_is_refused_by_what_it_is_and_closed(kind: str) -> None:
    make, words = REFUSED[kind]
    fd = OwnedFd(make())
    with pytest.raises(
        AllocationError, match=f'can be a dma-buf or a sealed memfd, but this is {words}'
    ):
        DmaBuf.from_fd(fd)
    assert fd.closed


@pytest.mark.parametrize(
    'seals',
    [
        SHRINK | GROW,
        SHRINK | GROW | SEAL,
        SHRINK | GROW | FUTURE_WRITE | SEAL,
        SHRINK | GROW | WRITE,
    ],
)
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
    buffer.close()


@pytest.mark.parametrize(
    ('announced', 'good'), [(1, True), (PAGE, True), (PAGE + 1, False), (1 << 40, False)]
)
def test_the_size_is_the_kernel_s_not_the_sender_s(announced: int, good: bool) -> None:
    fd = OwnedFd(memfd(SHRINK | GROW))
    if good:
        DmaBuf.from_fd(fd, expected_size=announced).close()
        return
    with pytest.raises(AllocationError, match=f'has {PAGE} bytes, {announced} were announced'):
        DmaBuf.from_fd(fd, expected_size=announced)
    assert fd.closed


@pytest.mark.parametrize('seal', [WRITE, FUTURE_WRITE])
def test_what_is_sealed_against_writing_is_not_taken_for_writing(seal: int) -> None:
    with pytest.raises(
        AllocationError, match=r'memfd /memfd:frame.* is sealed against writing; map it read-only'
    ):
        DmaBuf.from_fd(OwnedFd(memfd(SHRINK | GROW | seal)), writable=True)


def test_what_was_opened_read_only_is_not_taken_for_writing() -> None:
    with OwnedFd(memfd(SHRINK | GROW)) as memory:
        narrow = OwnedFd.open(f'/proc/self/fd/{memory.fileno()}', os.O_RDONLY)
    with pytest.raises(
        AllocationError, match='was opened read-only; its owner has to send an O_RDWR descriptor'
    ):
        DmaBuf.from_fd(narrow, writable=True)
    assert narrow.closed


# Sealing


@pytest.fixture
def shared() -> Iterator[tuple[DmaBuf, OwnedFd]]:
    """Yield a buffer that has been sealed for sharing, and the descriptor that a peer gets."""
    buffer = SealedMemfd().allocate(2 * PAGE)
    assert buffer.peers_can_write and not buffer.mapped
    assert buffer.seal_for_sharing() and not buffer.peers_can_write
    peer = buffer.dup()
    yield buffer, peer
    peer.close()
    buffer.close()


def test_the_producer_goes_on_writing_and_peers_see_it(shared: tuple[DmaBuf, OwnedFd]) -> None:
    buffer, peer = shared
    reader = DmaBuf.from_fd(peer.dup(), expected_size=2 * PAGE)
    with buffer.cpu_access(CpuAccess.WRITE) as mapping:
        mapping[PAGE] = 42
    assert reader.mapping()[PAGE] == 42
    reader.close()


def _map_for_writing(number: int) -> None:
    mmap.mmap(number, PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close()


def _protect(number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = libc.mmap(None, PAGE, mmap.PROT_READ, mmap.MAP_SHARED, number, 0)
    failed = libc.mprotect(address, PAGE, mmap.PROT_READ | mmap.PROT_WRITE)
    number_of_error = ctypes.get_errno()
    libc.munmap(address, PAGE)
    if failed:
        raise OSError(number_of_error, os.strerror(number_of_error))


def _punch(number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    if libc.fallocate(number, PUNCH_HOLE_KEEP_SIZE, 0, PAGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _reopen(number: int) -> None:
    with OwnedFd.open(f'/proc/self/fd/{number}', os.O_RDWR) as again:
        os.pwrite(again.fileno(), b'x', 0)


ATTEMPTS: dict[str, Callable[[int], object]] = {
    'write': lambda number: os.pwrite(number, b'x', 0),
    'map for writing': _map_for_writing,
    'make a mapping writable': _protect,
    'open again for writing': _reopen,
    'punch a hole': _punch,
    'truncate': lambda number: os.ftruncate(number, 0),
    'grow': lambda number: os.ftruncate(number, 3 * PAGE),
    'seal away the mapping': lambda number: fcntl.fcntl(number, F_ADD_SEALS, WRITE),
    'add any seal': lambda number: fcntl.fcntl(number, F_ADD_SEALS, SEAL),
}


@pytest.mark.parametrize('attempt', ATTEMPTS)
def test_a_peer_can_not_change_what_was_sealed(
    attempt: str, shared: tuple[DmaBuf, OwnedFd]
) -> None:
    buffer, peer = shared
    buffer.mapping()[0] = 11
    with pytest.raises(OSError) as caught:
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
    buffer.close()


def test_what_a_library_lends_is_not_sealed_because_it_goes_on_writing() -> None:
    memory = SealedMemfd().allocate(PAGE)
    buffer = DmaBuf.from_fd(memory.dup(), lent=True)
    assert not buffer.seal_for_sharing() and buffer.peers_can_write
    mmap.mmap(memory.fileno(), PAGE).close()
    buffer.close()
    memory.close()


def test_a_memfd_that_was_only_opened_read_only_can_be_opened_again() -> None:
    """Which is why O_RDONLY alone protects a dma-buf (it can't be opened at all) and no memfd."""
    buffer = SealedMemfd().allocate(PAGE)
    narrow = OwnedFd.open(f'/proc/self/fd/{buffer.fileno()}', os.O_RDONLY)
    reader = DmaBuf.from_fd(narrow)
    assert reader.peers_can_write
    _reopen(reader.fileno())
    reader.close()
    buffer.close()


@pytest.mark.parametrize(('access', 'trusted'), [(os.O_RDWR, True), (os.O_RDONLY, False)])
def test_a_dma_buf_can_not_be_narrowed(access: int, trusted: bool, tmp_path: Path) -> None:
    path = tmp_path / 'stand_in'
    path.write_bytes(bytes(PAGE))
    buffer = DmaBuf(OwnedFd.open(str(path), access), BufferKind.DMABUF, 'udmabuf')
    assert buffer.peers_can_write == trusted
    assert buffer.seal_for_sharing() != trusted
    assert not buffer.mapped, 'nothing to map for'
    buffer.close()


def test_empty_memory_and_impossible_sizes_are_refused() -> None:
    for size, expected in ((0, None), (4096, -1)):
        fd = OwnedFd(os.memfd_create('peer', os.MFD_ALLOW_SEALING))
        os.ftruncate(fd.fileno(), size)
        fcntl.fcntl(fd.fileno(), abi.F_ADD_SEALS, abi.F_SEAL_SHRINK | abi.F_SEAL_GROW)
        with pytest.raises(
            AllocationError,
            match=f'has {size} bytes, {expected} were announced; neither can be less than 1',
        ):
            DmaBuf.from_fd(fd, expected_size=expected)
        assert fd.closed
