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

from hypothesis import given
from hypothesis import strategies as st
import pytest

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
        '/camera: best effort; make both',
    ),
    (
        'local, other type',
        TopicView(local=[LocalPublisher('/camera', convertible=True)]),
        ROS_MESSAGE,
        True,
        'another type',
    ),
    (
        'remote',
        TopicView(remote=[CONNECTED]),
        SHARED_MEMORY,
        False,
        'publisher aaaaaaaa is in another process',
    ),
    (
        'remote, not yet',
        TopicView(remote=[CONNECTING]),
        UNMATCHED,
        False,
        'connecting to publisher bbbbbbbb',
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
        'required, killed',
        TopicView(remote=[GONE, CONNECTED], copy_free_required=True),
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
        'local and far',
        TopicView(local=[HERE], remote=[FAR], heard=frozenset({'publisher cccccccc'})),
        ROS_MESSAGE,
        True,
        'on another host',
    ),
    (
        'local and remote',
        TopicView(local=[HERE], remote=[CONNECTED]),
        SHARED_MEMORY,
        False,
        'another process',
    ),
    (
        'local and connecting',
        TopicView(local=[HERE], remote=[CONNECTING]),
        IN_PROCESS,
        False,
        '/camera',
    ),
    (
        'required, plain',
        TopicView(plain=PLAIN, copy_free_required=True),
        REFUSED,
        False,
        'copy_free is required, but /driver is a plain publisher',
    ),
    (
        'required, far',
        TopicView(remote=[FAR], copy_free_required=True),
        REFUSED,
        False,
        'on another host',
    ),
    (
        'required, local',
        TopicView(local=[HERE], copy_free_required=True),
        IN_PROCESS,
        False,
        'this process',
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
