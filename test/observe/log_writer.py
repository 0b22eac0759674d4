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
A process with frame logs.

``flood`` writes records as fast as it can, whose every field follows from its number; ``still``
writes three and waits.

Says 'ready' and ends with its input, or after *seconds*, in which it has written more than 10 000.
"""

from __future__ import annotations

import sys
import time

from observe.frame_log_kit import made_entry, made_frame

from zc_perception.observe.frame_log import FrameLog


def flood_record(log: FrameLog, n: int) -> None:
    """Return the n-th."""
    frame = made_frame(
        n,
        inodes=(n + 1, n + 2),
        generation=2 * n,
        buffer_uid=3 * n,
        stamp_ns=4 * n,
        captured_ns=5 * n,
        published_ns=6 * n,
        cost_ns=7 * n,
    )
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
