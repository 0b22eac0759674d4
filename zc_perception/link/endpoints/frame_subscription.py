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

"""
Subscriptions to camera frames for your own node, with a default for every option.

Your code gets the frames in a callback, with or without their ``camera_info``, or in a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
import inspect
import os
import threading
import time
from typing import Any, Literal
import weakref

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CameraInfo

from zc_perception.errors import ConfigError
from zc_perception.frame import Frame
from zc_perception.link.endpoints.executor_turns import is_spun, NodeSpinner
from zc_perception.link.endpoints.remote_links import SharedMemoryLinks
from zc_perception.link.endpoints.subscription import AdaptedSubscription, SubscriptionStatistics
from zc_perception.link.image_conversion import frame_adapter, stamp_ns
from zc_perception.link.rclpy_compat import create_reader, name_before_remaps
from zc_perception.link.shared_memory.unix_socket import check_ids
from zc_perception.log import Seldom
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.session import Consumer

CopyFree = Literal['preferred', 'required']


def requires_copy_free(copy_free: str) -> bool:
    """
    Return whether *copy_free* is ``required``.

    :raises ConfigError: *copy_free* is neither ``preferred`` nor ``required``.
    """
    if copy_free not in ('preferred', 'required'):
        raise ConfigError(f"copy_free '{copy_free}' is not one of preferred, required")
    return copy_free == 'required'


class FrameSubscription(AdaptedSubscription[Frame]):
    """
    A subscription of camera frames, with a callback or with a queue that you read.

    :func:`create_frame_subscription` returns an object of this class.

    ::

        import rclpy
        from zc_perception import FrameSubscription

        rclpy.init()
        node = rclpy.create_node('listener')
        frames = FrameSubscription(node, 'image_raw', lambda frame: print(frame.sequence))
        rclpy.spin(node)

    The topic's type is ``sensor_msgs/msg/Image``. A publisher of this package passes the same
    frame within a process, and the same memory between processes of one host. Each message of any
    other publisher is copied into a frame. :meth:`statistics` returns which way is in use, and
    why.

    **Owner.** The node owns the subscription; you need not keep a reference to it. The
    subscription ends with :meth:`destroy`, or with ``node.destroy_node()``. It owns the frame
    during the callback, and releases the frame when the callback returns, unless the callback
    called :meth:`Frame.keep`. Without a callback, ``frames.queue.get(timeout_s)`` returns the
    oldest waiting frame, or ``None``. You own that frame and must release it.
    :class:`FrameReader` takes and releases frames in a loop.

    **Threads.** The callback runs on the node's executor, one frame at a time and in order. It may
    be a coroutine function. Without a callback, any thread may take frames from the queue. The
    node must be spun in both cases, because its executor finds the publishers.

    **Errors.** An exception of the callback goes to the code that spins the node, as in rclpy. The
    frame is released.

    The parameters that are not listed are those of :func:`create_frame_subscription`.

    :param callback: called with each frame; ``None``: you take frames from :attr:`queue`.
    :param held: how many frames of each publisher you hold at most at the same time, as *max_held*
        of :func:`create_frame_subscription`.
    :param copy_free_required: ``True``: never take messages, which are copies. While there is no
        direct link, ``rung`` of :meth:`statistics` is then ``refused``.
    :raises ConfigError: *depth* or *held* is 0, or *trusted_uids* are not user ids.
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
                f'a subscription that may hold {held} frames never gets one: max_held '
                '(named held in class FrameSubscription) has to be at least 1'
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
    """
    Call a function with each camera frame, without copying the frame.

    ::

        import rclpy
        from zc_perception import create_frame_subscription

        rclpy.init()
        node = rclpy.create_node('listener')
        create_frame_subscription(
            node, 'image_raw', lambda frame: print(frame.sequence, frame.y.mean())
        )
        rclpy.spin(node)

    **Owner.** The node owns the subscription, as with ``node.create_subscription()``: you need not
    keep the returned object. The subscription ends with ``node.destroy_node()``, or with its
    ``destroy()``. The frame is released when the callback returns, unless the callback called
    ``frame.keep()``.

    **Threads.** The callback runs on the node's executor, one frame at a time and in order. It may
    be a coroutine function.

    **Errors.** An exception of the callback goes to the code that spins the node, as in rclpy. The
    frame is released. If your code continues to spin the node, the next frame comes.

    :param node: the node that subscribes; the camera's diagnostics show this node's name.
    :param topic: name of a ``sensor_msgs/msg/Image`` topic, relative or absolute; remaps apply.
    :param callback: a function or coroutine function that takes a :class:`Frame`.
    :param qos: QoS of the topic; *depth* is then ignored. By default, messages of best-effort and
        of reliable publishers are taken.
    :param depth: how many of the newest frames wait while the callback runs; older ones are
        dropped and counted.
    :param max_held: how many frames of each publisher you hold at most at the same time,
        including kept frames and frames whose arrays you kept. While you hold that many, no frame
        comes, and a warning names the frames. If a publisher grants fewer, a warning says so.
    :param copy_free: ``preferred``: take messages, which are copies, if there is no direct link
        (within the process, or by shared memory). ``required``: never take messages; while there
        is no direct link, the log shows an error.
    :param constraints: formats, alignments and memory that you need; by default any buffers are
        accepted.
    :param trusted_uids: ids of users whose publishers are trusted, besides your own user and root.
    :param callback_group: group of the callback; by default the node's default group.
    :param ledger: counts the copies of messages; by default the subscription makes its own.
    :raises ConfigError: *callback* can't be called; *depth* or *max_held* is 0; *copy_free* is
        neither ``preferred`` nor ``required``; *trusted_uids* are not user ids.
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
    """Raise :class:`ConfigError` if *callback* can't be called."""
    if not callable(callback):
        raise ConfigError(
            f'the callback is {callback!r}, which is no function: pass one, or take frames in '
            'a loop with FrameReader'
        )


