"""``result.json``: what a verification found. Its form is fixed by ``result.schema.json``."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import zc_perception
from zc_perception.verify.document_keys import DocumentKeys
from zc_perception.verify.invariants import Check
from zc_perception.verify.observation import IMPORTING, NodeView, Observation, time_of
from zc_perception.whole_file import write_whole

VERSION = 1
SCHEMA = Path(__file__).with_name('result.schema.json')
RESULT = 'result.json'
#: A wait for a fence above it is told, though it breaks no invariant.
SLOW_FENCE_MS = 50.0
EXIT_PASS, EXIT_BROKEN, EXIT_USAGE, EXIT_NOT_MEASURED = 0, 1, 2, 3


@dataclass(frozen=True)
class Result:
    """The whole outcome.

    :ivar files: what lies beside ``result.json``, by purpose.
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
        """0: all hold; 3: not all were measured; 1: all were, and one does not hold."""
        if not all(check.measured for check in self.checks):
            return EXIT_NOT_MEASURED
        return EXIT_PASS if self.passed else EXIT_BROKEN

    def as_json(self) -> dict[str, Any]:
        """For ``result.json``."""
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
            'window': {'start_ns': seen.start_ns, 'end_ns': seen.end_ns, 'seconds': round((seen.end_ns - seen.start_ns) / 1e9, 3),
                       'own_cpu_seconds': round(seen.own_cpu_s, 3)},
            'processes': [_node(node, seen) for node in seen.nodes],
            'event_sources': dict(seen.event_sources),
            'notes': list(self.notes),
            'unreadable': [
                {'topic': topic, **one.as_json()} for topic, told in sorted(seen.unreadable.items()) for one in told
            ],
            'files': dict(self.files),
        }  # fmt: skip


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
    """When and on what it was measured. Names neither host nor user."""
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
    """A few lines for a person: one per check, with the next step under those that do not hold."""
    words = {True: 'holds', False: 'DOES NOT HOLD', None: 'not measured'}
    lines = [
        f'{len(result.seen.all_submitted())} frames in {(result.seen.end_ns - result.seen.start_ns) / 1e9:.1f} s'
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
            found.append(
                f'{worst}: lspci -vvv -d 1f9d:1100 | grep LnkSta must show Speed 8GT/s and Width x4; zc_doctor checks it'
            )
    return found
