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

"""Fixtures of all tests: memfd frames, a descriptor leak check, and a private ROS domain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import gc
import os
from pathlib import Path
from typing import Any
import weakref

from descriptors import open_descriptors
from frame_kit import next_frame, pool_of
from hypothesis import HealthCheck, settings
from process_state import kept
import pytest
from ros_domains import locked_domain, ON_THIS_HOST
from waiting import until

from zc_perception.frame import Frame, Header
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

pytest_plugins = ('whole_run',)

# A busy machine must not fail a test. CI tries the same examples each time; elsewhere each run
# tries other ones.
settings.register_profile(
    'busy_machine',
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize='CI' in os.environ,
)
settings.load_profile('busy_machine')


@pytest.fixture(scope='session', autouse=True)
def _ros_of_this_worker_only() -> Iterator[None]:
    """Keep ROS on this host, and its default domain in one that no other worker uses."""
    with pytest.MonkeyPatch.context() as patch, locked_domain() as domain:
        for name, value in {**ON_THIS_HOST, 'ROS_DOMAIN_ID': str(domain)}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope='session', autouse=True)
def _as_urgent_as_it_began() -> Iterator[None]:
    """Restore this worker's priority, which a tool's ``main`` lowers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, 'nice', lambda increment: os.getpriority(os.PRIO_PROCESS, 0))
        yield


@pytest.fixture(autouse=True)
def _process_as_it_began() -> Iterator[None]:
    """Undo process-wide changes by the test or by a program's ``main`` that it calls."""
    with kept():
        yield


@pytest.fixture
def no_fd_leak() -> Iterator[None]:
    """Fail on leaked descriptors; list this fixture before fixtures that close something."""
    before = open_descriptors()
    yield
    # A thread may be ending: a pool-reaper closes its eventfd when the last closed pool's slots
    # are back. A cycle may keep descriptors open; collecting after every test takes longer.
    left = lambda: dict(open_descriptors() - before)  # noqa: E731
    until(lambda: not left(), lambda: f'descriptors left open: {left()}', pause=gc.collect)


@pytest.fixture
def logged(capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """
    Return a function that reads what was written to descriptor 2 since the test began.

    Other threads may write meanwhile. ``capfd.readouterr()`` truncates its file, and would lose
    text written between its read and the truncation.
    """
    return lambda: Path('/proc/self/fd/2').read_text(errors='replace')


@pytest.fixture
def free_domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yield a ROS domain id that no other test on this network uses; also set ROS_DOMAIN_ID."""
    with locked_domain() as domain:
        monkeypatch.setenv('ROS_DOMAIN_ID', str(domain))
        yield domain


@pytest.fixture(scope='module')
def module_domain() -> Iterator[int]:
    """Like ``free_domain``, but one for all tests of a module, and not in the environment."""
    with locked_domain() as domain:
        yield domain


@pytest.fixture
def make_pool() -> Iterator[Callable[..., BufferPool]]:
    """
    Make pools of NV12 slots on memfd, and close them at the end.

    Options are those of BufferPool; those in ``layout`` are compute_layout's.
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
        options.setdefault('release_timeout_s', 60.0)  # a busy machine must not retire a slot
        image = compute_layout(fourcc, width, height, **(layout or {}))
        pools.append(pool_of(image, slots, name=name, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def make_frame(make_pool: Callable[..., BufferPool]) -> Iterator[Callable[..., Frame]]:
    """Make frames, from *pool* or from a new pool; leased frames are released at the end."""
    frames: list[weakref.ref[Frame]] = []

    def make(
        pool: BufferPool | None = None,
        *,
        width: int = 64,
        height: int = 48,
        sequence: int = 0,
        stamp_ns: int = 1_000_000_000,
        frame_id: str = 'camera_optical_frame',
        fill: Callable[..., None] | None = None,
        **options: Any,
    ) -> Frame:
        """Make one frame; *fill* is called with the planes to write."""
        pool = pool or make_pool(width, height, slots=1)
        frame = next_frame(pool, sequence, header=Header(stamp_ns, frame_id), **options)
        frames.append(weakref.ref(frame))
        if fill is not None:
            with frame.map(write=True) as planes:
                fill(*planes)
        return frame

    yield make
    for frame in filter(None, (reference() for reference in frames)):
        if not frame.released:
            frame.release()
