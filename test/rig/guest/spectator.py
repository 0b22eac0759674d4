"""One more consumer of the frames in the process of the nodes: what it does with them is to be found out."""

from __future__ import annotations

from collections.abc import Callable

import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile

from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.memory.ledger import CopyLedger

from .harness import wait
from .sabotage import look_at_the_header


class Spectator:
    """See :class:`sabotage.Consumer`."""

    def __init__(self, context: rclpy.Context) -> None:
        self.node = Node('spectator', context=context)
        self.act: Callable[[Frame], None] = look_at_the_header
        self.seen = 0
        adapter = frame_adapter('mono8', CopyLedger(), holder='spectator')
        self._subscription = AdaptedSubscription(self.node, adapter, 'image_raw', QoSProfile(depth=1), callback=self._on_frame)

    def _on_frame(self, frame: Frame) -> None:
        self.act(frame)
        self.seen += 1

    def settled(self) -> None:
        """Wait until the frame is done that may be at hand."""
        seen = self.seen
        wait(lambda: self.seen > seen, 10)

    def close(self) -> None:
        """Leave."""
        self._subscription.destroy()
        self.node.destroy_node()
