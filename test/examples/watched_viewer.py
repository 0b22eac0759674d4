"""Runs the viewer's class in a process of its own, and says which buffers it was given: ``watched_viewer.py PROGRAM FRAMES``."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType
from typing import Any

import rclpy
from rclpy.context import Context

from zc_perception import Frame


def load(path: str) -> ModuleType:
    """The program as a module, so that its class can be looked into; what it does as a program is not run."""
    spec = importlib.util.spec_from_file_location('viewer_example', path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def watched(module: ModuleType, context: Context) -> Any:
    """The example's node. It notes the buffers of each frame, and then does what the example does."""

    class Watched(module.Viewer):  # type: ignore[name-defined, misc]
        def __init__(self, **options: Any) -> None:
            self.inodes: list[int] = []
            self.data: list[Any] = []
            super().__init__(**options)

        def on_frame(self, frame: Frame) -> None:
            self.inodes.append(frame.data.buffers[0].identity.inode)
            self.data.append(frame.data)
            super().on_frame(frame)

    return Watched(context=context)


def main() -> None:
    """See the module."""
    module, wanted = load(sys.argv[1]), int(sys.argv[2])
    context = rclpy.Context()
    rclpy.init(context=context)
    node = watched(module, context)
    executor = rclpy.executors.SingleThreadedExecutor(context=context)
    executor.add_node(node)
    while len(node.inodes) < wanted:
        executor.spin_once(timeout_sec=0.2)
    statistics = node.frames.statistics()
    found = {
        'inodes': node.inodes,
        'rung': statistics.rung,
        'conversions': statistics.conversions,
        'copies': list(node.frames.ledger.entries()),
    }
    executor.remove_node(node)
    node.destroy_node()
    context.shutdown()
    print(json.dumps(found))


if __name__ == '__main__':
    main()
