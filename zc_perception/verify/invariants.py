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
Check the four invariants that ``docs/verify.md`` states.

Each check is a pure function of an observation. Its result is false if any evidence shows a
violation; else unknown if a source could not be read, or if no frames flowed; else true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zc_perception.npu.kinds import traced
from zc_perception.observe.processes import as_root
from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence.buffers import event_history, History, polled_history, UDMABUF
from zc_perception.verify.evidence.copies import LARGE
from zc_perception.verify.evidence.kernel_events import ATTACH, DETACH, FUNCTION, MMAP, VIDEO_MMAP
from zc_perception.verify.imports import ImportFollowing
from zc_perception.verify.observation import CAPTURE, NodeView, Observation

#: The exporters whose buffers devices can import: Jetson's, the dma-heaps', V4L2's and udmabuf's.
KNOWN_EXPORTERS = (
    'nvmap',
    'tegra-buf',
    'system',
    'linux,cma',
    'reserved',
    'default_cma_region',
    'videobuf2_dma_contig',
    'videobuf2_dma_sg',
    'videobuf2_vmalloc',
    'udmabuf',
)
_SHOWN = 20
_NO_FRAMES = (
    'look at /diagnostics of the nodes: does the camera give frames, and does the inference node '
    'get them? Measure longer (--seconds); '
    'activate or enable an inactive node, or name the processes of all nodes with --pid'
)
_NOT_A_DMABUF = (
    "let the capture node use dma-bufs (parameter heap: dma_heap/…, or the camera's own "
    'buffers); zc_doctor lists the heaps'
)
_WAS_MAPPED = (
    'find the process by the events in trace.txt; it is a camera or consumer that calls map() on '
    'frames'
)
_LOST_EVENTS = 'measure for a shorter time, or stop other programs that use a GPU or a camera'


@dataclass(frozen=True)
class Check:
    """
    The result of checking one invariant.

    :ivar holds: whether the invariant holds; ``None``: not known.
    :ivar source: the sources of the evidence.
    :ivar figures: the measured values: numbers, lists and texts that JSON can hold.
    :ivar reason: one sentence that says why the invariant does not hold or is not known; empty if
        it holds.
    :ivar next_step: what the user can do about the reason.
    """

    name: str
    title: str
    holds: bool | None
    source: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ''
    next_step: str = ''

    @property
    def measured(self) -> bool:
        """Whether the result is true or false, not unknown."""
        return self.holds is not None

    def as_json(self) -> dict[str, Any]:
        """Return this check as a dictionary for ``result.json``."""
        own = {
            'holds': self.holds,
            'measured': self.measured,
            'source': self.source,
            'reason': self.reason,
            'next_step': self.next_step,
        }
        return {**own, **self.figures}


@dataclass
class Findings:
    """
    Collects the evidence against one invariant, and makes the check's result.

    :ivar broken: violations, each a pair of reason and next step. If there is any, the check is
        false.
    :ivar unknown: facts that are not known, each also a pair of reason and next step. If there is
        any, and no violation, the check is unknown.
    """

    broken: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)

    def breaks(self, reason: str, next_step: str) -> None:
        """Record a violation of the invariant."""
        self.broken.append((reason, next_step))

    def unsure(self, reason: str, next_step: str) -> None:
        """Record why it is not known whether the invariant holds."""
        self.unknown.append((reason, next_step))

    def conclude(self, name: str, title: str, source: str, figures: Mapping[str, Any]) -> Check:
        """Return the check's result, with all reasons and next steps joined."""
        if self.broken:
            holds: bool | None = False
        else:
            holds = None if self.unknown else True
        told = self.broken or self.unknown
        steps = list(dict.fromkeys(step for _, step in told if step))
        return Check(
            name,
            title,
            holds,
            source,
            figures,
            '; '.join(dict.fromkeys(reason for reason, _ in told)),
            '; '.join(steps),
        )


def histories(seen: Observation) -> dict[int, History]:
    """Return each frame buffer's attachments over time, from events, else from snapshots."""
    return {
        inode: event_history(inode, seen.snapshots, seen.trace.events)
        if seen.trace is not None and attachments_are_recorded(seen)
        else polled_history(inode, seen.snapshots)
        for inode in sorted(seen.frame_inodes())
    }


