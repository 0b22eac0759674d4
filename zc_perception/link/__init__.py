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
How a frame reaches a consumer: by the best of three ways, which are called rungs.

Read :mod:`~zc_perception.link.rungs` first: it says which rungs there are, and how a subscription
chooses. Then follow a frame: :mod:`~zc_perception.link.endpoints.publisher` sends it, and each
rung has its own folder or file. ``in_process`` is :mod:`~zc_perception.link.bus`,
``shared_memory`` is :mod:`~zc_perception.link.shared_memory`, and ``ros_message`` is
:mod:`~zc_perception.link.endpoints.message_writer` with
:mod:`~zc_perception.link.image_conversion`. All rungs end in the queue of
:mod:`~zc_perception.link.endpoints.subscription`. Before the first frame,
:mod:`~zc_perception.link.bus` brings cameras and consumers of the process together, and
:mod:`~zc_perception.link.announcement` tells other processes where a publisher's memory is.

Only ``endpoints`` and ``rclpy_compat`` import rclpy.
"""
