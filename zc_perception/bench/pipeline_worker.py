"""The process of the pipeline benchmark that has the nodes: ``python -m zc_perception.bench.pipeline_worker pipeline TOPIC …``.

``pipeline TOPIC CAMERAS WIDTH HEIGHT HZ DELAY_MS [PARAMETERS]`` (0 Hz: unthrottled; parameters of both nodes as JSON) runs a capture and
an inference node for each camera, all in this process, as ``perception`` does.
Reads a command per line from standard input, JSON, and answers with a line of JSON.

========  =============  =======================================================================================================
op        takes          answers
========  =============  =======================================================================================================
describe                 what the figures depend on
refused                  ``refused``: which real-time knobs the system doesn't grant and why; empty: none
matched                  ``matched``; if not, ``reason``
idle      ``seconds``    ``cpu_us`` of this process while no camera runs
run       ``seconds``    ``cpu_us``, ``wall_s``, ``due`` frames of all cameras, ``latencies_us`` of those that were published
                         (from captured to published, less the accelerator's delay), ``detections``, ``conversions``, ``imports``,
                         ``cpu_each_us``: one camera's, from a frame to the next, ``stages_us``
========  =============  =======================================================================================================
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import rclpy
from rclpy.parameter import Parameter
from rclpy.utilities import get_rmw_implementation_identifier

from zc_perception.bench.obeying import end_if_told, obey, run_worker
from zc_perception.bench.stand_ins import DelayedAccelerator, PrefilledCamera
from zc_perception.detection.detections import Detections
from zc_perception.link.endpoints import IN_PROCESS
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.process import NodeGroup
from zc_perception.npu.scheduler import InFlight

MODEL = 'road'
_DRAIN_S = 5.0
_IN_FLIGHT = 2


class Graph:
    """Owns one camera's capture and inference node, wired as ``perception`` does. The scheduler's thread calls :meth:`_published`."""

    def __init__(
        self,
        context: rclpy.Context,
        topic: str,
        ledger: CopyLedger,
        size: tuple[int, int],
        rate_hz: float,
        delay_s: float,
        parameters: Mapping[str, Any] | None,
        depth: int = 1,
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
        self.capture = CaptureNode(camera_factory=lambda identity: self.camera, parameter_overrides=own, **common)
        try:
            values = {'model': MODEL, 'in_flight': _IN_FLIGHT}
            if depth > 1:
                values[f'qos_overrides.{self.capture.publisher.topic}.subscription.depth'] = depth
            overrides = [*own, *(Parameter(name, value=value) for name, value in values.items())]
            self.inference = InferenceNode(accelerator_factory=lambda: DelayedAccelerator(delay_s), parameter_overrides=overrides, **common)
        except BaseException:
            self.capture.stop()
            self.capture.destroy_node()
            raise
        self.inference.observers.append(self._published)

    def _published(self, entry: InFlight, found: Detections) -> None:
        self.spent_ns.append(time.process_time_ns())
        self.camera.go_on()
        self.latencies_us.append((time.monotonic_ns() - entry.frame.data.captured_ns - self._delay_ns) / 1e3)

    def close(self) -> None:
        """End both nodes, the producer first."""
        for node in (self.capture, self.inference):
            node.stop()
        for node in (self.capture, self.inference):
            node.destroy_node()

    def refused(self) -> list[str]:
        """Real-time knobs that the nodes could not turn: their own warnings."""
        statuses = [status for node in (self.capture, self.inference) for status in node.collect_diagnostics()]
        return [status.message for status in statuses if status.part == 'realtime']

    @property
    def due(self) -> int:
        """Frames that the camera had, with or without a slot."""
        statistics = self.camera.statistics()
        return statistics.captured + statistics.dropped


def wait_until_idle(graphs: Sequence[Graph]) -> None:
    """Each frame that was captured is published, refused or lost: only then a series is over. Not for ever."""
    deadline, quiet = time.monotonic() + _DRAIN_S, 0
    while quiet < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
        quiet = quiet + 1 if all(graph.inference.idle for graph in graphs) else 0


class Pipelines:
    """All cameras of this process."""

    def __init__(self, graphs: list[Graph]) -> None:
        self._graphs = graphs

    def describe(self) -> dict[str, Any]:
        heap = self._graphs[0].camera.heap_name
        return {'rmw': get_rmw_implementation_identifier(), 'buffers': heap, 'model': MODEL}

    def refused(self) -> dict[str, Any]:
        return {'refused': '; '.join(dict.fromkeys(reason for graph in self._graphs for reason in graph.refused()))}

    def matched(self) -> dict[str, Any]:
        for graph in self._graphs:
            rung = graph.inference.subscription.statistics().rung
            if rung != IN_PROCESS:
                return {'matched': False, 'reason': f'the link is {rung}'}
            if not graph.inference.detection_readers():
                return {'matched': False, 'reason': 'nobody reads the detections'}
        return {'matched': True, 'reason': ''}

    def idle(self, seconds: float) -> dict[str, Any]:
        gc.collect()
        began_ns = time.process_time_ns()
        time.sleep(seconds)
        return {'cpu_us': (time.process_time_ns() - began_ns) / 1e3}

    def run(self, seconds: float) -> dict[str, Any]:
        gc.collect()
        before = [(graph.due, graph.inference.detected) for graph in self._graphs]
        for graph in self._graphs:
            graph.latencies_us, graph.spent_ns = [], []
        began_s, began_ns = time.monotonic(), time.process_time_ns()
        for graph in self._graphs:
            graph.camera.running.set()
        time.sleep(seconds)
        for graph in self._graphs:
            graph.camera.running.clear()
        wait_until_idle(self._graphs)
        return {
            'cpu_us': (time.process_time_ns() - began_ns) / 1e3,
            'wall_s': time.monotonic() - began_s,
            'due': sum(graph.due - was for graph, (was, _) in zip(self._graphs, before, strict=True)),
            'detections': sum(graph.inference.detected - was for graph, (_, was) in zip(self._graphs, before, strict=True)),
            'latencies_us': [latency for graph in self._graphs for latency in graph.latencies_us],
            'conversions': sum(graph.capture.publisher.statistics().conversions for graph in self._graphs),
            'cpu_each_us': self._cpu_each(),
            'stages_us': self._stages(),
            'imports': sum(graph.inference.accelerator.imports for graph in self._graphs),
        }

    def _cpu_each(self) -> list[float]:
        """The process's CPU time from one published frame to the next; of several cameras, whose frames overlap, none."""
        spent = self._graphs[0].spent_ns if len(self._graphs) == 1 else []
        return [(later - earlier) / 1e3 for earlier, later in itertools.pairwise(spent)]

    def _stages(self) -> dict[str, float]:
        """Medians of the nodes' own stage times since the start, over all cameras."""
        found: dict[str, list[float]] = {}
        for graph in self._graphs:
            for node in (graph.capture, graph.inference):
                for stage, percentiles in node.latencies.summary().items():
                    found.setdefault(stage, []).append(percentiles.p50 * 1e3)
        return {stage: statistics.median(values) for stage, values in found.items()}


def _build(context: rclpy.Context, topics: list[str], *options: str) -> list[Graph]:
    """All of them or none: nobody else knows those that are there when one fails."""
    width, height, rate_hz, delay_ms = (float(number) for number in options[:4])
    parameters = json.loads(options[4]) if len(options) > 4 else None
    ledger = CopyLedger()
    graphs: list[Graph] = []
    try:
        for one in topics:
            end_if_told()
            graphs.append(Graph(context, one, ledger, (int(width), int(height)), rate_hz, delay_ms / 1e3, parameters))
            graphs[-1].capture.configure_now()
    except BaseException:
        for graph in graphs:
            graph.close()
        raise
    return graphs


def _serve(context: rclpy.Context, topic: str, cameras: int, *options: str) -> None:
    failed = threading.Event()
    graphs = _build(context, [f'{topic}/camera_{number}' for number in range(cameras)], *options)
    nodes = [node for graph in graphs for node in (graph.capture, graph.inference)]
    with NodeGroup(context, nodes, failed.set) as group:
        group.start()
        obey(Pipelines(graphs), failed, group)


if __name__ == '__main__':
    run_worker(lambda context: _serve(context, sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))
