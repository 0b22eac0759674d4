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
The accelerator ``axl``: the Metis card imports the camera's own buffer and reads it there.

Read ``accelerator`` first, then ``device`` (one method per ioctl) and ``abi`` (the structs).
``checks`` has the checks of ``zc_doctor``. Some of these checks test Axelera's shipped driver,
which lacks the ioctls that ``axl`` needs.
"""
