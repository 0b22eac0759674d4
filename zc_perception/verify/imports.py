"""Follows the driver's imports, releases and submits through a trace, and compares them with the frames of the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zc_perception.observe.frame_log_layout import FrameRecord
from zc_perception.verify.evidence.attachments import History
from zc_perception.verify.evidence.kernel_event import KernelEvent
from zc_perception.verify.evidence.kernel_recording import IMPORT, RELEASE, SUBMIT
from zc_perception.verify.failure_modes import advice
from zc_perception.verify.observation import IMPORTING, NodeView, Observation

_Job = tuple[int, int, int]  # pid, handle, seqno


@dataclass
class ImportFollowing:
    """What came of it.

    :ivar unreadable: why it could not be followed; empty: it was.
    :ivar submitted: frames of the nodes' logs in the window.
    :ivar kernel_submits: the driver's jobs in the window, of the nodes.
    :ivar unknown_jobs: jobs that are no node's frame, of processes whose nodes lasted; *missing_jobs*: frames without a job.
    :ivar foreign: frames whose buffer was not imported, or whose handle is another buffer's.
    :ivar own_imports: frames that were submitted by an import of their own.
    :ivar shared_imports: frames of nodes without a cache that were not.
    :ivar imports: in the window, of frame buffers; an image in several buffers is one.
    :ivar new_buffers: of nodes with a cache: handles' worth of buffers that the device did not have when the window began.
    :ivar surplus: imports of nodes with a cache that were not needed.
    """

    unreadable: str = ''
    submitted: int = 0
    kernel_submits: int = 0
    unknown_jobs: int = 0
    missing_jobs: int = 0
    foreign: int = 0
    own_imports: int = 0
    shared_imports: int = 0
    imports: int = 0
    releases: int = 0
    new_buffers: int = 0
    surplus: int = 0
    caches: dict[str, bool] = field(default_factory=dict)

    def problems(self) -> list[tuple[str, str]]:
        """What speaks against the invariant, with its next step."""
        found = []
        if self.foreign:
            found.append((f'{self.foreign} frames were submitted whose buffer was not imported', advice('not_imported')))
        if self.surplus:
            found.append((f'buffers were imported {self.surplus} times more often than the cache needs', advice('imports_differ')))
        if self.shared_imports:
            found.append((f'{self.shared_imports} frames had no import of their own, though the cache is off', advice('imports_differ')))
        if self.unknown_jobs or self.missing_jobs:
            told = f'{self.unknown_jobs} jobs of the driver are no frame of a node, {self.missing_jobs} frames have no job'
            found.append((told, advice('submits_differ')))
        return found

    def figures(self) -> dict[str, Any]:
        """For ``result.json``."""
        return {
            'frames': self.submitted,
            'kernel_submits': self.kernel_submits,
            'imports': self.imports,
            'releases': self.releases,
            'new_buffers': self.new_buffers,
            'frames_with_own_import': self.own_imports,
            'frames_not_imported': self.foreign,
            'import_cache': self.caches,
        }


class _Handles:
    """What is imported, by process and handle: which buffers, and whether a frame was submitted by it already."""

    def __init__(self) -> None:
        self.inodes: dict[tuple[int, int], set[int]] = {}
        self._used: set[tuple[int, int]] = set()
        self._last: tuple[int, int, int] = (-1, -1, -1)

    def imported(self, pid: int, event: KernelEvent) -> bool:
        """Whether it begins an import; else it is another buffer of the same image."""
        key = (pid, event.number('handle'))
        continues = self._last[:2] == key and event.inode not in self.inodes.get(key, ())
        if not continues:
            self.inodes[key] = set()
            self._used.discard(key)
        self.inodes[key].add(event.inode)
        self._last = (*key, event.inode)
        return not continues

    def released(self, pid: int, event: KernelEvent) -> None:
        # In the order of the driver's threads the next import may come first: then the handle is another one already.
        self.inodes.get((pid, event.number('handle')), set()).discard(event.inode)
        self._last = (-1, -1, -1)

    def submitted(self) -> None:
        self._last = (-1, -1, -1)

    def takes_new(self, pid: int, handle: int) -> bool:
        """Whether this is the first submit of an import that was seen."""
        key = (pid, handle)
        fresh = key in self.inodes and key not in self._used
        self._used.add(key)
        return fresh


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
    pids = {node.pid for node in nodes}
    # A node that ends in the middle leaves jobs behind that it has noted nowhere.
    cut = {node.pid for node in seen.nodes if node.ended_ns}
    jobs, windowed = _jobs(nodes, seen)
    result.submitted = sum(windowed.values())
    frame_inodes = {inode for node, record in jobs.values() for inode in record.inodes}
    handles = _Handles()
    matched: Counter[_Job] = Counter()
    imported: Counter[int] = Counter()
    old: dict[tuple[int, int], Counter[frozenset[int]]] = {}
    for event in seen.trace.named(IMPORT, RELEASE, SUBMIT):
        pid = seen.process_of.get(event.tid, -1)
        inside = seen.within(event.time_ns)
        if event.name == RELEASE:
            # Often by the driver's own thread.
            for owner in pids if pid not in pids else (pid,):
                if event.inode in handles.inodes.get((owner, event.number('handle')), ()):
                    handles.released(owner, event)
            result.releases += inside and event.inode in frame_inodes
            continue
        if pid not in pids:
            continue
        if event.name == IMPORT:
            begins = handles.imported(pid, event)
            if inside and event.inode in frame_inodes:
                result.imports += begins
                imported[event.inode] += 1
            continue
        handles.submitted()
        job = (pid, event.number('handle'), event.number('seqno'))
        fresh = handles.takes_new(*job[:2])
        matched[job] += 1
        result.kernel_submits += inside
        if job not in jobs:
            result.unknown_jobs += inside and pid not in cut
            continue
        node, record = jobs[job]
        if windowed.get(job):
            _judge(result, node, record, fresh, handles.inodes.get(job[:2]), found)
            if job[:2] not in handles.inodes:
                old.setdefault(job[:2], Counter())[frozenset(record.inodes)] += 1
    # What was imported before the recording began is not known, but each of these handles stands for one image only.
    result.foreign += sum(sum(images.values()) for images in old.values() if len(images) > 1)
    result.missing_jobs = sum(count for job, count in windowed.items() if not matched[job])
    _count_cached(result, nodes, seen, found, imported)
    return result


def _jobs(nodes: list[NodeView], seen: Observation) -> tuple[dict[_Job, tuple[NodeView, FrameRecord]], Counter[_Job]]:
    """All submitted frames by job, and which of them belong to the window."""
    jobs = {}
    windowed: Counter[_Job] = Counter()
    for node in nodes:
        for record in node.records:
            if record.submitted_ns:
                job = (node.pid, record.device_handle, record.device_seqno)
                jobs[job] = (node, record)
                windowed[job] += seen.within(record.submitted_ns)
    return jobs, windowed


def _judge(
    result: ImportFollowing, node: NodeView, record: FrameRecord, fresh: bool, inodes: set[int] | None, found: Mapping[int, History]
) -> None:
    """One frame, at the moment of its submit."""
    wanted = set(record.inodes)
    if inodes is None:  # imported before the recording began
        device = str(node.after.get('pci_address', ''))
        known = all(inode in found and found[inode].states[0][device] > 0 for inode in wanted)
    else:
        known = wanted <= inodes
    result.foreign += not known
    result.own_imports += fresh
    if not node.cached:
        result.shared_imports += not fresh


def _count_cached(
    result: ImportFollowing, nodes: list[NodeView], seen: Observation, found: Mapping[int, History], imported: Counter[int]
) -> None:
    """How often buffers were imported that need it once."""
    needed: set[int] = set()
    buffers = 1
    for node in nodes:
        if not node.cached:
            continue
        device = str(node.after.get('pci_address', ''))
        for record in seen.submitted(node):
            buffers = max(buffers, len(record.inodes))
            needed |= {inode for inode in record.inodes if inode in found and not found[inode].at(seen.start_ns)[device]}
    result.new_buffers = len(needed)
    if nodes and all(node.cached and node.counted for node in nodes):
        trials = sum(node.grown('trial_imports') for node in nodes)
        result.surplus = max(0, sum(imported.values()) - len(needed) - buffers * trials)
