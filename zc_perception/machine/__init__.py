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
The base of ``zc_doctor``'s checks.

A camera or an accelerator, of this package or of another package, imports the modules of this
folder to declare its own checks. So the modules of this folder import nothing of the package but
modules for errors, memory and shipped files.

Read :mod:`~zc_perception.machine.checks` first: it defines checks and their findings. Then read
:mod:`~zc_perception.machine.system`: it represents the machine that the checks examine.
"""
