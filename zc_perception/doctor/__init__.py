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
Run ``zc_doctor``: look at a vehicle before it drives, change nothing, and say what to do.

Read in this order:

1. :mod:`~zc_perception.machine`: what a check is, what a check may look at, and what a check
   returns.
2. :mod:`~zc_perception.doctor.needs` works out what the parameter file asks of the machine.
3. One of the files of checks, such as :mod:`~zc_perception.doctor.node_checks`.
4. :mod:`~zc_perception.doctor.answers`: questions that are answered in a separate process each.
5. :mod:`~zc_perception.doctor.zc_doctor` reads the options, :mod:`~zc_perception.doctor.command`
   lists the checks, runs them and reports.

To add a check: write its function in the file of its subject, and add the check to the list in
``command``, or to ``CHECKS`` of the kind that needs the check.
"""
