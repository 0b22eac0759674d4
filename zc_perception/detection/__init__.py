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
Convert pixels into a network's input, and the network's outputs into boxes.

This package needs no accelerator. Its modules, in the order in which they handle a frame:
``letterbox`` (geometry), ``tensor`` (from planes to a network's input), ``raw_tensor`` (an output
as a device wrote it), ``heads`` (from raw tensors to boxes), ``detections`` (the objects found).
Read ``heads/__init__`` first.
"""
