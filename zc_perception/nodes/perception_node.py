"""What the package's nodes have in common for the program that runs them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from rclpy.node import Node

from zc_perception.nodes.parameters import NodeParameters, ParameterSpec


class PerceptionNode(Node):
    """A node with declared parameters that a program starts and stops. All keyword arguments go to ``rclpy.node.Node``."""

    SPECS: Sequence[ParameterSpec] = ()
    PREFIXES: Sequence[str] = ()
    """Of parameters that are declared later, when they are known; each ends in a dot."""

    def __init__(self, name: str, on_change: Callable[[str, Any], None] | None = None, **node_options: Any) -> None:
        super().__init__(name, **node_options)
        try:
            self.parameters = NodeParameters(self, self.SPECS, on_change, self.PREFIXES)
        except BaseException:
            self.destroy_node()
            raise

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
