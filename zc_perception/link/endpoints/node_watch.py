"""Looks at something of a node while that is spun, yet not on its executor; see :mod:`~zc_perception.lookout`."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.node import Node

from zc_perception.link.rclpy_compat import InvalidHandle
from zc_perception.lookout import LOOKOUT


class NodeWatch:
    """Ends with :meth:`stop`, with the node, with its context, or with whoever keeps this object; by the steady clock.

    :param look: what an executor has to do is for it to hand over; must neither wait nor hold locks of whoever calls :meth:`stop`.
    """

    def __init__(self, node: Node, period_s: float, look: Callable[[], object]) -> None:
        self._node = node
        self._look = look
        self._watch = LOOKOUT.watch(period_s, self._once)

    def _once(self) -> None:
        if self._node.executor is None:
            return
        try:
            self._look()
        except RuntimeError as error:
            # rclpy's class of everything that the middleware refuses.
            if not isinstance(error, InvalidHandle) and self._node.context.ok():
                raise
            self.stop()

    def stop(self) -> None:
        """No more looks. One that is under way has ended afterwards, unless this is called from within it. Idempotent."""
        self._watch.stop()
