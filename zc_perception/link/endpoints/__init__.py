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
Publishers and subscriptions for ROS nodes.

Read modules ``publisher`` and ``subscription`` first: they take objects of any type. Modules
``frame_publisher`` and ``frame_subscription`` use them for camera frames, with a default for every
option. ``publisher`` announces a publisher, ``discovery`` finds publishers, ``remote_links``
connects to publishers in other processes, and ``executor_turns`` runs this package's callbacks on
a node's executor.
"""

from zc_perception.frame import Frame
from zc_perception.link.endpoints.message_writer import ExtraMessage
from zc_perception.link.endpoints.publisher import AdaptedPublisher, PublisherStatistics
from zc_perception.link.endpoints.qos import IN_PROCESS_ATTRIBUTE
from zc_perception.link.endpoints.remote_links import SharedMemoryLinks
from zc_perception.link.endpoints.subscription import AdaptedSubscription, SubscriptionStatistics
from zc_perception.link.image_conversion import RosHeaders
from zc_perception.link.rungs import IN_PROCESS, REFUSED, ROS_MESSAGE, SHARED_MEMORY, UNMATCHED

__all__ = [
    'IN_PROCESS',
    'IN_PROCESS_ATTRIBUTE',
    'REFUSED',
    'ROS_MESSAGE',
    'SHARED_MEMORY',
    'UNMATCHED',
    'AdaptedPublisher',
    'AdaptedSubscription',
    'ExtraMessage',
    'PublisherStatistics',
    'SharedMemoryLinks',
    'SubscriptionStatistics',
]

Frame.make_messages_by(RosHeaders())
