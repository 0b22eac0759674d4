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
The command ``zc_doctor``: check the machine and the parameter file before the nodes start.

It changes nothing, and names the next step for each problem. Read its modules in this order:

1. :mod:`~zc_perception.machine`: the interface of checks: their inputs and results.
2. :mod:`~zc_perception.doctor.needs` finds what the parameter file requires of the machine.
3. One of the files of checks, such as :mod:`~zc_perception.doctor.node_checks`.
4. :mod:`~zc_perception.doctor.answers`: functions that checks run in a separate process.
5. :mod:`~zc_perception.doctor.zc_doctor` reads the options, :mod:`~zc_perception.doctor.command`
   lists the checks, runs them and prints the report.

To add a check, write its function in the file of its subject, and add it to a list in ``command``,
or to ``CHECKS`` of the kind of camera or accelerator that needs it.
"""
