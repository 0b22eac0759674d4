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
An observation of a pipeline that keeps all invariants, to be spoilt by tests.

Frames, events and looks are as the kernel would give them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from observe import timeline_kit as clockwork

from zc_perception.observe.frame_log import FrameRecord, RecordKind
from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence.buffers import BufferObject, Snapshot
from zc_perception.verify.evidence.copies import CopyShare
from zc_perception.verify.evidence.kernel_events import Trace
from zc_perception.verify.invariants import all_checks
from zc_perception.verify.observation import NodeView, Observation

MS = 1_000_000
START, END = 1000 * MS, 2000 * MS
PCI = '0000:01:00.0'
PID, THREAD, DRIVER_THREAD = 100, 101, 7
POOL = (11, 12, 13)
DEVICE = 12  # st_dev of dma-bufs
PERIOD = 50 * MS
SOURCES = {
    'axl_dmabuf_import': 'tracepoint',
    'axl_dmabuf_release': 'tracepoint',
    'axl_submit': 'tracepoint',
    'axl_complete': 'tracepoint',
    'dma_buf_dynamic_attach': 'probe',
    'dma_buf_detach': 'probe',
    'dma_buf_mmap_internal': 'probe',
    'vb2_mmap': 'probe',
    'sched_process_fork': 'tracepoint',
}


def event(time_ns: int, name: str, tid: int = THREAD, **fields: Any) -> KernelEvent:
    """One line of the trace."""
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
    """Return a processed frame."""
    taken = published(number, inodes, submitted_ns - 3 * MS)
    made = taken._replace(
        kind=RecordKind.PROCESSED,
        received_ns=submitted_ns - 2 * MS,
        submitted_ns=submitted_ns,
        signalled_ns=submitted_ns + 5 * MS,
        done_ns=submitted_ns + 6 * MS,
        decoded_ns=submitted_ns + 7 * MS,
        sent_ns=submitted_ns + 8 * MS,
        device_handle=handle,
        detections=2,
        device_seqno=seqno,
    )
    return made._replace(**changes)


def published(number: int, inodes: tuple[int, ...], published_ns: int) -> FrameRecord:
    """Return what the capture node notes about the same frame."""
    return clockwork.published(number)._replace(
        number=number,
        generation=1,
        buffer_uid=9,
        stamp_ns=number * 1000,
        captured_ns=published_ns - MS,
        published_ns=published_ns,
        sent_ns=published_ns + MS,
        capture_cost_ns=MS,
        inodes=inodes,
        st_dev=DEVICE,
        thread_id=THREAD,
    )


def look(
    time_ns: int, attached: Mapping[int, Sequence[str]], exporter: str = 'system'
) -> Snapshot:
    """One at bufinfo."""
    objects = {
        inode: BufferObject(inode, 4096, exporter, list(devices))
        for inode, devices in attached.items()
    }
    return Snapshot(time_ns, time_ns + 100_000, objects)


def submits() -> list[tuple[int, int, int]]:
    """Return ``(time, inode, number)`` of the frames: 3 before the window, 20 in it, 2 behind."""
    times = [START + (index - 3) * PERIOD + 10 * MS for index in range(25)]
    return [(time_ns, POOL[index % len(POOL)], index + 1) for index, time_ns in enumerate(times)]


def cached_graph(**changes: Any) -> Observation:
    """Return a graph that imported its three buffers before the measurement."""
    events = [
        item
        for time_ns, inode, number in submits()
        for item in (
            event(
                time_ns - 300_000,
                'dma_fence_init',
                driver='axl',
                timeline='metis-0',
                context=1,
                seqno=number,
            ),
            event(
                time_ns - 200_000, 'axl_submit', handle=inode - 10, ctx=1, seqno=number, model=1
            ),
            event(
                time_ns + 4 * MS,
                'axl_complete',
                DRIVER_THREAD,
                handle=inode - 10,
                ctx=1,
                seqno=number,
                status=0,
            ),
        )
    ]
    records = [
        record(number, time_ns, (inode,), inode - 10, number)
        for time_ns, inode, number in submits()
    ]
    looks = [
        look(START - 20 * MS + index * 250 * MS, {inode: [PCI] for inode in POOL})
        for index in range(5)
    ]
    return _graph(events, records, looks, True, **changes)


