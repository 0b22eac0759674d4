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

"""The function create_frame_subscription(): its lifetime, what it refuses, and its headers."""

from __future__ import annotations

from collections.abc import Callable
import gc
import threading
from typing import Any
import weakref

from builtin_interfaces.msg import Time
from link_ros import Ros
from one_camera import Camera, number_of, publishing, RESERVE
import pytest
from rclpy.node import Node
from std_msgs.msg import Header
from waiting import eventually

from zc_perception import create_camera_subscription, create_frame_subscription
from zc_perception.errors import ConfigError
from zc_perception.frame import Frame

Cameras = Callable[..., Camera]


def test_it_lives_unreferenced_as_long_as_its_node_and_ends_with_it(
    here: Ros, camera: Cameras, dds_sockets: None
) -> None:
    source, seen = camera(), []
    for life in range(3):
        node = Node(f'viewer{life}', context=here.context)
        here.executor.add_node(node)
        weak = weakref.ref(
            create_frame_subscription(node, 'image', lambda frame: seen.append(number_of(frame)))
        )
        gc.collect()
        before = len(seen)
        assert publishing(source, lambda before=before: len(seen) > before + 3)
        here.executor.remove_node(node)
        node.destroy_node()
        subscription = weak()
        assert subscription is None or subscription.queue.closed
        del subscription, node
        assert not [
            thread.name
            for thread in threading.enumerate()
            if 'receiver' in thread.name or 'connector' in thread.name
        ]
    assert seen == sorted(set(seen))
    assert eventually(lambda: source.peers() == [])
    assert eventually(lambda: source.pool.unpromised == len(source.pool.slots) - RESERVE)


def test_two_frames_may_be_held_by_default_and_more_if_asked_for(
    here: Ros, camera: Cameras
) -> None:
    source = camera(slots=16)
    for most, options in ((2, {}), (3, {'max_held': 3})):
        kept: list[Frame] = []
        subscription = create_frame_subscription(
            here.node(f'viewer{most}'),
            'image',
            lambda frame, kept=kept: kept.append(frame.keep()),
            **options,
        )
        assert eventually(lambda subscription=subscription: source.met(subscription))
        assert publishing(source, lambda kept=kept, most=most: len(kept) == most)
        for _ in range(5):
            source.publish()
        assert len(kept) == most
        for frame in kept:
            frame.release()
        subscription.destroy()


def test_stamp_and_header_are_messages(here: Ros, camera: Cameras) -> None:
    source, found = camera(), []

    def on_frame(frame: Frame) -> None:
        found.append((frame.header.stamp_ns, frame.stamp, frame.header_msg()))

    subscription = create_frame_subscription(here.node('viewer'), 'image', on_frame)
    assert eventually(lambda: source.met(subscription))
    assert publishing(source, lambda: found)
    stamp_ns, stamp, header = found[0]
    assert stamp == Time(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9) and stamp.sec == 1
    assert header == Header(stamp=stamp, frame_id='')
    subscription.destroy()


@pytest.mark.parametrize('create', [create_frame_subscription, create_camera_subscription])
@pytest.mark.parametrize(
    ('options', 'said'),
    [
        ({'max_held': 0}, 'may hold 0 frames never gets one: max_held'),
        ({'depth': 0}, 'depth 0'),
        ({'copy_free': 'always'}, "copy_free 'always' is not one of preferred, required"),
        ({'callback': None}, 'take frames in a loop with FrameReader'),
        ({'trusted_uids': [99999999999]}, 'trusted_uids has 99999999999; give a list of numbers'),
        ({'trusted_uids': ['1000']}, "trusted_uids has '1000'"),
    ],
)
def test_what_can_t_be_is_refused_by_name_and_leaves_nothing(
    here: Ros, create: Callable[..., Any], options: dict[str, Any], said: str
) -> None:
    node = here.node('viewer')
    before = len(list(node.subscriptions))
    with pytest.raises(ConfigError, match=said):
        create(node, 'image', **{'callback': print, **options})
    assert len(list(node.subscriptions)) == before
