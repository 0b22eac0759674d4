"""The process of the scale benchmark that has the nodes: ``python -m zc_perception.bench.scale_worker cameras TOPIC …``.

``cameras TOPIC WIDTH HEIGHT HZ DELAY_MS DEPTH`` runs a capture and an inference node for each camera, all in this process, as
``perception --cameras`` does; it begins with none.
Reads a command per line from standard input, JSON, and answers with a line of JSON.

========  ======================  ==============================================================================================
op        takes                   answers
========  ======================  ==============================================================================================
grow      ``cameras``             ``cameras`` that there are now, or ``refused``: why there can't be so many
matched                           ``matched``; if not, ``reason``
run       ``cameras, seconds,     of the first so many cameras, the others rest: ``wall_s``, ``latencies_us`` (from when a frame was due
          in_step``               until its detections were published, less the accelerator's delay), ``due``, ``drops`` by reason,
                                  ``use``: figures of :class:`MachineUse`
========  ======================  ==============================================================================================

Sources: proc_stat(5), proc_pid_schedstat (Documentation/scheduler/sched-stats.rst).
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any

import rclpy

from zc_perception.bench.obeying import obey, run_worker
from zc_perception.bench.pipeline_worker import Graph, Pipelines, wait_until_idle
from zc_perception.errors import ZcError
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.process import ExecutorThread
from zc_perception.terminal import INTERRUPTION

_TICK_S = 1.0 / os.sysconf('SC_CLK_TCK')
_PROBE_S = 0.005
# Fields of a CPU's line: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE = (3, 4)
_FIELDS = 8


def busy_s(cpus: Collection[int], stat: str) -> float:
    """Time in which these CPUs did anything for anybody, or belonged to another virtual machine.

    :param stat: text of ``/proc/stat``.
    """
    ticks = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.removeprefix('cpu').isdigit() and int(name.removeprefix('cpu')) in cpus:
            ticks += sum(int(field) for number, field in enumerate(fields[:_FIELDS]) if number not in _IDLE)
    return ticks * _TICK_S


def _run_delay_ns() -> int:
    """How long this thread has waited for a CPU since it began; 0 where the kernel doesn't count that."""
    try:
        return int(Path('/proc/thread-self/schedstat').read_text(encoding='ascii').split()[1])
    except (OSError, IndexError, ValueError):
        return 0