def attachments_are_recorded(seen: Observation) -> bool:
    """Return whether the trace has each attach and detach, with its buffer and device."""
    known = all(seen.event_sources.get(event, FUNCTION) != FUNCTION for event in (ATTACH, DETACH))
    return known and seen.trace is not None and not seen.trace.gap


def _frames(seen: Observation, findings: Findings) -> None:
    """Record why the check can't tell: nodes without frames, ended nodes, lost records."""
    nodes = seen.inference_nodes()
    idle = [str(node) for node in nodes if not seen.submitted(node)]
    if idle or not nodes:
        by = f' by {", ".join(idle)}' if idle else ''
        findings.unsure(f'no frame was submitted to a device in the measured time{by}', _NO_FRAMES)
    silent = [str(node) for node in nodes if not node.accelerator]
    if silent:
        findings.unsure(f'no accelerator is open in {", ".join(silent)}', _NO_FRAMES)
    ended = [str(node) for node in seen.nodes if node.ended_ns]
    if ended:
        findings.unsure(
            f'{", ".join(ended)} ended while it was measured',
            'see the log of each ended node, start the node again, and measure while it runs',
        )
    _unread(seen, findings, 'frame log')
    if seen.lost_records:
        told = f'records of {seen.lost_records} frames were overwritten before they were read'
        findings.unsure(told, 'measure at a lower frame rate, or on a machine with less load')


def _unread(seen: Observation, findings: Findings, *topics: str) -> bool:
    for one in seen.why(*topics):
        findings.unsure(f'{one.source}: {one.reason}', one.next_step)
    return bool(seen.why(*topics))


def _counters(seen: Observation, findings: Findings) -> None:
    """Make the check's result unknown if a node wrote no counters after the measured time."""
    stale = [str(node) for node in seen.nodes if not node.described and not node.ended_ns]
    if stale:
        step = (
            "look for what blocks the node's callbacks (its /diagnostics are missing as well), "
            'and measure once more'
        )
        findings.unsure(
            f'{", ".join(stale)} did not write its counters after the measured time', step
        )


def _bystanders(seen: Observation, findings: Findings) -> None:
    """Record a violation for each node whose accelerator doesn't import frames."""
    for node in seen.inference_nodes():
        if node.accelerator and not node.imports:
            reason = (
                f"node {node.node} has the accelerator '{node.accelerator}', which "
                'imports no frames'
            )
            others = ' or '.join(f"'{name}'" for name in traced().drivers)
            step = (
                f'use accelerator {others} with a driver that has the import ioctls; the '
                "inference node's diagnostics (why_no_better) say why 'accelerator: auto' chose "
                'another accelerator'
            )
            findings.breaks(reason, step)


def check_attached(seen: Observation) -> Check:
    """Check I1: when a frame is submitted, its buffers are attached to the NPU's device."""
    findings = Findings()
    found = histories(seen) if seen.snapshots else {}
    events = attachments_are_recorded(seen)
    missing: Counter[int] = Counter()
    unsure: Counter[int] = Counter()
    attached = 0
    _frames(seen, findings)
    if not seen.snapshots:
        _unread(seen, findings, 'bufinfo')
    else:
        _bystanders(seen, findings)
        for node, record in seen.all_submitted():
            device = str(node.after.get('pci_address', ''))
            if not node.imports:
                continue
            if not device:
                step = 'look for the card in /sys/bus/pci/devices; zc_doctor checks it'
                findings.unsure(f"node {node.node} does not report its device's address", step)
                continue
            absent = [
                inode
                for inode in record.inodes
                if not found[inode].at(record.submitted_ns)[device]
            ]
            attached += not absent
            for inode in absent:
                # The device is certainly not attached if the buffer's History is exact, or if the
                # buffer is not a dma-buf.
                sure = found[inode].exact or inode not in seen.dmabufs
                (missing if sure else unsure)[inode] += 1
        memory = {inode for device, inode in seen.memfds}
        for inode in missing:
            step = (
                'look for /dmabuf: lines in /proc/PID/maps of the inference node: they show that '
                "the CPU reads frames; the accelerator must import the camera's own descriptors"
            )
            step = _NOT_A_DMABUF if inode in memory and inode not in seen.dmabufs else step
            findings.breaks(
                (
                    f'the device was not attached to buffers of {sum(missing.values())} submitted '
                    'frames'
                ),
                step,
            )
        if unsure:
            findings.unsure(
                'attachments were only read from time to time, and were missing in some readings',
                _newer(seen),
            )
    figures = {
        'frames': len(seen.all_submitted()),
        'frames_attached': attached,
        'devices': sorted(
            {str(node.after.get('pci_address', '')) for node in seen.inference_nodes()} - {''}
        ),
        'attached': {
            str(inode): dict(history.at(seen.end_ns)) for inode, history in found.items()
        },
        'not_attached_inodes': sorted(missing),
        'exact': events and all(history.exact for history in found.values()),
        'looks': len(seen.snapshots),
    }
    source = (
        f'frame log, bufinfo, {seen.event_sources[ATTACH]} {ATTACH}'
        if events
        else 'frame log, bufinfo'
    )
    return findings.conclude(
        'I1', "the NPU's device is attached to every submitted frame", source, figures
    )


