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

"""Publish ``/diagnostics`` with a status for each part of a node."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
import socket
import time
from types import SimpleNamespace
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

from zc_perception.errors import one_line
from zc_perception.link.endpoints.executor_turns import NodeWatch, phase_s
from zc_perception.link.rclpy_compat import (
    cdr_string,
    COUNT,
    ENCAPSULATION,
    STAMP,
    subscription_count,
    understood,
)
from zc_perception.lookout import next_turn
from zc_perception.observe.metrics import RECENT_S

TOPIC = '/diagnostics'
PERIOD_S = 1.0
_REST_S = 5.0
LOOK_S = 0.2
"""Seconds between two checks for changed levels, so at most five messages a second are sent."""
_RESTLESS_S = RECENT_S + PERIOD_S
"""
For this many seconds after a sign, the publisher checks levels each :data:`LOOK_S` seconds.

A sign is a change of the value that the function *signs* returns. A warning ends
:data:`RECENT_S` seconds after its event, without another sign. The checks go on for longer, so
that the publisher notices the end of the warning.
"""


class Level(Enum):
    """A status's severity. STALE isn't here: only aggregators of /diagnostics set it."""

    OK = DiagnosticStatus.OK
    WARN = DiagnosticStatus.WARN
    ERROR = DiagnosticStatus.ERROR


OK, WARN, ERROR = Level.OK, Level.WARN, Level.ERROR


class Figures(Mapping[str, Any]):
    """Values that are computed only if a message is published, not at each check of levels."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = cache(make)

    def __getitem__(self, name: str) -> Any:
        return self._make()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._make())

    def __len__(self) -> int:
        return len(self._make())

    def items(self) -> ItemsView[str, Any]:
        """Return pairs of name and value, see :meth:`Mapping.items`."""
        return self._make().items()


@dataclass(frozen=True)
class Status:
    """
    The state of one part of a node.

    :param message: the state, in one sentence.
    :param values: figures by name.
    :param advice: what the user can do; required for every level except OK.
    :param hardware_id: the device that the status describes; if empty, the host's name is
        published in its place.
    """

    part: str
    level: Level
    message: str
    values: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ''
    hardware_id: str = ''

    def text(self) -> str:
        """Return message and advice as one text."""
        return f'{self.message}; {self.advice}' if self.advice else self.message


@dataclass(frozen=True)
class Row:
    """
    A condition, and the status of a part while the condition is true.

    *sentence* and *advice* are format strings; their fields are names of the values *seen* that
    :meth:`Part.status` gets.

    :param when: the condition, a function of an object that has the values *seen* as attributes.
    :param shown: docs/diagnostics.md has this text in place of a sentence that is only a field,
        such as ``{reason}``.
    :param see: docs/diagnostics.md adds this text to the advice, or has it in place of advice that
        is only a field.
    :param joins: whether this row's sentence is joined with the sentences of those later rows that
        have *joins* set and whose condition is true.
    """

    when: Callable[[Any], object]
    level: Level
    sentence: str
    advice: str = ''
    shown: str = ''
    see: str = ''
    joins: bool = False


class Part:
    """
    A part of a node, with a table of conditions; the first true one gives the part's status.

    ``tools/diagnostics_page.py`` writes the same rows into docs/diagnostics.md.

    :param well: the sentence for level OK, if no condition is true.
    """

    def __init__(self, name: str, *rows: Row, well: str) -> None:
        self.name = name
        self.rows = rows
        self._well = Row(lambda seen: True, Level.OK, well)

    def status(
        self, values: Mapping[str, Any] | None = None, hardware_id: str = '', **seen: Any
    ) -> Status:
        """
        Return the part's status.

        :param values: the numbers and texts that the status shows, by name.
        :param seen: the values that the conditions and sentences of the rows use, by name.
        """
        look = SimpleNamespace(**seen)
        holding = (row for row in (*self.rows, self._well) if row.when(look))
        first = next(holding)
        said = [first, *(row for row in holding if row.joins)] if first.joins else [first]
        message = '; '.join(dict.fromkeys([row.sentence.format_map(seen) for row in said]))
        advice = '; '.join(dict.fromkeys([row.advice.format_map(seen) for row in said]))
        values = {} if values is None else values
        return Status(self.name, first.level, message, values, advice, hardware_id)


