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
An observation of a pipeline that keeps all invariants, for tests to spoil; and a tracefs.

Frames, events and looks are as the kernel would show them. The tracefs is of plain files; it
reacts to writes and refuses as ftrace's documents say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
import errno
from itertools import cycle
import os
from pathlib import Path
import shutil
from typing import Any

from observe import timeline_kit as clockwork
import pytest

from zc_perception.observe.frame_log import FrameRecord, RecordKind
from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence.buffers import BufferObject, Snapshot
from zc_perception.verify.evidence.copies import CopyShare
from zc_perception.verify.evidence.kernel_events import Trace
from zc_perception.verify.invariants import all_checks, check_imports
from zc_perception.verify.observation import NodeView, Observation

MS = 1_000_000
START, END = 1000 * MS, 2000 * MS
PCI = '0000:01:00.0'
PID, THREAD, DRIVER_THREAD = 100, 101, 7
POOL = (11, 12, 13)
DEVICE = 12  # st_dev of dma-bufs
PERIOD = 50 * MS
SOURCES = {
    'axl_dmabuf_import': 'tracepoint', 'axl_dmabuf_release': 'tracepoint',
    'axl_submit': 'tracepoint', 'axl_complete': 'tracepoint', 'dma_buf_dynamic_attach': 'probe',
    'dma_buf_detach': 'probe', 'dma_buf_mmap_internal': 'probe', 'vb2_mmap': 'probe',
    'sched_process_fork': 'tracepoint',
}  # fmt: skip


def event(time_ns: int, name: str, tid: int = THREAD, **fields: Any) -> KernelEvent:
    return KernelEvent(
        time_ns, 0, '<...>', tid, name, {key: str(value) for key, value in fields.items()}
    )


def record(
    number: int, submitted_ns: int, inodes: tuple[int, ...], handle: int, seqno: int
) -> FrameRecord:
    taken = published(number, inodes, submitted_ns - 3 * MS)
    return taken._replace(
        kind=RecordKind.PROCESSED, received_ns=submitted_ns - 2 * MS, submitted_ns=submitted_ns,
        signalled_ns=submitted_ns + 5 * MS, done_ns=submitted_ns + 6 * MS,
        decoded_ns=submitted_ns + 7 * MS, sent_ns=submitted_ns + 8 * MS, device_handle=handle,
        detections=2, device_seqno=seqno,
    )  # fmt: skip


def published(number: int, inodes: tuple[int, ...], published_ns: int) -> FrameRecord:
    """Return the capture node's record of the same frame."""
    return clockwork.published(number)._replace(
        number=number, generation=1, buffer_uid=9, stamp_ns=number * 1000,
        captured_ns=published_ns - MS, published_ns=published_ns, sent_ns=published_ns + MS,
        capture_cost_ns=MS, inodes=inodes, st_dev=DEVICE, thread_id=THREAD,
    )  # fmt: skip


def look(
    time_ns: int, attached: Mapping[int, Sequence[str]], exporter: str = 'system'
) -> Snapshot:
    objects = {
        inode: BufferObject(inode, 4096, exporter, list(devices))
        for inode, devices in attached.items()
    }
    return Snapshot(time_ns, time_ns + 100_000, objects)


TIMES = [START + 5 * MS + index * PERIOD for index in range(20)]
#: Times of frames: 3 before the window, 20 in it, 2 after it.
WHOLE = [START + (index - 3) * PERIOD + 10 * MS for index in range(25)]


