"""``/diagnostics`` in the standard form: a status per part of a node, once a second, and at once when a level changes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

from zc_perception.errors import one_line
from zc_perception.link.endpoints.executor_turns import NodeWatch

TOPIC = '/diagnostics'
PERIOD_S = 1.0
LOOK_S = 0.2
"""Levels are looked at so often, and published when one has changed: no more than five messages a second, whatever flickers."""


class Level(Enum):
    """Severity. STALE isn't among them: aggregators say that of a node that is silent."""

    OK = 'ok'
    WARN = 'warn'
    ERROR = 'error'


_LEVELS = {
    Level.OK: DiagnosticStatus.OK,
    Level.WARN: DiagnosticStatus.WARN,
    Level.ERROR: DiagnosticStatus.ERROR,
}


class Figures(Mapping[str, Any]):
    """Values that are made when somebody asks for them: levels are looked at more often than figures are published."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Mapping[str, Any]:
        return self._make()

    def __getitem__(self, name: str) -> Any:
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


@dataclass(frozen=True)
class Status:
    """One part's state.

    :param message: what is, in a sentence.
    :param values: figures by name.
    :param advice: what to do about it; everything but OK has one.
    :param hardware_id: which device it is about; empty for this host.
    """

    part: str
    level: Level
    message: str
    values: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ''
    hardware_id: str = ''

    def text(self) -> str:
        """Message and advice."""
        return f'{self.message}; {self.advice}' if self.advice else self.message


class DiagnosticsPublisher:
    """Looks five times a second, publishes once a second and when a level has changed.

    By the steady clock: a simulation's time may stand still. From the moment on that the node has an executor, but not on that: see
    :mod:`~zc_perception.lookout`. What *collect* raises is published as an error, and costs nothing else.

    :param collect: called on a thread of its own, one call at a time; must be quick, and neither wait nor touch pixels.
    :param before_publishing: called before each message of the regular ones: once a second.
    """

    def __init__(
        self,
        node: Node,
        collect: Callable[[], Sequence[Status]],
        *,
        before_publishing: Callable[[], object] = lambda: None,
    ) -> None:
        self._node = node
        self._collect = collect
        self._before_publishing = before_publishing
        self._host = socket.gethostname()
        self._name = node.get_fully_qualified_name().lstrip('/')
        self._levels: dict[str, Level] = {}
        self._due = time.monotonic()
        self._publisher = node.create_publisher(DiagnosticArray, TOPIC, 10)
        self._watch = NodeWatch(node, LOOK_S, self.look)

    def look(self) -> None:
        """Publish if it is time, or if a level has changed since it was published last."""
        statuses = self._statuses()
        now = time.monotonic()
        if now >= self._due:
            self._due = max(self._due + PERIOD_S, now + PERIOD_S / 2)
            try:
                self._before_publishing()
            except Exception as error:
                statuses = [*statuses, _broken(error)]
        elif {status.part: status.level for status in statuses} == self._levels:
            return
        self._publish(statuses)

    def _statuses(self) -> Sequence[Status]:
        try:
            return self._collect()
        except Exception as error:  # a fault in what only looks on must not end the node
            return [_broken(error)]

    def _publish(self, statuses: Sequence[Status]) -> None:
        message = DiagnosticArray()
        message.header.stamp = self._node.get_clock().now().to_msg()
        message.status = [self._as_message(status) for status in statuses]
        self._levels = {status.part: status.level for status in statuses}
        self._publisher.publish(message)

    def _as_message(self, status: Status) -> DiagnosticStatus:
        try:
            values = [KeyValue(key=key, value=str(value)) for key, value in status.values.items()]
        except Exception as error:
            status, values = _broken(error, status.part), []
        return DiagnosticStatus(
            level=_LEVELS[status.level],
            name=f'{self._name}: {status.part}',
            message=status.text(),
            hardware_id=status.hardware_id or self._host,
            values=values,
        )

    def stop(self) -> None:
        """No more messages. Idempotent."""
        self._watch.stop()


def _broken(error: Exception, part: str = 'diagnostics') -> Status:
    return Status(
        part,
        Level.ERROR,
        f"the node's state can't be told: {one_line(error)}",
        advice='this is a bug, its frames go on; please report it with this line',
    )
