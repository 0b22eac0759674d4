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

"""Callbacks of subscriptions beside others on the same executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import gc
import threading
import time
from typing import Any
import weakref

from link_ros import Ros
import pytest
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.task import Future
from waiting import eventually

from zc_perception.frame import Frame
from zc_perception.link.endpoints.frame_subscription import FrameSubscription
from zc_perception.link.rclpy_compat import wake_up
from zc_perception.memory.pool import BufferPool


@pytest.fixture
def camera(
    ros: Ros, make_pool: Callable[..., BufferPool], make_frame: Callable[..., Frame]
) -> Iterator[None]:
    """Publish about 200 frames a second in this process."""
    pool, publisher, stop = (
        make_pool(slots=8),
        ros.publisher(ros.node('camera'), qos=QoSProfile(depth=1)),
        threading.Event(),
    )

    def run() -> None:
        sequence = 0
        while not stop.wait(0.005):
            sequence += 1
            with make_frame(pool, sequence=sequence, stamp_ns=sequence) as frame:
                publisher.publish(frame)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    stop.set()
    thread.join(60.0)


@pytest.mark.usefixtures('camera')
@pytest.mark.parametrize('asynchronous', [False, True])
def test_a_callback_that_is_slower_than_the_camera_leaves_the_executor_to_others_too(
    ros: Ros, asynchronous: bool
) -> None:
    node, seen, turns = ros.node('slow'), [], []

    def slow(frame: Frame) -> None:
        seen.append(frame.data.sequence)
        time.sleep(0.02)

    async def slow_coroutine(frame: Frame) -> None:
        slow(frame)

    subscription = FrameSubscription(node, 'image', slow_coroutine if asynchronous else slow)
    node.create_timer(0.01, lambda: turns.append(len(seen)))
    assert eventually(lambda: len(turns) > 20 and turns[-1] > 5), (seen, turns)
    subscription.destroy()


@pytest.mark.usefixtures('camera')
def test_a_coroutine_goes_on_when_what_it_awaits_is_there_though_nothing_else_wakes_the_executor(
    ros: Ros,
) -> None:
    seen: list[int] = []
    awaited: list[Any] = []

    async def on_frame(frame: Frame) -> None:
        future: Any = Future()
        awaited.append(future)
        await future
        seen.append(frame.data.sequence)

    subscription = FrameSubscription(ros.node('patient'), 'image', on_frame)
    for count in range(3):
        assert eventually(lambda count=count: len(awaited) > count)
        time.sleep(0.1)  # the executor is at rest
        awaited[-1].set_result(None)
        assert eventually(lambda count=count: len(seen) > count), 'within half a second or so'
    assert seen == sorted(set(seen))
    subscription.destroy()
    for future in awaited:
        future.set_result(None)


def test_a_coroutine_whose_node_is_destroyed_goes_on_to_its_end_and_gives_its_frame_back(
    ros: Ros, make_pool: Callable[..., BufferPool], make_frame: Callable[..., Frame]
) -> None:
    pool, publisher = (
        make_pool(slots=4),
        ros.publisher(ros.node('camera'), qos=QoSProfile(depth=1)),
    )
    seen: list[bool] = []
    awaited: list[Any] = []

    async def on_frame(frame: Frame) -> None:
        awaited.append(Future())
        await awaited[-1]
        seen.append(frame.released)

    node = Node('patient', context=ros.context)
    ros.executor.add_node(node)
    queue = weakref.ref(FrameSubscription(node, 'image', on_frame).queue)
    with make_frame(pool) as frame:
        publisher.publish(frame)
    assert eventually(lambda: awaited)
    ros.executor.remove_node(node)
    node.destroy_node()
    del node
    assert pool.statistics().holders == {'patient': 1}
    awaited[0].set_result(None)

    def wake() -> None:
        # As another node's timer does: an executor goes on with a coroutine when it is woken.
        wake_up(ros.executor)
        time.sleep(0.02)

    assert eventually(lambda: seen, pause=wake) and seen == [False]
    assert eventually(lambda: not pool.statistics().holders)
    ros.node('another')  # until then the executor refers to what it called last
    assert eventually(lambda: gc.collect() >= 0 and queue() is None)
