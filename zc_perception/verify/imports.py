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
Match the driver's traced imports, releases and jobs with the nodes' frames.

An accelerator's driver imports a frame's buffers (an image), and returns a handle for them; a job
names the handle of the image to read. Begin with :class:`ImportFollowing`, the last class of this
file. It reads the trace once, event by event:

1. :class:`JobOwners` finds the node and the frame of each event. A process may have several nodes,
   and each opens the card itself, so two nodes may have the same handles and job numbers. But each
   node submits on its own thread, which identifies the node.
2. :class:`ImportTable`, one for each node, stores the node's imports at the time of each event. A
   handle is valid only for the open file of the card that made the handle.
3. At the end, :class:`ImportFollowing` compares the number of imports with the necessary number.
   With a cache, a node must import each new image once; without a cache, each frame.
4. :func:`find_fences` finds the buffers that the jobs really read. A driver adds a job's fence to
   the reservation object of each buffer that the job reads, and debugfs ``bufinfo`` shows the
   fence of each buffer's last job. So a job's fence must be in the buffers of the job's frame. If
   it is in another buffer instead, the job read that buffer, whatever its handle stood for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zc_perception.npu.kinds import traced
from zc_perception.observe.frame_log import FrameRecord, RecordKind
from zc_perception.observe.timeline import KernelEvent, ran_at
from zc_perception.verify.evidence.buffers import History, Snapshot
from zc_perception.verify.evidence.kernel_events import FENCES
from zc_perception.verify.observation import NodeView, Observation

# A frame's record has the time that the node noted before or after a system call. The time of the
# call's event in the trace may differ from it by this much.
_SLACK_NS = 1_000_000
# A driver may release an import up to this many frames after the node has asked for the release.
_GRACE_FRAMES = 4


class _Frames:
    """One node's submitted frames; each is found by its job's handle and number."""

    def __init__(self, node: NodeView) -> None:
        self.pid = node.pid
        self.records = [record for record in node.records if record.submitted_ns]
        self.inodes = {inode for record in self.records for inode in record.inodes}
        self.threads = {record.thread_id for record in self.records}
        self._of_job: dict[tuple[int, int], list[FrameRecord]] = {}
        for record in self.records:
            self._of_job.setdefault((record.device_handle, record.device_seqno), []).append(record)

    def candidates(self, event: KernelEvent) -> list[FrameRecord]:
        """Return the frames in flight whose handle and job number fit those of a submit event."""
        return [
            record
            for number in (event.number('seqno'), 0)
            for record in self._of_job.get((event.number('handle'), number), ())
            if ran_at(record, event.time_ns)
        ]

    def until_use(self, event: KernelEvent) -> float:
        """
        Return the nanoseconds between an import and the nearest submission that may have used it.

        A submission may have used the import if it has the import's handle, and if its frame is in
        the imported buffer. If there is no such submission, return infinity.
        """
        uses = (
            one
            for one in self.records
            if one.device_handle == event.number('handle') and event.inode in one.inodes
        )
        return min((abs(one.submitted_ns - event.time_ns) for one in uses), default=float('inf'))


