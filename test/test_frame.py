"""Frames: leases, sharing, delivery. What is seen through map() is in test_frame_map.py."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from zc_perception.errors import FrameReleasedError, StaleFrameError
from zc_perception.frame import Frame, Header
from zc_perception.memory.fence import EventFence
from zc_perception.memory.pool import BufferPool, SlotState
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]


def holders(pool: BufferPool) -> dict[str, int]:
    return pool.statistics().holders


def test_a_frame_is_its_producer_s_lease_with_what_is_known_of_the_picture(make_pool: MakePool) -> None:
    pool = make_pool(64, 48, slots=1)
    slot = pool.acquire()
    assert slot is not None
    frame = Frame.publish_slot(
        pool, slot, header=Header(123, 'lens'), colorimetry=BT601_LIMITED, sequence=7, captured_ns=55, capture_cost_ns=5
    )
    data = frame.data
    assert holders(pool) == {'camera': 1}
    assert (frame.header, data.sequence, data.captured_ns, data.capture_cost_ns) == (Header(123, 'lens'), 7, 55, 5)
    assert (data.width, data.height, data.fourcc, data.modifier) == (64, 48, NV12, LINEAR)
    assert (data.planes, data.buffers) == (pool.layout.planes, slot.buffers)
    assert (data.buffer_uid, data.generation) == (slot.buffer_uid, slot.generation)
    frame.release()
    assert pool.statistics().states == {SlotState.FREE: 1}


def test_a_producer_with_a_quota_on_itself_is_told(make_pool: MakePool) -> None:
    pool = make_pool(slots=1)
    pool.set_quota('camera', 0)
    slot = pool.acquire()
    assert slot is not None
    with pytest.raises(StaleFrameError, match='camera has a quota on itself'):
        Frame.publish_slot(pool, slot, header=Header(0, ''), colorimetry=BT601_LIMITED, sequence=0, captured_ns=0)
    pool.discard(slot)


def test_every_delivery_is_a_frame_of_its_own_over_the_same_data(make_pool: MakePool, make_frame: MakeFrame) -> None:
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


def test_a_delivery_above_the_quota_is_none_and_leaves_the_frame_alone(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool = make_pool(slots=1)
    pool.set_quota('slow', 0)
    frame = make_frame(pool)
    assert frame.deliver('slow') is None
    assert holders(pool) == {'camera': 1}


def test_the_first_share_of_a_lent_frame_takes_it_over(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool = make_pool(slots=1)
    frame = make_frame(pool)
    frame.lend()
    assert frame.borrowed
    kept = frame.share()
    assert kept is frame and not frame.borrowed
    assert holders(pool) == {'camera': 1}
    again = frame.share()
    assert again is not frame and holders(pool) == {'camera': 2}
    again.release()
    kept.release()
    assert holders(pool) == {}


def test_sharing_one_s_own_frame_gives_another_lease(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool = make_pool(slots=1)
    frame = make_frame(pool)
    other = frame.share()
    frame.release()
    assert other is not frame and not other.released
    other.release()
    assert holders(pool) == {}


def test_sharing_above_the_quota_says_what_to_do(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool = make_pool(slots=1)
    pool.set_quota('npu', 1)
    delivery = make_frame(pool).deliver('npu')
    assert delivery is not None
    with pytest.raises(StaleFrameError, match='npu is at its quota of leases; release one first'):
        delivery.share()
    delivery.release()


@pytest.mark.parametrize(
    'use',
    [lambda f: f.release(), lambda f: f.share(), lambda f: f.deliver('npu'), lambda f: f.map().__enter__()],
    ids=['release', 'share', 'deliver', 'map'],
)
def test_use_after_release_raises(make_frame: MakeFrame, use: Callable[[Frame], object]) -> None:
    frame = make_frame(sequence=3)
    frame.release()
    with pytest.raises(FrameReleasedError, match=r'frame 3 was released: call frame\.share\(\)'):
        use(frame)
    assert frame.released
    assert frame.data.width == 64, 'what is known of it stays known'


def test_a_block_releases_even_when_its_body_raises_or_has_released(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool = make_pool(slots=2)
    with pytest.raises(KeyError), make_frame(pool):
        raise KeyError
    with make_frame(pool) as frame:
        frame.release()
    assert holders(pool) == {}


def test_a_release_fence_keeps_the_slot_from_being_reused(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool, fence = make_pool(slots=1), EventFence()
    make_frame(pool).release(fence)
    assert pool.acquire() is None
    fence.signal()
    slot = pool.acquire()
    assert slot is not None
    pool.discard(slot)


def test_a_description_says_who_holds_it(make_frame: MakeFrame) -> None:
    frame = make_frame(sequence=9)
    assert repr(frame) == f'Frame(9, {frame.data.layout.describe()}, held by camera)'
    frame.release()
    assert repr(frame).endswith(', released)')


def test_a_forgotten_frame_s_slot_is_not_reused_under_a_living_view(make_pool: MakePool, make_frame: MakeFrame) -> None:
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
