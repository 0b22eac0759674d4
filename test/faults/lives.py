"""Nodes that are made, stream and are destroyed, a thousand times in one process.

``python lives.py COUNT`` does it and prints what the process holds along the way, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from faults.harness import Trial, fault
from faults.holdings import excess, holding, resident_bytes
from faults.scarcity import sockets_of

_WARM = 5
_CONTEXT_EVERY = 50


@fault('a thousand lives', 'nodes that were made, streamed and were destroyed a thousand times in one process leave nothing', staged=False)
def thousand(trial: Trial) -> None:
    count = trial.times(20, 1000)
    with sockets_of(trial):
        done = subprocess.run(
            [sys.executable, __file__, str(count)], env=os.environ | {'ROS_DOMAIN_ID': str(trial.domain)}, capture_output=True, text=True,
            timeout=900.0, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for kind, more in excess(found['before'], found['after']).items():
        trial.outcome.leaks[kind] += more
    trial.outcome.frames_in, trial.outcome.frames_out = found['captured'], found['processed']
    trial.outcome.drops['at the ends'] = found['captured'] - found['processed']
    trial.must_be_zero('frames that failed', found['failed'])
    trial.must_be_zero('sockets left in the folder', found['sockets'])
    trial.must_be_zero('tracebacks', done.stderr.count('Traceback'))
    trial.note('lives', count)
    trial.note('ms each', found['ms'])
    trial.note('memory, KB each', found['kilobytes'])


def main() -> None:
    """Live."""
    import gc

    import rclpy
    from nodes.fault_kit import AcceleratorFaults
    from rclpy.parameter import Parameter

    from faults.devices import quiet
    from zc_perception.nodes.capture import CaptureNode
    from zc_perception.nodes.inference import InferenceNode
    from zc_perception.nodes.process import NodeGroup

    count, totals = int(sys.argv[1]), {'captured': 0, 'processed': 0, 'failed': 0}
    values = {'width': 128, 'height': 128, 'framerate': 500.0, 'heap': 'memfd', 'pattern': 'counter'}
    accelerator = AcceleratorFaults()

    def live(context: rclpy.Context) -> None:
        capture = CaptureNode(context=context, parameter_overrides=[Parameter(k, value=v) for k, v in values.items()])
        inference = InferenceNode(accelerator_factory=accelerator, context=context, parameter_overrides=[Parameter('model', value='hog')])
        with NodeGroup(context, (capture, inference), lambda: None) as group:
            group.start()
            deadline = time.monotonic() + 20.0
            while inference.processed < 3:
                assert time.monotonic() < deadline and group.failure is None, group.failure
                time.sleep(0.001)
        totals['captured'] += capture._counters.total().captured
        totals['processed'] += inference.processed
        totals['failed'] += inference.failed

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
                before, began_s, began_bytes = look(), time.monotonic(), resident_bytes(os.getpid())
            elif number % _CONTEXT_EVERY == 0:
                context.try_shutdown()
                context = rclpy.Context()
                rclpy.init(context=context)
            live(context)
    taken_s = time.monotonic() - began_s
    after = look()
    grown = resident_bytes(os.getpid()) - began_bytes
    context.try_shutdown()
    sockets = len(list(Path(os.environ['ZC_RUNTIME_DIR']).glob('*')))
    print(json.dumps({'before': before, 'after': after, 'ms': taken_s * 1e3 / count, 'kilobytes': grown / 1e3 / count, 'sockets': sockets,
                      **totals}))  # fmt: skip


if __name__ == '__main__':
    main()
