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
Measure and report the work of running nodes.

Read in this order:

1. :mod:`~zc_perception.observe.frame_log`: each node records in shared memory what it did with
   each frame, and other processes read these records. :mod:`~zc_perception.observe.timeline` joins
   several nodes' records and the kernel's events to one trace, and computes how long each stage of
   a frame took. The program ``zc_timeline`` shows the trace and the durations for running
   nodes.
2. :mod:`~zc_perception.observe.diagnostics` publishes ``/diagnostics``. ``metrics`` computes the
   published latencies, and the recent growth of counters.
3. ``processes`` reads ``/proc`` about other processes, and tells users which
   rights they lack for that.
"""
