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
Adapted publisher and subscription on real rclpy.

That is: identity of what is handed over, lazy conversion, rungs.
"""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Any

from link_ros import Ros
import pytest
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import String
from waiting import eventually

from zc_perception.errors import ConfigError
from zc_perception.frame import Frame
from zc_perception.link.endpoints import IN_PROCESS, ROS_MESSAGE
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.type_adapter import TypeAdapter
from zc_perception.memory.ledger import CopyLedger


def test_the_same_object_inode_and_address_arrive_and_nothing_is_converted(
    ros: Ros, make_pool: Any, make_frame: Callable[..., Frame]
) -> None:
    publisher, arrived = ros.publisher(ros.node('camera')), []

    def look(frame: Frame) -> None:
        with frame.map() as planes:
            arrived.append(
                (
                    frame.data,
                    frame.data.buffers[0].identity,
                    planes[0].__array_interface__['data'][0],
                    int(planes[0][0, 0]),
                )
            )

    for name in ('first', 'second'):
        ros.subscription(ros.node(name), callback=look)
    frame = make_frame(make_pool(slots=4), fill=lambda luma, chroma: luma.fill(77))
    with frame.map() as planes:
        address = planes[0].__array_interface__['data'][0]

    publisher.publish(frame)

    assert eventually(lambda: len(arrived) == 2)
    for data, identity, place, value in arrived:
        assert data is frame.data
        assert identity == frame.data.buffers[0].identity
        assert place == address
        assert value == 77
    assert (
        publisher.statistics().conversions == 0 and publisher.statistics().conversion_errors == 0
    )


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
        assert pool.statistics().holders == {pool.name: 1}, (
            'nobody keeps the frame for a conversion'
        )
    publisher.messages.withheld = ''
    assert publisher.statistics().turned_away == 0
    publisher.publish(make_frame(pool, sequence=1))
    # The adapter raises: the first frame did not come to it.
    assert eventually(lambda: publisher.statistics().conversion_errors == 1)


def test_plain_readers_share_one_conversion_per_frame_with_the_frames_header(
    ros: Ros, make_frame: Callable[..., Frame]
) -> None:
    ledger, messages = CopyLedger(), []
    publisher = ros.publisher(ros.node('camera'), frame_adapter('rgb8', ledger, holder='camera'))
    viewers = ros.node('viewers')
    for _ in range(3):
        viewers.create_subscription(Image, 'image', messages.append, 1)
    assert eventually(lambda: publisher.statistics().image_readers == 3)

    publisher.publish(make_frame(stamp_ns=5_000_000_007, frame_id='left'))

    assert eventually(lambda: len(messages) == 3)
    assert ledger.count('to_ros') == 1
    assert {(m.header.stamp.sec, m.header.stamp.nanosec, m.header.frame_id) for m in messages} == {
        (5, 7, 'left')
    }


def test_every_delivery_is_its_own_frame_and_ends_with_the_callback_unless_shared(
    ros: Ros, make_pool: Any, make_frame: Any
) -> None:
    pool, kept, ended = make_pool(slots=4), [], []
    publisher = ros.publisher(ros.node('camera'))
    ros.subscription(
        ros.node('keeper'), callback=lambda frame: kept.append(frame.keep()), holder='keeper'
    )
    ros.subscription(ros.node('looker'), callback=ended.append, holder='looker')
    frame = make_frame(pool)

    publisher.publish(frame)
    frame.release()

    assert eventually(lambda: kept and ended and ended[0].released)
    assert kept[0] is not ended[0]
    assert not kept[0].released
    assert pool.statistics().holders == {'keeper': 1}
    kept.pop().release()
    assert pool.statistics().holders == {}


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

    def send(stamp_ns: int, encoding: str = 'rgb8') -> None:
        message = Image(width=8, height=4, step=24, encoding=encoding, data=bytes(96))
        message.header.frame_id, message.header.stamp.nanosec = 'camera', stamp_ns
        foreign.publish(message)

    def publish(stamp_ns: int) -> None:
        with make_frame(frame_id='camera', stamp_ns=stamp_ns) as frame:
            publisher.publish(frame)
        converted = stamp_ns - 100
        assert eventually(lambda: publisher.statistics().conversions == converted)

    # Whoever has heard of the plain one alone reads its messages until the other is heard of, too.
    assert eventually(
        lambda: (
            foreign.get_subscription_count() == 1
            and publisher.statistics().image_readers == 1
            and subscription.statistics().rung == IN_PROCESS
        )
    )
    publish(101)

    # What comes within two seconds of a change may have been sent before it, and is not judged.
    def is_judged() -> bool:
        send(1, '16UC1')
        return bool(subscription.statistics().conversion_errors)

    assert eventually(is_judged)
    publish(102)
    assert eventually(lambda: subscription.statistics().duplicates == 2), 'its own messages'
    assert subscription.statistics().rung == IN_PROCESS and ledger.count('from_ros') == 0
    # The same camera by both, and the plain one is late: nothing of it is taken for old.
    send(2)
    assert eventually(lambda: subscription.statistics().rung == ROS_MESSAGE)
    for number in range(3, 6):
        publish(100 + number)
        assert eventually(lambda: frames[-1:] == [('camera', 100 + number)])  # noqa: B023
        send(number)
        assert eventually(lambda: frames[-1:] == [('camera', number)])  # noqa: B023
    assert (
        frames == [('camera', stamp) for stamp in (101, 102, 2, 103, 3, 104, 4, 105, 5)]
        and ledger.count('from_ros') == 7
    )
    assert eventually(lambda: '[WARN]' in logged())
    assert "'/image': link is ros_message: /foreign is a plain publisher" in logged()
    node.destroy_publisher(foreign)
    assert eventually(
        lambda: (
            subscription.statistics().rung == IN_PROCESS
            and publisher.statistics().image_readers == 0
        )
    )
    converted = publisher.statistics().conversions
    with make_frame(frame_id='alone') as frame:
        publisher.publish(frame)
    assert eventually(lambda: frames[-1][0] == 'alone')
    assert publisher.statistics().conversions == converted


def test_keep_all_with_transient_local_is_refused_for_frames_only(ros: Ros) -> None:
    for_ever = QoSProfile(
        history=HistoryPolicy.KEEP_ALL, durability=DurabilityPolicy.TRANSIENT_LOCAL
    )
    with pytest.raises(ConfigError, match='transient_local'):
        ros.publisher(ros.node('camera'), qos=for_ever)
    ros.publisher(
        ros.node('speaker'),
        TypeAdapter(str, String, lambda text: String(data=text), lambda m: m.data),
        qos=for_ever,
        topic='text',
    )


def test_a_topic_without_room_for_its_announcements_is_said_and_one_with_room_is_served(
    ros: Ros, make_frame: Any
) -> None:
    arrived: list[Frame] = []
    node, longest = ros.node('camera'), f'/{"t" * 242}'
    for endpoint in (ros.publisher, ros.subscription):
        with pytest.raises(
            ConfigError, match=r"has 244 characters, and at most 243 leave room for '/_zc'"
        ):
            endpoint(node, topic=f'{longest}t')
    publisher = ros.publisher(node, topic=longest)
    ros.subscription(node, topic=longest, callback=lambda frame: arrived.append(frame.keep()))
    with make_frame() as frame:
        publisher.publish(frame)
    assert eventually(lambda: arrived)
    arrived.pop().release()


def test_remaps_and_namespaces_decide_who_meets(ros: Ros, make_frame: Any) -> None:
    arrived: list[int] = []
    node = Node(
        'camera',
        context=ros.context,
        namespace='/front',
        cli_args=['--ros-args', '-r', 'image:=/shared/picture'],
    )
    ros.executor.add_node(node)
    publisher = ros.publisher(node)
    assert publisher.topic == '/shared/picture'
    ros.subscription(
        ros.node('here'),
        callback=lambda f: arrived.append(f.data.sequence),
        topic='/shared/picture',
    )
    ros.subscription(
        ros.node('there'), callback=lambda f: arrived.append(-1), topic='/front/image'
    )
    with make_frame(sequence=3) as frame:
        publisher.publish(frame)
    assert eventually(lambda: arrived == [3])
    time.sleep(0.1)
    assert arrived == [3]
