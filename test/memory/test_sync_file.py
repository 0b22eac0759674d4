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
sync_files against a double of the kernel's ioctls.

Real ones, of a driver: the rig's memory checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import errno
import os
import socket
import time

from doubles.sync_kernel import KernelFence, SyncKernel
from hypothesis import given, HealthCheck, settings
from hypothesis import strategies as st
import pytest

from zc_perception.errors import AcceleratorError
from zc_perception.memory import kernel_abi
from zc_perception.memory.fence import DeadlineFence, fence_from_fd, SyncFile
from zc_perception.memory.owned_fd import OwnedFd

pytestmark = pytest.mark.usefixtures('no_fd_leak')


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncKernel]:
    double = SyncKernel(monkeypatch)
    yield double
    double.close()


def done(timestamp_ns: int, status: int = 1, timeline: bytes = b'metis-0') -> KernelFence:
    return KernelFence(timeline, status=status, timestamp_ns=timestamp_ns)


def test_its_status_is_that_of_all_its_fences(kernel: SyncKernel) -> None:
    pending, good, failed = KernelFence(b'vi'), done(7), done(5, -errno.EIO)
    for fences, status in (
        ((), 1),
        ((good, pending), 0),
        ((good, good), 1),
        ((failed, good), -errno.EIO),
    ):
        fence = kernel.sync_file(*fences)
        assert (fence.status(), fence.wait(0.0)) == (status, status != 0)
        fence.close()


def test_an_error_is_found_although_it_polls_readable(kernel: SyncKernel) -> None:
    fence = kernel.sync_file(done(1, -errno.EIO))
    assert fence.wait(0.0)
    with pytest.raises(AcceleratorError, match=rf'error {errno.EIO} \(Input/output error\)'):
        fence.check()
    fence.close()


def test_a_merge_signals_with_the_last_of_its_parts_and_leaves_them_open(
    kernel: SyncKernel,
) -> None:
    fences = [KernelFence(b'metis-0'), KernelFence(b'vi')]
    first, second = (kernel.sync_file(fence) for fence in fences)
    merged = SyncFile.merge('both', first, second)
    assert kernel.merges == ['both']
    assert len({first.fileno(), second.fileno(), merged.fileno()}) == 3
    kernel.signal(fences[1])
    assert not merged.wait(0.0) and second.wait(0.0)
    kernel.signal(fences[0])
    assert merged.wait(0.0)
    merged.check()
    for fence in (first, second, merged):
        fence.close()


def test_a_duplicate_has_the_error_of_its_merge(kernel: SyncKernel) -> None:
    parts = [kernel.sync_file(done(1, -errno.EIO)), kernel.sync_file(done(2))]
    merged = SyncFile.merge('both', *parts)
    other = merged.dup()
    kernel.files[other.fileno()] = kernel.files[merged.fileno()]
    merged.close()
    with pytest.raises(AcceleratorError, match='Input/output'):
        other.check()
    for fence in (*parts, other):
        fence.close()


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
    """
    Some parts end before merging (*states*), the others after it, in any order.

    The second of the others ends with an error.
    """
    fences = [
        done(index + 1, status) if status else KernelFence(b'metis-0')
        for index, status in enumerate(states)
    ]
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
    for fence in (*parts, *chain[1:]):
        fence.close()


def _socket() -> int:
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours.detach()


def _pipe() -> int:
    reader, writer = os.pipe()
    os.close(writer)
    return reader


def _timer() -> int:
    fence = DeadlineFence(60.0)
    number = os.dup(fence.fileno())
    fence.close()
    return number


FOREIGN: dict[str, tuple[Callable[[], int], str]] = {
    'eventfd': (lambda: os.eventfd(0), r'anon_inode:\[eventfd\]'),
    'timerfd': (_timer, r'anon_inode:\[timerfd\]'),
    'pipe': (_pipe, r'pipe:\['),
    'socket': (_socket, r'socket:\['),
    'memfd of that name': (
        lambda: os.memfd_create('anon_inode:sync_file'),
        '/memfd:anon_inode:sync_file',
    ),
    'device': (lambda: os.open('/dev/null', os.O_RDONLY), '/dev/null'),
}


@pytest.mark.parametrize('kind', FOREIGN)
def test_from_another_process_only_sync_files_are_taken(kind: str) -> None:
    make, words = FOREIGN[kind]
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
    # The link is what Linux 6.12 shows in the rig; the rig's checks take a real one.
    monkeypatch.setattr(kernel_abi.os, 'readlink', lambda path: 'anon_inode:sync_file')
    fence = fence_from_fd(kernel.sync_file(done(time.monotonic_ns()))._fd)
    fence.check()
    fence.close()
