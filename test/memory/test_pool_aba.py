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
ABA: a slot with the same index, buffer and inode comes back for another frame.

What is left of the first frame must not reach the second one.
"""

from __future__ import annotations

from collections.abc import Callable
import time

from pool_kit import counted_pool, leased, SMALL
import pytest

from zc_perception.errors import FrameReleasedError, StaleFrameError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.fence import EventFence
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, SlotState

pytestmark = pytest.mark.usefixtures('no_fd_leak')


def test_a_lease_of_generation_n_is_refused_at_n_plus_1() -> None:
    pool, _ = counted_pool(1)
    old = leased(pool)
    slot, generation = old.slot, old.generation
    pool.release(old)
    newer = leased(pool)
    assert (newer.slot, newer.slot.index, newer.generation) == (slot, slot.index, generation + 1)
    assert newer.slot.buffers[0].identity == slot.buffers[0].identity, 'the very same memory'
    attempts: list[Callable[[], object]] = [
        lambda: pool.release(old),
        lambda: pool.release(old, EventFence()),
        lambda: pool.lease(slot, generation, 'npu'),
    ]
    for attempt in attempts:
        with pytest.raises(StaleFrameError):
            attempt()
    pool.abandon(old)
    pool.collect()
    assert newer.ended == '' and slot.state is SlotState.LEASED
    assert (pool.statistics().holders, pool.statistics().abandoned) == ({'npu': 1}, 0)
    pool.release(newer)
    pool.close()


class OneFile:
    """
    An allocator whose buffers are one file.

    So every slot's inode is the same, as when the kernel reuses a number.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, 'wb') as file:
            file.truncate(SMALL.buffer_size(0))

    def __call__(self) -> tuple[DmaBuf, ...]:
        return (DmaBuf(OwnedFd.open(self.path, 2), BufferKind.MEMFD, 'file'),)


def test_the_same_inode_again_is_another_buffer(tmp_path: object) -> None:
    memory = OneFile(f'{tmp_path}/buffer')
    pool = BufferPool(SMALL, memory, 1, name='camera', release_timeout_s=0.02)
    old = leased(pool)
    pool.release(old, EventFence())
    time.sleep(0.03)
    newer = leased(pool)
    assert (newer.slot.index, newer.slot.buffers[0].identity) == (
        old.slot.index,
        old.slot.buffers[0].identity,
    )
    assert newer.slot is not old.slot and newer.slot.buffer_uid != old.slot.buffer_uid
    assert newer.generation > old.generation, (
        'index and generation name one frame, whatever the buffers'
    )
    with pytest.raises(StaleFrameError):
        pool.lease(newer.slot, old.generation, 'npu')
    with pytest.raises(StaleFrameError):
        pool.release(old)
    assert pool.statistics().holders == {'npu': 1} and newer.slot.state is SlotState.LEASED
    pool.release(newer)
    pool.close()


def test_a_frame_that_was_revoked_says_so(
    make_pool: Callable[..., BufferPool], make_frame: Callable[..., Frame]
) -> None:
    pool = make_pool(slots=1)
    frame = make_frame(pool)
    assert pool.revoke(pool.name) == 1
    newer = leased(pool)
    with pytest.raises(StaleFrameError, match='the lease of camera was revoked before'):
        frame.release()
    with pytest.raises(FrameReleasedError):
        frame.release()
    assert pool.statistics().holders == {'npu': 1}
    pool.release(newer)
