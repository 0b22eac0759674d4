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
Frames that are mapped and released at the same time.

Views that outlive a block, threads, leases that were taken back.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.errors import FrameReleasedError, StaleFrameError
from zc_perception.frame import Frame
from zc_perception.memory.fence import EventFence
from zc_perception.memory.pool import BufferPool

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]


def test_a_view_that_outlives_the_block_stops_the_release_and_not_for_ever(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=1)
    frame = make_frame(pool, sequence=2, fill=lambda luma, chroma: luma.fill(50))
    with frame.map() as planes:
        part = planes[0][2:4, 3:5]
    with pytest.raises(BufferError, match="frame 2 can't be released: a NumPy view"):
        frame.release()
    assert not frame.released and pool.acquire() is None
    assert (part == 50).all()
    del part
    frame.release()
    assert pool.acquire() is not None


KEEPERS: dict[str, Callable[[NDArray[Any]], object]] = {
    'the plane': lambda plane: plane,
    'a row': lambda plane: plane[3],
    'another shape': lambda plane: plane[:, ::2].T,
    'another type': lambda plane: plane.view(np.int8),
    'a memoryview': lambda plane: plane.data,
    'an array of a memoryview': lambda plane: np.asarray(plane.data),
    'a bytes iterator': lambda plane: plane.flat,
}


@pytest.mark.parametrize('index', [0, 1])
@pytest.mark.parametrize('keep', KEEPERS.values(), ids=KEEPERS)
def test_whatever_still_sees_the_pixels_stops_the_release(
    make_pool: MakePool, make_frame: MakeFrame, index: int, keep: Callable[[NDArray[Any]], object]
) -> None:
    pool = make_pool(slots=1, layout={'buffer_per_plane': True})
    frame = make_frame(pool)
    with frame.map() as planes:
        kept = keep(planes[index])
    for fence in (None, EventFence()):
        with pytest.raises(BufferError, match='still alive'):
            frame.release(fence)
        if fence is not None:
            fence.close()
    assert not frame.released and pool.acquire() is None
    del kept
    frame.release()
    assert pool.acquire() is not None


def test_another_thread_s_block_stops_the_release_from_its_first_moment(
    make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The block is still waiting for the acquire fence.

    Nothing is mapped yet, and the slot must not go.
    """
    fence, refused = EventFence(), list[str]()

    def wait(timeout_s: float) -> bool:
        def release() -> None:
            try:
                frame.release()
            except BufferError as error:
                refused.append(str(error))

        other = threading.Thread(target=release)
        other.start()
        other.join()
        return True

    frame = make_frame(acquire_fence=fence)
    monkeypatch.setattr(fence, 'wait', wait)
    monkeypatch.setattr(fence, 'check', lambda: None)
    with frame.map() as planes:
        assert planes[0].shape == (48, 64)
    assert len(refused) == 1 and not frame.released
    frame.release()
    fence.close()


def test_a_thread_that_maps_never_sees_a_slot_that_was_released(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    """Mapping and releasing race: either the block is refused or the slot stays until its end."""
    pool, wrong = make_pool(4, 4, slots=1), []
    for sequence in range(300):
        frame, start = make_frame(pool, sequence=sequence), threading.Barrier(2)
        generation = frame.data.generation

        def look(
            frame: Frame = frame, start: threading.Barrier = start, generation: int = generation
        ) -> None:
            start.wait()
            try:
                with frame.map():
                    slot = pool.acquire()
                    if slot is not None:
                        wrong.append(generation)
                        pool.discard(slot)
            except FrameReleasedError:
                pass

        thread = threading.Thread(target=look)
        thread.start()
        start.wait()
        try:
            frame.release()
        except BufferError:
            thread.join()
            frame.release()
        thread.join()
    assert wrong == []


@pytest.mark.parametrize('before', ['nothing', 'close'])
def test_a_revoked_lease_maps_nothing_even_before_its_slot_is_used_again(
    make_pool: MakePool, make_frame: MakeFrame, before: str
) -> None:
    pool = make_pool(slots=1)
    with make_frame(pool, sequence=6) as frame:
        delivery = frame.deliver('viewer')
    assert delivery is not None
    if before == 'close':
        pool.close()
    assert pool.revoke('viewer') == 1
    for write in (False, True):
        with (
            pytest.raises(StaleFrameError, match='frame 6: the lease of viewer was revoked'),
            delivery.map(write=write),
        ):
            pytest.fail('mapped')
    with pytest.raises(StaleFrameError):
        delivery.release()


def test_with_a_fence_a_frame_can_be_released_while_the_job_still_maps_it(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    """How a pipeline gives up on a job that takes too long: the fence keeps the slot for it."""
    pool, fence = make_pool(slots=1), EventFence()
    frame = make_frame(pool, fill=lambda luma, chroma: luma.fill(8))
    with frame.map() as planes:
        frame.release(fence)
        assert pool.acquire() is None
        assert (planes[0] == 8).all()
    fence.signal()
    assert pool.acquire() is not None


def test_planes_end_with_the_block(make_frame: MakeFrame) -> None:
    frame = make_frame()
    with frame.map() as planes:
        assert len(planes) == 2 and len(planes[:1]) == 1
    with pytest.raises(FrameReleasedError, match="use the planes inside 'with frame"):
        planes[0]
    frame.release()
