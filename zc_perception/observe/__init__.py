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
What nodes tell about themselves, and what tools in other processes can observe.

Read in this order:

1. :mod:`~zc_perception.observe.frame_log`: a node records in memory what it did with each frame,
   and other processes read these records. :mod:`~zc_perception.observe.timeline` makes one trace
   of several logs and the kernel's events, and computes how long each stage of a frame took. The
   program ``zc_timeline`` shows both for the nodes that run.
2. :mod:`~zc_perception.observe.diagnostics`: ``/diagnostics``. Its figures come from ``metrics``:
   latencies, and how much counters have grown lately.
3. ``processes``: what ``/proc`` tells about other processes, and advice for a user who may not
   examine them or the kernel.
"""
