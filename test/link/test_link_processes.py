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
Publishers and subscriptions in different processes.

The tests cover strangers, slow subscriptions and changes of rung: each publisher's frames come
once and in order, by any link, however slow the reader is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
import json
import random
import threading
import time
from typing import Any

from link_ros import announced, end, LATCHED, LinkProcess, Program, Ros
import pytest
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import String
from waiting import eventually, PATIENCE_S, until

from zc_perception.frame import Frame
from zc_perception.link.endpoints.frame_subscription import FrameSubscription
from zc_perception.link.endpoints.remote_links import SharedMemoryLinks
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.memory.ledger import CopyLedger

Start = Callable[..., LinkProcess]


def met(process: LinkProcess, **wanted: Any) -> None:
    missing = process('wait', wanted)
    assert not missing, json.dumps(missing)


def one(process: LinkProcess, name: str) -> dict[str, Any]:
    state: dict[str, Any] = process('state', [name])[name]
    return state


def test_latched_frames_don_t_come_again_as_messages_when_a_reader_is_made(start: Start) -> None:
    here, there = start(), start()
    there('open', [end('camera', 'adapted publisher', transient_local=True)])
    there('publish', {'camera': [1, 2, 3]})
    here('open', [end('sub', 'adapted subscriber', transient_local=True)])
    met(here, sub={'received': 3, 'rung': 'shared_memory'})
    there('open', [end('plain', 'plain publisher', transient_local=True)])
    there('publish', {'plain': [9]})
    met(here, sub={'received': 4, 'duplicates': 3, 'rung': 'ros_message'})
    assert one(here, 'sub')['received'] == [1, 2, 3, 9]


@pytest.mark.parametrize('kind', ['adapted', 'plain'])
def test_incompatible_qos_never_meets(start: Start, kind: str) -> None:
    """As in DDS: best effort doesn't match reliable, volatile doesn't match transient_local."""
    there, here = start(), start()
    offered = {'weak': {'best_effort': True}, 'volatile': {}}
    wanted = {'strict': {}, 'latched': {'transient_local': True}}
    publishers = [end(f'{o}_pub', f'{kind} publisher', topic=o, **offered[o]) for o in offered]
    there('open', publishers)
    # Once this compatible one has matched, the others would have, too.
    asked = [(f'{w}_of_{o}', o, wanted[w]) for w in wanted for o in offered]
    asked.append(('lenient_of_weak', 'weak', {'best_effort': True}))
    here('open', [end(name, 'adapted subscriber', topic=o, **qos) for name, o, qos in asked])
    meets = {'rung': 'ros_message' if kind == 'plain' else 'shared_memory'}
    met(here, lenient_of_weak=meets, strict_of_volatile=meets)
    others = 'strict_of_weak', 'latched_of_weak', 'latched_of_volatile'
    met(here, **{name: {'rung': 'unmatched', 'reason': 'incompatible'} for name in others})
    ready = {'readers': 1} if kind == 'plain' else {'consumers': 1}
    met(there, weak_pub=ready, volatile_pub=ready)
    there('publish', {'weak_pub': [5], 'volatile_pub': [6]})
    met(here, lenient_of_weak={'received': 1}, strict_of_volatile={'received': 1})
    if kind == 'adapted':
        assert one(there, 'weak_pub')['consumers'] == one(there, 'volatile_pub')['consumers'] == 1
    assert [one(here, name)['received'] for name in others] == [[]] * 3


def test_where_only_some_match_the_middleware_decides(start: Start) -> None:
    """An announcement doesn't state its publisher's QoS, so rung 2 might reach the wrong one."""
    here, there = start(), start()
    there('open', [end('weak', 'adapted publisher', best_effort=True)])
    there('open', [end('strong', 'adapted publisher')])
    here('open', [end('sub', 'adapted subscriber')])
    met(here, sub={'rung': 'ros_message', 'reason': 'QoS'})
    met(there, strong={'readers': 1})
    there('publish', {'weak': [1], 'strong': [2]})
    met(here, sub={'received': 1})
    there('publish', {'weak': [3], 'strong': [4]})
    met(here, sub={'received': 2})
    assert one(here, 'sub')['received'] == [2, 4]
    there('close', ['weak'])
    met(here, sub={'rung': 'shared_memory'})


def announcement(**values: Any) -> str:
    return json.dumps({**asdict(announced('a' * 32)), **values})


NONSENSE = [
    '{',  # no JSON
    announcement(socket='socket'),  # relative
    announcement(socket='\0socket'),  # abstract
    announcement(socket='/tmp/a\0b'),  # NUL
    announcement(socket='/' + 'x' * 300),  # too long
    announcement(socket='/tmp/\ud800'),  # no text
    announcement(publisher_id='x' * 33),  # id too long
    announcement(publisher_id='ä'),  # id no ASCII
    announcement(publisher_id=''),  # no id
    announcement(publisher_id='a\nb'),  # id with control characters
    announcement(),  # nothing listens at the socket
    announcement(socket='/tmp'),  # a folder
]


