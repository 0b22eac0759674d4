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
From pixels to boxes.

No accelerator is needed here: what comes in are planes or raw tensors, what goes out are boxes.

In the order in which a frame passes: ``letterbox`` (geometry), ``tensor`` (planes to a network's
input), ``raw_tensor`` (what a device wrote), ``heads`` (raw tensors to boxes), ``detections``
(what was found). Read ``heads/__init__`` first.
"""