class MachineUse:
    """Measures from entering to leaving; a context manager.

    A thread sleeps for 5 ms again and again. How late it runs on is the time that it took to get a CPU, which the kernel counts, and then
    the interpreter's lock: what any thread of the process waits for that has just been woken for a frame.
    """

    def __init__(self) -> None:
        self._cpus = os.sched_getaffinity(0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._probe, name='gil probe', daemon=True)
        self._cpu_ns = self._wall_ns = 0
        self._busy_s = 0.0
        self._lock_us: list[float] = []

    def _probe(self) -> None:
        while not self._stop.is_set():
            waited_ns, until_ns = _run_delay_ns(), time.monotonic_ns() + round(_PROBE_S * 1e9)
            time.sleep(_PROBE_S)
            late_ns = time.monotonic_ns() - until_ns
            self._lock_us.append(max(0, late_ns - (_run_delay_ns() - waited_ns)) / 1e3)

    def __enter__(self) -> MachineUse:
        self._busy_s = busy_s(self._cpus, _stat())
        self._cpu_ns, self._wall_ns = time.process_time_ns(), time.monotonic_ns()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._cpu_ns, self._wall_ns = time.process_time_ns() - self._cpu_ns, time.monotonic_ns() - self._wall_ns
        self._busy_s = busy_s(self._cpus, _stat()) - self._busy_s
        self._thread.join()

    def figures(self) -> dict[str, float]:
        """After leaving. ``process_percent`` of one CPU; ``machine_percent`` of all that the process may use, whoever used them;
        ``gil_wait_*_us``: from having a CPU to running on."""
        wall_s = self._wall_ns / 1e9
        waits = sorted(self._lock_us) or [0.0]
        return {
            'process_percent': 100.0 * self._cpu_ns / self._wall_ns,
            'machine_percent': min(100.0, 100.0 * self._busy_s / (wall_s * len(self._cpus))),
            'gil_wait_p50_us': waits[len(waits) // 2],
            'gil_wait_p99_us': waits[int(len(waits) * 0.99)],
        }


def _stat() -> str:
    return Path('/proc/stat').read_text(encoding='ascii')


# Of the nodes. A full collection of all objects of 32 nodes takes longer than a frame's period.
KNOBS = {'gc_freeze': True}


def counts(graph: Graph) -> dict[str, int]:
    """What became of a camera's frames so far, by reasons."""
    camera, link = graph.camera.statistics(), graph.inference.subscription.statistics()
    jobs = graph.inference.scheduler.statistics()
    return {
        'captured': camera.captured,
        'late': camera.late,
        'no_slot': camera.no_slot,
        'newest_wins': link.dropped,
        'device': jobs.lost,
        'published': graph.inference.processed,
    }


class Cameras:
    """All cameras of this process, some of them running."""

    def __init__(
        self, context: rclpy.Context, running: ExecutorThread, topic: str, size: tuple[int, int], rate_hz: float, delay_s: float, depth: int
    ) -> None:
        self._context = context
        self._executor = running.executor
        self._topic = topic
        self._size, self._rate_hz, self._delay_s, self._depth = size, rate_hz, delay_s, depth
        self._ledger = CopyLedger()
        self._graphs: list[Graph] = []

    def grow(self, cameras: int) -> dict[str, Any]:
        """To so many."""
        while len(self._graphs) < cameras:
            with INTERRUPTION.put_off():
                if refused := self._add():
                    return refused
        return {'cameras': len(self._graphs)}

    def _add(self) -> dict[str, Any] | None:
        """One more; the answer if it is refused."""
        topic = f'{self._topic}/camera_{len(self._graphs)}'
        try:
            graph = Graph(self._context, topic, self._ledger, self._size, self._rate_hz, self._delay_s, KNOBS, self._depth)
        except (ZcError, OSError) as error:
            return {'cameras': len(self._graphs), 'refused': str(error)}
        self._graphs.append(graph)
        try:
            graph.capture.configure_now()
        except (ZcError, OSError) as error:
            return {'cameras': len(self._graphs) - 1, 'refused': str(error)}
        for node in (graph.capture, graph.inference):
            self._executor.add_node(node)
        graph.inference.start()
        graph.capture.start()
        return None

    def matched(self) -> dict[str, Any]:
        """Whether frames get to all inference nodes within the process, and detections to the reader."""
        return Pipelines(self._graphs).matched()

    def run(self, cameras: int, seconds: float, in_step: bool) -> dict[str, Any]:
        """The first so many for so long, evenly spread over the period, or all in step, as a rig's triggered cameras are."""
        graphs = self._graphs[:cameras]
        gc.collect()
        before = [counts(graph) for graph in graphs]
        for graph in graphs:
            graph.latencies_us, graph.spent_ns = [], []
        with MachineUse() as use:
            began = time.monotonic()
            for graph in graphs:
                graph.camera.running.set()
                if not in_step:
                    time.sleep(1.0 / self._rate_hz / cameras)
            time.sleep(seconds)
            for graph in graphs:
                graph.camera.running.clear()
            wall_s = time.monotonic() - began
        wait_until_idle(graphs)
        after = [counts(graph) for graph in graphs]
        total = {name: sum(new[name] - old[name] for new, old in zip(after, before, strict=True)) for name in after[0]}
        # A camera that is a period late leaves out what was due meanwhile; its last frame may or may not have been due.
        due = max(total['captured'] + total['no_slot'] + total['late'], cameras * int(wall_s * self._rate_hz - 1))
        drops = {name: total[name] for name in ('no_slot', 'newest_wins', 'device')}
        drops['late'] = due - total['captured'] - total['no_slot']
        return {
            'wall_s': wall_s,
            'due': due,
            'published': total['published'],
            'drops': drops,
            'latencies_us': [latency for graph in graphs for latency in graph.latencies_us],
            'conversions': sum(graph.capture.publisher.statistics().conversions for graph in graphs),
            'use': use.figures(),
        }

    def close(self) -> None:
        """End all of them, producers first."""
        for graph in self._graphs:
            graph.capture.stop()
        for graph in self._graphs:
            graph.inference.stop()
        for graph in self._graphs:
            graph.capture.destroy_node()
            graph.inference.destroy_node()


def _serve(context: rclpy.Context, topic: str, *numbers: str) -> None:
    failed = threading.Event()
    width, height, rate_hz, delay_ms, depth = (float(number) for number in numbers)
    with contextlib.ExitStack() as ending:
        running = ExecutorThread(context, failed.set)
        ending.callback(running.stop)
        cameras = Cameras(context, running, topic, (int(width), int(height)), rate_hz, delay_ms / 1e3, int(depth))
        ending.callback(cameras.close)
        running.start()
        obey(cameras, failed, running)


if __name__ == '__main__':
    run_worker(lambda context: _serve(context, *sys.argv[2:]))
