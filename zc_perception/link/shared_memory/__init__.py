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
The ``shared_memory`` rung: send frames to other processes of the host by Unix sockets.

The sockets pass file descriptors of the frames' buffers, so no pixel is copied. Nothing in this
folder imports ROS.

Read ``docs/wire.md`` first, which describes the protocol.
:mod:`~zc_perception.link.shared_memory.protocol` defines the protocol's numbers, and
:mod:`~zc_perception.link.shared_memory.wire` packs and parses its messages. Then
read :mod:`~zc_perception.link.shared_memory.server` with
:mod:`~zc_perception.link.shared_memory.connection`, the producer's end, and
:mod:`~zc_perception.link.shared_memory.client` with
:mod:`~zc_perception.link.shared_memory.remote_slots`, the consumer's end.
"""
