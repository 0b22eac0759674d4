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

"""Reads camera frames in an asyncio program, beside another task. Ctrl-C ends it."""

import asyncio
from contextlib import suppress

import rclpy

from zc_perception import FrameReader


async def watch(node):
    with FrameReader(node, 'image_raw') as frames:  # it spins the node
        async for frame in frames:  # the camera's own buffer, until the next frame
            print(f'frame {frame.sequence}: brightness {frame.y.mean():.1f}', flush=True)


async def main():
    watching = asyncio.create_task(watch(rclpy.create_node('asyncio_reader')))
    while not watching.done():  # stands for the rest of your program
        print('still here', flush=True)
        await asyncio.wait([watching], timeout=1.0)


rclpy.init()
with suppress(KeyboardInterrupt):
    asyncio.run(main())
