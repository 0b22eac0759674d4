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

"""Objects and messages of one adapted publisher reach every reader in the order of the calls."""

from __future__ import annotations

from collections.abc import Iterator
import random
import threading
from typing import Any

from link_ros import Ros
import pytest
from rclpy.qos import QoSProfile
from std_msgs.msg import String
from waiting import eventually

from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedPublisher
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.type_adapter import TypeAdapter
from zc_perception.memory.ledger import CopyLedger


class Slow:
    """Texts whose conversion waits at a gate, for a plain reader and one of this process."""

    def __init__(self, ros: Ros, depth: int) -> None:
        self.gate = threading.Event()
        self.plain: list[str] = []
        self.direct: list[str] = []
        node = ros.node('plain')
        self.publisher: AdaptedPublisher[Any] = ros.publisher(
            ros.node('speaker'), self._adapter(), QoSProfile(depth=depth), 'text'
        )
        ros.subscription(
            ros.node('direct'),
            self._adapter(),
            QoSProfile(depth=50),
            topic='text',
            callback=self.direct.append,
        )
        node.create_subscription(
            String, 'text', lambda message: self.plain.append(message.data), QoSProfile(depth=50)
        )
        assert eventually(lambda: self.publisher.statistics().image_readers == 1)

    def _adapter(self) -> TypeAdapter[str]:
        return TypeAdapter(str, String, self._to_ros, lambda message: message.data)

    def _to_ros(self, text: str) -> String:
        self.gate.wait(60.0)
        return String(data=text)


@pytest.mark.parametrize('depth', [1, 10])
def test_a_message_waits_for_the_object_before_it_and_publish_does_not(
    ros: Ros, depth: int
) -> None:
    slow, message = Slow(ros, depth), String(data='second')
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


def test_any_mix_keeps_its_order(ros: Ros) -> None:
    slow, choose, expected = Slow(ros, 50), random.Random(9), []
    slow.gate.set()
    for number in range(40):
        expected.append(str(number))
        slow.publisher.publish(String(data=str(number)) if choose.random() < 0.5 else str(number))
    assert eventually(lambda: slow.plain == slow.direct == expected), (slow.plain, slow.direct)


def test_messages_that_wait_are_sent_when_the_publisher_ends(ros: Ros) -> None:
    slow = Slow(ros, 10)
    slow.publisher.publish('first')
    slow.publisher.publish(String(data='second'))
    opens = threading.Timer(0.2, slow.gate.set)
    opens.start()
    slow.publisher.destroy()
    opens.join()
    assert eventually(lambda: slow.plain[-1:] == ['second']), slow.plain


@pytest.fixture
def camera(here: Ros) -> Iterator[AdaptedPublisher[Frame]]:
    ledger = CopyLedger()
    adapter = frame_adapter('mono8', ledger, holder='camera')
    publisher = here.publisher(here.node('camera'), adapter, QoSProfile(depth=10))
    yield publisher
    adapter.to_custom.close()  # type: ignore[attr-defined]
