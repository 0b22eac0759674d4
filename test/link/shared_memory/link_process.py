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
Children for the tests of rung 2, forked on command, because a fork takes milliseconds.

``link_process.py consumers PATH hold|work N`` forks a consumer with window and depth N for each
line on stdin, and prints its pid. ``link_process.py check PATH COUNT`` receives COUNT frames and
prints its observations as JSON.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import select
import sys
import threading
import zlib

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))

from memory_link import connected  # noqa: E402

from zc_perception.link.shared_memory.client import SharedMemoryClient  # noqa: E402


def say(text: str) -> None:
    os.write(1, text.encode() + b'\n')


def resources() -> tuple[int, int, int]:
    maps = Path('/proc/self/maps').read_text(encoding='utf-8')
    fds = len(os.listdir('/proc/self/fd'))
    return fds, maps.count('/memfd:zc_frame'), threading.active_count()


def consume(path: Path, mode: str, count: int) -> None:
    """Consume until the producer ends; ``hold`` keeps frames, ``work`` releases them."""
    before = resources()
    client = SharedMemoryClient(path, name=mode, window=count, depth=count)
    connected(client)
    poller = select.poll()
    poller.register(client.fileno(), select.POLLIN)
    kept, last, gaps = [], None, 0
    while client.connected:
        poller.poll()
        frame = client.receive()
        if frame is None:
            continue
        if mode == 'hold':
            with frame.map() as planes:
                assert planes[0].shape
            kept.append(frame)
            continue
        gaps += last is not None and frame.data.sequence != last + 1
        last = frame.data.sequence
        with frame, frame.map() as planes:
            assert planes[0][0, 0] == 0
    poller.unregister(client.fileno())
    client.close()
    left = [now - then for now, then in zip(resources(), before, strict=True)]
    counted = client.statistics()
    said = {'last': last, 'gaps': gaps, 'left': left}
    say(json.dumps(said | {'dropped': counted.dropped, 'ended': counted.ended}))


def check(path: Path, count: int) -> None:
    client = SharedMemoryClient(path, name='check', window=1)
    connected(client)
    poller = select.poll()
    poller.register(client.fileno(), select.POLLIN)
    say('ready')
    seen, received = [], 0
    while received < count:
        poller.poll()
        frame = client.receive()
        if frame is None:
            assert client.connected, client.last_end
            continue
        received += 1
        with frame, frame.map() as planes:
            if 64 < received < count - 8:
                assert planes[0].shape
                continue
            buffer = frame.data.buffers[0]
            maps = Path('/proc/self/maps').read_text(encoding='utf-8').splitlines()
            seen.append(
                {
                    'inode': buffer.identity.inode,
                    'device': buffer.identity.device,
                    'size': buffer.size,
                    'crc': [zlib.crc32(plane.tobytes()) for plane in planes],
                    'mappings': sum(
                        entry.split()[4] == str(buffer.identity.inode) for entry in maps
                    ),
                    'fds': len(os.listdir('/proc/self/fd')),
                    'lines': len(maps),
                }
            )
    say(json.dumps(seen))
    sys.stdin.readline()


def fork_on_command(*arguments: str) -> None:
    while sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            try:
                consume(Path(arguments[1]), arguments[2], int(arguments[3]))
            finally:
                os._exit(0)
        say(str(pid))


if __name__ == '__main__':
    if sys.argv[1] == 'check':
        check(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        fork_on_command(*sys.argv[1:])
