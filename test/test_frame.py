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

"""Frames: leases, sharing, delivery, and their pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
import copy
import gc
import importlib
import inspect
import os
import pickle
import threading
from typing import Any
from unittest.mock import call, Mock
import weakref

import cv2
from frame_kit import next_frame, nv12
from long_form import LONG
import numpy as np
from numpy.typing import NDArray
from pixel.format_samples import plane_bytes, PLANES
from processes import passes_in_child
import pytest

from zc_perception.camera.v4l2.kind import QUEUED
from zc_perception.errors import (
    AcceleratorError,
    ConfigError,
    FormatError,
    FrameReleasedError,
    LayoutError,
    StaleFrameError,
)
from zc_perception.frame import Frame, Header
from zc_perception.link.image_conversion import ImageToFrame
from zc_perception.mapping import map_buffers
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.fence import EventFence
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import FRAME_COPIES
from zc_perception.memory.pool import BufferPool, DEFAULT_SLOTS, Slot, SlotState
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.layout import compute_layout, ImageLayout, PlaneLayout
from zc_perception.pixel.modifier import LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]


@pytest.fixture
def pool(make_pool: MakePool) -> BufferPool:
    return make_pool(slots=1)


@pytest.fixture
def frame(pool: BufferPool, make_frame: MakeFrame) -> Frame:
    return make_frame(pool)


def holders(pool: BufferPool) -> dict[str, int]:
    pool.collect()
    return dict(pool.statistics().holders)


def test_a_frame_is_its_producer_s_lease_with_what_is_known_of_the_picture(
    make_pool: MakePool,
) -> None:
    pool = make_pool(64, 48, slots=1)
    slot = pool.acquire()
    # A slot keeps its layout even if the pool makes other layouts by then.
    slot.layout = compute_layout(NV12, 32, 24)
    frame = Frame.publish_slot(
        pool, slot, header=Header(123, 'lens'), colorimetry=BT601_LIMITED, sequence=7,
        captured_ns=55, capture_cost_ns=5,
    )  # fmt: skip
    data = frame.data
    assert holders(pool) == {'camera': 1}
    assert (frame.header, data.sequence) == (Header(123, 'lens'), 7)
    assert (data.captured_ns, data.capture_cost_ns) == (55, 5)
    assert (data.width, data.height, data.fourcc, data.modifier) == (32, 24, NV12, LINEAR)
    assert (data.planes, data.buffers) == (slot.layout.planes, slot.buffers)
    assert (data.buffer_uid, data.generation) == (slot.buffer_uid, slot.generation)
    frame.release()
    assert pool.statistics().states == {SlotState.FREE: 1}


ONE_LEASE = (
    r"^frame 4 can't be copied or pickled, because it has one lease: "
    r'call frame\.keep\(\) for '
)
RIGHT_CALL = r'frame 4 .*frame\.copy\(\)'


@pytest.mark.parametrize(
    ('do', 'told'),
    [
        *((do, f'{ONE_LEASE}another lease') for do in (copy.deepcopy, pickle.dumps)),
        *((do, RIGHT_CALL) for do in (np.asarray, lambda frame: np.mean(frame), copy.copy)),
    ],
)
def test_a_frame_is_one_lease_no_array_and_not_copied(
    pool: BufferPool, make_frame: MakeFrame, do: Callable[[Frame], object], told: str
) -> None:
    frame = make_frame(pool, sequence=4)
    with pytest.raises(TypeError, match=told):
        do(frame)
    frame.release()
    assert holders(pool) == {}


def test_every_delivery_is_a_frame_of_its_own_over_the_same_data(
    pool: BufferPool, frame: Frame
) -> None:
    first, second = frame.deliver('npu'), frame.deliver('overlay')
    assert first.data is second.data is frame.data
    assert holders(pool) == {'camera': 1, 'npu': 1, 'overlay': 1}
    first.release()
    frame.release()
    assert not second.released
    with second.map() as planes:
        assert planes[0].shape == (48, 64)
    second.release()
    assert holders(pool) == {}


def test_the_first_share_of_a_lent_frame_takes_it_over(pool: BufferPool, frame: Frame) -> None:
    frame.lend()
    assert frame.borrowed
    assert frame.keep() is frame and not frame.borrowed
    assert holders(pool) == {'camera': 1}
    again = frame.keep()
    assert again is not frame
    assert holders(pool) == {'camera': 1}, 'it is the same frame, and counts once'
    again.release()
    frame.release()
    assert holders(pool) == {}


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
    pool: BufferPool, make_frame: MakeFrame
) -> None:

    def fail() -> None:
        with make_frame(pool) as frame, frame.map() as planes:
            view = planes[0]
            raise KeyError(view.shape)

    with pytest.raises(KeyError) as error:
        fail()
    assert holders(pool) == {'camera': 1}, 'the traceback still holds the view'
    del error
    gc.collect()
    assert holders(pool) == {} and pool.statistics().abandoned == 1


def test_a_frame_that_is_only_passed_on_is_never_mapped(
    pool: BufferPool, make_frame: MakeFrame
) -> None:
    fence = EventFence()
    for sequence in range(3):
        frame = make_frame(pool, sequence=sequence)
        delivery = frame.deliver('npu')
        shared = delivery.keep()
        frame.release()
        delivery.release()
        shared.release(fence if sequence == 2 else None)
    assert not any(buffer.mapped for buffer in pool.slots[0].buffers)
    fence.signal()
    pool.collect()


def test_a_forgotten_frame_s_slot_is_not_reused_under_a_living_view(
    pool: BufferPool, make_frame: MakeFrame
) -> None:
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


@pytest.fixture
def eager_collector() -> None:
    """Make the garbage collector run every few allocations; conftest.py undoes it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(7, 2, 2)


