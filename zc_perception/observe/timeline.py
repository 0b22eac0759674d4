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

"""
Make a trace in Chrome's JSON format (for ui.perfetto.dev) of the stages of each frame.

The trace has the stages in the nodes, and the kernel's events of the same frames.
:func:`build_timeline` makes it. :func:`join_frames` joins the records of several nodes that belong
to one frame, :class:`FrameFinder` finds the frame of a kernel event, and :class:`Trace` makes the
JSON.

A track is a row of the trace; each span in it is one stage of one frame. A capture node has two
tracks: ``capture`` (the camera's work, until the frame is published) and ``thread`` (stage
``deliver``: until all consumers have the frame). An inference node has three tracks: ``link``
(until the node takes the published frame), ``infer`` (until the device's fence is seen; then stage
``queue``, until earlier frames are done) and ``thread`` (stages ``import``, ``decode`` and
``publish``). The kernel's tracks are device jobs (from submit to complete), imports, fences, waits
and attachments. Every time is CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
import itertools
from typing import Any, NamedTuple

from zc_perception.npu.kinds import traced
from zc_perception.observe.frame_log import FrameRecord, RecordKind

#: The stages of a frame: name and description. Each lies between two of the times that
#: :func:`times_ns` returns.
STAGES = (
    ('capture', "the frame's capture time → published"),
    ('link', 'published → taken by the inference node'),
    ('import', 'taken → the device has the job'),
    ('infer', "the device has the job → the job's fence is seen"),
    ('queue', "the fence is seen → the frame's turn comes"),
    ('decode', "the frame's turn comes → the boxes are there"),
    ('publish', 'the boxes are there → detections are sent'),
)
# The weight of a new frame in the running means of the stages' durations. The means are taken only
# of frames that met the deadline.
_NEWEST = 1 / 16


def spans_ns(times_ns: Sequence[int]) -> list[int]:
    """
    Return the stages' durations; *times_ns* are the times at which a stage begins or ends.

    If a time is unknown (0), the stage before it gets duration 0, and the stage after it gets the
    duration of both.
    Negative durations become 0: a node may note a submission's time after it has seen the fence.
    """
    return [end - begin for begin, end in itertools.pairwise(itertools.accumulate(times_ns, max))]


class Late(NamedTuple):
    """A late frame, and the stage that exceeded its usual duration most; times in ms."""

    whole_ms: float
    stage: str
    took_ms: float
    usual_ms: float

    def __str__(self) -> str:
        return (
            f'{self.whole_ms:.1f} ms: {self.stage} took {self.took_ms:.1f} ms, '
            f'usually {self.usual_ms:.1f} ms'
        )


class FrameBudget:
    """
    Count late frames, which took longer than *deadline_s*.

    Each late frame is counted for the stage that exceeded its usual duration most. Only one thread
    may use this object.
    """

    def __init__(self, deadline_s: float) -> None:
        self.deadline_ns = round(deadline_s * 1e9)
        self.late = 0
        self.stages: Counter[str] = Counter()
        self._usual = [0.0] * len(STAGES)
        self._worst: Late | None = None

    def judge(self, *times_ns: int) -> None:
        """Judge a frame by its times, which :func:`times_ns` returns; count it if it is late."""
        spans = spans_ns(times_ns)
        usual = self._usual
        if sum(spans) <= self.deadline_ns:
            if any(usual):
                self._usual = [
                    old + (new - old) * _NEWEST for old, new in zip(usual, spans, strict=True)
                ]
            else:
                self._usual = [float(span) for span in spans]
            return
        excess = [span - old for span, old in zip(spans, usual, strict=True)]
        place = excess.index(max(excess))
        late = Late(sum(spans) / 1e6, STAGES[place][0], spans[place] / 1e6, usual[place] / 1e6)
        self.late += 1
        self.stages[late.stage] += 1
        worst = self._worst
        if worst is None or late.whole_ms > worst.whole_ms:
            self._worst = late

    def take_worst(self) -> Late | None:
        """Return the slowest late frame since the last call, or ``None``."""
        worst, self._worst = self._worst, None
        return worst


#: The names of the trace's tracks (rows) that show the kernel's events.
JOBS = 'device jobs'
IMPORTS = 'imports and releases'
SIGNALS = 'fences'
WAITS = 'fence waits'
BUFFERS = 'buffers'
OTHER = 'other events'
_KERNEL = 'kernel'

# An event still belongs to a frame this long after the last node has finished the frame, because
# the kernel releases and detaches buffers a little later.
_AFTER_NS = 20_000_000
# The tolerance when times of records and events are compared. A record's time is taken before or
# after a system call, an event's time during the call.
_SLACK_NS = 1_000_000
# All pids and tids of Linux are lower than this number (PID_MAX_LIMIT). The ids that this module
# makes for its tracks are higher.
FIRST_OWN_ID = 1 << 22
_FAILED = 0xFFFFFFFFFFFFF001  # results from this number on are the kernel's error pointers


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """
    One event of a kernel trace that was recorded with the trace clock ``mono``.

    :ivar time_ns: CLOCK_MONOTONIC in ns, with the resolution of a microsecond.
    :ivar tid: the thread that ran; in an interrupt, the thread that was interrupted.
    :ivar fields: the event's fields by name, as text without quotes.
    """

    time_ns: int
    cpu: int
    comm: str
    tid: int
    name: str
    fields: Mapping[str, str]

    def number(self, field_name: str) -> int:
        """Return a field as a number (decimal or with 0x); -1 if it is missing or no number."""
        try:
            return int(self.fields.get(field_name, ''), 0)
        except ValueError:
            return -1

    @property
    def inode(self) -> int:
        """The inode of the event's buffer; -1 if the event has none."""
        return self.number('ino' if 'ino' in self.fields else 'inode')

    @property
    def failed(self) -> bool:
        """Whether the event reports that a function returned an error pointer."""
        return self.number('result') >= _FAILED