def _newer(seen: Observation) -> str:
    steps = [one.next_step for one in seen.why('trace')]
    return steps[0] if steps else _LOST_EVENTS


def check_exporters(seen: Observation, known: Collection[str] = KNOWN_EXPORTERS) -> Check:
    """Check I2: each frame's buffer has an exporter that is in *known*."""
    findings = Findings()
    _frames(seen, findings)
    memory = {inode for _, inode in seen.memfds} - seen.dmabufs
    exporters: dict[int, str] = {}
    for inode in sorted(seen.frame_inodes()):
        name = 'memfd' if inode in memory else seen.exporters.get(inode, '')
        if name:
            exporters[inode] = name
        elif not _unread(seen, findings, 'exporters'):
            findings.unsure(
                f'the exporter of buffer {inode} could not be read',
                'measure longer: this buffer was freed before its exporter was read',
            )
        if name == 'memfd':
            findings.breaks('frames lie in memfds, which no device can import', _NOT_A_DMABUF)
        elif name and name not in known:
            step = (
                'in a pipeline of camera argus, set nvbuf-memory-type=4; if your devices can '
                'import from this exporter, name it with --known-exporter'
            )
            findings.breaks(
                f"exporter '{name}' is unknown; known are {', '.join(sorted(known))}", step
            )
    counts = Counter(exporters.values())
    figures = {
        'buffers': len(seen.frame_inodes()),
        'exporters': dict(counts),
        'known': sorted(known),
    }
    return findings.conclude(
        'I2', 'every frame buffer has a known exporter', 'frame log, bufinfo, fdinfo', figures
    )


def check_imports(seen: Observation) -> Check:
    """Check I3: a frame's buffers are imported before its submission; each job has a frame."""
    findings = Findings()
    _frames(seen, findings)
    following = None
    if seen.trace is None or not seen.snapshots:
        _unread(
            seen,
            findings,
            *(('trace',) if seen.trace is None else ()),
            *(() if seen.snapshots else ('bufinfo',)),
        )
        if not findings.unknown:
            findings.unsure("the kernel's events were not recorded", as_root())
    else:
        _bystanders(seen, findings)
        following = ImportFollowing(seen, histories(seen))
        if following.unreadable:
            _unread(seen, findings, 'trace')
            findings.unsure(following.unreadable, _newer(seen))
        elif seen.trace.gap:
            findings.unsure(seen.trace.gap, _LOST_EVENTS)
        else:
            findings.broken += following.problems()
            findings.unknown += following.unknown
            _counters(seen, findings)
    figures = following.figures() if following is not None else {}
    events = traced()
    names = sorted(events.imported | events.released | events.submitted)
    source = f'frame log, tracepoints {", ".join(names)}, bufinfo'
    return findings.conclude(
        'I3',
        "every submitted buffer was imported, as often as parameter 'import_cache' requires",
        source,
        figures,
    )


