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
What only a Jetson has: images of ``libnvbufsurface``, and the VIC that converts them.

No ROS.

Read ``nvbufsurface.py`` first: how an image is allocated, how one of a camera is read, and how a
descriptor becomes the library's object. ``vic.py`` converts from one image to another. Nothing of
it has run on a Jetson yet: the tests use doubles of the libraries in C.
"""