def uncached_graph(second_device: str = '', **changes: Any) -> Observation:
    """
    Return a graph that imports each frame anew.

    :param second_device: another device that is attached to all buffers, all the time.
    """
    events = []
    always = [second_device] if second_device else []
    for time_ns, inode, number in submits():
        handle = number % 4
        events += [
            event(
                time_ns - 900_000,
                'dma_buf_dynamic_attach',
                ino=inode,
                dev_name=PCI,
                result='0xff41de9d0f8628a0',
            ),
            event(
                time_ns - 800_000,
                'axl_dmabuf_import',
                handle=handle,
                inode=inode,
                exporter='system',
                iova='0x100',
                size=4096,
            ),
            event(time_ns - 200_000, 'axl_submit', handle=handle, ctx=1, seqno=number, model=1),
            event(
                time_ns + 4 * MS,
                'axl_complete',
                DRIVER_THREAD,
                handle=handle,
                ctx=1,
                seqno=number,
                status=0,
            ),
            event(
                time_ns + 5 * MS, 'axl_dmabuf_release', DRIVER_THREAD, handle=handle, inode=inode
            ),
            event(time_ns + 5 * MS, 'dma_buf_detach', DRIVER_THREAD, ino=inode, dev_name=PCI),
        ]
    records = [
        record(number, time_ns, (inode,), number % 4, number)
        for time_ns, inode, number in submits()
    ]
    looks = [
        look(START - 20 * MS + index * 250 * MS, dict.fromkeys(POOL, always)) for index in range(5)
    ]
    return _graph(events, records, looks, False, **changes)


def _graph(
    events: list[KernelEvent],
    records: list[FrameRecord],
    looks: list[Snapshot],
    cached: bool,
    **changes: Any,
) -> Observation:
    facts = {
        'accelerator': 'axl',
        'pci_address': PCI,
        'import_cache': cached,
        'copies': {},
        'trial_imports': 3,
    }
    capture_facts = {'camera': 'v4l2', 'device': '/dev/video0 (vivid)', 'copies': {}}
    shots = [published(number, (inode,), time_ns - 3 * MS) for time_ns, inode, number in submits()]
    made = Observation(
        START,
        END,
        (
            NodeView(PID, '/capture', 'capture', capture_facts, capture_facts, tuple(shots)),
            NodeView(PID, '/inference', 'inference', facts, facts, tuple(records)),
        ),
        tuple(looks),
        Trace(sorted(events, key=lambda item: item.time_ns)),
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


def verdicts(seen: Observation) -> dict[str, bool | None]:
    """By check, whether it holds."""
    return {check.name: check.holds for check in all_checks(seen)}


def with_node(seen: Observation, role: str, **changes: Any) -> Observation:
    """Return the same with another view of the nodes of a role."""
    return replace(
        seen,
        nodes=tuple(
            replace(node, **changes) if node.role == role else node for node in seen.nodes
        ),
    )


def with_facts(
    seen: Observation, role: str, before: Mapping[str, Any] | None = None, **after: Any
) -> Observation:
    """Return the same with other facts."""
    return replace(
        seen,
        nodes=tuple(
            replace(node, before={**node.before, **(before or {})}, after={**node.after, **after})
            if node.role == role
            else node
            for node in seen.nodes
        ),
    )


def with_events(
    seen: Observation, *more: KernelEvent, without: Sequence[str] = (), lost: int = 0
) -> Observation:
    """Return the same with another trace."""
    assert seen.trace is not None
    kept = [item for item in seen.trace.events if item.name not in without]
    return replace(seen, trace=Trace(sorted([*kept, *more], key=lambda item: item.time_ns), lost))


def with_records(seen: Observation, change: Any) -> Observation:
    """
    Return the same with each record of the inference node replaced by ``change(record)``.

    ``None`` drops it.
    """
    records = [new for old in seen.nodes[1].records if (new := change(old)) is not None]
    return with_node(seen, 'inference', records=tuple(records))
