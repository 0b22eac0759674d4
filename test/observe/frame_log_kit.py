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
Artificial frames for a frame log, and a second reader by the documented layout alone.

As a program it is a process with frame logs: ``flood`` writes records as fast as it can, with all
fields computed from the record's number; ``still`` writes three and waits. It prints 'ready'. It
ends at the end of its input, or after *seconds*, in which it has written more than 10 000.
"""

from __future__ import annotations

import os
from pathlib import Path
import struct
import sys
import time
from types import SimpleNamespace as Made
from typing import Any

from zc_perception.observe.frame_log import FrameLog

SIZE = 4096 + 28 * 1024 + 4096 * 192
#: Name, offset in the record, struct letter.
FIELDS = (
    ('number', 0, 'Q'), ('kind', 8, 'I'), ('num_buffers', 12, 'I'), ('sequence', 16, 'Q'),
    ('generation', 24, 'Q'), ('buffer_uid', 32, 'Q'), ('stamp_ns', 40, 'q'),
    ('captured_ns', 48, 'q'), ('published_ns', 56, 'q'), ('received_ns', 64, 'q'),
    ('submitted_ns', 72, 'q'), ('signalled_ns', 80, 'q'), ('done_ns', 88, 'q'),
    ('decoded_ns', 96, 'q'), ('sent_ns', 104, 'q'), ('capture_cost_ns', 112, 'q'),
    ('inode0', 120, 'Q'), ('inode1', 128, 'Q'), ('inode2', 136, 'Q'), ('inode3', 144, 'Q'),
    ('st_dev', 152, 'Q'), ('device_handle', 160, 'I'), ('detections', 164, 'I'),
    ('device_seqno', 168, 'Q'), ('thread_id', 176, 'I'), ('nothing', 180, 'I'),
    ('number_again', 184, 'Q'),
)  # fmt: skip


def record_at(memory: bytes, index: int) -> dict[str, int]:
    start = 32 * 1024 + 192 * index
    return {
        name: struct.unpack_from(f'<{letter}', memory, start + offset)[0]
        for name, offset, letter in FIELDS
    }


def made_frame(
    sequence: int = 0, *, inodes: tuple[int, ...] = (77,), generation: int = 1,
    buffer_uid: int = 9, stamp_ns: int = 5,
    captured_ns: int = 6, published_ns: int = 7, cost_ns: int = 4, device: int = 3,
) -> Any:  # fmt: skip
    """Return the attributes of a frame that a log reads."""
    buffers = tuple(Made(identity=Made(device=device, inode=inode)) for inode in inodes)
    data = Made(
        sequence=sequence, generation=generation, buffer_uid=buffer_uid,
        header=Made(stamp_ns=stamp_ns), captured_ns=captured_ns,
        capture_cost_ns=cost_ns, buffers=buffers,
    )  # fmt: skip
    return Made(data=data, published_ns=published_ns)


def made_entry(
    frame: Any,
    received_ns: int = 8,
    submitted_ns: int = 9,
    signalled_ns: int = 10,
    handle: int = 2,
    **job: int,
) -> Any:
    """Return the attributes of a job that a log reads."""
    return Made(
        frame=frame, received_ns=received_ns, submitted_ns=submitted_ns, signalled_ns=signalled_ns,
        handle=Made(number=handle),
        job=Made(**job),
    )  # fmt: skip


def note_frame(
    capture: Any, inference: Any, number: int, inode: int = 77, device: int = 3, handle: int = 1
) -> int:
    """Note a frame of now in the logs of both nodes; return its time."""
    now = time.monotonic_ns()
    frame = made_frame(
        number, inodes=(inode,), device=device, captured_ns=now - 2000, published_ns=now - 1000
    )
    capture.published(frame, now - 1000, now)
    job = made_entry(frame, now, now, now, handle, device_seqno=number)
    inference.processed(job, now, now, now, 1)
    return now


def own_log_links() -> list[Path]:
    found = []
    for link in Path('/proc/self/fd').iterdir():
        try:
            if os.readlink(link).startswith('/memfd:zc_frame_log'):
                found.append(link)
        except FileNotFoundError:
            continue
    return found


def log_memory() -> bytes:
    return _only_log().read_bytes()


def _only_log() -> Path:
    """Return a link to the only log; its writer and its readers have one each."""
    links = own_log_links()
    assert len({link.stat().st_ino for link in links}) == 1
    return links[0]


def overwrite(offset: int, content: bytes) -> None:
    """Change bytes of this process's only log, as if a writer was interrupted."""
    fd = os.open(_only_log(), os.O_RDWR)
    try:
        assert os.pwrite(fd, content, offset) == len(content)
    finally:
        os.close(fd)


def flood_record(log: FrameLog, n: int) -> None:
    frame = made_frame(
        n, inodes=(n + 1, n + 2), generation=2 * n, buffer_uid=3 * n, stamp_ns=4 * n,
        captured_ns=5 * n, published_ns=6 * n, cost_ns=7 * n,
    )  # fmt: skip
    log.processed(
        made_entry(frame, 8 * n, 9 * n, 10 * n, n % 1000, device_seqno=11 * n),
        12 * n,
        13 * n,
        14 * n,
        n % 77,
    )


def main(what: str, seconds: float) -> None:
    with FrameLog('inference', '/writer') as log:
        if what == 'still':
            for n in range(3):
                flood_record(log, n)
            log.describe({'n': 3})
            print('ready', flush=True)
            sys.stdin.read()
            return
        print('ready', flush=True)
        end = time.monotonic() + seconds
        while time.monotonic() < end or log.written <= 10_000:
            for _ in range(50):
                flood_record(log, log.written)
        print(log.written, flush=True)
        sys.stdin.read()


if __name__ == '__main__':
    main(sys.argv[1], float(sys.argv[2]))
