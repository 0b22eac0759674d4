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
How many frames wait for a reader that takes none for a while.

The newest ones, as many as the depth says, in the same way on every rung.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from pathlib import Path
import time
from typing import Any

from link_process import LinkProcess
from link_program import KINDS
from link_ros import Ros
import pytest
from rclpy.qos import HistoryPolicy, QoSProfile
from waiting import eventually

from zc_perception.frame import Frame
from zc_perception.link.endpoints.frame_subscription import FrameSubscription

WAYS = {'in_process': 'adapted', 'shared_memory': 'adapted', 'ros_message': 'plain'}
PUBLISHED = 60


class Source:
    """
    Publishes a frame of a value.

    It comes from a camera of this process or of another one, or as messages from another one.
    """

    def __init__(
        self, here: Ros, publish: Callable[[int], Any], acked: Callable[[], Any] | None = None
    ) -> None:
        self.publish = publish
        self._here = here
        self._acked = acked

    def all_have_come(self) -> None:
        """Wait until all that can be read of what was published waits for the reader."""
        if self._acked is not None:
            self._acked()
        for _ in range(3):
            self._here.on_executor(lambda: None)
        time.sleep(0.5)


@pytest.fixture(params=WAYS)
def source(
    request: pytest.FixtureRequest, here: Ros, free_domain: int, tmp_path: Path
) -> Iterator[Source]:
    qos = {'depth': 80, 'transient_local': False, 'best_effort': False}
    end = {
        'name': 'p',
        'kind': f'{WAYS[request.param]} publisher',
        'topic': 'image',
        'qos': qos,
        'converts': False,
        'slots': 64,
    }
    if request.param == 'in_process':
        publisher = KINDS[end['kind']](here.node('camera'), end)
        yield Source(here, publisher.publish)
        publisher.close()
        return
    with LinkProcess('single', free_domain, tmp_path) as there:
        there('open', [end])
        yield Source(
            here,
            lambda value: there('publish', {'p': [value]}),
            (lambda: there('acked', ['p'])) if request.param == 'ros_message' else None,
        )


def value_of(frame: Frame) -> int:
    return frame.header.stamp_ns % 1_000_000_000


class Reader:
    """
    A reader that pauses.

    ``callback``: it keeps the first frame, and no other comes until :meth:`go_on`. Otherwise it
    takes none in the meantime.
    """

    def __init__(self, here: Ros, how: str, **options: Any) -> None:
        self.seen: list[int] = []
        self._kept: list[Frame] = []
        self._keeping = True
        self.frames = FrameSubscription(
            here.node('reader'),
            'image',
            self._on_frame if how == 'callback' else None,
            held=1,
            **options,
        )
        self._fetches = how == 'queue'

    def _on_frame(self, frame: Frame) -> None:
        self.seen.append(value_of(frame))
        if self._keeping:
            self._keeping = False
            self._kept.append(frame.keep())

    def first(self) -> bool:
        """Whether the first frame has come."""
        if self._fetches and not self.seen and (frame := self.frames.queue.get()) is not None:
            self._on_frame(frame)
        return bool(self.seen)

    def go_on(self) -> list[int]:
        """Return what has waited, up to the last one, and what comes half a second later."""
        del self.seen[:]
        while self._kept:
            self._kept.pop().release()
        limit, deadline = time.monotonic() + 60.0, None
        while time.monotonic() < (limit if deadline is None else deadline):
            if deadline is None and PUBLISHED in self.seen:
                deadline = time.monotonic() + 0.5
            if self._fetches:
                with self.frames.queue.get(0.05) or contextlib.nullcontext() as frame:
                    if frame is not None:
                        self.seen.append(value_of(frame))
            else:
                time.sleep(0.05)
        return list(self.seen)

    def close(self) -> None:
        self.frames.destroy()


@pytest.fixture
def read(here: Ros) -> Iterator[Callable[..., Reader]]:
    readers: list[Reader] = []

    def make(how: str, **options: Any) -> Reader:
        readers.append(Reader(here, how, **options))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


def begin(reader: Reader, source: Source) -> None:
    """Publish until the reader has its first frame, and take what else has come by then."""

    def has_begun() -> bool:
        source.publish(250)
        time.sleep(0.02)
        return reader.first()

    assert eventually(has_begun)


@pytest.mark.parametrize('how', ['callback', 'queue'])
@pytest.mark.parametrize('depth', [1, 10, 40])
def test_the_newest_wait(
    source: Source, read: Callable[..., Reader], depth: int, how: str
) -> None:
    reader = read(how, depth=depth)
    begin(reader, source)
    for value in range(1, PUBLISHED + 1):
        source.publish(value)
    # By messages the last one comes a little later.
    assert eventually(
        lambda: (
            reader.frames.statistics().rung != 'ros_message'
            or reader.frames.statistics().conversions >= depth
        )
    )
    source.all_have_come()
    waited = reader.go_on()
    assert waited == list(range(PUBLISHED + 1 - depth, PUBLISHED + 1)), reader.frames.statistics()
    statistics = reader.frames.statistics()
    assert statistics.conversion_errors == 0
    # Some of the messages have gone in the middleware, which keeps as many as the depth says.
    assert statistics.rung == 'ros_message' or statistics.dropped >= PUBLISHED - depth


def test_who_keeps_all_gets_the_newest_and_no_errors(
    source: Source, read: Callable[..., Reader]
) -> None:
    reader = read('callback', qos=QoSProfile(history=HistoryPolicy.KEEP_ALL))
    begin(reader, source)
    for value in range(1, PUBLISHED + 1):
        source.publish(value)
    source.all_have_come()
    waited = [value for value in reader.go_on() if value <= PUBLISHED]
    assert len(waited) >= 16 and waited == list(
        range(PUBLISHED + 1 - len(waited), PUBLISHED + 1)
    ), reader.frames.statistics()
    assert reader.frames.statistics().conversion_errors == 0
