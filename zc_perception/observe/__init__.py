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
What nodes say of themselves, and what tools of other processes see of them.

Read in this order:

1. :mod:`~zc_perception.observe.frame_log`: a node writes what it did with each frame into memory,
   and other processes read that. :mod:`~zc_perception.observe.timeline` makes a trace of several
   logs and of the kernel's events, and says how long each stage of a frame took. ``zc_timeline``
   is the program that shows both for the nodes that run.
2. :mod:`~zc_perception.observe.diagnostics`: ``/diagnostics``. Its figures are those of
   ``metrics``: latencies, and how much of a counter is new.
3. ``processes``: what ``/proc`` says of other processes, and the next step for a user that may not
   look at them or at the kernel.
"""
