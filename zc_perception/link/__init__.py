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
Three ways (*rungs*) to send a frame to a consumer; a subscription uses the best possible rung.

Read :mod:`~zc_perception.link.rungs` first: it describes the rungs, and how a subscription
chooses one. :mod:`~zc_perception.link.endpoints.publisher` sends each frame, and each rung has
its own folder or file: ``in_process`` is :mod:`~zc_perception.link.bus`,
``shared_memory`` is :mod:`~zc_perception.link.shared_memory`, and ``ros_message`` is
:mod:`~zc_perception.link.endpoints.message_writer` with
:mod:`~zc_perception.link.image_conversion`. The frames of all rungs arrive in the queue of
:mod:`~zc_perception.link.endpoints.subscription`. Before the first frame,
:mod:`~zc_perception.link.bus` connects the cameras and consumers of the process, and
:mod:`~zc_perception.link.announcement` tells other processes at which socket a publisher listens.

Only ``endpoints`` and ``rclpy_compat`` import rclpy.
"""