def check_copies(seen: Observation) -> Check:
    """Check I4: no process maps a frame, and no node copies a frame or counts a copy."""
    findings = Findings()
    _frames(seen, findings)
    if seen.mappings:
        names = ', '.join(sorted({f'process {one.pid}' for one in seen.mappings}))
        step = (
            'end that program, or let it import frames instead of mapping them; if it is a node, '
            'remove the code that maps frames'
        )
        findings.breaks(f'frames are mapped by {names}', step)
    if (not seen.scans or seen.why('maps')) and not _unread(seen, findings, 'maps'):
        findings.unsure('/proc/PID/maps of some processes was not read', as_root())
    _unwatched(seen, findings)
    mapped = _mmap_events(seen, findings)
    _large_copies(seen, findings)
    booked = _booked_copies(seen.nodes, findings)
    _counters(seen, findings)
    figures = {
        'mappings': [str(one) for one in seen.mappings[:_SHOWN]],
        'scans': seen.scans,
        'mmap_events': len(mapped),
        'mmap_by': sorted({seen.process_of.get(event.tid, event.tid) for event in mapped})[
            :_SHOWN
        ],
        'memmove_calls': seen.copy_calls,
        'memmove_64k': None
        if seen.copies is None
        else sum(copy.count for copy in seen.copies if copy.size >= LARGE),
        'memmove_from_frames': None
        if seen.copies is None
        else sum(copy.count for copy in seen.copies if copy.from_frame),
        'ledger': booked,
        'sampled': [
            {
                'pid': share.pid,
                'samples': share.samples,
                'percent': round(share.percent, 2),
                'kernel': dict(share.kernel),
            }
            for share in seen.shares or ()
        ],
    }
    how = sorted(
        {seen.event_sources[event] for event in (MMAP, VIDEO_MMAP) if event in seen.event_sources}
    )
    probed = () if seen.copies is None else ('uprobe on memmove',)
    source = ', '.join(
        ['frame log', '/proc/*/maps', *(f'{way} of mmap' for way in how), *probed, 'copy ledger']
    )
    return findings.conclude('I4', 'no frame is mapped or copied by a CPU', source, figures)


def _unwatched(seen: Observation, findings: Findings) -> None:
    """Record that other nodes, or users of memfds, pipes or io_urings, may copy frames unseen."""
    unseen = seen.unseen_frames()
    if unseen and any(node.role == CAPTURE for node in seen.nodes):
        told = ', '.join(f'{count} frames that {node} got' for node, count in unseen.items())
        step = (
            "measure all nodes of the pipeline: name the capture node's process with --pid, too, "
            'or leave --pid out; if a node has no frame log, its own log says why'
        )
        findings.unsure(f'{told} come from a node that is not measured', step)
    made = any(
        seen.exporters.get(inode) == UDMABUF
        for _, record in seen.all_submitted()
        for inode in record.inodes
    )
    if made and seen.backing:
        told = (
            'frames are in udmabuf buffers, and these memfds may be the memory of these buffers; '
            'processes that have the memfds can then read the frames: '
            f'{"; ".join(seen.backing[:_SHOWN])}'
        )
        findings.unsure(
            told, 'end these processes, or let the camera use another heap (dma_heap/system)'
        )
    if seen.pins:
        told = f'pipes or io_urings may hold pages of frames: {"; ".join(seen.pins[:_SHOWN])}'
        findings.unsure(
            told,
            'end these processes, or the program that reads one of these pipes too slowly, and '
            'measure again',
        )


