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
The function create_camera_subscription(): a frame comes with its camera_info, in order.

Frames without one stop nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import threading
import time
from typing import Any

from link_ros import Ros
from one_camera import Camera, number_of, publishing
import pytest
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CameraInfo
from waiting import eventually

from zc_perception import create_camera_subscription
from zc_perception.frame import Frame
from zc_perception.link.endpoints import frame_subscription
from zc_perception.link.endpoints.frame_subscription import FrameSubscription

Cameras = Callable[..., Camera]


class Infos:
    """Publishes the messages that belong to :class:`Camera`'s frames."""

    def __init__(self, node: Node, topic: str = 'camera_info') -> None:
        self._publisher = node.create_publisher(CameraInfo, topic, QoSProfile(depth=50))

    def publish(self, number: int) -> None:
        info = CameraInfo(width=number)
        info.header.stamp.sec, info.header.stamp.nanosec = 1, number
        self._publisher.publish(info)

    @property
    def met(self) -> bool:
        return bool(self._publisher.get_subscription_count())


@pytest.fixture
def infos(here: Ros) -> Infos:
    return Infos(here.node('infos'))


@pytest.fixture
def pairs(here: Ros) -> Iterator[Callable[..., tuple[FrameSubscription, list[tuple[int, int]]]]]:
    """Make a subscription, and the list of what it gets."""
    made: list[FrameSubscription] = []

    def make(
        callback: Callable[[Frame, CameraInfo], Any] | None = None, **options: Any
    ) -> tuple[FrameSubscription, list[tuple[int, int]]]:
        seen: list[tuple[int, int]] = []

        def note(frame: Frame, info: CameraInfo) -> None:
            seen.append((number_of(frame), info.width))

        made.append(
            create_camera_subscription(
                here.node(f'viewer{len(made)}'), 'image', callback or note, **options
            )
        )
        return made[-1], seen

    yield make
    for each in made:
        each.destroy()


Pairs = Callable[..., tuple[FrameSubscription, list[tuple[int, int]]]]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine: a message is in time for its frame."""
    monkeypatch.setattr(frame_subscription, '_PATIENCE_NS', 60_000_000_000)


def begin(source: Camera, infos: Infos, subscription: FrameSubscription) -> None:
    assert eventually(lambda: source.met(subscription) and infos.met), subscription.statistics()


def pairing(source: Camera, infos: Infos, condition: Callable[[], object]) -> bool:
    """Whether *condition* came true while frames and their messages were published."""

    def publish() -> None:
        infos.publish(source.publish())
        time.sleep(0.01)

    return eventually(condition, pause=publish)


@pytest.mark.usefixtures('patient')
@pytest.mark.parametrize('first', ['frame', 'info'])
def test_a_frame_comes_with_the_message_of_its_stamp_whichever_is_first(
    camera: Cameras, infos: Infos, pairs: Pairs, first: str
) -> None:
    source = camera()
    subscription, seen = pairs()
    begin(source, infos, subscription)
    for count in range(1, 31):
        if first == 'info':
            infos.publish(count)
            time.sleep(0.003)
        assert source.publish() == count
        if first == 'frame':
            time.sleep(0.003)
            infos.publish(count)
        assert eventually(lambda count=count: len(seen) == count), (
            count,
            seen,
            subscription.statistics(),
        )
    assert seen == [(number, number) for number in range(1, 31)]
    assert subscription.statistics().dropped == 0


def test_a_coroutine_gets_pairs_one_at_a_time(camera: Cameras, infos: Infos, pairs: Pairs) -> None:
    source, seen, running = camera(), [], []

    async def on_pair(frame: Frame, info: CameraInfo) -> None:
        running.append(1)
        assert len(running) == 1 and not frame.released
        seen.append((number_of(frame), info.width))
        running.pop()

    subscription, _ = pairs(on_pair)
    begin(source, infos, subscription)

    assert pairing(source, infos, lambda: len(seen) > 10)
    assert all(frame == info for frame, info in seen) and seen == sorted(set(seen))


def test_frames_without_a_message_stop_nobody_and_are_said(
    camera: Cameras, infos: Infos, pairs: Pairs, logged: Callable[[], str]
) -> None:
    source = camera()
    subscription, seen = pairs()
    begin(source, infos, subscription)
    assert publishing(
        source,
        lambda: (
            "no camera_info with their stamps on '/camera_info', where nothing came so far"
            in logged()
        ),
    )
    assert seen == [] and source.missed == 0, 'the camera went on'
    assert eventually(
        lambda: all(age_s < 2.0 for _, age_s in subscription.statistics().in_hand)
    ), 'no frame is held for ever'
    assert 'because this consumer holds all' not in logged()
    assert subscription.statistics().dropped > 2

    assert pairing(source, infos, lambda: len(seen) > 10), subscription.statistics()
    assert all(frame == info for frame, info in seen) and seen == sorted(set(seen))


@pytest.mark.usefixtures('patient')
def test_a_message_that_is_lost_costs_its_frame_and_no_other(
    camera: Cameras, infos: Infos, pairs: Pairs
) -> None:
    source = camera(slots=16)
    subscription, seen = pairs(depth=4)
    begin(source, infos, subscription)
    wanted = []
    for _ in range(30):
        number = source.publish()
        if number % 3:
            infos.publish(number)
            wanted.append((number, number))
            assert eventually(lambda: seen == wanted), (seen, subscription.statistics())
        else:
            time.sleep(0.005)
    assert subscription.statistics().dropped in (9, 10), 'the last one waits'


@pytest.mark.parametrize(
    ('topic', 'wanted'),
    [
        ('front/image_raw', '/ns/front/camera_info'),
        ('/left/color/image', '/left/color/camera_info'),
        ('image', '/ns/camera_info'),
    ],
)
def test_the_topic_of_the_messages_is_beside_the_image_s(
    here: Ros, topic: str, wanted: str
) -> None:
    node = Node('viewer', namespace='ns', context=here.context)
    here.executor.add_node(node)
    create_camera_subscription(node, topic, lambda frame, info: None)
    topics = dict(node.get_subscriber_names_and_types_by_node('viewer', '/ns'))
    assert topics[wanted] == ['sensor_msgs/msg/CameraInfo']
    here.executor.remove_node(node)
    node.destroy_node()
    assert not [thread for thread in threading.enumerate() if 'receiver' in thread.name]


def test_both_topics_are_remapped_as_image_transport_s(here: Ros) -> None:
    node = Node(
        'viewer', context=here.context, cli_args=['--ros-args', '-r', 'image:=/front/color']
    )
    here.executor.add_node(node)
    subscription = create_camera_subscription(node, 'image', lambda frame, info: None)
    assert subscription.topic == '/front/color'
    assert '/front/camera_info' in {
        name for name, _ in node.get_subscriber_names_and_types_by_node('viewer', '/')
    }
    subscription.destroy()
    # The graph is told of it a little later.
    assert eventually(
        lambda: (
            '/front/camera_info'
            not in {name for name, _ in node.get_subscriber_names_and_types_by_node('viewer', '/')}
        )
    )
    here.executor.remove_node(node)
    node.destroy_node()
