"""The four invariants, as ``docs/verify.md`` states them: each a pure function of what was observed.

A check is false when something speaks against it, unknown when a source it rests on could not be read or nothing flowed, and true only
when everything was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from zc_perception.observe.privileges import as_root
from zc_perception.verify.check import Check, Findings, advice
from zc_perception.verify.evidence.attachments import History, event_history, polled_history
from zc_perception.verify.evidence.kernel_events import ATTACH, DETACH, FUNCTION, MMAP, VIDEO_MMAP, KernelEvent
from zc_perception.verify.evidence.mappings import UDMABUF
from zc_perception.verify.evidence.memmove_probe import LARGE
from zc_perception.verify.imports import follow_imports
from zc_perception.verify.observation import CAPTURE, IMPORTING, NodeView, Observation

#: Memory that devices are known to share: Jetson's, the dma-heaps', V4L2's, and udmabuf.
KNOWN_EXPORTERS = (
    'nvmap', 'tegra-buf', 'system', 'linux,cma', 'reserved', 'default_cma_region', 'videobuf2_dma_contig', 'videobuf2_dma_sg',
    'videobuf2_vmalloc', 'udmabuf',
)  # fmt: skip
_SHOWN = 20


def histories(seen: Observation) -> dict[int, History]:
    """The attachments of each frame's buffer; from looks alone where the kernel's events can't be had."""
    return {
        inode: event_history(inode, seen.snapshots, seen.trace.events)
        if seen.trace is not None and attachments_are_recorded(seen)
        else polled_history(inode, seen.snapshots)
        for inode in sorted(seen.frame_inodes())
    }


def attachments_are_recorded(seen: Observation) -> bool:
    """Whether every attachment of the window is known, with its buffer and device."""
    known = all(seen.event_sources.get(event, FUNCTION) != FUNCTION for event in (ATTACH, DETACH))
    return known and seen.trace is not None and not seen.trace.gap


def _frames(seen: Observation, findings: Findings) -> None:
    """What every check needs: each inference node submitted frames in the window, and all of its frames were seen."""
    nodes = seen.inference_nodes()
    idle = [str(node) for node in nodes if not seen.submitted(node)]
    if idle or not nodes:
        by = f' by {", ".join(idle)}' if idle else ''
        findings.unknown.append((f'no frame was submitted to a device in the window{by}', advice('no_frames')))
    silent = [str(node) for node in nodes if not node.accelerator]
    if silent:
        findings.unknown.append((f'{", ".join(silent)} names no accelerator: it has none open', advice('no_frames')))
    ended = [str(node) for node in seen.nodes if node.ended_ns]
    if ended:
        findings.unknown.append((f'{", ".join(ended)} ended while it was measured', advice('node_ended')))
    _unread(seen, findings, 'frame log')
    if seen.lost_records:
        findings.unknown.append((f'{seen.lost_records} frames were overwritten in the log before they were read', advice('frames_lost')))


def _unread(seen: Observation, findings: Findings, *topics: str) -> bool:
    for one in seen.why(*topics):
        findings.unknown.append((f'{one.source}: {one.reason}', one.next_step))
    return bool(seen.why(*topics))


def _counters(seen: Observation, findings: Findings) -> None:
    """What every check needs that uses the nodes' own counters: they were written after the window's end."""
    stale = [str(node) for node in seen.nodes if not node.described and not node.ended_ns]
    if stale:
        findings.unknown.append((f'{", ".join(stale)} did not renew its counters behind the window', advice('not_described')))


def _bystanders(seen: Observation, findings: Findings) -> None:
    """Nodes whose accelerator reads frames through the CPU: nothing can be imported or attached there."""
    for node in seen.inference_nodes():
        if node.accelerator and node.accelerator != IMPORTING:
            reason = f"node {node.node} has the accelerator '{node.accelerator}', which imports no frames"
            findings.broken.append((reason, advice('no_importer')))


