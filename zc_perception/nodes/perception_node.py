"""What the package's nodes have in common for the program that runs them."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from rclpy.node import Node

from zc_perception.link.rclpy_compat import InvalidHandle
from zc_perception.nodes.parameters import NodeParameters, ParameterSpec


class _WholeOrNothing(type):
    """A node whose constructor fails leaves nothing in the ROS graph, neither endpoints nor the middleware's participant."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        node = cls.__new__(cls)
        try:
            node.__init__(*args, **options)
        except BaseException:
            # rclpy's own constructor may have failed, or somebody has destroyed it already.
            with contextlib.suppress(AttributeError, InvalidHandle):
                Node.destroy_node(node)
            raise
        return node


class PerceptionNode(Node, metaclass=_WholeOrNothing):
    """A node with declared parameters that a program starts and stops. All keyword arguments go to ``rclpy.node.Node``."""

    SPECS: Sequence[ParameterSpec] = ()
    PREFIXES: Sequence[str] = ()
    """Of parameters that are declared later, when they are known; each ends in a dot."""

    def __init__(self, name: str, on_change: Callable[[str, Any], None] | None = None, **node_options: Any) -> None:
        super().__init__(name, **node_options)
        self.parameters = NodeParameters(self, self.SPECS, on_change, self.PREFIXES)

    @abstractmethod
    def start(self) -> None:
        """Begin work. Called once, when the executor spins."""

    @abstractmethod
    def stop(self) -> None:
        """End work within a second and give everything back. Idempotent; the node itself is destroyed by its owner."""

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to do (a file has ended)."""
        return False
