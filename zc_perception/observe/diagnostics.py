"""``/diagnostics`` in the standard form: a status per part of a node, once a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

TOPIC = '/diagnostics'
_LEVELS = {'ok': DiagnosticStatus.OK, 'warn': DiagnosticStatus.WARN, 'error': DiagnosticStatus.ERROR}


class Level(Enum):
    """Severity."""

    OK = 'ok'
    WARN = 'warn'
    ERROR = 'error'


@dataclass(frozen=True)
class Status:
    """One part's state: a sentence (with advice unless OK) and figures."""

    part: str
    level: Level
    message: str
    values: Mapping[str, Any] = field(default_factory=dict)


class DiagnosticsPublisher:
    """Collects and publishes.

    :param collect: called once a second on the executor; must be quick.
    """

    def __init__(self, node: Node, collect: Callable[[], Sequence[Status]], period_s: float = 1.0) -> None:
        self._node = node
        self._collect = collect
        self._publisher = node.create_publisher(DiagnosticArray, TOPIC, 10)
        self._timer = node.create_timer(period_s, self.publish)

    def publish(self) -> None:
        """Publish now."""
        message = DiagnosticArray()
        message.header.stamp = self._node.get_clock().now().to_msg()
        name = self._node.get_fully_qualified_name().lstrip('/')
        for status in self._collect():
            message.status.append(
                DiagnosticStatus(
                    level=_LEVELS[status.level.value],
                    name=f'{name}: {status.part}',
                    message=status.message,
                    hardware_id=name,
                    values=[KeyValue(key=k, value=str(v)) for k, v in status.values.items()],
                )
            )
        self._publisher.publish(message)
