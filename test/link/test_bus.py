"""The in-process link: who meets whom, and what each gets."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest
from frame_queues import FrameQueue

from zc_perception.frame import Frame
from zc_perception.link.bus import BusKey, BusPublisher, BusSubscription, InProcessBus, LinkQos
from zc_perception.memory.pool import BufferPool

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]
KEY: BusKey = ('context', '/camera/image_raw', 'sensor_msgs/msg/Image')
QOS = LinkQos(1)


def subscription(
    holder: str = 'npu', qos: LinkQos = QOS, notify: Callable[[], None] | None = None
) -> BusSubscription:
    return BusSubscription(holder, qos, FrameQueue(qos.depth), notify)


def test_publisher_and_subscription_meet_in_any_order(make_frame: MakeFrame) -> None:
    bus, publisher, second = (
        InProcessBus(),
        BusPublisher('capture', QOS),
        BusPublisher('second', QOS),
    )
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


@pytest.mark.parametrize('part', [0, 1, 2])
def test_only_the_same_context_topic_and_type_meet(part: int) -> None:
    bus, publisher = InProcessBus(), BusPublisher('capture', QOS)
    bus.add_publisher(KEY, publisher)
    other = list(KEY)
    other[part] = 'other'
    bus.add_subscription(tuple(other), subscription())  # type: ignore[arg-type]
    assert publisher.matched == ()


@pytest.mark.parametrize(
    ('wanted_reliable', 'offered_reliable'), itertools.product((True, False), repeat=2)
)
@pytest.mark.parametrize(
    ('wanted_latched', 'offered_latched'), itertools.product((True, False), repeat=2)
)
def test_profiles_match_by_the_rules_of_dds(
    wanted_reliable: bool, offered_reliable: bool, wanted_latched: bool, offered_latched: bool
) -> None:
    bus = InProcessBus()
    publisher = BusPublisher('capture', LinkQos(1, offered_reliable, offered_latched))
    bus.add_publisher(KEY, publisher)
    bus.add_subscription(KEY, subscription(qos=LinkQos(5, wanted_reliable, wanted_latched)))
    # A subscription gets at least what it asks for, or nothing.
    enough = offered_reliable >= wanted_reliable and offered_latched >= wanted_latched
    assert len(publisher.matched) == enough


def test_each_subscriber_gets_a_frame_of_its_own_over_the_same_data(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool, bus, publisher = make_pool(slots=1), InProcessBus(), BusPublisher('capture', QOS)
    bus.add_publisher(KEY, publisher)
    subscriptions = [subscription('npu'), subscription('overlay')]
    for each in subscriptions:
        bus.add_subscription(KEY, each)
    frame = make_frame(pool)
    frame.published_ns = 99
    publisher.publish(frame)
    assert pool.statistics().holders == {'camera': 1, 'npu': 1, 'overlay': 1}
    frame.release()
    for each in subscriptions:
        delivery = each.queue.get()
        assert delivery is not None and delivery is not frame and delivery.data is frame.data
        assert delivery.published_ns == 99 and each.delivered == 1
        delivery.release()
    assert pool.statistics().holders == {}


def test_above_its_quota_a_subscriber_goes_without_and_the_others_do_not(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool, bus, publisher = make_pool(slots=2), InProcessBus(), BusPublisher('capture', QOS)
    pool.set_quota('slow', 1)
    bus.add_publisher(KEY, publisher)
    told: list[tuple[str, int]] = []
    slow = subscription('slow', LinkQos(None), lambda: told.append(('slow', len(slow.queue))))
    quick = subscription('quick', LinkQos(None), lambda: told.append(('quick', len(quick.queue))))
    for each in (slow, quick):
        bus.add_subscription(KEY, each)
    for sequence in range(2):
        publisher.publish(make_frame(pool, sequence=sequence))
    assert (slow.delivered, slow.refused, quick.delivered, quick.refused) == (1, 1, 2, 0)
    assert told == [('slow', 1), ('quick', 1), ('quick', 2)], (
        'nobody is woken for a frame that did not come, or before it has come'
    )
    for each in (slow, quick):
        each.queue.close()


def test_who_left_gets_nothing_and_may_leave_twice(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool, bus = make_pool(slots=1), InProcessBus()
    publisher, receiver = BusPublisher('capture', QOS), subscription()
    bus.add_publisher(KEY, publisher)
    bus.add_subscription(KEY, receiver)
    for _ in range(2):
        bus.remove_subscription(KEY, receiver)
    publisher.publish(make_frame(pool))
    assert receiver.delivered == 0 and publisher.matched == ()
    bus.add_subscription(KEY, receiver)
    for _ in range(2):
        bus.remove_publisher(KEY, publisher)
    assert publisher.matched == () and bus.publishers(KEY) == ()


def test_publishing_goes_on_while_subscribers_come_and_go(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool, bus, publisher, errors = (
        make_pool(slots=6),
        InProcessBus(),
        BusPublisher('capture', QOS),
        [],
    )
    bus.add_publisher(KEY, publisher)
    steady = subscription('steady')
    bus.add_subscription(KEY, steady)
    done = threading.Event()

    def come_and_go(number: int) -> None:
        try:
            while not done.is_set():
                visitor = subscription(f'visitor {number}')
                bus.add_subscription(KEY, visitor)
                bus.remove_subscription(KEY, visitor)
                visitor.queue.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for sequence in range(150):
        with make_frame(pool, sequence=sequence) as frame:
            publisher.publish(frame)
    done.set()
    for thread in threads:
        thread.join(20.0)
    assert errors == [] and steady.delivered == 150
    steady.queue.close()
    assert pool.statistics().holders == {}
