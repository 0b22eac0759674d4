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

"""Which rung for which publishers: a table, and what must hold for every view."""

from __future__ import annotations

from collections.abc import Callable
import errno
import os
from pathlib import Path
import threading
import time

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
CONNECTING = RemotePublisher('b' * 32, RemoteState.CONNECTING)
SCARCE = RemotePublisher('e' * 32, RemoteState.CONNECTING, "no descriptor ('ulimit -n')")
GONE = RemotePublisher('d' * 32, RemoteState.GONE, 'Connection refused')
FAR = RemotePublisher('c' * 32, RemoteState.IMPOSSIBLE, 'on another host')
PLAIN = ['/driver']

TABLE = [
    ('nobody', TopicView(), UNMATCHED, False, 'no publisher'),
    ('local', TopicView(local=[HERE]), IN_PROCESS, False, '/camera is in this process'),
    (
        'local, other QoS',
        TopicView(local=[LocalPublisher('/camera', 'best effort')]),
        UNMATCHED,
        False,
        '/camera: best effort; give both',
    ),
    (
        'local, other type',
        TopicView(local=[LocalPublisher('/camera', convertible=True)]),
        ROS_MESSAGE,
        True,
        'another type',
    ),
    (
        'remote, in trouble',
        TopicView(remote=[SCARCE]),
        UNMATCHED,
        False,
        "connecting to publisher eeeeeeee: no descriptor ('ulimit -n')",
    ),
    (
        'remote, far',
        TopicView(remote=[FAR]),
        ROS_MESSAGE,
        True,
        'publisher cccccccc: on another host',
    ),
    ('killed', TopicView(remote=[GONE]), UNMATCHED, False, 'publisher dddddddd has ended'),
    (
        'killed twice',
        TopicView(remote=[GONE, GONE]),
        UNMATCHED,
        False,
        '2 publishers have ended, the latest is publisher dddddddd',
    ),
    (
        'killed, and its successor',
        TopicView(remote=[GONE, CONNECTED]),
        SHARED_MEMORY,
        False,
        'another process',
    ),
    (
        'not announced',
        TopicView(unannounced=2),
        UNMATCHED,
        False,
        '2 adapted publisher(s) not announced yet',
    ),
    (
        'not found',
        TopicView(unfound=1),
        ROS_MESSAGE,
        True,
        '1 adapted publisher(s) are not announced',
    ),
    ('plain', TopicView(plain=PLAIN), ROS_MESSAGE, True, '/driver is a plain publisher: stop it'),
    (
        'plain, other QoS',
        TopicView(plain=PLAIN, mismatch='volatile'),
        UNMATCHED,
        False,
        'elsewhere: volatile',
    ),
    (
        'local, and plain that is silent',
        TopicView(local=[HERE], plain=PLAIN),
        IN_PROCESS,
        True,
        '/camera is in this process; nothing readable has come by message yet, although /driver',
    ),
    (
        'local, and plain that was heard',
        TopicView(local=[HERE], plain=PLAIN, heard=frozenset(PLAIN)),
        ROS_MESSAGE,
        True,
        '/driver is a plain publisher',
    ),
    (
        'local, and plain that came after one that was heard',
        TopicView(local=[HERE], plain=['/other'], heard=frozenset(PLAIN)),
        IN_PROCESS,
        True,
        '/other',
    ),
    (
        'local and plain, of a type without a header',
        TopicView(local=[HERE], plain=PLAIN, recognises=False),
        ROS_MESSAGE,
        True,
        '/driver',
    ),
    (
        'local and remote',
        TopicView(local=[HERE], remote=[CONNECTED]),
        SHARED_MEMORY,
        False,
        'another process',
    ),
    (
        'required, plain',
        TopicView(plain=PLAIN, copy_free_required=True),
        REFUSED,
        False,
        'copy_free is required, but /driver is a plain publisher',
    ),
    (
        'required, local and plain',
        TopicView(local=[HERE], plain=PLAIN, copy_free_required=True, heard=frozenset(PLAIN)),
        IN_PROCESS,
        False,
        '/camera is in this process; copy_free is required, but /driver is a plain publisher',
    ),
]


