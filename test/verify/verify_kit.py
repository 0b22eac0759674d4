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
An observation of a pipeline that keeps all invariants, for tests to spoil.

Frames, events and looks are as the kernel would show them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

from observe import timeline_kit as clockwork

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
    number: int,
    submitted_ns: int,
    inodes: tuple[int, ...],
    handle: int,
    seqno: int,
    **changes: Any,
) -> FrameRecord:
    taken = published(number, inodes, submitted_ns - 3 * MS)
    made = taken._replace(
        kind=RecordKind.PROCESSED, received_ns=submitted_ns - 2 * MS, submitted_ns=submitted_ns,
        signalled_ns=submitted_ns + 5 * MS, done_ns=submitted_ns + 6 * MS,
        decoded_ns=submitted_ns + 7 * MS, sent_ns=submitted_ns + 8 * MS, device_handle=handle,
        detections=2, device_seqno=seqno,
    )  # fmt: skip
    return made._replace(**changes)


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
        """Return the handle of an import from before the recording."""
        self._handle += 1
        return self._handle

    def take(self, time_ns: int, *inodes: int, thread: int = 0) -> int:
        handle = self.had()
        for index, inode in enumerate(inodes):
            at, tid = time_ns + index, thread or self.thread
            self.events += [
                event(at - 9, 'dma_buf_dynamic_attach', tid, dev_name=PCI, ino=inode),
                event(at, 'axl_dmabuf_import', tid, handle=handle, inode=inode),
            ]
        return handle

    def run(self, time_ns: int, handle: int, *inodes: int, **changes: Any) -> None:
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
        made = record(
            len(self.records) + 1, time_ns, inodes, handle, self.seqno, thread_id=self.thread
        )
        self.records.append(made._replace(**changes))

    def refused(self, time_ns: int, *inodes: int) -> None:
        """Add a frame whose job the card refused: the node notes only that it failed."""
        made = record(len(self.records) + 1, time_ns, inodes, 0, 0, thread_id=self.thread)
        nothing = dict.fromkeys(
            ('received_ns', 'submitted_ns', 'signalled_ns', 'decoded_ns', 'sent_ns'), 0
        )
        self.records.append(made._replace(kind=RecordKind.FAILED, done_ns=time_ns, **nothing))

    def give_back(
        self, time_ns: int, handle: int, *inodes: int, thread: int = DRIVER_THREAD
    ) -> None:
        for index, inode in enumerate(inodes):
            at = time_ns + index
            self.events += [
                event(at, 'axl_dmabuf_release', thread, handle=handle, inode=inode),
                event(at, 'dma_buf_detach', thread, dev_name=PCI, ino=inode),
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
    """Return imports from before the recording."""
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
    made = Observation(
        START,
        END,
        (
            NodeView(PID, '/capture', 'capture', seen, seen, tuple(shots)),
            NodeView(PID, '/inference', 'inference', facts, facts, tuple(card.records)),
        ),
        tuple(looks),
        Trace(sorted(card.events, key=lambda item: item.time_ns)),
        SOURCES,
        {PID: PID, THREAD: PID},
        dict.fromkeys(POOL, 'system'),
        frozenset(POOL),
        frozenset(),
        frozenset((81 << 20,)),
        (),
        3,
        (),
        (CopyShare(PID, 1000, 2),),
    )
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
    """Return the same with another view of the nodes of a role."""
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
    """Return whether I3 holds, and why not."""
    check = check_imports(seen)
    return check.holds, check.reason


def judged_node(
    card: Card, attached: Mapping[int, int] | None = None, **how: Any
) -> tuple[bool | None, str]:
    """Return :func:`judged` of one :func:`node` with one card."""
    return judged(observed([node(card, **how)], [card], attached))
