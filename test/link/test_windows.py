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
What a subscription holds at a time: no more than it asked for, whichever way frames come.

It goes on whatever a callback does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from pathlib import Path
import threading
import time
from typing import Any

from link_ros import Ros
from one_camera import Camera, number_of, publishing
import pytest
import rclpy
from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from waiting import eventually

from zc_perception.frame import Frame
from zc_perception.link.endpoints.frame_subscription import FrameSubscription
from zc_perception.link.rclpy_compat import create_reader, InvalidHandle


@pytest.fixture
def subscribe(here: Ros) -> Iterator[Callable[..., FrameSubscription]]:
    subscriptions = []

    def make(
        name: str, callback: Callable[[Frame], Any] | None = None, **options: Any
    ) -> FrameSubscription:
        subscriptions.append(FrameSubscription(here.node(name), 'image', callback, **options))
        return subscriptions[-1]

    yield make
    for subscription in subscriptions:
        subscription.destroy()


Cameras = Callable[..., Camera]
Subscribe = Callable[..., FrameSubscription]


def test_no_more_is_held_than_was_asked_for_and_it_goes_on_with_the_newest(
    camera: Cameras, subscribe: Subscribe
) -> None:
    source, kept = camera(), []
    greedy = subscribe('greedy', lambda frame: kept.append(frame.keep()), held=2)
    assert eventually(lambda: source.met(greedy))
    assert publishing(source, lambda: len(kept) == 2)
    for _ in range(20):
        source.publish()
        time.sleep(0.005)
    assert len(kept) == 2 and source.missed == 0
    newest = source.number
    kept.pop(0).release()
    assert eventually(lambda: len(kept) == 2), 'on its own: no frame came since'
    assert number_of(kept[-1]) == newest
    for frame in kept:
        frame.release()


def test_who_takes_frames_from_the_queue_gets_no_more_either(
    camera: Cameras, subscribe: Subscribe
) -> None:
    source, kept = camera(), []
    greedy = subscribe('greedy', held=2)
    assert publishing(source, lambda: source.met(greedy))

    def take() -> int:
        frame = greedy.queue.get()
        if frame is not None:
            kept.append(frame)
        return len(kept)

    assert publishing(source, lambda: take() == 2)
    for _ in range(10):
        source.publish()
        time.sleep(0.005)
        assert greedy.queue.get() is None
    began = time.monotonic()
    threading.Timer(0.2, kept.pop(0).release).start()
    frame = greedy.queue.get(120.0)
    assert frame is not None and number_of(frame) == source.number, 'who waits is woken'
    assert 0.05 < time.monotonic() - began < 60.0
    for each in (*kept, frame):
        each.release()


def test_a_full_window_is_told_with_the_frames_and_how_long(
    camera: Cameras, subscribe: Subscribe, capfd: pytest.CaptureFixture[str]
) -> None:
    source, kept, said = camera(), [], ''
    greedy = subscribe('greedy', lambda frame: kept.append(frame.keep()), held=1)
    assert eventually(lambda: source.met(greedy))
    assert publishing(source, lambda: kept)

    def told() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return 'because this consumer holds all 1 that it may' in said

    assert publishing(source, told)
    line = next(line for line in said.splitlines() if 'holds all 1' in line)
    assert '[WARN]' in line and f'frame {kept[0].data.sequence} for' in line
    assert (
        greedy.statistics().full_s >= 1.0
        and greedy.statistics().in_hand[0][0] == kept[0].data.sequence
    )
    if source.way != 'ros_message':
        assert [(held, window) for _, held, window in source.peers()] == [(1, 1)]
    kept.pop().release()
    assert publishing(source, lambda: kept)
    assert greedy.statistics().full_s < 1.0
    kept.pop().release()


def test_a_callback_that_does_not_return_is_told_and_nobody_is_to_release_frames(
    here: Ros, camera: Cameras, subscribe: Subscribe, capfd: pytest.CaptureFixture[str]
) -> None:
    source, entered, done, said = camera(), threading.Event(), threading.Event(), ''

    def slow(frame: Frame) -> None:
        entered.set()
        done.wait(120.0)

    subscription = subscribe('slow', slow, held=1)
    assert eventually(lambda: source.met(subscription))

    def told() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return 'because the callback is too slow' in said

    try:
        assert publishing(source, entered.is_set) and publishing(source, told)
        found = subscription.statistics()
    finally:
        done.set()
    line = next(line for line in said.splitlines() if 'is too slow' in line)
    assert 'it has all 1 that this consumer may hold: frame ' in line and '[WARN]' in line
    assert line.endswith("; make it quicker, or lower the camera's framerate")
    assert found.full_s >= 1.0 and found.slow is not None and 'release' not in said


