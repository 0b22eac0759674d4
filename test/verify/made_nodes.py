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
Two nodes with frame logs and a pool of memfds in one process, without ROS: 100 frames/s.

    python made_nodes.py [map] [stubborn] [twice]

*map* keeps a frame mapped, *stubborn* ignores SIGINT, *twice* starts a second process half a
second later. It ends with SIGINT, or at the end of its input.
"""

from __future__ import annotations

from collections.abc import Sequence
import mmap
import os
import select
import signal
import sys
import time

from observe.frame_log_kit import note_frame

from zc_perception.observe.frame_log import FrameLog

SIZE = 512 * 1024


def _pool() -> list[int]:
    fds = [os.memfd_create('zc_frame') for _ in range(3)]
    for fd in fds:
        os.ftruncate(fd, SIZE)
    return fds


def main(wishes: Sequence[str]) -> None:
    if 'twice' in wishes and not os.fork():
        time.sleep(0.5)
    ended: list[int] = []
    signal.signal(
        signal.SIGINT,
        signal.SIG_IGN if 'stubborn' in wishes else lambda number, frame: ended.append(number),
    )
    pool = _pool()
    mapped = mmap.mmap(pool[0], SIZE) if 'map' in wishes else None
    count = 0
    with (
        FrameLog('capture', '/made/capture') as capture,
        FrameLog('inference', '/made/inference') as inference,
    ):
        identities = [(os.fstat(fd).st_dev, os.fstat(fd).st_ino) for fd in pool]

        while not ended:
            if count % 20 == 0:
                facts = {'copies': {}, 'processed': count}
                capture.describe(
                    {
                        **facts,
                        'camera': 'made',
                        'device': 'made',
                        'heap': 'memfd',
                        'slots': 3,
                        'pool': identities,
                    }
                )
                inference.describe(
                    {
                        **facts,
                        'accelerator': 'axl',
                        'pci_address': '0000:01:00.0',
                        'import_cache': True,
                        'imports': 3,
                    }
                )
            device, inode = identities[count % len(pool)]
            note_frame(capture, inference, count, inode, device)
            count += 1
            if count == 10:
                print('ready', flush=True)
            readable, _, _ = select.select([sys.stdin], [], [], 0.01)
            if readable and not sys.stdin.read(1):
                if not sys.stdin.isatty() and os.readlink('/proc/self/fd/0') == '/dev/null':
                    time.sleep(0.01)
                    continue
                break
    print('ended', flush=True)
    if mapped is not None:
        mapped.close()


if __name__ == '__main__':
    main(sys.argv[1:])