def check_attached(seen: Observation) -> Check:
    """I1: the NPU's device is attached to the buffers of every submitted frame, at the moment when it is submitted."""
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
            if node.accelerator != IMPORTING:
                continue
            if not device:
                findings.unknown.append((f'node {node.node} does not say where its device is', advice('no_device')))
                continue
            absent = [inode for inode in record.inodes if not found[inode].at(record.submitted_ns)[device]]
            attached += not absent
            for inode in absent:
                (missing if _sure(found[inode], inode, seen) else unsure)[inode] += 1
        memory = {inode for device, inode in seen.memfds}
        for inode in missing:
            kind = 'not_a_dmabuf' if inode in memory and inode not in seen.dmabufs else 'not_attached'
            findings.broken.append((f'the device was not attached to buffers of {sum(missing.values())} submitted frames', advice(kind)))
        if unsure:
            findings.unknown.append(('attachments are only looked at from time to time, and were missing at some looks', _newer(seen)))
    figures = {
        'frames': len(seen.all_submitted()),
        'frames_attached': attached,
        'devices': sorted({str(node.after.get('pci_address', '')) for node in seen.inference_nodes()} - {''}),
        'attached': {str(inode): dict(history.at(seen.end_ns)) for inode, history in found.items()},
        'not_attached_inodes': sorted(missing),
        'exact': events and all(history.exact for history in found.values()),
        'looks': len(seen.snapshots),
    }
    source = f'frame log, bufinfo, {seen.event_sources[ATTACH]} {ATTACH}' if events else 'frame log, bufinfo'
    return findings.conclude('I1', "the NPU's device is attached to every submitted frame", source, figures)


def _sure(history: History, inode: int, seen: Observation) -> bool:
    """Whether a missing attachment is really missing: the history is exact, or there is no such dma-buf."""
    return history.exact or inode not in seen.dmabufs


def _newer(seen: Observation) -> str:
    steps = [one.next_step for one in seen.why('trace')]
    return steps[0] if steps else advice('lost_events')


def check_exporters(seen: Observation, known: Collection[str] = KNOWN_EXPORTERS) -> Check:
    """I2: whoever allocated a frame's buffer is known."""
    findings = Findings()
    _frames(seen, findings)
    memory = {inode for _, inode in seen.memfds} - seen.dmabufs
    exporters: dict[int, str] = {}
    for inode in sorted(seen.frame_inodes()):
        name = 'memfd' if inode in memory else seen.exporters.get(inode, '')
        if name:
            exporters[inode] = name
        elif not _unread(seen, findings, 'exporters'):
            findings.unknown.append((f'no source names the exporter of buffer {inode}', 'measure longer: it is gone already'))
        if name == 'memfd':
            findings.broken.append(('frames lie in memfds, which no device can import', advice('not_a_dmabuf')))
        elif name and name not in known:
            findings.broken.append((f"exporter '{name}' is not a known one ({', '.join(sorted(known))})", advice('unknown_exporter')))
    counts = Counter(exporters.values())
    figures = {'buffers': len(seen.frame_inodes()), 'exporters': dict(counts), 'known': sorted(known)}
    return findings.conclude('I2', 'every frame buffer has a known exporter', 'frame log, bufinfo, sysfs, fdinfo', figures)


def check_imports(seen: Observation, found: Mapping[int, History] | None = None) -> Check:
    """I3: every submitted buffer was imported before, as often as the cache says, and the driver's jobs are the node's frames."""
    findings = Findings()
    _frames(seen, findings)
    following = None
    if seen.trace is None or not seen.snapshots:
        _unread(seen, findings, *(('trace',) if seen.trace is None else ()), *(() if seen.snapshots else ('bufinfo',)))
        if not findings.unknown:
            findings.unknown.append(('the kernel was not watched', as_root()))
    else:
        _bystanders(seen, findings)
        following = follow_imports(seen, histories(seen) if found is None else found)
        if following.unreadable:
            _unread(seen, findings, 'trace')
            findings.unknown.append((following.unreadable, _newer(seen)))
        elif seen.trace.gap:
            findings.unknown.append((seen.trace.gap, advice('lost_events')))
        else:
            findings.broken += following.problems()
            findings.unknown += following.unknown()
            _counters(seen, findings)
    figures = following.figures() if following is not None else {}
    source = 'frame log, tracepoints axl_dmabuf_import, axl_dmabuf_release and axl_submit, bufinfo'
    return findings.conclude('I3', 'every submitted buffer was imported, each as often as it has to be', source, figures)


