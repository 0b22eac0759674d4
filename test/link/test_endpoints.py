"""Adapted publisher and subscription on real rclpy: identity of what is handed over, lazy conversion, rungs."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rclpy
from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

from zc_perception.errors import ConfigError
from zc_perception.frame import Frame
from zc_perception.link.endpoints import IN_PROCESS, ROS_MESSAGE, UNMATCHED, AdaptedPublisher, AdaptedSubscription
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.type_adapter import TypeAdapter
from zc_perception.memory.ledger import CopyLedger


class ConversionRan(Exception):
    """Raised by an adapter that must never be asked."""


def _refuse(value: Any) -> Any:
    raise ConversionRan(value)


RAISING = TypeAdapter(Frame, Image, _refuse, _refuse)


class Ros:
    """A context with one spinning executor."""

    def __init__(self, domain: int, executor: type[SingleThreadedExecutor] | type[MultiThreadedExecutor]) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.executor = executor(context=self.context)
        self._nodes: list[Node] = []
        self._endpoints: list[Any] = []
        self._thread = threading.Thread(target=self.executor.spin, daemon=True)
        self._thread.start()

    def node(self, name: str) -> Node:
        node = Node(name, context=self.context)
        self.executor.add_node(node)
        self._nodes.append(node)
        return node

    def publisher(
        self, node: Node, adapter: TypeAdapter[Frame] = RAISING, qos: QoSProfile | None = None, topic: str = 'image'
    ) -> AdaptedPublisher:
        self._endpoints.append(AdaptedPublisher(node, adapter, topic, qos or QoSProfile(depth=1)))
        return self._endpoints[-1]

    def subscription(
        self, node: Node, adapter: TypeAdapter[Frame] = RAISING, qos: QoSProfile | None = None, **options: Any
    ) -> AdaptedSubscription:
        topic = options.pop('topic', 'image')
        self._endpoints.append(AdaptedSubscription(node, adapter, topic, qos or QoSProfile(depth=1), **options))
        return self._endpoints[-1]

    def close(self) -> None:
        self.executor.shutdown()
        self._thread.join(5)
        for endpoint in self._endpoints:
            endpoint.destroy()
        for node in self._nodes:
            node.destroy_node()
        self.context.try_shutdown()


@pytest.fixture(params=[SingleThreadedExecutor, MultiThreadedExecutor], ids=['single', 'multi'])
def ros(request: pytest.FixtureRequest, free_domain: int) -> Iterator[Ros]:
    opened = Ros(free_domain, request.param)
    yield opened
    opened.close()


def eventually(condition: Callable[[], Any], seconds: float = 15.0) -> bool:
    """Whether *condition* came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


def test_the_same_object_inode_and_address_arrive_and_nothing_is_converted(ros: Ros, make_frame: Callable[..., Frame]) -> None:
    publisher, arrived = ros.publisher(ros.node('camera')), []

    def look(frame: Frame) -> None:
        with frame.map() as planes:
            arrived.append((frame.data, frame.data.buffers[0].identity, planes[0].__array_interface__['data'][0], int(planes[0][0, 0])))

    for name in ('first', 'second'):
        ros.subscription(ros.node(name), callback=look)
    frame = make_frame(fill=lambda luma, chroma: luma.fill(77))
    with frame.map() as planes:
        address = planes[0].__array_interface__['data'][0]

    publisher.publish(frame)

    assert eventually(lambda: len(arrived) == 2)
    for data, identity, place, value in arrived:
        assert data is frame.data
        assert identity == frame.data.buffers[0].identity
        assert place == address
        assert value == 77
    assert publisher.statistics().conversions == 0 and publisher.statistics().conversion_errors == 0


def test_a_plain_reader_makes_the_raising_adapter_raise(ros: Ros, make_frame: Callable[..., Frame]) -> None:
    """The proof that the adapter of the test above would have been noticed."""
    publisher = ros.publisher(ros.node('camera'))
    ros.node('viewer').create_subscription(Image, 'image', lambda message: None, 1)
    assert eventually(lambda: publisher.image_readers() == 1)

    publisher.publish(make_frame())

    assert eventually(lambda: publisher.statistics().conversion_errors == 1)


