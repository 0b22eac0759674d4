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
DmaBuf on memfd: size, identity, one cached mapping; CPU access and names against a scripted ioctl.

Adopting: test_dmabuf_adopt.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import errno
import os
from pathlib import Path
import resource
import struct

from descriptors import limited, next_free
import numpy as np
import pytest

from zc_perception.errors import AcceleratorError, AllocationError
from zc_perception.memory import dmabuf
from zc_perception.memory.dmabuf import BufferIdentity, BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.owned_fd import OwnedFd

# _IOW('b', 1, const char *); _IOWR and _IOW of ('b', 2 and 3, { u32 flags; s32 fd }), as dma-buf.h
# writes them.
SET_NAME = 1 << 30 | 8 << 16 | ord('b') << 8 | 1
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
    """Yield a memfd that says it is a dma-buf, for the calls that only those get."""
    buffer = DmaBuf(OwnedFd(os.memfd_create('stand_in')), BufferKind.DMABUF, 'dma_heap/system')
    yield buffer
    buffer.close()


class ScriptedIoctl:
    """
    Answers each call with the next error number, and keeps the calls.

    0 is success; after the last number it answers with success. Calls are kept with their
    arguments.
    """

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[int, int, bytes]] = []

    @property
    def syncs(self) -> list[tuple[int, int, int]]:
        """The arguments as ``struct dma_buf_sync`` has them."""
        return [
            (fd, request, struct.unpack('<Q', argument)[0]) for fd, request, argument in self.calls
        ]

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


def test_identity_is_that_of_every_duplicate_and_of_no_other_buffer(buffer: DmaBuf) -> None:
    again = DmaBuf(buffer.dup(), BufferKind.MEMFD, 'memfd')
    other = SealedMemfd().allocate(4096)
    assert again.identity == buffer.identity != other.identity
    again.close()
    other.close()


def test_a_read_only_buffer_is_mapped_for_reading() -> None:
    buffer = SealedMemfd().allocate(4096)
    read_only = DmaBuf(buffer.dup(), BufferKind.MEMFD, 'memfd', writable=False)
    with pytest.raises(TypeError):
        read_only.mapping()[0] = 1
    read_only.close()
    buffer.close()


def test_a_memfd_that_was_opened_for_writing_only_is_no_buffer(buffer: DmaBuf) -> None:
    write_only = OwnedFd.open(f'/proc/self/fd/{buffer.fileno()}', os.O_WRONLY)
    with pytest.raises(
        AllocationError,
        match=r'opened with O_WRONLY, so nobody can map it; its owner has to send an O_RDWR or '
        r'O_RDONLY',
    ):
        DmaBuf.from_fd(write_only)
    assert write_only.closed


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


def test_who_listens_is_told_of_an_end_that_a_view_puts_off(buffer: DmaBuf) -> None:
    told: list[BufferIdentity] = []
    buffer.tell_end(told.append)
    view = np.frombuffer(buffer.mapping(), np.uint8)
    with pytest.raises(BufferError):
        buffer.close()
    assert told == [buffer.identity], 'its owner has given it up'
    buffer.tell_end(told.append)
    assert len(told) == 1
    del view
    buffer.close()
    assert len(told) == 2


@pytest.mark.parametrize('number', [errno.EINTR, errno.EAGAIN])
def test_an_interrupted_sync_is_tried_again(
    device_buffer: DmaBuf, ioctl: ScriptedIoctl, number: int
) -> None:
    ioctl.answers = [number, number, 0]
    device_buffer.begin_cpu_access(CpuAccess.READ)
    assert len(ioctl.calls) == 3


def test_a_memfd_needs_no_sync(buffer: DmaBuf, ioctl: ScriptedIoctl) -> None:
    buffer.begin_cpu_access(CpuAccess.READ)
    buffer.end_cpu_access(CpuAccess.READ)
    assert ioctl.calls == []


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


