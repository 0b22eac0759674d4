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

"""FrameReader: iteration, asyncio, every way of spinning, and its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
import gc
import itertools
import os
from pathlib import Path
import subprocess
import sys
import threading
import time
from typing import Any
import weakref

from builtin_interfaces.msg import Time
from descriptors import open_descriptors
from link_ros import Camera, number_of, publishing, Ros, run_on
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CameraInfo
from std_msgs.msg import Header
from waiting import eventually, until

from zc_perception import create_camera_subscription, create_frame_subscription, FrameReader
from zc_perception.errors import ConfigError
from zc_perception.frame import Frame
from zc_perception.link.endpoints import executor_turns, frame_subscription
from zc_perception.link.endpoints.frame_subscription import FrameSubscription

Cameras = Callable[..., Camera]


@pytest.fixture
def flowing(camera: Cameras) -> Iterator[Camera]:
    source, done = camera(), threading.Event()

    def flow() -> None:
        while not done.wait(0.02):
            source.publish()

    thread = threading.Thread(target=flow)
    thread.start()
    yield source
    done.set()
    thread.join(60.0)


@pytest.fixture
def alone(here: Ros) -> Iterator[Node]:
    node = Node('reader', context=here.context)
    yield node
    node.destroy_node()


OURS = 'spinner', 'receiver', 'connector'


def own_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if any(kind in name for kind in OURS)]


def others(here: Ros) -> Counter[str]:
    """Count descriptors, without memfds: the camera's slots are mapped one by one."""
    # An idle executor keeps a reference to what it called last: make it call something else.
    run_on(here.executor, lambda: None)
    gc.collect()
    return Counter({kind: n for kind, n in open_descriptors().items() if 'memfd' not in kind})


def looked(frame: Frame) -> Frame:
    assert not frame.released and frame.y.shape == (16, 32)
    return frame


async def some_of(frames: FrameReader, count: int) -> list[Frame]:
    seen = []
    async for frame in frames:
        seen.append(looked(frame))
        if len(seen) == count:
            break
    return seen


@pytest.mark.parametrize(('asynchronous', 'spun'), [(False, True), (True, False)])
def test_each_step_has_the_next_frame_for_its_time(
    here: Ros, flowing: Camera, dds_sockets: None, asynchronous: bool, spun: bool
) -> None:
    before = None
    for life in range(3):
        if life == 1:
            before = others(here)
        node = Node(f'reader{life}', context=here.context)
        if spun:
            here.executor.add_node(node)
        with FrameReader(node, 'image') as frames:
            if asynchronous:
                seen = asyncio.run(some_of(frames, 15))
            else:
                seen = [looked(frame) for frame in itertools.islice(frames, 15)]
            assert [frame.released for frame in seen] == [True] * 14 + [False]
            assert eventually(lambda frames=frames: frames.statistics().rung == flowing.way), (
                frames.statistics()
            )
            assert ('spinner of' in str(own_threads())) is not spun
        assert seen[-1].released and own_threads() == []
        numbers = [number_of(frame) for frame in seen]
        assert numbers == sorted(set(numbers))
        if spun:
            here.executor.remove_node(node)
        node.destroy_node()
        # The queue's descriptors are closed with its last reference.
        del frames, node, seen
    assert before is not None
    until(lambda: not others(here) - before, lambda: others(here) - before)
    until(flowing.is_alone)


@pytest.mark.parametrize('way', ['in_process', 'shared_memory'])
def test_a_loop_that_was_left_keeps_its_frame_only_as_long_as_the_program_does(
    alone: Node, flowing: Camera
) -> None:
    frames = FrameReader(alone, 'image')
    frame = next(looked(frame) for frame in frames)
    frames.destroy()
    looked(frame)
    gc.disable()  # 'frames' is in a reference cycle
    try:
        del frame
        until(flowing.is_alone, flowing.peers)
    finally:
        gc.enable()
    assert flowing.pool.statistics().abandoned == 0, 'the reader owned the frame'


def test_the_thread_of_a_reader_ends_without_a_wait(
    alone: Node, flowing: Camera, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_turns, '_LOOK_S', 60.0)
    with FrameReader(alone, 'image') as frames:
        looked(next(frames))
        time.sleep(0.1)  # so that the executor waits
    assert own_threads() == []


