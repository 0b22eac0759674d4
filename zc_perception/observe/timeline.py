"""Where a frame's time goes: the nodes' own stages and the kernel's events of the same frames, as one Chrome/Perfetto trace.

Tracks of a capture node: ``capture`` (the camera's work, until the frame is published) and its thread (``deliver``: everybody gets it).
Of an inference node: ``link`` (published → taken), ``infer`` (submitted → its fence seen; ``queue``: until its turn came) and its thread
(``import``, ``decode``, ``publish``). Of the kernel: device jobs (submit → complete), imports, fences, waits, attachments.
Every time is CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zc_perception.observe.frame_joining import FrameFinder, JoinedFrame, KernelEvent, NodeTrack, join_frames
from zc_perception.observe.frame_log_layout import FrameRecord, RecordKind
from zc_perception.observe.trace_events import Trace

__all__ = ['KernelEvent', 'NodeTrack', 'build_timeline']

#: Tracks of the kernel.
JOBS = 'device jobs'
IMPORTS = 'imports and releases'
SIGNALS = 'fences'
WAITS = 'fence waits'
BUFFERS = 'buffers'
OTHER = 'other events'
_KERNEL = 'kernel'


def build_timeline(
    nodes: Sequence[NodeTrack], events: Iterable[KernelEvent] = (), *, other: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A trace that ``json.dump`` writes. A flow leads each frame from the camera through all nodes and the device.

    :param nodes: records of all nodes.
    :param events: the kernel's, if they could be recorded; those that belong to no known frame are shown, too.
    :param other: goes into ``otherData``, besides what is said of the frames: how many, how many of them whole, and of each kind of
        event how many there were and how many found their frame.
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
    for event in in_order:  # a fence is made before its job is submitted
        kernel.look_for_jobs(event)
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
            **(other or {}),
        }
    )


def _arguments(node: NodeTrack, record: FrameRecord, frame: JoinedFrame, **more: Any) -> dict[str, Any]:
    return {
        'node': node.node,
        'frame': frame.number,
        'sequence': record.sequence,
        'stamp_ns': record.stamp_ns,
        'inodes': list(record.inodes),
        'device_handle': record.device_handle,
        **more,
    }


def _capture_stages(trace: Trace, node: NodeTrack, record: FrameRecord, frame: JoinedFrame) -> None:
    arguments = _arguments(node, record, frame)
    camera = trace.track(node.pid, f'{node.node} capture')
    thread = trace.track(node.pid, f'{node.node} thread', record.thread_id)
    if record.captured_ns and record.published_ns >= record.captured_ns:
        camera.span('capture', 'capture', record.captured_ns - record.capture_cost_ns, record.published_ns, frame.number, arguments)
    if record.sent_ns > record.published_ns > 0:
        thread.span('deliver', 'deliver', record.published_ns, record.sent_ns, frame.number, arguments)


def _inference_stages(trace: Trace, node: NodeTrack, record: FrameRecord, frame: JoinedFrame) -> None:
    arguments = _arguments(node, record, frame, device_seqno=record.device_seqno, detections=record.detections)
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
        thread.instant('failed', 'failed', record.done_ns, frame.number, arguments)


def _number(fields: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        if name in fields:
            try:
                return int(fields[name], 0)
            except ValueError:
                return None
    return None


def _fence_of(event: KernelEvent) -> tuple[int, int]:
    """Context and number."""
    return _number(event.fields, 'ctx', 'context') or 0, _number(event.fields, 'seqno') or 0


class _Kernel:
    """Puts the kernel's events on tracks of their own, in the order of time."""

    def __init__(self, trace: Trace, finder: FrameFinder) -> None:
        self._trace = trace
        self._finder = finder
        self._pid = 0
        self._submits: dict[tuple[int, int], tuple[KernelEvent, JoinedFrame | None]] = {}
        self._waits: dict[tuple[int, int, int], KernelEvent] = {}
        self._last_ns = 0
        self.seen: Counter[str] = Counter()
        self.joined: Counter[str] = Counter()

    def _track(self, name: str) -> Any:
        if not self._pid:
            self._pid = self._trace.own_id()
            self._trace.process(self._pid, _KERNEL)
            for known in (JOBS, IMPORTS, SIGNALS, WAITS, BUFFERS):
                self._trace.track(self._pid, known)
        return self._trace.track(self._pid, name)

    def look_for_jobs(self, event: KernelEvent) -> None:
        """Learn which frames' fences there will be."""
        if event.name == 'axl_submit':
            self._submitted(event, _fence_of(event))

    def _submitted(self, event: KernelEvent, fence: tuple[int, int]) -> JoinedFrame | None:
        return self._finder.of_job(_number(event.fields, 'handle') or 0, fence[1], fence, event.time_ns)

    def add(self, event: KernelEvent) -> None:
        """One event; its predecessors were added before."""
        self._last_ns = event.time_ns
        self.seen[event.name] += 1
        fence = _fence_of(event)
        if event.name == 'axl_submit':
            frame = self._submitted(event, fence)
            self.joined[event.name] += frame is not None
            self._submits[fence] = event, frame
        elif event.name == 'axl_complete' and fence in self._submits:
            submit, frame = self._submits.pop(fence)
            self.joined[event.name] += frame is not None
            self._span(JOBS, f'job {fence[1]}', submit, event.time_ns, frame, event.fields)
        elif event.name.startswith('dma_fence_'):
            self._fence(event, fence)
        else:
            inode = _number(event.fields, 'inode', 'ino', 'i_ino')
            frame = None if inode is None else self._finder.of_inode(inode, event.time_ns)
            self._instant(IMPORTS if event.name.startswith('axl_') else OTHER if inode is None else BUFFERS, event, frame)

    def _fence(self, event: KernelEvent, fence: tuple[int, int]) -> None:
        frame = self._finder.of_fence(fence)
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
        """What began and didn't end lasts until the last event."""
        for submit, frame in self._submits.values():
            self._span(JOBS, f'job {submit.fields.get("seqno", "")}', submit, self._last_ns, frame, {'unfinished': True})
        for wait in self._waits.values():
            fence = _fence_of(wait)
            self._span(WAITS, f'wait for {fence[1]}', wait, self._last_ns, self._finder.of_fence(fence), {'unfinished': True})

    def _arguments(self, event: KernelEvent, frame: JoinedFrame | None) -> dict[str, Any]:
        known = {} if frame is None else {'frame': frame.number, 'sequence': frame.first.sequence, 'inodes': sorted(frame.inodes)}
        return {**event.fields, **known, 'thread': f'{event.comm}-{event.tid}', 'cpu': event.cpu}

    def _span(self, track: str, name: str, start: KernelEvent, end_ns: int, frame: JoinedFrame | None, more: Mapping[str, Any]) -> None:
        number = frame.number if frame is not None and track == JOBS else 0
        self._track(track).span(name, track, start.time_ns, end_ns, number, {**more, **self._arguments(start, frame)})

    def _instant(self, track: str, event: KernelEvent, frame: JoinedFrame | None) -> None:
        self.joined[event.name] += frame is not None
        self._track(track).instant(event.name, track, event.time_ns, 0 if frame is None else frame.number, self._arguments(event, frame))
