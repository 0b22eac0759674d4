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

"""The in-process link: which publisher matches which subscription, and what each receives."""

from __future__ import annotations

from collections.abc import Callable
import itertools

from frame_queues import FrameQueue
import pytest

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
    # As in DDS, a publisher that offers less than the subscription wants doesn't match.
    enough = offered_reliable >= wanted_reliable and offered_latched >= wanted_latched
    assert len(publisher.matched) == enough
