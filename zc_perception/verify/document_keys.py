"""The zero-copy document's own four keys, with their literal meaning, and its ``detail``.

They are kept word for word, although two of them are too narrow: the first holds only where the camera's driver attaches to the buffer as
well, the third only without an import cache. What the package promises is in :mod:`~zc_perception.verify.invariants`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from zc_perception.verify.evidence.kernel_events import FENCES, IMPORT, RELEASE
from zc_perception.verify.imports import ImportFollowing
from zc_perception.verify.invariants import attachments_are_recorded, histories
from zc_perception.verify.observation import Observation

DOCUMENT_EXPORTERS = frozenset(('nvmap', 'system', 'tegra-buf'))
HOT_PERCENT = 1.0
#: Fewer samples of a process say nothing about one per cent of it.
MIN_SAMPLES = 100
KEYS = ('I1_attach_count_ge2', 'I2_known_exporter', 'I3_axl_imports', 'I4_no_memcpy_hot')


@dataclass(frozen=True)
class DocumentKeys:
    """What the document asks.

    :ivar keys: the four, by their names; ``None``: not known.
    """

    keys: dict[str, bool | None]
    detail: dict[str, Any]

    @property
    def holds(self) -> bool:
        """``pass_document``."""
        return all(value is True for value in self.keys.values())


def document_keys(seen: Observation) -> DocumentKeys:
    """Judge an observation by the letter."""
    found = histories(seen) if seen.snapshots else {}
    counts = {inode: max((sum(state.values()) for state in history.during(seen.start_ns, seen.end_ns)), default=0)
              for inode, history in found.items()}  # fmt: skip
    several = sorted(inode for inode, count in counts.items() if count >= 2)
    exact = (
        bool(found)
        and attachments_are_recorded(seen)
        and all(history.exact for history in found.values())
    )
    attach: bool | None = bool(several)
    if not several and not exact:
        attach = None
    exporters = sorted(
        {name for inode in seen.frame_inodes() if (name := seen.exporters.get(inode))}
    )
    known: bool | None = None
    if attach is not None:
        known = bool(several) and all(
            seen.exporters.get(inode) in DOCUMENT_EXPORTERS for inode in several
        )
    following = ImportFollowing(seen, found) if seen.trace is not None and seen.snapshots else None
    imports: bool | None = None
    if (
        following is not None
        and not following.unreadable
        and following.submitted
        and seen.trace is not None
        and not seen.trace.gap
    ):
        imports = following.own_imports >= following.submitted
    counted = (
        Counter(event.name for event in seen.trace.events if seen.within(event.time_ns))
        if seen.trace is not None
        else Counter()
    )
    detail = {
        'imports': counted[IMPORT],
        'releases': counted[RELEASE],
        'fence_wait_lines': sum(
            counted[name] for name in ('dma_fence_wait_start', 'dma_fence_wait_end')
        ),
        # A sync_file is waited for by poll(2), of which the kernel's events know nothing.
        'fence_waits_by_poll': sum(record.signalled_ns > 0 for _, record in seen.all_submitted()),
        'fence_lines': {name: counted[name] for name in FENCES},
        'multi_attach_inodes': [str(inode) for inode in several],
        'attach_counts': {str(inode): count for inode, count in sorted(counts.items())},
        'exporters': exporters,
        'memcpy_hot': [
            {'pid': share.pid, 'percent': round(share.percent, 2), 'samples': share.samples}
            for share in seen.shares or ()
            if share.percent > HOT_PERCENT
        ],
        'submitted_frames': len(seen.all_submitted()),
        'frames_with_own_import': following.own_imports if following is not None else 0,
    }
    return DocumentKeys(dict(zip(KEYS, (attach, known, imports, _hot(seen)), strict=True)), detail)


def _hot(seen: Observation) -> bool | None:
    """Whether no node spends more than one per cent of its own time in memcpy or memmove."""
    shares = {share.pid: share for share in seen.shares or ()}
    if any(
        share.percent > HOT_PERCENT and share.samples >= MIN_SAMPLES for share in shares.values()
    ):
        return False
    pids = {node.pid for node in seen.nodes}
    enough = all(pid in shares and shares[pid].samples >= MIN_SAMPLES for pid in pids)
    return True if pids and enough and seen.all_submitted() else None