#: Turns of each thread; a multiple of 4.
TURNS = 80 if LONG else 20


@pytest.mark.usefixtures('eager_collector')
def test_frames_forgotten_in_cycles_by_many_threads_all_come_back(make_pool: MakePool) -> None:
    """Under allocation pressure, finalizers run in any thread that allocates."""
    pool, stop = make_pool(8, 4, slots=4), threading.Event()

    def forget(turn: int, slot: Slot, number: int) -> None:
        frame = next_frame(pool, turn, slot)
        other = frame.deliver(f'consumer {number}')
        cycle: list[Any] = [frame, other]
        if turn % 3 == 0:
            with frame.map() as planes:
                cycle.append(planes[0][1:])
        if turn % 4 == 0:
            other.release()
        cycle.append(cycle)

    def work(number: int) -> None:
        # A thread that waits for a slot must hold no frame: four of them would hold all slots.
        for turn in range(TURNS):
            while (slot := pool.acquire()) is None:
                gc.collect()
                if stop.is_set():
                    return
            forget(turn, slot, number)
            del slot

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    stuck = [thread for thread in threads if thread.is_alive()]
    stop.set()
    assert not stuck, 'a finalizer waits for a lock, or a frame is lost'
    gc.collect()
    assert holders(pool) == {} and pool.statistics().states == {SlotState.FREE: 4}
    assert pool.statistics().abandoned == 4 * (TURNS + TURNS * 3 // 4)


def test_a_forked_child_owns_no_frame(
    make_pool: MakePool, make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(slots=2)
    frame, forgotten = make_frame(pool, sequence=5), make_frame(pool)
    with frame.map() as planes:
        view = planes[0]

    def child() -> None:
        nonlocal forgotten, view
        assert frame.released and 'released' in repr(frame)
        parent_s = '^frame 5 belongs to the parent process; a forked child owns no leases'
        for use in (frame.keep, lambda: frame.deliver('npu'), lambda: frame.map().__enter__()):
            with pytest.raises(FrameReleasedError, match=parent_s):
                use()
        with frame:
            pass
        frame.release()
        frame.release()
        monkeypatch.setattr(pool, 'abandon', lambda lease: os._exit(2))
        del forgotten, view
        gc.collect()

    assert passes_in_child(child)
    assert holders(pool) == {'camera': 2} and not frame.released
    del view
    frame.release()
    forgotten.release()
    assert holders(pool) == {}


# Frame.map(): right pixels, DMA_BUF_IOCTL_SYNC at both ends, no release under a living view.
FrameOver = Callable[..., Frame]


class CountingBuffer(DmaBuf):
    """Records the SYNC calls instead of making them."""

    def __init__(self, size: int) -> None:
        super().__init__(SealedMemfd().allocate(size).dup(), BufferKind.DMABUF, 'counting')
        self.calls: list[tuple[str, CpuAccess]] = []

    def begin_cpu_access(self, access: CpuAccess, timeout_s: float = 1.0) -> None:
        self.calls.append(('begin', access))

    def end_cpu_access(self, access: CpuAccess) -> None:
        self.calls.append(('end', access))


@pytest.fixture
def frame_over() -> Iterator[FrameOver]:
    with ExitStack() as pools:

        def make(layout: ImageLayout, *buffers: DmaBuf) -> Frame:
            pool = BufferPool(layout, lambda: buffers, 1, name='camera')
            pools.callback(pool.close)
            return next_frame(pool)

        yield make


def test_planes_are_read_only_unless_asked_and_end_with_the_block(make_frame: MakeFrame) -> None:
    frame = make_frame()
    with frame.map() as planes:
        assert len(planes[:1]) == 1 and not any(plane.flags.writeable for plane in planes)
    with pytest.raises(FrameReleasedError, match="use the planes inside 'with frame"):
        planes[0]
    with frame.map(write=True) as planes:
        planes[0][0, 0], planes[1][0, 0, 1] = 5, 6
    with frame.map() as planes:
        assert (planes[0][0, 0], planes[1][0, 0, 1]) == (5, 6)


@pytest.mark.parametrize('buffer_per_plane', [False, True])
@pytest.mark.parametrize('name', sorted(PLANES))
def test_every_format_s_samples_are_those_in_memory(
    make_pool: MakePool, make_frame: MakeFrame, name: str, buffer_per_plane: bool
) -> None:
    """Compare with each sample's address by the kernel's description of the format."""
    width, height = 8, 4
    odd = {'stride_align': 11, 'offset_align': 7, 'height_align': 3}
    odd['buffer_per_plane'] = buffer_per_plane
    frame = make_frame(make_pool(width, height, slots=1, fourcc=fourcc_code(name), layout=odd))
    data, chance = frame.data, np.random.default_rng(1)
    for buffer in data.buffers:
        buffer.mapping()[:] = chance.bytes(buffer.size)
    with frame.map() as planes:
        assert len(planes) == len(PLANES[name])
        for index, (sample, samples, across, down) in enumerate(PLANES[name]):
            memory = data.buffers[data.planes[index].buffer].mapping()
            rows = (height // down, width // across)
            assert planes[index].shape == (rows if samples == 1 else (*rows, samples))
            assert planes[index].dtype == np.dtype('<u2' if sample == 2 else 'u1')
            assert planes[index].flags.aligned
            assert planes[index].tobytes() == bytes(
                memory[address] for address in plane_bytes(name, index, data.layout)
            )


def test_tiled_memory_has_no_rows_to_look_at(frame_over: FrameOver) -> None:
    planes = (PlaneLayout(0, 0, 64, 4096), PlaneLayout(0, 4096, 64, 2048))
    layout = ImageLayout(64, 48, NV12, 1 << 56 | 1, planes)
    frame = frame_over(layout, SealedMemfd().allocate(8192))
    no_rows = r'^NV12 with modifier (INVALID|INTEL).* has no rows that a CPU could read'
    with pytest.raises(FormatError, match=no_rows), frame.map():
        pytest.fail('mapped')
    assert not frame.data.buffers[0].mapped
    frame.release()


@pytest.mark.parametrize(
    ('write', 'access', 'failing'),
    [(False, CpuAccess.READ, True), (True, CpuAccess.READ | CpuAccess.WRITE, False)],
)
def test_every_buffer_has_sync_at_both_ends_also_when_the_body_raises(
    frame_over: FrameOver, write: bool, access: CpuAccess, failing: bool
) -> None:
    layout = nv12(64, 48, buffer_per_plane=True)
    buffers = [CountingBuffer(layout.buffer_size(i)) for i in range(2)]
    frame = frame_over(layout, *buffers)
    # Each mapping lives on after its block; otherwise its finalizer would end the access, too.
    for mapping in (frame.map(write=write), map_buffers(layout, tuple(buffers), access, [])):
        with suppress(KeyError), mapping:
            assert [b.calls for b in buffers] == [[('begin', access)]] * 2
            if failing:
                raise KeyError
        assert [b.calls for b in buffers] == [[('begin', access), ('end', access)]] * 2
        for buffer in buffers:
            buffer.calls.clear()
    frame.release()


def test_pixels_are_seen_only_once_the_acquire_fence_has_signalled(
    make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = EventFence()
    frame, wait = make_frame(acquire_fence=fence), fence.wait
    # The block waits for 1 s, in which the other thread may not run.
    monkeypatch.setattr(fence, 'wait', lambda timeout_s: wait(60.0 * timeout_s))
    signaller = threading.Timer(0.03, fence.signal)
    signaller.start()
    with frame.map():
        assert wait(0.0)
    signaller.join()
    fence.close()


@pytest.mark.parametrize(
    ('error', 'words'),
    [
        (RuntimeError('capture failed'), 'capture failed'),
        (None, 'frame 4: its acquire fence did not signal within 1 s'),
    ],
)
def test_an_acquire_fence_that_fails_or_never_signals_is_an_error_after_a_bounded_wait(
    make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch, error: Exception | None, words: str
) -> None:
    fence = EventFence()
    frame = make_frame(sequence=4, acquire_fence=fence)
    if error is None:
        wait = Mock(return_value=False)
        monkeypatch.setattr(fence, 'wait', wait)
    else:
        fence.signal(error)
    with pytest.raises(AcceleratorError, match=words), frame.map():
        pytest.fail('mapped')
    assert error or wait.mock_calls == [call(1.0)]
    assert not frame.data.buffers[0].mapped
    fence.close()


KEEPERS: dict[str, Callable[[NDArray[Any]], object]] = {
    'another shape': lambda plane: plane[:, ::2].T,
    'another type': lambda plane: plane.view(np.int8),
    'a memoryview': lambda plane: plane.data,
    'a bytes iterator': lambda plane: plane.flat,
}


@pytest.mark.parametrize('keep', KEEPERS.values(), ids=KEEPERS)
def test_whatever_still_sees_the_pixels_stops_the_release(
    make_pool: MakePool, make_frame: MakeFrame, keep: Callable[[NDArray[Any]], object]
) -> None:
    pool = make_pool(slots=1, layout={'buffer_per_plane': True})
    frame = make_frame(pool)
    with frame.map() as planes:
        kept = keep(planes[1])
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
    """The block is still waiting for the acquire fence."""
    fence, refused = EventFence(), []

    def wait(timeout_s: float) -> bool:
        with ThreadPoolExecutor() as other:
            refused.append(type(other.submit(frame.release).exception()))
        return True

    frame = make_frame(acquire_fence=fence)
    monkeypatch.setattr(fence, 'wait', wait)
    monkeypatch.setattr(fence, 'check', lambda: None)
    with frame.map() as planes:
        assert planes[0].shape == (48, 64)
    assert refused == [BufferError] and not frame.released
    frame.release()
    fence.close()


def test_a_thread_that_maps_never_sees_a_slot_that_was_released(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    """Mapping and releasing race: the block is refused, or the slot stays until the block ends."""
    pool, wrong = make_pool(4, 4, slots=1), []

    def look(frame: Frame, start: threading.Barrier) -> None:
        start.wait()
        with suppress(FrameReleasedError), frame.map():
            slot = pool.acquire()
            if slot is not None:
                wrong.append(frame.data.generation)
                pool.discard(slot)

    for sequence in range(300):
        frame, start = make_frame(pool, sequence=sequence), threading.Barrier(2)
        thread = threading.Thread(target=look, args=(frame, start))
        thread.start()
        start.wait()
        try:
            frame.release()
        except BufferError:
            thread.join()
            frame.release()
        thread.join()
    assert wrong == []


def test_a_revoked_lease_maps_nothing_even_before_its_slot_is_used_again(
    pool: BufferPool, make_frame: MakeFrame
) -> None:
    with make_frame(pool, sequence=6) as frame:
        delivery = frame.deliver('viewer')
    assert pool.revoke('viewer') == 1
    for write in (False, True):
        revoked = pytest.raises(StaleFrameError, match='frame 6: the lease of viewer was revoked')
        with revoked, delivery.map(write=write):
            pytest.fail('mapped')
    with pytest.raises(StaleFrameError):
        delivery.release()


def test_with_a_fence_a_frame_can_be_released_while_the_job_still_maps_it(
    pool: BufferPool, make_frame: MakeFrame
) -> None:
    """A pipeline gives up on a slow job like this: the fence keeps the slot until the job ends."""
    fence = EventFence()
    frame = make_frame(pool, fill=lambda luma, chroma: luma.fill(8))
    with frame.map() as planes:
        frame.release(fence)
        assert pool.acquire() is None
        assert (planes[0] == 8).all()
    fence.signal()
    assert pool.acquire() is not None


def test_encodings_have_the_names_of_sensor_msgs(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    names = {'NV21': 'nv21', 'YUYV': 'yuyv', 'RG24': 'bgr8', 'R8  ': 'mono8'}
    for name, encoding in names.items():
        assert make_frame(make_pool(fourcc=fourcc_code(name))).encoding == encoding


def test_without_ros_a_frame_has_no_messages_and_says_what_to_use(
    make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Frame, '_messages', None)
    for ask in (lambda frame: frame.stamp, Frame.header_msg):
        with pytest.raises(ConfigError, match=r'use frame\.header\.stamp_ns'):
            ask(make_frame())


def test_planes_are_the_buffer_itself_and_stay_for_the_frame_s_time(
    pool: BufferPool, frame: Frame
) -> None:
    planes = frame.planes()
    memory = np.frombuffer(frame.data.buffers[0].mapping(), np.uint8)
    memory[0], memory[64 * 48 + 1] = 77, 99
    assert [plane.shape for plane in planes] == [(48, 64), (24, 32, 2)]
    assert planes[0][0, 0] == 77 and frame.y[0, 0] == 77 and frame.uv[0, 0, 1] == 99
    assert not any(plane.flags.writeable for plane in (*planes, frame.y, frame.uv))
    assert np.shares_memory(frame.y, planes[0]) and np.shares_memory(planes[0], memory)
    del planes, memory
    frame.release()
    assert holders(pool) == {}
    assert frame.released and frame.data.width == 64, 'what is known of it stays known'
    for ask in (
        *(Frame.planes, Frame.bgr, Frame.copy, Frame.keep, Frame.release),
        *(lambda f: f.y, lambda f: f.uv, lambda f: f.fds),
        *(lambda f: f.deliver('npu'), lambda f: f.map().__enter__()),
    ):
        released = r'frame 0 was released: call frame\.keep\(\)'
        with pytest.raises(FrameReleasedError, match=released):
            ask(frame)


def test_an_array_that_is_kept_keeps_the_release_away_and_never_sees_a_later_frame(
    pool: BufferPool, make_frame: MakeFrame
) -> None:
    frame = make_frame(pool, fill=lambda luma, chroma: luma.fill(50))
    kept = frame.y[1:3]
    with pytest.raises(BufferError, match='a NumPy view of its pixels is still alive'):
        frame.release()
    assert not frame.released and frame.y[0, 0] == 50, "the frame is still its owner's"
    frame.release_when_unseen()
    assert frame.released and pool.acquire() is None and (kept == 50).all()
    del kept
    pool.collect()
    pool.discard(pool.acquire())
    assert pool.statistics().abandoned == 0


def test_a_frame_whose_planes_were_looked_at_ends_without_the_collector_of_cycles(
    pool: BufferPool, make_frame: MakeFrame
) -> None:
    gc.disable()
    try:
        frame = make_frame(pool)
        assert frame.y.shape == (48, 64) and len(frame.planes()) == 2
        del frame
        assert holders(pool) == {}
    finally:
        gc.enable()


# Older NumPy can't mark memory as read-only in a capsule, and refuses.
with_dlpack = pytest.mark.skipif(
    not hasattr(np, 'from_dlpack') or np.lib.NumpyVersion(np.__version__) < '2.1.0',
    reason="NumPy below 2.1 can't say that memory is read-only",
)


@with_dlpack
@pytest.mark.parametrize('kept', ['an array', 'a capsule'])
def test_by_dlpack_the_image_is_seen_where_it_lies_and_keeps_its_slot_alone(
    make_pool: MakePool, make_frame: MakeFrame, kept: str
) -> None:
    pool = make_pool(slots=2, layout={'stride_align': 256})
    frame = make_frame(pool, fill=lambda luma, chroma: (luma.fill(50), chroma.fill(60)))
    whole, luma = np.from_dlpack(frame), np.from_dlpack(frame.y)
    assert whole.shape == (72, 64) and whole.strides == (256, 1) and luma.shape == (48, 64)
    assert (whole[:48] == 50).all() and (whole[48:] == 60).all()
    assert np.shares_memory(whole, frame.y) and np.shares_memory(whole, frame.uv)
    assert np.shares_memory(luma, frame.y) and frame.__dlpack_device__() == (1, 0)
    assert not whole.flags.writeable and not luma.flags.writeable
    with pytest.raises(BufferError, match='readonly'):
        frame.__dlpack__()
    held: Any = whole if kept == 'an array' else frame.__dlpack__(max_version=(1, 0))
    del whole, luma
    frame.release_when_unseen()  # a link does this when its callback has returned
    other = make_frame(pool)
    assert pool.acquire() is None, 'the slot of what is kept, and that of the other frame'
    other.release()
    if kept == 'an array':
        assert (held[:48] == 50).all()
    del held
    assert holders(pool) == {}
    with pytest.raises(FrameReleasedError):
        np.from_dlpack(frame)


@with_dlpack
@pytest.mark.parametrize(
    ('name', 'layout'), [('YU12', {}), ('NV12', {'buffer_per_plane': True}), ('RG24', {})]
)
def test_by_dlpack_planes_that_are_no_one_array_are_taken_one_by_one(
    make_pool: MakePool, make_frame: MakeFrame, name: str, layout: dict[str, Any]
) -> None:
    frame = make_frame(make_pool(fourcc=fourcc_code(name), layout=layout))
    if len(frame.planes()) == 1:
        assert np.from_dlpack(frame).shape == frame.planes()[0].shape == (48, 64, 3)
        return
    with pytest.raises(BufferError, match=r'form one array; use them one by one, .*frame\.y'):
        np.from_dlpack(frame)
    for plane in frame.planes():
        assert np.shares_memory(np.from_dlpack(plane), plane)


def test_the_cpu_s_access_begins_once_and_ends_with_the_release(
    make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, calls = make_frame(), Mock()
    (buffer,) = frame.data.buffers
    monkeypatch.setattr('zc_perception.mapping._DMABUF', buffer.kind)
    monkeypatch.setattr(buffer, 'begin_cpu_access', calls.begin)
    monkeypatch.setattr(buffer, 'end_cpu_access', calls.end)
    assert frame.y.shape == frame.planes()[0].shape and frame.uv.shape == (24, 32, 2)
    begin, end = call.begin(CpuAccess.READ), call.end(CpuAccess.READ)
    assert calls.mock_calls == [begin]
    with frame.map():
        assert calls.mock_calls == [begin, begin], 'a block has its own'
    assert calls.mock_calls[2:] == [end]
    fence = EventFence()
    fence.signal()
    frame.release(fence)
    assert calls.mock_calls[3:] == [end]


def test_uv_has_u_first_whatever_the_format_has(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    for name, values in (('NV12', (10, 20)), ('NV21', (20, 10))):
        frame = make_frame(make_pool(fourcc=fourcc_code(name)))
        with frame.map(write=True) as planes:
            planes[1][:] = values
        assert (frame.uv == (10, 20)).all()
        assert np.shares_memory(frame.uv, frame.planes()[1])


@pytest.mark.parametrize(('name', 'there'), [('YU12', {'y'}), ('YUYV', set())])
def test_a_plane_that_a_format_lacks_is_told_with_what_to_use(
    make_pool: MakePool, make_frame: MakeFrame, name: str, there: set[str]
) -> None:
    frame = make_frame(make_pool(fourcc=fourcc_code(name)))
    for what in there:
        assert getattr(frame, what).shape == (48, 64)
    lacks = rf'^{name} has no plane of .*: frame\.planes\(\).*frame\.bgr\(\)'
    for what in {'y', 'uv'} - there:
        with pytest.raises(FormatError, match=lacks):
            getattr(frame, what)


def test_bgr_is_opencv_s_picture_and_is_booked(make_frame: MakeFrame) -> None:
    chance = np.random.default_rng(3)

    def fill(luma: Any, chroma: Any) -> None:
        luma[:] = chance.integers(16, 235, luma.shape)
        chroma[:] = chance.integers(16, 240, chroma.shape)

    frame, before = make_frame(fill=fill), FRAME_COPIES.count('bgr')
    wanted = cv2.cvtColorTwoPlane(frame.y.copy(), frame.uv.copy(), cv2.COLOR_YUV2BGR_NV12)
    first = frame.bgr()
    assert np.array_equal(first, wanted)
    out = np.zeros((48, 64, 3), np.uint8)
    assert frame.bgr(out) is out and np.array_equal(out, wanted) and frame.bgr() is not first
    assert FRAME_COPIES.count('bgr') == before + 3
    with pytest.raises(LayoutError, match=r'this conversion writes uint8 \(48, 64, 3\)'):
        frame.bgr(np.zeros((64, 48, 3), np.uint8))
    frame.release()
    assert np.array_equal(first, wanted), "it is the caller's"


def test_a_copy_is_the_caller_s_and_is_booked(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool = make_pool(slots=1, layout={'stride_align': 256})
    frame = make_frame(pool, fill=lambda luma, chroma: luma.fill(50))
    before = FRAME_COPIES.entries().get('copy')
    luma, chroma = frame.copy()
    frame.release()
    assert holders(pool) == {}
    with make_frame(pool, fill=lambda luma, chroma: luma.fill(90)):
        assert (luma == 50).all() and chroma.shape == (24, 32, 2)
        assert luma.flags.writeable and luma.flags.c_contiguous
    entry = FRAME_COPIES.entries()['copy']
    assert entry.bytes - (before.bytes if before else 0) == 64 * 48 * 3 // 2


def test_fds_are_those_of_each_plane_s_buffer(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool = make_pool(layout={'buffer_per_plane': True})
    frame = make_frame(pool, fill=lambda luma, chroma: chroma.fill(5))
    assert len(set(frame.fds)) == 2
    assert os.pread(frame.fds[1], 64, frame.data.planes[1].offset) == bytes([5]) * 64
    frame.release()


# Triple buffering is the default: one frame is filled, one is in transit, one is read.
def test_every_number_of_buffers_is_three_or_more_and_no_camera_can_have_less() -> None:
    for kind in (BufferPool, ImageToFrame):
        assert inspect.signature(kind).parameters['slots'].default >= DEFAULT_SLOTS == 3
    assert QUEUED >= 3, 'what a V4L2 camera asks for itself'
    node = importlib.import_module('zc_perception.nodes.capture').CaptureNode
    (slots,) = (spec for spec in node.SPECS if spec.name == 'slots')
    assert slots.default >= 3 and slots.convert(3) == 3
    with pytest.raises(ConfigError, match="parameter 'slots' is 2; it must be"):
        slots.convert(2)
