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

"""QoS profiles and names that publishers and subscriptions share."""

from __future__ import annotations

from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from zc_perception.errors import ConfigError
from zc_perception.link.bus import BusKey, LinkQos

ANNOUNCEMENT_QOS = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
"""QoS for the writer of an announcement."""
ANNOUNCEMENTS_QOS = QoSProfile(
    depth=100, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
"""QoS for the reader of announcements, which keeps up to 100 of them, one of each publisher."""


def link_qos(profile: QoSProfile) -> LinkQos:
    """
    Return the parts of an rclpy profile that the link uses.

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


def leased_publisher_qos(profile: QoSProfile, topic: str) -> LinkQos:
    """
    Return :func:`link_qos` for a publisher of objects with leases, such as frames.

    :raises ConfigError: as :func:`link_qos`; or transient_local with keep-all.
    """
    offered = link_qos(profile)
    if offered.transient_local and offered.depth is None:
        raise ConfigError(
            f"topic '{topic}': transient_local with keep-all would keep every frame for ever; "
            'use keep-last'
        )
    return offered


IN_PROCESS_ATTRIBUTE = 'use_intra_process_comms'
"""An attribute of a node: ``False`` restricts its endpoints to messages over DDS.

The component container's extra argument of the same name does the same. Set either before the
node's endpoints are made."""


def uses_direct_links(node: Node) -> bool:
    """Say whether the node's endpoints may pass objects in the process or by shared memory."""
    return bool(getattr(node, IN_PROCESS_ATTRIBUTE, True))


def bus_key(node: Node, topic: str, ros_type: type[Any]) -> BusKey:
    """
    Return the key by which the bus connects publishers and subscriptions of one topic.

    If the node uses no direct links, the key is unique, so nothing is connected by it.
    """
    return (
        id(node.context) if uses_direct_links(node) else object(),
        topic,
        f'{ros_type.__module__.split(".")[0]}/{ros_type.__name__}',
    )
