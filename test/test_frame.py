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

"""Frames: leases, sharing, delivery. What is seen through map() is in test_frame_map.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import copy
import dataclasses
import gc
import os
import pickle
import signal
import threading
import time
from typing import Any
import weakref

from long_form import LONG
import pytest

from zc_perception.errors import FrameReleasedError, StaleFrameError
from zc_perception.frame import Frame, FrameData, Header
from zc_perception.memory.fence import EventFence
from zc_perception.memory.pool import BufferPool, Lease, SlotState
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]


def holders(pool: BufferPool) -> dict[str, int]:
    return pool.statistics().holders


def test_a_frame_is_its_producer_s_lease_with_what_is_known_of_the_picture(
    make_pool: MakePool,
) -> None:
    pool = make_pool(64, 48, slots=1)
    slot = pool.acquire()
    assert slot is not None
    # A slot keeps its layout, whatever the pool makes by then.
    slot.layout = compute_layout(NV12, 32, 24)
    frame = Frame.publish_slot(
        pool,
        slot,
        header=Header(123, 'lens'),
        colorimetry=BT601_LIMITED,
        sequence=7,
        captured_ns=55,
        capture_cost_ns=5,
    )
    data = frame.data
    assert holders(pool) == {'camera': 1}
    assert (frame.header, data.sequence, data.captured_ns, data.capture_cost_ns) == (
        Header(123, 'lens'),
        7,
        55,
        5,
    )
    assert (data.width, data.height, data.fourcc, data.modifier) == (32, 24, NV12, LINEAR)
    assert (data.planes, data.buffers) == (slot.layout.planes, slot.buffers)
    assert (data.buffer_uid, data.generation) == (slot.buffer_uid, slot.generation)
    frame.release()
    assert pool.statistics().states == {SlotState.FREE: 1}


def test_what_is_known_of_a_frame_never_changes(make_frame: MakeFrame) -> None:
    data = make_frame().data
    for field in dataclasses.fields(FrameData):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(data, field.name, None)
    with pytest.raises(AttributeError):
        data.modifier = 1  # type: ignore[misc]
    assert isinstance(data.planes, tuple) and isinstance(data.buffers, tuple)
    for part in (data.layout, data.planes[0]):
        for field in dataclasses.fields(part):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(part, field.name, None)
        assert hash(part) == hash(dataclasses.replace(part)) and part == dataclasses.replace(part)


@pytest.mark.parametrize(
    'missing',
    [
        'header',
        'layout',
        'buffers',
        'colorimetry',
        'buffer_uid',
        'generation',
        'sequence',
        'captured_ns',
    ],
)
def test_a_frame_is_described_in_full_or_not_at_all(make_frame: MakeFrame, missing: str) -> None:
    """The modifier comes with the layout, which has no default for it either."""
    fields = dict(vars(make_frame().data))
    assert FrameData(**fields).buffer_uid == fields['buffer_uid']
    del fields[missing]
    with pytest.raises(TypeError, match=missing):
        FrameData(**fields)


def test_a_reused_slot_keeps_its_uid_and_gets_a_new_generation(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=1)
    first = make_frame(pool)
    first.release()
    second = make_frame(pool)
    assert (
        second.data.buffer_uid == first.data.buffer_uid
        and second.data.generation == first.data.generation + 1
    )
    assert make_frame(make_pool(slots=1)).data.buffer_uid != first.data.buffer_uid


@pytest.mark.parametrize(
    'do', [copy.copy, copy.deepcopy, pickle.dumps, lambda frame: pickle.dumps(frame, 0)]
)
def test_a_frame_is_one_lease_and_not_copied(
    make_pool: MakePool, make_frame: MakeFrame, do: Callable[[Frame], object]
) -> None:
    pool = make_pool(slots=1)
    frame = make_frame(pool, sequence=4)
    with pytest.raises(
        TypeError,
        match=r"^frame 4 can't be copied or pickled, it is one lease: call frame\.keep\(\) for "
        r'another lease',
    ):
        do(frame)
    frame.release()
    assert holders(pool) == {}


def test_every_delivery_is_a_frame_of_its_own_over_the_same_data(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=1)
    frame = make_frame(pool)
    first, second = frame.deliver('npu'), frame.deliver('overlay')
    assert first is not None and second is not None
    assert first.data is second.data is frame.data
    assert holders(pool) == {'camera': 1, 'npu': 1, 'overlay': 1}
    first.release()
    frame.release()
    assert not second.released
    with second.map() as planes:
        assert planes[0].shape == (48, 64)
    second.release()
    assert holders(pool) == {}


def test_the_first_share_of_a_lent_frame_takes_it_over(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=1)
    frame = make_frame(pool)
    frame.lend()
    assert frame.borrowed
    kept = frame.keep()
    assert kept is frame and not frame.borrowed
    assert holders(pool) == {'camera': 1}
    again = frame.keep()
    assert again is not frame and holders(pool) == {'camera': 1}, (
        'it is the same frame, and counts once'
    )
    again.release()
    kept.release()
    assert holders(pool) == {}


def test_sharing_a_frame_again_takes_nothing_of_the_quota(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=1)
    pool.set_quota('npu', 1)
    delivery = make_frame(pool).deliver('npu')
    assert delivery is not None
    shared = [delivery.keep() for _ in range(3)]
    delivery.release()
    assert holders(pool)['npu'] == 1, 'whichever of them goes first, the frame is held'
    shared.pop().release()
    shared.pop(0).release()
    assert holders(pool)['npu'] == 1
    shared.pop().release()
    assert 'npu' not in holders(pool)


@pytest.mark.parametrize(
    'use',
    [
        lambda f: f.release(),
        lambda f: f.keep(),
        lambda f: f.deliver('npu'),
        lambda f: f.map().__enter__(),
    ],
    ids=['release', 'share', 'deliver', 'map'],
)
def test_use_after_release_raises(make_frame: MakeFrame, use: Callable[[Frame], object]) -> None:
    frame = make_frame(sequence=3)
    frame.release()
    with pytest.raises(FrameReleasedError, match=r'frame 3 was released: call frame\.keep\(\)'):
        use(frame)
    assert frame.released
    assert frame.data.width == 64, 'what is known of it stays known'


def test_a_block_releases_even_when_its_body_raises_or_has_released(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=2)
    with pytest.raises(KeyError), make_frame(pool):
        raise KeyError
    with make_frame(pool) as frame:
        frame.release()
    assert holders(pool) == {}


def test_a_block_s_own_exception_is_not_hidden_by_a_view_in_its_traceback(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=1)

    def fail() -> None:
        with make_frame(pool) as frame, frame.map() as planes:
            view = planes[0]
            raise KeyError(view.shape)

    with pytest.raises(KeyError) as error:
        fail()
    assert holders(pool) == {'camera': 1}, 'the traceback still holds the view'
    del error
    gc.collect()
    pool.collect()
    assert holders(pool) == {} and pool.statistics().abandoned == 1


def test_of_several_threads_that_release_one_does(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=1)
    for _ in range(100):
        frame, start, outcomes = make_frame(pool), threading.Barrier(4), list[str]()

        def release(
            frame: Frame = frame, start: threading.Barrier = start, outcomes: list[str] = outcomes
        ) -> None:
            start.wait()
            try:
                frame.release()
                outcomes.append('released')
            except (FrameReleasedError, StaleFrameError):
                outcomes.append('refused')

        threads = [threading.Thread(target=release) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ['refused'] * 3 + ['released']
    assert holders(pool) == {}


def test_a_release_fence_keeps_the_slot_from_being_reused(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool, fence = make_pool(slots=1), EventFence()
    make_frame(pool).release(fence)
    assert pool.acquire() is None
    fence.signal()
    slot = pool.acquire()
    assert slot is not None
    pool.discard(slot)


def test_what_consumers_do_with_their_frames_leaves_the_producer_s_descriptors_alone(
    make_pool: MakePool,
) -> None:
    """
    They borrow them.

    Mapping, keeping a duplicate, sharing and releasing close nothing but what is their own.
    """
    pool = make_pool(slots=1, layout={'buffer_per_plane': True})
    slot = pool.acquire()
    assert slot is not None
    numbers = [(buffer.fileno(), buffer.identity.inode) for buffer in slot.buffers]
    frame = Frame.publish_slot(
        pool, slot, header=Header(0, ''), colorimetry=BT601_LIMITED, sequence=0, captured_ns=0
    )
    delivery = frame.deliver('npu')
    assert delivery is not None
    kept = [buffer.dup() for buffer in delivery.data.buffers]
    shared = delivery.keep()
    with delivery.map() as planes:
        assert planes[1].shape == (24, 32, 2)
    for each in (delivery, shared, frame):
        each.release()
    assert [(number, os.fstat(number).st_ino) for number, _ in numbers] == numbers
    for own in kept:
        own.close()
    assert [buffer.fileno() for buffer in slot.buffers] == [number for number, _ in numbers]
    assert [os.fstat(number).st_ino for number, _ in numbers] == [inode for _, inode in numbers]


def test_a_frame_that_is_only_passed_on_is_never_mapped(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool, fence = make_pool(slots=1), EventFence()
    for sequence in range(3):
        frame = make_frame(pool, sequence=sequence)
        delivery = frame.deliver('npu')
        assert delivery is not None
        shared = delivery.keep()
        for each in (frame, delivery):
            each.release()
        shared.release(fence if sequence == 2 else None)
    assert not any(buffer.mapped for buffer in pool.slots[0].buffers)
    fence.signal()
    pool.collect()


def test_a_forgotten_frame_s_slot_is_not_reused_under_a_living_view(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=1)
    frame = make_frame(pool)
    with frame.map() as planes:
        view = planes[0]
    forgotten = weakref.ref(frame)
    del frame
    gc.collect()
    assert forgotten() is None
    assert pool.acquire() is None, 'the view would show the next picture'
    del view
    assert pool.acquire() is not None
    assert pool.statistics().abandoned == 1


def test_a_view_s_finalizer_takes_no_lock(make_pool: MakePool, make_frame: MakeFrame) -> None:
    """
    The last view of a forgotten frame may end anywhere.

    That includes a thread that is inside the pool.
    """
    pool = make_pool(slots=1)
    frame: Frame | None = make_frame(pool)
    assert frame is not None
    kept: list[Any] = []
    with frame.map() as planes:
        kept.append(planes[0])

    def forget() -> None:
        nonlocal frame
        frame = None
        kept.clear()

    with pool._lock:
        thread = threading.Thread(target=forget, daemon=True)
        thread.start()
        thread.join(60.0)
        assert not thread.is_alive(), 'the finalizer waits for the lock'
    assert pool.acquire() is not None


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """
    Run the collector at every few allocations.

    It has only the test's own objects to look at.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(7, 2, 2)
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


