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
The command ``zc_verify``: measure whether running nodes keep the four invariants of zero copy.

``docs/verify.md`` states the invariants. The command measures from outside the nodes, in one
thread. It gets nothing from the nodes themselves, except what they write to their frame logs. Read
its modules in this order:

1. :mod:`~zc_perception.verify.observation`: the evidence of one measurement, as plain data.
2. :mod:`~zc_perception.verify.invariants`: one function for each invariant. It takes an
   observation and returns a :class:`~zc_perception.verify.invariants.Check`. For the third
   invariant, :mod:`~zc_perception.verify.imports` finds out from the kernel's trace which frames
   the accelerator's driver imported.
3. :mod:`~zc_perception.verify.measurement`: makes the observation, with the readers of
   :mod:`~zc_perception.verify.evidence`.
4. :mod:`~zc_perception.verify.verification`: the whole command. It selects the nodes, and writes
   the result.
"""
