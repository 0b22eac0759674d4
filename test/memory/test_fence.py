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

"""Fences that need no driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import errno
import fcntl
import math
import os
import resource
import select
import signal
import threading
import time

from descriptors import limited, next_free
from doubles.sync_kernel import KernelFence, SyncKernel
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
from pool_kit import PATIENCE_S
import pytest

from zc_perception.errors import AcceleratorError
from zc_perception.memory import kernel_abi
from zc_perception.memory.fence import (
    DeadlineFence,
    EventFence,
    Fence,
    fence_from_fd,
    poll_fd,
    SyncFile,
    Waker,
)
from zc_perception.memory.owned_fd import OwnedFd

pytestmark = pytest.mark.usefixtures('no_fd_leak')
FAR_S = 3600.0
PENDING: dict[str, Callable[[], Fence]] = {
    'EventFence': EventFence,
    'DeadlineFence': lambda: DeadlineFence(FAR_S),
    'SyncFile': lambda: SyncFile(OwnedFd(os.eventfd(0))),
}


def signalled_event(error: BaseException | None = None) -> EventFence:
    fence = EventFence()
    fence.signal(error)
    return fence


SIGNALLED: dict[str, Callable[[], Fence]] = {
    'EventFence': signalled_event,
    'DeadlineFence': lambda: DeadlineFence(0.0),
    'SyncFile': lambda: SyncFile(OwnedFd(os.eventfd(1))),
}


@pytest.fixture
def interrupting_signals() -> Iterator[list[int]]:
    """Run a signal handler every 5 ms that only appends to the yielded list."""
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    yield seen
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize('kind', PENDING)
@pytest.mark.parametrize('timeout_s', [-1.0, -1e-9, math.nan, math.inf, -math.inf])
def test_waits_are_bounded(kind: str, timeout_s: float) -> None:
    for fence in (PENDING[kind](), SIGNALLED[kind]()):
        with pytest.raises(ValueError, match=r'timeout .* give a finite number of seconds'):
            fence.wait(timeout_s)
        fence.close()


@pytest.mark.parametrize('kind', PENDING)
def test_a_handled_signal_neither_ends_nor_restarts_a_wait(
    kind: str, interrupting_signals: list[int]
) -> None:
    fence, started = PENDING[kind](), time.monotonic()
    # If each signal restarted the whole time, the wait would never end.
    assert not fence.wait(0.06)
    assert time.monotonic() - started >= 0.06 and interrupting_signals


@pytest.mark.parametrize('kind', SIGNALLED)
def test_looking_consumes_nothing_and_long_waits_are_no_overflow(kind: str) -> None:
    fence = SIGNALLED[kind]()
    assert fence.wait(0.0) and fence.wait(0.0) and fence.wait(1e9)
    assert select.select([fence.fileno()], [], [], 10.0)[0]
    assert select.select([fence.fileno()], [], [], 0.0)[0], 'it stays readable'


@pytest.mark.parametrize('kind', PENDING)
def test_a_closed_fence_is_closed_once_and_has_no_descriptor(kind: str) -> None:
    fence = PENDING[kind]()
    assert fcntl.fcntl(fence.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    fence.close()
    fence.close()
    with pytest.raises(ValueError, match='closed'):
        fence.fileno()


def test_a_dead_peer_is_no_signal_either() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    with pytest.raises(
        AcceleratorError, match=rf"descriptor {reader} \(pipe:.*\) is gone; it can't signal"
    ):
        poll_fd(reader, select.POLLIN, 10.0)
    os.close(reader)


def test_an_error_signals_too_and_is_found_by_check() -> None:
    cause = ValueError('bad model')
    fence = signalled_event(cause)
    assert fence.wait(0.0)
    for _ in range(2):
        with pytest.raises(AcceleratorError, match='the job failed: bad model') as caught:
            fence.check()
        assert caught.value.__cause__ is cause


def test_a_deadline_signals_by_itself_and_as_success() -> None:
    before = time.monotonic_ns()
    far = DeadlineFence(FAR_S)
    with pytest.raises(AcceleratorError, match='has not signalled'):
        far.check()
    far.close()
    fence = DeadlineFence(0.02)
    assert before + 20_000_000 <= fence.deadline_ns <= time.monotonic_ns() + 20_000_000
    assert fence.wait(60.0)
    assert time.monotonic_ns() >= fence.deadline_ns
    fence.check()


def test_a_deadline_needs_no_descriptor_until_somebody_polls() -> None:
    with limited(resource.RLIMIT_NOFILE, next_free()):
        fence = DeadlineFence(0.0)
        assert fence.wait(0.0)
        with pytest.raises(OSError, match='Too many open files'):
            fence.fileno()
        fence.close()


def ends(waker: Waker, fences: tuple[EventFence, ...] = ()) -> threading.Event:
    """Start an unbounded wait in a thread; return an event for its end."""
    ended = threading.Event()
    wait = threading.Thread(target=lambda: (waker.wait(None, fences), ended.set()), daemon=True)
    wait.start()
    return ended


def test_each_token_ends_one_wait_even_one_that_begins_later() -> None:
    waker = Waker()
    waker.wake()
    waker.wake(2)
    for number in range(3):
        assert ends(waker).wait(PATIENCE_S), f'token {number} is lost'
    ended = ends(waker)
    assert not ended.wait(0.05), 'three tokens end three waits'
    waker.wake()
    assert ended.wait(PATIENCE_S)


def test_without_a_descriptor_every_wait_ends_soon() -> None:
    with limited(resource.RLIMIT_NOFILE, next_free()):
        waker = Waker()
    waker.wake()
    assert ends(waker).wait(PATIENCE_S)
    fence = signalled_event()
    assert ends(waker, (fence,)).wait(PATIENCE_S)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncKernel]:
    double = SyncKernel(monkeypatch)
    yield double
    double.close()


def test_a_duplicate_has_the_error_of_its_merge(kernel: SyncKernel) -> None:
    parts = [kernel.sync_file(KernelFence(status)) for status in (-errno.EIO, 1)]
    merged = SyncFile.merge('both', *parts)
    other = merged.dup()
    kernel.files[other.fileno()] = kernel.files[merged.fileno()]
    merged.close()
    with pytest.raises(AcceleratorError, match='Input/output'):
        other.check()


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    states=st.lists(st.sampled_from([0, 1, -errno.EIO]), min_size=2, max_size=5),
    order=st.permutations(range(5)),
)
def test_however_parts_end_a_merge_tells_whether_all_went_well(
    states: list[int], order: list[int], kernel: SyncKernel
) -> None:
    """Some parts end before merging (*states*), the others after it, in any order."""
    fences = [KernelFence(status) for status in states]
    parts = [kernel.sync_file(fence) for fence in fences]
    chain = [parts[0]]
    for part in parts[1:]:
        chain.append(SyncFile.merge('chain', chain[-1], part))
    late = [index for index in order if index < len(states) and states[index] == 0]
    for number, index in enumerate(late):
        assert not chain[-1].wait(0.0)
        kernel.signal(fences[index], -errno.EIO if number == 1 else 1)
    assert chain[-1].wait(0.0)
    if -errno.EIO in states or len(late) > 1:
        with pytest.raises(AcceleratorError, match='Input/output'):
            chain[-1].check()
    else:
        chain[-1].check()


@pytest.mark.parametrize(
    ('make', 'words'),
    [
        (lambda: os.eventfd(0), r'anon_inode:\[eventfd\]'),
        (lambda: os.memfd_create('anon_inode:sync_file'), '/memfd:anon_inode:sync_file'),
    ],
    ids=['eventfd', 'memfd of that name'],
)
def test_from_another_process_only_sync_files_are_taken(
    make: Callable[[], int], words: str
) -> None:
    fd = OwnedFd(make())
    with pytest.raises(
        AcceleratorError,
        match=rf"must be a sync_file, not '{words}.*send the fence that a driver gave",
    ):
        fence_from_fd(fd)
    assert fd.closed, 'it was passed on, so that nobody else closes it'


def test_a_sync_file_is_known_by_its_link_in_proc(
    kernel: SyncKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Linux 6.12 shows this link in the rig, where the checks use a real sync_file.
    monkeypatch.setattr(kernel_abi.os, 'readlink', lambda path: 'anon_inode:sync_file')
    fence = fence_from_fd(kernel.sync_file(KernelFence(1))._fd)
    fence.check()
