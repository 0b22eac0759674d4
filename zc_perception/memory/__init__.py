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
Memory of frames: descriptors, dma-bufs, heaps, fences, pools, and the ledger of copies.

This folder doesn't use ROS. Read ``pool.py`` first: the docstring of ``BufferPool`` explains how a
buffer goes from the producer to its consumers and back, and how many frames a consumer may hold.
``heaps.py`` allocates buffers, and ``dmabuf.py`` has the class of a buffer. ``fence.py`` has
fences, which signal when a device is done with a buffer. ``owned_fd.py`` has the class that owns a
descriptor. ``kernel_abi.py`` has the numbers of the kernel's ioctls and their structs.
``ledger.py`` counts how often the CPU reads or writes pixels.
"""