@dataclass
class NodeTrack:
    """The records of one node's log, and the node's deadline in seconds (0: none)."""

    node: str
    role: str
    pid: int
    records: Sequence[FrameRecord]
    deadline_s: float = 0.0


@dataclass
class JoinedFrame:
    """All nodes' records of one frame; frames are numbered from 1 in the order of time."""

    first: FrameRecord
    number: int = 0
    records: list[tuple[NodeTrack, FrameRecord]] = field(default_factory=list)
    inodes: set[int] = field(default_factory=set)
    begin_ns: int = 0
    end_ns: int = 0

    def add(self, node: NodeTrack, record: FrameRecord) -> None:
        """Add another node's record of the frame."""
        self.records.append((node, record))
        self.inodes.update(record.inodes)
        begin_ns = began_ns(record)
        self.begin_ns = min(self.begin_ns or begin_ns, begin_ns)
        self.end_ns = max(self.end_ns, ended_ns(record))

    @property
    def whole(self) -> bool:
        """Whether there are records of all steps, from the camera to the detections."""
        kinds = {record.kind for _, record in self.records}
        return RecordKind.PUBLISHED in kinds and RecordKind.PROCESSED in kinds


def began_ns(record: FrameRecord) -> int:
    """Return when a node's record of a frame begins: the earliest time (CLOCK_MONOTONIC, ns)."""
    if record.kind == RecordKind.PUBLISHED:
        return (
            record.captured_ns - record.capture_cost_ns
            if record.captured_ns
            else record.published_ns
        )
    return record.published_ns or record.received_ns or record.done_ns


def ended_ns(record: FrameRecord) -> int:
    """Return when a node's record of a frame ends: the latest time (CLOCK_MONOTONIC, ns)."""
    return max(
        record.published_ns,
        record.received_ns,
        record.submitted_ns,
        record.signalled_ns,
        record.done_ns,
        record.sent_ns,
    )


def ran_at(record: FrameRecord, time_ns: int) -> bool:
    """Return whether the device may have been working on the frame's job at *time_ns*."""
    return record.submitted_ns - _SLACK_NS <= time_ns <= ended_ns(record) + _SLACK_NS


def join_frames(nodes: Sequence[NodeTrack]) -> list[JoinedFrame]:
    """
    Join the nodes' records by frame; return the frames in the order in which they began.

    Records of the same buffers, generation and sequence number are of the same frame. If a node
    got a copy (a plain ``sensor_msgs/Image``), its record is joined by the stamp, but only if
    exactly one frame has this stamp.
    """
    frames: dict[tuple[int, int, int], JoinedFrame] = {}
    of_stamp: dict[int, list[JoinedFrame]] = {}
    rest: list[tuple[NodeTrack, FrameRecord]] = []
    for node in sorted(nodes, key=lambda node: node.role != 'capture'):
        for record in node.records:
            key = record.buffer_uid, record.generation, record.sequence
            if key in frames:
                frames[key].add(node, record)
            elif node.role == 'capture':
                frames[key] = JoinedFrame(record)
                frames[key].add(node, record)
                of_stamp.setdefault(record.stamp_ns, []).append(frames[key])
            else:
                rest.append((node, record))
    for node, record in rest:
        key = record.buffer_uid, record.generation, record.sequence
        same = of_stamp.get(record.stamp_ns, [])
        frame = same[0] if len(same) == 1 else frames.setdefault(key, JoinedFrame(record))
        frame.add(node, record)
    joined = sorted(frames.values(), key=lambda frame: frame.begin_ns)
    for number, frame in enumerate(joined, 1):
        frame.number = number
    return joined