#: The largest number of ``camera_info`` messages that wait for their frames: a message may come
#: before its frame. Many may wait, because the messages are small.
_INFOS = 32
_PATIENCE_NS = 500_000_000
_ALONE_S = 2.0


class CameraSubscription(FrameSubscription):
    """
    Calls a function with each frame and its ``camera_info``, which have the same stamp.

    Frames wait in the queue for their ``camera_info``. Newer frames replace waiting ones. When a
    ``camera_info`` with a newer stamp comes, the waiting frame is dropped at once, because its own
    ``camera_info`` was lost. In any case, a waiting frame is dropped half a second to a second
    after it was captured: a frame of another process counts for *max_held* while it waits, so it
    could block newer frames.
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
        # The camera_info of the last frame for which _gate() returned true.
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
            node,
            CameraInfo,
            name_before_remaps(node, self.info_topic),
            self._on_info,
            info_qos,
            callback_group=self._group,
        )

    def _on_info(self, info: CameraInfo) -> None:
        # Remove an earlier message with this stamp, so that the new one is stored at the end.
        self._infos.pop(stamp_ns(info.header), None)
        self._infos[stamp_ns(info.header)] = self._newest = info
        if len(self._infos) > _INFOS:
            del self._infos[next(iter(self._infos))]
        self.queue.reopen()
        self._go_on()

    def _gate(self, frame: Frame) -> bool:
        """
        Say whether the frame may leave the queue now; the queue calls this.

        Return ``True`` also for a frame whose ``camera_info`` was lost, so that the queue is not
        blocked. That frame isn't passed to the callback.
        """
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
                f"'{self.topic}': frames come, but no camera_info with their stamps comes on "
                f"'{self.info_topic}'"
                f'{", where nothing came so far" if self._newest is None else ""}: if the '
                'camera publishes its camera_info elsewhere, remap the topic above to that topic',
                'alone',
            )

    def _waits_in_vain(self, frame: Frame) -> bool:
        return (
            frame.data.header.stamp_ns not in self._infos
            and time.monotonic_ns() - frame.data.captured_ns > _PATIENCE_NS
        )

    def statistics(self) -> SubscriptionStatistics:
        """Return the statistics; frames whose ``camera_info`` didn't come count as dropped."""
        found = super().statistics()
        return replace(found, dropped=found.dropped + self._skipped)

    def destroy(self) -> None:
        """End the subscription, see :meth:`AdaptedSubscription.destroy`."""
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
    """
    Call a function with each camera frame and its ``sensor_msgs/msg/CameraInfo``.

    ::

        import rclpy
        from zc_perception import create_camera_subscription


        def on_frame(frame, camera_info):
            print(frame.sequence, frame.width, camera_info.k[0])


        rclpy.init()
        node = rclpy.create_node('listener')
        create_camera_subscription(node, 'image_raw', on_frame)
        rclpy.spin(node)

    As in image_transport, the messages' topic is ``camera_info`` in the namespace of the image's
    topic: for ``/front/image_raw`` it is ``/front/camera_info``. Remaps apply. A frame and a
    message belong together if their stamps are equal. A frame waits for its message. The frame is
    dropped and counted when newer frames need its place, when a message with a newer stamp comes,
    or after half a second to a second.

    Owner, threads, errors and the other parameters are those of :func:`create_frame_subscription`.

    :param callback: a function or coroutine function that takes a :class:`Frame` and a
        ``CameraInfo``.
    :param qos: QoS of both topics; *depth* is then ignored. By default, messages of best-effort
        and of reliable publishers are taken.
    :param depth: how many of the newest frames wait for their message or for the callback.
    :raises ConfigError: *callback* can't be called; *depth* or *max_held* is 0; *copy_free* is
        neither ``preferred`` nor ``required``; *trusted_uids* are not user ids.
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


_LOOK_S = 0.25


class FrameReader(FrameSubscription):
    """
    Reads camera frames in a loop, without copying them.

    ::

        import rclpy
        from zc_perception import FrameReader

        rclpy.init()
        with FrameReader(rclpy.create_node('reader'), 'image_raw') as frames:
            for frame in frames:
                print(frame.sequence, frame.y.mean())

    In an asyncio program, write ``async for frame in frames:``. The loop ends when the node is
    destroyed or its context is shut down.

    **Owner.** The reader owns the loop's current frame and releases it before the next one, unless
    you call ``frame.keep()``. The reader ends with the ``with`` block, with :meth:`destroy`, or
    with ``node.destroy_node()``.

    **Threads.** Run one loop at a time, on any thread except inside a callback of the node. If
    the node is in no executor when the loop waits, a thread of the reader spins the node. Then all
    callbacks of the node run on that thread.

    **Errors.** If the reader spins the node and a callback of the node raises, the loop raises
    that exception.

    The parameters that are not listed are those of :func:`create_frame_subscription`.

    :param depth: how many of the newest frames wait while the body of the loop runs; older ones
        are dropped and counted.
    :param max_held: how many frames of each publisher you hold at most at the same time: the
        current one, kept ones, and those whose arrays you still have. A variable with an array of
        the previous frame holds that frame until the variable gets another value. While you hold
        that many, no frame comes, and a warning names the frames.
    :raises ConfigError: *depth* or *max_held* is 0; *copy_free* is neither ``preferred`` nor
        ``required``; *trusted_uids* are not user ids.
    """

    def __init__(
        self,
        node: Node,
        topic: str,
        *,
        qos: QoSProfile | None = None,
        depth: int = 1,
        max_held: int = 2,
        copy_free: CopyFree = 'preferred',
        constraints: BufferConstraints | None = None,
        trusted_uids: Collection[int] = (),
        ledger: CopyLedger | None = None,
    ) -> None:
        self._of_this_step: Frame | None = None
        # Set by destroy() in an unfinished loop step: returns the step's frame, if any is left.
        self._of_last_step: Callable[[], Frame | None] = lambda: None
        self._spinner: NodeSpinner | None = None
        self._ending = False
        # Guards _spinner and _ending, because another thread may destroy the reader or its node
        # while the loop makes a spinner.
        self._spinner_lock = threading.Lock()
        self._look_at = 0.0
        super().__init__(
            node,
            topic,
            None,
            depth=depth,
            held=max_held,
            qos=qos,
            trusted_uids=trusted_uids,
            copy_free_required=requires_copy_free(copy_free),
            constraints=constraints,
            ledger=ledger,
        )

    def __enter__(self) -> FrameReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_step()
        self.destroy()

    def __iter__(self) -> FrameReader:
        return self

    def __next__(self) -> Frame:
        self._end_step()
        while self._goes_on():
            frame = self.queue.get(_LOOK_S)
            if frame is not None:
                return self._begin_step(frame)
        raise StopIteration

    def __aiter__(self) -> FrameReader:
        return self

    async def __anext__(self) -> Frame:
        self._end_step()
        while self._goes_on():
            frame = self.queue.get()
            if frame is not None:
                return self._begin_step(frame)
            await self._something_new()
        raise StopAsyncIteration

    def _begin_step(self, frame: Frame) -> Frame:
        frame.lend()
        self._of_this_step = frame
        return frame

    def _end_step(self) -> None:
        frame, self._of_this_step = self._of_this_step, None
        if frame is None:
            frame = self._of_last_step()
        if frame is not None and frame.borrowed and not frame.released:
            frame.release_when_unseen()

    def _goes_on(self) -> bool:
        """Say whether more frames may come; every _LOOK_S, make sure that the node is spun."""
        if self.queue.closed:
            return False
        now = time.monotonic()
        if now < self._look_at:
            return True
        self._look_at = now + _LOOK_S
        if not self._node.context.ok():
            return False
        if self._spinner is not None:
            self._spinner.take()
        elif not is_spun(self._node):
            # Make the spinner without holding _spinner_lock: a spinner needs the context's lock.
            # To end this reader, the context may hold its lock while it waits for _spinner_lock.
            spinner = NodeSpinner(self._node)
            with self._spinner_lock:
                ending = self._ending
                if not ending:
                    self._spinner = spinner
            if ending:
                spinner.stop()
                return False
        return True

    async def _something_new(self) -> None:
        """Wait until the queue's descriptor is readable, at most _LOOK_S."""
        loop = asyncio.get_running_loop()
        try:
            # Watch a duplicate, because another thread may destroy the subscription during the
            # wait, and so close the queue's descriptor.
            descriptor = os.dup(self.queue.fileno())
        except (OSError, ValueError):
            return
        something = loop.create_future()

        def wake() -> None:
            if not something.done():
                something.set_result(None)

        late = loop.call_later(_LOOK_S, wake)
        loop.add_reader(descriptor, wake)
        try:
            await something
        finally:
            late.cancel()
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def destroy(self) -> None:
        """
        Unsubscribe, release the waiting frames, end loops over this object. Idempotent.

        The frame of the last step is released when you have no reference to it any more.
        """
        with self._spinner_lock:
            self._ending = True
            spinner, self._spinner = self._spinner, None
        if spinner is not None:
            spinner.stop()
        super().destroy()
        # If the program left the loop by 'break', no code ends the last step. So keep only a weak
        # reference to the step's frame: the frame is released when the program drops it.
        frame, self._of_this_step = self._of_this_step, None
        if frame is not None:
            self._of_last_step = weakref.ref(frame)