def test_a_callback_that_raises_with_views_of_the_pixels_alive(
    here: Ros, camera: Cameras, subscribe: Subscribe
) -> None:
    source, seen = camera(), []

    def careless(frame: Frame) -> None:
        with frame.map() as planes:
            luma = planes[0]
            seen.append(number_of(frame))
            if len(seen) == 1:
                raise ValueError(luma.shape)

    subscription = subscribe('careless', careless, held=1)
    assert eventually(lambda: source.met(subscription))

    def goes_on() -> bool:
        here.errors.clear()  # the program has caught it and goes on; its traceback is gone
        return len(seen) > 3

    assert publishing(source, goes_on), seen


def test_a_coroutine_is_awaited_one_frame_at_a_time(
    here: Ros, camera: Cameras, subscribe: Subscribe
) -> None:
    source, seen, running = camera(), [], []

    async def on_frame(frame: Frame) -> None:
        running.append(1)
        assert len(running) == 1
        future: Any = rclpy.task.Future(executor=here.executor)
        future.set_result(number_of(frame))
        seen.append(await future)
        assert not frame.released and frame.y.shape == (16, 32)
        running.pop()

    subscription = subscribe('coroutine', on_frame)
    assert eventually(lambda: source.met(subscription))
    assert publishing(source, lambda: len(seen) > 5)
    assert seen == sorted(seen) and here.errors == []
    if source.way != 'ros_message':
        assert eventually(lambda: all(held == 0 for _, held, _ in source.peers()))


@pytest.mark.parametrize('held', [1, 2], ids=['FrameSubscription', 'create_frame_subscription'])
def test_four_default_subscriptions_and_a_deep_one_share_a_default_pool(
    held: int, here: Ros, tmp_path: Path, subscribe: Subscribe
) -> None:
    source, seen = Camera(here, 'both', tmp_path), {}
    for number, depth in enumerate((10, 1, 1, 1)):
        subscribe(
            f'viewer{number}',
            lambda frame, number=number: seen.setdefault(number, []).append(number_of(frame)),
            depth=depth,
            held=held,
        )
    assert publishing(source, lambda: len(seen) == 4 or source.number > 500)
    windows = [(name, window) for name, _, window in source.peers()]
    assert len(windows) == 4 and source.pool.unpromised >= 0
    source.close()


def test_without_a_slot_left_frames_come_as_messages_and_the_log_says_what_to_change(
    here: Ros, tmp_path: Path, subscribe: Subscribe, capfd: pytest.CaptureFixture[str]
) -> None:
    source, seen, said = Camera(here, 'in_process', tmp_path, slots=4), [], ''
    first = subscribe('first', lambda frame: None)
    source.publish()
    second = subscribe('second', lambda frame: seen.append(number_of(frame)))
    assert publishing(source, lambda: len(seen) > 2), second.statistics()
    assert (first.statistics().rung, second.statistics().rung) == ('in_process', 'ros_message')

    def told() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return '0 of 4 slots are not promised to others' in said

    assert eventually(told)
    line = next(line for line in said.splitlines() if 'not promised' in line)
    assert '[WARN]' in line and "raise 'slots'" in line
    first.destroy()
    assert publishing(source, lambda: second.statistics().rung == 'in_process'), (
        'there is room again'
    )
    source.close()


@pytest.mark.parametrize('kind', [SingleThreadedExecutor, MultiThreadedExecutor])
def test_a_reader_may_be_destroyed_beside_a_plain_spin(free_domain: int, kind: type[Any]) -> None:
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=free_domain)
    node = Node('reader', context=context)
    node.create_timer(0.001, lambda: None)
    for number in range(20):
        node.create_subscription(Image, f'other{number}', lambda message: None, 1)
    executor = kind(context=context)
    errors: list[Exception] = []
    done = threading.Event()
    executor.add_node(node)

    def spin() -> None:
        try:
            while not done.is_set():
                executor.spin_once(0.1)
        except InvalidHandle as error:
            errors.append(error)

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    end = time.monotonic() + 3.0
    with quick_switches():
        while time.monotonic() < end and not errors:
            reader = create_reader(node, Image, 'image', lambda message: None, QoSProfile(depth=1))
            time.sleep(0.0005)
            node.destroy_subscription(reader)
    # and not by shutdown(): an executor of rclpy that is just about to wait may wait for ever then
    done.set()
    thread.join(60.0)
    assert errors == [] and not thread.is_alive()
    executor.shutdown()
    node.destroy_node()
    context.try_shutdown()


@contextlib.contextmanager
def quick_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    import sys

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
