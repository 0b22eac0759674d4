"""A subscription of camera frames for a node of one's own, with everything else chosen."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile

from zc_perception.errors import ConfigError
from zc_perception.frame import Frame
from zc_perception.link.endpoints.remote_links import SharedMemoryLinks
from zc_perception.link.endpoints.subscription import AdaptedSubscription
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.shared_memory.unix_socket import check_ids
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.session import Consumer

CopyFree = Literal['preferred', 'required']


def requires_copy_free(copy_free: str) -> bool:
    """What a user's *copy_free* says.

    :raises ConfigError: another word.
    """
    if copy_free not in ('preferred', 'required'):
        raise ConfigError(f"copy_free '{copy_free}' is not one of preferred, required")
    return copy_free == 'required'


class FrameSubscription(AdaptedSubscription[Frame]):
    """A subscription of camera frames, as :func:`create_frame_subscription` returns it. Here the callback may be left out.

    ::

        import rclpy
        from zc_perception import FrameSubscription

        rclpy.init()
        node = rclpy.create_node('listener')
        frames = FrameSubscription(node, 'image_raw', lambda frame: print(frame.sequence))
        rclpy.spin(node)

    The topic's type is ``sensor_msgs/msg/Image``. A publisher of this package passes the same frame within a process, and the same
    memory between processes of one host. From any other publisher each message is copied into a frame. :meth:`statistics` says which
    way is in use, and why.

    **Owner.** The node owns the subscription, also if you keep no reference to it. It ends with :meth:`destroy`, or with
    ``node.destroy_node()``. In the callback the subscription owns the frame and releases it when the callback returns, unless it called
    :meth:`Frame.keep`. Without a callback, ``frames.queue.get(timeout_s)`` returns the oldest frame that waits, or ``None``. You own that
    frame and release it. :class:`FrameReader` does that in a loop.

    **Threads.** The callback runs on the node's executor, one frame at a time and in order. It may be a coroutine function. Without a
    callback any thread of yours takes frames from the queue. The node must be spun in both cases, because publishers are found that way.

    **Errors.** What the callback raises goes to whoever spins, as in rclpy; the frame is released all the same.

    The parameters that are not listed are those of :func:`create_frame_subscription`.

    :param callback: called with each frame; ``None``: you take frames from :attr:`queue`.
    :param held: what is called *max_held* there.
    :param copy_free_required: what is called *copy_free* ``required`` there. Then ``rung`` of :meth:`statistics` is ``refused``, with
        the reason, while there is no direct link.
    :raises ConfigError: *depth* or *held* is 0, or *trusted_uids* are no numbers of users.
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
        callback_group: CallbackGroup | None = None,
    ) -> None:
        if held < 1:
            raise ConfigError(
                f'a subscription that may hold {held} frames never gets one: max_held (held) has to be at least 1'
            )
        check_ids(trusted_uids, 'trusted_uids')
        name = node.get_name()
        self.ledger = CopyLedger() if ledger is None else ledger
        super().__init__(
            node,
            frame_adapter('rgb8', self.ledger, holder=f'{name}:from_ros'),
            topic,
            QoSProfile(depth=depth) if qos is None else qos,
            callback=callback,
            callback_group=callback_group,
            holder=name,
            remote=SharedMemoryLinks(name, held=held, allowed_uids=trusted_uids),
            copy_free_required=copy_free_required,
            held=held,
            match_reliability=qos is None,
            consumer=None if constraints is None else Consumer(constraints),
        )


def create_frame_subscription(
    node: Node,
    topic: str,
    callback: Callable[[Frame], Any],
    *,
    qos: QoSProfile | None = None,
    depth: int = 1,
    max_held: int = 2,
    copy_free: CopyFree = 'preferred',
    constraints: BufferConstraints | None = None,
    trusted_uids: Collection[int] = (),
    callback_group: CallbackGroup | None = None,
    ledger: CopyLedger | None = None,
) -> FrameSubscription:
    """Call a function with each camera frame, without copying the frame.

    ::

        import rclpy
        from zc_perception import create_frame_subscription

        rclpy.init()
        node = rclpy.create_node('listener')
        create_frame_subscription(node, 'image_raw', lambda frame: print(frame.sequence, frame.y.mean()))
        rclpy.spin(node)

    **Owner.** The node owns the subscription, as with ``node.create_subscription()``: it ends with ``node.destroy_node()``, or with
    ``destroy()`` of what is returned. You need not keep that. The frame ends when the callback returns: call ``frame.keep()`` to keep it.

    **Threads.** The callback runs on the node's executor, one frame at a time and in order. It may be a coroutine function.

    **Errors.** What the callback raises goes to whoever spins, as in rclpy. The frame is released, and the next one comes.

    :param node: makes the subscription; its name is your name in the camera's diagnostics.
    :param topic: of type ``sensor_msgs/msg/Image``; relative or absolute; remaps apply.
    :param callback: a function or coroutine function that takes a :class:`Frame`.
    :param qos: of the topic, in place of *depth*. By default messages of a best-effort publisher are taken as well as those of a reliable
        one.
    :param depth: how many of the newest frames wait while the callback runs; older ones are dropped and counted.
    :param max_held: how many frames you hold at the same time of each publisher, kept ones and kept arrays included. While you hold that
        many, no frame comes, and a warning says which they are. A publisher may grant fewer: that is a warning, too.
    :param copy_free: ``preferred``: take messages, which are copies, where nothing else works. ``required``: never take them; it is an
        error in the log while there is no direct link.
    :param constraints: what you need of the buffers: formats, alignments, memory; by default you take whatever comes.
    :param trusted_uids: users whose publishers are trusted, besides your own user and root.
    :param callback_group: of the callback; by default the node's.
    :param ledger: counts the copies that messages make; by default one of its own.
    :raises ConfigError: no *callback*; *depth* or *max_held* is 0; another word for *copy_free*;
        *trusted_uids* are no numbers of users.
    """
    check_callback(callback)
    return FrameSubscription(
        node,
        topic,
        callback,
        depth=depth,
        held=max_held,
        qos=qos,
        trusted_uids=trusted_uids,
        copy_free_required=requires_copy_free(copy_free),
        constraints=constraints,
        ledger=ledger,
        callback_group=callback_group,
    )


def check_callback(callback: object) -> None:
    """Whether frames have somebody to go to.

    :raises ConfigError: it can't be called.
    """
    if not callable(callback):
        raise ConfigError(
            f'the callback is {callback!r}, which is no function: pass one, or take frames in a loop with FrameReader'
        )
