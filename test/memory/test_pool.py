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
Slots, leases, quotas and release fences of one pool, in one thread.

Threads, forks and finalizers: test_pool_concurrency.py.
"""

from __future__ import annotations

from collections.abc import Callable

from pool_kit import acquired, CountingAllocator, leased, SMALL
import pytest

from zc_perception.errors import AllocationError, ConfigError, LayoutError, StaleFrameError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]


def test_buffers_must_hold_the_layout() -> None:
    layout = compute_layout(NV12, 640, 480)
    with pytest.raises(LayoutError, match='plane 1: ends at byte'):
        BufferPool(layout, lambda: (SealedMemfd().allocate(640 * 480),), 2, name='camera')


def test_a_failing_allocation_frees_the_slots_before_it() -> None:
    memory = CountingAllocator()
    memory.allocations_left = 2
    with pytest.raises(AllocationError, match='no memory'):
        BufferPool(SMALL, memory, 3, name='camera')
    assert memory.closes == [1, 1]


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'slots': 0}, 'pool of camera: 0 slots; at least 1'),
        ({'slots': -3}, 'pool of camera: -3 slots'),
        ({'slots': 65}, '65 slots; .* 64 are the most'),
        ({'reserve': -1}, '-1 of 3 slots reserved'),
        ({'reserve': 4}, '4 of 3 slots reserved for the producer; 0 to 3'),
        ({'release_timeout_s': 0.0}, r'a release timeout of 0.0 s'),
        ({'release_timeout_s': -1.0}, r'a release timeout of -1.0 s'),
        ({'release_timeout_s': float('nan')}, r'a release timeout of nan s'),
        ({'release_timeout_s': float('inf')}, r'a release timeout of inf s'),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, float], message: str) -> None:
    memory = CountingAllocator()
    with pytest.raises(ConfigError, match=message):
        BufferPool(SMALL, memory, **{'slots': 3, 'name': 'camera', **options})  # type: ignore
    assert memory.made == []


def use_slot(pool: BufferPool, other: BufferPool) -> None:
    pool.lease(acquired(other), 1, 'npu')


WRONG_USES: list[tuple[str, Callable[[BufferPool, BufferPool], object], type[Exception], str]] = [
    (
        'lease of another pool',
        lambda pool, other: pool.release(leased(other)),
        StaleFrameError,
        'is of the pool of other, not of camera',
    ),
    (
        'slot of another pool',
        use_slot,
        StaleFrameError,
        'is not of the pool of camera; lease it from its own',
    ),
    (
        'foreign discard',
        lambda pool, other: pool.discard(acquired(other)),
        StaleFrameError,
        'is not of the pool of camera; discard it',
    ),
    (
        'discard twice',
        lambda pool, _: [pool.discard(pool.slots[0]) for _ in [acquired(pool), 1]],
        StaleFrameError,
        'slot 0 is free; only one',
    ),
    (
        'old discard',
        lambda pool, _: pool.discard(acquired(pool), 0),
        StaleFrameError,
        'generation 0 is gone',
    ),
    (
        'future lease',
        lambda pool, _: pool.lease(acquired(pool), 7, 'npu'),
        StaleFrameError,
        r'generation 7 never was \(now 1, filling\)',
    ),
    (
        'free slot',
        lambda pool, _: pool.lease(pool.slots[0], 0, 'npu'),
        StaleFrameError,
        r'generation 0 is gone \(now 0, free\)',
    ),
    (
        'index too high',
        lambda pool, _: pool.acquire(3),
        ConfigError,
        'there is no slot 3; its 3 slots are 0 to 2',
    ),
    ('index too low', lambda pool, _: pool.acquire(-1), ConfigError, 'there is no slot -1'),
    (
        'index and wait',
        lambda pool, _: pool.acquire(1, wait_s=1.0),
        ConfigError,
        "slot 1 can't be waited for",
    ),
]


@pytest.mark.parametrize(
    ('use', 'error', 'message'),
    [row[1:] for row in WRONG_USES],
    ids=[row[0] for row in WRONG_USES],
)
def test_wrong_use_is_an_error_that_says_what(
    make_pool: MakePool,
    use: Callable[[BufferPool, BufferPool], object],
    error: type[Exception],
    message: str,
) -> None:
    pool, other = make_pool(), make_pool(name='other')
    with pytest.raises(error, match=message):
        use(pool, other)
    pool.release(leased(pool, pool.acquire(2)))
    other.revoke('npu')


@pytest.mark.parametrize(
    'again',
    [lambda buffer: buffer, lambda buffer: DmaBuf(buffer.dup(), buffer.kind, buffer.heap)],
    ids=['object', 'dup'],
)
def test_slots_in_the_same_memory_are_refused(again: Callable[[DmaBuf], DmaBuf]) -> None:
    image = compute_layout(NV12, 64, 48)
    with pytest.raises(LayoutError, match='slots 0 and 1 share the buffer with inode'):
        memory = SealedMemfd().allocate(image.buffer_size(0))
        BufferPool(image, lambda: (again(memory),), 3, name='camera')
    memory.close()
