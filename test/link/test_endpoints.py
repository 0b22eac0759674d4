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
Adapted publisher and subscription on real rclpy: identity of objects, conversion, rungs.

Then the names of rclpy that move between releases, and when a node is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
import os
from pathlib import Path
import random
import threading
import time
from types import SimpleNamespace
from typing import Any

from link_ros import announced, Camera, grey_image, publishing, RAISING, Ros, SECOND
import pytest
import rclpy
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile
from rclpy.task import Future
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String
from waiting import eventually, until

from zc_perception import create_camera_subscription
from zc_perception.errors import ConfigError
from zc_perception.frame import Frame
from zc_perception.link import rclpy_compat
from zc_perception.link.announcement import write_announcement
from zc_perception.link.endpoints import (
    AdaptedPublisher,
    AdaptedSubscription,
    discovery,
    ExtraMessage,
    IN_PROCESS,
    REFUSED,
    ROS_MESSAGE,
    SHARED_MEMORY,
    UNMATCHED,
)
from zc_perception.link.endpoints.executor_turns import NodeWatch
from zc_perception.link.endpoints.frame_subscription import FrameSubscription
from zc_perception.link.image_conversion import frame_adapter, FrameToJpeg
from zc_perception.link.rclpy_compat import answer_later, parameter_overrides
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.link.type_adapter import TypeAdapter
from zc_perception.lookout import Lookout
from zc_perception.memory.ledger import CopyLedger


def send(publisher: AdaptedPublisher[Any], frame: Frame) -> None:
    with frame:
        publisher.publish(frame)


def test_the_same_object_inode_and_address_arrive_and_nothing_is_converted(
    ros: Ros, make_pool: Any, make_frame: Callable[..., Frame]
) -> None:
    publisher, arrived = ros.publisher(ros.node('camera')), []

    def look(frame: Frame) -> None:
        with frame.map() as planes:
            place = planes[0].__array_interface__['data'][0]
            arrived.append((frame.data, place, int(planes[0][0, 0])))

    for name in ('first', 'second'):
        ros.subscription(ros.node(name), callback=look)
    frame = make_frame(make_pool(slots=4), fill=lambda luma, chroma: luma.fill(77))
    with frame.map() as planes:
        address = planes[0].__array_interface__['data'][0]

    publisher.publish(frame)

    assert eventually(lambda: len(arrived) == 2)
    for data, place, value in arrived:
        assert data is frame.data and (place, value) == (address, 77)
    found = publisher.statistics()
    assert found.conversions == found.conversion_errors == 0


def test_withheld_messages_are_never_made_and_their_readers_are_counted(
    ros: Ros, make_pool: Any, make_frame: Any
) -> None:
    pool = make_pool(slots=4)
    publisher = ros.publisher(ros.node('camera'))
    publisher.messages.withheld = 'the CPU can not read them'
    assert publisher.statistics().turned_away == 0
    ros.node('viewer').create_subscription(Image, 'image', lambda message: None, 1)
    assert eventually(lambda: publisher.statistics().turned_away == 1)
    with make_frame(pool) as frame:
        publisher.publish(frame)
        assert pool.statistics().holders == {pool.name: 1}, 'nobody keeps it for a conversion'
    publisher.messages.withheld = ''
    assert publisher.statistics().turned_away == 0
    publisher.publish(make_frame(pool, sequence=1))
    # The adapter raised an error, so it was called for the second frame only.
    assert eventually(lambda: publisher.statistics().conversion_errors == 1)


