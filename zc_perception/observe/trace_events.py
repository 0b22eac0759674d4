"""Writes Chrome's trace-event JSON, which ``chrome://tracing`` and ui.perfetto.dev open.

Source: *Trace Event Format* (the Chromium project): complete events (``X``), instants (``i``), flows (``s``, ``t``, ``f``), metadata
(``M``); times in µs. Slices of one track must not overlap there, so a track here has as many lanes as it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Above what Linux gives to processes and threads (PID_MAX_LIMIT).
FIRST_OWN_ID = 1 << 22


@dataclass
class Span:
    """What lasted, on one track. ``frame`` is the number of the flow that it belongs to; 0: none."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    frame: int
    arguments: Mapping[str, Any]
    tid: int = 0


@dataclass
class Track:
    """A row of a process.

    :param tid: the kernel's number of the thread, or one of our own.
    """

    pid: int
    name: str
    tid: int
    order: int
    spans: list[Span] = field(default_factory=list)
    instants: list[Span] = field(default_factory=list)

    def span(self, name: str, category: str, start_ns: int, end_ns: int, frame: int, arguments: Mapping[str, Any]) -> None:
        """Something that lasted. Nothing lasts less than 1 ns."""
        self.spans.append(Span(name, category, start_ns, max(end_ns, start_ns + 1), frame, arguments))

    def instant(self, name: str, category: str, time_ns: int, frame: int, arguments: Mapping[str, Any]) -> None:
        """Something that happened."""
        self.instants.append(Span(name, category, time_ns, time_ns, frame, arguments))


class Trace:
    """Collects processes and tracks; :meth:`to_json` gives what ``json.dump`` writes."""

    def __init__(self) -> None:
        self._processes: dict[int, list[str]] = {}
        self._tracks: list[Track] = []
        self._next_id = FIRST_OWN_ID

    def own_id(self) -> int:
        """A number that no process and no thread has."""
        self._next_id += 1
        return self._next_id

    def process(self, pid: int, name: str) -> None:
        """Name a process; names of several nodes in one are joined."""
        names = self._processes.setdefault(pid, [])
        if name not in names:
            names.append(name)

    def track(self, pid: int, name: str, tid: int = 0) -> Track:
        """The row *name* of a process, in the order of the first calls.

        :param tid: of the thread that it shows; 0: it shows none.
        """
        for track in self._tracks:
            if (track.pid, track.name) == (pid, name):
                return track
        taken = any(track.tid == tid and track.pid == pid for track in self._tracks)
        self._tracks.append(Track(pid, name, self.own_id() if taken or not tid else tid, len(self._tracks)))
        return self._tracks[-1]

    def to_json(self, other: Mapping[str, Any]) -> dict[str, Any]:
        """The trace.

        :param other: ``otherData``.
        """
        events: list[dict[str, Any]] = []
        named: list[dict[str, Any]] = []
        for index, (pid, names) in enumerate(self._processes.items()):
            named += [_metadata('process_name', pid, 0, name=', '.join(names)), _metadata('process_sort_index', pid, 0, sort_index=index)]
        for track in self._tracks:
            for lane, tid in enumerate(self._lanes(track)):
                name = track.name if lane == 0 else f'{track.name} ({lane + 1})'
                named += [_metadata('thread_name', track.pid, tid, name=name)]
                named += [_metadata('thread_sort_index', track.pid, tid, sort_index=100 * track.order + lane)]
            events += [
                {
                    'ph': 'X', 'name': span.name, 'cat': span.category, 'pid': track.pid, 'tid': span.tid, 'ts': span.start_ns / 1000,
                    'dur': (span.end_ns - span.start_ns) / 1000, 'args': dict(span.arguments),
                } for span in track.spans
            ]  # fmt: skip
            events += [
                {
                    'ph': 'i', 's': 't', 'name': instant.name, 'cat': instant.category, 'pid': track.pid, 'tid': track.tid,
                    'ts': instant.start_ns / 1000, 'args': dict(instant.arguments),
                } for instant in track.instants
            ]  # fmt: skip
        events += self._flows()
        events.sort(key=lambda event: event['ts'])
        return {'traceEvents': named + events, 'displayTimeUnit': 'ms', 'otherData': dict(other)}

    def _lanes(self, track: Track) -> list[int]:
        """Give each span the first lane that is free then; the lanes' numbers."""
        lanes = [track.tid]
        free_at = [0]
        for span in sorted(track.spans, key=lambda span: (span.start_ns, -span.end_ns)):
            lane = next((lane for lane, free_ns in enumerate(free_at) if free_ns <= span.start_ns), len(lanes))
            if lane == len(lanes):
                lanes.append(self.own_id())
                free_at.append(0)
            span.tid = lanes[lane]
            free_at[lane] = span.end_ns
        return lanes

    def _flows(self) -> list[dict[str, Any]]:
        """One per frame, through all of its spans in the order in which they began."""
        steps: dict[int, list[tuple[Span, Track]]] = {}
        for track in self._tracks:
            for span in track.spans:
                if span.frame:
                    steps.setdefault(span.frame, []).append((span, track))
        flows = []
        for frame, way in steps.items():
            if len(way) < 2:
                continue  # it leads nowhere
            way.sort(key=lambda step: (step[0].start_ns, step[0].end_ns))
            for (span, track), phase in zip(way, ['s', *['t'] * (len(way) - 2), 'f'], strict=True):
                flow: dict[str, Any] = {'ph': phase, 'name': 'frame', 'cat': 'frame', 'id': frame, 'pid': track.pid, 'tid': span.tid}
                flow['ts'] = span.start_ns / 1000
                flows.append(flow if phase == 's' else {**flow, 'bp': 'e'})
        return flows


def _metadata(what: str, pid: int, tid: int, **arguments: Any) -> dict[str, Any]:
    return {'ph': 'M', 'name': what, 'cat': '__metadata', 'pid': pid, 'tid': tid, 'ts': 0, 'args': arguments}
