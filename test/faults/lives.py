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
Nodes that are made, stream and are destroyed, a thousand times in one process.

``python lives.py COUNT`` does it and prints what the process holds along the way, as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
import contextlib
import json
import os
from pathlib import Path
import subprocess
import sys
import time

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from faults.harness import fault, Trial
from faults.holdings import excess, holding, resident_bytes
from faults.program import own_sockets
from rclpy.logging import get_logger_effective_level, LoggingSeverity, set_logger_level
from waiting import until

_WARM = 5
_CONTEXT_EVERY = 50
MOST_CUT = 3
"""Frames that a life's end may cut off: one in the camera's hand, one that waits, one in work."""
MOST_KILOBYTES = 12.0
"""Memory that a life may leave.

rclpy and the middleware keep some of what they allocate for a node."""
# Of fewer, what the allocator keeps for later is more than what is left behind.
_JUDGED_LIVES = 500


@fault(
    'a thousand lives',
    (
        'nodes that were made, streamed and were destroyed a thousand times in one process leave '
        'nothing'
    ),
    staged=False,
    long_only=True,
)
def thousand(trial: Trial) -> None:
    count = trial.times(20, 1000)
    with own_sockets(trial.folder):
        done = subprocess.run(
            [sys.executable, __file__, str(count)],
            env=os.environ | {'ROS_DOMAIN_ID': str(trial.domain)},
            capture_output=True,
            text=True,
            timeout=3600.0,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for kind, more in excess(found['before'], found['after']).items():
        trial.outcome.leaks[kind] += more
    trial.outcome.frames_in, trial.outcome.frames_out = found['captured'], found['processed']
    trial.outcome.drops.update({'newest wins': found['dropped'], 'at the ends': found['cut']})
    trial.must_be_zero(
        (
            f'lives at whose end less than 0 or more than {MOST_CUT} frames were neither detected '
            'on nor counted'
        ),
        found['strange lives'],
    )
    trial.must_be_zero('frames that failed', found['failed'])
    trial.must_be_zero('sockets left in the folder', found['sockets'])
    trial.must_be_zero('tracebacks', done.stderr.count('Traceback'))
    trial.note('lives', count)
    trial.note('ms each', found['ms'])
    trial.note('memory, KB each', found['kilobytes'])
    if count >= _JUDGED_LIVES:
        trial.must(
            found['kilobytes'] <= MOST_KILOBYTES,
            f'lives that left {found["kilobytes"]:.1f} KB each, at most {MOST_KILOBYTES:g} may be',
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nodes of this process say nothing; what they would say is in diagnostics."""
    before = {name: get_logger_effective_level(name) for name in ('capture', 'inference')}
    for name in ('capture', 'inference'):
        set_logger_level(name, LoggingSeverity.FATAL)
    try:
        yield
    finally:
        for name, level in before.items():
            set_logger_level(name, level)


def main() -> None:
    """Live."""
    import gc

    from nodes.fault_kit import AcceleratorFaults
    import rclpy
    from rclpy.parameter import Parameter

    from zc_perception.nodes.capture import CaptureNode
    from zc_perception.nodes.inference import InferenceNode
    from zc_perception.nodes.process import NodeGroup

    count, totals = int(sys.argv[1]), Counter[str]()
    values = {
        'width': 128,
        'height': 128,
        'framerate': 500.0,
        'heap': 'memfd',
        'pattern': 'counter',
    }
    accelerator = AcceleratorFaults()

    def live(context: rclpy.Context) -> None:
        capture = CaptureNode(
            context=context, parameter_overrides=[Parameter(k, value=v) for k, v in values.items()]
        )
        inference = InferenceNode(
            accelerator_factory=accelerator,
            context=context,
            parameter_overrides=[Parameter('model', value='hog')],
        )
        with NodeGroup(context, (capture, inference), lambda: None) as group:
            group.start()
            subscription = inference.subscription
            until(lambda: inference.processed >= 3 or group.failure)
            assert group.failure is None, group.failure
        counted = {
            'captured': capture._counters.total().captured,
            'processed': inference.processed,
            'failed': inference.failed,
            'dropped': subscription.statistics().dropped,
        }
        cut = counted['captured'] - sum(
            count for name, count in counted.items() if name != 'captured'
        )
        totals.update(counted | {'cut': cut, 'strange lives': not 0 <= cut <= MOST_CUT})

    def look() -> dict[str, int]:
        gc.collect()
        return dict(holding(os.getpid()))

    before: dict[str, int] = {}
    began_s, began_bytes = 0.0, 0
    context = rclpy.Context()
    rclpy.init(context=context)
    with quiet():
        for number in range(count + _WARM):
            if number == _WARM:
                before, began_s, began_bytes = (
                    look(),
                    time.monotonic(),
                    resident_bytes(os.getpid()),
                )
            elif number % _CONTEXT_EVERY == 0:
                context.try_shutdown()
                context = rclpy.Context()
                rclpy.init(context=context)
            live(context)
    taken_s = time.monotonic() - began_s
    after = look()
    # Threads end and sockets close in their own time.
    deadline = time.monotonic() + 60.0
    while excess(before, after) and time.monotonic() < deadline:
        time.sleep(0.05)
        after = look()
    grown = resident_bytes(os.getpid()) - began_bytes
    context.try_shutdown()
    sockets = len(list(Path(os.environ['ZC_RUNTIME_DIR']).glob('*')))
    print(
        json.dumps(
            {
                'before': before,
                'after': after,
                'ms': taken_s * 1e3 / count,
                'kilobytes': grown / 1e3 / count,
                'sockets': sockets,
                **totals,
            }
        )
    )


if __name__ == '__main__':
    main()