def test_a_plain_publisher_that_sends_brings_all_to_messages_until_it_goes(
    ros: Ros, make_frame: Any, logged: Callable[[], str]
) -> None:
    ledger, frames = CopyLedger(), []
    subscription = ros.subscription(
        ros.node('consumer'),
        frame_adapter('rgb8', ledger, holder='consumer'),
        callback=lambda f: frames.append((f.header.frame_id, f.header.stamp_ns)),
        qos=QoSProfile(depth=5),
    )
    node = ros.node('foreign')
    foreign = node.create_publisher(Image, 'image', 5)
    publisher = ros.publisher(
        ros.node('camera'),
        frame_adapter('rgb8', CopyLedger(), holder='camera'),
        qos=QoSProfile(depth=5),
    )

    def send_message(stamp_ns: int, encoding: str = 'rgb8') -> None:
        message = Image(width=8, height=4, step=24, encoding=encoding, data=bytes(96))
        message.header.frame_id, message.header.stamp.nanosec = 'camera', stamp_ns
        foreign.publish(message)

    def publish(stamp_ns: int) -> None:
        send(publisher, make_frame(frame_id='camera', stamp_ns=stamp_ns))
        converted = stamp_ns - 100
        assert eventually(lambda: publisher.statistics().conversions == converted)

    # The subscription reads the plain one's messages until it discovers the adapted publisher.
    assert eventually(lambda: foreign.get_subscription_count() == 1)
    assert eventually(lambda: publisher.statistics().image_readers == 1)
    assert eventually(lambda: subscription.statistics().rung == IN_PROCESS)
    publish(101)
    # The messages below may take its place in the reader's history.
    assert eventually(lambda: subscription.statistics().duplicates == 1), 'its own message'

    # A message within two seconds of a change may be older than it, so it isn't examined.
    def is_judged() -> bool:
        send_message(1, '16UC1')
        return bool(subscription.statistics().conversion_errors)

    assert eventually(is_judged)
    assert eventually(lambda: "'16UC1' can't be read as a picture, it has depths" in logged())
    publish(102)
    assert eventually(lambda: subscription.statistics().duplicates == 2), 'its own messages'
    assert subscription.statistics().rung == IN_PROCESS and ledger.count('from_ros') == 0
    # The plain publisher sends the same camera's frames later: none may be dropped as old.
    send_message(2)
    assert eventually(lambda: subscription.statistics().rung == ROS_MESSAGE)
    for number in range(3, 6):
        publish(100 + number)
        assert eventually(lambda: frames[-1:] == [('camera', 100 + number)])  # noqa: B023
        send_message(number)
        assert eventually(lambda: frames[-1:] == [('camera', number)])  # noqa: B023
    stamps = 101, 102, 2, 103, 3, 104, 4, 105, 5
    assert frames == [('camera', stamp) for stamp in stamps] and ledger.count('from_ros') == 7
    assert eventually(lambda: '[WARN]' in logged())
    assert "'/image': link is ros_message: /foreign is a plain publisher" in logged()
    node.destroy_publisher(foreign)
    assert eventually(lambda: subscription.statistics().rung == IN_PROCESS)
    assert eventually(lambda: publisher.statistics().image_readers == 0)
    converted = publisher.statistics().conversions
    send(publisher, make_frame(frame_id='alone'))
    assert eventually(lambda: frames[-1][0] == 'alone')
    assert publisher.statistics().conversions == converted


def test_a_publisher_of_another_type_is_named_with_its_type(
    ros: Ros, logged: Callable[[], str]
) -> None:
    ros.node('driver').create_publisher(CompressedImage, 'image', 1)
    subscription = ros.subscription(
        ros.node('consumer'), frame_adapter('rgb8', CopyLedger(), holder='consumer')
    )
    told = "/driver publishes sensor_msgs/msg/CompressedImage, which this node can't read: remap"
    until(lambda: told in subscription.statistics().reason)
    assert subscription.statistics().rung == UNMATCHED and subscription._reader is None
    assert eventually(lambda: f'link is unmatched: {told}' in logged())


def test_remaps_that_exchange_two_topics_are_applied_once(ros: Ros) -> None:
    swap = ['--ros-args', '-r', '/left:=/right', '-r', '/right:=/left']
    node, frames = ros.node('consumer', cli_args=swap), []
    subscription = ros.subscription(
        node,
        frame_adapter('rgb8', CopyLedger(), holder='consumer'),
        callback=lambda f: frames.append(f.header.frame_id),
        qos=QoSProfile(depth=5),
        topic='/left',
    )
    image = Image(width=2, height=2, encoding='rgb8', step=6, data=bytes(12))
    foreign = {t: ros.node(t).create_publisher(Image, f'/{t}', 5) for t in ('left', 'right')}

    def came() -> bool:
        for image.header.frame_id, publisher in foreign.items():
            publisher.publish(image)
        return len(frames) > 2

    eventually(came)
    assert set(frames) == {'right'}
    assert subscription.topic == '/right'
    eventually(lambda: '/right is a plain publisher' in subscription.choice.reason)


