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
Made-up lives of open files of the card.

There are the kernel's events, and what the node notes about the same frames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from verify.verify_kit import (
    cached_graph,
    DRIVER_THREAD,
    event,
    look,
    MS,
    PCI,
    PERIOD,
    PID,
    POOL,
    record,
    START,
    THREAD,
)

from zc_perception.observe.frame_log import FrameRecord, RecordKind
from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence.kernel_events import Trace
from zc_perception.verify.invariants import check_imports
from zc_perception.verify.observation import NodeView, Observation

TIMES = [START + 5 * MS + index * PERIOD for index in range(20)]


class Card:
    """
    One open file: handles and job numbers of its own.

    :param thread: that imports and submits.
    :param context: of its fences; 0: each job has its own.
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
        """Import an image; the handle."""
        handle = self.had()
        for index, inode in enumerate(inodes):
            attach = event(
                time_ns + index - 9,
                'dma_buf_dynamic_attach',
                thread or self.thread,
                ino=inode,
                dev_name=PCI,
            )
            self.events += [
                attach,
                event(
                    time_ns + index,
                    'axl_dmabuf_import',
                    thread or self.thread,
                    handle=handle,
                    inode=inode,
                ),
            ]
        return handle

    def run(
        self, time_ns: int, handle: int, *inodes: int, after_ns: int = 200_000, **changes: Any
    ) -> None:
        """Run a frame: the node notes its time, the kernel has the job a little later."""
        self.seqno += 1
        context = self.context or 1000 * self.thread + self.seqno
        job = {'handle': handle, 'ctx': context, 'seqno': self.seqno}
        done = event(time_ns + 4 * MS, 'axl_complete', DRIVER_THREAD, **job)
        self.events += [event(time_ns + after_ns, 'axl_submit', self.thread, **job), done]
        made = record(
            len(self.records) + 1, time_ns, inodes, handle, self.seqno, thread_id=self.thread
        )
        self.records.append(made._replace(**changes))

    def refused(self, time_ns: int, *inodes: int) -> None:
        """Add a frame of which the card took no job: the node notes only that it failed."""
        made = record(len(self.records) + 1, time_ns, inodes, 0, 0, thread_id=self.thread)
        nothing = dict.fromkeys(
            ('received_ns', 'submitted_ns', 'signalled_ns', 'decoded_ns', 'sent_ns'), 0
        )
        self.records.append(made._replace(kind=RecordKind.FAILED, done_ns=time_ns, **nothing))

    def give_back(
        self, time_ns: int, handle: int, *inodes: int, thread: int = DRIVER_THREAD
    ) -> None:
        """Release an image."""
        for index, inode in enumerate(inodes):
            release = event(
                time_ns + index, 'axl_dmabuf_release', thread, handle=handle, inode=inode
            )
            self.events += [
                release,
                event(time_ns + index, 'dma_buf_detach', thread, ino=inode, dev_name=PCI),
            ]

    def reopened(self) -> None:
        """From now on it is another open file."""
        self.context += 100
        self._handle = self.seqno = 0


def image(index: int, pool: Sequence[int] = POOL) -> int:
    """Return an image; the buffers take turns."""
    return pool[index % len(pool)]


def cached(card: Card, handles: Mapping[int, int], times: Sequence[int] = TIMES) -> None:
    """Frames that are run by the imports that there are: by buffer, the handle."""
    pool = tuple(handles)
    for index, time_ns in enumerate(times):
        card.run(time_ns, handles[image(index, pool)], image(index, pool))


def uncached(
    card: Card,
    times: Sequence[int] = TIMES,
    pool: Sequence[int] = POOL,
    *,
    more: Callable[[int, int], None] = lambda time_ns, inode: None,
) -> None:
    """Each frame is imported, run, and given back; *more* happens before each."""
    for index, time_ns in enumerate(times):
        inode = image(index, pool)
        more(time_ns - MS, inode)
        handle = card.take(time_ns - MS // 2, inode)
        card.run(time_ns, handle, inode)
        card.give_back(time_ns + 5 * MS, handle, inode)


def had(card: Card, pool: Sequence[int] = POOL) -> dict[int, int]:
    """Return imports from before the recording."""
    return {inode: card.had() for inode in pool}


def taken(card: Card, time_ns: int) -> dict[int, int]:
    """Import all buffers now."""
    return {inode: card.take(time_ns + index * 100_000, inode) for index, inode in enumerate(POOL)}


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
    Return the node whose cards these are.

    :param was_cached: when the window began, if not the same.
    :param trials: imports on trial that it counted.
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
    """
    Return what is seen of them.

    :param attached: by buffer, how often the card was attached before all events.
    """
    inodes = {inode for one in nodes for made in one.records for inode in made.inodes}
    before = look(
        START - 500 * MS, {inode: [PCI] * (attached or {}).get(inode, 0) for inode in inodes}
    )
    events = sorted((one for card in cards for one in card.events), key=lambda one: one.time_ns)
    threads = {thread: card.pid for card in cards for thread in (card.pid, card.thread)}
    return cached_graph(
        nodes=tuple(nodes), trace=Trace(events), snapshots=(before,), process_of=threads
    )


def judged(seen: Observation) -> tuple[bool | None, str]:
    """Of I3: whether it holds, and why not."""
    check = check_imports(seen)
    return check.holds, check.reason