def check_copies(seen: Observation) -> Check:
    """I4: nobody maps a frame, no node copies as much as a frame or out of one, and the nodes themselves count no copy."""
    findings = Findings()
    _frames(seen, findings)
    if seen.mappings:
        names = ', '.join(sorted({f'process {one.pid}' for one in seen.mappings}))
        findings.broken.append((f'frames are mapped by {names}', advice('mapped')))
    if (not seen.scans or seen.why('maps')) and not _unread(seen, findings, 'maps'):
        findings.unknown.append(('no maps were read', as_root()))
    _unwatched(seen, findings)
    mapped = _mmap_events(seen, findings)
    _large_copies(seen, findings)
    booked = _booked_copies(seen.nodes, findings)
    _counters(seen, findings)
    figures = {
        'mappings': [str(one) for one in seen.mappings[:_SHOWN]],
        'scans': seen.scans,
        'mmap_events': len(mapped),
        'mmap_by': sorted({seen.process_of.get(event.tid, event.tid) for event in mapped})[:_SHOWN],
        'memmove_calls': seen.copy_calls,
        'memmove_64k': None if seen.copies is None else sum(copy.count for copy in seen.copies if copy.size >= LARGE),
        'memmove_from_frames': None if seen.copies is None else sum(copy.count for copy in seen.copies if copy.from_frame),
        'ledger': booked,
        'sampled': [
            {'pid': share.pid, 'samples': share.samples, 'percent': round(share.percent, 2), 'kernel': dict(share.kernel)}
            for share in seen.shares or ()
        ],
    }
    how = sorted({seen.event_sources[event] for event in (MMAP, VIDEO_MMAP) if event in seen.event_sources})
    probed = () if seen.copies is None else ('uprobe on memmove',)
    source = ', '.join(['frame log', '/proc/*/maps', *(f'{way} of mmap' for way in how), *probed, 'copy ledger'])
    return findings.conclude('I4', 'no frame is mapped or copied by a CPU', source, figures)


def _unwatched(seen: Observation, findings: Findings) -> None:
    """What may touch frames and was not looked at: nodes that make them, the memory below udmabuf, pages without a mapping."""
    unseen = seen.unseen_frames()
    if unseen and any(node.role == CAPTURE for node in seen.nodes):
        told = ', '.join(f'{count} frames of {node}' for node, count in unseen.items())
        findings.unknown.append((f'{told} come from a node that is not seen', advice('unseen_producer')))
    made = any(seen.exporters.get(inode) == UDMABUF for _, record in seen.all_submitted() for inode in record.inodes)
    if made and seen.backing:
        told = f"udmabuf's frames may be read through memory that they may be made of: {'; '.join(seen.backing[:_SHOWN])}"
        findings.unknown.append((told, advice('backing_memory')))
    if seen.pins:
        told = f'pages of frames may be held without a mapping: {"; ".join(seen.pins[:_SHOWN])}'
        findings.unknown.append((told, advice('pinned_pages')))


