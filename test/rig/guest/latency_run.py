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
Measure in the guest how long frames wait for our threads beside two busy processes.

    python latency_run.py FRAMES

It runs at ordinary and at real-time priority. A frame's latency is the time outside of camera and
card. It starts with the kernel's event that the driver has finished the buffer, and ends at the
submitted job; it goes on from the signal of the job's fence to the published detections. All
stamps are CLOCK_MONOTONIC. Writes ``$RIG_OUT/latency.json``: nanoseconds of each frame, by
priority.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
import json
import os
from pathlib import Path
import re
import subprocess
import sys
import time

TEST = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TEST), str(TEST.parent)]

from rclpy.parameter import Parameter  # noqa: E402
from rig.guest.graph_kit import ros, RunningGraph  # noqa: E402
from rig.guest.graph_variants import SINGLE, Variant, VIVID_START_OF_EXPOSURE  # noqa: E402
from rig.guest.kernel_api import fence_info, recording, trace_text, TRACING, write_control  # noqa: E402
from waiting import eventually  # noqa: E402

from zc_perception.detection.detections import Detections  # noqa: E402
from zc_perception.npu.axl.accelerator import AxlJob  # noqa: E402
from zc_perception.npu.scheduler import InFlight  # noqa: E402

# SCHED_FIFO priority of the nodes' threads in each series; 0: ordinary scheduling. vivid's thread
# simulates a camera's interrupt and has the highest priority.
PRIORITIES, VIVID_PRIORITY = (0, 50), 60
_SETTLING = 30
#: Frames whose buffers may have been finished before the recording began.
_MARGIN = 10
_PATIENCE_S = 3600.0
# Between two looks, so that the waiting thread uses little of the CPU.
_rarely = partial(time.sleep, 0.05)
_CAPTURE = {
    'camera': 'v4l2', 'device': SINGLE, 'width': 320, 'height': 180, 'framerate': 30.0, 'slots': 8,
    'controls.timestamp_source': VIVID_START_OF_EXPOSURE,
}  # fmt: skip
#: One computes, the other makes the kernel write pages.
_BUSY = (
    (sys.executable, '-c', 'while True: pass'),
    ('dd', 'if=/dev/zero', 'of=/dev/null', 'bs=4M', 'status=none'),
)
#: The driver has finished a buffer, and the reader that dequeues it gets this time stamp.
_BUFFER_EVENTS = ('vb2/vb2_buf_done', 'v4l2/v4l2_dqbuf')
_BUFFER = re.compile(
    r'\s(\d+)\.(\d{6}): (vb2_buf_done|v4l2_dqbuf): .*?\bindex = (\d+),.*\btimestamp = (\d+)'
)


@contextmanager
def busy() -> Iterator[None]:
    """Run two processes of ordinary priority that never sleep, inside the block."""
    processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for command in _BUSY]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def done_us(trace: str) -> dict[int, int]:
    """Return when the driver finished each buffer, by the frame's stamp; in microseconds."""
    done: dict[str, int] = {}
    found: dict[int, int] = {}
    for match in filter(None, map(_BUFFER.search, trace.splitlines())):
        seconds, micros, event, index, stamp = match.groups()
        if event == 'vb2_buf_done':
            done[index] = int(seconds) * 1_000_000 + int(micros)
        elif index in done:
            found[int(stamp) // 1000] = done.pop(index)
    return found


def series(
    running: RunningGraph, stopwatch: list[tuple[int, ...]], priority: int, wanted: int
) -> dict[str, list[int]]:
    """Set the priority as a user does, check that the threads have it, and measure."""
    for node in (running.graph.capture, running.graph.inference):
        (answer,) = node.set_parameters([Parameter('realtime_priority', value=priority)])
        assert answer.successful, answer.reason
    policy = os.sched_getscheduler(running.graph.inference.scheduler.thread.native_id)
    assert policy == (os.SCHED_FIFO if priority else os.SCHED_OTHER), (policy, priority)
    with busy():
        begin = len(stopwatch) + _SETTLING
        eventually(lambda: len(stopwatch) >= begin, _PATIENCE_S, _rarely)
        with recording():
            begin = len(stopwatch)
            end = begin + wanted + _MARGIN
            eventually(lambda: len(stopwatch) >= end or running.problems, _PATIENCE_S, _rarely)
            frames, done = stopwatch[begin:], done_us(trace_text())
    assert not running.problems, running.problems
    known = [
        (done[captured // 1000] * 1000, *times)
        for captured, *times in frames
        if captured // 1000 in done
    ][:wanted]
    assert len(known) == wanted, f'{len(known)} of {wanted} frames are in the trace'
    return {
        'to_device': [submitted - finished for finished, submitted, _, _ in known],
        'from_device': [published - ready for _, _, ready, published in known],
    }


def main() -> int:
    wanted = int(sys.argv[1])
    # Per frame: when it was captured, submitted, ready, and published.
    stopwatch: list[tuple[int, ...]] = []

    def observe(entry: InFlight, found: Detections) -> None:
        now_ns = time.monotonic_ns()
        assert isinstance(entry.job, AxlJob)
        ready_ns = fence_info(entry.job.fence.fileno()).timestamp_ns
        stopwatch.append((entry.frame.data.captured_ns, entry.submitted_ns, ready_ns, now_ns))

    for event in _BUFFER_EVENTS:
        write_control(TRACING / 'events' / event / 'enable', '1')
    found = {}
    with (
        ros() as context,
        RunningGraph(context, Variant(wanted, True, _CAPTURE, keep_all=False)) as running,
    ):
        running.graph.inference.observers.append(observe)
        running.start()
        assert eventually(lambda: len(stopwatch) > _SETTLING, _PATIENCE_S, _rarely), (
            running.figures()
        )
        vivid = [
            int(comm.parent.name)
            for comm in Path('/proc').glob('[0-9]*/comm')
            if comm.read_text().startswith('vivid-')
        ]
        assert vivid, 'vivid has no thread'
        for thread in vivid:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(VIVID_PRIORITY))
        for priority in PRIORITIES:
            began = time.monotonic()
            found[priority] = series(running, stopwatch, priority, wanted)
            print(
                f'{time.monotonic() - began:7.1f} s  priority {priority}: {wanted} frames',
                flush=True,
            )
        figures = running.figures()
    print(json.dumps(figures), flush=True)
    (Path(os.environ['RIG_OUT']) / 'latency.json').write_text(json.dumps(found))
    return 0


if __name__ == '__main__':
    sys.exit(main())
