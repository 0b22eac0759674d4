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
Type adaptation of anything.

Types without a header, arrays, two custom types on one topic, messages from an adapted publisher.
"""

from __future__ import annotations

import array
from collections.abc import Iterator
from typing import Any

from link_program import executor_exists, EXECUTORS
from link_ros import RAISING, Ros
import numpy as np
import pytest
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String
from waiting import eventually

from zc_perception.link.endpoints import ExtraMessage, ROS_MESSAGE
from zc_perception.link.image_conversion import frame_adapter, FrameToJpeg
from zc_perception.link.type_adapter import TypeAdapter
from zc_perception.memory.ledger import CopyLedger

TEN = QoSProfile(depth=10)


class Text(str):
    """Another custom type for the same message."""


def text_adapter(custom: Any = str) -> TypeAdapter[Any]:
    return TypeAdapter(
        custom, String, lambda text: String(data=str(text)), lambda message: custom(message.data)
    )


def to_image(pixels: np.ndarray[Any, Any]) -> Image:
    height, width = pixels.shape
    return Image(
        width=width,
        height=height,
        step=width,
        encoding='mono8',
        data=array.array('B', pixels.tobytes()),
    )


ARRAYS = TypeAdapter(
    np.ndarray,
    Image,
    to_image,
    lambda m: np.frombuffer(m.data, np.uint8).reshape(m.height, m.width),
)


@pytest.fixture(params=[kind for kind in EXECUTORS if executor_exists(kind)])
def ros(request: pytest.FixtureRequest, free_domain: int) -> Iterator[Ros]:
    opened = Ros(free_domain, request.param)
    yield opened
    opened.close()


def test_any_object_arrives_as_itself_and_as_a_message(ros: Ros) -> None:
    objects, arrays, messages = [], [], []
    publisher = ros.publisher(ros.node('speaker'), text_adapter(), TEN, 'text')
    painter = ros.publisher(ros.node('painter'), ARRAYS, TEN, 'picture')
    ros.subscription(
        ros.node('listener'),
        TypeAdapter(str, String, RAISING.to_ros, RAISING.to_custom),
        TEN,
        topic='text',
        callback=objects.append,
    )
    ros.subscription(ros.node('viewer'), ARRAYS, TEN, topic='picture', callback=arrays.append)
    plain = ros.node('plain')
    plain.create_subscription(String, 'text', lambda m: messages.append(m.data), TEN)
    plain.create_subscription(Image, 'picture', lambda m: messages.append(bytes(m.data)), TEN)
    assert eventually(
        lambda: (
            publisher.statistics().image_readers == 1 and painter.statistics().image_readers == 1
        )
    )
    word, pixels = (
        'a word of its own'.replace('own', 'kind'),
        np.arange(6, dtype=np.uint8).reshape(2, 3),
    )
    publisher.publish(word)
    painter.publish(pixels)
    assert eventually(lambda: len(messages) == 2 and objects and arrays)
    assert objects[0] is word and arrays[0] is pixels
    assert sorted(map(str, messages)) == sorted(map(str, [word, pixels.tobytes()]))
    assert publisher.statistics().conversions == painter.statistics().conversions == 1


@pytest.mark.parametrize('adapter', ['text', 'array'])
def test_types_without_a_header_come_once_on_a_mixed_topic(ros: Ros, adapter: str) -> None:
    """Only the middleware's word on each message tells that it is a local object's."""
    made = text_adapter() if adapter == 'text' else ARRAYS
    values: list[Any] = (
        [str(n) for n in range(20)]
        if adapter == 'text'
        else [np.full((2, 2), n, np.uint8) for n in range(20)]
    )
    received: list[str] = []
    publisher = ros.publisher(ros.node('speaker'), made, TEN, 'topic')
    subscription = ros.subscription(
        ros.node('listener'),
        made,
        TEN,
        topic='topic',
        callback=lambda item: received.append(str(item)),
    )
    foreign = ros.node('foreign').create_publisher(made.ros_type, 'topic', TEN)
    assert eventually(
        lambda: (
            subscription.statistics().rung == ROS_MESSAGE and foreign.get_subscription_count() == 1
        )
    )
    assert eventually(lambda: publisher.statistics().image_readers == 1)
    expected = []
    for number, value in enumerate(values):
        if number % 2:
            foreign.publish(made.to_ros(value))
        else:
            publisher.publish(value)
        expected.append(str(value))
        assert eventually(lambda: len(received) >= len(expected))
    assert eventually(lambda: publisher.statistics().conversions == 10)
    # One more of each: whatever was to come twice has come by now.
    foreign.publish(made.to_ros(values[0]))
    assert eventually(lambda: len(received) == 21)
    assert received == [*expected, expected[0]]


def test_two_custom_types_meet_through_the_message(ros: Ros) -> None:
    same, other = [], []
    publisher = ros.publisher(ros.node('speaker'), text_adapter(), TEN, 'text')
    ros.subscription(ros.node('same'), text_adapter(), TEN, topic='text', callback=same.append)
    subscription = ros.subscription(
        ros.node('other'), text_adapter(Text), TEN, topic='text', callback=other.append
    )
    assert eventually(
        lambda: (
            publisher.statistics().image_readers == 1
            and subscription.statistics().rung == ROS_MESSAGE
        )
    )
    for word in ('one', 'two'):
        publisher.publish(word)
    assert eventually(lambda: len(same) == len(other) == 2)
    assert (
        other == ['one', 'two']
        and {type(text) for text in other} == {Text}
        and {type(text) for text in same} == {str}
    )
    assert 'another type' in subscription.statistics().reason
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
    with make_frame() as frame:
        publisher.publish(frame)
    viewer = ros.node('viewer')
    reader = viewer.create_subscription(CompressedImage, 'image/compressed', pictures.append, TEN)
    assert eventually(
        lambda: (
            viewer.count_publishers('/image/compressed') == 1 and reader.get_publisher_count() == 1
        )
    )
    with make_frame(stamp_ns=7) as frame:
        publisher.publish(frame)
    assert eventually(lambda: len(pictures) == 1)
    assert pictures[0].header.stamp.nanosec == 7 and bytes(pictures[0].data[:2]) == b'\xff\xd8'
    viewer.destroy_subscription(reader)
    assert eventually(lambda: not publisher.messages.wanted())
    with make_frame() as frame:
        publisher.publish(frame)
    assert ledger.count('to_jpeg') == 1 and ledger.count('to_ros') == 0 and len(pictures) == 1
