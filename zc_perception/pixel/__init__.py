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
Describe and convert pixels: formats, modifiers, plane layouts and colours.

No module here owns frame memory. Read first: ``fourcc`` (the table of formats), then ``layout``
(the planes of an image in its buffers), ``modifier`` and ``colorimetry``. ``format_names``
translates formats to the names in V4L2, GStreamer, NvBufSurface and ROS. ``readable`` lists the
formats that the CPU can read, and what reading costs; ``conversion`` reads and converts them.
``raw_picture`` reads pictures in messages and recordings.
"""