def test_a_step_waits_for_its_frame(
    alone: Node, camera: Cameras, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The iterator must wait for a frame instead of polling."""
    source = camera()
    with FrameReader(alone, 'image') as frames:

        def step() -> Frame:
            return next(frames)

        first = threading.Thread(target=step)
        first.start()
        assert eventually(lambda: source.met(frames))
        assert eventually(lambda: source.publish() and (time.sleep(0.02) or not first.is_alive()))
        monkeypatch.setattr(frame_subscription, '_LOOK_S', 600.0)
        for _ in range(5):
            timer = threading.Timer(0.1, source.publish)
            timer.start()
            step()
            timer.join()


@pytest.mark.parametrize(
    ('how', 'asynchronous'), [('destroy', False), ('destroy_node', True), ('shutdown', False)]
)
def test_a_loop_that_waits_ends_with_the_reader_the_node_or_the_context(
    free_domain: int, how: str, asynchronous: bool
) -> None:
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=free_domain)
    node = Node('reader', context=context)
    frames = FrameReader(node, 'image')
    end = {
        'destroy': frames.destroy,
        'destroy_node': node.destroy_node,
        'shutdown': context.shutdown,
    }[how]
    began = time.monotonic()
    threading.Timer(0.5, end).start()

    async def loop() -> list[Frame]:
        return [frame async for frame in frames]

    assert (asyncio.run(loop()) if asynchronous else list(frames)) == []
    assert 0.4 < time.monotonic() - began < 60.0
    if how == 'shutdown':
        frames.destroy()
    assert eventually(lambda: own_threads() == []), own_threads()
    node.destroy_node()
    context.try_shutdown()


def test_the_node_may_be_destroyed_in_a_callback_that_the_reader_spins(here: Ros) -> None:
    node = Node('reader', context=here.context)
    frames = FrameReader(node, 'image')
    node.create_timer(0.3, node.destroy_node)
    assert list(frames) == []
    assert eventually(lambda: own_threads() == [])


def test_what_a_callback_of_the_node_raises_comes_out_of_the_loop(alone: Node) -> None:
    def fail() -> None:
        raise LookupError('in a timer')

    alone.create_timer(0.2, fail)
    with FrameReader(alone, 'image') as frames, pytest.raises(LookupError, match='in a timer'):
        next(frames)
    assert own_threads() == []


@pytest.mark.parametrize('way', ['in_process'])
def test_the_program_may_begin_and_end_to_spin_the_node_at_any_time(
    here: Ros, alone: Node, flowing: Camera
) -> None:
    ticks: list[str] = []
    alone.create_timer(0.02, lambda: ticks.append(threading.current_thread().name))
    mine, stop = SingleThreadedExecutor(context=here.context), threading.Event()

    def spin() -> None:
        while not stop.is_set():
            mine.spin_once(timeout_sec=0.1)

    with FrameReader(alone, 'image') as frames:

        def ticks_in(name: str) -> None:
            ticks.clear()
            for count, _ in enumerate(frames):
                if count > 10 and ticks and ticks[-1].startswith(name):
                    return
                assert count < 2000, ticks[-5:]

        ticks_in('spinner of')
        mine.add_node(alone)
        thread = threading.Thread(target=spin, name='mine')
        thread.start()
        ticks_in('mine')
        stop.set()
        thread.join(60.0)
        mine.remove_node(alone)
        ticks_in('spinner of')
    mine.shutdown()
    assert own_threads() == []


@pytest.mark.parametrize('ending', ['', 'frames.destroy(); node.destroy_node()'])
def test_a_program_that_ends_inside_a_loop_ends_well(ending: str, free_domain: int) -> None:
    code = f"""
import rclpy
from zc_perception import FrameReader
rclpy.init()
node = rclpy.create_node('reader')
frames = FrameReader(node, 'image')
node.create_timer(0.3, rclpy.shutdown)
for frame in frames:
    pass
{ending}
print('done')
"""
    done = subprocess.run(
        [sys.executable, '-c', code],
        env={**os.environ, 'ROS_DOMAIN_ID': str(free_domain)},
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    said = [
        line for line in done.stderr.splitlines() if 'rmw_fastrtps' not in line
    ]  # the tests' QoS profile causes this warning
    assert (done.returncode, done.stdout, said) == (0, 'done\n', [])


# create_frame_subscription(): its lifetime, the arguments that it rejects, and its headers.


@pytest.mark.parametrize('way', ['in_process', 'shared_memory'])
def test_it_lives_unreferenced_as_long_as_its_node_and_ends_with_it(
    here: Ros, camera: Cameras, dds_sockets: None
) -> None:
    source, seen = camera(), []
    for life in range(3):
        node = Node(f'viewer{life}', context=here.context)
        here.executor.add_node(node)
        weak = weakref.ref(
            create_frame_subscription(node, 'image', lambda frame: seen.append(number_of(frame)))
        )
        gc.collect()
        before = len(seen)
        assert publishing(source, lambda before=before: len(seen) > before + 3)
        here.executor.remove_node(node)
        node.destroy_node()
        subscription = weak()
        assert subscription is None or subscription.queue.closed
        del subscription, node
        assert own_threads() == []
    assert seen == sorted(set(seen))
    until(source.is_alone)


@pytest.mark.parametrize('way', ['in_process'])
def test_two_frames_with_messages_headers_may_be_held_by_default_and_more_if_asked_for(
    here: Ros, camera: Cameras
) -> None:
    source = camera(slots=16)
    for most, options in ((2, {}), (3, {'max_held': 3})):
        kept: list[Frame] = []
        node = here.node(f'viewer{most}')
        subscription = create_frame_subscription(
            node, 'image', lambda frame, kept=kept: kept.append(frame.keep()), **options
        )
        assert publishing(source, lambda kept=kept, most=most: len(kept) == most)
        stamp_ns = kept[0].header.stamp_ns
        assert kept[0].stamp == Time(sec=1, nanosec=stamp_ns % 10**9)
        assert kept[0].header_msg() == Header(stamp=kept[0].stamp, frame_id='')
        for _ in range(5):
            source.publish()
        assert len(kept) == most
        for frame in kept:
            frame.release()
        subscription.destroy()


def test_what_can_t_be_is_refused_by_name_and_leaves_nothing(here: Ros) -> None:
    node = here.node('viewer')
    before = len(list(node.subscriptions))
    for create, said, options in (
        (create_frame_subscription, 'may hold 0 frames never gets one: max_held', {'max_held': 0}),
        (create_camera_subscription, 'depth 0', {'depth': 0}),
        (create_frame_subscription, "'always' is not one of preferred", {'copy_free': 'always'}),
        (create_camera_subscription, 'in a loop with FrameReader', {'callback': None}),
        (create_frame_subscription, 'in a loop with FrameReader', {'callback': None}),
        (
            create_frame_subscription,
            'trusted_uids has 99999999999',
            {'trusted_uids': [99999999999]},
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            create(node, 'image', **{'callback': print, **options})
        assert len(list(node.subscriptions)) == before


# create_camera_subscription(): each frame comes with its camera_info, in order.


class Infos:
    def __init__(self, node: Node) -> None:
        self._publisher = node.create_publisher(CameraInfo, 'camera_info', QoSProfile(depth=50))

    def publish(self, number: int) -> None:
        info = CameraInfo(width=number)
        info.header.stamp.sec, info.header.stamp.nanosec = 1, number
        self._publisher.publish(info)

    @property
    def met(self) -> bool:
        return bool(self._publisher.get_subscription_count())


@pytest.fixture
def infos(here: Ros) -> Infos:
    return Infos(here.node('infos'))


Pairs = Callable[..., tuple[Camera, FrameSubscription, list[tuple[int, int]]]]


@pytest.fixture
def pairs(here: Ros, camera: Cameras, infos: Infos) -> Pairs:
    """Return a camera, a subscription that it and *infos* have met, and its numbers so far."""

    def make(
        callback: Callable[[Frame, CameraInfo], Any] | None = None,
    ) -> tuple[Camera, FrameSubscription, list[tuple[int, int]]]:
        source, seen = camera(), list[tuple[int, int]]()

        def note(frame: Frame, info: CameraInfo) -> None:
            seen.append((number_of(frame), info.width))

        made = create_camera_subscription(here.node('viewer'), 'image', callback or note)
        here.own(made)
        assert eventually(lambda: source.met(made) and infos.met), made.statistics()
        return source, made, seen

    return make


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeout, so that on a slow machine each message is in time for its frame."""
    monkeypatch.setattr(frame_subscription, '_PATIENCE_NS', 60_000_000_000)


def pairing(source: Camera, infos: Infos, condition: Callable[[], object]) -> bool:
    def publish() -> None:
        infos.publish(source.publish())
        time.sleep(0.01)

    return eventually(condition, pause=publish)


@pytest.mark.usefixtures('patient')
@pytest.mark.parametrize(
    ('way', 'first'), [('shared_memory', 'frame'), ('in_process', 'info'), ('ros_message', 'info')]
)
def test_a_frame_comes_with_the_message_of_its_stamp_whichever_is_first(
    infos: Infos, pairs: Pairs, first: str
) -> None:
    source, subscription, seen = pairs()
    for count in range(1, 31):
        if first == 'info':
            infos.publish(count)
            time.sleep(0.003)
        assert source.publish() == count
        if first == 'frame':
            time.sleep(0.003)
            infos.publish(count)
        assert eventually(lambda count=count: len(seen) == count), subscription.statistics()
    assert seen == [(number, number) for number in range(1, 31)]
    assert subscription.statistics().dropped == 0


@pytest.mark.parametrize('way', ['in_process'])
def test_a_coroutine_gets_pairs_one_at_a_time(infos: Infos, pairs: Pairs) -> None:
    seen, running = [], []

    async def on_pair(frame: Frame, info: CameraInfo) -> None:
        running.append(1)
        assert len(running) == 1 and not frame.released
        seen.append((number_of(frame), info.width))
        running.pop()

    source, *_ = pairs(on_pair)
    assert pairing(source, infos, lambda: len(seen) > 10)
    assert all(frame == info for frame, info in seen) and seen == sorted(set(seen))


@pytest.mark.parametrize('way', ['shared_memory'])
def test_frames_without_a_message_stop_nobody_and_are_said(
    infos: Infos, pairs: Pairs, logged: Callable[[], str]
) -> None:
    source, subscription, seen = pairs()
    why = "no camera_info with their stamps comes on '/camera_info', where nothing came so far"
    assert publishing(source, lambda: why in logged())
    assert seen == [] and source.missed == 0, 'the camera went on'
    told = subscription.statistics
    assert eventually(lambda: all(age_s < 2.0 for _, age_s in told().in_hand)), 'none for ever'
    assert 'because this consumer holds all' not in logged()
    assert subscription.statistics().dropped > 2

    assert pairing(source, infos, lambda: len(seen) > 10), subscription.statistics()
    assert all(frame == info for frame, info in seen) and seen == sorted(set(seen))


@pytest.mark.parametrize(
    ('topic', 'wanted'),
    [('front/image_raw', '/ns/front/camera_info'), ('image', '/left/camera_info')],
)
def test_the_topic_of_the_messages_is_beside_the_image_s(
    here: Ros, topic: str, wanted: str
) -> None:
    remap = ['--ros-args', '-r', 'image:=/left/color']
    node = Node('viewer', namespace='ns', context=here.context, cli_args=remap)
    here.executor.add_node(node)
    create_camera_subscription(node, topic, lambda frame, info: None)
    topics = dict(node.get_subscriber_names_and_types_by_node('viewer', '/ns'))
    assert topics[wanted] == ['sensor_msgs/msg/CameraInfo']
    here.executor.remove_node(node)
    node.destroy_node()


# A subscription holds no more frames at a time than it asked for, by any link.


@pytest.fixture
def subscribe(here: Ros) -> Callable[..., FrameSubscription]:
    def make(
        name: str,
        callback: Callable[[Frame], Any] | None = None,
        source: Camera | None = None,
        **options: Any,
    ) -> FrameSubscription:
        made = here.own(FrameSubscription(here.node(name), 'image', callback, **options))
        assert source is None or eventually(lambda: source.met(made))
        return made

    return make


Subscribe = Callable[..., FrameSubscription]


def waits(source: Camera, subscription: FrameSubscription) -> bool:
    """Return whether the camera's newest frame waits for the subscription; messages take time."""
    waiting = list(subscription.queue._entries)
    return source.way != 'ros_message' or bool(waiting and number_of(waiting[-1]) == source.number)


def test_no_more_is_held_than_was_asked_for_and_it_goes_on_with_the_newest(
    camera: Cameras, subscribe: Subscribe
) -> None:
    source, kept = camera(), []
    greedy = subscribe('greedy', lambda frame: kept.append(frame.keep()), source, held=2)
    assert publishing(source, lambda: len(kept) == 2)
    for _ in range(20):
        source.publish()
        time.sleep(0.005)
    until(lambda: waits(source, greedy), greedy.statistics)
    assert len(kept) == 2 and source.missed == 0
    newest = source.number
    kept.pop(0).release()
    assert eventually(lambda: len(kept) == 2), 'on its own: no frame came since'
    assert number_of(kept[-1]) == newest
    for frame in kept:
        frame.release()


@pytest.mark.parametrize('way', ['shared_memory', 'ros_message'])
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
    until(lambda: waits(source, greedy), greedy.statistics)
    began = time.monotonic()
    threading.Timer(0.2, kept.pop(0).release).start()
    frame = greedy.queue.get(120.0)
    assert frame is not None and number_of(frame) == source.number, 'who waits is woken'
    assert 0.05 < time.monotonic() - began < 60.0
    for each in (*kept, frame):
        each.release()


@pytest.mark.parametrize('way', ['shared_memory'])
def test_a_full_window_is_told_with_the_frames_and_how_long(
    camera: Cameras, subscribe: Subscribe, logged: Callable[[], str]
) -> None:
    source, kept = camera(), []
    greedy = subscribe('greedy', lambda frame: kept.append(frame.keep()), source, held=1)
    assert publishing(source, lambda: kept)

    sequence = kept[0].data.sequence
    assert publishing(source, lambda: 'this consumer holds all 1 frame(s) that it may' in logged())
    line = next(line for line in logged().splitlines() if 'holds all 1' in line)
    assert '[WARN]' in line and f'frame {sequence} for' in line
    found = greedy.statistics()
    assert found.full_s >= 1.0 and found.in_hand[0][0] == sequence
    assert [(held, window) for _, held, window in source.peers()] == [(1, 1)]
    released_at = time.monotonic()
    kept.pop().release()
    assert publishing(source, lambda: kept)
    assert greedy.statistics().full_s <= time.monotonic() - released_at
    kept.pop().release()


@pytest.mark.parametrize('way', ['in_process'])
def test_a_callback_that_does_not_return_is_told_and_nobody_is_to_release_frames(
    camera: Cameras, subscribe: Subscribe, logged: Callable[[], str]
) -> None:
    source, entered, done = camera(), threading.Event(), threading.Event()

    def slow(frame: Frame) -> None:
        entered.set()
        done.wait(120.0)

    subscription = subscribe('slow', slow, source, held=1)
    try:
        assert publishing(source, entered.is_set)
        assert publishing(source, lambda: 'because the callback is too slow' in logged())
        found = subscription.statistics()
    finally:
        done.set()
    line = next(line for line in logged().splitlines() if 'is too slow' in line)
    assert 'holds all 1 frame(s) that it may hold: frame ' in line and '[WARN]' in line
    assert line.endswith("; make it quicker, or lower the camera's framerate")
    assert found.full_s >= 1.0 and found.slow is not None and 'release' not in logged()


@pytest.mark.parametrize('way', ['in_process'])
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

    subscribe('careless', careless, source, held=1)

    def goes_on() -> bool:
        # The program handled it and goes on; drop its traceback, which refers to the frame.
        here.errors.clear()
        return len(seen) > 3

    assert publishing(source, goes_on), seen


def test_four_default_subscriptions_and_a_deep_one_share_a_default_pool(
    here: Ros, tmp_path: Path, subscribe: Subscribe
) -> None:
    source, seen = Camera(here, 'both', tmp_path), {}
    for number, depth in enumerate((10, 1, 1, 1)):
        subscribe(
            f'viewer{number}',
            lambda frame, number=number: seen.setdefault(number, []).append(number_of(frame)),
            depth=depth,
            held=2,
        )
    assert publishing(source, lambda: len(seen) == 4 or source.number > 500)
    windows = [(name, window) for name, _, window in source.peers()]
    assert len(windows) == 4 and source.pool.unpromised >= 0
    source.destroy()


def test_without_a_slot_left_frames_come_as_messages_and_the_log_says_what_to_change(
    here: Ros, tmp_path: Path, subscribe: Subscribe, logged: Callable[[], str]
) -> None:
    source, seen = Camera(here, 'in_process', tmp_path, slots=4), []
    first = subscribe('first', lambda frame: None)
    source.publish()
    second = subscribe('second', lambda frame: seen.append(number_of(frame)))
    assert publishing(source, lambda: len(seen) > 2), second.statistics()
    assert (first.statistics().rung, second.statistics().rung) == ('in_process', 'ros_message')

    assert eventually(lambda: '0 of 4 slots can still be promised to a ' in logged())
    line = next(line for line in logged().splitlines() if 'still be promised' in line)
    assert '[WARN]' in line and "raise 'slots'" in line
    first.destroy()
    assert publishing(source, lambda: second.statistics().rung == 'in_process'), (
        'there is room again'
    )
    source.destroy()
