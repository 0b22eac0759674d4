"""The other process of the startup benchmark: somebody's node, already running, that waits for the first detections of a program.

``python -m zc_perception.bench.startup_reader ROLE``. Reads a command per line from standard input, JSON, and answers with a line of
JSON.

======  ==========  =============================================================
op      takes       answers
======  ==========  =============================================================
watch   ``topic``   once there is a reader of it
first               ``first_ns``: CLOCK_MONOTONIC of its first message; 0: none yet
======  ==========  =============================================================
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from vision_msgs.msg import Detection2DArray

from zc_perception.bench.commands import answer, commands
from zc_perception.bench.interruption import terminable
from zc_perception.bench.worker_process import last_words, run_worker
from zc_perception.nodes.process import ExecutorThread


class Reader:
    """One topic at a time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._first_ns = 0
        self._subscription: Any = None

    def watch(self, topic: str) -> dict[str, Any]:
        """Another one."""
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
        self._first_ns = 0
        self._subscription = self._node.create_subscription(Detection2DArray, topic, self._take, QoSProfile(depth=10))
        return {}

    def _take(self, message: Detection2DArray) -> None:
        self._first_ns = self._first_ns or time.monotonic_ns()

    def first(self) -> dict[str, Any]:
        """See above."""
        return {'first_ns': self._first_ns}


def _serve(context: rclpy.Context) -> None:
    failed = threading.Event()
    with contextlib.ExitStack() as ending:
        running = ExecutorThread(context, failed.set)
        ending.callback(running.stop)
        node = Node('bench_reader', context=context)
        ending.callback(node.destroy_node)
        running.executor.add_node(node)
        reader = Reader(node)
        running.start()
        with terminable():
            for command in commands():
                operation = getattr(reader, command.pop('op'))
                answer(last_words(running.failure) if failed.is_set() else operation(**command))


if __name__ == '__main__':
    run_worker(_serve)
