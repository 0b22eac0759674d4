"""Whose the driver's events are, where a process has several nodes: each opens the card itself, so handles and job numbers repeat.

A node submits and imports on a thread of its own; an open file's jobs are one fence context, unless the driver ends jobs out of order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from zc_perception.observe.frame_joining import ended_ns
from zc_perception.observe.frame_log_layout import FrameRecord
from zc_perception.verify.evidence.kernel_event import KernelEvent
from zc_perception.verify.evidence.kernel_recording import IMPORT, SUBMIT
from zc_perception.verify.observation import NodeView, Observation

# A record's time is taken before or after the system call, the event's within.
_SLACK_NS = 1_000_000
_Job = tuple[int, int]  # handle, seqno


def _job(event: KernelEvent) -> _Job:
    return event.number('handle'), event.number('seqno')


@dataclass
class _Stream:
    """Jobs that one thread submitted to one open file."""

    pid: int
    tid: int
    jobs: list[KernelEvent] = field(default_factory=list)

    def meets(self, other: _Stream) -> bool:
        """Whether both went on at the same time, so that they are of two open files."""
        return self.jobs[0].time_ns <= other.jobs[-1].time_ns and other.jobs[0].time_ns <= self.jobs[-1].time_ns


class _Frames:
    """The submitted frames of a node."""

    def __init__(self, node: NodeView) -> None:
        self.pid = node.pid
        self.records = [record for record in node.records if record.submitted_ns]
        self.inodes = {inode for record in self.records for inode in record.inodes}
        self.threads = {record.thread_id for record in self.records}
        self.of_job: dict[_Job, list[FrameRecord]] = {}
        for record in self.records:
            self.of_job.setdefault((record.device_handle, record.device_seqno), []).append(record)

    def candidates(self, event: KernelEvent) -> list[FrameRecord]:
        """Frames that may be this job's, which ran then: an open file counts anew. The first generation of drivers tells no numbers: 0."""
        handle, seqno = _job(event)
        return [
            record
            for number in (seqno, 0)
            for record in self.of_job.get((handle, number), ())
            if record.submitted_ns - _SLACK_NS <= event.time_ns <= ended_ns(record) + _SLACK_NS
        ]

    def distance(self, event: KernelEvent) -> int | None:
        """From the nearest of these; ``None``: there is none."""
        return min((abs(event.time_ns - record.submitted_ns) for record in self.candidates(event)), default=None)