class DiagnosticsPublisher:
    """
    Publish diagnostics once a second, and soon after a level has changed.

    The publisher calls *signs* five times a second. It calls *collect* only once a second, because
    *collect* takes a hundred times as long. For some seconds after the value of *signs* has
    changed, it calls *collect* five times a second, too. The publisher rests while nobody
    subscribes, no frames come, and neither levels nor figures change: it then calls *signs* once a
    second, and *collect* every five seconds.

    The publisher uses the steady clock, because a simulation's time may stand still. It begins
    once the node has an executor. It does all its work on the thread of
    :mod:`~zc_perception.lookout`. An exception in *collect* is published as an error and has no
    other effect.

    :param collect: a function that returns the statuses. One thread calls it. It must be quick,
        and neither wait nor read pixels.
    :param before_publishing: a function that is called before the message that is due each second,
        if it differs from the last such message. Extra messages about a changed level don't count.
    :param signs: a function whose value changes if a level has changed or soon will; by default
        the value differs at every call. It must be as quick as reading some attributes.
    :param progress: a function whose value changes while the node works; as quick as *signs*.
    """

    def __init__(
        self,
        node: Node,
        collect: Callable[[], Sequence[Status]],
        *,
        before_publishing: Callable[[], object] = lambda: None,
        signs: Callable[[], object] = object,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        self._node = node
        self._collect = collect
        self._before_publishing = before_publishing
        self._host = socket.gethostname()
        self._name = node.get_fully_qualified_name().lstrip('/')
        self._signs = signs
        self._signs_seen: object = None
        self._progress = progress
        self._progress_seen: object = None
        self._resting = False
        self._levels: dict[str, Level] = {}
        self._regular: list[_Row] = []
        self._due = self._calm_at = time.monotonic()
        self._phase_s = phase_s(node)
        self._publisher = node.create_publisher(DiagnosticArray, TOPIC, 10)
        self._watch = NodeWatch(node, LOOK_S, self.look)

    def look(self) -> None:
        """Publish if a message is due, or if a level differs from that in the last message."""
        now = time.monotonic()
        try:
            signs, progress = self._signs(), self._progress()
        except Exception:  # ignored: collect() raises the same error, which _statuses() reports
            signs = progress = object()
        stirs = signs != self._signs_seen or progress != self._progress_seen
        if signs != self._signs_seen:
            self._signs_seen, self._calm_at = signs, now + _RESTLESS_S
        self._progress_seen = progress
        if self._resting and (stirs or subscription_count(self._publisher)):
            self._rest(False)
            self._due = now
        if now < self._due and now >= self._calm_at:
            return
        statuses = self._statuses()
        if now < self._due:
            if {status.part: status.level for status in statuses} != self._levels:
                self._publish([self._row(status) for status in statuses])
            return
        rows = [self._row(status) for status in statuses]
        changed = rows != self._regular
        works = stirs or (changed and _figures(rows) != _figures(self._regular))
        self._rest(not (works or subscription_count(self._publisher)))
        self._due = next_turn(now, _REST_S if self._resting else PERIOD_S, self._phase_s)
        if changed:
            self._regular = rows
            try:
                self._before_publishing()
            except Exception as error:
                self._regular = []
                rows = [*rows, self._row(_broken(error))]
        self._publish(rows)

    def _rest(self, resting: bool) -> None:
        if resting is not self._resting:
            self._resting = resting
            self._watch.look_every(PERIOD_S if resting else LOOK_S)

    def _statuses(self) -> Sequence[Status]:
        try:
            return self._collect()
        except Exception as error:  # a fault in diagnostics must not end the node
            return [_broken(error)]

    def _publish(self, rows: Sequence[_Row]) -> None:
        self._levels = {part: level for part, level, _, _ in rows}
        make = _as_bytes if _bytes_are_understood() else _as_message
        self._publisher.publish(make(self._node.get_clock().now().nanoseconds, rows))

    def _row(self, status: Status) -> _Row:
        try:
            values = {str(key): str(value) for key, value in status.values.items()}
        except Exception as error:
            status, values = _broken(error, status.part), {}
        texts = f'{self._name}: {status.part}', status.text(), status.hardware_id or self._host
        return status.part, status.level, texts, values

    def stop(self) -> None:
        """Stop publishing; a second call does nothing."""
        self._watch.stop()


_Row = tuple[str, Level, tuple[str, str, str], Mapping[str, str]]
"""A status to publish: its part; its level; its name, message and hardware id; its values."""


def _figures(rows: Sequence[_Row]) -> list[tuple[str, Level, Mapping[str, str]]]:
    """Return *rows* without texts, to compare them: texts that count seconds always differ."""
    return [(part, level, values) for part, level, _, values in rows]


def _as_message(now_ns: int, rows: Sequence[_Row]) -> DiagnosticArray:
    message = DiagnosticArray()
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(now_ns, 1_000_000_000)
    message.status = [
        DiagnosticStatus(
            level=level.value,
            name=name,
            message=text,
            hardware_id=hardware_id,
            values=[KeyValue(key=key, value=value) for key, value in values.items()],
        )
        for _, level, (name, text, hardware_id), values in rows
    ]
    return message


def _as_bytes(now_ns: int, rows: Sequence[_Row]) -> bytes:
    """Serialise the message as CDR (4-byte numbers are aligned), faster than rclpy does."""
    out = bytearray(ENCAPSULATION + STAMP.pack(*divmod(now_ns, 1_000_000_000)) + cdr_string(''))
    out += bytes(-len(out) % 4) + COUNT.pack(len(rows))
    for _, level, texts, values in rows:
        out += _LEVEL[level]
        for text in texts:
            out += bytes(-len(out) % 4) + cdr_string(text)
        out += bytes(-len(out) % 4) + COUNT.pack(len(values))
        for pair in values.items():
            for text in pair:
                out += bytes(-len(out) % 4) + cdr_string(text)
    return bytes(out)


_LEVEL = {
    level: bytes([level.value]) if isinstance(level.value, int) else level.value for level in Level
}


@cache
def _bytes_are_understood() -> bool:
    texts = ['öptical_'[:length] for length in range(8)]
    rows = [
        ('', level, (text, text * 2, 'x'), dict.fromkeys(texts, text))
        for level in Level
        for text in texts
    ]
    return understood(DiagnosticArray, [(7_000_000_005, rows), (0, [])], _as_bytes, _as_message)


def _broken(error: Exception, part: str = 'diagnostics') -> Status:
    return Status(
        part,
        Level.ERROR,
        f"the node's state can't be determined: {one_line(error)}",
        advice='this is a bug; frames are still processed; please report it with this line',
    )
