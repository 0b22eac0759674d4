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

"""Which rung each set of publishers leads to: a table, and rules that hold for every view."""

from __future__ import annotations

from collections.abc import Callable
import errno
import os
from pathlib import Path
import threading
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from link_ros import announced
import pytest
from shared_memory.memory_link import publish
from waiting import until

from zc_perception.frame import Frame
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.announcement import Announcement
from zc_perception.link.bus import LinkQos
from zc_perception.link.endpoints.remote_links import SharedMemoryLinks, Window
from zc_perception.link.rungs import (
    choose,
    IN_PROCESS,
    LocalPublisher,
    REFUSED,
    RemotePublisher,
    RemoteState,
    ROS_MESSAGE,
    SHARED_MEMORY,
    TopicView,
    UNMATCHED,
)
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.pool import BufferPool

HERE = LocalPublisher('/camera')
CONNECTED = RemotePublisher('a' * 32, RemoteState.CONNECTED)
SCARCE = RemotePublisher('e' * 32, RemoteState.CONNECTING, "no descriptor ('ulimit -n')")
GONE = RemotePublisher('d' * 32, RemoteState.GONE, 'Connection refused')
FAR = RemotePublisher('c' * 32, RemoteState.IMPOSSIBLE, 'on another host')
PLAIN = ['/driver']

OTHER_QOS = LocalPublisher('/camera', 'best effort')
OTHER_TYPE = LocalPublisher('/camera', convertible=True)
BOTH = {'local': [HERE], 'plain': PLAIN}
HEARD = {'heard': frozenset(PLAIN)}
STRICT = {'copy_free_required': True}
IS_HERE, IS_PLAIN = '/camera is in this process', '/driver is a plain publisher'
# Publishers, expected rung, whether messages are read, words of the reason.
TABLE: list[tuple[dict[str, Any], str, bool, str]] = [
    ({}, UNMATCHED, False, 'no publisher'),
    ({'local': [HERE]}, IN_PROCESS, False, IS_HERE),
    ({'local': [OTHER_QOS]}, UNMATCHED, False, '/camera: best effort; give both'),
    ({'local': [OTHER_TYPE]}, ROS_MESSAGE, True, 'another type'),
    ({'remote': [SCARCE]}, UNMATCHED, False, f'connecting to publisher eeeeeeee: {SCARCE.reason}'),
    ({'remote': [FAR]}, ROS_MESSAGE, True, 'publisher cccccccc: on another host'),
    ({'remote': [GONE]}, UNMATCHED, False, 'publisher dddddddd has ended'),
    ({'remote': [GONE] * 2}, UNMATCHED, False, '2 publishers have ended, the latest is publisher'),
    ({'remote': [GONE, CONNECTED]}, SHARED_MEMORY, False, 'another process'),
    ({'unannounced': 2}, UNMATCHED, False, '2 adapted publisher(s) have not announced themselves'),
    ({'unfound': 1}, ROS_MESSAGE, True, '1 adapted publisher(s) are not announced'),
    ({'plain': PLAIN}, ROS_MESSAGE, True, f'{IS_PLAIN}: stop it'),
    ({'plain': PLAIN, 'mismatch': 'volatile'}, UNMATCHED, False, 'in another process: volatile'),
    (BOTH, IN_PROCESS, True, f'{IS_HERE}; no readable message has come from the other'),
    (BOTH | HEARD, ROS_MESSAGE, True, IS_PLAIN),
    (BOTH | HEARD | {'plain': ['/other']}, IN_PROCESS, True, '/other'),
    (BOTH | {'recognises': False}, ROS_MESSAGE, True, '/driver'),
    ({'local': [HERE], 'remote': [CONNECTED]}, SHARED_MEMORY, False, 'another process'),
    ({'plain': PLAIN} | STRICT, REFUSED, False, f'copy_free is required, but {IS_PLAIN}'),
    (
        BOTH | STRICT | HEARD,
        IN_PROCESS,
        False,
        f'{IS_HERE}; copy_free is required, but {IS_PLAIN}',
    ),
]


@pytest.mark.parametrize(('view', 'rung', 'reader', 'words'), TABLE)
def test_the_table(view: dict[str, Any], rung: str, reader: bool, words: str) -> None:
    choice = choose(TopicView(**view))
    assert (choice.rung, choice.reader) == (rung, reader)
    assert words in choice.reason


locals_ = st.builds(LocalPublisher, st.just('/l'), st.sampled_from(['', 'no']), st.booleans())
remotes = st.builds(
    RemotePublisher,
    st.text('abc', min_size=8, max_size=8),
    st.sampled_from(RemoteState),
    st.just('why'),
)
views = st.builds(
    TopicView,
    st.lists(locals_, max_size=3),
    st.lists(remotes, max_size=3),
    st.integers(0, 2),
    st.integers(0, 2),
    st.lists(st.sampled_from(['/p', '/q']), max_size=2, unique=True),
    st.booleans(),
    st.sampled_from(['', 'mismatch']),
    st.booleans(),
    st.sampled_from([frozenset[str](), frozenset({'/p'})]),
)


