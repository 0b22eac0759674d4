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
Write ``result.json``: what a verification found.

Its form is fixed by ``result.schema.json``.

:func:`document_keys` gives the zero-copy document's own four keys, with their literal meaning, and
its ``detail``. They are kept word for word, although two of them are too narrow: the first holds
only where the camera's driver attaches to the buffer as well, the third only without an import
cache. What the package promises is in :mod:`~zc_perception.verify.invariants`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
import json
import os
from pathlib import Path
import platform
from typing import Any

import zc_perception
from zc_perception.npu.kinds import traced
from zc_perception.verify.evidence.kernel_events import FENCES
from zc_perception.verify.imports import ImportFollowing
from zc_perception.verify.invariants import attachments_are_recorded, Check, histories
from zc_perception.verify.observation import NodeView, Observation, time_of
from zc_perception.whole_file import write_whole

DOCUMENT_EXPORTERS = frozenset(('nvmap', 'system', 'tegra-buf'))
HOT_PERCENT = 1.0
#: With fewer samples of a process one per cent of its time can't be judged.
MIN_SAMPLES = 100
KEYS = ('I1_attach_count_ge2', 'I2_known_exporter', 'I3_axl_imports', 'I4_no_memcpy_hot')


@dataclass(frozen=True)
class DocumentKeys:
    """
    The four answers that the zero-copy document asks for.

    :ivar keys: the four, by their names; ``None``: not known.
    """

    keys: dict[str, bool | None]
    detail: dict[str, Any]

    @property
    def holds(self) -> bool:
        """``pass_document``."""
        return all(value is True for value in self.keys.values())


def document_keys(seen: Observation) -> DocumentKeys:
    """Judge an observation by the letter of the document."""
    found = histories(seen) if seen.snapshots else {}
    counts = {
        inode: max(
            (sum(state.values()) for state in history.during(seen.start_ns, seen.end_ns)),
            default=0,
        )
        for inode, history in found.items()
    }
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
        'imports': sum(counted[name] for name in traced().imported),
        'releases': sum(counted[name] for name in traced().released),
        'fence_wait_lines': sum(
            counted[name] for name in ('dma_fence_wait_start', 'dma_fence_wait_end')
        ),
        # Programs wait for a sync_file with poll(2), which has no kernel event.
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
    """Say whether no node spends more than one per cent of its own time in memcpy or memmove."""
    shares = {share.pid: share for share in seen.shares or ()}
    if any(
        share.percent > HOT_PERCENT and share.samples >= MIN_SAMPLES for share in shares.values()
    ):
        return False
    pids = {node.pid for node in seen.nodes}
    enough = all(pid in shares and shares[pid].samples >= MIN_SAMPLES for pid in pids)
    return True if pids and enough and seen.all_submitted() else None


VERSION = 1
SCHEMA = Path(__file__).with_name('result.schema.json')
RESULT = 'result.json'
#: A wait for a fence above it is told, though it breaks no invariant.
SLOW_FENCE_MS = 50.0
EXIT_PASS, EXIT_BROKEN, EXIT_USAGE, EXIT_NOT_MEASURED = 0, 1, 2, 3


