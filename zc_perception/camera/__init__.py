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
Cameras, which produce the frames.

Read :mod:`~zc_perception.camera.camera` first: it has the base class of all cameras, and the base
class of the cameras whose frames the CPU writes. The shortest camera is :mod:`synthetic`, which
draws the road of :mod:`road_scene`. :mod:`kinds` registers the cameras. :mod:`supervisor` opens a
camera on a thread, runs it, and opens it again after it was lost. :mod:`clock` makes the frames'
time stamps. Each other kind of camera has a file or folder: ``v4l2/``, ``gstreamer/``,
:mod:`argus` (which uses ``gstreamer/``), :mod:`libcamera`, ``replay/``. :mod:`stereo` pairs the
frames of two cameras.
:mod:`calibration` reads and writes calibration files. :mod:`recording` writes frames to disk, in
the file format of :mod:`mcap_file`.
"""
