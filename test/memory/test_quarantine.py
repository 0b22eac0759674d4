"""What has to signal before a dead consumer's buffers are used again."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Iterator

import pytest
from doubles.sync_kernel import KernelFence, SyncKernel

from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.fence import DeadlineFence, SyncFile
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import quarantine_fence

pytestmark = pytest.mark.usefixtures('no_fd_leak')

LONG_S = 3600.0


class Scripted(DmaBuf):
    """A dma-buf whose export answers what it is told."""

    def __init__(self, answer: Callable[[], SyncFile | None]) -> None:
        super().__init__(OwnedFd(os.memfd_create('stand_in')), BufferKind.DMABUF, 'dma_heap/system')
        self.answer = answer
        self.asked: list[CpuAccess] = []

    def export_fence(self, access: CpuAccess) -> SyncFile | None:
        self.asked.append(access)
        return self.answer()


def _raise(number: int) -> SyncFile | None:
    raise OSError(number, os.strerror(number))


def _pending(kernel: SyncKernel, given: list[SyncFile]) -> SyncFile:
    """A fence that doesn't signal, kept in *given* so that only close() closes it."""
    given.append(kernel.sync_file(KernelFence(b'metis-0')))
    return given[-1]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncKernel]:
    double = SyncKernel(monkeypatch)
    yield double
    double.close()


@pytest.fixture
def make() -> Iterator[Callable[..., list[Scripted]]]:
    made: list[Scripted] = []

    def scripted(*answers: Callable[[], SyncFile | None]) -> list[Scripted]:
        made.extend(Scripted(answer) for answer in answers)
        return made

    yield scripted
    for buffer in made:
        buffer.close()


def test_a_pending_fence_is_what_is_waited_for(kernel: SyncKernel, make: Callable[..., list[Scripted]]) -> None:
    job = KernelFence(b'metis-0')
    buffers = make(lambda: kernel.sync_file(job))
    fence = quarantine_fence(buffers, 0.0)
    assert isinstance(fence, SyncFile) and not fence.wait(0.0)
    assert buffers[0].asked == [CpuAccess.WRITE], 'readers count too: the frame is going to be written'
    kernel.signal(job)
    assert fence.wait(0.0)
    fence.close()


def test_all_buffers_of_the_frame_count(kernel: SyncKernel, make: Callable[..., list[Scripted]]) -> None:
    jobs = [KernelFence(b'metis-0'), KernelFence(b'vi'), KernelFence(b'vic')]
    idle = KernelFence(b'stub', b'stub', 1, 1)
    fence = quarantine_fence(make(*(lambda job=job: kernel.sync_file(job) for job in (*jobs, idle))), 0.0)
    for job in jobs:
        assert isinstance(fence, SyncFile) and not fence.wait(0.0)
        kernel.signal(job)
    assert fence.wait(0.0)
    assert len(kernel.merges) == 2, 'one for each pending fence but the first'
    fence.close()


def test_nothing_pending_may_mean_that_the_driver_adds_no_fences(kernel: SyncKernel, make: Callable[..., list[Scripted]]) -> None:
    before = time.monotonic_ns()
    fence = quarantine_fence(make(lambda: kernel.sync_file(KernelFence(b'stub', b'stub', 1, 1)), lambda: None), LONG_S)
    assert isinstance(fence, DeadlineFence) and not fence.wait(0.0)
    assert before + LONG_S * 1e9 <= fence.deadline_ns <= time.monotonic_ns() + LONG_S * 1e9
    fence.close()


def test_an_older_kernel_is_given_time(make: Callable[..., list[Scripted]]) -> None:
    buffers = make(lambda: None)
    fence = quarantine_fence(buffers, LONG_S)
    assert isinstance(fence, DeadlineFence) and not fence.wait(0.0)
    fence.close()
    short = quarantine_fence(buffers, 0.01)
    assert short.wait(60.0)
    short.close()


def test_a_memfd_needs_none_because_no_device_takes_it(make: Callable[..., list[Scripted]]) -> None:
    memory = SealedMemfd().allocate(4096)
    fence = quarantine_fence([memory], LONG_S)
    assert fence.wait(0.0)
    fence.close()
    mixed = quarantine_fence([memory, *make(lambda: None)], LONG_S)
    assert not mixed.wait(0.0)
    mixed.close()
    memory.close()


@pytest.mark.parametrize('number', [errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize('position', [0, 1])
def test_fences_that_can_not_be_had_are_replaced_by_time(
    number: int, position: int, kernel: SyncKernel, make: Callable[..., list[Scripted]]
) -> None:
    given: list[SyncFile] = []
    answers: list[Callable[[], SyncFile | None]] = [lambda: _pending(kernel, given)] * 2
    answers.insert(position, lambda: _raise(number))
    fence = quarantine_fence(make(*answers), LONG_S)
    assert isinstance(fence, DeadlineFence) and not fence.wait(0.0)
    assert len(given) == position and all(f._fd.closed for f in given)
    fence.close()


def test_a_merge_that_fails_leaves_nothing_open(
    kernel: SyncKernel, make: Callable[..., list[Scripted]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SyncFile, 'merge', classmethod(lambda cls, name, first, second: _raise(errno.EMFILE)))
    given: list[SyncFile] = []
    fence = quarantine_fence(make(*[lambda: _pending(kernel, given)] * 2), LONG_S)
    assert isinstance(fence, DeadlineFence)
    assert len(given) == 2 and all(f._fd.closed for f in given)
    fence.close()


@pytest.mark.parametrize('timeout_s', [-1.0, math.nan, math.inf])
def test_a_quarantine_ends(timeout_s: float, kernel: SyncKernel, make: Callable[..., list[Scripted]]) -> None:
    for buffers in ([], make(lambda: kernel.sync_file(KernelFence(b'metis-0')))):
        with pytest.raises(ValueError, match='bounded'):
            quarantine_fence(buffers, timeout_s)