def _mmap_events(seen: Observation, findings: Findings) -> list[KernelEvent]:
    """Of frames, in the window."""
    if seen.trace is None:
        _unread(seen, findings, 'trace')
        findings.unknown.append(('mappings that come and go were not recorded', as_root()))
        return []
    events = [event for event in seen.trace.named(MMAP, VIDEO_MMAP) if (seen.looked_ns or seen.start_ns) <= event.time_ns <= seen.end_ns]
    found = [event for event in events if seen.within(event.time_ns) and _maps_frames(event, seen)]
    if any(event.name == MMAP and event.inode < 0 and event.tid in seen.process_of for event in events):
        findings.unknown.append(('a node mapped a dma-buf, and this kernel does not tell which', _newer(seen)))
    if early := sum(_maps_frames(event, seen) for event in events if event.time_ns < seen.start_ns):
        # The first look at all maps was too soon for them. If one ended in the window, before the last look, nothing else tells of it.
        told = f'frames were mapped {early} times just before the window, and whether they stayed mapped in it is not known'
        findings.unknown.append((told, advice('mapped_before')))
    if found:
        findings.broken.append((f'frames were mapped {len(found)} times', advice('was_mapped')))
    if seen.any_camera and (others := [event for event in events if event.name == VIDEO_MMAP and event.tid not in seen.process_of]):
        told = f'a video device was mapped {len(others)} times, and perhaps it is the camera, whose node does not say which device it uses'
        findings.unknown.append((told, advice('was_mapped')))
    if MMAP not in seen.event_sources or (VIDEO_MMAP not in seen.event_sources and (seen.camera_rdevs or seen.lost_cameras)):
        _unread(seen, findings, 'trace')
        findings.unknown.append(('mappings that come and go were not recorded', _newer(seen)))
    elif seen.trace.gap:
        findings.unknown.append((seen.trace.gap, advice('lost_events')))
    return found


def _maps_frames(event: KernelEvent, seen: Observation) -> bool:
    if event.name == MMAP:
        return event.inode in seen.dmabufs
    return event.number('rdev') in seen.camera_rdevs or (event.tid in seen.process_of and not _is_other(event, seen))


def _is_other(event: KernelEvent, seen: Observation) -> bool:
    """Whether a video device is known to be none of the nodes' cameras."""
    return 'rdev' in event.fields and bool(seen.camera_rdevs) and not seen.lost_cameras


def _large_copies(seen: Observation, findings: Findings) -> None:
    if seen.copies is None:
        _unread(seen, findings, 'memmove')
        findings.unknown.append(('large copies of the C library were not counted', '' if seen.why('memmove') else as_root()))
        return
    _unread(seen, findings, 'memmove')
    for copy in seen.copies[:_SHOWN]:
        place = 'out of a frame' if copy.from_frame else f'of {LARGE} bytes or more'
        findings.broken.append((f'process {copy.pid} made {copy.count} copies {place}, of {copy.size} bytes', advice('copied')))
    if seen.trace is not None and seen.trace.gap and not seen.copies:
        findings.unknown.append((seen.trace.gap, advice('lost_events')))


def _booked_copies(nodes: Sequence[NodeView], findings: Findings) -> dict[str, int]:
    """By reason. Nodes of one process have one ledger."""
    booked: dict[tuple[int, str], int] = {}
    for node in nodes:
        for reason, count in node.copies().items():
            booked[node.pid, reason] = max(count, booked.get((node.pid, reason), 0))
    total: Counter[str] = Counter()
    for (_, reason), count in booked.items():
        total[reason] += count
    if total:
        told = ', '.join(f'{count} of {reason}' for reason, count in sorted(total.items()))
        findings.broken.append((f"the nodes' ledger counts copies: {told}", advice('booked')))
    silent = [node.node for node in nodes if 'copies' not in node.after]
    if silent or not any(node.role == CAPTURE for node in nodes):
        who = ', '.join(silent) or 'the capture node'
        findings.unknown.append((f'the copy ledger of {who} was not read', 'let zc_verify see all nodes of the pipeline'))
    return dict(total)


def all_checks(seen: Observation, known: Collection[str] = KNOWN_EXPORTERS) -> list[Check]:
    """I1 to I4."""
    return [check_attached(seen), check_exporters(seen, known), check_imports(seen), check_copies(seen)]