def test_plain_readers_share_one_conversion_per_frame_with_the_frames_header(ros: Ros, make_frame: Callable[..., Frame]) -> None:
    ledger, messages = CopyLedger(), []
    publisher = ros.publisher(ros.node('camera'), frame_adapter('rgb8', ledger, holder='camera'))
    viewers = ros.node('viewers')
    for _ in range(3):
        viewers.create_subscription(Image, 'image', messages.append, 1)
    assert eventually(lambda: publisher.image_readers() == 3)

    publisher.publish(make_frame(stamp_ns=5_000_000_007, frame_id='left'))

    assert eventually(lambda: len(messages) == 3)
    assert ledger.count('to_ros') == 1
    assert {(m.header.stamp.sec, m.header.stamp.nanosec, m.header.frame_id) for m in messages} == {(5, 7, 'left')}


def test_every_delivery_is_its_own_frame_and_ends_with_the_callback_unless_shared(ros: Ros, make_pool: Any, make_frame: Any) -> None:
    pool, kept, ended = make_pool(slots=4), [], []
    publisher = ros.publisher(ros.node('camera'))
    ros.subscription(ros.node('keeper'), callback=lambda frame: kept.append(frame.share()), holder='keeper')
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


def test_a_view_that_outlives_the_callback_keeps_the_slot_until_it_is_gone(ros: Ros, make_pool: Any, make_frame: Any) -> None:
    pool, views = make_pool(slots=4), []
    publisher = ros.publisher(ros.node('camera'))

    def careless(frame: Frame) -> None:
        with frame.map() as planes:
            views.append(planes[0])

    ros.subscription(ros.node('careless'), callback=careless, holder='careless')
    with make_frame(pool) as frame:
        publisher.publish(frame)
    assert eventually(lambda: views)
    assert pool.statistics().holders.get('careless') == 1
    views.clear()
    gc.collect()
    with make_frame(pool, sequence=1) as frame:
        publisher.publish(frame)
    assert eventually(lambda: views)
    assert pool.statistics().holders.get('careless') == 1, 'the first lease came back with the next frame'


def test_a_slow_mailbox_keeps_the_newest_and_costs_nobody_else(ros: Ros, make_pool: Any, make_frame: Any) -> None:
    pool, seen = make_pool(slots=8), []
    publisher = ros.publisher(ros.node('camera'))
    slow = ros.subscription(ros.node('slow'), qos=QoSProfile(depth=2))
    ros.subscription(
        ros.node('quick'), callback=lambda frame: seen.append(frame.data.sequence), qos=QoSProfile(history=HistoryPolicy.KEEP_ALL)
    )

    for sequence in range(6):
        with make_frame(pool, sequence=sequence) as frame:
            publisher.publish(frame)
        assert eventually(lambda wanted=sequence: wanted in seen)

    assert seen == list(range(6))
    assert slow.statistics().dropped == 4
    waiting = [slow.queue.get() for _ in range(2)]
    assert [f.data.sequence for f in waiting if f] == [4, 5]
    for frame in waiting:
        frame.release()
    assert slow.queue.get() is None


