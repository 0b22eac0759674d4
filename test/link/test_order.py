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
Each publisher's frames come once and in order, by any link, however slow the reader is.

Other publishers on the topic don't change that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
import random
import threading
import time
from typing import Any

from link_ros import end, LinkProcess, Program, Ros
import pytest
from rclpy.node import Node
from waiting import eventually, until

from zc_perception.frame import Frame
from zc_perception.link.endpoints.frame_subscription import FrameSubscription

DIRECT = {'same': 'in_process', 'other': 'shared_memory'}
VALUES = range(1, 241)


class Here(Program):
    """Publishers on a node of this process, with the commands of a LinkProcess."""

    def __init__(self, node: Node) -> None:
        self._kind, self._nodes, self._ends = 'single', {'publisher': node}, {}

    def __call__(self, operation: str, *arguments: Any) -> Any:
        return getattr(self, operation)(*arguments)

    def destroy(self) -> None:
        self.close([*self._ends])


Place = Callable[..., Any]


@pytest.fixture
def source(here: Ros, start: Callable[[], LinkProcess], place: str) -> Place:
    return start() if place == 'other' else here.own(Here(here.node('publishers')))


def open_both(source: Place, **options: Any) -> None:
    for name, kind in (('camera', 'adapted'), ('plain', 'plain')):
        source('open', [end(name, f'{kind} publisher', depth=50, slots=60, **options)])


def camera_of(source: Place) -> dict[str, Any]:
    return dict(source('state', ['camera'])['camera'])


class Reader:
    """Note each frame's luma, except the value ``ignored``; with ``slow``, sleep now and then."""

    def __init__(self, node: Node, how: str, *, slow: bool = False, **options: Any) -> None:
        self.seen: list[int] = []
        self.ignored = 0
        self._random = random.Random(18)
        self._slow = slow
        self._done = threading.Event()
        self.frames = FrameSubscription(
            node, 'image', self._take if how == 'callback' else None, **options
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        if how == 'queue':
            self._thread.start()

    def _take(self, frame: Frame) -> None:
        with frame.map() as planes:
            value = int(planes[0][0, 0])
        if value != self.ignored:
            self.seen.append(value)
        if self._slow and self._random.random() < 0.1:
            time.sleep(self._random.uniform(0.0, 0.1))

    def _run(self) -> None:
        while not self._done.is_set():
            frame = self.frames.queue.get(0.1)
            if frame is not None:
                with frame:
                    self._take(frame)

    def destroy(self) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join(60.0)
        self.frames.destroy()


@pytest.fixture
def read(here: Ros) -> Callable[..., Reader]:
    return lambda how, **options: here.own(Reader(here.node('reader'), how, **options))


def has_met(reader: Reader, source: Place, place: str) -> bool:
    state, rung = camera_of(source), reader.frames.statistics().rung
    direct = state['in_process'] if place == 'same' else state['consumers']
    return bool(direct and state['readers'] and rung == DIRECT[place])


def fall_to_messages(reader: Reader, source: Place) -> None:
    """Publish plain messages of value 250 until one arrives; ignore any that come later."""
    reader.ignored = 250

    def has_changed() -> bool:
        source('publish', {'plain': [250]})
        return reader.frames.statistics().rung == 'ros_message'

    assert eventually(has_changed)
    reader.seen.clear()


@pytest.mark.parametrize(
    ('place', 'how', 'held', 'depth'),
    [('other', 'callback', 1, 1), ('other', 'queue', 3, 20), ('same', 'callback', 1, 5)],
)
def test_a_reader_that_is_sometimes_slow(
    source: Place, read: Callable[..., Reader], place: str, how: str, held: int, depth: int
) -> None:
    """Meanwhile a plain publisher appears, sends, and leaves."""
    reader = read(how, slow=True, held=held, depth=depth)
    open_both(source)
    until(lambda: has_met(reader, source, place), reader.frames.statistics)
    for value in VALUES:
        if value == 61:
            fall_to_messages(reader, source)
        if value == 181:
            source('close', ['plain'])
        plain = value % 3 == 0 and 60 < value <= 180
        if value % 30 == 0:
            # With depth 1 the middleware keeps one message: a late conversion would replace the
            # plain one.
            until(lambda value=value: camera_of(source)['converted'] >= (value - value // 3) / 2)
        source('publish', {'plain' if plain else 'camera': [value]})
        time.sleep(0.004)
        if value % 30 == 0:  # so that slow machines receive both kinds
            until(lambda value=value: max(reader.seen, default=0) > value - 30, reader.seen)
            eventually(
                lambda value=value: any(v > value - 30 and v % 3 == 0 for v in reader.seen), 5.0
            )
    # The last messages may arrive after the last frames: they wait in another queue.
    until(lambda: max(reader.seen, default=0) >= VALUES[-1] - 1, reader.seen)
    time.sleep(0.3)
    for name, mine in (
        ('plain', [v for v in reader.seen if v % 3 == 0 and 60 < v <= 180]),
        ('camera', [v for v in reader.seen if v % 3 or not 60 < v <= 180]),
    ):
        assert len(mine) > 3, name
        assert mine == sorted(set(mine)), f'{name}: out of order or twice'
    until(lambda: reader.frames.statistics().rung == DIRECT[place])


@pytest.mark.parametrize(
    ('place', 'how', 'stamped'),
    [('other', 'callback', True), ('same', 'callback', False), ('same', 'queue', True)],
)
def test_equal_stamps_of_a_camera_and_a_plain_publisher(
    source: Place, read: Callable[..., Reader], place: str, how: str, stamped: bool
) -> None:
    reader = read(how, depth=50, held=2)
    open_both(source, stamped=stamped)
    until(lambda: has_met(reader, source, place))
    fall_to_messages(reader, source)
    wanted: Counter[int] = Counter()
    for number, value in enumerate(VALUES[:60]):
        # With stamps, both messages have the same stamp; without, their pixels differ.
        pair = (value, value) if stamped else (2 * value % 250 + 1, 2 * value % 250)
        both = [('camera', pair[:1]), ('plain', pair[1:])]
        source('publish', dict(both if number % 2 else both[::-1]))
        # Wait for each pair: conversions may be skipped, and late readers get only the newest
        # message.
        until(lambda number=number: camera_of(source)['conversions'] > number)
        until(lambda pair=pair: not Counter(pair) - Counter(reader.seen), pair)
        wanted.update(pair)
    time.sleep(0.3)
    assert Counter(reader.seen) == wanted, reader.frames.statistics()
