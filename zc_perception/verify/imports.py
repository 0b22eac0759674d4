"""Follows the driver's imports, releases and submits through a trace, and compares them with the frames of the nodes.

Read :func:`follow_imports` first, at the end. It goes through the trace once, event by event:

1. :class:`JobOwners` says which node and which frame an event belongs to. A process may have several nodes, and each opens the card itself,
   so handles and job numbers repeat. A node submits and imports on a thread of its own; an open file's jobs are one fence context, unless
   the driver ends jobs out of order.
2. :class:`ImportTable`, one for each node, knows what the node has imported at that moment. A handle belongs to the open file of the card
   that it was made by.
3. At the end :func:`weigh` compares how often a node had to import with how often it did: each new image once while it has a cache, each
   frame while it has none. And :func:`~zc_perception.verify.job_fences.find_fences` says which buffers the jobs read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zc_perception.npu.import_cache import ENTRIES
from zc_perception.observe.frame_log import FrameRecord, RecordKind
from zc_perception.observe.timeline import ended_ns
from zc_perception.verify.check import advice
from zc_perception.verify.evidence.attachments import History
from zc_perception.verify.evidence.kernel_events import COMPLETE, FENCES, IMPORT, RELEASE, SUBMIT, KernelEvent
from zc_perception.verify.job_fences import FrameJob, drivers_of, find_fences
from zc_perception.verify.observation import IMPORTING, NodeView, Observation

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


@dataclass(eq=False)
class Import:
    """One import of one image, which may lie in several buffers.

    :ivar begin_ns: of its event.
    :ivar image: its buffers' inodes; of one from before the recording, those of the first frame that was submitted by it.
    :ivar earlier: whether it was made before the recording began.
    :ivar left: buffers that were not given back.
    :ivar released_ns: when the last one was; 0: never.
    :ivar submits: jobs that read it.
    :ivar done_ns: when the node was done with the last frame that was submitted by it; 0: not yet, or it gave the frame up.
    :ivar frames: by image, frames of the window that were submitted by it.
    """

    begin_ns: int
    image: set[int]
    earlier: bool = False
    left: set[int] = field(default_factory=set)
    released_ns: int = 0
    submits: int = 0
    done_ns: int = 0
    frames: Counter[frozenset[int]] = field(default_factory=Counter)

    def alive_at(self, time_ns: int) -> bool:
        """Whether it was there."""
        return (self.earlier or self.begin_ns < time_ns) and (not self.released_ns or self.released_ns >= time_ns)


class ImportTable:
    """A node's imports, in the order of the trace.

    :ivar imports: those that were recorded.
    :ivar earlier: those that are known by their submits alone.
    :ivar clearings: each time when the node had several images and gave back all of them: the time, these images, and all images that it
        had used until then.
    :ivar last: the newest import, as long as its thread has done nothing else since: its job may still come.
    """

    def __init__(self) -> None:
        self.imports: list[Import] = []
        self.earlier: list[Import] = []
        self.clearings: list[tuple[int, frozenset[frozenset[int]], frozenset[frozenset[int]]]] = []
        self.last: Import | None = None
        self._last_tid = 0
        self._of_handle: dict[int, list[Import]] = {}
        self._growing: dict[int, tuple[int, Import]] = {}  # by thread
        self._alive: set[Import] = set()
        self._used: set[frozenset[int]] = set()
        self._given_back: set[frozenset[int]] = set()  # since the last import or submit

    def begin(self, event: KernelEvent) -> None:
        """An import, or another buffer of the image that the same thread imports."""
        handle = event.number('handle')
        known, growing = self._growing.get(event.tid, (-1, None))
        if growing is None or known != handle or event.inode in growing.image:
            growing = Import(event.time_ns, set())
            self.imports.append(growing)
            self._of_handle.setdefault(handle, []).append(growing)
            self._alive.add(growing)
            self._growing[event.tid] = handle, growing
        growing.image.add(event.inode)
        growing.left.add(event.inode)
        self.last, self._last_tid = growing, event.tid
        self._given_back.clear()

    def submit(self, event: KernelEvent, inodes: Sequence[int]) -> Import:
        """The import that a job reads.

        :param inodes: of its frame; none: unknown.
        """
        self._growing.pop(event.tid, None)
        self._given_back.clear()
        self.last = None
        made = self._of_handle.setdefault(event.number('handle'), [])
        if not made:
            made.append(Import(0, set(inodes), earlier=True, left=set(inodes)))
            self.earlier.append(made[0])
            self._alive.add(made[0])
        found = made[-1]
        if found.earlier and not found.image:
            found.image, found.left = set(inodes), set(inodes)
        found.submits += 1
        if inodes:
            self._used.add(frozenset(inodes))
        return found

    def holds(self, event: KernelEvent, *, recorded: bool = False) -> bool:
        """Whether a release can be one of this node's.

        :param recorded: whether only imports count that were seen.
        """
        imports = self._of_handle.get(event.number('handle'), ())
        return any(event.inode in one.left and not (recorded and one.earlier) for one in imports)

    def release(self, event: KernelEvent) -> None:
        """The driver has given back one buffer. Of several imports by the same handle the oldest one ends: the driver works on several
        threads, so the next import by a handle may be traced before the release of the last one."""
        self._growing.pop(event.tid, None)
        if event.tid == self._last_tid:
            self.last = None
        found = next((one for one in self._of_handle.get(event.number('handle'), ()) if event.inode in one.left), None)
        if found is None:
            return
        found.left.discard(event.inode)
        if found.left:
            return
        found.released_ns = event.time_ns
        self._alive.discard(found)
        self._given_back.add(frozenset(found.image))
        if not self._alive and len(self._given_back) > 1:
            self.clearings.append((event.time_ns, frozenset(self._given_back), frozenset(self._used)))

    def cleared_ns(self, since_ns: int) -> int:
        """The first time, after *since_ns*, when the node gave back everything and imported it again later; 0: there is none.

        It happens when the card is opened anew, or when the same frames come by a new link. A cache that only gives back what it does not
        need any more never gives back everything at once.
        """
        last_ns = {frozenset(one.image): one.begin_ns for one in self.imports}
        for time_ns, given_back, used in self.clearings:
            if time_ns >= since_ns and all(image in given_back or last_ns.get(image, 0) < time_ns for image in used):
                return time_ns
        return 0


_NEED_SLACK_NS = 1_000_000
_NEVER = (1, 0)
_TRIED = 64


# A driver may give an import back a little later than the node does.
_GRACE_FRAMES = 4


def kept(node: NodeView, table: ImportTable) -> int:
    """How many imports a node without a cache did not give back, though it was done with some frames more since."""
    if node.cached or node.before.get('import_cache', False):
        return 0
    done = sorted(record.done_ns for record in node.records if record.submitted_ns)
    if len(done) <= _GRACE_FRAMES:
        return 0
    return sum(0 < one.done_ns <= done[-_GRACE_FRAMES - 1] and not one.released_ns for one in table.imports)


@dataclass(frozen=True)
class ImportNeed:
    """How the imports of one node differ from those that it needed.

    :ivar shared: frames without an import of their own, while it had no cache.
    :ivar surplus: imports that its cache did not need.
    :ivar unused: imports that no job read, while it had no cache.
    :ivar new_buffers: buffers that its cache imported for the first time.
    """

    shared: int
    surplus: int
    unused: int
    new_buffers: int


def weigh(
    node: NodeView, table: ImportTable, shared: Sequence[int], seen: Observation, images: Collection[frozenset[int]],
    attached: Collection[int],
) -> ImportNeed:  # fmt: skip
    """Judge a node's imports of the window.

    :param shared: when frames were submitted that had no import of their own.
    :param images: of all nodes' frames; imports of other buffers don't count.
    :param attached: buffers that the card had of this node when the window began, as far as attachments tell.
    """
    inodes = frozenset().union(*images)
    of_window = [one for one in table.imports if seen.within(one.begin_ns) and not one.image.isdisjoint(inodes)]
    needs = [
        _weigh(node, table, of_window, shared, seen, images, attached if on_ns <= seen.start_ns else (), on_ns, off_ns)
        for on_ns, off_ns in _cached_while(node, shared, of_window, seen)
    ]
    return min(needs, key=lambda need: need.surplus + need.unused)


def _weigh(
    node: NodeView, table: ImportTable, of_window: Sequence[Import], shared: Sequence[int], seen: Observation,
    images: Collection[frozenset[int]], attached: Collection[int], on_ns: int, off_ns: int,
) -> ImportNeed:  # fmt: skip
    cached = [one for one in of_window if on_ns <= one.begin_ns <= off_ns]
    needed = [one for one in _needed(cached, table, max(on_ns, seen.start_ns), attached) if one.image in images]
    # A cache that finds itself too small imports again what it threw out, once each.
    own = {frozenset(record.inodes) for record in node.records if record.submitted_ns}
    surplus = max(0, len(cached) - len(needed) - max(0, len(own) - ENTRIES))
    unread = [one for one in of_window if not on_ns <= one.begin_ns <= off_ns and not one.submits and one is not table.last]
    unread = _without_refused(unread, node)
    given_back = sum(one.released_ns > 0 for one in unread)
    trials = node.grown('trial_imports')
    return ImportNeed(
        sum(not on_ns <= time_ns <= off_ns for time_ns in shared), max(0, surplus - trials),
        len(unread) - min(given_back, max(0, trials - surplus)), sum(len(one.image) for one in needed),
    )  # fmt: skip


def _cached_while(node: NodeView, shared: Sequence[int], of_window: Sequence[Import], seen: Observation) -> list[tuple[int, int]]:
    """From when to when the node had a cache, as pairs of times: one pair for each possibility.

    If the cache was turned on or off in the window, the exact time is not known. It certainly was on while frames shared imports. It may
    have been on longer, back to (or up to) one of the imports that no job has read: each of them makes one possibility.
    """
    if bool(node.before.get('import_cache', node.cached)) == node.cached:
        return [(0, seen.end_ns) if node.cached else _NEVER]
    unread = [one.begin_ns for one in of_window if not one.submits]
    if node.cached:
        on_ns = min(shared, default=seen.end_ns)
        return [(time_ns, seen.end_ns) for time_ns in (on_ns, *[one for one in unread if one < on_ns][:_TRIED])]
    off_ns = max(shared, default=0)
    return [(0, time_ns) for time_ns in (off_ns, *[one for one in unread if one > off_ns][-_TRIED:])]


def _needed(cached: Sequence[Import], table: ImportTable, since_ns: int, attached: Collection[int]) -> list[Import]:
    """The imports that a cache needs: the first one of each image that the node did not have yet, and, if the node gave everything back,
    the first one of each image after that."""
    cleared_ns = table.cleared_ns(since_ns)
    made = {(frozenset(one.image), False) for one in (*table.earlier, *table.imports) if one.alive_at(since_ns)}
    needed = []
    for one in cached:
        key = frozenset(one.image), 0 < cleared_ns < one.begin_ns
        if key not in made and (key[1] or not one.image <= set(attached)):
            needed.append(one)
        made.add(key)
    return needed


def _without_refused(unread: Sequence[Import], node: NodeView) -> list[Import]:
    """*unread* without the imports of frames that failed before the card had a job for them: the card refused the job, not the import."""
    left = list(unread)
    for record in node.records:
        if record.kind == RecordKind.FAILED and not record.submitted_ns:
            own = [one for one in left if one.image == set(record.inodes) and _is_of(one, record)]
            if own:
                left.remove(max(own, key=lambda one: one.begin_ns))
    return left


def _is_of(one: Import, record: FrameRecord) -> bool:
    return record.published_ns - _NEED_SLACK_NS <= one.begin_ns <= record.done_ns + _NEED_SLACK_NS


@dataclass
class ImportFollowing:
    """What came of it.

    :ivar unreadable: why it could not be followed; empty: it was.
    :ivar submitted: frames of the nodes' logs in the window.
    :ivar kernel_submits: the driver's jobs in the window, of the nodes.
    :ivar unknown_jobs: jobs that are no node's frame, of processes whose nodes lasted; *missing_jobs*: frames without a job.
    :ivar foreign: frames whose buffer was not imported, or whose handle is another buffer's.
    :ivar own_imports: frames that were submitted by an import of their own.
    :ivar earlier_imports: frames that were submitted by an import from before the recording: what its handle stands for is not known.
    :ivar shared_imports: frames of nodes without a cache that had no import of their own.
    :ivar imports: in the window, of frame buffers; an image in several buffers is one.
    :ivar new_buffers: of nodes with a cache: buffers that these imported for the first time.
    :ivar surplus: imports of nodes with a cache that were not needed.
    :ivar unused: imports of nodes without one, that no job read; *kept*: that they did not give back.
    :ivar confirmed: frames whose job's fence was seen in their own buffers; *elsewhere*: in another buffer instead.
    :ivar unsure_handles: handles from before the recording of which no frame was confirmed.
    :ivar uncounted: nodes that imported too often for all that is known, but don't tell what explains it.
    """

    unreadable: str = ''
    submitted: int = 0
    kernel_submits: int = 0
    unknown_jobs: int = 0
    missing_jobs: int = 0
    foreign: int = 0
    own_imports: int = 0
    earlier_imports: int = 0
    shared_imports: int = 0
    imports: int = 0
    releases: int = 0
    new_buffers: int = 0
    surplus: int = 0
    unused: int = 0
    kept: int = 0
    confirmed: int = 0
    elsewhere: int = 0
    unsure_handles: int = 0
    uncounted: list[str] = field(default_factory=list)
    caches: dict[str, bool] = field(default_factory=dict)

    def problems(self) -> list[tuple[str, str]]:
        """What speaks against the invariant, with its next step."""
        found = []
        if self.foreign:
            found.append((f'{self.foreign} frames were submitted whose buffer was not imported', advice('not_imported')))
        if self.elsewhere:
            told = f'{self.elsewhere} frames were submitted, but the fence of their job lies in another buffer: the device read that one'
            found.append((told, advice('not_imported')))
        if self.kept:
            found.append((f'{self.kept} imports were not given back after their frames, though the cache is off', advice('imports_kept')))
        if self.surplus:
            found.append((f'buffers were imported {self.surplus} times more often than the cache needs', advice('imports_differ')))
        if self.unused:
            found.append((f'{self.unused} imports were of no frame, though the cache is off', advice('imports_differ')))
        if self.shared_imports:
            found.append((f'{self.shared_imports} frames had no import of their own, though the cache is off', advice('imports_differ')))
        if self.unknown_jobs or self.missing_jobs:
            told = f'{self.unknown_jobs} jobs of the driver are no frame of a node, {self.missing_jobs} frames have no job'
            found.append((told, advice('submits_differ')))
        return found

    def unknown(self) -> list[tuple[str, str]]:
        """What is not known of it, with its next step."""
        return [
            (f'{node} imported more often than its frames need, and does not tell what it imported on trial', 'use nodes of this version')
            for node in self.uncounted
        ]

    def figures(self) -> dict[str, Any]:
        """For ``result.json``."""
        return {
            'frames': self.submitted,
            'kernel_submits': self.kernel_submits,
            'imports': self.imports,
            'releases': self.releases,
            'new_buffers': self.new_buffers,
            'frames_with_own_import': self.own_imports,
            'frames_by_earlier_import': self.earlier_imports,
            'frames_not_imported': self.foreign,
            'frames_confirmed_by_fence': self.confirmed,
            'frames_read_elsewhere': self.elsewhere,
            'imports_kept': self.kept,
            'import_cache': self.caches,
            'not_seen': self.not_seen(),
        }

    def not_seen(self) -> list[str]:
        """What no source tells, so that it cannot be judged."""
        told = ["where the planes begin in an import, and their strides: the driver's events do not say it"]
        if self.unsure_handles:
            told.append(f'whether the images of {self.unsure_handles} handles from before the recording were exchanged: no fence was seen')
        return told


def follow_imports(seen: Observation, found: Mapping[int, History]) -> ImportFollowing:
    """Go through the trace once."""
    result = ImportFollowing()
    nodes = [node for node in seen.inference_nodes() if node.accelerator == IMPORTING]
    result.caches = {node.node: node.cached for node in nodes}
    absent = [event for event in (IMPORT, RELEASE, SUBMIT) if event not in seen.event_sources]
    if absent or seen.trace is None:
        result.unreadable = f'{", ".join(absent) or "the trace"} could not be recorded'
        return result
    if any(not node.after.get('pci_address') for node in nodes):
        result.unreadable = 'a node does not say where its device is, so its earlier imports could not be told'
        return result
    _Following(result, nodes, seen, found).follow(seen.trace.named(IMPORT, RELEASE, SUBMIT, COMPLETE))
    return result


class _Following:
    """Goes through the trace once. It owns one :class:`ImportTable` for each node, and one for the imports of all other programs."""

    def __init__(self, result: ImportFollowing, nodes: Sequence[NodeView], seen: Observation, found: Mapping[int, History]) -> None:
        self._result, self._nodes, self._seen, self._found = result, nodes, seen, found
        self._owners = JobOwners(nodes, seen)
        self._tables = [ImportTable() for _ in nodes]
        self._others = ImportTable()
        self._shared: list[list[int]] = [[] for _ in nodes]  # when frames of the window had no import of their own
        self._images = {frozenset(record.inodes) for node in nodes for record in node.records if record.submitted_ns}
        self._frame_inodes = {inode for image in self._images for inode in image}
        # A node that ends in the middle leaves jobs behind that it has noted nowhere.
        self._cut = {node.pid for node in seen.nodes if node.ended_ns}
        self._jobs: list[tuple[FrameJob, Import, bool]] = []  # the last one: in the window
        self._strangers: set[int] = set()
        self._owner_of_fence: dict[tuple[int, int], int] = {}
        self._completed: dict[int, int] = {}  # by thread of the driver, whose job it completed last

    def follow(self, events: Sequence[KernelEvent]) -> None:
        """All events, then what they sum up to."""
        for event in events:
            pid = self._seen.process_of.get(event.tid, -1)
            if event.name == RELEASE:
                self._release(pid, event)
            elif event.name == COMPLETE:
                fence = event.number('ctx'), event.number('seqno')
                self._completed[event.tid] = self._owner_of_fence.get(fence, -1)
            elif pid in self._owners.pids:
                (self._import if event.name == IMPORT else self._submit)(pid, event)
            elif event.name == IMPORT:
                self._others.begin(event)
        self._conclude()

    def _import(self, pid: int, event: KernelEvent) -> None:
        owners = self._owners.of_import(pid, event)
        # An open file gives no number twice.
        new = [owner for owner in owners if not self._tables[owner].holds(event)]
        for owner in (new or owners)[:1]:
            self._tables[owner].begin(event)

    def _submit(self, pid: int, event: KernelEvent) -> None:
        result, inside = self._result, self._seen.within(event.time_ns)
        owner, record = self._owners.of_job(event)
        result.kernel_submits += inside
        if owner is not None:
            self._owner_of_fence[event.number('ctx'), event.number('seqno')] = owner
            used = self._tables[owner].submit(event, record.inodes if record is not None else ())
            if record is not None:
                of_window = self._seen.within(record.submitted_ns)
                self._jobs.append((FrameJob(event.time_ns, event.number('seqno'), frozenset(record.inodes)), used, of_window))
                used.done_ns = record.done_ns if record.kind == RecordKind.PROCESSED else 0
                if of_window:
                    self._judge(owner, record, used)
                return
        self._strangers.add(event.number('seqno'))
        result.unknown_jobs += inside and pid not in self._cut

    def _judge(self, owner: int, record: FrameRecord, used: Import) -> None:
        """One frame, at the moment of its submit."""
        result, wanted = self._result, set(record.inodes)
        known = bool(wanted) and wanted <= used.left
        if used.earlier:
            device = str(self._nodes[owner].after.get('pci_address', ''))
            attached = all(inode in self._found and self._found[inode].states[0][device] > 0 for inode in wanted)
            known = bool(wanted) and attached and not used.released_ns
            result.earlier_imports += 1
            used.frames[frozenset(wanted)] += known
        result.foreign += not known
        if used.submits == 1 and not used.earlier:
            result.own_imports += 1
        else:
            self._shared[owner].append(record.submitted_ns)

    def _release(self, pid: int, event: KernelEvent) -> None:
        """A buffer is given back. Often the driver does so on a thread of its own, after the last job that reads the buffer."""
        self._result.releases += self._seen.within(event.time_ns) and event.inode in self._frame_inodes
        last = self._completed.get(event.tid, -1)
        if pid in self._owners.pids:
            holding = [owner for owner in self._owners.of_thread(pid, event.tid) if self._tables[owner].holds(event)]
        else:
            # Another program may have the same buffer by the same number.
            holding = [owner for owner, table in enumerate(self._tables) if table.holds(event, recorded=owner != last)]
            if self._others.holds(event) and last not in holding:
                self._others.release(event)
                return
        if holding:
            owner = last if last in holding else min(holding, key=lambda owner: self._nodes[owner].cached)
            self._tables[owner].release(event)

    def _look_at_fences(self) -> None:
        """Which buffers the jobs read."""
        users: defaultdict[int, set[int]] = defaultdict(set)
        for node in self._nodes:
            for record in node.records:
                users[record.device_seqno].update(record.inodes)
        for job, _, _ in self._jobs:
            users[job.seqno] |= job.inodes
        trace = self._seen.trace
        drivers = drivers_of(self._owner_of_fence.keys(), trace.named(*FENCES)) if trace is not None else set()
        places = find_fences([job for job, _, _ in self._jobs], users, self._strangers, self._seen.snapshots, drivers)
        of_window = {index for index, (_, _, inside) in enumerate(self._jobs) if inside}
        self._result.confirmed = len(places.own & of_window - places.elsewhere)
        self._result.elsewhere = len(places.elsewhere & of_window)
        sure = {id(self._jobs[index][1]) for index in places.own}
        self._result.unsure_handles = sum(id(one) not in sure for table in self._tables for one in table.earlier)

    def _conclude(self) -> None:
        result, seen = self._result, self._seen
        self._look_at_fences()
        for table, frames, shared, node in zip(self._tables, self._owners.unmatched, self._shared, self._nodes, strict=True):
            in_window = sum(seen.within(record.submitted_ns) for record in node.records if record.submitted_ns)
            result.submitted += in_window
            result.missing_jobs += sum(seen.within(record.submitted_ns) for record in frames)
            result.imports += sum(seen.within(one.begin_ns) and not one.image.isdisjoint(self._frame_inodes) for one in table.imports)
            # What was imported before the recording began is not known, but each of these handles stands for one image only.
            result.foreign += sum(one.frames.total() for one in table.earlier if len(one.frames) > 1)
            users = [one for one, other in enumerate(self._nodes) if other.after.get('pci_address') == node.after.get('pci_address')]
            attached = {
                inode: history.at(seen.start_ns)[str(node.after['pci_address'])] >= sum(self._owners.uses(one, inode) for one in users)
                for inode, history in self._found.items()
            }
            need = weigh(node, table, shared, seen, self._images, {inode for inode, had in attached.items() if had})
            result.shared_imports += need.shared
            result.new_buffers += need.new_buffers
            if not node.counted:
                continue
            result.kept += kept(node, table)
            if need.surplus + need.unused and not {'trial_imports', 'import_cache'} <= node.before.keys() & node.after.keys():
                result.uncounted.append(str(node))
                continue
            result.surplus += need.surplus
            result.unused += need.unused