def test_no_image_reader_while_in_process_and_one_while_the_publisher_is_foreign(ros: Ros, make_frame: Any) -> None:
    """An Image reader of ours would make our own publisher convert."""
    node = ros.node('consumer')
    ledger, frames = CopyLedger(), []
    subscription = ros.subscription(
        node, frame_adapter('rgb8', ledger, holder='consumer'), callback=lambda f: frames.append(f.header), qos=QoSProfile(depth=5)
    )
    foreign = ros.node('foreign').create_publisher(Image, 'image', 5)
    assert eventually(lambda: subscription.statistics().rung == ROS_MESSAGE)
    assert eventually(lambda: foreign.get_subscription_count() == 1)
    message = Image(width=8, height=4, step=24, encoding='rgb8', data=bytes(96))
    message.header.frame_id = 'elsewhere'
    foreign.publish(message)
    assert eventually(lambda: frames and frames[0].frame_id == 'elsewhere')
    assert ledger.count('from_ros') == 1

    publisher = ros.publisher(ros.node('camera'))
    assert eventually(lambda: subscription.statistics().rung == IN_PROCESS)
    assert eventually(lambda: foreign.get_subscription_count() == 0 and publisher.image_readers() == 0)
    with make_frame(frame_id='here') as frame:
        publisher.publish(frame)
    assert eventually(lambda: frames[-1].frame_id == 'here')
    assert publisher.statistics().conversion_errors == 0


def test_a_message_that_cannot_be_taken_is_counted_and_the_next_one_arrives(ros: Ros) -> None:
    frames: list[int] = []
    subscription = ros.subscription(
        ros.node('consumer'),
        frame_adapter('rgb8', CopyLedger(), holder='consumer'),
        callback=lambda f: frames.append(f.data.width),
        qos=QoSProfile(depth=5),
    )
    foreign = ros.node('foreign').create_publisher(Image, 'image', 5)
    assert eventually(lambda: foreign.get_subscription_count() == 1)
    foreign.publish(Image(width=8, height=4, step=24, encoding='rgb8', data=bytes(10)))
    foreign.publish(Image(width=8, height=4, step=8, encoding='bayer_rggb8', data=bytes(32)))
    foreign.publish(Image(width=8, height=4, step=24, encoding='rgb8', data=bytes(96)))
    assert eventually(lambda: frames == [8])
    assert subscription.statistics().conversion_errors == 2


def test_incompatible_qos_is_no_match_and_says_what_to_do(ros: Ros, make_frame: Any) -> None:
    arrived: list[Frame] = []
    publisher = ros.publisher(ros.node('camera'), qos=QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT))
    subscription = ros.subscription(ros.node('strict'), callback=arrived.append)
    with make_frame() as frame:
        publisher.publish(frame)
    assert eventually(lambda: 'incompatible' in subscription.statistics().reason)
    assert subscription.statistics().rung == UNMATCHED
    assert not arrived


def test_impossible_qos_is_refused(ros: Ros) -> None:
    with pytest.raises(ConfigError, match='transient_local'):
        ros.publisher(ros.node('camera'), qos=QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL))


def test_remaps_and_namespaces_decide_who_meets(ros: Ros, make_frame: Any) -> None:
    arrived: list[int] = []
    node = Node('camera', context=ros.context, namespace='/front', cli_args=['--ros-args', '-r', 'image:=/shared/picture'])
    ros.executor.add_node(node)
    publisher = ros.publisher(node)
    assert publisher.topic == '/shared/picture'
    ros.subscription(ros.node('here'), callback=lambda f: arrived.append(f.data.sequence), topic='/shared/picture')
    ros.subscription(ros.node('there'), callback=lambda f: arrived.append(-1), topic='/front/image')
    with make_frame(sequence=3) as frame:
        publisher.publish(frame)
    assert eventually(lambda: arrived == [3])
    time.sleep(0.1)
    assert arrived == [3]


def test_leaving_the_link_gives_every_lease_back(ros: Ros, make_pool: Any, make_frame: Any) -> None:
    pool = make_pool(slots=4)
    publisher = ros.publisher(ros.node('camera'))
    subscription = ros.subscription(ros.node('leaver'), qos=QoSProfile(depth=3), holder='leaver')
    for sequence in range(3):
        with make_frame(pool, sequence=sequence) as frame:
            publisher.publish(frame)
    assert pool.statistics().holders == {'leaver': 3}
    subscription.destroy()
    assert pool.statistics().holders == {}
    with make_frame(pool, sequence=3) as frame:
        publisher.publish(frame)
    assert pool.statistics().holders == {}
