"""A queue whose owner takes nothing for a while: nothing stays in it, and nothing is lost afterwards."""

from __future__ import annotations

import select
from collections.abc import Callable

import pytest

from zc_perception.frame import Frame
from zc_perception.frame_queue import FrameQueue, KeepLastQueue
from zc_perception.memory.pool import BufferPool

pytestmark = pytest.mark.usefixtures('no_fd_leak')


def test_what_is_queued_and_what_comes_is_released_until_it_accepts_again(
    make_pool: Callable[..., BufferPool], make_frame: Callable[..., Frame]
) -> None:
    pool, queue = make_pool(slots=3), FrameQueue(2)
    queue.put(make_frame(pool, sequence=0))
    queue.put(make_frame(pool, sequence=1))
    queue.refuse()
    queue.refuse()
    assert len(queue) == 0 and pool.statistics().holders == {}
    queue.put(make_frame(pool, sequence=2))
    assert len(queue) == 0 and pool.statistics().holders == {} and queue.dropped == 0, 'nobody wanted it'
    assert queue.get() is None
    queue.accept()
    queue.put(make_frame(pool, sequence=3))
    frame = queue.get()
    assert frame is not None and frame.data.sequence == 3
    frame.release()
    queue.close()


def test_its_descriptor_is_not_readable_while_it_refuses() -> None:
    queue: KeepLastQueue[int] = KeepLastQueue(2, lambda entry: None)
    number = queue.fileno()

    def readable() -> bool:
        return bool(select.select([number], [], [], 0)[0])

    queue.put(1)
    assert readable()
    queue.refuse()
    queue.put(2)
    assert not readable() and queue.get(0.01) is None
    queue.accept()
    queue.put(3)
    assert readable() and queue.get() == 3 and not readable()
    queue.close()


def test_a_closed_queue_does_not_accept_again() -> None:
    released: list[int] = []
    queue: KeepLastQueue[int] = KeepLastQueue(2, released.append)
    queue.close()
    queue.accept()
    queue.put(1)
    assert released == [1] and len(queue) == 0 and queue.closed
