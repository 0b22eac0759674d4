"""The zero-copy document's own four keys, with their literal meaning, and its ``detail``.

They are kept word for word, although two of them are too narrow: the first holds only where the camera's driver attaches to the buffer as
well, the third only without an import cache. What the package promises is in :mod:`~zc_perception.verify.invariants`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zc_perception.verify.check import SLOW_FENCE_MS, advice
from zc_perception.verify.evidence.kernel_recording import FENCES, IMPORT, RELEASE
from zc_perception.verify.imports import ImportFollowing, follow_imports
from zc_perception.verify.invariants import attachments_are_recorded, histories
from zc_perception.verify.observation import IMPORTING, CopyShare, Observation

DOCUMENT_EXPORTERS = frozenset(('nvmap', 'system', 'tegra-buf'))
HOT_PERCENT = 1.0
#: Fewer samples of a process say nothing about one per cent of it.
MIN_SAMPLES = 100
KEYS = ('I1_attach_count_ge2', 'I2_known_exporter', 'I3_axl_imports', 'I4_no_memcpy_hot')


@dataclass(frozen=True)
class DocumentKeys:
    """The four keys; ``None``: not known."""

    attach_count_ge2: bool | None
    known_exporter: bool | None
    axl_imports: bool | None
    no_memcpy_hot: bool | None
    detail: dict[str, Any]

    def as_json(self) -> dict[str, bool | None]:
        """By their names in the document."""
        return dict(zip(KEYS, (self.attach_count_ge2, self.known_exporter, self.axl_imports, self.no_memcpy_hot), strict=True))

    @property
    def holds(self) -> bool:
        """``pass_document``."""
        return all(value is True for value in self.as_json().values())


def document_keys(seen: Observation) -> DocumentKeys:
    """Judge an observation by the letter."""
    found = histories(seen) if seen.snapshots else {}
    counts = {inode: max((sum(state.values()) for state in history.during(seen.start_ns, seen.end_ns)), default=0)
              for inode, history in found.items()}  # fmt: skip
    several = sorted(inode for inode, count in counts.items() if count >= 2)
    exact = bool(found) and attachments_are_recorded(seen) and all(history.exact for history in found.values())
    attach: bool | None = bool(several)
    if not several and not exact:
        attach = None
    exporters = sorted({name for inode in seen.frame_inodes() if (name := seen.exporters.get(inode))})
    known: bool | None = None
    if attach is not None:
        known = bool(several) and all(seen.exporters.get(inode) in DOCUMENT_EXPORTERS for inode in several)
    following = follow_imports(seen, found) if seen.trace is not None and seen.snapshots else ImportFollowing('not watched')
    imports: bool | None = None
    if not following.unreadable and following.submitted and seen.trace is not None and not seen.trace.gap:
        imports = following.own_imports >= following.submitted
    hot = _hot(seen)
    counted = seen.trace.counts() if seen.trace is not None else {}
    detail = {
        'imports': counted.get(IMPORT, 0),
        'releases': counted.get(RELEASE, 0),
        'fence_wait_lines': sum(counted.get(name, 0) for name in ('dma_fence_wait_start', 'dma_fence_wait_end')),
        # A sync_file is waited for by poll(2), of which the kernel's events know nothing.
        'fence_waits_by_poll': sum(record.signalled_ns > 0 for _, record in seen.all_submitted()),
        'fence_lines': {name: counted.get(name, 0) for name in FENCES},
        'multi_attach_inodes': [str(inode) for inode in several],
        'attach_counts': {str(inode): count for inode, count in sorted(counts.items())},
        'exporters': exporters,
        'memcpy_hot': [_as_json(share) for share in seen.shares or () if share.percent > HOT_PERCENT],
        'submitted_frames': len(seen.all_submitted()),
        'frames_with_own_import': following.own_imports,
    }
    return DocumentKeys(attach, known, imports, hot, detail)


def _as_json(share: CopyShare) -> dict[str, Any]:
    return {'pid': share.pid, 'percent': round(share.percent, 2), 'samples': share.samples}


def _hot(seen: Observation) -> bool | None:
    """Whether no node spends more than one per cent of its own time in memcpy or memmove."""
    shares = {share.pid: share for share in seen.shares or ()}
    if any(share.percent > HOT_PERCENT and share.samples >= MIN_SAMPLES for share in shares.values()):
        return False
    pids = {node.pid for node in seen.nodes}
    enough = all(pid in shares and shares[pid].samples >= MIN_SAMPLES for pid in pids)
    return True if pids and enough and seen.all_submitted() else None


def notes(seen: Observation) -> list[str]:
    """What breaks no invariant but is worth knowing: nodes that ended, waits for fences that took long."""
    started: dict[tuple[int, str, str], int] = {}
    slow = []
    for event in seen.trace.events if seen.trace is not None else ():
        key = (event.tid, event.fields.get('context', ''), event.fields.get('seqno', ''))
        if event.name == 'dma_fence_wait_start':
            started[key] = event.time_ns
        elif event.name == 'dma_fence_wait_end' and key in started:
            slow.append((event.time_ns - started.pop(key)) / 1e6)
    jobs = [(record.signalled_ns - record.submitted_ns) / 1e6 for node, record in seen.all_submitted()
            if record.signalled_ns and node.accelerator == IMPORTING]  # fmt: skip
    found = [
        f'{node} ended {max(0, node.ended_ns - seen.start_ns) / 1e9:.1f} s after the window began; what it did last is not known'
        for node in seen.nodes
        if node.ended_ns
    ]
    for what, waits in (('waits for fences', slow), ('jobs of the device', jobs)):
        long = [wait for wait in waits if wait > SLOW_FENCE_MS]
        if long:
            worst = f'{len(long)} {what} took more than {SLOW_FENCE_MS:g} ms, the longest {max(long):.0f} ms'
            found.append(f'{worst}: {advice("slow_fences")}')
    return found
