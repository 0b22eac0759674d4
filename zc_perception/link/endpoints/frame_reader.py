"""Camera frames in a loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Collection
from types import TracebackType

from rclpy.node import Node
from rclpy.qos import QoSProfile

from zc_perception.frame import Frame
from zc_perception.link.endpoints.executor_turns import NodeSpinner, is_spun
from zc_perception.link.endpoints.frame_subscription import (
    CopyFree,
    FrameSubscription,
    requires_copy_free,
)
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints

_LOOK_S = 0.25


class FrameReader(FrameSubscription):
    """Camera frames in a loop, without copying them.

    ::

        import rclpy
        from zc_perception import FrameReader

        rclpy.init()
        with FrameReader(rclpy.create_node('reader'), 'image_raw') as frames:
            for frame in frames:
                print(frame.sequence, frame.y.mean())

    In an asyncio program write ``async for frame in frames:``. The loop ends when the node is destroyed or its context is shut down.

    **Owner.** The reader owns the frame of a step and releases it at the next step: call ``frame.keep()`` to keep it. The reader ends with
    the ``with`` block, with :meth:`destroy`, or with ``node.destroy_node()``.

    **Threads.** One loop at a time, on any thread but one that is in a callback of the node. If the node is in no executor when the loop
    waits, the reader spins it on a thread of its own. Then all callbacks of the node run there.

    **Errors.** What a callback of a node raises that the reader spins comes out of the loop.

    The parameters that are not listed are those of :func:`create_frame_subscription`.

    :param depth: how many of the newest frames wait while the body of the loop runs; older ones are dropped and counted.
    :param max_held: how many frames you hold at the same time of each publisher: that of the step, kept ones, and those whose arrays
        you still have. An array of the last step is one until the variable gets another value. While you hold that many, no frame comes,
        and a warning says which they are.
    :raises ConfigError: *depth* or *max_held* is 0; another word for *copy_free*;
        *trusted_uids* are no numbers of users.
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
        self._spinner: NodeSpinner | None = None
        self._ending = False
        # Another thread may destroy the reader, or its node, while the loop is about to make a spinner.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        if frame is not None and frame.borrowed and not frame.released:
            frame.release_when_unseen()

    def _goes_on(self) -> bool:
        """Whether more frames may come; now and then it is seen to it that they can."""
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
            # Without the lock: making one needs the context, which may hold a lock of its own while it ends this reader.
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
        """Wait for the queue, or for a moment."""
        loop = asyncio.get_running_loop()
        try:
            # Of one's own: another thread may destroy the subscription meanwhile.
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
        """Unsubscribe, and release the frames that wait. A loop ends. A second call does nothing."""
        with self._spinner_lock:
            self._ending = True
            spinner, self._spinner = self._spinner, None
        if spinner is not None:
            spinner.stop()
        super().destroy()