def test_remaps_that_exchange_two_cameras_are_applied_once_to_the_topics_beside_the_image(
    ros: Ros,
) -> None:
    swap = ['--ros-args']
    for name in ('image', 'image/compressed', 'camera_info'):
        swap += ['-r', f'/left/{name}:=/right/{name}', '-r', f'/right/{name}:=/left/{name}']
    node, others = ros.node('swapped', cli_args=swap), ros.node('others')
    jpeg = ExtraMessage(CompressedImage, '/compressed', FrameToJpeg(80, CopyLedger()))
    frames = frame_adapter('rgb8', CopyLedger(), holder='swapped')
    ros.publisher(node, frames, topic='/left/image', extras=[jpeg])
    ros.own(create_camera_subscription(node, '/left/image', print))
    until(lambda: others.count_publishers('/right/image/compressed') == 1)
    until(lambda: others.count_subscribers('/right/camera_info') == 1)


def test_keep_all_with_transient_local_is_refused_for_frames_only(ros: Ros) -> None:
    for_ever = QoSProfile(
        history=HistoryPolicy.KEEP_ALL, durability=DurabilityPolicy.TRANSIENT_LOCAL
    )
    with pytest.raises(ConfigError, match='transient_local'):
        ros.publisher(ros.node('camera'), qos=for_ever)
    ros.publisher(ros.node('speaker'), text_adapter(), for_ever, 'text')


def test_a_topic_without_room_for_its_announcements_is_said_and_one_with_room_is_served(
    ros: Ros, make_frame: Any
) -> None:
    arrived: list[Frame] = []
    node, longest = ros.node('camera'), f'/{"t" * 242}'
    for endpoint in (ros.publisher, ros.subscription):
        with pytest.raises(
            ConfigError, match=r"has 244 characters, but at most 243 are possible, because '/_zc'"
        ):
            endpoint(node, topic=f'{longest}t')
    publisher = ros.publisher(node, topic=longest)
    ros.subscription(node, topic=longest, callback=lambda frame: arrived.append(frame.keep()))
    send(publisher, make_frame())
    assert eventually(lambda: arrived)
    arrived.pop().release()


def test_a_node_that_gets_its_executor_late_misses_nothing(
    ros: Ros, make_pool: Any, make_frame: Any
) -> None:
    pool, seen = make_pool(slots=5), []
    publisher = ros.publisher(ros.node('camera'))
    node = Node('late', context=ros.context)
    subscription = AdaptedSubscription(
        node,
        RAISING,
        'image',
        QoSProfile(depth=2),
        callback=lambda frame: seen.append(frame.data.sequence),
    )
    for sequence in range(2):
        send(publisher, make_frame(pool, sequence=sequence))
    ros.executor.add_node(node)
    assert eventually(lambda: seen == [0, 1])
    send(publisher, make_frame(pool, sequence=2))
    assert eventually(lambda: seen == [0, 1, 2])
    subscription.destroy()
    ros.executor.remove_node(node)
    node.destroy_node()


def test_order_is_kept_in_a_reentrant_group(ros: Ros, make_pool: Any, make_frame: Any) -> None:
    """The group may run four callbacks at once, but only one of each subscription."""
    pool, group = make_pool(slots=40), ReentrantCallbackGroup()
    frames, messages, inside = list[int](), list[int](), list[str]()
    publisher = ros.publisher(ros.node('camera'), qos=QoSProfile(depth=30))
    foreign = ros.node('foreign').create_publisher(Image, 'plain', 30)

    def take(kind: str, into: list[int], value: int) -> None:
        inside.append(kind)
        assert inside.count(kind) == 1
        into.append(value)
        inside.remove(kind)

    ros.subscription(
        ros.node('viewer'),
        qos=QoSProfile(depth=30),
        callback_group=group,
        callback=lambda f: take('frame', frames, f.data.sequence),
    )
    reading = ros.subscription(
        ros.node('reader'),
        frame_adapter('mono8', CopyLedger(), holder='reader'),
        QoSProfile(depth=30),
        callback_group=group,
        topic='plain',
        callback=lambda f: take('message', messages, f.header.stamp_ns - SECOND),
    )
    assert eventually(lambda: foreign.get_subscription_count() == 1)
    for sequence in range(30):
        send(publisher, make_frame(pool, sequence=sequence))
        foreign.publish(grey_image(0, sequence))
    assert eventually(lambda: len(frames) == len(messages) == 30), reading.statistics()
    assert frames == messages == list(range(30)) and ros.errors == []