class Card:
    """
    One open file of the card, with its own handles and job numbers.

    :param thread: the thread that imports and submits.
    :param context: context of its fences; 0: each job has its own.
    """

    def __init__(self, thread: int = THREAD, context: int = 1, pid: int = PID) -> None:
        self.pid = pid
        self.thread = thread
        self.context = context
        self.events: list[KernelEvent] = []
        self.records: list[FrameRecord] = []
        self._handle = self.seqno = 0

    def had(self) -> int:
        self._handle += 1
        return self._handle

    def take(self, time_ns: int, inode: int, thread: int = 0) -> int:
        handle, tid = self.had(), thread or self.thread
        self.events += [
            event(time_ns - 9, 'dma_buf_dynamic_attach', tid, dev_name=PCI, ino=inode),
            event(time_ns, 'axl_dmabuf_import', tid, handle=handle, inode=inode),
        ]
        return handle

    def run(self, time_ns: int, handle: int, inode: int, **changes: Any) -> None:
        """Run a frame: the node notes its time, the kernel has the job a little later."""
        self.seqno += 1
        context = self.context or 1000 * self.thread + self.seqno
        job = {'handle': handle, 'ctx': context, 'seqno': self.seqno}
        fence = {'driver': 'axl', 'context': context, 'seqno': self.seqno}
        self.events += [
            event(time_ns + 200_000, 'dma_fence_init', self.thread, **fence),
            event(time_ns + 200_000, 'axl_submit', self.thread, **job),
            event(time_ns + 4 * MS, 'axl_complete', DRIVER_THREAD, **job),
        ]
        self._note(time_ns, inode, handle, self.seqno, **changes)

    def _note(self, time_ns: int, inode: int, handle: int, seqno: int, **changes: Any) -> None:
        made = record(len(self.records) + 1, time_ns, (inode,), handle, seqno)
        self.records.append(made._replace(thread_id=self.thread, **changes))

    def refused(self, time_ns: int, inode: int) -> None:
        """Add a frame whose job the card refused: the node notes only that it failed."""
        nothing = ('received_ns', 'submitted_ns', 'signalled_ns', 'decoded_ns', 'sent_ns')
        changes = {'kind': RecordKind.FAILED, 'done_ns': time_ns, **dict.fromkeys(nothing, 0)}
        self._note(time_ns, inode, 0, 0, **changes)

    def give_back(
        self, time_ns: int, handle: int, inode: int, thread: int = DRIVER_THREAD
    ) -> None:
        self.events += [
            event(time_ns, 'axl_dmabuf_release', thread, handle=handle, inode=inode),
            event(time_ns, 'dma_buf_detach', thread, dev_name=PCI, ino=inode),
        ]

    def reopened(self) -> None:
        """Act as another open file from now on."""
        self.context += 100
        self._handle = self.seqno = 0


def cached(card: Card, handles: Mapping[int, int], times: Sequence[int] = TIMES) -> None:
    """Run frames by existing imports, in turns; *handles* by buffer."""
    for time_ns, (inode, handle) in zip(times, cycle(handles.items()), strict=False):
        card.run(time_ns, handle, inode)