def test_a_stranger_s_announcements_harm_nothing(
    start: Start, here: Ros, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a connection takes longer than two seconds, and messages would be read.
    monkeypatch.setattr('zc_perception.link.endpoints.remote_links._PATIENCE_S', PATIENCE_S)
    there, latched = start(), QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    stranger = here.node('stranger').create_publisher(String, 'image/_zc', latched)
    received: list[int] = []

    def lie() -> None:
        for text in NONSENSE:
            stranger.publish(String(data=text))

    subscription = here.subscription(
        here.node('sub'),
        callback=lambda frame: received.append(frame.data.sequence),
        qos=QoSProfile(depth=5),
        remote=SharedMemoryLinks('sub'),
    )
    assert eventually(lambda: stranger.get_subscription_count() == 1)
    lie()
    there('open', [end('camera', 'adapted publisher', converts=False)])
    lie()
    met(there, camera={'consumers': 1})
    lie()
    there('publish', {'camera': [1]})
    assert eventually(lambda: received == [1])
    assert eventually(lambda: subscription.statistics().rung == 'shared_memory')
    there('publish', {'camera': [2]})
    assert eventually(lambda: received == [1, 2])
    assert one(there, 'camera')['readers'] == 0 and here.errors == []


@pytest.mark.parametrize('names', ['many', 'its own'])
def test_who_is_connected_stays_connected_whatever_a_stranger_announces(
    start: Start, here: Ros, names: str
) -> None:
    """A stranger announces extra publishers, or another address for the connected one."""
    there = start()
    links, received = SharedMemoryLinks('sub'), []
    subscription = here.subscription(
        here.node('sub'), qos=QoSProfile(depth=5), remote=links, copy_free_required=True,
        callback=lambda frame: received.append(frame.data.sequence),
    )  # fmt: skip
    there('open', [end('camera', 'adapted publisher', converts=False)])
    assert eventually(lambda: subscription.statistics().rung == 'shared_memory')
    (publisher_id,), (window,) = links.connected(), links.windows()
    latched = QoSProfile(depth=200, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    stranger, heard = here.node('stranger'), []
    here.node('witness').create_subscription(String, 'image/_zc', heard.append, latched)
    announcer = stranger.create_publisher(String, 'image/_zc', latched)
    assert eventually(lambda: announcer.get_subscription_count() == 2)
    heard.clear()
    for number in range(130):
        announcer.publish(
            String(data=announced(f'{number:032x}' if names == 'many' else publisher_id).to_json())
        )
        time.sleep(0.001)
    assert eventually(lambda: len(heard) >= 130)
    for value in (1, 2):
        there('publish', {'camera': [value]})
        assert eventually(lambda value=value: received == list(range(1, value + 1))), (
            subscription.statistics()
        )
        time.sleep(0.6)  # so that the subscription looks at the graph
    assert subscription.statistics().rung == 'shared_memory'
    stranger.destroy_publisher(announcer)
    # There is no other publisher, so the false announcements are discarded.
    assert eventually(lambda: set(links.statistics()) == {publisher_id}), links.statistics()
    assert eventually(lambda: links.windows() == [window]), 'the same connection'
    there('publish', {'camera': [3]})
    assert eventually(lambda: received == [1, 2, 3]) and here.errors == []


def test_a_publisher_on_another_host_is_read_by_messages(start: Start, here: Ros) -> None:
    there = start()
    there('open', [end('camera', 'adapted publisher', serve=False)])
    ledger, received = CopyLedger(), []
    node = here.node('sub')
    subscription = here.subscription(
        node,
        frame_adapter('mono8', ledger, holder='sub'),
        QoSProfile(depth=5),
        remote=SharedMemoryLinks('sub'),
        callback=lambda frame: received.append(frame.header.stamp_ns % 1000),
    )
    # A stranger is about to replace the real announcement by one of another host.
    node.create_publisher(String, 'image/_zc', LATCHED).publish(
        String(data=announcement(host_id='f' * 32))
    )
    assert eventually(lambda: subscription.statistics().rung == 'ros_message')
    met(there, camera={'readers': 1})
    there('publish', {'camera': [3]})
    assert eventually(lambda: received == [3]) and ledger.count('from_ros') == 1


def test_beside_greedy_ones_of_any_process_the_viewers_miss_nothing(start: Start) -> None:
    """Each greedy subscription keeps every frame that it gets, up to the two that it asked for."""
    greedy = ['camera', 'camera', 'other']
    there, here = start('multi'), start()
    processes = {'camera': there, 'other': here}
    slots = 3 + 2 * len(greedy) + 2
    there('open', [end('camera', 'adapted publisher', depth=1, converts=False, slots=slots)])
    names = [f'greedy_{number}' for number in range(len(greedy))]
    of = dict(zip(names, greedy, strict=True))
    for name, place in {**of, 'near': 'camera', 'far': 'other'}.items():
        holds = {'held': 2, 'keeps': 40} if name in of else {}
        reader = end(name, 'adapted subscriber', depth=1, converts=False, **holds)
        processes[place]('open', [reader])
    met(
        there,
        camera={'consumers': greedy.count('other') + 1, 'in_process': greedy.count('camera') + 1},
    )
    shared = {'rung': 'shared_memory'}
    met(here, far={**shared, 'windows': '1 of 1'})
    met(here, **{n: {**shared, 'windows': '2 of 2'} for n in of if of[n] == 'other'})
    for value in range(1, 41):
        there('publish', {'camera': [value]})
        met(there, near={'received': value})
        met(here, far={'received': value})
    for process, name in ((there, 'near'), (here, 'far')):
        state = one(process, name)
        assert state['received'] == list(range(1, 41)) and state['dropped'] == 0
    for name, place in of.items():
        # Its thread may be slower than the viewers', and a newer frame may precede its first
        # callback.
        process = processes[place]
        met(process, **{name: {'received': 2}})
        state = one(process, name)
        first, second = state['received']
        assert first < second and state['windows'] == '2 of 2'
        text = f'holds all 2 frame(s) that it may hold: frame {first} for'
        assert eventually(lambda process=process, text=text: text in process.log)


# Order, of publishers here or in another process, beside a plain publisher.

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