@dataclass(frozen=True)
class Result:
    """
    The whole outcome.

    :ivar files: the files beside ``result.json``, by purpose.
    """

    seen: Observation
    checks: Sequence[Check]
    document: DocumentKeys
    notes: Sequence[str] = ()
    command: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether all checks were measured and hold."""
        return all(check.holds is True for check in self.checks)

    @property
    def exit_code(self) -> int:
        """0: all hold; 3: not all were measured; 1: all were measured, and one does not hold."""
        if not all(check.measured for check in self.checks):
            return EXIT_NOT_MEASURED
        return EXIT_PASS if self.passed else EXIT_BROKEN

    def as_json(self) -> dict[str, Any]:
        """Return it for ``result.json``."""
        seen = self.seen
        return {
            'version': VERSION,
            **self.document.keys,
            'detail': self.document.detail,
            'pass_document': self.document.holds,
            'checks': {check.name: check.as_json() for check in self.checks},
            'pass': self.passed,
            'environment': describe_environment(self.command),
            'frames': len(seen.all_submitted()),
            'window': {
                'start_ns': seen.start_ns,
                'end_ns': seen.end_ns,
                'seconds': round((seen.end_ns - seen.start_ns) / 1e9, 3),
                'own_cpu_seconds': round(seen.own_cpu_s, 3),
            },
            'processes': [_node(node, seen) for node in seen.nodes],
            'event_sources': dict(seen.event_sources),
            'notes': list(self.notes),
            'unreadable': [
                {'topic': topic, **one.as_json()}
                for topic, told in sorted(seen.unreadable.items())
                for one in told
            ],
            'files': dict(self.files),
        }


def _node(node: NodeView, seen: Observation) -> dict[str, Any]:
    named = (
        'accelerator',
        'import_cache',
        'pci_address',
        'rung',
        'camera',
        'device',
        'heap',
        'fourcc',
        'width',
        'height',
        'slots',
    )
    records = [record for record in node.records if seen.within(time_of(record))]
    return {
        'pid': node.pid,
        'node': node.node,
        'role': node.role,
        'frames': len(records),
        'failed': node.grown('failed'),
        'dropped': node.grown('dropped'),
        **{name: node.after[name] for name in named if name in node.after},
    }


def describe_environment(command: Sequence[str]) -> dict[str, Any]:
    """Say when and on what machine it was measured, without the names of host and user."""
    return {
        'date': datetime.now(timezone.utc).isoformat(timespec='seconds'),
        'kernel': platform.release(),
        'machine': platform.machine(),
        'cpus': os.cpu_count() or 0,
        'python': platform.python_version(),
        'package': zc_perception.__version__,
        'user': 'root' if os.geteuid() == 0 else 'not root',
        'command': list(command),
    }


def write_result(result: Result, folder: Path) -> Path:
    """Write ``result.json``, whole or not at all."""
    path = folder / RESULT
    write_whole(path, json.dumps(result.as_json(), indent=1, allow_nan=False) + '\n')
    return path


def verdict(result: Result) -> list[str]:
    """Return lines for a person: one per check, and the next step under those that do not hold."""
    words = {True: 'holds', False: 'DOES NOT HOLD', None: 'not measured'}
    lines = [
        (
            f'{len(result.seen.all_submitted())} frames in '
            f'{(result.seen.end_ns - result.seen.start_ns) / 1e9:.1f} s'
        )
    ]
    for check in result.checks:
        lines.append(f'{check.name} {words[check.holds]}: {check.title}')
        if check.holds is not True:
            lines.append(f'   why:  {check.reason}')
            if check.next_step:
                lines.append(f'   next: {check.next_step}')
    keys = result.document.keys.items()
    said = ', '.join(
        f'{name} {"?" if value is None else str(value).lower()}' for name, value in keys
    )
    lines.append(f'the document, literally: {said}')
    lines += [
        f'{check.name} does not see {one}'
        for check in result.checks
        for one in check.figures.get('not_seen', ())
    ]
    lines += [f'note: {note}' for note in result.notes]
    lines.append(
        {EXIT_PASS: 'PASS', EXIT_BROKEN: 'FAIL', EXIT_NOT_MEASURED: 'NOT MEASURED'}[
            result.exit_code
        ]
    )
    return lines


def notes(seen: Observation) -> list[str]:
    """
    Return what breaks no invariant but is worth knowing.

    That is: nodes that ended, and long waits for fences.
    """
    started: dict[tuple[int, str, str], int] = {}
    slow = []
    for event in seen.trace.events if seen.trace is not None else ():
        key = (event.tid, event.fields.get('context', ''), event.fields.get('seqno', ''))
        if event.name == 'dma_fence_wait_start':
            started[key] = event.time_ns
        elif event.name == 'dma_fence_wait_end' and key in started:
            slow.append((event.time_ns - started.pop(key)) / 1e6)
    jobs = [
        (record.signalled_ns - record.submitted_ns) / 1e6
        for node, record in seen.all_submitted()
        if record.signalled_ns and node.imports
    ]
    found = [
        (
            f'{node} ended {max(0, node.ended_ns - seen.start_ns) / 1e9:.1f} s after the window '
            'began; what it did last is not known'
        )
        for node in seen.nodes
        if node.ended_ns
    ]
    for what, waits in (('waits for fences', slow), ('jobs of the device', jobs)):
        long = [wait for wait in waits if wait > SLOW_FENCE_MS]
        if long:
            worst = (
                f'{len(long)} {what} took more than {SLOW_FENCE_MS:g} ms, the longest '
                f'{max(long):.0f} ms'
            )
            found.append(
                f'{worst}: lspci -vvv -d 1f9d:1100 | grep LnkSta must show Speed 8GT/s and '
                'Width x4; zc_doctor checks it'
            )
    return found