class JobOwners:
    """Find the node (an index in *nodes*) and the frame of each job, and each import's node."""

    def __init__(self, nodes: Sequence[NodeView], seen: Observation) -> None:
        self._frames = [_Frames(node) for node in nodes]
        self._of_pid: dict[int, list[int]] = {}
        for index, node in enumerate(nodes):
            self._of_pid.setdefault(node.pid, []).append(index)
        # A frame log has the thread ids of the node's pid namespace, and the trace has those of
        # the machine's first namespace. Threads identify nodes only if these namespaces are
        # the same.
        self._tell_threads = all(
            seen.process_of.get(thread) == frames.pid
            for frames in self._frames
            for thread in frames.threads
        )
        jobs: dict[int, list[KernelEvent]] = {}
        imported: defaultdict[int, Counter[int]] = defaultdict(Counter)
        events = traced()
        wanted = events.imported | events.submitted
        for event in seen.trace.named(*wanted) if seen.trace is not None else ():
            if event.name in events.imported:
                imported[event.tid][event.inode] += 1
            elif seen.process_of.get(event.tid) in self._of_pid:
                jobs.setdefault(event.tid, []).append(event)
        self._of_thread = self._choose(
            {tid: (self._of_pid[seen.process_of[tid]], jobs[tid]) for tid in jobs}, imported
        )
        # The frame of each submit event; the key is id(event).
        self._record_of: dict[int, FrameRecord] = {}
        self.unmatched = [
            self._match(
                frames,
                [
                    event
                    for tid, owner in self._of_thread.items()
                    if owner == index
                    for event in jobs[tid]
                ],
            )
            for index, frames in enumerate(self._frames)
        ]

    @property
    def pids(self) -> Collection[int]:
        """The process ids of the nodes."""
        return self._of_pid

    def of_job(self, event: KernelEvent) -> tuple[int | None, FrameRecord | None]:
        """Return the node and the frame of a submit event; ``None`` if not known."""
        return self._of_thread.get(event.tid), self._record_of.get(id(event))

    def uses(self, node: int, inode: int) -> bool:
        """Return whether a frame of the node is in the buffer *inode*."""
        return inode in self._frames[node].inodes

    def of_thread(self, pid: int, tid: int) -> Sequence[int]:
        """Return the nodes that a thread of the process *pid* may belong to."""
        if tid in self._of_thread:
            return [self._of_thread[tid]]
        nodes = self._of_pid.get(pid, [])
        return [
            index for index in nodes if self._tell_threads and tid in self._frames[index].threads
        ] or nodes

    def of_import(self, pid: int, event: KernelEvent) -> Sequence[int]:
        """Return the nodes whose threads and frames fit an import event; the likeliest first."""
        nodes = self.of_thread(pid, event.tid)
        nodes = [index for index in nodes if self.uses(index, event.inode)] or nodes
        return sorted(nodes, key=lambda index: self._frames[index].until_use(event))

    def _choose(
        self,
        threads: Mapping[int, tuple[Sequence[int], Sequence[KernelEvent]]],
        imported: Mapping[int, Counter[int]],
    ) -> dict[int, int]:
        """
        Assign a node to each thread that submitted jobs, beginning with the best match.

        Threads whose jobs overlap in time can't belong to the same node.

        :param threads: by thread id, the nodes of the thread's process, and the thread's jobs.
        :param imported: by thread id, how often the thread imported each buffer.
        """
        owner = {tid: nodes[0] for tid, (nodes, _) in threads.items() if len(nodes) == 1}
        scores = [
            (score, index, tid)
            for tid, (nodes, jobs) in threads.items()
            for index in nodes
            if tid not in owner
            and (score := self._score(index, tid, jobs, imported.get(tid, Counter()))) is not None
        ]
        for _, index, tid in sorted(scores, key=lambda one: one[0], reverse=True):
            rivals = [threads[other][1] for other, its in owner.items() if its == index]
            jobs = threads[tid][1]
            if tid not in owner and all(
                jobs[-1].time_ns < other[0].time_ns or other[-1].time_ns < jobs[0].time_ns
                for other in rivals
            ):
                owner[tid] = index
        return owner

    def _score(
        self, index: int, tid: int, jobs: Sequence[KernelEvent], imported: Counter[int]
    ) -> tuple[bool, int, int] | None:
        """Rate how well a node's frames match a thread's jobs; ``None``: they don't match."""
        frames = self._frames[index]
        away = [
            min(abs(job.time_ns - one.submitted_ns) for one in found)
            for job in jobs
            if (found := frames.candidates(job))
        ]
        fitting = len(away) + sum(
            count for inode, count in imported.items() if inode in frames.inodes
        )
        same_thread = self._tell_threads and tid in frames.threads
        return (same_thread, fitting, -sum(away)) if fitting or same_thread else None

    def _match(self, frames: _Frames, jobs: Sequence[KernelEvent]) -> list[FrameRecord]:
        """Assign a node's frames to its jobs, nearest in time first; return the other frames."""
        left = {id(record): record for record in frames.records}
        pairs = [
            (abs(job.time_ns - record.submitted_ns), id(job), id(record))
            for job in jobs
            for record in frames.candidates(job)
        ]
        for _, job_id, record_id in sorted(pairs):
            if record_id in left and job_id not in self._record_of:
                self._record_of[job_id] = left.pop(record_id)
        return list(left.values())


