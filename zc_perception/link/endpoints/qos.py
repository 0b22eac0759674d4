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

"""QoS profiles of rclpy as the link sees them."""

from __future__ import annotations

from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from zc_perception.errors import ConfigError
from zc_perception.link.bus import BusKey, LinkQos

ANNOUNCEMENT_QOS = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
"""For the writer of an announcement."""
ANNOUNCEMENTS_QOS = QoSProfile(
    depth=100, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
"""For the reader, which keeps one announcement of each of many publishers."""


def link_qos(profile: QoSProfile) -> LinkQos:
    """
    Return the link's view of a profile.

    :raises ConfigError: keep-last with depth 0, which could never hold a frame.
    """
    keep_all = profile.history == HistoryPolicy.KEEP_ALL
    if not keep_all and profile.depth < 1:
        raise ConfigError(f'QoS depth {profile.depth}: keep-last needs at least 1')
    return LinkQos(
        None if keep_all else profile.depth,
        profile.reliability != ReliabilityPolicy.BEST_EFFORT,
        profile.durability == DurabilityPolicy.TRANSIENT_LOCAL,
    )


IN_PROCESS_ATTRIBUTE = 'use_intra_process_comms'
"""An attribute of a node: ``False`` restricts its endpoints to messages over DDS.

The container's extra argument of that name does the same. It has to be set before the endpoints
are made."""


def uses_direct_links(node: Node) -> bool:
    """Say whether the node's endpoints may hand on objects, in the process or by shared memory."""
    return bool(getattr(node, IN_PROCESS_ATTRIBUTE, True))


def bus_key(node: Node, topic: str, ros_type: type[Any]) -> BusKey:
    """
    Return the key under which publishers and subscriptions of one topic meet.

    If the node doesn't use direct links, it meets no other endpoint.
    """
    return (
        id(node.context) if uses_direct_links(node) else object(),
        topic,
        f'{ros_type.__module__.split(".")[0]}/{ros_type.__name__}',
    )