class JobOwners:
    """Which node and which frame each job is, and which node an import; nodes by their place in *nodes*.

    :ivar unmatched: by node, the frames that are no job of the driver.
    """

    def __init__(self, nodes: Sequence[NodeView], seen: Observation) -> None:
        self._frames = [_Frames(node) for node in nodes]
        self._of_pid: dict[int, list[int]] = {}
        for index, node in enumerate(nodes):
            self._of_pid.setdefault(node.pid, []).append(index)
        self._of_thread: dict[int, set[int]] = {}
        self._jobs: dict[int, list[KernelEvent]] = {}  # by node
        self._node_of: dict[int, int] = {}  # by id of the event
        self._record_of: dict[int, FrameRecord] = {}
        # The threads of a log are those of its own namespace of process ids, the trace's those of the first.
        self._tell_threads = all(seen.process_of.get(thread) == frames.pid for frames in self._frames for thread in frames.threads)
        events = seen.trace.named(IMPORT, SUBMIT) if seen.trace is not None else []
        self._assign([(seen.process_of.get(event.tid, -1), event) for event in events])
        self.unmatched = [self._match(index) for index in range(len(nodes))]

    @property
    def pids(self) -> Collection[int]:
        """Of the nodes."""
        return self._of_pid

    def of_job(self, event: KernelEvent) -> tuple[int | None, FrameRecord | None]:
        """The node and the frame of a submit."""
        return self._node_of.get(id(event)), self._record_of.get(id(event))

    def of_pid(self, pid: int) -> Sequence[int]:
        """The nodes of a process."""
        return self._of_pid.get(pid, ())

    def uses(self, node: int, inode: int) -> bool:
        """Whether a frame of this node lies in this buffer."""
        return inode in self._frames[node].inodes

    def of_thread(self, pid: int, tid: int) -> Sequence[int]:
        """The nodes that may have done what this thread did."""
        nodes = self.of_pid(pid)
        if len(nodes) < 2:
            return nodes
        known = self._of_thread.get(tid) or {index for index in nodes if self._tell_threads and tid in self._frames[index].threads}
        return sorted(known) or nodes

    def of_import(self, pid: int, event: KernelEvent) -> Sequence[int]:
        """The nodes that may have made an import: by its thread and by whose frames lie there; first that whose handle it is soonest."""
        nodes = self.of_thread(pid, event.tid)
        nodes = [index for index in nodes if self.uses(index, event.inode)] or nodes
        return nodes if len(nodes) < 2 else sorted(nodes, key=lambda index: self._until_use(index, event))

    def _until_use(self, index: int, event: KernelEvent) -> float:
        handle = event.number('handle')
        return min(
            (abs(record.submitted_ns - event.time_ns) for record in self._frames[index].records
             if record.device_handle == handle and event.inode in record.inodes), default=float('inf'),
        )  # fmt: skip

    def _assign(self, events: Sequence[tuple[int, KernelEvent]]) -> None:
        submits = [(pid, event) for pid, event in events if event.name == SUBMIT and pid in self._of_pid]
        for pid, event in submits:
            if len(self._of_pid[pid]) == 1:
                self._give([event], self._of_pid[pid][0])
        shared = [(pid, event) for pid, event in submits if len(self._of_pid[pid]) > 1]
        contexts = Counter((event.tid, event.number('ctx')) for _, event in shared)
        streams: dict[tuple[int, int], _Stream] = {}
        for pid, event in shared:
            key = event.tid, event.number('ctx')
            if contexts[key] < 2:  # a context for each job
                key = event.tid, -1
            streams.setdefault(key, _Stream(pid, event.tid)).jobs.append(event)
        imported: dict[int, Counter[int]] = {}
        for _, event in events:
            if event.name == IMPORT:
                imported.setdefault(event.tid, Counter())[event.inode] += 1
        self._choose(list(streams.values()), imported)

    def _choose(self, streams: Sequence[_Stream], imported: dict[int, Counter[int]]) -> None:
        """Give each stream its node, the surest first; one node's streams follow each other."""
        scores = [
            (score, index, stream)
            for stream in streams
            for index in self._of_pid[stream.pid]
            if (score := self._score(stream, index, imported.get(stream.tid, Counter()))) is not None
        ]
        taken: dict[int, list[_Stream]] = {}
        for _, index, stream in sorted(scores, key=lambda one: one[0], reverse=True):
            if id(stream.jobs[0]) in self._node_of or any(stream.meets(other) for other in taken.get(index, ())):
                continue
            taken.setdefault(index, []).append(stream)
            self._of_thread.setdefault(stream.tid, set()).add(index)
            self._give(stream.jobs, index)

    def _give(self, jobs: Sequence[KernelEvent], index: int) -> None:
        self._jobs.setdefault(index, []).extend(jobs)
        self._node_of |= {id(event): index for event in jobs}

    def _score(self, stream: _Stream, index: int, imported: Counter[int]) -> tuple[bool, int, int] | None:
        """How well a node's frames fit to these jobs; ``None``: not at all."""
        frames = self._frames[index]
        distances = [distance for event in stream.jobs if (distance := frames.distance(event)) is not None]
        fitting = len(distances) + sum(count for inode, count in imported.items() if inode in frames.inodes)
        same_thread = self._tell_threads and stream.tid in frames.threads
        return (same_thread, fitting, -sum(distances)) if fitting or same_thread else None

    def _match(self, index: int) -> list[FrameRecord]:
        """Give each job of a node its frame, the nearest first; the frames that are left."""
        frames = self._frames[index]
        left = {id(record): record for record in frames.records}
        pairs = [
            (abs(event.time_ns - record.submitted_ns), id(event), id(record))
            for event in self._jobs.get(index, ())
            for record in frames.candidates(event)
        ]
        for _, event_id, record_id in sorted(pairs):
            if record_id in left and event_id not in self._record_of:
                self._record_of[event_id] = left.pop(record_id)
        return list(left.values())
