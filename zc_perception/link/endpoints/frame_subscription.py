"""A subscription of camera frames for a node of one's own, with everything else chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile

from zc_perception.frame import Frame
from zc_perception.link.endpoints.shared_memory_links import SharedMemoryLinks
from zc_perception.link.endpoints.subscription import AdaptedSubscription
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.session import Consumer


class FrameSubscription(AdaptedSubscription[Frame]):
    """Subscribes to camera frames. They come in the camera's own buffers if its publisher is on this host and of this package.

    ::

        import rclpy
        from zc_perception import FrameSubscription

        rclpy.init()
        node = rclpy.create_node('listener')
        frames = FrameSubscription(node, 'image_raw', lambda frame: print(frame.data.sequence))
        rclpy.spin(node)

    The topic's type is ``sensor_msgs/msg/Image``. A publisher of this package passes the same frame within a process, and the same
    memory between processes of one host. From any other publisher each message is copied into a frame. :meth:`statistics` says which
    way is in use, and why.

    **Owner.** The subscription ends with :meth:`destroy`, or with ``node.destroy_node()``. In the callback
    the subscription owns the frame and releases it when the callback returns, unless it called :meth:`Frame.share`. Without a
    callback, ``frames.queue.get(timeout_s)`` returns the oldest frame that waits, or ``None``. You own that frame and release it.

    **Threads.** The callback runs on the node's executor, one frame at a time and in order. It may be a coroutine function. Without a
    callback any thread of yours takes frames from the queue, which is the quickest way. The node must be spun in both cases, because
    publishers are found that way.

    **Errors.** What the callback raises goes to whoever spins, as in rclpy; the frame is released all the same.

    :param node: makes the subscription; its name is your name in the camera's diagnostics.
    :param topic: relative or absolute; remaps apply.
    :param callback: called with each frame; ``None``: you take frames from :attr:`queue`.
    :param depth: how many of the newest frames wait while the callback runs; older ones are dropped and counted.
    :param held: how many frames you hold at the same time of each publisher, including those that you ``share()``. While you hold that
        many, no frame comes; after a second of that the log says which they are. A publisher may grant fewer: that is a warning in the
        log, and :meth:`statistics` says how many.
    :param qos: of the topic, in place of *depth*. By default messages of a best-effort publisher are taken as well as those of a reliable
        one.
    :param trusted_uids: users whose publishers are trusted, besides your own user and root.
    :param copy_free_required: never take messages, which are copies. Then ``rung`` of :meth:`statistics` is ``refused``, with the
        reason, while there is no direct link.
    :param constraints: what you need of the buffers: formats, alignments, memory. A publisher whose buffers don't suit refuses you by
        name, and you get messages; by default you take whatever comes.
    :param ledger: counts the copies that messages make; by default one of its own.
    :raises ConfigError: *depth* is 0.
    """

    def __init__(
        self,
        node: Node,
        topic: str,
        callback: Callable[[Frame], Any] | None = None,
        *,
        depth: int = 1,
        held: int = 1,
        qos: QoSProfile | None = None,
        trusted_uids: Collection[int] = (),
        copy_free_required: bool = False,
        constraints: BufferConstraints | None = None,
        ledger: CopyLedger | None = None,
    ) -> None:
        name = node.get_name()
        self.ledger = CopyLedger() if ledger is None else ledger
        super().__init__(
            node,
            frame_adapter('rgb8', self.ledger, holder=f'{name}:from_ros'),
            topic,
            QoSProfile(depth=depth) if qos is None else qos,
            callback=callback,
            holder=name,
            remote=SharedMemoryLinks(name, held=held, allowed_uids=trusted_uids),
            copy_free_required=copy_free_required,
            held=held,
            match_reliability=qos is None,
            consumer=None if constraints is None else Consumer(constraints),
        )