def test_a_read_only_descriptor_is_never_writable(buffer: DmaBuf) -> None:
    narrow = OwnedFd.open(f'/proc/self/fd/{buffer.fileno()}', os.O_RDONLY)
    reader = DmaBuf(narrow, BufferKind.MEMFD, 'memfd', writable=True)
    assert not reader.writable
    with pytest.raises(TypeError):
        reader.mapping()[0] = 1
    reader.close()


def test_a_forked_child_s_close_takes_nothing_from_its_parent(buffer: DmaBuf) -> None:
    buffer.mapping()[0] = 1
    child = os.fork()
    if child == 0:
        buffer.mapping()[0] = 2
        buffer.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert buffer.mapping()[0] == 2 and os.fstat(buffer.fileno()).st_size == 8192


# A process without memory or descriptors left


def in_use() -> int:
    """Return bytes of address space."""
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
    large.close()


# cpu_access


def test_cpu_access_is_bracketed_also_when_it_fails(
    device_buffer: DmaBuf, ioctl: ScriptedIoctl
) -> None:
    os.ftruncate(device_buffer.fileno(), 4096)
    device_buffer.size = 4096
    with device_buffer.cpu_access(CpuAccess.WRITE) as mapping:
        assert mapping is device_buffer.mapping()
        assert [flags for _, _, flags in ioctl.syncs] == [0b010]
        mapping[0] = 1
    with pytest.raises(KeyError), device_buffer.cpu_access(CpuAccess.READ):
        raise KeyError
    assert [flags for _, _, flags in ioctl.syncs] == [0b010, 0b110, 0b001, 0b101]


def test_an_access_that_did_not_begin_is_not_ended(
    device_buffer: DmaBuf, ioctl: ScriptedIoctl
) -> None:
    os.ftruncate(device_buffer.fileno(), 4096)
    device_buffer.size = 4096
    ioctl.answers = [errno.EIO]
    with pytest.raises(OSError, match='Input/output'), device_buffer.cpu_access(CpuAccess.READ):
        pytest.fail('the block ran')
    assert len(ioctl.calls) == 1


def test_cpu_access_for_writing_needs_a_writable_buffer(buffer: DmaBuf) -> None:
    reader = DmaBuf(buffer.dup(), BufferKind.MEMFD, 'memfd', writable=False)
    with (
        pytest.raises(AllocationError, match=r'is read-only here; ask for CpuAccess.READ'),
        reader.cpu_access(CpuAccess.WRITE),
    ):
        pytest.fail('the block ran')
    with reader.cpu_access(CpuAccess.READ) as mapping:
        assert mapping[0] == 0
    reader.close()


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
    # In place of the poll of a reservation object: an eventfd is readable above 0, and no more
    # writable at its highest count.
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
    buffer.close()


# Fences of the reservation object


def test_a_memfd_has_no_fences_and_no_name_to_set(buffer: DmaBuf, ioctl: ScriptedIoctl) -> None:
    with SyncFileStandIn() as fence:
        assert not buffer.import_fence(fence, CpuAccess.READ)
    assert (
        buffer.export_fence(CpuAccess.WRITE),
        buffer.sync_supported,
        buffer.set_name('camera'),
    ) == (None, False, False)
    assert ioctl.calls == []


class SyncFileStandIn(SyncFile):
    def __init__(self) -> None:  # noqa: CNL100
        super().__init__(OwnedFd(os.eventfd(1)))

    def __enter__(self) -> SyncFileStandIn:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_an_older_kernel_is_asked_once(
    device_buffer: DmaBuf, ioctl: ScriptedIoctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dmabuf, 'is_dmabuf', lambda fd: True)
    ioctl.answers = [errno.ENOTTY] * 2
    with SyncFileStandIn() as fence:
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


# Names


def test_older_kernels_name_no_attached_buffer(
    device_buffer: DmaBuf, ioctl: ScriptedIoctl
) -> None:
    ioctl.answers = [errno.EBUSY, errno.EFAULT]
    assert not device_buffer.set_name('camera')
    with pytest.raises(OSError, match='Bad address'):
        device_buffer.set_name('camera')
