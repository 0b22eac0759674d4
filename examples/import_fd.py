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

"""Imports each frame's buffer into a library of your own; here mmap and zlib are the library."""

from contextlib import suppress
import mmap
import os
import zlib

import rclpy

from zc_perception import FrameReader

imported = {}  # a camera has few buffers: import each one once
rclpy.init()
node = rclpy.create_node('importer')
with suppress(KeyboardInterrupt), FrameReader(node, 'image_raw', copy_free='required') as frames:
    for frame in frames:  # the camera may reuse the buffer once the next frame is taken
        plane, buffer = frame.data.planes[0], frame.data.buffers[0]
        if buffer.identity not in imported:
            fd = os.dup(frame.fds[0])  # close this one yourself, but not the frame's descriptor
            imported[buffer.identity] = mmap.mmap(fd, buffer.size, prot=mmap.PROT_READ)
            print(
                f'{buffer.kind.value} fd {fd}: {frame.width}x{frame.height}',
                f'{frame.encoding} modifier {frame.modifier:#x}',
                *frame.data.planes,
                flush=True,
            )
        rows = range(plane.offset, plane.offset + plane.stride * frame.height, plane.stride)
        with frame.map():  # waits for the camera, and makes its writes visible to the CPU
            crc = zlib.crc32(
                b''.join(imported[buffer.identity][slice(row, row + frame.width)] for row in rows)
            )
        print(f'frame {frame.sequence}: crc {crc:08x}', flush=True)
