"""``/diagnostics`` in the standard form: a status per part of a node, once a second, and at once when a level changes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import SimpleNamespace
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

    OK = DiagnosticStatus.OK
    WARN = DiagnosticStatus.WARN
    ERROR = DiagnosticStatus.ERROR


OK, WARN, ERROR = Level.OK, Level.WARN, Level.ERROR


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


@dataclass(frozen=True)
class Row:
    """One condition of a part, and what the part says while it holds.

    :param when: takes what was seen.
    :param sentence: a format string, as the advice is; its fields are the names of what was seen.
    :param shown: what docs/diagnostics.md shows for a sentence that is nothing but a field.
    :param see: what that page adds to the advice, or shows for one that is nothing but a field.
    :param joins: the part says it together with later rows that hold and join.
    """

    when: Callable[[Any], object]
    level: Level
    sentence: str
    advice: str = ''
    shown: str = ''
    see: str = ''
    joins: bool = False


class Part:
    """The conditions of a part of a node, as the rows of a table: the first one that holds counts.

    ``tools/diagnostics_page.py`` writes the same rows into docs/diagnostics.md.

    :param well: the sentence while no condition holds.
    """

    def __init__(self, name: str, *rows: Row, well: str) -> None:
        self.name = name
        self.rows = rows
        self._well = Row(lambda seen: True, Level.OK, well)

    def status(
        self, values: Mapping[str, Any] | None = None, hardware_id: str = '', **seen: Any
    ) -> Status:
        """What the part says of what was *seen*."""
        look = SimpleNamespace(**seen)
        holding = (row for row in (*self.rows, self._well) if row.when(look))
        first = next(holding)
        said = [first, *(row for row in holding if row.joins)] if first.joins else [first]
        message, advice = (
            '; '.join(dict.fromkeys(text.format_map(seen) for text in texts))
            for texts in ([row.sentence for row in said], [row.advice for row in said])
        )
        return Status(self.name, first.level, message, values or {}, advice, hardware_id)


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
            level=status.level.value,
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