def uncached(
    card: Card,
    times: Sequence[int] = TIMES,
    pool: Sequence[int] = POOL,
    *,
    more: Callable[[int, int], None] = lambda time_ns, inode: None,
    kept: int = 0,
) -> None:
    """Import, run and release each frame but the first *kept*; *more* is called before each."""
    for index, time_ns in enumerate(times):
        inode = pool[index % len(pool)]
        more(time_ns - MS, inode)
        handle = card.take(time_ns - MS // 2, inode)
        card.run(time_ns, handle, inode)
        if index >= kept:
            card.give_back(time_ns + 5 * MS, handle, inode)


def had(card: Card, pool: Sequence[int] = POOL) -> dict[int, int]:
    return {inode: card.had() for inode in pool}


def taken(card: Card, time_ns: int) -> dict[int, int]:
    return {inode: card.take(time_ns + index * 100_000, inode) for index, inode in enumerate(POOL)}


def cached_graph(**changes: Any) -> Observation:
    """Return a graph that imported its three buffers before the measurement."""
    card = Card()
    cached(card, had(card), WHOLE)
    return _graph(card, PCI, True, **changes)


def uncached_graph(second_device: str = '', **changes: Any) -> Observation:
    """Return a graph that imports each frame anew; *second_device* has all buffers attached."""
    card = Card()
    uncached(card, WHOLE)
    return _graph(card, second_device, False, **changes)


def _graph(card: Card, attached: str, with_cache: bool, **changes: Any) -> Observation:
    """Return the observation of a graph; device *attached* is always attached to all buffers."""
    seen = {'camera': 'v4l2', 'device': '/dev/video0 (vivid)', 'copies': {}}
    facts = {'accelerator': 'axl', 'pci_address': PCI, 'import_cache': with_cache}
    facts |= {'copies': {}, 'trial_imports': 3}
    shots = [published(one.number, one.inodes, one.submitted_ns - 3 * MS) for one in card.records]
    attachments = dict.fromkeys(POOL, [attached] if attached else [])
    looks = [look(START - 20 * MS + index * 250 * MS, attachments) for index in range(5)]
    nodes = (
        NodeView(PID, '/capture', 'capture', seen, seen, tuple(shots)),
        NodeView(PID, '/inference', 'inference', facts, facts, tuple(card.records)),
    )
    trace = Trace(sorted(card.events, key=lambda item: item.time_ns))
    seen_by = (nodes, tuple(looks), trace, SOURCES, {PID: PID, THREAD: PID})
    memory: Any = (
        dict.fromkeys(POOL, 'system'),
        frozenset(POOL),
        frozenset(),
        frozenset((81 << 20,)),
    )
    no_mapping_in_three_looks = ((), 3, ())
    copied = (CopyShare(PID, 1000, 2),)
    made = Observation(START, END, *seen_by, *memory, *no_mapping_in_three_looks, copied)
    return replace(made, **changes)


#: The verdicts of a pipeline that keeps all invariants.
ALL_HOLD = dict.fromkeys(('I1', 'I2', 'I3', 'I4'), True)


def verdicts(seen: Observation) -> dict[str, bool | None]:
    return {check.name: check.holds for check in all_checks(seen)}


def _with_nodes(
    seen: Observation, role: str, change: Callable[[NodeView], NodeView]
) -> Observation:
    nodes = (change(node) if node.role == role else node for node in seen.nodes)
    return replace(seen, nodes=tuple(nodes))


def with_node(seen: Observation, role: str, **changes: Any) -> Observation:
    return _with_nodes(seen, role, lambda node: replace(node, **changes))


def with_facts(
    seen: Observation, role: str, before: Mapping[str, Any] | None = None, **after: Any
) -> Observation:
    return _with_nodes(
        seen,
        role,
        lambda node: replace(
            node, before={**node.before, **(before or {})}, after={**node.after, **after}
        ),
    )


def with_events(
    seen: Observation, *more: KernelEvent, without: Sequence[str] = (), lost: int = 0
) -> Observation:
    kept = [item for item in events(seen) if item.name not in without]
    return replace(seen, trace=Trace(sorted([*kept, *more], key=lambda item: item.time_ns), lost))


def events(seen: Observation) -> list[KernelEvent]:
    assert seen.trace is not None
    return list(seen.trace.events)


def changed(**changes: Any) -> Callable[[Observation], Observation]:
    return lambda seen: replace(seen, **changes)


def without_sources(start: str) -> Callable[[Observation], Observation]:
    """Return a function that removes the event sources whose names begin with *start*."""
    return changed(
        event_sources={name: how for name, how in SOURCES.items() if not name.startswith(start)}
    )


def with_records(seen: Observation, change: Any, role: str = 'inference') -> Observation:
    """Return the same with each record of a role's nodes replaced by ``change``; None drops it."""

    def changed_node(node: NodeView) -> NodeView:
        records = (new for old in node.records if (new := change(old)) is not None)
        return replace(node, records=tuple(records))

    return _with_nodes(seen, role, changed_node)


def node(
    *cards: Card,
    cached: bool,
    was_cached: bool | None = None,
    trials: int = 0,
    name: str = '/inference',
    pid: int = PID,
    **changes: Any,
) -> NodeView:
    """
    Return the node that uses these cards.

    :param was_cached: the value at the window's beginning, if different.
    :param trials: trial imports that it counted.
    """
    records = sorted((one for card in cards for one in card.records), key=lambda one: one.done_ns)
    before = {
        'accelerator': 'axl',
        'pci_address': PCI,
        'import_cache': cached if was_cached is None else was_cached,
        'trial_imports': 3,
    }
    after = {**before, 'import_cache': cached, 'trial_imports': 3 + trials}
    return replace(NodeView(pid, name, 'inference', before, after, tuple(records)), **changes)


def observed(
    nodes: Sequence[NodeView], cards: Sequence[Card], attached: Mapping[int, int] | None = None
) -> Observation:
    """Return the observation of these nodes; *attached*: earlier attachments by buffer."""
    inodes = {inode for one in nodes for made in one.records for inode in made.inodes}
    before = look(
        START - 500 * MS, {inode: [PCI] * (attached or {}).get(inode, 0) for inode in inodes}
    )
    found = sorted((one for card in cards for one in card.events), key=lambda one: one.time_ns)
    threads = {thread: card.pid for card in cards for thread in (card.pid, card.thread)}
    return cached_graph(
        nodes=tuple(nodes), trace=Trace(found), snapshots=(before,), process_of=threads
    )


def judged(seen: Observation) -> tuple[bool | None, str]:
    check = check_imports(seen)
    return check.holds, check.reason


def judged_node(
    card: Card, attached: Mapping[int, int] | None = None, **how: Any
) -> tuple[bool | None, str]:
    """Return :func:`judged` of one :func:`node` with one card."""
    return judged(observed([node(card, **how)], [card], attached))


FENCES = ('init', 'emit', 'signaled', 'wait_start', 'wait_end', 'destroy')
EVENTS = {
    'axl': ('axl_dmabuf_import', 'axl_dmabuf_release', 'axl_submit', 'axl_complete'),
    'dma_fence': tuple(f'dma_fence_{what}' for what in FENCES),
    'sched': ('sched_process_fork', 'sched_switch'),
}
DMA_BUF = (
    'dma_buf_dynamic_attach', 'dma_buf_detach', 'dma_buf_mmap_internal', 'dma_buf_export',
    'dma_buf_fd',
)  # fmt: skip


class FakeTracefs:
    """
    A kernel with some abilities.

    :param events: its tracepoints by system.
    :param refused: what definitions of probes must not contain: ``f:``, ``%return``, ``p:``…
    :param tracers: whether it has the function tracer.
    """

    def __init__(
        self,
        root: Path,
        patch: pytest.MonkeyPatch,
        *,
        events: dict[str, Iterable[str]] | None = None,
        refused: Iterable[str] = (),
        tracers: bool = True,
    ) -> None:
        self.root = root / 'tracing'
        self.writes: list[tuple[str, str]] = []
        self.refuse_writes = False
        self._events = EVENTS if events is None else events
        self._refused = tuple(refused)
        self._functions = DMA_BUF if tracers else ()
        (self.root / 'instances').mkdir(parents=True)
        (self.root / 'options').mkdir()
        (self.root / 'options' / 'record-cmd').write_text('1\n')
        (self.root / 'dynamic_events').write_text('')
        real_mkdir, real_rmdir = Path.mkdir, Path.rmdir

        def mkdir(
            path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False
        ) -> None:
            if path.parent == self.root / 'instances' and self.refuse_writes:
                raise PermissionError(errno.EACCES, 'Permission denied', str(path))
            real_mkdir(path, mode, parents, exist_ok)
            if path.parent == self.root / 'instances':
                self._fill(path)

        def rmdir(path: Path) -> None:
            if path.parent == self.root / 'instances':
                assert (path / 'events' / 'enable').read_text() == '0', 'events are enabled'
                shutil.rmtree(path)
            else:
                real_rmdir(path)

        patch.setattr(Path, 'mkdir', mkdir)
        patch.setattr(Path, 'rmdir', rmdir)
        module = 'zc_perception.verify.evidence.kernel_events'
        patch.setattr(f'{module}.write_control', self.write)
        # The tests may run in a container, which has a pid namespace of its own.
        patch.setattr(f'{module}._INITIAL_PID_NAMESPACE', os.readlink('/proc/self/ns/pid'))

    def _fill(self, instance: Path) -> None:
        files = {
            'tracing_on': '1', 'trace_clock': '[local] global mono', 'current_tracer': 'nop',
            'buffer_size_kb': '7 (expanded: 1408)', 'set_ftrace_filter': '', 'trace_pipe': '',
            'inherited_record_cmd': (self.root / 'options' / 'record-cmd').read_text().strip(),
        }  # fmt: skip
        for name, text in files.items():
            (instance / name).write_text(text)
        for cpu in range(2):
            folder = instance / 'per_cpu' / f'cpu{cpu}'
            folder.mkdir(parents=True)
            (folder / 'stats').write_text(
                'entries: 0\noverrun: 0\ncommit overrun: 0\nbytes: 0\ndropped events: 0\nread '
                'events: 5\n'
            )
        for system, names in self._events.items():
            for name in names:
                self._event(instance, system, name)
        (instance / 'events' / 'enable').write_text('0')

    @staticmethod
    def _event(instance: Path, system: str, name: str) -> None:
        folder = instance / 'events' / system / name
        folder.mkdir(parents=True)
        (folder / 'enable').write_text('0')
        (folder / 'filter').write_text('none')

    def write(self, path: Path, text: str, *, append: bool = False) -> None:
        name = path.relative_to(self.root).as_posix()
        if self.refuse_writes:
            raise PermissionError(errno.EACCES, 'Permission denied', str(path))
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, 'No such file or directory', str(path))
        self.writes.append((name, text))
        if name == 'dynamic_events':
            self._dynamic(text.strip())
        elif path.name == 'set_ftrace_filter':
            if text not in self._functions:
                raise OSError(errno.EINVAL, 'Invalid argument', str(path))
            path.write_text(path.read_text() + text + '\n')
        elif path.name == 'enable' and path.parent.name == 'events':
            for one in path.parent.glob('*/*/enable'):
                one.write_text('0')
            path.write_text('0')
        else:
            path.write_text(text)
            if path.name == 'enable':
                instance = (
                    self.root / 'instances' / path.relative_to(self.root / 'instances').parts[0]
                )
                on = any(one.read_text() == '1' for one in instance.glob('events/*/*/enable'))
                (instance / 'events' / 'enable').write_text('X' if on else '0')

    def _dynamic(self, definition: str) -> None:
        path = self.root / 'dynamic_events'
        lines = path.read_text().splitlines()
        if definition.startswith('-:'):
            kept = [
                line for line in lines if line.split(' ')[0].partition(':')[2] != definition[2:]
            ]
            if kept == lines:
                raise FileNotFoundError(errno.ENOENT, 'No such file or directory', str(path))
            group, name = definition[2:].split('/')
            for instance in (self.root / 'instances').iterdir():
                folder = instance / 'events' / group / name
                if folder.exists():
                    assert (folder / 'enable').read_text() == '0', 'the probe is in use'
                    shutil.rmtree(folder)
            path.write_text(''.join(f'{line}\n' for line in kept))
            return
        if any(word in definition for word in self._refused):
            raise OSError(errno.EINVAL, 'Invalid argument', str(path))
        group, name = definition.split(' ')[0].partition(':')[2].split('/')
        path.write_text(''.join(f'{line}\n' for line in [*lines, definition]))
        for instance in (self.root / 'instances').iterdir():
            self._event(instance, group, name)

    def enabled(self, instance: Path) -> set[str]:
        """Return ``SYSTEM/NAME`` of the recorded events."""
        return {
            one.parent.relative_to(instance / 'events').as_posix()
            for one in instance.glob('events/*/*/enable')
            if one.read_text() == '1'
        }

    @property
    def clean(self) -> bool:
        """Return whether no instance, probe or event is left."""
        nothing = (
            not list((self.root / 'instances').iterdir())
            and (self.root / 'dynamic_events').read_text() == ''
        )
        return nothing and (self.root / 'options' / 'record-cmd').read_text().strip() == '1'
