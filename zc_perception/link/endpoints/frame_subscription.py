"""A subscription of camera frames for a node of one's own, with everything else chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rclpy.node import Node
from rclpy.qos import QoSProfile

from zc_perception.frame import Frame
from zc_perception.link.endpoints.shared_memory_links import SharedMemoryLinks
from zc_perception.link.endpoints.subscription import AdaptedSubscription
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.memory.ledger import CopyLedger


class FrameSubscription(AdaptedSubscription[Frame]):
    """Frames of a topic of ``sensor_msgs/Image``: the camera's own buffers where the publisher is this package's and on this host.

    :param callback: called with each frame on the node's executor; the frame ends when it returns, unless it called ``frame.share()``.
        ``None``: take frames from :attr:`queue` on a thread of your own, and release them.
    :param depth: how many of the newest frames wait while the callback runs; older ones are dropped.
    :param held: frames that you hold at the same time, those that you ``share()`` included. A publisher of another process with fewer slots
        left grants fewer: that is a warning in the log, and ``window`` below ``asked`` in :meth:`statistics`.
    :param trusted_uids: users whose publishers are trusted, besides this one and root.
    :param copy_free_required: never take plain messages, which are copies; :meth:`statistics` says what stands in the way.
    :param ledger: where copies are booked that a lower rung makes; one of its own otherwise.
    :raises ConfigError: depth 0.
    """

    def __init__(
        self,
        node: Node,
        topic: str,
        callback: Callable[[Frame], None] | None = None,
        *,
        depth: int = 1,
        held: int = 1,
        trusted_uids: Collection[int] = (),
        copy_free_required: bool = False,
        ledger: CopyLedger | None = None,
    ) -> None:
        name = node.get_name()
        self.ledger = CopyLedger() if ledger is None else ledger
        super().__init__(
            node,
            frame_adapter('rgb8', self.ledger, holder=f'{name}:from_ros'),
            topic,
            QoSProfile(depth=depth),
            callback=callback,
            holder=name,
            remote=SharedMemoryLinks(name, held=held, allowed_uids=trusted_uids),
            copy_free_required=copy_free_required,
        )
