"""Capture, inference and overlay in one process, where frames pass from hand to hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import rclpy
from rclpy.parameter import Parameter

from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.nodes.process import refuse_unknown_parameters

NODES: tuple[type[PerceptionNode], ...] = (CaptureNode, InferenceNode, OverlayNode)
Overrides = Mapping[str, Mapping[str, Any]]


class PerceptionGraph:
    """The three nodes, wired: capture allocates what the accelerator can import.

    :param overrides: start-up parameters by node name (``capture``, ``inference``, ``overlay``), besides those of the command line.
    :raises ZcError: a parameter, file or model can't be used; nothing stays behind.
    """

    def __init__(self, context: rclpy.Context, overrides: Overrides | None = None) -> None:
        self.ledger = CopyLedger()
        self._nodes: list[PerceptionNode] = []
        try:
            self.capture = self._make(CaptureNode, 'capture', context, overrides)
            self.inference = self._make(InferenceNode, 'inference', context, overrides)
            self.overlay = self._make(OverlayNode, 'overlay', context, overrides)
            refuse_unknown_parameters(self.nodes, NODES)
            if self.capture.parameters['keep_all'] and not self.inference.parameters['keep_all']:
                self.inference.get_logger().warning(
                    "capture has keep_all, inference has not: set 'keep_all' there too, or frames are skipped"
                )
            self.capture.configure([self.inference.consumer()])
        except BaseException:
            for node in self._nodes:
                node.stop()
                node.destroy_node()
            raise

    def _make(self, kind: Any, name: str, context: rclpy.Context, overrides: Overrides | None) -> Any:
        values = (overrides or {}).get(name, {})
        node = kind(ledger=self.ledger, context=context, parameter_overrides=[Parameter(k, value=v) for k, v in values.items()])
        self._nodes.append(node)
        return node

    @property
    def nodes(self) -> Sequence[PerceptionNode]:
        """Producers first."""
        return tuple(self._nodes)

    @property
    def drained(self) -> bool:
        """Whether the camera has ended and everything it produced has been through."""
        return bool(self.capture.finished and self.inference.idle)
