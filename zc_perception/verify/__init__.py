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
Measure from outside whether the running nodes keep the four invariants of zero copy.

This is ``zc_verify``; ``docs/verify.md`` states the invariants.

Read in this order:

1. :mod:`~zc_perception.verify.observation`: what was seen in one window of time, as plain data.
2. :mod:`~zc_perception.verify.invariants`: each invariant is a function of an observation, and
   answers with a :class:`~zc_perception.verify.invariants.Check`.
   :mod:`~zc_perception.verify.imports` follows the driver's imports for one of them.
3. :mod:`~zc_perception.verify.measurement`: how the observation is made. It uses the readers of
   :mod:`~zc_perception.verify.evidence`; of the nodes it uses nothing but their frame logs.
4. :mod:`~zc_perception.verify.verification`: the whole command: which nodes are measured, and what
   is written, with the same four by the letter of the zero-copy document.

One thread does all this.
"""
