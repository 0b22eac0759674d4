"""A process of the scale benchmark: ``python -m zc_perception.bench.scale_worker ROLE TOPIC …``.

``cameras TOPIC WIDTH HEIGHT HZ DELAY_MS DEPTH`` runs a capture and an inference node for each camera, all in this process, as
``perception --cameras`` does; it begins with none. ``reader TOPIC`` subscribes to their detections.
Reads a command per line from standard input, JSON, and answers with a line of JSON.

========  ======================  ==============================================================================================
op        takes                   answers
========  ======================  ==============================================================================================
grow      ``cameras``             ``cameras`` that there are now, or ``refused``: why there can't be so many
matched   (cameras)               ``matched``; if not, ``reason``
run       ``cameras, seconds,     of the first so many cameras, the others rest: ``wall_s``, ``latencies_us`` (from when a frame was due
          in_step``               until its detections were published, less the accelerator's delay), ``due``, ``drops`` by reason,
                                  ``use``: figures of :mod:`machine_use`
received  (reader)                messages since it was last asked
========  ======================  ==============================================================================================
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from vision_msgs.msg import Detection2DArray

from zc_perception.bench.commands import answer, commands
from zc_perception.bench.interruption import terminable
from zc_perception.bench.machine_use import MachineUse
from zc_perception.bench.pipeline_worker import Graph, Pipelines
from zc_perception.bench.worker_process import last_words, run_worker
from zc_perception.errors import ZcError
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.process import ExecutorThread
from zc_perception.terminal import INTERRUPTION

_DRAIN_S = 5.0
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
        self._drain(graphs)
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

    @staticmethod
    def _drain(graphs: list[Graph]) -> None:
        deadline, quiet = time.monotonic() + _DRAIN_S, 0
        # A frame that was captured is published, refused or lost; only then the series is over.
        while quiet < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
            quiet = quiet + 1 if all(graph.inference.idle for graph in graphs) else 0

    def close(self) -> None:
        """End all of them, producers first."""
        for graph in self._graphs:
            graph.capture.stop()
        for graph in self._graphs:
            graph.inference.stop()
        for graph in self._graphs:
            graph.capture.destroy_node()
            graph.inference.destroy_node()


class Reader:
    """Somebody's node that takes all detections, as they are on the wire: what it does with them is no part of this."""

    def __init__(self, node: Node, topic: str) -> None:
        self._node = node
        self._topic = topic
        self._received = 0
        self._subscriptions: list[Any] = []

    def grow(self, cameras: int) -> dict[str, Any]:
        """Subscribe to so many cameras' detections."""
        while len(self._subscriptions) < cameras:
            topic = f'{self._topic}/camera_{len(self._subscriptions)}/detections'
            self._subscriptions.append(self._node.create_subscription(Detection2DArray, topic, self._take, QoSProfile(depth=10), raw=True))
        return {'cameras': len(self._subscriptions)}

    def _take(self, message: bytes) -> None:
        self._received += 1

    def received(self) -> dict[str, Any]:
        received, self._received = self._received, 0
        return {'received': received}

    def close(self) -> None:
        """The node is its maker's."""


def _obey(server: Cameras | Reader, command: dict[str, Any]) -> dict[str, Any]:
    answered: dict[str, Any] = getattr(server, command.pop('op'))(**command)
    return answered


def _serve(context: rclpy.Context, role: str, topic: str, *numbers: str) -> None:
    failed = threading.Event()
    with contextlib.ExitStack() as ending:
        running = ExecutorThread(context, failed.set)
        ending.callback(running.stop)
        server: Cameras | Reader
        if role == 'reader':
            node = Node('bench_reader', context=context)
            ending.callback(node.destroy_node)
            running.executor.add_node(node)
            server = Reader(node, topic)
        else:
            width, height, rate_hz, delay_ms, depth = (float(number) for number in numbers)
            server = Cameras(context, running, topic, (int(width), int(height)), rate_hz, delay_ms / 1e3, int(depth))
        ending.callback(server.close)
        running.start()
        with terminable():
            for command in commands():
                answer(last_words(running.failure) if failed.is_set() else _obey(server, command))


def main() -> None:
    """Serve commands until standard input ends or SIGTERM."""
    run_worker(lambda context: _serve(context, *sys.argv[1:]))


if __name__ == '__main__':
    main()
