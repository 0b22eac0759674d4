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
Which rung each set of publishers leads to: a table, and rules that hold for every view.

Then the parts: which publisher of this process matches which subscription, the clients for rung 2,
and a change between frames and messages: no duplicate, no disorder, no other loss.
"""

from __future__ import annotations

from collections.abc import Callable
import errno
import itertools
import os
from pathlib import Path
import re
import threading
from types import SimpleNamespace
from typing import Any

from frame_kit import FrameQueue
from hypothesis import given
from hypothesis import strategies as st
from link_ros import announced, Links
import pytest
from shared_memory.memory_link import publish
from waiting import until

from zc_perception.frame import Frame, Header
from zc_perception.link.announcement import Announcement
from zc_perception.link.bus import BusKey, BusPublisher, BusSubscription, InProcessBus, LinkQos
from zc_perception.link.changeover import BOTH_WAYS_S, Changeover, message_key
from zc_perception.link.endpoints.remote_links import Window
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
    ({'local': [OTHER_TYPE]}, ROS_MESSAGE, True, 'objects of a type that this'),
    ({'remote': [SCARCE]}, UNMATCHED, False, f'connecting to publisher eeeeeeee: {SCARCE.reason}'),
    ({'remote': [FAR]}, ROS_MESSAGE, True, 'publisher cccccccc: on another host'),
    (
        {'remote': [FAR], 'messages': False},
        UNMATCHED,
        False,
        'publisher cccccccc: on another host; nobody publishes messages on this topic instead',
    ),
    ({'remote': [GONE]}, UNMATCHED, False, 'publisher dddddddd has ended'),
    (
        {'strangers': ['/talker publishes S']},
        UNMATCHED,
        False,
        "/talker publishes S, which this node can't read: remap its topic",
    ),
    ({'strangers': ['/talker publishes S'], 'remote': [CONNECTED]}, SHARED_MEMORY, False, ''),
    ({'remote': [GONE] * 2}, UNMATCHED, False, '2 publishers have ended, the latest is publisher'),
    ({'remote': [GONE, CONNECTED]}, SHARED_MEMORY, False, 'another process'),
    ({'unannounced': 2}, UNMATCHED, False, '2 publisher(s) of this package have not'),
    ({'unfound': 1}, ROS_MESSAGE, True, '1 publisher(s) of this package are not announced'),
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
    st.lists(st.just('/t publishes S'), max_size=1),
    st.booleans(),
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
        assert (REFUSED in ways) == bool(choice.indirect - {*view.strangers}) and not choice.reader
    elif choice.indirect and view.heard and view.heard <= choice.indirect:
        assert choice.by_message or (choice.rung == UNMATCHED and not view.messages)


# A subscription's clients for rung 2, without a node: one for each announced publisher.


@pytest.fixture(params=[False, True])
def with_callback(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.usefixtures('no_fd_leak')
@pytest.mark.parametrize(
    ('scarce', 'number', 'advice'),
    [
        ('select.epoll', errno.EMFILE, "raise the limit ('ulimit -n')"),
        ('os.eventfd', errno.ENFILE, 'raise fs.file-max'),
    ],
)
def test_without_a_descriptor_there_is_no_link_yet_and_one_later(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    with_callback: bool,
    scarce: str,
    number: int,
    advice: str,
) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    made, there = Links(with_callback), [announced('a' * 32, folder / 'a.sock')]
    with monkeypatch.context() as patch:
        patch.setattr(scarce, none_left)
        (state,) = made.links.update(there, there)
        assert state.state is RemoteState.CONNECTING
        assert advice in state.reason
    (state,) = made.links.update(there, there)
    assert state.state is RemoteState.CONNECTING and advice not in state.reason
    assert len(made.links.statistics()) == 1
    made.close()


def window_of(made: Links, there: list[Announcement], granted: int) -> Window:
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
    until(lambda: links_threads() == [], links_threads)


# Which publisher matches which subscription, and what each receives.


KEY: BusKey = ('context', '/camera/image_raw', 'sensor_msgs/msg/Image')
QOS = LinkQos(1)


def subscription(holder: str = 'npu', qos: LinkQos = QOS) -> BusSubscription:
    return BusSubscription(holder, qos, FrameQueue(qos.depth), None)


@pytest.mark.usefixtures('no_fd_leak')
def test_publisher_and_subscription_meet_in_any_order(make_frame: Callable[..., Frame]) -> None:
    bus = InProcessBus()
    publisher, second = BusPublisher('capture', QOS), BusPublisher('second', QOS)
    early, late = subscription('early'), subscription('late')
    bus.add_subscription(KEY, early)
    bus.add_publisher(KEY, publisher)
    assert publisher.matched == (early,)
    bus.add_subscription(KEY, late)
    assert publisher.matched == (early, late)
    bus.add_publisher(KEY, second)
    assert second.matched == publisher.matched and bus.publishers(KEY) == (publisher, second)
    for each in (publisher, second):
        each.publish(make_frame())
    assert early.delivered == late.delivered == 2, 'each gets what both publish'
    for receiver in (early, late):
        receiver.queue.close()


def test_profiles_match_by_the_rules_of_dds() -> None:
    for reliable, offered_reliable, latched, offered_latched in itertools.product(
        (True, False), repeat=4
    ):
        bus = InProcessBus()
        publisher = BusPublisher('capture', LinkQos(1, offered_reliable, offered_latched))
        bus.add_publisher(KEY, publisher)
        bus.add_subscription(KEY, subscription(qos=LinkQos(5, reliable, latched)))
        # As in DDS, a publisher that offers less than the subscription wants doesn't match.
        enough = offered_reliable >= reliable and offered_latched >= latched
        assert len(publisher.matched) == enough, (reliable, latched)


# A change between frames and messages.


# In each step, a letter and a stamp: d, an object comes directly; m, a message comes while they
# are read; l, one of the last messages comes after that; c, whether a message's object came
# directly; s, whether its frame_id does. The answer is yes, or no at the end of the step: - a
# duplicate, ~ late, ! for another reason. A frame_id that isn't 'left' stands in front.
CHANGES = {
    'what came directly does not come again by message': 'd5 d6 messages m5- m6- m7 m7',
    'each object stands for one message': 'd5 d5 messages m5- m5- m5',
    'a message is known as an object once': 'd5 c5 c5!',
    'messages of objects that were left out are late': (
        'd10 d20 messages m12~ right:m12 m20- m21'
    ),
    'time jumps back, messages level before the change': 'd1000 c1000 messages m3 m2',
    'time jumps back, messages level after the change': 'd1000 messages m1000- m3 m2',
    'time jumps back, messages level by a newer one': 'd1000 messages m1001 m3 m2',
    'without a stamp everything passes': 'd0 messages m0 m0 objects d0 d0',
    'an object whose message was taken is dropped once': 'messages m5 m6 objects d6- d6 d7',
    'messages are taken until the first object of their frame_id': (
        'l1! messages objects l5 d5- d6 l7! right:l5'
    ),
    'nothing is dropped two seconds after a change': (
        'd10 d20 messages wait m10 m15 m20 objects wait l30! d10 d15 d20'
    ),
    'latched messages come again with each reader': (
        'd1 c1 c1 c1 messages m1- m2 objects c1 c2'
    ),
    'whose frame_ids come directly': 'd1 s1 right:s1! objects s1!',
}


@pytest.mark.parametrize('name', CHANGES)
def test_nothing_comes_twice_or_late_when_the_way_changes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, duplicates, late = 100.0, 0, 0
    monkeypatch.setattr('zc_perception.link.changeover.time.monotonic', lambda: now)
    both = Changeover(latched=name.startswith('latched'))
    ways: dict[str, Callable[[tuple[str, int]], bool]] = {
        'd': lambda key: both.accept_direct(Header(key[1], key[0])),
        'm': both.accept_message,
        'l': both.accept_last_message,
        'c': both.came_directly,
        's': lambda key: both.sends_directly(key[0]),
    }
    for step in CHANGES[name].split():
        if step == 'wait':
            now += BOTH_WAYS_S
        elif step in ('messages', 'objects'):
            both.changed(by_message=step == 'messages')
        else:
            frame_id, way, stamp, no = re.findall(r'^(?:(\w+):)?(\w)(\d+)(\W?)$', step)[0]
            assert ways[way]((frame_id or 'left', int(stamp))) is not bool(no), step
            duplicates += no == '-' or (way == 'c' and not no)
            late += no == '~'
    assert (both.duplicates, both.late) == (duplicates, late)


def test_the_message_of_the_newest_object_that_was_ignored_is_level() -> None:
    both = Changeover()
    both.ignored += [Header(5, 'left'), Header(6, 'left'), Header(9, 'right')]
    assert [both.is_level(('left', stamp)) for stamp in (5, 6, 9)] == [False, True, False]
    assert not both.is_level(('other', 0))
    both.ignored.append(Header(2, 'left'))
    assert both.is_level(('left', 2)), 'time has gone back'


@pytest.mark.parametrize('remembered', [4, 256])
def test_memory_is_bounded_and_as_long_as_asked(remembered: int) -> None:
    both = Changeover(remembered)
    for stamp in range(1, 2001):
        both.accept_direct(Header(stamp, f'frame {stamp}'))
        both.came_directly(('', stamp))
        both.accept_message((f'message {stamp}', stamp))
        both.ignored.append(Header(stamp, f'ignored {stamp}'))
        both.is_level(('', stamp))
    for some in (both._came, both.taken, both._newest, both._newest_ignored, both._behind):
        assert 0 < len(some) <= remembered
    oldest = 2001 - remembered
    assert both.came_directly((f'frame {oldest}', oldest))


@given(st.lists(st.integers(1, 40), max_size=40, unique=True), st.data())
def test_any_change_to_messages_keeps_order_and_comes_once(
    stamps: list[int], data: st.DataObject
) -> None:
    """Messages may be any number of frames late, and some frames are left out."""
    stamps.sort()
    cut = data.draw(st.integers(0, len(stamps)))
    both = Changeover()
    taken = [s for s in stamps[:cut] if data.draw(st.booleans())]
    for stamp in taken:
        both.accept_direct(Header(stamp, 'left'))
    read = data.draw(st.integers(0, cut))
    for stamp in stamps[:read]:
        both.came_directly(('left', stamp))
    both.changed(by_message=True)
    taken += [s for s in stamps[read:] if both.accept_message(('left', s))]
    assert taken == sorted(set(taken))
    assert set(stamps[cut:]) <= set(taken)


def test_a_message_s_key_is_its_header_s() -> None:
    stamp = SimpleNamespace(sec=2, nanosec=3)
    header = SimpleNamespace(frame_id='left', stamp=stamp)
    assert message_key(SimpleNamespace(header=header)) == ('left', 2_000_000_003)
    assert message_key(SimpleNamespace(header=b'jpeg')) is None
    assert message_key(SimpleNamespace(data='text')) is None
