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
Make a Chrome/Perfetto trace that shows where a frame's time goes.

The trace has the nodes' own stages and the kernel's events of the same frames.

:func:`build_timeline`, at the end of this file, makes the trace. :func:`join_frames` finds the
records of several nodes that belong to one frame, :class:`FrameFinder` finds the frame that a
kernel event belongs to, and :class:`Trace` writes both as Chrome's trace-event JSON.

A capture node has the tracks ``capture`` (the camera's work, until the frame is published) and one
for its thread (``deliver``: until all consumers have the frame). An inference node has ``link``
(published → taken), ``infer`` (submitted → fence seen; ``queue``: until the frame's turn comes)
and one for its thread (``import``, ``decode``, ``publish``). The kernel's tracks are device jobs
(submit → complete), imports, fences, waits and attachments. Every time is CLOCK_MONOTONIC, which
all processes of a machine share.
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

#: The stages, each between two of a frame's CLOCK_MONOTONIC times: captured, published, received,
#: submitted, signalled, done, decoded, sent.
STAGES = (
    ('capture', "the camera has it (a driver's stamp) → published"),
    ('link', 'published → taken by the inference node'),
    ('import', 'taken → the device has the job'),
    ('infer', 'the device has the job → its fence is seen'),
    ('queue', 'the fence is seen → its turn comes'),
    ('decode', 'its turn comes → the boxes are there'),
    ('publish', 'the boxes are there → detections are sent'),
)
# The weight of one punctual frame in the running mean of a stage's usual time.
_NEWEST = 1 / 16


def spans_ns(times_ns: Sequence[int]) -> list[int]:
    """
    Return how long each stage took, in nanoseconds.

    If a time is unknown (0), its stage counts as 0, and the next stage gets the time. The
    submission may be noted only after the fence was seen, so negative durations become 0.
    """
    return [end - begin for begin, end in itertools.pairwise(itertools.accumulate(times_ns, max))]


class Late(NamedTuple):
    """A late frame, and the stage that most exceeded its own usual time."""

    whole_ms: float
    stage: str
    took_ms: float
    usual_ms: float

    def __str__(self) -> str:
        return (
            f'{self.whole_ms:.1f} ms: {self.stage} took {self.took_ms:.1f} ms, '
            f'usually {self.usual_ms:.1f}'
        )


class FrameBudget:
    """Counts frames that took longer than *deadline_s*, by stage; one thread judges."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_ns = round(deadline_s * 1e9)
        self.late = 0
        self.stages: Counter[str] = Counter()
        self._usual = [0.0] * len(STAGES)
        self._worst: Late | None = None

    def judge(self, *times_ns: int) -> None:
        """Judge one frame by its times, which :data:`STAGES` describes."""
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
        """Return the worst frame since the last call."""
        worst, self._worst = self._worst, None
        return worst


#: The names of the kernel's tracks.
JOBS = 'device jobs'
IMPORTS = 'imports and releases'
SIGNALS = 'fences'
WAITS = 'fence waits'
BUFFERS = 'buffers'
OTHER = 'other events'
_KERNEL = 'kernel'

# The kernel may do its last work for a frame (a release or a detach) a little after the last node
# has finished the frame.
_AFTER_NS = 20_000_000
# Both use the same clock, but a record's time is taken before or after a system call, and the
# event's time during the call.
_SLACK_NS = 1_000_000
# The first of our own ids, above all ids of processes and threads in Linux (PID_MAX_LIMIT).
FIRST_OWN_ID = 1 << 22
_FAILED = 0xFFFFFFFFFFFFF001  # numbers from this one on are the kernel's error pointers


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """
    One line of a kernel trace (``trace_clock`` mono).

    :ivar time_ns: CLOCK_MONOTONIC, to the microsecond.
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
        """Return a field as a number (decimal or with 0x); -1 if it is no number."""
        try:
            return int(self.fields.get(field_name, ''), 0)
        except ValueError:
            return -1

    @property
    def inode(self) -> int:
        """The inode of the event's buffer; -1 if the event names none."""
        return self.number('ino' if 'ino' in self.fields else 'inode')

    @property
    def failed(self) -> bool:
        """Whether the event is from a function's end and has an error pointer as result."""
        return self.number('result') >= _FAILED


@dataclass
class NodeTrack:
    """The records of one node's log, and the node's deadline (0: none)."""

    node: str
    role: str
    pid: int
    records: Sequence[FrameRecord]
    deadline_s: float = 0.0


@dataclass
class JoinedFrame:
    """One frame, numbered from 1 in the order of time, with all nodes' records of it."""

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
        """Whether the frame's way is known from the camera to the detections."""
        kinds = {record.kind for _, record in self.records}
        return RecordKind.PUBLISHED in kinds and RecordKind.PROCESSED in kinds


def began_ns(record: FrameRecord) -> int:
    """Return the first known time of the frame in a node."""
    if record.kind == RecordKind.PUBLISHED:
        return (
            record.captured_ns - record.capture_cost_ns
            if record.captured_ns
            else record.published_ns
        )
    return record.published_ns or record.received_ns or record.done_ns


def ended_ns(record: FrameRecord) -> int:
    """Return the last known time of the frame in a node."""
    return max(
        record.published_ns,
        record.received_ns,
        record.submitted_ns,
        record.signalled_ns,
        record.done_ns,
        record.sent_ns,
    )


def ran_at(record: FrameRecord, time_ns: int) -> bool:
    """Return whether a frame's job may have been in the device at that time."""
    return record.submitted_ns - _SLACK_NS <= time_ns <= ended_ns(record) + _SLACK_NS


def join_frames(nodes: Sequence[NodeTrack]) -> list[JoinedFrame]:
    """
    Return the frames that these nodes saw, in the order of their beginning.

    Processes that have the buffers themselves identify a frame by its buffers, their generation
    and its sequence number. If a node got a copy (a plain ``sensor_msgs/Image``), only the stamp
    is left, which identifies the frame if exactly one frame has that stamp.
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

    The frame is found by the device's import handle and job number, or by a job's fence, or else
    by inode and time.

    :ivar of_fence: the frames by their job's fence (its context and number); see :meth:`of_job`.
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
        Return the frame of a submit event, and note that the job's fence belongs to it.

        Handles and job numbers are valid only for one open file, so two nodes may have the same
        ones: then the frame submitted at that time is meant. A driver without job numbers gives 0,
        so that only the time identifies the frame.
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
        """Return the frame that this buffer held at that time."""
        frames = self._of_inode.get(inode, [])
        index = (
            bisect_right(frames, time_ns + _SLACK_NS // 10, key=lambda frame: frame.begin_ns) - 1
        )
        return (
            frames[index] if index >= 0 and time_ns <= frames[index].end_ns + _AFTER_NS else None
        )


@dataclass
class Span:
    """An event with a duration, on one track; ``frame`` is its flow's number, 0: none."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    frame: int
    arguments: Mapping[str, Any]
    tid: int = 0


@dataclass
class Track:
    """A row of a process; *tid* is the kernel's thread id, or an id of our own."""

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
        """Add an event with a duration, which is at least 1 ns."""
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
    """Collect processes and tracks; :meth:`to_json` returns what ``json.dump`` writes."""

    def __init__(self) -> None:
        self._processes: dict[int, list[str]] = {}
        self._tracks: list[Track] = []
        self._next_id = FIRST_OWN_ID

    def own_id(self) -> int:
        """Return an id that no process and no thread has."""
        self._next_id += 1
        return self._next_id

    def process(self, pid: int, name: str) -> None:
        """Name a process; the names of several nodes in one process are joined."""
        names = self._processes.setdefault(pid, [])
        if name not in names:
            names.append(name)

    def track(self, pid: int, name: str, tid: int = 0) -> Track:
        """Return the row *name* of thread *tid* of a process; rows are in order of first calls."""
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
        """Assign each span to the first lane that is free then; return the lanes' numbers."""
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
        """Return one flow per frame, through all its spans in the order of their beginning."""
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
    """Return the context and the number of a fence event's fence."""
    return event.number('ctx' if 'ctx' in event.fields else 'context'), event.number('seqno')


class _Kernel:
    """Put the kernel's events on tracks of their own, in the order of time."""

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
        """Note the frame of a submit event, so that its fence is known afterwards."""
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
        """End the spans that began and didn't end: they last until the last event."""
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
    Return the trace, for ``json.dump``.

    A flow connects each frame's spans, from the camera through all nodes and the device.
    ``otherData`` has the number of frames, how many of these are whole, and for each kind of event
    the number of events whose frame was found.

    :param events: the kernel's events, if they could be recorded; events of no known frame are
        shown, too.
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
    # note all submits first, because a fence's first events come before the job's submit
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
    """Return whether a frame's way is known from the camera to the sent detections."""
    return bool(record.captured_ns and record.sent_ns)


def stages_us(record: FrameRecord) -> dict[str, float]:
    """Return the microseconds of each stage of one processed frame, and of the whole way."""
    spans = spans_ns(times_ns(record))
    return {
        **{name: span / 1e3 for (name, _), span in zip(STAGES, spans, strict=True)},
        WHOLE: sum(spans) / 1e3,
    }


def times_ns(record: FrameRecord) -> tuple[int, ...]:
    """Return the times that begin and end the stages."""
    return (
        record.captured_ns, record.published_ns, record.received_ns, record.submitted_ns,
        record.signalled_ns, record.done_ns, record.decoded_ns, record.sent_ns,
    )  # fmt: skip
