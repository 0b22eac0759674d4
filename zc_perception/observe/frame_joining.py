"""Which frame it was: joins the records that several nodes have of one frame, and the kernel's events to it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from zc_perception.observe.frame_log_layout import FrameRecord, RecordKind

# What the kernel does for a frame may come a little after its last node was done with it: a release, a detach.
_AFTER_NS = 20_000_000
# Clocks are the same, but a record's time is taken before or after the system call, the event's within.
_SLACK_NS = 1_000_000


class KernelEvent(Protocol):
    """One line of a kernel trace, with CLOCK_MONOTONIC times (``trace_clock`` mono)."""

    @property
    def time_ns(self) -> int:
        """When."""

    @property
    def cpu(self) -> int:
        """Where."""

    @property
    def comm(self) -> str:
        """The thread's name."""

    @property
    def tid(self) -> int:
        """The thread."""

    @property
    def name(self) -> str:
        """What."""

    @property
    def fields(self) -> Mapping[str, str]:
        """With which values."""


@dataclass
class NodeTrack:
    """The records of one node's log.

    :param role: ``capture`` or ``inference``.
    """

    node: str
    role: str
    pid: int
    records: Sequence[FrameRecord]


@dataclass
class JoinedFrame:
    """One frame and all that is known of it.

    :param number: from 1, in the order of time.
    """

    first: FrameRecord
    number: int = 0
    records: list[tuple[NodeTrack, FrameRecord]] = field(default_factory=list)
    inodes: set[int] = field(default_factory=set)
    begin_ns: int = 0
    end_ns: int = 0

    def add(self, node: NodeTrack, record: FrameRecord) -> None:
        """Another node's record of it."""
        self.records.append((node, record))
        self.inodes.update(record.inodes)
        begin_ns = began_ns(record)
        self.begin_ns = min(self.begin_ns or begin_ns, begin_ns)
        self.end_ns = max(self.end_ns, ended_ns(record))

    @property
    def whole(self) -> bool:
        """Whether it is known from the camera to its detections."""
        kinds = {record.kind for _, record in self.records}
        return RecordKind.PUBLISHED in kinds and RecordKind.PROCESSED in kinds


def began_ns(record: FrameRecord) -> int:
    """The first thing that is known of it in this node."""
    if record.kind == RecordKind.PUBLISHED:
        return record.captured_ns - record.capture_cost_ns if record.captured_ns else record.published_ns
    return record.published_ns or record.received_ns or record.done_ns


def ended_ns(record: FrameRecord) -> int:
    """The last thing."""
    return max(record.published_ns, record.received_ns, record.submitted_ns, record.signalled_ns, record.done_ns, record.sent_ns)


def join_frames(nodes: Sequence[NodeTrack]) -> list[JoinedFrame]:
    """The frames that these nodes saw, in the order of their beginning.

    A frame is known by its buffers, their generation and its sequence number in every process that has the buffers themselves. Where a
    node got a copy (a plain ``sensor_msgs/Image``) only the stamp is left: it counts where exactly one frame has it.
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
    """Finds the frame of a kernel event: by the device's import and job number, by a job's fence, else by inode and time."""

    def __init__(self, frames: Sequence[JoinedFrame]) -> None:
        self._jobs: dict[tuple[int, int], list[tuple[FrameRecord, JoinedFrame]]] = {}
        self._of_inode: dict[int, list[JoinedFrame]] = {}
        self._of_fence: dict[tuple[int, int], JoinedFrame] = {}
        for frame in frames:
            for inode in frame.inodes:
                self._of_inode.setdefault(inode, []).append(frame)
            for _, record in frame.records:
                if record.submitted_ns and record.device_handle:
                    self._jobs.setdefault((record.device_handle, record.device_seqno), []).append((record, frame))

    def of_job(self, handle: int, seqno: int, fence: tuple[int, int], time_ns: int) -> JoinedFrame | None:
        """Of a submit; its fence belongs to the frame from then on. Handles and numbers are an open file's own: of two nodes that have
        the same ones, it is that which submitted then. A driver that tells no numbers gives 0, and only the time is left."""
        for key in ((handle, seqno), (handle, 0)):
            best: tuple[int, JoinedFrame] | None = None
            for record, frame in self._jobs.get(key, ()):
                away = abs(time_ns - record.submitted_ns)
                inside = record.submitted_ns - _SLACK_NS <= time_ns <= ended_ns(record) + _SLACK_NS
                if inside and (best is None or away < best[0]):
                    best = away, frame
            if best is not None:
                self._of_fence[fence] = best[1]
                return best[1]
        return None

    def of_fence(self, fence: tuple[int, int]) -> JoinedFrame | None:
        """Of the fence of a job, by its context and number."""
        return self._of_fence.get(fence)

    def of_inode(self, inode: int, time_ns: int) -> JoinedFrame | None:
        """The frame that was in this buffer then."""
        frames = self._of_inode.get(inode, [])
        index = bisect_right(frames, time_ns + _SLACK_NS // 10, key=lambda frame: frame.begin_ns) - 1
        return frames[index] if index >= 0 and time_ns <= frames[index].end_ns + _AFTER_NS else None