@given(views)
def test_all_come_directly_or_all_by_message(view: TopicView) -> None:
    choice = choose(view)
    assert choice.reason
    assert (choice.rung == UNMATCHED) == (not choice.routes)
    ways = {rung for rung, _ in choice.routes}
    assert choice.by_message == (choice.rung == ROS_MESSAGE) == (ROS_MESSAGE in ways)
    if choice.by_message:
        assert ways == {ROS_MESSAGE} and choice.reader and not view.copy_free_required
    if choice.rung in (IN_PROCESS, SHARED_MEMORY):
        assert choice.reader == (bool(choice.indirect) and not view.copy_free_required)
    if view.copy_free_required:
        assert (REFUSED in ways) == bool(choice.indirect) and not choice.reader
    elif choice.indirect and view.heard and view.heard <= choice.indirect:
        assert choice.by_message


# A subscription's clients for rung 2, without a node: one for each announced publisher.


class Links:
    def __init__(self, with_callback: bool, **options: Any) -> None:
        self.queue: KeepLastQueue[Frame] = KeepLastQueue(1, Frame.release)
        self.links = SharedMemoryLinks('npu', **options)
        self.woken, self.changes = threading.Event(), list[int]()
        self.links.open(
            self.queue,
            LinkQos(1),
            lambda header: True,
            self.woken.set if with_callback else None,
            lambda: self.changes.append(len(self.links.connected())),
        )

    def close(self) -> None:
        self.links.close()
        self.queue.end()


@pytest.fixture(params=[False, True])
def with_callback(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.usefixtures('no_fd_leak')
@pytest.mark.parametrize('scarce', ['select.epoll', 'os.eventfd'])
def test_without_a_descriptor_there_is_no_link_yet_and_one_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch, with_callback: bool, scarce: str
) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    made, there = Links(with_callback), [announced('a' * 32, folder / 'a.sock')]
    with monkeypatch.context() as patch:
        patch.setattr(scarce, none_left)
        (state,) = made.links.update(there, there)
        assert state.state is RemoteState.CONNECTING
        assert 'ulimit' in state.reason and 'Too many open files' in state.reason
    (state,) = made.links.update(there, there)
    assert state.state is RemoteState.CONNECTING and 'ulimit' not in state.reason
    assert len(made.links.statistics()) == 1
    made.close()


def window_of(made: Links, there: list[Announcement], granted: int) -> Window:
    """Update the links and wait for frames until a window of this size is granted; return it."""

    def look() -> list[Window]:
        made.links.update(there, there)
        assert made.queue.get(0.01) is None
        return [window for window in made.links.windows() if window.granted == granted]

    return until(look, made.links.statistics)[0]  # type: ignore[no-any-return]


@pytest.mark.usefixtures('no_fd_leak')
def test_a_narrow_window_is_told_and_a_publisher_with_more_slots_grants_more(
    folder: Path, make_pool: Callable[..., BufferPool], with_callback: bool
) -> None:
    made = Links(with_callback, held=4)
    assert made.links.windows() == []
    with SharedMemoryServer('camera', 'a' * 32, make_pool(slots=3), folder=folder) as server:
        there = [announced('a' * 32, server.path)]
        narrow = window_of(made, there, 2)
        assert narrow.asked == 4 and narrow.publisher_id == 'a' * 32
        server.set_pool(make_pool(slots=2))
        again = window_of(made, there, 1)
        assert again.connection != narrow.connection, 'worth another sentence'
        server.set_pool(make_pool(slots=8))
        assert window_of(made, there, 4).asked == 4
    made.close()
    assert made.links.windows() == []


def links_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith('shared-memory l')]


@pytest.mark.usefixtures('no_fd_leak')
def test_links_connect_again_by_themselves_and_wake_only_whom_they_have_to(
    folder: Path, make_pool: Callable[..., BufferPool], with_callback: bool
) -> None:
    made, pool = Links(with_callback, held=2), make_pool(slots=6)
    changes, woken = made.changes, made.woken

    def wake() -> None:
        if with_callback:
            assert woken.wait(60.0)
            woken.clear()
            made.queue.fetch()

    for turn in range(3):
        with SharedMemoryServer('camera', 'a' * 32, pool, folder=folder) as server:
            there = [announced('a' * 32, server.path)]
            if turn == 0:
                made.links.update(there, there)
            until(lambda: len(changes) == 2 * turn + 1, 'the connection')  # noqa: B023
            woken.clear()
            until(lambda: bool(links_threads()) is with_callback, 'one that waits has no thread')
            for sequence in range(3):
                publish(server, pool, sequence)
                wake()
                with made.queue.get(60.0) as frame:  # type: ignore[union-attr]
                    assert frame.data.sequence == sequence
        wake()
        assert made.queue.get(0.0 if with_callback else 0.5) is None
        until(lambda: len(changes) == 2 * turn + 2, 'the end')  # noqa: B023
    assert changes == [1, 0] * 3
    made.close()
    assert links_threads() == []
