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
The camera that takes frames from a GStreamer pipeline.

Read ``gstreamer/camera.py`` first: it has class ``GStreamerCamera``. ``kind`` declares the camera,
``pipeline`` runs the pipeline, ``image`` reads formats and turns GStreamer's buffers into slots,
and ``abi`` calls GStreamer's C functions with ctypes.
"""
