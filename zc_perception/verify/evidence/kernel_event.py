"""Events of the kernel's trace, as its text names them.

Source: Documentation/trace/ftrace.rst (columns of the ``trace`` file), ring buffer's notes on lost events.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_LINE = re.compile(
    r'^\s*(?P<comm>.*?)-(?P<tid>\d+)\s+(?:\(\s*[-\d]+\)\s+)?\[(?P<cpu>\d+)\]\s+(?:\S+\s+)?(?P<seconds>\d+)\.(?P<fraction>\d{6,9}):\s+'
    r'(?P<name>\w+):(?P<rest>.*)$'
)
_PLACE = re.compile(r'^ \([^()]*\)')
_FIELD = re.compile(r'(\w+)[=:]("(?:[^"]*)"|\S+)')
_LOST = re.compile(r'^CPU:(\d+) \[LOST (?:(\d+) )?EVENTS\]')
# In the function tracer's lines nothing but a function and its caller.
_CALL = re.compile(
    r'^\s*(?P<comm>.*?)-(?P<tid>\d+)\s+(?:\(\s*[-\d]+\)\s+)?\[(?P<cpu>\d+)\]\s+(?:\S+\s+)?(?P<seconds>\d+)\.(?P<fraction>\d{6,9}):\s+'
    r'(?P<name>\w+) <-\w+\s*$'
)
_FAILED = 0xFFFFFFFFFFFFF001  # the first of the kernel's error pointers


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One line of the trace.

    :ivar time_ns: CLOCK_MONOTONIC, to the microsecond.
    :ivar tid: the thread that ran; in an interrupt, the one that was interrupted.
    :ivar fields: by name, as text without quotes.
    """

    time_ns: int
    cpu: int
    comm: str
    tid: int
    name: str
    fields: Mapping[str, str]

    def number(self, field_name: str) -> int:
        """A field as a number, decimal or with 0x; -1 where it isn't one."""
        try:
            return int(self.fields.get(field_name, ''), 0)
        except ValueError:
            return -1

    @property
    def inode(self) -> int:
        """Of the buffer it speaks of; -1: of none."""
        return self.number('ino' if 'ino' in self.fields else 'inode')

    @property
    def failed(self) -> bool:
        """Whether the function that it was recorded at the end of returned an error pointer."""
        return self.number('result') >= _FAILED


@dataclass
class Trace:
    """What was recorded, in order of time.

    :ivar lost: events that the kernel threw away, as far as it says; none of what depends on them counts as measured.
    :ivar damaged: lines that nothing here can read: events as well, of which nothing is known.
    """

    events: list[KernelEvent] = field(default_factory=list)
    lost: int = 0
    damaged: int = 0

    @property
    def gap(self) -> str:
        """What is missing in it; empty: nothing."""
        lost = [f'lost {self.lost} events'] if self.lost else []
        damaged = [f'has {self.damaged} lines that cannot be read'] if self.damaged else []
        return f"the kernel's trace {' and '.join(lost + damaged)}" if lost or damaged else ''

    def named(self, *names: str) -> list[KernelEvent]:
        """Those of these names."""
        return [event for event in self.events if event.name in names]

    def counts(self) -> Counter[str]:
        """How many of each name."""
        return Counter(event.name for event in self.events)


def parse_event(line: str) -> KernelEvent | None:
    """One line of the trace; ``None``: it is none."""
    match = _LINE.match(line)
    rest = ''
    if match:
        rest = _PLACE.sub('', match['rest'])
    else:
        match = _CALL.match(line)
        if match is None:
            return None
    fields = {name: value.strip('"').rstrip(',') for name, value in _FIELD.findall(rest)}
    time_ns = int(match['seconds']) * 10**9 + int(match['fraction'].ljust(9, '0'))
    return KernelEvent(time_ns, int(match['cpu']), match['comm'], int(match['tid']), match['name'], fields)


def parse_trace(lines: Iterable[str]) -> Trace:
    """The text of ``trace`` or ``trace_pipe``, also from several CPUs."""
    trace = Trace()
    for line in lines:
        if not line.strip() or line.startswith('#'):
            continue
        event = parse_event(line)
        if event is not None:
            trace.events.append(event)
        elif lost := _LOST.match(line):
            trace.lost += int(lost[2] or 1)
        else:
            trace.damaged += 1
    trace.events.sort(key=lambda event: event.time_ns)
    return trace
