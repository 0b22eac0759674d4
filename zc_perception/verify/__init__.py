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

The command is ``zc_verify``; ``docs/verify.md`` states the invariants.

Read in this order:

1. :mod:`~zc_perception.verify.observation`: what was seen in one window of time, as plain data.
2. :mod:`~zc_perception.verify.invariants`: each invariant is a function that takes an observation
   and returns a :class:`~zc_perception.verify.invariants.Check`.
   :mod:`~zc_perception.verify.imports` follows the driver's imports through a trace, for the third
   invariant.
3. :mod:`~zc_perception.verify.measurement`: makes the observation, with the readers of
   :mod:`~zc_perception.verify.evidence`. All that it takes from the nodes themselves is their
   frame logs.
4. :mod:`~zc_perception.verify.verification`: the whole command: it chooses the nodes to measure
   and writes the result, which also has the four keys of the zero-copy document in their literal
   meaning.

One thread does all of this.
"""
