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
Producers that publish no messages on the topic.

Without ROS they have their file, with ROS their announcement alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from link_ros import announced, LATCHED, Ros
import pytest
from std_msgs.msg import String
from waiting import eventually

from zc_perception.frame import Frame
from zc_perception.link.announcement import write_announcement
from zc_perception.link.endpoints import SHARED_MEMORY, SharedMemoryLinks, UNMATCHED
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.pool import BufferPool

CAMERA = 'c' * 32


@pytest.fixture
def pool(make_pool: Callable[..., BufferPool]) -> BufferPool:
    return make_pool(slots=6)


@pytest.fixture
def producer(here: Ros, pool: BufferPool) -> Iterator[SharedMemoryServer]:
    with SharedMemoryServer('camera', CAMERA, pool) as server:
        yield server


@pytest.mark.parametrize('way', ['file', 'message'])
@pytest.mark.parametrize('late', [False, True])
def test_it_counts_as_a_publisher(
    here: Ros,
    free_domain: int,
    producer: SharedMemoryServer,
    pool: BufferPool,
    make_frame: Any,
    way: str,
    late: bool,
) -> None:
    arrived: list[int] = []

    def look(frame: Frame) -> None:
        arrived.append(frame.data.sequence)

    def announce() -> None:
        if way == 'file':
            write_announcement(announced(CAMERA, producer.path), '/image', free_domain)
        else:
            writer = here.node('bare').create_publisher(String, '/image/_zc', LATCHED)
            writer.publish(String(data=announced(CAMERA, producer.path).to_json()))

    if not late:
        announce()
    viewer = here.subscription(
        here.node('viewer'),
        callback=look,
        remote=SharedMemoryLinks('viewer'),
        copy_free_required=True,
    )
    if late:
        assert viewer.statistics().rung == UNMATCHED
        announce()
    assert eventually(lambda: producer.consumers == 1)
    for sequence in range(3):
        with make_frame(pool, sequence=sequence) as frame:
            producer.publish(frame)
        assert eventually(lambda sequence=sequence: arrived == [*range(sequence + 1)])
    assert eventually(lambda: viewer.statistics().rung == SHARED_MEMORY), viewer.statistics()
    assert CAMERA[:8] in viewer.statistics().reason
    # Its end is noticed, and so is what comes after it.
    producer.close()
    assert eventually(lambda: viewer.statistics().rung == UNMATCHED), viewer.statistics()