@pytest.mark.parametrize(
    ('view', 'rung', 'reader', 'words'), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_the_table(view: TopicView, rung: str, reader: bool, words: str) -> None:
    choice = choose(view)
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


# What a subscription has of rung 2, without a node: one client for each announced publisher.


@pytest.mark.parametrize('with_callback', [False, True])
@pytest.mark.parametrize('scarce', ['select.epoll', 'os.eventfd'])
def test_without_a_descriptor_there_is_no_link_yet_and_one_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_fd_leak: None,
    scarce: str,
    with_callback: bool,
) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    queue: KeepLastQueue[Frame] = KeepLastQueue(1, Frame.release)
    links = SharedMemoryLinks('npu')
    links.open(
        queue,
        LinkQos(1),
        lambda header: True,
        (lambda: None) if with_callback else None,
        lambda: None,
    )
    there = [announced('a' * 32, tmp_path / 'a.sock')]
    with monkeypatch.context() as patch:
        patch.setattr(scarce, none_left)
        (state,) = links.update(there, there)
        assert state.state is RemoteState.CONNECTING
        assert 'ulimit' in state.reason and 'Too many open files' in state.reason
    (state,) = links.update(there, there)
    assert state.state is RemoteState.CONNECTING and 'ulimit' not in state.reason
    assert len(links.statistics()) == 1
    links.close()
    queue.end()


def window_of(
    links: SharedMemoryLinks, queue: KeepLastQueue[Frame], there: list[Announcement], granted: int
) -> Window:
    """Return the window of that size, once there is one; meanwhile the owner waits for frames."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        links.update(there, there)
        assert queue.get(0.01) is None
        for window in links.windows():
            if window.granted == granted:
                return window
    raise AssertionError(f'{links.windows()}, {links.statistics()}')


@pytest.mark.parametrize('with_callback', [False, True])
def test_a_narrow_window_is_told_and_a_publisher_with_more_slots_grants_more(
    tmp_path: Path, make_pool: Callable[..., BufferPool], with_callback: bool
) -> None:
    queue: KeepLastQueue[Frame] = KeepLastQueue(1, Frame.release)
    links = SharedMemoryLinks('npu', held=4)
    links.open(
        queue,
        LinkQos(1),
        lambda header: True,
        (lambda: None) if with_callback else None,
        lambda: None,
    )
    assert links.windows() == []
    tmp_path.chmod(0o700)
    with SharedMemoryServer('camera', 'a' * 32, make_pool(slots=3), folder=tmp_path) as server:
        there = [announced('a' * 32, server.path)]
        narrow = window_of(links, queue, there, 2)
        assert narrow.asked == 4 and narrow.publisher_id == 'a' * 32
        server.set_pool(make_pool(slots=2))
        again = window_of(links, queue, there, 1)
        assert again.connection != narrow.connection, 'worth another sentence'
        server.set_pool(make_pool(slots=8))
        assert window_of(links, queue, there, 4).asked == 4
    links.close()
    assert links.windows() == []
    queue.end()


def links_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith('shared-memory l')]


@pytest.mark.parametrize('with_callback', [False, True])
def test_links_connect_again_by_themselves_and_wake_only_whom_they_have_to(
    no_fd_leak: None, tmp_path: Path, make_pool: Callable[..., BufferPool], with_callback: bool
) -> None:
    queue: KeepLastQueue[Frame] = KeepLastQueue(1, Frame.release)
    links, woken, changes = SharedMemoryLinks('npu', held=2), threading.Event(), []
    links.open(
        queue,
        LinkQos(1),
        lambda header: True,
        woken.set if with_callback else None,
        lambda: changes.append(len(links.connected())),
    )
    tmp_path.chmod(0o700)
    pool = make_pool(slots=6)

    def take() -> Frame:
        if with_callback:
            assert woken.wait(60.0)
            woken.clear()
            queue.fetch()
        frame = queue.get(60.0)
        assert frame is not None
        return frame

    for turn in range(3):
        with SharedMemoryServer('camera', 'a' * 32, pool, folder=tmp_path) as server:
            there = [announced('a' * 32, server.path)]
            if turn == 0:
                links.update(there, there)
            until(lambda: len(changes) == 2 * turn + 1, 'the connection')  # noqa: B023
            woken.clear()
            until(lambda: bool(links_threads()) is with_callback, 'one that waits has no thread')
            for sequence in range(3):
                publish(server, pool, sequence)
                with take() as frame:
                    assert frame.data.sequence == sequence
        if with_callback:
            assert woken.wait(60.0)
            queue.fetch()
        else:
            assert queue.get(0.5) is None
        until(lambda: len(changes) == 2 * turn + 2, 'the end')  # noqa: B023
    assert changes == [1, 0] * 3
    links.close()
    queue.end()
    assert links_threads() == []
