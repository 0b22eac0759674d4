"""Follows the driver's imports, releases and submits through a trace, and compares them with the frames of the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zc_perception.observe.frame_log_layout import FrameRecord
from zc_perception.verify.evidence.attachments import History
from zc_perception.verify.evidence.kernel_event import KernelEvent
from zc_perception.verify.evidence.kernel_recording import COMPLETE, IMPORT, RELEASE, SUBMIT
from zc_perception.verify.failure_modes import advice
from zc_perception.verify.import_need import weigh
from zc_perception.verify.import_table import Import, ImportTable
from zc_perception.verify.job_owners import JobOwners
from zc_perception.verify.observation import IMPORTING, NodeView, Observation


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
    :ivar surplus: imports of nodes with a cache that were not needed; *unused*: of nodes without one, that no job read.
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
    uncounted: list[str] = field(default_factory=list)
    caches: dict[str, bool] = field(default_factory=dict)

    def problems(self) -> list[tuple[str, str]]:
        """What speaks against the invariant, with its next step."""
        found = []
        if self.foreign:
            found.append((f'{self.foreign} frames were submitted whose buffer was not imported', advice('not_imported')))
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
            'import_cache': self.caches,
        }


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
                if self._seen.within(record.submitted_ns):
                    self._judge(owner, record, used)
                return
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
        """Often by the driver's own thread, behind the job that read it last."""
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

    def _conclude(self) -> None:
        result, seen = self._result, self._seen
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
            if need.surplus + need.unused and not {'trial_imports', 'import_cache'} <= node.before.keys() & node.after.keys():
                result.uncounted.append(str(node))
                continue
            result.surplus += need.surplus
            result.unused += need.unused
