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

"""FrameReader: frames in a loop and in an asyncio program, with any spinning, and its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
import os
from pathlib import Path
import subprocess
import sys
import threading
import time
from typing import Any

from link_process import LinkProcess
from link_program import open_descriptors
from link_ros import Ros
from one_camera import Camera, number_of, RESERVE
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from waiting import eventually

from zc_perception import FrameReader
from zc_perception.frame import Frame
from zc_perception.link.endpoints import frame_subscription

Cameras = Callable[..., Camera]
QOS = {'depth': 1, 'best_effort': False, 'transient_local': False}


@pytest.fixture
def flowing(camera: Cameras) -> Iterator[Callable[..., Camera]]:
    """Make a camera that publishes at about 50 Hz by itself."""
    done, threads = threading.Event(), []

    def make(**options: Any) -> Camera:
        source = camera(**options)

        def flow() -> None:
            while not done.wait(0.02):
                source.publish()

        threads.append(threading.Thread(target=flow))
        threads[-1].start()
        return source

    yield make
    done.set()
    for thread in threads:
        thread.join(60.0)


@pytest.fixture
def alone(here: Ros) -> Iterator[Node]:
    """Yield a node that no executor spins."""
    node = Node('reader', context=here.context)
    yield node
    node.destroy_node()


def own_threads() -> list[str]:
    return [
        thread.name
        for thread in threading.enumerate()
        if 'spinner' in thread.name or 'receiver' in thread.name
    ]


def others(here: Ros) -> Counter[str]:
    """Return the descriptors, without those of the camera's slots, which it maps one by one."""
    # An executor at rest keeps what it called last.
    here.on_executor(lambda: None)
    return Counter(
        {kind: count for kind, count in open_descriptors().items() if 'memfd' not in kind}
    )


async def some_of(frames: FrameReader, count: int) -> list[Frame]:
    seen = []
    async for frame in frames:
        assert not frame.released and frame.y.shape == (16, 32)
        seen.append(frame)
        if len(seen) == count:
            break
    return seen


@pytest.mark.parametrize('asynchronous', [False, True])
@pytest.mark.parametrize('spun', [False, True])
def test_each_step_has_the_next_frame_for_its_time(
    here: Ros, flowing: Cameras, dds_sockets: None, asynchronous: bool, spun: bool
) -> None:
    source = flowing()
    before = None
    for life in range(3):
        if life == 1:
            before = others(here)
        node = Node(f'reader{life}', context=here.context)
        if spun:
            here.executor.add_node(node)
        seen: list[Frame] = []
        with FrameReader(node, 'image') as frames:
            if asynchronous:
                seen = asyncio.run(some_of(frames, 15))
            else:
                for frame in frames:
                    assert not frame.released and frame.y.shape == (16, 32)
                    seen.append(frame)
                    if len(seen) == 15:
                        break
            assert [frame.released for frame in seen] == [True] * 14 + [False]
            assert eventually(lambda frames=frames: frames.statistics().rung == source.way), (
                frames.statistics()
            )
            assert ('spinner of' in str(own_threads())) is not spun
        assert seen[-1].released and own_threads() == []
        numbers = [number_of(frame) for frame in seen]
        assert numbers == sorted(set(numbers))
        if spun:
            here.executor.remove_node(node)
        node.destroy_node()
        # Its queue's descriptors end with the last reference.
        frame = None
        del frames, node
        seen.clear()
    assert before is not None and eventually(lambda: not others(here) - before), (
        others(here) - before
    )
    assert eventually(lambda: source.peers() == [])
    assert eventually(lambda: source.pool.unpromised == len(source.pool.slots) - RESERVE)


def test_a_step_waits_for_its_frame(
    alone: Node, camera: Cameras, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames are waited for, not looked for now and then."""
    source = camera()
    with FrameReader(alone, 'image') as frames:

        def step() -> Frame:
            return next(frames)

        first = threading.Thread(target=step)
        first.start()
        assert eventually(lambda: source.met(frames))
        assert eventually(lambda: source.publish() and (time.sleep(0.02) or not first.is_alive()))
        monkeypatch.setattr(frame_subscription, '_LOOK_S', 600.0)
        for _ in range(20):
            timer = threading.Timer(0.1, source.publish)
            timer.start()
            step()
            timer.join()


def test_frames_of_another_process_come_as_they_are(
    here: Ros, alone: Node, free_domain: int, tmp_path: Path
) -> None:
    """The values that its frames have are their luma and their stamp."""
    done = threading.Event()
    with LinkProcess('single', free_domain, tmp_path) as process:
        process(
            'open',
            [
                {
                    'name': 'camera',
                    'kind': 'adapted publisher',
                    'topic': 'image',
                    'qos': QOS,
                    'converts': False,
                }
            ],
        )

        def flow() -> None:
            value = 0
            while not done.wait(0.01):
                value = value % 250 + 1
                process('publish', {'camera': [value]})

        thread = threading.Thread(target=flow)
        thread.start()
        try:
            seen = []
            with FrameReader(alone, 'image', copy_free='required') as frames:
                for frame in frames:
                    values = frame.y, frame.header.stamp_ns % 1_000_000_000
                    assert (values[0] == values[1]).all()
                    seen.append(frame.sequence)
                    if len(seen) == 100:
                        break
                assert frames.statistics().rung == 'shared_memory'
        finally:
            done.set()
            thread.join(60.0)
    assert len(set(seen)) == 100 or seen != sorted(seen), 'values begin again after 250'


@pytest.mark.parametrize('asynchronous', [False, True])
@pytest.mark.parametrize('how', ['destroy', 'destroy_node', 'shutdown'])
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


def test_the_program_may_begin_and_end_to_spin_the_node_at_any_time(
    here: Ros, alone: Node, flowing: Cameras
) -> None:
    flowing()
    ticks: list[str] = []
    alone.create_timer(0.02, lambda: ticks.append(threading.current_thread().name))
    mine, stop = SingleThreadedExecutor(context=here.context), threading.Event()

    def spin() -> None:
        while not stop.is_set():
            mine.spin_once(timeout_sec=0.1)

    with FrameReader(alone, 'image') as frames:

        def until(name: str) -> None:
            ticks.clear()
            for count, _ in enumerate(frames):
                if count > 10 and ticks and ticks[-1].startswith(name):
                    return
                assert count < 2000, ticks[-5:]

        until('spinner of')
        mine.add_node(alone)
        thread = threading.Thread(target=spin, name='mine')
        thread.start()
        until('mine')
        stop.set()
        thread.join(60.0)
        mine.remove_node(alone)
        until('spinner of')
    mine.shutdown()
    assert own_threads() == []


@pytest.mark.parametrize(
    'ending', ['', 'frames.destroy()', 'frames.__exit__(None, None, None); node.destroy_node()']
)
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
    ]  # its warning of the tests' profile
    assert (done.returncode, done.stdout, said) == (0, 'done\n', [])