@dataclass(frozen=True)
class FrameJob:
    """A job of the driver, with the inodes of the buffers of the job's frame."""

    time_ns: int
    seqno: int
    inodes: frozenset[int]


@dataclass
class FencePlaces:
    """
    The jobs whose fences were found, by their index in the list of jobs.

    :ivar own: jobs whose fence was in the buffers of their own frame.
    :ivar elsewhere: jobs whose fence was missing in a buffer of their own frame, and was found in
        a buffer that belongs to no frame of a job with this *seqno*.
    """

    own: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)


def drivers_of(contexts: Collection[tuple[int, int]], events: Sequence[KernelEvent]) -> set[str]:
    """Return the names of the drivers of fences; *contexts* has each fence's (context, seqno)."""
    return {
        event.fields.get('driver', '')
        for event in events
        if (event.number('context'), event.number('seqno')) in contexts
    } - {''}


def find_fences(
    jobs: Sequence[FrameJob],
    users: Mapping[int, Collection[int]],
    strangers: Collection[int],
    looks: Sequence[Snapshot],
    drivers: Collection[str],
) -> FencePlaces:
    """
    Compare the last job of each buffer with the fences in the buffers, at each snapshot.

    A fence names its job only by the job's number, and each open file of the card counts its own
    jobs. So jobs of several frames may have the same number. A job has read a wrong buffer only if
    its number is on a fence in a buffer of no frame whose job has this number.

    :param users: by job number, the buffers of all frames whose jobs have this number.
    :param strangers: the numbers of jobs that belong to no node's frame; a fence with such a
        number never proves that a job read a wrong buffer.
    :param looks: the snapshots of ``bufinfo``.
    :param drivers: the names of the drivers whose fences are compared.
    """
    found = FencePlaces()
    waiting = sorted(range(len(jobs)), key=lambda index: jobs[index].time_ns, reverse=True)
    last: dict[int, int] = {}
    for look in sorted(looks, key=lambda one: one.start_ns):
        while waiting and jobs[waiting[-1]].time_ns < look.start_ns:
            index = waiting.pop()
            last |= dict.fromkeys(jobs[index].inodes, index)
        places: defaultdict[int, set[int]] = defaultdict(set)
        for inode, one in look.objects.items():
            for driver, number in one.reads:
                if driver in drivers:
                    places[number].add(inode)
        for index in {last[inode] for inode in last.keys() & look.objects.keys()}:
            number = jobs[index].seqno
            newest = {inode for inode in jobs[index].inodes if last[inode] == index}
            if newest <= places[number]:
                found.own.add(index)
            elif number not in strangers and not places[number] <= set(users.get(number, ())):
                found.elsewhere.add(index)
    return found