#: Of each thread; a multiple of 4.
TURNS = 80 if LONG else 20


@pytest.mark.usefixtures('eager_collector')
def test_frames_forgotten_in_cycles_by_many_threads_all_come_back(make_pool: MakePool) -> None:
    """
    Under allocation pressure, finalizers run in any thread that allocates.

    They run at any place, inside the pool too.
    """
    pool, stop = make_pool(8, 4, slots=4), threading.Event()

    def work(number: int) -> None:
        for turn in range(TURNS):
            while (slot := pool.acquire()) is None:
                gc.collect()
                if stop.is_set():
                    return
            frame = Frame.publish_slot(
                pool, slot, header=Header(turn, ''), colorimetry=BT601_LIMITED, sequence=turn,
                captured_ns=0
            )  # fmt: skip
            other = frame.deliver(f'consumer {number}')
            cycle: list[Any] = [frame, other]
            if turn % 3 == 0:
                with frame.map() as planes:
                    cycle.append(planes[0][1:])
            if turn % 4 == 0 and other is not None:
                other.release()
            cycle.append(cycle)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    stuck = [thread for thread in threads if thread.is_alive()]
    stop.set()
    assert not stuck, 'a finalizer waits for a lock, or a frame is lost'
    gc.collect()
    pool.collect()
    assert holders(pool) == {} and pool.statistics().states == {SlotState.FREE: 4}
    assert pool.statistics().abandoned == 4 * (TURNS + TURNS * 3 // 4)


def exit_status_of_child(child: int) -> int:
    """Its exit status; a child that hangs is killed."""
    deadline = time.monotonic() + 60.0
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.002)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return -1
    return os.waitstatus_to_exitcode(ended[1])


def test_a_forked_child_owns_no_frame(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool = make_pool(slots=2)
    frame, forgotten = make_frame(pool, sequence=5), make_frame(pool)
    with frame.map() as planes:
        view = planes[0]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert frame.released and 'released' in repr(frame)
            for use in (frame.keep, lambda: frame.deliver('npu'), lambda: frame.map().__enter__()):
                with pytest.raises(
                    FrameReleasedError,
                    match=r'^frame 5 belongs to the parent process, a forked child owns no leases',
                ):
                    use()
            with frame:
                pass
            frame.release()
            frame.release()
            abandoned: list[Lease] = []
            setattr(pool, 'abandon', abandoned.append)  # noqa: B010
            del forgotten, view
            gc.collect()
            assert abandoned == []
            status = 0
        finally:
            os._exit(status)
    assert exit_status_of_child(child) == 0, 'the child failed or hung'
    assert holders(pool) == {'camera': 2} and not frame.released
    del view
    frame.release()
    forgotten.release()
    assert holders(pool) == {}
