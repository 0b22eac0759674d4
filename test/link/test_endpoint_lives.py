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
Endpoints that come and go, callbacks that raise, wait or destroy.

Nothing is lost, leaked, blocked or out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import threading
from typing import Any

from link_program import executor_exists, EXECUTORS, open_descriptors
from link_ros import RAISING, Ros
import pytest
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from waiting import eventually

from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription, IN_PROCESS, REFUSED
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.type_adapter import TypeAdapter
from zc_perception.memory.ledger import CopyLedger


@pytest.fixture(params=[kind for kind in EXECUTORS if executor_exists(kind)])
def ros(request: pytest.FixtureRequest, dds_sockets: None, free_domain: int) -> Iterator[Ros]:
    before = open_descriptors()
    opened = Ros(free_domain, request.param)
    yield opened
    opened.close()
    # The worker threads of an executor end a little later.
    assert eventually(lambda: not open_descriptors() - before), open_descriptors() - before


def mono8(name: str) -> TypeAdapter[Frame]:
    return frame_adapter('mono8', CopyLedger(), holder=name)


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
        with make_frame(pool, sequence=sequence) as frame:
            publisher.publish(frame)
    ros.executor.add_node(node)
    assert eventually(lambda: seen == [0, 1])
    with make_frame(pool, sequence=2) as frame:
        publisher.publish(frame)
    assert eventually(lambda: seen == [0, 1, 2])
    subscription.destroy()
    ros.executor.remove_node(node)
    node.destroy_node()


def test_what_a_callback_raises_reaches_the_executor_and_costs_no_lease_and_no_frame(
    ros: Ros, make_pool: Any, make_frame: Any
) -> None:
    pool, seen, gate = make_pool(slots=8), [], threading.Event()
    publisher = ros.publisher(ros.node('camera'))

    def careless(frame: Frame) -> None:
        gate.wait(60.0)
        seen.append(frame.data.sequence)
        raise LookupError(str(frame.data.sequence))

    ros.subscription(ros.node('careless'), callback=careless, qos=QoSProfile(depth=5))
    for sequence in range(5):
        with make_frame(pool, sequence=sequence) as frame:
            publisher.publish(frame)
    gate.set()
    # Some executors raise it more than once.
    assert eventually(lambda: {str(error) for error in ros.errors} == set('01234')), (
        seen,
        ros.errors,
    )
    assert seen == [0, 1, 2, 3, 4]
    ros.errors.clear()
    assert eventually(lambda: pool.statistics().holders == {})


def test_a_callback_may_destroy_its_own_subscription(
    ros: Ros, make_pool: Any, make_frame: Any
) -> None:
    pool, seen = make_pool(slots=6), []
    publisher = ros.publisher(ros.node('camera'))

    def once(frame: Frame) -> None:
        seen.append(frame.data.sequence)
        subscription.destroy()

    subscription = ros.subscription(ros.node('once'), callback=once, qos=QoSProfile(depth=3))
    for sequence in range(3):
        with make_frame(pool, sequence=sequence) as frame:
            publisher.publish(frame)
    assert eventually(lambda: seen and pool.statistics().holders == {})
    assert len(seen) == 1 and publisher.statistics().in_process_subscriptions == 0


def test_destroying_while_frames_flow_leaks_nothing_and_disturbs_nobody(
    ros: Ros, make_pool: Any, make_frame: Any
) -> None:
    pool, errors, done, seen = make_pool(slots=16), [], threading.Event(), []
    camera, visitors = ros.node('camera'), ros.node('visitors')
    publisher = ros.publisher(camera, mono8('camera'), QoSProfile(depth=2))
    ros.subscription(
        ros.node('steady'),
        callback=lambda frame: seen.append(frame.data.sequence),
        qos=QoSProfile(depth=2),
    )

    def flow() -> None:
        sequence = 0
        try:
            while not done.is_set():
                with make_frame(pool, sequence=sequence) as frame:
                    publisher.publish(frame)
                sequence += 1
                done.wait(0.002)
        except Exception as error:
            errors.append(error)

    flowing = threading.Thread(target=flow)
    flowing.start()
    try:
        for _ in range(15):
            visited: list[int] = []
            visitor = AdaptedSubscription(
                visitors,
                RAISING,
                'image',
                QoSProfile(depth=2),
                callback=lambda frame, visited=visited: visited.append(frame.data.sequence),
            )
            assert eventually(lambda visited=visited: len(visited) > 2)
            if ros.kind == 'events':
                ros.on_executor(visitor.destroy)
            else:
                visitor.destroy()
        publisher.destroy()
        assert len(seen) > 10
    finally:
        done.set()
        flowing.join(60.0)
    assert errors == [] and ros.errors == []
    assert seen == sorted(set(seen))
    assert eventually(lambda: pool.statistics().holders == {})
    assert not [
        thread.name
        for thread in threading.enumerate()
        if 'to_ros' in thread.name or 'shared-memory' in thread.name
    ]


def test_order_is_kept_in_a_reentrant_group(
    free_domain: int, make_pool: Any, make_frame: Any
) -> None:
    """Four threads may run this group's callbacks at once, but not those of one subscription."""
    ros = Ros(free_domain, 'multi')
    try:
        pool, group, frames, messages, inside = (
            make_pool(slots=40),
            ReentrantCallbackGroup(),
            [],
            [],
            [],
        )
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
            mono8('reader'),
            QoSProfile(depth=30),
            callback_group=group,
            topic='plain',
            callback=lambda f: take('message', messages, f.header.stamp_ns),
        )
        assert eventually(lambda: foreign.get_subscription_count() == 1)
        for sequence in range(30):
            with make_frame(pool, sequence=sequence) as frame:
                publisher.publish(frame)
            message = Image(width=32, height=16, step=32, encoding='mono8', data=bytes(512))
            message.header.stamp.nanosec = sequence
            foreign.publish(message)
        assert eventually(lambda: len(frames) == 30 and len(messages) == 30), (
            len(frames),
            len(messages),
            reading.statistics(),
        )
        assert frames == messages == list(range(30)) and ros.errors == []
    finally:
        ros.close()


def test_an_adapter_that_keeps_a_view_costs_one_lease_and_not_the_conversions(
    ros: Ros, make_pool: Any, make_frame: Any
) -> None:
    pool, kept, messages = make_pool(slots=4), [], []
    convert = mono8('camera').to_ros

    def keeping(frame: Frame) -> Image:
        with frame.map() as planes:
            kept[:] = [planes[0]]
        return convert(frame)

    publisher = ros.publisher(
        ros.node('camera'), TypeAdapter(Frame, Image, keeping, RAISING.to_custom)
    )
    ros.node('viewer').create_subscription(Image, 'image', messages.append, 1)
    assert eventually(lambda: publisher.statistics().image_readers == 1)
    for number in range(1, 6):
        with make_frame(pool, sequence=number) as frame:
            publisher.publish(frame)
        assert eventually(lambda number=number: len(messages) == number)
    kept.clear()
    publisher.destroy()
    pool.collect()
    assert eventually(lambda: pool.statistics().holders == {})


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
    assert eventually(
        lambda: (
            subscription.statistics().rung == REFUSED
            and 'copy_free is required' in subscription.statistics().reason
        )
    )
    assert foreign.get_subscription_count() == 0
    publisher = ros.publisher(ros.node('camera'))
    with make_frame(frame_id='here') as frame:
        publisher.publish(frame)
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
