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
Fixtures of all tests.

Frames on memfd, a check that nothing leaks a descriptor, a ROS domain of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import gc
import os
from pathlib import Path
import time
from typing import Any
import weakref

from descriptors import open_descriptors
from frame_kit import next_frame, pool_of
from hypothesis import HealthCheck, settings
from process_state import kept
import pytest
from ros_domains import locked_domain, ON_THIS_HOST

from zc_perception.frame import Frame, Header
from zc_perception.memory.fence import Fence
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

pytest_plugins = ('whole_run',)

# A busy machine is no reason to fail. In CI the examples are the same at each run; elsewhere each
# run tries others.
settings.register_profile(
    'busy_machine',
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize='CI' in os.environ,
)
settings.load_profile('busy_machine')


@pytest.fixture(scope='session', autouse=True)
def _ros_of_this_worker_only() -> Iterator[None]:
    """Keep ROS on this host, and what names no domain in one that no other worker has."""
    with pytest.MonkeyPatch.context() as patch, locked_domain() as domain:
        for name, value in ON_THIS_HOST.items():
            patch.setenv(name, value)
        patch.setenv('ROS_DOMAIN_ID', str(domain))
        yield


@pytest.fixture(scope='session', autouse=True)
def _as_urgent_as_it_began() -> Iterator[None]:
    """
    Keep this worker's priority.

    A tool's ``main`` lowers it for good, and the processes of all later tests would inherit that.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, 'nice', lambda increment: os.getpriority(os.PRIO_PROCESS, 0))
        yield


@pytest.fixture(autouse=True)
def _process_as_it_began() -> Iterator[None]:
    """
    Undo what a test sets for its whole process, which later tests share.

    A program's ``main`` that the test calls may set it, too.
    """
    with kept():
        yield


@pytest.fixture
def no_fd_leak() -> Iterator[None]:
    """
    Fails a test that leaves descriptors open.

    Name it before fixtures that close something at their end.
    """
    before = open_descriptors()
    yield
    leaked = open_descriptors() - before
    deadline = time.monotonic() + 60.0
    while leaked and time.monotonic() < deadline:
        # only a cycle may be keeping them; collecting after every test would take longer than the
        # tests
        gc.collect()
        # Or a thread that is about to end: a pool-reaper does so when the last closed pool's slots
        # are back, and takes its eventfd along.
        time.sleep(0.01)
        leaked = open_descriptors() - before
    assert not leaked, f'descriptors left open: {dict(leaked)}'


@pytest.fixture
def logged(capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """
    Return a function that reads what was written to descriptor 2 since the test began.

    Other threads may write meanwhile.
    ``capfd.readouterr()`` truncates what it has read, and what is written between the two is lost:
    it can't be asked in a loop.
    """
    return lambda: Path('/proc/self/fd/2').read_text(errors='replace')


@pytest.fixture
def free_domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """
    Return a ROS domain id that no other test has at the same time.

    That includes tests of other users. It is also in ROS_DOMAIN_ID, for child processes.
    """
    with locked_domain() as domain:
        monkeypatch.setenv('ROS_DOMAIN_ID', str(domain))
        yield domain


@pytest.fixture(scope='module')
def module_domain() -> Iterator[int]:
    """As ``free_domain``, for all tests of a module; not in the environment."""
    with locked_domain() as domain:
        yield domain


@pytest.fixture
def make_pool() -> Iterator[Callable[..., BufferPool]]:
    """
    Make pools of NV12 slots on memfd, and close them at the end.

    Options are BufferPool's, or compute_layout's in ``layout``.
    """
    pools: list[BufferPool] = []

    def make(
        width: int = 64,
        height: int = 48,
        slots: int = 3,
        *,
        fourcc: int = NV12,
        name: str = 'camera',
        layout: dict[str, Any] | None = None,
        **options: Any,
    ) -> BufferPool:
        options.setdefault('release_timeout_s', 60.0)  # a busy machine retires no slot by accident
        image = compute_layout(fourcc, width, height, **(layout or {}))
        pools.append(pool_of(image, slots, name=name, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def make_frame(make_pool: Callable[..., BufferPool]) -> Iterator[Callable[..., Frame]]:
    """
    Make frames, from *pool* or a pool of their own.

    Frames that are still leased are released at the end.
    """
    frames: list[weakref.ref[Frame]] = []

    def make(
        pool: BufferPool | None = None,
        *,
        width: int = 64,
        height: int = 48,
        sequence: int = 0,
        stamp_ns: int = 1_000_000_000,
        frame_id: str = 'camera_optical_frame',
        acquire_fence: Fence | None = None,
        fill: Callable[..., None] | None = None,
    ) -> Frame:
        """*fill* gets the planes to write."""
        pool = pool or make_pool(width, height, slots=1)
        header = Header(stamp_ns, frame_id)
        frame = next_frame(pool, sequence, header=header, acquire_fence=acquire_fence)
        frames.append(weakref.ref(frame))
        if fill is not None:
            with frame.map(write=True) as planes:
                fill(*planes)
        return frame

    yield make
    for reference in frames:
        frame = reference()
        if frame is not None and not frame.released:
            frame.release()