@dataclass(eq=False)
class Import:
    """
    One import of one image's buffers by the accelerator's driver.

    :ivar begin_ns: the time of the import's event.
    :ivar image: the inodes of the image's buffers. For an import from before the recording they
        are unknown: *image* then has the inodes of the first frame that was submitted with the
        import's handle.
    :ivar earlier: whether the import was made before the recording began.
    :ivar left: the inodes of the buffers that the driver has not released yet.
    :ivar released_ns: when the driver released the last of the buffers; 0: not yet.
    :ivar submits: the number of jobs that read the image.
    :ivar done_ns: when the node finished the last frame submitted with this import; 0: not yet, or
        that frame failed.
    :ivar frames: for an earlier import: how many frames were submitted with it in the measured
        time, by image.
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
        """Return whether the import existed at *time_ns*."""
        return (self.earlier or self.begin_ns < time_ns) and (
            not self.released_ns or self.released_ns >= time_ns
        )


class ImportTable:
    """
    A node's imports, in the order of the trace.

    :ivar imports: the imports that were recorded.
    :ivar earlier: imports from before the recording, which are known only from their jobs.
    :ivar clearings: an entry for each time at which the node released several imports in a row,
        and none was left. The entry has this time, the released images, and all images that jobs
        had read until then.
    :ivar last: the newest import, while its job may still come (perhaps after the end of the
        trace). ``None``: after that import the node submitted a job, or the thread that made the
        import released a buffer.
    """

    def __init__(self) -> None:
        self.imports: list[Import] = []
        self.earlier: list[Import] = []
        self.clearings: list[tuple[int, frozenset[frozenset[int]], frozenset[frozenset[int]]]] = []
        self.last: Import | None = None
        self._last_tid = 0
        self._of_handle: dict[int, list[Import]] = {}
        # For each thread id: a handle, and the import to which the thread may still add buffers.
        self._growing: dict[int, tuple[int, Import]] = {}
        self._alive: set[Import] = set()
        self._used: set[frozenset[int]] = set()
        # The images whose imports the node has released since its last import or job.
        self._given_back: set[frozenset[int]] = set()

    def begin(self, event: KernelEvent) -> None:
        """Record an import event: a new import, or one more buffer of the thread's last import."""
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
        """
        Return the import that the job of *event* reads.

        :param inodes: the inodes of the buffers of the job's frame; empty: unknown.
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
        """
        Return whether a release event may belong to an import of this node.

        :param recorded: whether imports from before the recording are left out.
        """
        imports = self._of_handle.get(event.number('handle'), ())
        return any(event.inode in one.left and not (recorded and one.earlier) for one in imports)

    def release(self, event: KernelEvent) -> None:
        """
        Record that the driver has released one buffer; :meth:`holds` must be true for *event*.

        If several imports have the event's handle and buffer, the event counts for the oldest of
        them. The reason: the driver reuses handles and works on several threads. So the trace may
        show a new import with this handle first, and the release of the old import after it.
        """
        self._growing.pop(event.tid, None)
        if event.tid == self._last_tid:
            self.last = None
        found = next(
            one for one in self._of_handle[event.number('handle')] if event.inode in one.left
        )
        found.left.discard(event.inode)
        if found.left:
            return
        found.released_ns = event.time_ns
        self._alive.discard(found)
        self._given_back.add(frozenset(found.image))
        if not self._alive and len(self._given_back) > 1:
            self.clearings.append(
                (event.time_ns, frozenset(self._given_back), frozenset(self._used))
            )

    def cleared_ns(self, since_ns: int) -> int:
        """
        Return the first time after *since_ns* at which the node cleared its cache; 0: never.

        A node clears its cache when it opens the card again, or when the same frames come through
        a new connection to the capture node. The node then releases all imports, and imports the
        buffers of all frames again. A cache that only drops imports that it no longer needs never
        releases all imports at once.
        """
        last_ns = {frozenset(one.image): one.begin_ns for one in self.imports}
        for time_ns, given_back, used in self.clearings:
            if time_ns >= since_ns and all(
                image in given_back or last_ns.get(image, 0) < time_ns for image in used
            ):
                return time_ns
        return 0


def _needed(
    cached: Sequence[Import], table: ImportTable, since_ns: int, attached: Collection[int]
) -> list[Import]:
    """
    Select the imports that a node with a cache needs; all its other imports are surplus.

    The node needs the first import of each image. After it has cleared its cache
    (:meth:`ImportTable.cleared_ns`), it needs each image's first import again. An image is the set
    of buffers that one handle stands for.

    :param cached: the node's imports in the measured time.
    :param since_ns: when the measured time began.
    :param attached: the buffers that were attached to the card when the measured time began; their
        images are imported already.
    """
    cleared_ns = table.cleared_ns(since_ns)
    made = {
        (frozenset(one.image), False)
        for one in (*table.earlier, *table.imports)
        if one.alive_at(since_ns)
    }
    needed = []
    for one in cached:
        key = frozenset(one.image), 0 < cleared_ns < one.begin_ns
        if key not in made and (key[1] or not one.image <= set(attached)):
            needed.append(one)
        made.add(key)
    return needed


def _without_refused(unread: Sequence[Import], node: NodeView) -> list[Import]:
    """Return *unread* (imports that no job read) without those for jobs that the card refused."""
    left = list(unread)
    for record in node.records:
        if record.kind == RecordKind.FAILED and not record.submitted_ns:
            span = range(record.published_ns - _SLACK_NS, record.done_ns + _SLACK_NS + 1)
            own = [one for one in left if one.image == set(record.inodes) and one.begin_ns in span]
            if own:
                left.remove(max(own, key=lambda one: one.begin_ns))
    return left


def _kept(node: NodeView, table: ImportTable) -> int:
    """
    Count the imports that a node without a cache had not released at the end of the trace.

    Imports for the last ``_GRACE_FRAMES`` frames don't count.
    """
    done = sorted(record.done_ns for record in node.records if record.submitted_ns)
    if len(done) <= _GRACE_FRAMES:
        return 0
    return sum(
        0 < one.done_ns <= done[-_GRACE_FRAMES - 1] and not one.released_ns
        for one in table.imports
    )


_IMPORTS_DIFFER = (
    'check whether the camera allocates new buffers for every frame (new inodes); if it does not, '
    'check whether parameter import_cache has the value that you want'
)
_IMPORTS_KEPT = (
    'look at release_errors in /diagnostics of the inference node, and at dmesg; '
    'if they show no reason, set import_cache to true and report the fault'
)
_SUBMITS_DIFFER = (
    'look for other programs that use the card, and for lost frames in '
    '/diagnostics of the inference node'
)


class ImportFollowing:
    """
    Counts the imports, releases and jobs of a trace, and the frames to which they belong.

    The object has one :class:`ImportTable` for each node that imports frames, and one for the
    imports of all other programs. Except for *unreadable* and *unknown*, its values are numbers of
    frames, jobs or imports in the measured time.

    :param found: the history of the attachments of each frame's buffer, by the buffer's inode.
    :ivar unreadable: why the trace could not be used; empty: it was used.
    :ivar submitted: submitted frames in the nodes' logs.
    :ivar kernel_submits: jobs of the nodes in the driver's events.
    :ivar unknown_jobs: jobs without a frame, in processes whose nodes ran until the end of the
        measured time; *missing_jobs*: frames without a job.
    :ivar foreign: frames whose buffer was not imported, or that were submitted with the handle of
        another buffer's import.
    :ivar own_imports: frames that were submitted with their own import.
    :ivar earlier_imports: frames that were submitted with an import from before the recording. The
        trace doesn't tell which buffer the handle of such an import stands for.
    :ivar shared_imports: frames that had no import of their own, though their node has no cache.
    :ivar imports: imports of frame buffers; an image in several buffers counts once.
    :ivar new_buffers: buffers that nodes with a cache imported for the first time.
    :ivar surplus: imports that were not needed, because the node's cache had the buffer already.
    :ivar unused: imports that no job read, of nodes without a cache; *kept*: imports of such nodes
        that were not yet released at the end of the trace, though their frames were done long ago.
    :ivar confirmed: frames whose job's fence was found in their own buffers; *elsewhere*: frames
        whose job's fence was found in another buffer instead.
    :ivar unsure_handles: handles from before the recording for which no frame was confirmed.
    :ivar unknown: facts that are not known, each with the user's next step.
    """

    def __init__(self, seen: Observation, found: Mapping[int, History]) -> None:
        self._seen, self._found = seen, found
        self._nodes = [node for node in seen.inference_nodes() if node.imports]
        self.submitted = self.kernel_submits = self.unknown_jobs = self.missing_jobs = 0
        self.foreign = self.own_imports = self.earlier_imports = self.shared_imports = 0
        self.imports = self.releases = self.new_buffers = self.surplus = self.unused = (
            self.kept
        ) = 0
        self.confirmed = self.elsewhere = self.unsure_handles = 0
        self.unknown: list[tuple[str, str]] = []
        self._owners = JobOwners(self._nodes, seen)
        self._tables = [ImportTable() for _ in self._nodes]
        self._others = ImportTable()
        self._shared: Counter[int] = (
            Counter()
        )  # for each node: how many frames in the measured time had no import of their own
        images = {
            record.inodes for node in self._nodes for record in node.records if record.submitted_ns
        }
        self._images = {frozenset(image) for image in images}
        self._frame_inodes = {inode for image in images for inode in image}
        # The processes of nodes that ended in the measured time. Such a node has submitted jobs
        # that its log doesn't have, so these jobs don't count as unknown.
        self._cut = {node.pid for node in seen.nodes if node.ended_ns}
        # Each job, the import that it reads, and whether its frame was submitted in the measured
        # time.
        self._jobs: list[tuple[FrameJob, Import, bool]] = []
        self._strangers: set[int] = set()
        self._owner_of_fence: dict[tuple[int, int], int] = {}
        self._completed: dict[
            int, int
        ] = {}  # key: a driver's thread id; value: the node whose job this thread completed last
        self.unreadable = self._why_not()
        if not self.unreadable and seen.trace is not None:
            every = (name for driver in traced().drivers.values() for name in driver.names)
            self._follow(seen.trace.named(*every))

    def _why_not(self) -> str:
        drivers = traced().drivers
        absent = [
            event
            for name in dict.fromkeys(node.accelerator for node in self._nodes)
            for event in drivers[name].names
            if event not in (drivers[name].completed, *self._seen.event_sources)
        ]
        if absent or self._seen.trace is None:
            return f'{", ".join(absent) or "the trace"} could not be recorded'
        if any(not node.after.get('pci_address') for node in self._nodes):
            return 'a node does not report its device: its imports before the trace are not known'
        return ''

    def _follow(self, events: Sequence[KernelEvent]) -> None:
        """Process all events in order, then sum up what was found for each node."""
        named = traced()
        for event in events:
            pid = self._seen.process_of.get(event.tid, -1)
            if event.name in named.released:
                self._release(pid, event)
            elif event.name in named.completed:
                fence = event.number('ctx'), event.number('seqno')
                self._completed[event.tid] = self._owner_of_fence.get(fence, -1)
            elif pid in self._owners.pids:
                (self._import if event.name in named.imported else self._submit)(pid, event)
            elif event.name in named.imported:
                self._others.begin(event)
        self._look_at_fences()
        for index, node in enumerate(self._nodes):
            self._weigh(index, node)

    def _import(self, pid: int, event: KernelEvent) -> None:
        owners = self._owners.of_import(pid, event)
        # Each node opens the card's file itself, and one open file never has two imports with the
        # same handle at a time. So a node that still has an import with this handle didn't make
        # the new import.
        new = [owner for owner in owners if not self._tables[owner].holds(event)]
        for owner in (new or owners)[:1]:
            self._tables[owner].begin(event)

    def _submit(self, pid: int, event: KernelEvent) -> None:
        inside = self._seen.within(event.time_ns)
        owner, record = self._owners.of_job(event)
        self.kernel_submits += inside
        if owner is not None:
            self._owner_of_fence[event.number('ctx'), event.number('seqno')] = owner
            used = self._tables[owner].submit(event, record.inodes if record is not None else ())
            if record is not None:
                of_window = self._seen.within(record.submitted_ns)
                self._jobs.append(
                    (
                        FrameJob(event.time_ns, event.number('seqno'), frozenset(record.inodes)),
                        used,
                        of_window,
                    )
                )
                used.done_ns = record.done_ns if record.kind == RecordKind.PROCESSED else 0
                if of_window:
                    self._judge(owner, record, used)
                return
        self._strangers.add(event.number('seqno'))
        self.unknown_jobs += inside and pid not in self._cut

    def _judge(self, owner: int, record: FrameRecord, used: Import) -> None:
        """
        Count a frame in ``foreign`` if its job read an import of other buffers.

        *used* is the import that the frame's job read. Also count the frame in ``own_imports`` if
        no earlier job read this import. This is called while the job's event is processed, because
        later events change *used*.
        """
        wanted = set(record.inodes)
        known = bool(wanted) and wanted <= used.left
        if used.earlier:
            device = str(self._nodes[owner].after.get('pci_address', ''))
            attached = all(
                inode in self._found and self._found[inode].states[0][device] > 0
                for inode in wanted
            )
            known = bool(wanted) and attached and not used.released_ns
            self.earlier_imports += 1
            used.frames[frozenset(wanted)] += known
        self.foreign += not known
        if used.submits == 1 and not used.earlier:
            self.own_imports += 1
        else:
            self._shared[owner] += 1

    def _release(self, pid: int, event: KernelEvent) -> None:
        """Record a release event, which often comes from one of the driver's own threads."""
        self.releases += self._seen.within(event.time_ns) and event.inode in self._frame_inodes
        last = self._completed.get(event.tid, -1)
        if pid in self._owners.pids:
            holding = [
                owner
                for owner in self._owners.of_thread(pid, event.tid)
                if self._tables[owner].holds(event)
            ]
        else:
            # Another program may have imported the same buffer with the same handle number. So
            # only one node may own the released import if the import is from before the recording:
            # the node whose job this thread of the driver completed last.
            holding = [
                owner
                for owner, table in enumerate(self._tables)
                if table.holds(event, recorded=owner != last)
            ]
            if self._others.holds(event) and last not in holding:
                self._others.release(event)
                return
        if holding:
            owner = (
                last
                if last in holding
                else min(holding, key=lambda owner: self._nodes[owner].cached)
            )
            self._tables[owner].release(event)

    def _look_at_fences(self) -> None:
        """Check by the fences in the buffers whether each job has read its own frame's buffers."""
        users: defaultdict[int, set[int]] = defaultdict(set)
        for node in self._nodes:
            for record in node.records:
                users[record.device_seqno].update(record.inodes)
        for job, _, _ in self._jobs:
            users[job.seqno] |= job.inodes
        trace = self._seen.trace
        drivers = (
            drivers_of(self._owner_of_fence.keys(), trace.named(*FENCES))
            if trace is not None
            else set()
        )
        places = find_fences(
            [job for job, _, _ in self._jobs],
            users,
            self._strangers,
            self._seen.snapshots,
            drivers,
        )
        of_window = {index for index, (_, _, inside) in enumerate(self._jobs) if inside}
        self.confirmed = len(places.own & of_window - places.elsewhere)
        self.elsewhere = len(places.elsewhere & of_window)
        sure = {id(self._jobs[index][1]) for index in places.own}
        self.unsure_handles = sum(
            id(one) not in sure for table in self._tables for one in table.earlier
        )

    def _attached(self, node: NodeView) -> set[int]:
        """
        Return the buffers that were attached to the node's card when the measured time began.

        Each node that uses a buffer with this card makes its own attachment. If fewer attachments
        of a buffer were found than nodes that use it with this card, the buffer is left out.
        """
        device = str(node.after['pci_address'])
        users = [
            one
            for one, other in enumerate(self._nodes)
            if str(other.after.get('pci_address')) == device
        ]
        return {
            inode
            for inode, history in self._found.items()
            if history.at(self._seen.start_ns)[device]
            >= sum(self._owners.uses(one, inode) for one in users)
        }

    def _weigh(self, index: int, node: NodeView) -> None:
        """Count a node's imports in the measured time; only imports of frames' buffers count."""
        seen, table = self._seen, self._tables[index]
        self.submitted += sum(
            seen.within(record.submitted_ns) for record in node.records if record.submitted_ns
        )
        self.missing_jobs += sum(
            seen.within(record.submitted_ns) for record in self._owners.unmatched[index]
        )
        of_window = [
            one
            for one in table.imports
            if seen.within(one.begin_ns) and not one.image.isdisjoint(self._frame_inodes)
        ]
        self.imports += len(of_window)
        # The image of an import from before the recording is not known. But an import has only one
        # image, so it is an error if frames with different images were submitted with it.
        self.foreign += sum(one.frames.total() for one in table.earlier if len(one.frames) > 1)
        if node.before.get('import_cache', node.cached) != node.cached:
            self.unknown.append(
                (
                    f'parameter import_cache of {node} changed during the measurement',
                    'measure once more, and do not change the parameter',
                )
            )
            return
        trials, surplus, unused = max(0, node.grown('trial_imports')), 0, 0
        if node.cached:
            needed = [
                one
                for one in _needed(of_window, table, seen.start_ns, self._attached(node))
                if one.image in self._images
            ]
            self.new_buffers += sum(len(one.image) for one in needed)
            # If the node has more images than its cache keeps, the cache removes images and
            # imports them again. These repeated imports are not surplus.
            own = {frozenset(record.inodes) for record in node.records if record.submitted_ns}
            again = max(0, len(own) - traced().drivers[node.accelerator].kept)
            surplus = max(0, len(of_window) - len(needed) - again - trials)
        else:
            self.shared_imports += self._shared[index]
            unread = _without_refused(
                [one for one in of_window if not one.submits and one is not table.last], node
            )
            unused = len(unread) - min(sum(one.released_ns > 0 for one in unread), trials)
        if not node.counted:
            return
        self.kept += 0 if node.cached else _kept(node, table)
        self.surplus += surplus
        self.unused += unused

    def problems(self) -> list[tuple[str, str]]:
        """Return the violations of invariant I3, each with advice for the user."""
        drivers = traced().drivers
        steps = dict.fromkeys(drivers[node.accelerator].unimported for node in self._nodes)
        not_imported = '; '.join(steps)
        jobs = (
            f'{self.unknown_jobs} jobs of the driver belong to no logged frame, '
            f'{self.missing_jobs} logged frames have no job'
        )
        found = [
            (
                self.foreign,
                f'{self.foreign} frames were submitted whose buffer was not imported',
                not_imported,
            ),
            (
                self.elsewhere,
                f'{self.elsewhere} frames were submitted, but the fences of their jobs are in '
                'other buffers, which the device read in place of the frames',
                not_imported,
            ),
            (
                self.kept,
                (
                    f'{self.kept} imports were not released, though their frames were finished '
                    'and the cache is off'
                ),
                _IMPORTS_KEPT,
            ),
            (
                self.surplus,
                f'buffers were imported without need {self.surplus} times, though the cache is on',
                _IMPORTS_DIFFER,
            ),
            (
                self.unused,
                (
                    f'{self.unused} imports were for no frame; '
                    'with the cache off, each import must be for a frame'
                ),
                _IMPORTS_DIFFER,
            ),
            (
                self.shared_imports,
                (
                    f'{self.shared_imports} frames had no import of their own, '
                    'though the cache is off'
                ),
                _IMPORTS_DIFFER,
            ),
            (self.unknown_jobs + self.missing_jobs, jobs, _SUBMITS_DIFFER),
        ]
        return [(reason, step) for count, reason, step in found if count]

    def figures(self) -> dict[str, Any]:
        """Return the figures for ``result.json``."""
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
            'import_cache': {node.node: node.cached for node in self._nodes},
            'not_seen': self._not_seen(),
        }

    def _not_seen(self) -> list[str]:
        """List the facts that can't be checked, because no source reports them."""
        told = [
            (
                "the offsets and strides of the planes in an imported buffer: the driver's events "
                'do not have them'
            )
        ]
        if self.unsure_handles:
            told.append(
                f'the buffers of {self.unsure_handles} import handles that were made before the '
                'recording: no fence of their jobs was found in a buffer'
            )
        return told
