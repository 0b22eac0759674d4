"""A subscription of camera frames together with the ``camera_info`` of each, as image_transport's camera subscriber has it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CameraInfo

from zc_perception.frame import Frame
from zc_perception.link.endpoints.frame_subscription import (
    CopyFree,
    FrameSubscription,
    check_callback,
    requires_copy_free,
)
from zc_perception.link.endpoints.subscription import SubscriptionStatistics
from zc_perception.link.image_conversion import stamp_ns
from zc_perception.link.rclpy_compat import create_reader
from zc_perception.log import Seldom
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints

#: Messages that wait for their frame. They are small, and may come before it.
_INFOS = 32
_PATIENCE_NS = 500_000_000
_ALONE_S = 2.0


class CameraSubscription(FrameSubscription):
    """Holds each frame in the queue until its ``camera_info`` is there.

    Newer frames replace those that wait there. A ``camera_info`` with a newer stamp means that the older one doesn't come any more: then
    the frame ends at once. At the latest it ends half a second to a second after it was captured, because frames of another process
    count as held while they wait.

    :param callback: called with a frame and the message that has its stamp.
    """

    def __init__(
        self,
        node: Node,
        topic: str,
        callback: Callable[[Frame, CameraInfo], Any],
        *,
        qos: QoSProfile | None,
        **options: Any,
    ) -> None:
        self._on_pair = callback
        self._infos: dict[int, CameraInfo] = {}
        self._newest: CameraInfo | None = None
        # Of the frame that the gate has let through last.
        self._info: CameraInfo | None = None
        self._skipped = 0
        self._alone_since: float | None = None
        self._say_alone = Seldom(lambda text: node.get_logger().warning(text), 10.0)
        self._info_reader: Any = None
        call = (
            self._call_pair_coroutine if inspect.iscoroutinefunction(callback) else self._call_pair
        )
        super().__init__(node, topic, call, qos=qos, **options)
        self.info_topic = f'{self.topic.rpartition("/")[0]}/camera_info'
        info_qos = (
            QoSProfile(depth=_INFOS, reliability=ReliabilityPolicy.BEST_EFFORT)
            if qos is None
            else qos
        )
        self._info_reader = create_reader(
            node, CameraInfo, self.info_topic, self._on_info, info_qos, callback_group=self._group
        )

    def _on_info(self, info: CameraInfo) -> None:
        self._infos.pop(stamp_ns(info.header), None)  # so that its place is the newest
        self._infos[stamp_ns(info.header)] = self._newest = info
        if len(self._infos) > _INFOS:
            del self._infos[next(iter(self._infos))]
        self.queue.reopen()
        self._go_on()

    def _gate(self, frame: Frame) -> bool:
        """Whether the frame may go to the callback now. One for which nothing will come may, and is not given to the user."""
        header, newest = frame.data.header, self._newest
        info = self._infos.get(header.stamp_ns)
        if info is None:
            self._alone_since = self._alone_since or time.monotonic()
            if (
                newest is None
                or newest.header.frame_id != header.frame_id
                or stamp_ns(newest.header) < header.stamp_ns
            ):
                return False
        if not frame.hand_out():
            return False
        self._info = info
        return True

    def _call_pair(self, frame: Frame) -> None:
        info = self._take_info()
        if info is not None:
            self._on_pair(frame, info)

    async def _call_pair_coroutine(self, frame: Frame) -> None:
        info = self._take_info()
        if info is not None:
            await self._on_pair(frame, info)

    def _take_info(self) -> CameraInfo | None:
        info, self._info = self._info, None
        if info is None:
            self._skipped += 1
        else:
            self._alone_since = None
        return info

    def _look(self) -> None:
        while self.queue.drop_oldest(self._waits_in_vain):
            pass
        super()._look()
        since = self._alone_since
        if since is not None and time.monotonic() - since >= _ALONE_S:
            self._say_alone(
                f"'{self.topic}': frames come, but no camera_info with their stamps on '{self.info_topic}'"
                f'{", where nothing came so far" if self._newest is None else ""}: see whether the camera publishes it there, and remap',
                'alone',
            )

    def _waits_in_vain(self, frame: Frame) -> bool:
        return (
            frame.data.header.stamp_ns not in self._infos
            and time.monotonic_ns() - frame.data.captured_ns > _PATIENCE_NS
        )

    def statistics(self) -> SubscriptionStatistics:
        """See :meth:`AdaptedSubscription.statistics`; frames that ended without their ``camera_info`` are counted as dropped."""
        found = super().statistics()
        return replace(found, dropped=found.dropped + self._skipped)

    def destroy(self) -> None:
        """See :meth:`AdaptedSubscription.destroy`."""
        super().destroy()
        reader, self._info_reader = self._info_reader, None
        if reader is not None:
            self._node.destroy_subscription(reader)


def create_camera_subscription(
    node: Node,
    topic: str,
    callback: Callable[[Frame, CameraInfo], Any],
    *,
    qos: QoSProfile | None = None,
    depth: int = 2,
    max_held: int = 2,
    copy_free: CopyFree = 'preferred',
    constraints: BufferConstraints | None = None,
    trusted_uids: Collection[int] = (),
    callback_group: CallbackGroup | None = None,
    ledger: CopyLedger | None = None,
) -> FrameSubscription:
    """Call a function with each camera frame and its ``sensor_msgs/msg/CameraInfo``, as image_transport's camera subscriber does.

    ::

        import rclpy
        from zc_perception import create_camera_subscription


        def on_frame(frame, camera_info):
            print(frame.sequence, frame.width, camera_info.k[0])


        rclpy.init()
        node = rclpy.create_node('listener')
        create_camera_subscription(node, 'image_raw', on_frame)
        rclpy.spin(node)

    The topic of the messages is ``camera_info`` beside the image's: for ``/front/image_raw`` it is ``/front/camera_info``. Remaps apply.
    A frame and a message belong together if their stamps are equal. A frame waits for its message. It is dropped and counted when newer
    frames need its place, when a message with a newer stamp comes, or after half a second to a second.

    Owner, threads, errors and the other parameters are those of :func:`create_frame_subscription`.

    :param callback: a function or coroutine function that takes a :class:`Frame` and a ``CameraInfo``.
    :param qos: of both topics, in place of *depth*. By default messages of a best-effort publisher are taken as well.
    :param depth: how many of the newest frames wait for their message, and while the callback runs.
    :raises ConfigError: no *callback*; *depth* or *max_held* is 0; another word for *copy_free*;
        *trusted_uids* are no numbers of users.
    """
    check_callback(callback)
    return CameraSubscription(
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
