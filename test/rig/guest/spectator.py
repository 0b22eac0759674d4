"""One more consumer of the frames in the process of the nodes: what it does with them is to be found out."""

from __future__ import annotations

import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile

from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.memory.ledger import CopyLedger

from .sabotage import Consumer


class Spectator(Consumer):
    """See :class:`sabotage.Consumer`."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__()
        self.node = Node('spectator', context=context)
        adapter = frame_adapter('mono8', CopyLedger(), holder='spectator')
        self._subscription = AdaptedSubscription(self.node, adapter, 'image_raw', QoSProfile(depth=1), callback=self._on_frame)

    def _on_frame(self, frame: Frame) -> None:
        self.act(frame)
        self.seen += 1

    def close(self) -> None:
        """Leave."""
        self._subscription.destroy()
        self.node.destroy_node()
