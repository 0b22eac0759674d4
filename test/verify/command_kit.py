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
Nodes in processes of their own, and ``zc_verify`` as a process that measures them.

As a program: two nodes with frame logs and a pool of memfds, without ROS: 100 frames/s.

    python command_kit.py [map] [stubborn] [twice]

*map* keeps a frame mapped, *stubborn* ignores SIGINT, *twice* starts a second process half a
second later. It ends with SIGINT, or at the end of its input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
import json
import mmap
import os
from pathlib import Path
import re
import select
import signal
import subprocess
import sys
import time
from typing import Any

from npu.json_schema import conforms
from observe.frame_log_kit import note_frame
from processes import environment, ran, ready

from zc_perception.observe.frame_log import FrameLog
from zc_perception.verify.verification import SCHEMA


def nodes_command(*wishes: str) -> list[str]:
    return [sys.executable, __file__, *wishes]


def nodes(*wishes: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run nodes, once frames flow."""
    return ready(*nodes_command(*wishes))


def verify_command(*options: object, command: Sequence[str] = ()) -> list[str]:
    started = ['--', *command] if command else []
    return [sys.executable, '-m', 'zc_perception.verify.zc_verify', *map(str, options), *started]


def verify(*options: object, command: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return ran(*verify_command(*options, command=command), env=environment())


@contextmanager
def measuring(
    folder: Path, *options: object, command: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield ``zc_verify`` when it measures, and the pid of the measured process."""
    words = verify_command(*options, '--output', folder, command=command)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as process:
        try:
            assert process.stdout is not None
            found = None
            while found is None:
                line = process.stdout.readline()
                assert line, 'it ended'
                found = re.match(r'measuring inference /made/inference \(process (\d+)\)', line)
            yield process, int(found[1])
        finally:
            process.terminate()


def result_in(folder: Path) -> Any:
    document = json.loads((folder / 'result.json').read_text())
    assert conforms(document, json.loads(SCHEMA.read_text()))
    return document


SIZE = 512 * 1024


def main(wishes: Sequence[str]) -> None:
    if 'twice' in wishes and not os.fork():
        time.sleep(0.5)
    ended: list[int] = []
    signal.signal(
        signal.SIGINT,
        signal.SIG_IGN if 'stubborn' in wishes else lambda number, frame: ended.append(number),
    )
    pool = [os.memfd_create('zc_frame') for _ in range(3)]
    for fd in pool:
        os.ftruncate(fd, SIZE)
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
                camera = {'camera': 'made', 'device': 'made', 'heap': 'memfd', 'slots': 3}
                capture.describe({**facts, **camera, 'pool': identities})
                card = {'accelerator': 'axl', 'pci_address': '0000:01:00.0'}
                inference.describe({**facts, **card, 'import_cache': True, 'imports': 3})
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