def test_a_publisher_that_has_only_its_file_is_found_soon_after_another_has_ended(
    here: Ros, make_pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, '_REFRESH_S', 3600.0)
    subscription = here.own(FrameSubscription(here.node('viewer'), 'image', lambda frame: None))
    domain, pool = here.context.get_domain_id(), make_pool(slots=8)
    for publisher_id in ('a' * 32, 'b' * 32, 'c' * 32):
        with SharedMemoryServer('camera', publisher_id, pool, folder=tmp_path) as server:
            write_announcement(announced(publisher_id, server.path), subscription.topic, domain)
            until(lambda: subscription.statistics().rung == SHARED_MEMORY, subscription.statistics)
        until(lambda: subscription.statistics().rung == UNMATCHED, subscription.statistics)


def test_a_publisher_that_has_only_its_file_is_found_at_the_next_look(
    here: Ros, make_pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = here.own(FrameSubscription(here.node('viewer'), 'image', lambda frame: None))
    assert not subscription._announcements.incomplete(0), 'it has read the files just now'
    monkeypatch.setattr(discovery, 'FILES_S', 3600.0)
    with SharedMemoryServer('camera', 'a' * 32, make_pool(slots=8), folder=tmp_path) as server:
        domain = here.context.get_domain_id()
        write_announcement(announced('a' * 32, server.path), subscription.topic, domain)

        def is_found() -> bool:
            os.utime(tmp_path)  # as the announcement may have the time of the last look
            return subscription.statistics().rung == SHARED_MEMORY

        until(is_found, subscription.statistics)


def test_required_copy_free_stays_direct_and_names_the_plain_publisher(
    ros: Ros, make_frame: Any, logged: Callable[[], str]
) -> None:
    seen: list[str] = []
    foreign = ros.node('foreign').create_publisher(Image, 'image', 1)
    subscription = ros.subscription(
        ros.node('strict'),
        copy_free_required=True,
        callback=lambda frame: seen.append(frame.header.frame_id),
    )
    assert eventually(lambda: subscription.statistics().rung == REFUSED)
    assert eventually(lambda: 'copy_free is required' in subscription.statistics().reason)
    assert foreign.get_subscription_count() == 0
    publisher = ros.publisher(ros.node('camera'))
    send(publisher, make_frame(frame_id='here'))
    assert eventually(lambda: seen == ['here']), 'an adapted publisher still reaches it'
    assert eventually(lambda: subscription.statistics().rung == IN_PROCESS)
    foreign.publish(Image(width=8, height=4, step=24, encoding='rgb8', data=bytes(96)))
    subscription.update_rung()
    assert foreign.get_subscription_count() == publisher.statistics().image_readers == 0
    assert [rung for rung, _ in subscription.statistics().routes] == [IN_PROCESS, REFUSED]
    assert eventually(lambda: logged().count('[ERROR]') == 2)
    assert (
        'link is in_process: /camera is in this process; copy_free is required, but /foreign is'
        in logged()
    )
    assert seen == ['here']


TEN, FIFTY = QoSProfile(depth=10), QoSProfile(depth=50)


class Text(str):
    """Another custom type for the same message type."""


def text_adapter(custom: Any = str) -> TypeAdapter[Any]:
    return TypeAdapter(
        custom, String, lambda text: String(data=str(text)), lambda message: custom(message.data)
    )


def test_two_custom_types_meet_through_the_message(ros: Ros) -> None:
    same, other, never = [], [], TypeAdapter(str, String, RAISING.to_ros, RAISING.to_custom)
    publisher = ros.publisher(ros.node('speaker'), text_adapter(), TEN, 'text')
    ros.subscription(ros.node('same'), never, TEN, topic='text', callback=same.append)
    subscription = ros.subscription(
        ros.node('other'), text_adapter(Text), TEN, topic='text', callback=other.append
    )
    assert eventually(lambda: publisher.statistics().image_readers == 1)
    assert eventually(lambda: subscription.statistics().rung == ROS_MESSAGE)
    words = ['one', '']  # no object is taken for none
    for word in words:
        publisher.publish(word)
    assert eventually(lambda: len(same) == len(other) == 2)
    assert all(found is word for found, word in zip(same, words, strict=True))
    assert other == words and {type(text) for text in other} == {Text}
    assert "only the publisher's messages can be read" in subscription.statistics().reason
    assert publisher.statistics().conversions == 2


def test_an_adapted_publisher_takes_messages_too(ros: Ros) -> None:
    objects, messages, late = [], [], []
    latched = QoSProfile(depth=3, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    publisher = ros.publisher(ros.node('speaker'), text_adapter(Text), latched, 'text')
    publisher.publish(String(data='early'))
    ros.subscription(
        ros.node('late'), text_adapter(Text), latched, topic='text', callback=late.append
    )
    ros.subscription(
        ros.node('listener'),
        text_adapter(Text),
        QoSProfile(depth=3),
        topic='text',
        callback=objects.append,
    )
    ros.node('plain').create_subscription(
        String, 'text', lambda m: messages.append(m.data), latched
    )
    assert eventually(lambda: publisher.statistics().image_readers == 1)
    publisher.publish(String(data='word'))
    assert eventually(
        lambda: late == ['early', 'word'] and objects == ['word'] and messages == ['early', 'word']
    )
    assert type(objects[0]) is Text
    assert publisher.statistics().conversions == 0, 'the message went out as it was'


def test_a_message_that_is_none_of_the_custom_type_s_still_reaches_plain_readers(ros: Ros) -> None:
    messages: list[str] = []
    publisher = ros.publisher(
        ros.node('speaker'),
        TypeAdapter(int, String, lambda n: String(data=str(n)), lambda m: int(m.data)),
        TEN,
        'number',
    )
    ros.subscription(ros.node('listener'), TypeAdapter(int, String, str, int), TEN, topic='number')
    ros.node('plain').create_subscription(String, 'number', lambda m: messages.append(m.data), TEN)
    assert eventually(lambda: publisher.statistics().image_readers == 1)
    with pytest.raises(ValueError, match='no number'):
        publisher.publish(String(data='no number'))
    assert eventually(lambda: messages == ['no number'])


def test_the_compressed_picture_is_made_only_while_somebody_reads_it(
    ros: Ros, make_frame: Any
) -> None:
    ledger, pictures = CopyLedger(), []
    extra = ExtraMessage(CompressedImage, '/compressed', FrameToJpeg(80, ledger))
    publisher = ros.publisher(
        ros.node('camera'), frame_adapter('rgb8', ledger, holder='camera'), TEN, extras=[extra]
    )
    send(publisher, make_frame())
    viewer = ros.node('viewer')
    reader = viewer.create_subscription(CompressedImage, 'image/compressed', pictures.append, TEN)
    assert eventually(lambda: viewer.count_publishers('/image/compressed') == 1)
    assert eventually(lambda: reader.get_publisher_count() == 1)
    send(publisher, make_frame(stamp_ns=7))
    assert eventually(lambda: len(pictures) == 1)
    assert pictures[0].header.stamp.nanosec == 7 and bytes(pictures[0].data[:2]) == b'\xff\xd8'
    viewer.destroy_subscription(reader)
    assert eventually(lambda: not publisher.messages.wanted())
    send(publisher, make_frame())
    assert ledger.count('to_jpeg') == 1 and ledger.count('to_ros') == 0 and len(pictures) == 1


def test_who_keeps_all_messages_gets_the_newest_when_it_goes_on_and_no_errors(ros: Ros) -> None:
    plain, seen, kept = ros.node('plain').create_publisher(Image, 'image', 80), [], []

    def on_frame(frame: Frame) -> None:
        seen.append(frame.header.stamp_ns)
        if len(seen) == 1:
            kept.append(frame.keep())

    keep_all = QoSProfile(history=HistoryPolicy.KEEP_ALL)
    subscription = FrameSubscription(ros.node('reader'), 'image', on_frame, held=1, qos=keep_all)
    assert eventually(plain.get_subscription_count)
    message = grey_image(0, None)
    for message.header.stamp.nanosec in range(1, 61):
        plain.publish(message)
    assert eventually(lambda: subscription.statistics().conversions == 60)
    assert seen == [1]
    kept.pop().release()
    assert eventually(lambda: seen[-1] == 60)
    assert len(seen) > 16 and seen[1:] == [*range(62 - len(seen), 61)]
    assert subscription.statistics().conversion_errors == 0
    subscription.destroy()


def test_a_coroutine_goes_on_when_what_it_awaits_is_there_though_nothing_else_wakes_the_executor(
    ros: Ros, tmp_path: Path
) -> None:
    source, seen, awaited = Camera(ros, 'in_process', tmp_path), list[int](), list[Any]()

    async def on_frame(frame: Frame) -> None:
        awaited.append(Future())
        await awaited[-1]
        seen.append(frame.data.sequence)

    subscription = FrameSubscription(ros.node('patient'), 'image', on_frame)
    for count in range(3):
        assert publishing(source, lambda count=count: len(awaited) > count)
        time.sleep(0.1)  # let the executor become idle
        awaited[-1].set_result(None)
        assert eventually(lambda count=count: len(seen) > count), 'within half a second or so'
    assert seen == sorted(set(seen))
    subscription.destroy()
    for future in awaited:
        future.set_result(None)
    source.destroy()


# One adapted publisher's objects and messages reach every reader in the order of the calls.


class Slow:
    def __init__(self, ros: Ros, depth: int) -> None:
        self.gate = threading.Event()
        self.plain: list[str] = []
        self.direct: list[str] = []
        adapter = TypeAdapter(str, String, self._to_ros, lambda message: message.data)
        self.publisher = ros.publisher(
            ros.node('speaker'), adapter, QoSProfile(depth=depth), 'text'
        )
        ros.subscription(
            ros.node('direct'), adapter, FIFTY, topic='text', callback=self.direct.append
        )
        ros.node('plain').create_subscription(
            String, 'text', lambda message: self.plain.append(message.data), FIFTY
        )
        assert eventually(lambda: self.publisher.statistics().image_readers == 1)

    def _to_ros(self, text: str) -> String:
        self.gate.wait(60.0)
        return String(data=text)


def test_a_message_waits_for_the_object_before_it_and_publish_does_not(ros: Ros) -> None:
    slow, message = Slow(ros, 1), String(data='second')
    slow.publisher.publish('first')
    slow.publisher.publish(message)
    message.data = 'changed by its owner'
    slow.publisher.publish(String(data='third'))
    assert eventually(lambda: slow.direct == ['first', 'second', 'third']), slow.direct
    assert slow.plain == [], 'both calls have returned while the conversion waits'
    slow.gate.set()
    assert eventually(lambda: slow.plain == ['first', 'second', 'third']), slow.plain
    slow.publisher.publish(String(data='fourth'))
    slow.publisher.publish('fifth')
    assert eventually(lambda: slow.plain[3:] == ['fourth', 'fifth']), slow.plain
    statistics = slow.publisher.statistics()
    assert (statistics.conversions, statistics.conversions_skipped) == (2, 0)


def test_any_mix_keeps_its_order_and_what_waits_is_sent_at_the_end(ros: Ros) -> None:
    slow, choose, expected = Slow(ros, 50), random.Random(9), []
    slow.gate.set()
    for number in range(40):
        expected.append(str(number))
        slow.publisher.publish(String(data=str(number)) if choose.random() < 0.5 else str(number))
    assert eventually(lambda: slow.plain == slow.direct == expected), (slow.plain, slow.direct)
    slow.gate.clear()
    slow.publisher.publish('an object')
    slow.publisher.publish(String(data='the last message'))
    opens = threading.Timer(0.2, slow.gate.set)
    opens.start()
    slow.publisher.destroy()  # sends messages that wait
    opens.join()
    assert eventually(lambda: slow.plain[-1] == 'the last message'), slow.plain


@pytest.mark.parametrize(('promised', 'waited'), [(0, range(5, 10)), (8, [9])])
def test_as_many_of_the_newest_frames_wait_as_the_slots_allow_and_the_others_are_counted(
    ros: Ros, make_pool: Any, make_frame: Any, promised: int, waited: list[int]
) -> None:
    pool, gate, converted = make_pool(slots=8), threading.Event(), list[int]()

    def convert(frame: Frame) -> Image:
        converted.append(frame.data.sequence)
        gate.wait(60.0)
        return Image()

    pool.set_quota('npu', promised)
    publisher = ros.publisher(
        ros.node('camera'), TypeAdapter(Frame, Image, convert, RAISING.to_custom), TEN
    )
    ros.node('viewer').create_subscription(Image, 'image', lambda message: None, TEN)
    assert eventually(lambda: publisher.statistics().image_readers == 1)
    for sequence in range(10):
        send(publisher, make_frame(pool, sequence=sequence))
        assert eventually(lambda: converted)
    gate.set()
    assert eventually(lambda: converted == [0, *waited]), converted
    assert publisher.statistics().conversions_skipped == 9 - len(waited)


# A node is looked at only while it is spun, and its end is no error.

SOON_S = 0.001


@pytest.fixture
def lookout(monkeypatch: pytest.MonkeyPatch) -> Lookout:
    """Use a new Lookout, so that the test can see whether it has work left."""
    made = Lookout()
    monkeypatch.setattr('zc_perception.link.endpoints.executor_turns.LOOKOUT', made)
    return made


def test_a_node_is_looked_at_once_it_is_spun(ros: Ros, lookout: Lookout) -> None:
    node = rclpy.create_node('camera', context=ros.context)
    looked, others = threading.Event(), threading.Event()
    watch = NodeWatch(node, SOON_S, looked.set)
    turns = iter(range(20))
    beside = lookout.watch(SOON_S, lambda: next(turns, None) is None and others.set())
    assert others.wait(60.0) and not looked.is_set(), 'twenty turns of others, none of it'
    executor = SingleThreadedExecutor(context=ros.context)
    executor.add_node(node)
    assert looked.wait(60.0)
    for each in (watch, beside):
        each.stop()
    executor.shutdown()
    node.destroy_node()


def test_a_publisher_of_a_context_that_was_shut_down_publishes_nothing() -> None:
    context = rclpy.Context()
    context.init()
    node = rclpy.create_node('camera', context=context)
    publisher = node.create_publisher(String, 'text', 1)
    context.shutdown()
    rclpy_compat.publish(publisher, String())
    assert rclpy_compat.subscription_count(publisher) == 0
    node.destroy_node()


@pytest.mark.parametrize('end', [Node.destroy_node, lambda node: node.context.try_shutdown()])
def test_the_end_of_a_node_or_its_context_is_the_end_of_looking_and_no_error(
    ros: Ros, lookout: Lookout, end: Callable[[Node], None], logged: Callable[[], str]
) -> None:
    node = rclpy.create_node('camera', context=ros.context)
    executor = SingleThreadedExecutor(context=ros.context)
    executor.add_node(node)
    looks: list[int] = []
    watch = NodeWatch(node, SOON_S, lambda: looks.append(node.count_publishers('/image')))
    assert eventually(lambda: looks)
    end(node)
    assert eventually(lambda: lookout._thread is None), 'there is nothing more to look at'
    assert 'Traceback' not in logged()
    watch.stop()
    executor.shutdown()


def test_another_error_of_the_middleware_is_told_and_ends_nothing(
    lookout: Lookout, logged: Callable[[], str]
) -> None:
    node = SimpleNamespace(
        executor=object(), context=SimpleNamespace(ok=lambda: True), get_namespace=lambda: '/'
    )
    looks: list[int] = []

    def fail() -> None:
        looks.append(len(looks))
        raise RuntimeError('rmw said no')

    watch = NodeWatch(node, SOON_S, fail)  # type: ignore[arg-type]
    assert eventually(lambda: len(looks) >= 3)
    del watch
    assert eventually(lambda: lookout._thread is None), 'whoever forgets it ends it'
    assert logged().count('RuntimeError: rmw said no') == 1


@pytest.mark.parametrize('called', ['send_response', '_send_response'])
@pytest.mark.parametrize('both', [False, True])
def test_an_answer_is_sent_once_whatever_an_executor_calls(called: str, both: bool) -> None:
    """The method is protected after Kilted; there may be a public one that calls it."""
    sent, waiting = list[Any](), list[Any]()
    made = SimpleNamespace()
    setattr(made, '_send_response' if both else called, lambda *values: sent.append(values))
    if both:
        made.send_response = lambda *values: made._send_response(*values)
    answer_later(made, lambda response, answer: waiting.append((response, answer)))
    getattr(made, called)('empty', 'header')
    assert not sent
    ((response, answer),) = waiting
    assert response == 'empty'
    answer('filled')
    assert sent == [('filled', 'header')] and len(waiting) == 1


def test_an_rclpy_that_has_renamed_them_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"no 'Service\.send_response'.*newer release"):
        answer_later(SimpleNamespace(), lambda response, answer: None)
    with pytest.raises(RuntimeError, match=r"no 'Node\._parameter_overrides'"):
        parameter_overrides(SimpleNamespace())  # type: ignore[arg-type]
