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
The benchmarks' process with the nodes: ``python -m bench.nodes_worker cameras TOPIC …``.

``cameras TOPIC WIDTH HEIGHT HZ DELAY_MS DEPTH [PARAMETERS]`` (0 Hz: unthrottled; parameters of
both nodes as JSON) runs a capture and an inference node for each camera, all in this process, as
``perception --cameras`` does. It begins without cameras. With parameters, a latency begins when
the frame was due, otherwise when the camera's thread began the frame. The process reads one JSON
command per line from standard input, and writes one line of JSON for each.

- ``grow`` takes ``cameras``. It answers ``cameras``, the number that exists now, or ``refused``:
  why this number isn't possible.
- ``describe`` answers settings that the figures depend on.
- ``matched`` answers ``matched`` (the nodes and the reader have found each other); if not,
  ``reason``.
- ``idle`` takes ``seconds``. It answers ``cpu_us`` of this process while no camera runs.
- ``run`` takes ``cameras``, ``seconds``, ``spread`` and ``probed``: this many cameras run, the
  others rest. With *spread* the cameras' frames come evenly over the period. It answers ``ran_s``,
  ``latencies_us`` (from captured to published, less the accelerator's delay), ``due``,
  ``published``, ``detections``, ``drops`` by reason, ``conversions``, ``imports``, ``stages_us``.
  ``wall_s`` and ``cpu_us`` last until the last detections were published. ``cpu_each_us`` is the
  CPU time from one frame to the next, with one camera only. If *probed*, ``use`` and ``holders``
  are those of :class:`MachineUse`.

Sources: proc_stat(5), proc_pid_schedstat (Documentation/scheduler/sched-stats.rst).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
import contextlib
import gc
import itertools
import json
import os
from pathlib import Path
import statistics
import sys
import threading
import time
from types import TracebackType
from typing import Any

from bench.holders import LockHolders, LONG_NS
from bench.obeying import obey, run_worker
from bench.stand_ins import DelayedAccelerator, PrefilledCamera
import rclpy
from rclpy.parameter import Parameter
from rclpy.utilities import get_rmw_implementation_identifier

from zc_perception.detection.detections import Detections
from zc_perception.errors import ZcError
from zc_perception.link.endpoints import IN_PROCESS
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.process import ExecutorThread
from zc_perception.npu.scheduler import InFlight
from zc_perception.terminal import INTERRUPTION

MODEL = 'road'
_DRAIN_S = 5.0
_IN_FLIGHT = 2
_TICK_S = 1.0 / os.sysconf('SC_CLK_TCK')
_PROBE_S = 0.005
_MARKED = 4
# Idle fields of a CPU's line in /proc/stat, which has: user, nice, system, idle, iowait, irq,
# softirq, steal.
_IDLE = (3, 4)
_FIELDS = 8


class Graph:
    """
    Owns one camera's capture and inference node, connected as in ``perception``.

    The scheduler's thread calls :meth:`_published`.
    """

    def __init__(
        self,
        context: rclpy.Context,
        topic: str,
        ledger: CopyLedger,
        size: tuple[int, int],
        rate_hz: float,
        delay_s: float,
        depth: int,
        parameters: Mapping[str, Any] | None,
    ) -> None:
        common: dict[str, Any] = {'context': context, 'namespace': topic, 'ledger': ledger}
        self._delay_ns = round(delay_s * 1e9)
        self.latencies_us: list[float] = []
        self.spent_ns: list[int] = []
        self.camera = PrefilledCamera(
            *size,
            rate_hz or 1.0,
            'camera_optical',
            now_ns=lambda: self.capture.now_ns(),
            ledger=ledger,
            unthrottled=not rate_hz,
            from_due=parameters is not None,
        )
        own = [Parameter(name, value=value) for name, value in (parameters or {}).items()]
        self.capture = CaptureNode(
            camera_factory=lambda identity: self.camera, parameter_overrides=own, **common
        )
        try:
            values = {'model': MODEL, 'in_flight': _IN_FLIGHT}
            if depth > 1:
                values[f'qos_overrides.{self.capture.publisher.topic}.subscription.depth'] = depth
            overrides = [*own, *(Parameter(name, value=value) for name, value in values.items())]
            self.inference = InferenceNode(
                accelerator_factory=lambda: DelayedAccelerator(delay_s),
                parameter_overrides=overrides,
                **common,
            )
        except BaseException:
            self.capture.stop()
            self.capture.destroy_node()
            raise
        self.inference.observers.append(self._published)

    def _published(self, entry: InFlight, found: Detections) -> None:
        self.spent_ns.append(time.process_time_ns())
        self.camera.go_on()
        self.latencies_us.append(
            (time.monotonic_ns() - entry.frame.data.captured_ns - self._delay_ns) / 1e3
        )

    def counts(self) -> dict[str, int]:
        """Return how many of the camera's frames were captured, published, or lost, by reason."""
        camera, link = self.camera.statistics(), self.inference.subscription.statistics()
        return {
            'captured': camera.captured,
            'late': camera.late,
            'no_slot': camera.no_slot,
            'newest_wins': link.dropped,
            'device': self.inference.scheduler.statistics().lost,
            'published': self.inference.processed,
            'detections': self.inference.detected,
        }


def busy_s(cpus: Collection[int], stat: str) -> float:
    """
    Return how long these CPUs were busy, in s, for any process or another virtual machine.

    :param stat: text of ``/proc/stat``.
    """
    ticks = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.removeprefix('cpu').isdigit() and int(name.removeprefix('cpu')) in cpus:
            ticks += sum(
                int(field) for number, field in enumerate(fields[:_FIELDS]) if number not in _IDLE
            )
    return ticks * _TICK_S


def _stat() -> str:
    return Path('/proc/stat').read_text(encoding='ascii')


def _run_delay_ns() -> int:
    """
    Return how long this thread has waited for a CPU since it began.

    It is 0 if the kernel doesn't count this time.
    """
    try:
        return int(Path('/proc/thread-self/schedstat').read_text(encoding='ascii').split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _resident_mib(status: str) -> dict[str, float]:
    kib = {
        name: float(value.split()[0])
        for name, _, value in (line.partition(':') for line in status.splitlines())
        if name.startswith('Rss')
    }
    return {
        'resident_mib': (kib['RssAnon'] + kib['RssFile']) / 1024,
        'buffers_mib': kib['RssShmem'] / 1024,
    }


class MachineUse:
    """
    A context manager that measures CPU use and waits for the interpreter's lock in its block.

    A thread sleeps for 5 ms again and again. It wakes up late because it waits for a CPU, which
    the kernel counts, and then for the interpreter's lock. Any thread that is woken for a frame
    waits as long.
    """

    def __init__(self) -> None:
        self._cpus = os.sched_getaffinity(0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._probe, name='gil probe', daemon=True)
        self._cpu_ns = self._wall_ns = 0
        self._busy_s = 0.0
        self._lock_us: list[float] = []
        self._holders = LockHolders()

    def _probe(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            # Call mark() only sometimes: reading the clocks of all threads takes CPU time.
            marked = number % _MARKED == 0
            if marked:
                self._holders.mark()
            waited_ns, until_ns = _run_delay_ns(), time.monotonic_ns() + round(_PROBE_S * 1e9)
            time.sleep(_PROBE_S)
            late_ns = time.monotonic_ns() - until_ns
            kept_ns = max(0, late_ns - (_run_delay_ns() - waited_ns))
            self._lock_us.append(kept_ns / 1e3)
            if marked and kept_ns >= LONG_NS:
                self._holders.kept(kept_ns)

    def holders(self) -> list[Mapping[str, Any]]:
        """Return the places in the code that held the lock for long."""
        return self._holders.longest()

    def __enter__(self) -> MachineUse:
        self._busy_s = busy_s(self._cpus, _stat())
        self._cpu_ns, self._wall_ns = time.process_time_ns(), time.monotonic_ns()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._cpu_ns, self._wall_ns = (
            time.process_time_ns() - self._cpu_ns,
            time.monotonic_ns() - self._wall_ns,
        )
        self._busy_s = busy_s(self._cpus, _stat()) - self._busy_s
        self._thread.join()

    def figures(self) -> dict[str, float]:
        """
        Return the figures; call it after the block.

        ``process_percent``: this process's CPU use, 100 is one CPU; ``machine_percent``: use of
        all CPUs that the process may run on, by any process; ``gil_wait_*_us``: waits for the
        lock; ``buffers_mib``: the cameras' buffers; ``resident_mib``: all other memory.
        """
        wall_s = self._wall_ns / 1e9
        waits = sorted(self._lock_us) or [0.0]
        return {
            'process_percent': 100.0 * self._cpu_ns / self._wall_ns,
            'machine_percent': min(100.0, 100.0 * self._busy_s / (wall_s * len(self._cpus))),
            'gil_wait_p50_us': waits[len(waits) // 2],
            'gil_wait_p99_us': waits[int(len(waits) * 0.99)],
            **_resident_mib(Path('/proc/self/status').read_text(encoding='ascii')),
        }


class Cameras:
    """
    Owns the nodes of all cameras of this process, of which some run.

    The main thread calls the method that each command names.
    """

    def __init__(
        self,
        context: rclpy.Context,
        running: ExecutorThread,
        topic: str,
        width: str,
        height: str,
        rate_hz: str,
        delay_ms: str,
        depth: str,
        parameters: str = '',
    ) -> None:
        self._context = context
        self._executor = running.executor
        self._topic = topic
        self._rate_hz = float(rate_hz)
        knobs = json.loads(parameters) if parameters else None
        self._of_each = (
            CopyLedger(),
            (int(width), int(height)),
            self._rate_hz,
            float(delay_ms) / 1e3,
            int(depth),
            knobs,
        )
        self._graphs: list[Graph] = []

    def grow(self, cameras: int) -> dict[str, Any]:
        """Add cameras until there are this many, or until one can't be added."""
        while len(self._graphs) < cameras:
            with INTERRUPTION.put_off():
                try:
                    self._add()
                except (ZcError, OSError) as error:
                    return {'refused': str(error)}
        return {'cameras': len(self._graphs)}

    def _add(self) -> None:
        graph = Graph(self._context, f'{self._topic}/camera_{len(self._graphs)}', *self._of_each)
        self._graphs.append(graph)
        graph.capture.configure_now()
        for node in (graph.capture, graph.inference):
            self._executor.add_node(node)
        graph.inference.start()
        graph.capture.start()

    def describe(self) -> dict[str, Any]:
        heap = self._graphs[0].camera.heap_name
        return {'rmw': get_rmw_implementation_identifier(), 'buffers': heap, 'model': MODEL}

    def matched(self) -> dict[str, Any]:
        """
        Return whether all nodes have found each other and the reader.

        Each inference node must have an in-process link, and a subscriber of its detections.
        """
        for graph in self._graphs:
            rung = graph.inference.subscription.statistics().rung
            if rung != IN_PROCESS:
                return {'matched': False, 'reason': f'the link is {rung}'}
            if not graph.inference.count_subscribers('detections'):
                return {'matched': False, 'reason': 'nobody reads the detections'}
        return {'matched': True, 'reason': ''}

    def idle(self, seconds: float) -> dict[str, Any]:
        gc.collect()
        began_ns = time.process_time_ns()
        time.sleep(seconds)
        return {'cpu_us': (time.process_time_ns() - began_ns) / 1e3}

    def run(
        self, cameras: int, seconds: float, spread: bool = False, probed: bool = False
    ) -> dict[str, Any]:
        graphs = self._graphs[:cameras]
        gc.collect()
        before = [graph.counts() for graph in graphs]
        for graph in graphs:
            graph.latencies_us, graph.spent_ns = [], []
        use = MachineUse() if probed else None
        began_s, began_ns = time.monotonic(), time.process_time_ns()
        with use or contextlib.nullcontext():
            for graph in graphs:
                graph.camera.running.set()
                if spread:
                    time.sleep(1.0 / self._rate_hz / cameras)
            time.sleep(seconds)
            for graph in graphs:
                graph.camera.running.clear()
            ran_s = time.monotonic() - began_s
        _wait_until_idle(graphs)
        cpu_us, wall_s = (time.process_time_ns() - began_ns) / 1e3, time.monotonic() - began_s
        after = [graph.counts() for graph in graphs]
        total = {
            name: sum(new[name] - old[name] for new, old in zip(after, before, strict=True))
            for name in after[0]
        }
        # A camera that is a period late skips the frames that were due meanwhile. The -1 is for
        # its last frame, which may not have been due yet.
        due = max(
            total['captured'] + total['no_slot'] + total['late'],
            cameras * int(ran_s * self._rate_hz - 1),
        )
        drops = {name: total[name] for name in ('no_slot', 'newest_wins', 'device')}
        drops['late'] = due - total['captured'] - total['no_slot']
        return {
            'ran_s': ran_s,
            'wall_s': wall_s,
            'cpu_us': cpu_us,
            'due': due,
            'published': total['published'],
            'detections': total['detections'],
            'drops': drops,
            'latencies_us': [latency for graph in graphs for latency in graph.latencies_us],
            'cpu_each_us': self._cpu_each(graphs),
            'stages_us': self._stages(graphs),
            'conversions': sum(
                graph.capture.publisher.statistics().conversions for graph in graphs
            ),
            'imports': sum(graph.inference.accelerator.imports for graph in graphs),
            'use': {} if use is None else use.figures(),
            'holders': [] if use is None else use.holders(),
        }

    def _cpu_each(self, graphs: Sequence[Graph]) -> list[float]:
        """
        Return the process's CPU time from each published frame to the next.

        It is empty for several cameras, because their frames overlap.
        """
        spent = graphs[0].spent_ns if len(graphs) == 1 else []
        return [(later - earlier) / 1e3 for earlier, later in itertools.pairwise(spent)]

    def _stages(self, graphs: Sequence[Graph]) -> dict[str, float]:
        """Return, for each stage, the median over all nodes of their medians since the start."""
        found: dict[str, list[float]] = {}
        for graph in graphs:
            for node in (graph.capture, graph.inference):
                for stage, percentiles in node.latencies.summary().items():
                    found.setdefault(stage, []).append(percentiles.p50 * 1e3)
        return {stage: statistics.median(values) for stage, values in found.items()}

    def close(self) -> None:
        """Stop and destroy all nodes, the capture nodes first."""
        nodes = [
            *(graph.capture for graph in self._graphs),
            *(graph.inference for graph in self._graphs),
        ]
        for node in nodes:
            node.stop()
        for node in nodes:
            node.destroy_node()


def _wait_until_idle(graphs: Sequence[Graph]) -> None:
    """Wait, with a time limit, until each captured frame is published, refused or lost."""
    deadline, quiet = time.monotonic() + _DRAIN_S, 0
    while quiet < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
        quiet = quiet + 1 if all(graph.inference.idle for graph in graphs) else 0


def _serve(context: rclpy.Context, *arguments: str) -> None:
    with contextlib.ExitStack() as ending:
        running = ExecutorThread(context, lambda: None)
        cameras = Cameras(context, running, *arguments)
        ending.callback(cameras.close)
        ending.callback(running.stop)
        running.start()
        obey(cameras, running)


if __name__ == '__main__':
    run_worker(lambda context: _serve(context, *sys.argv[2:]))