def _mmap_events(seen: Observation, findings: Findings) -> list[KernelEvent]:
    """Record what the trace tells about mappings; return the mappings in the measured time."""
    if seen.trace is None:
        _unread(seen, findings, 'trace')
        findings.unsure('short-lived mappings were not recorded', as_root())
        return []
    events = [
        event
        for event in seen.trace.named(MMAP, VIDEO_MMAP)
        if (seen.looked_ns or seen.start_ns) <= event.time_ns <= seen.end_ns
    ]
    found = [event for event in events if seen.within(event.time_ns) and _maps_frames(event, seen)]
    if any(
        event.name == MMAP and event.inode < 0 and event.tid in seen.process_of for event in events
    ):
        findings.unsure(
            'a node mapped a dma-buf, and this kernel does not report which dma-buf', _newer(seen)
        )
    if early := sum(
        _maps_frames(event, seen) for event in events if event.time_ns < seen.start_ns
    ):
        # These mappings were made after the first reading of all processes' maps and before the
        # measured time. They may have ended before the second reading.
        told = (
            f'frames were mapped {early} times just before the measured time; these mappings may '
            'have lasted into the measured time'
        )
        findings.unsure(
            told, 'find the process by the events in trace.txt and end it, or measure once more'
        )
    if found:
        findings.breaks(f'frames were mapped {len(found)} times', _WAS_MAPPED)
    if seen.any_camera and (
        others := [
            event
            for event in events
            if event.name == VIDEO_MMAP and event.tid not in seen.process_of
        ]
    ):
        told = (
            f'a video device was mapped {len(others)} times; it may be the camera of a node that '
            'does not report its device'
        )
        findings.unsure(told, _WAS_MAPPED)
    if MMAP not in seen.event_sources or (
        VIDEO_MMAP not in seen.event_sources and (seen.camera_rdevs or seen.lost_cameras)
    ):
        _unread(seen, findings, 'trace')
        findings.unsure('short-lived mappings were not recorded', _newer(seen))
    elif seen.trace.gap:
        findings.unsure(seen.trace.gap, _LOST_EVENTS)
    return found


def _maps_frames(event: KernelEvent, seen: Observation) -> bool:
    if event.name == MMAP:
        return event.inode in seen.dmabufs
    known = 'rdev' in event.fields and bool(seen.camera_rdevs) and not seen.lost_cameras
    return event.number('rdev') in seen.camera_rdevs or (
        event.tid in seen.process_of and not known
    )


def _large_copies(seen: Observation, findings: Findings) -> None:
    if seen.copies is None:
        _unread(seen, findings, 'memmove')
        findings.unsure(
            'large copies by the C library were not counted',
            '' if seen.why('memmove') else as_root(),
        )
        return
    _unread(seen, findings, 'memmove')
    step = (
        'frames that are converted, or that travel as messages, are copied; look at the values '
        'conversions and rung in /diagnostics'
    )
    for copy in seen.copies[:_SHOWN]:
        place = 'from a frame' if copy.from_frame else f'of {LARGE} bytes or more'
        findings.breaks(
            f'process {copy.pid} made {copy.count} copies {place}, each of {copy.size} bytes', step
        )
    if seen.trace is not None and seen.trace.gap and not seen.copies:
        findings.unsure(seen.trace.gap, _LOST_EVENTS)


def _booked_copies(nodes: Sequence[NodeView], findings: Findings) -> dict[str, int]:
    """Return how many copies the nodes' processes made for each reason; record violations."""
    booked: dict[tuple[int, str], int] = {}
    for node in nodes:
        for reason, count in node.copies().items():
            booked[node.pid, reason] = max(count, booked.get((node.pid, reason), 0))
    total: Counter[str] = Counter()
    for (_, reason), count in booked.items():
        total[reason] += count
    if total:
        told = ', '.join(f'{count} for {reason}' for reason, count in sorted(total.items()))
        step = (
            'end plain sensor_msgs/Image subscribers of the topic (RViz, rosbag2), and use '
            'a camera and an accelerator that do not copy frames'
        )
        findings.breaks(f"the nodes' copy ledgers list these copies: {told}", step)
    silent = [node.node for node in nodes if 'copies' not in node.after]
    if silent or not any(node.role == CAPTURE for node in nodes):
        who = ', '.join(silent) or 'the capture node'
        findings.unsure(
            f'the copy ledger of {who} was not read', 'measure all nodes of the pipeline'
        )
    return dict(total)


def all_checks(seen: Observation, known: Collection[str] = KNOWN_EXPORTERS) -> list[Check]:
    """Run the four checks of this file; *known* are the allowed exporters of frames' buffers."""
    return [
        check_attached(seen),
        check_exporters(seen, known),
        check_imports(seen),
        check_copies(seen),
    ]
