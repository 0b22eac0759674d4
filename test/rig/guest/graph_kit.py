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

"""Build and run a graph in the guest: its nodes, its subscribers, and the nodes' figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import subprocess
import sys
from typing import Any

import rclpy
from rclpy.parameter import Parameter
from waiting import eventually

from zc_perception.errors import CameraLostError
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.nodes.process import NodeGroup

from .graph_variants import Variant

TEST = Path(__file__).resolve().parents[2]
MODEL = str(TEST / 'rig' / 'models' / 'virtual_metis.yaml')


# Prints the stamps of the detections that it received until its standard input was closed.
_SUBSCRIBER = """
import json, sys, threading, time
import rclpy
from vision_msgs.msg import Detection2DArray
rclpy.init()
node = rclpy.create_node('plain_subscriber')
stamps, last, closed = [], [0.0], []
def note(message):
    last[0] = time.monotonic()
    stamps.append(message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec)
node.create_subscription(Detection2DArray, 'detections', note, 50)
threading.Thread(
    target=lambda: (sys.stdin.read(), closed.append(time.monotonic())), daemon=True
).start()
print('listening', flush=True)
while not closed or time.monotonic() - max(last[0], *closed) <= 1.0:
    rclpy.spin_once(node, timeout_sec=0.1)
print(json.dumps(stamps), flush=True)
# Otherwise publishers would count it as a reader until its lease ends, 20 s later.
node.destroy_node()
rclpy.shutdown()
"""


def plain_subscriber() -> subprocess.Popen[str]:
    """Start a process that imports standard messages only, and subscribes from now on."""
    command = [sys.executable, '-c', _SUBSCRIBER]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline().strip() == 'listening'
    return process


@contextmanager
def ros() -> Iterator[rclpy.Context]:
    context = rclpy.Context()
    rclpy.init(context=context)
    try:
        yield context
    finally:
        context.try_shutdown()


class RunningGraph:
    """A graph on an executor; the end of the block stops everything."""

    def __init__(self, context: rclpy.Context, variant: Variant) -> None:
        self.problems: list[str] = []
        self.graph = PerceptionGraph(
            context, {'capture': variant.capture, 'inference': variant.inference(MODEL)}
        )
        self._group = NodeGroup(
            context, self.graph.nodes, lambda: self.problems.append(self._group.failure or '')
        )
        #: Spins one more node, whose owner destroys it.
        self.add_node = self._group.add_node

    def __enter__(self) -> RunningGraph:
        self._group.__enter__()
        return self

    def start(self, readers: int = 0) -> None:
        """Start the nodes when this many readers subscribe to the detections."""
        eventually(lambda: self.graph.inference.count_subscribers('detections') >= readers, 20)
        self._group.start()

    def __exit__(self, *exception: object) -> None:
        self._group.__exit__(*exception)

    def keep_imports(self, wanted: bool) -> None:
        """Turn the import cache on or off, as an operator does."""
        node = self.graph.inference
        node.set_parameters([Parameter('import_cache', value=wanted)])
        assert node.parameters['import_cache'] is wanted

    @contextmanager
    def second_inference(self) -> Iterator[None]:
        """Add an inference node here, with its own card file, handles and job numbers."""
        first = self.graph.inference
        names = ('accelerator', 'model', 'import_cache', 'in_flight', 'keep_all')
        node = InferenceNode(
            context=first.context,
            cli_args=['--ros-args', '-r', '__node:=second', '-r', 'detections:=second_detections'],
            parameter_overrides=[Parameter(name, value=first.parameters[name]) for name in names],
        )
        try:
            self.add_node(node)
            node.start()
            assert eventually(lambda: node.processed > 3, 60), 'the second node got no frame'
            yield
        finally:
            node.stop()
            node.destroy_node()

    def inodes(self) -> set[int]:
        """Return the inodes of the camera's buffers; none without a camera."""
        try:
            slots = self.graph.capture.camera.slots
        except CameraLostError:
            return set()
        return {buffer.identity.inode for slot in slots for buffer in slot.buffers}

    def figures(self) -> dict[str, Any]:
        graph = self.graph
        link = graph.inference.subscription.statistics()
        latencies = graph.inference.latencies.summary().items()
        return {
            'processed': graph.inference.processed,
            'failed': graph.inference.failed,
            'rung': link.rung,
            'conversions': link.conversions + graph.capture.publisher.statistics().conversions,
            'trial_imports': graph.inference.accelerator.trial_imports,
            'copies': {reason: entry.count for reason, entry in graph.ledger.entries().items()},
            'latency_ms': {s: [round(p.p50, 2), round(p.p99, 2)] for s, p in latencies},
            'problems': self.problems,
        }