class FrameFinder:
    """
    Find the frame that a kernel event belongs to.

    :ivar of_fence: the frames by their job's fence (context and number); :meth:`of_job` fills it.
    """

    def __init__(self, frames: Sequence[JoinedFrame]) -> None:
        self._jobs: dict[tuple[int, int], list[tuple[FrameRecord, JoinedFrame]]] = {}
        self._of_inode: dict[int, list[JoinedFrame]] = {}
        self.of_fence: dict[tuple[int, int], JoinedFrame] = {}
        for frame in frames:
            for inode in frame.inodes:
                self._of_inode.setdefault(inode, []).append(frame)
            for _, record in frame.records:
                if record.submitted_ns and record.device_handle:
                    self._jobs.setdefault((record.device_handle, record.device_seqno), []).append(
                        (record, frame)
                    )

    def of_job(
        self, handle: int, seqno: int, fence: tuple[int, int], time_ns: int
    ) -> JoinedFrame | None:
        """
        Return the frame of a submit event, and store the frame in :attr:`of_fence`.

        Two nodes may have the same import handle and job number, because both are valid only for
        one open file of the device. Then the frame whose submission was nearest in time is
        returned. If a driver has no job numbers (0), a frame is found by handle and time.
        """
        for key in ((handle, seqno), (handle, 0)):
            running = [
                (abs(time_ns - record.submitted_ns), frame)
                for record, frame in self._jobs.get(key, ())
                if ran_at(record, time_ns)
            ]
            if running:
                self.of_fence[fence] = min(running, key=lambda one: one[0])[1]
                return self.of_fence[fence]
        return None

    def of_inode(self, inode: int, time_ns: int) -> JoinedFrame | None:
        """Return the frame that was in the buffer with this inode at that time."""
        frames = self._of_inode.get(inode, [])
        index = (
            bisect_right(frames, time_ns + _SLACK_NS // 10, key=lambda frame: frame.begin_ns) - 1
        )
        return (
            frames[index] if index >= 0 and time_ns <= frames[index].end_ns + _AFTER_NS else None
        )


@dataclass
class Span:
    """
    An event with a duration.

    :ivar frame: the number of a frame; the trace viewer draws arrows (a flow) between all spans
        that have the same number. 0: no arrows.
    """

    name: str
    category: str
    start_ns: int
    end_ns: int
    frame: int
    arguments: Mapping[str, Any]
    tid: int = 0


@dataclass
class Track:
    """A row of the trace; *tid* is the kernel's thread id, or an id of :meth:`Trace.own_id`."""

    pid: int
    name: str
    tid: int
    order: int
    spans: list[Span] = field(default_factory=list)
    instants: list[dict[str, Any]] = field(default_factory=list)

    def span(
        self,
        name: str,
        category: str,
        start_ns: int,
        end_ns: int,
        frame: int,
        arguments: Mapping[str, Any],
    ) -> None:
        """Add an event with a duration, made at least 1 ns long so that viewers show it."""
        self.spans.append(
            Span(name, category, start_ns, max(end_ns, start_ns + 1), frame, arguments)
        )

    def instant(
        self, name: str, category: str, time_ns: int, arguments: Mapping[str, Any]
    ) -> None:
        """Add an event without a duration."""
        made = {
            'ph': 'i',
            's': 't',
            'name': name,
            'cat': category,
            'pid': self.pid,
            'tid': self.tid,
        }
        self.instants.append({**made, 'ts': time_ns / 1000, 'args': dict(arguments)})


class Trace:
    """Collect processes and tracks; :meth:`to_json` returns the trace for ``json.dump``."""

    def __init__(self) -> None:
        self._processes: dict[int, list[str]] = {}
        self._tracks: list[Track] = []
        self._next_id = FIRST_OWN_ID

    def own_id(self) -> int:
        """Return an id that no process and no thread has."""
        self._next_id += 1
        return self._next_id

    def process(self, pid: int, name: str) -> None:
        """Add a name to a process; a process with several nodes has several names."""
        names = self._processes.setdefault(pid, [])
        if name not in names:
            names.append(name)

    def track(self, pid: int, name: str, tid: int = 0) -> Track:
        """Return the track *name* of a process; make it at the first call, for thread *tid*."""
        for track in self._tracks:
            if (track.pid, track.name) == (pid, name):
                return track
        taken = any(track.tid == tid and track.pid == pid for track in self._tracks)
        self._tracks.append(
            Track(pid, name, self.own_id() if taken or not tid else tid, len(self._tracks))
        )
        return self._tracks[-1]

    def to_json(self, other: Mapping[str, Any]) -> dict[str, Any]:
        """Return the trace, with *other* as ``otherData``."""
        events: list[dict[str, Any]] = []
        named: list[dict[str, Any]] = []
        for index, (pid, names) in enumerate(self._processes.items()):
            named += [
                _metadata('process_name', pid, 0, name=', '.join(names)),
                _metadata('process_sort_index', pid, 0, sort_index=index),
            ]
        for track in self._tracks:
            for lane, tid in enumerate(self._lanes(track)):
                name = track.name if lane == 0 else f'{track.name} ({lane + 1})'
                named += [_metadata('thread_name', track.pid, tid, name=name)]
                named += [
                    _metadata(
                        'thread_sort_index', track.pid, tid, sort_index=100 * track.order + lane
                    )
                ]
            events += [
                {
                    'ph': 'X', 'name': span.name, 'cat': span.category, 'pid': track.pid,
                    'tid': span.tid, 'ts': span.start_ns / 1000,
                    'dur': (span.end_ns - span.start_ns) / 1000, 'args': dict(span.arguments),
                } for span in track.spans
            ]  # fmt: skip
            events += track.instants
        events += self._flows()
        events.sort(key=lambda event: event['ts'])
        return {'traceEvents': named + events, 'displayTimeUnit': 'ms', 'otherData': dict(other)}

    def _lanes(self, track: Track) -> list[int]:
        """Put overlapping spans into separate lanes (the viewer's rows); return the lanes' ids."""
        lanes = [track.tid]
        free_at = [0]
        for span in sorted(track.spans, key=lambda span: (span.start_ns, -span.end_ns)):
            lane = next(
                (lane for lane, free_ns in enumerate(free_at) if free_ns <= span.start_ns),
                len(lanes),
            )
            if lane == len(lanes):
                lanes.append(self.own_id())
                free_at.append(0)
            span.tid = lanes[lane]
            free_at[lane] = span.end_ns
        return lanes

    def _flows(self) -> list[dict[str, Any]]:
        """Return the events that make the viewer connect each frame's spans by arrows (a flow)."""
        steps: dict[int, list[tuple[Span, Track]]] = {}
        for track in self._tracks:
            for span in track.spans:
                if span.frame:
                    steps.setdefault(span.frame, []).append((span, track))
        flows = []
        for frame, way in steps.items():
            if len(way) < 2:
                continue  # a flow with one span connects nothing
            way.sort(key=lambda step: (step[0].start_ns, step[0].end_ns))
            for (span, track), phase in zip(way, ['s', *['t'] * (len(way) - 2), 'f'], strict=True):
                flow: dict[str, Any] = {
                    'ph': phase,
                    'name': 'frame',
                    'cat': 'frame',
                    'id': frame,
                    'pid': track.pid,
                    'tid': span.tid,
                }
                flow['ts'] = span.start_ns / 1000
                flows.append(flow if phase == 's' else {**flow, 'bp': 'e'})
        return flows


def _metadata(what: str, pid: int, tid: int, **arguments: Any) -> dict[str, Any]:
    return {
        'ph': 'M',
        'name': what,
        'cat': '__metadata',
        'pid': pid,
        'tid': tid,
        'ts': 0,
        'args': arguments,
    }


def _arguments(
    node: NodeTrack, record: FrameRecord, frame: JoinedFrame, **more: Any
) -> dict[str, Any]:
    return {
        'node': node.node,
        'frame': frame.number,
        'sequence': record.sequence,
        'stamp_ns': record.stamp_ns,
        'inodes': list(record.inodes),
        'device_handle': record.device_handle,
        **more,
    }


def _capture_stages(
    trace: Trace, node: NodeTrack, record: FrameRecord, frame: JoinedFrame
) -> None:
    arguments = _arguments(node, record, frame)
    camera = trace.track(node.pid, f'{node.node} capture')
    thread = trace.track(node.pid, f'{node.node} thread', record.thread_id)
    if record.captured_ns and record.published_ns >= record.captured_ns:
        camera.span(
            'capture',
            'capture',
            record.captured_ns - record.capture_cost_ns,
            record.published_ns,
            frame.number,
            arguments,
        )
    if record.sent_ns > record.published_ns > 0:
        thread.span(
            'deliver', 'deliver', record.published_ns, record.sent_ns, frame.number, arguments
        )


def _inference_stages(
    trace: Trace, node: NodeTrack, record: FrameRecord, frame: JoinedFrame
) -> None:
    arguments = _arguments(
        node, record, frame, device_seqno=record.device_seqno, detections=record.detections
    )
    link = trace.track(node.pid, f'{node.node} link')
    device = trace.track(node.pid, f'{node.node} infer')
    thread = trace.track(node.pid, f'{node.node} thread', record.thread_id)
    signalled_ns = record.signalled_ns or record.done_ns
    ways = [
        (link, 'link', record.published_ns, record.received_ns),
        (thread, 'import', record.received_ns, record.submitted_ns),
        (device, 'infer', record.submitted_ns, signalled_ns),
        (device, 'queue', signalled_ns, record.done_ns),
        (thread, 'decode', record.done_ns, record.decoded_ns),
        (thread, 'publish', record.decoded_ns, record.sent_ns),
    ]
    for track, stage, start_ns, end_ns in ways:
        if 0 < start_ns < end_ns:
            track.span(stage, stage, start_ns, end_ns, frame.number, arguments)
    if record.kind == RecordKind.FAILED:
        thread.instant('failed', 'failed', record.done_ns, arguments)


def _fence_of(event: KernelEvent) -> tuple[int, int]:
    """Return context and number of an event's fence; drivers' events name the context 'ctx'."""
    return event.number('ctx' if 'ctx' in event.fields else 'context'), event.number('seqno')


class _Kernel:
    """Add the kernel's events to a trace, as tracks of a separate process named kernel."""

    def __init__(self, trace: Trace, finder: FrameFinder) -> None:
        self._trace = trace
        self._finder = finder
        self._pid = 0
        self._submits: dict[tuple[int, int], tuple[KernelEvent, JoinedFrame | None]] = {}
        self._waits: dict[tuple[int, int, int], KernelEvent] = {}
        self._last_ns = 0
        self.traced = traced()
        self.seen: Counter[str] = Counter()
        self.joined: Counter[str] = Counter()

    def _track(self, name: str) -> Any:
        if not self._pid:
            self._pid = self._trace.own_id()
            self._trace.process(self._pid, _KERNEL)
            for known in (JOBS, IMPORTS, SIGNALS, WAITS, BUFFERS):
                self._trace.track(self._pid, known)
        return self._trace.track(self._pid, name)

    def submitted(self, event: KernelEvent) -> JoinedFrame | None:
        """Return a submit event's frame; also store the frame under the fence of its job."""
        fence = _fence_of(event)
        return self._finder.of_job(event.number('handle'), fence[1], fence, event.time_ns)

    def add(self, event: KernelEvent) -> None:
        """Add one event; events must be added in the order of time."""
        self._last_ns = event.time_ns
        self.seen[event.name] += 1
        fence = _fence_of(event)
        if event.name in self.traced.submitted:
            frame = self.submitted(event)
            self.joined[event.name] += frame is not None
            self._submits[fence] = event, frame
        elif event.name in self.traced.completed and fence in self._submits:
            submit, frame = self._submits.pop(fence)
            self.joined[event.name] += frame is not None
            self._span(JOBS, f'job {fence[1]}', submit, event.time_ns, frame, event.fields)
        elif event.name.startswith('dma_fence_'):
            self._fence(event, fence)
        else:
            frame = None if event.inode < 0 else self._finder.of_inode(event.inode, event.time_ns)
            self._instant(
                IMPORTS
                if event.name
                in self.traced.imported | self.traced.released | self.traced.completed
                else OTHER
                if event.inode < 0
                else BUFFERS,
                event,
                frame,
            )

    def _fence(self, event: KernelEvent, fence: tuple[int, int]) -> None:
        frame = self._finder.of_fence.get(fence)
        waiter = (event.tid, *fence)
        if event.name == 'dma_fence_wait_start':
            self._waits[waiter] = event
            self.joined[event.name] += frame is not None
        elif event.name == 'dma_fence_wait_end' and waiter in self._waits:
            start = self._waits.pop(waiter)
            self.joined[event.name] += frame is not None
            self._span(WAITS, f'wait for {fence[1]}', start, event.time_ns, frame, {})
        else:
            self._instant(SIGNALS, event, frame)

    def finish(self) -> None:
        """Add the jobs and waits that did not end, as if they ended with the last event."""
        for submit, frame in self._submits.values():
            self._span(
                JOBS,
                f'job {submit.fields.get("seqno", "")}',
                submit,
                self._last_ns,
                frame,
                {'unfinished': True},
            )
        for wait in self._waits.values():
            fence = _fence_of(wait)
            self._span(
                WAITS,
                f'wait for {fence[1]}',
                wait,
                self._last_ns,
                self._finder.of_fence.get(fence),
                {'unfinished': True},
            )

    def _arguments(self, event: KernelEvent, frame: JoinedFrame | None) -> dict[str, Any]:
        known = (
            {}
            if frame is None
            else {
                'frame': frame.number,
                'sequence': frame.first.sequence,
                'inodes': sorted(frame.inodes),
            }
        )
        return {**event.fields, **known, 'thread': f'{event.comm}-{event.tid}', 'cpu': event.cpu}

    def _span(
        self,
        track: str,
        name: str,
        start: KernelEvent,
        end_ns: int,
        frame: JoinedFrame | None,
        more: Mapping[str, Any],
    ) -> None:
        number = frame.number if frame is not None and track == JOBS else 0
        self._track(track).span(
            name, track, start.time_ns, end_ns, number, {**more, **self._arguments(start, frame)}
        )

    def _instant(self, track: str, event: KernelEvent, frame: JoinedFrame | None) -> None:
        self.joined[event.name] += frame is not None
        self._track(track).instant(event.name, track, event.time_ns, self._arguments(event, frame))


def build_timeline(
    nodes: Sequence[NodeTrack], events: Iterable[KernelEvent] = ()
) -> dict[str, Any]:
    """
    Return the trace of these nodes and kernel events, for ``json.dump``.

    Arrows (a flow) connect each frame's spans, from the camera through all nodes and the device.
    ``otherData`` has the number of frames, how many of these have records of all steps, and for
    each kind of event how many events there were and for how many the frame was found.

    :param events: the kernel's events, if they could be recorded; an event is in the trace
        even if its frame isn't known.
    """
    trace = Trace()
    frames = join_frames(nodes)
    for node in nodes:
        trace.process(node.pid, f'{node.role} {node.node}')
    for frame in frames:
        for node, record in frame.records:
            stages = _capture_stages if record.kind == RecordKind.PUBLISHED else _inference_stages
            stages(trace, node, record, frame)
    kernel = _Kernel(trace, FrameFinder(frames))
    in_order = sorted(events, key=lambda event: event.time_ns)
    # Read all submit events first: they show which frame a fence belongs to, but a fence's first
    # events come before its job's submit event.
    for event in in_order:
        if event.name in kernel.traced.submitted:
            kernel.submitted(event)
    for event in in_order:
        kernel.add(event)
    kernel.finish()
    return trace.to_json(
        {
            'clock': 'CLOCK_MONOTONIC',
            'frames': len(frames),
            'whole_frames': sum(frame.whole for frame in frames),
            'events': dict(kernel.seen),
            'events_of_frames': dict(kernel.joined),
        }
    )


WHOLE = 'whole'


def is_whole(record: FrameRecord) -> bool:
    """Return whether the record has the times of the capture and of sending detections."""
    return bool(record.captured_ns and record.sent_ns)


def stages_us(record: FrameRecord) -> dict[str, float]:
    """Return the durations in µs of a processed frame's stages, and their sum (WHOLE)."""
    spans = spans_ns(times_ns(record))
    return {
        **{name: span / 1e3 for (name, _), span in zip(STAGES, spans, strict=True)},
        WHOLE: sum(spans) / 1e3,
    }


def times_ns(record: FrameRecord) -> tuple[int, ...]:
    """Return the eight times of a processed frame that bound the seven :data:`STAGES`."""
    return (
        record.captured_ns, record.published_ns, record.received_ns, record.submitted_ns,
        record.signalled_ns, record.done_ns, record.decoded_ns, record.sent_ns,
    )  # fmt: skip
