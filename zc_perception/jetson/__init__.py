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
Code for Jetsons only: images of ``libnvbufsurface``, and the VIC, which converts them.

Read ``nvbufsurface.py`` first: it allocates images, reads the layout of a camera's image, and
makes the library's object for a descriptor. ``vic.py`` converts from one image to another. Neither
file uses ROS. This code hasn't run on a Jetson yet: the tests use stand-ins for the libraries,
written in C.
"""
