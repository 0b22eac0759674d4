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

"""Two nodes of one process each open the card: I3 holds for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from verify.card_kit import Card, judged, node, observed
from verify.verify_kit import MS, PERIOD, PID, POOL, START, THREAD

from zc_perception.verify.observation import NodeView, Observation

TIMES = [START + 5 * MS + index * PERIOD for index in range(20)]
MAIN = 107  # a thread that submits nothing
REAR = tuple(inode + 100 for inode in POOL)
ATTACHED = dict.fromkeys((*POOL, *REAR), 1)
Pair = tuple[Card, Card]


def pair(*, seqno: int = 0, contexts: bool = True) -> Pair:
    """Both open files, with handles that repeat."""
    front, rear = Card(context=2 * contexts), Card(thread=THREAD + 50, context=3 * contexts)
    rear.seqno = seqno
    return front, rear


def cached(card: Card, pool: tuple[int, ...], later_ns: int, **changes: int) -> None:
    handles = {inode: card.had() for inode in pool}
    for index, time_ns in enumerate(TIMES):
        inode = pool[index % len(pool)]
        card.run(time_ns + later_ns, handles[inode], inode, **changes)


def uncached(card: Card, pool: tuple[int, ...], later_ns: int, **changes: int) -> None:
    for index, time_ns in enumerate(TIMES):
        inode = pool[index % len(pool)]
        handle = card.take(time_ns + later_ns - 300_000, inode)
        card.run(time_ns + later_ns, handle, inode, **changes)
        card.give_back(time_ns + later_ns + 5 * MS, handle, inode)


def views(cards: Pair, is_cached: bool, *, threads: bool = True) -> list[NodeView]:
    """Both nodes. :param threads: whether their logs have the same thread numbers as the trace."""
    nodes = [
        node(card, cached=is_cached, name=name)
        for card, name in zip(cards, ('/front', '/rear'), strict=True)
    ]
    if threads:
        return nodes
    return [
        replace(one, records=tuple(old._replace(thread_id=9) for old in one.records))
        for one in nodes
    ]


def both(
    run: Callable[..., None],
    cards: Pair,
    later_ns: int = MS,
    pool: tuple[int, ...] = REAR,
    *,
    threads: bool = True,
) -> Observation:
    run(cards[0], POOL, 0)
    run(cards[1], pool, later_ns)
    is_cached = run is cached
    return observed(views(cards, is_cached, threads=threads), cards, ATTACHED if is_cached else {})


@pytest.mark.parametrize('run', [cached, uncached])
@pytest.mark.parametrize('seqno', [0, 1, 3, 1000])
@pytest.mark.parametrize('later_ns', [0, 100_000, MS, 20 * MS])
@pytest.mark.parametrize('threads', [True, False])
@pytest.mark.parametrize('contexts', [True, False])
@pytest.mark.parametrize('pool', [REAR, POOL], ids=['two cameras', 'one camera'])
def test_two_good_nodes_of_one_process(
    run: Callable[..., None],
    seqno: int,
    later_ns: int,
    threads: bool,
    contexts: bool,
    pool: tuple[int, ...],
) -> None:
    seen = both(run, pair(seqno=seqno, contexts=contexts), later_ns, pool, threads=threads)
    assert judged(seen) == (True, '')


@pytest.mark.parametrize('pool', [REAR, POOL], ids=['two cameras', 'one camera'])
def test_imports_that_another_thread_made_before_the_first_frame(pool: tuple[int, ...]) -> None:
    cards = pair()
    for card, inodes in zip(cards, (POOL, pool), strict=True):
        handles = {
            inode: card.take(START + MS + index, inode, thread=MAIN)
            for index, inode in enumerate(inodes)
        }
        for index, time_ns in enumerate(TIMES):
            inode = inodes[index % len(inodes)]
            card.run(time_ns, handles[inode], inode)
    seen = observed(views(cards, True), cards)
    assert judged(replace(seen, process_of={**seen.process_of, MAIN: PID})) == (True, '')


def drops_a_job(rear: Card) -> None:
    rear.events.remove(next(one for one in rear.events if one.name == 'axl_submit'))


def has_a_job_too_many(rear: Card) -> None:
    rear.run(TIMES[7] + 30 * MS, 1, REAR[0])
    rear.records.pop()


def takes_the_other_s_buffer(rear: Card) -> None:
    rear.events = [
        replace(one, fields={**one.fields, 'inode': str(POOL[0])})
        if one.name in ('axl_dmabuf_import', 'axl_dmabuf_release')
        else one
        for one in rear.events
    ]


def imports_twice(rear: Card) -> None:
    for time_ns in TIMES:
        rear.take(time_ns + 2 * MS, REAR[0])


def imports_nothing(rear: Card) -> None:
    rear.events = [one for one in rear.events if one.name != 'axl_dmabuf_import']


def submits_one_handle(rear: Card) -> None:
    """Submit one handle for all buffers; the log says so, too."""
    rear.events = [
        replace(one, fields={**one.fields, 'handle': '1'}) if one.name == 'axl_submit' else one
        for one in rear.events
    ]
    rear.records = [one._replace(device_handle=1) for one in rear.records]


FAULTS = {
    'drops a job': (
        drops_a_job,
        (cached, uncached),
        '0 jobs of the driver are no frame of a node, 1 frames have no job',
    ),
    'a job too many': (
        has_a_job_too_many,
        (cached,),
        '1 jobs of the driver are no frame of a node, 0 frames have no job',
    ),
    "the other's buffer": (
        takes_the_other_s_buffer,
        (uncached,),
        'frames were submitted whose buffer was not imported',
    ),
    'imports twice': (imports_twice, (cached, uncached), 'imports'),
    'imports nothing': (imports_nothing, (uncached,), 'frames'),
    'one handle': (
        submits_one_handle,
        (cached, uncached),
        'frames were submitted whose buffer was not imported',
    ),
}
BROKEN = [(fault, run) for fault, (_, runs, _) in FAULTS.items() for run in runs]


@pytest.mark.parametrize(
    ('fault', 'run'), BROKEN, ids=[f'{fault}, {run.__name__}' for fault, run in BROKEN]
)
@pytest.mark.parametrize('seqno', [0, 1000])
@pytest.mark.parametrize('threads', [True, False])
def test_one_broken_node_of_two(
    fault: str, run: Callable[..., None], seqno: int, threads: bool
) -> None:
    cards = pair(seqno=seqno)
    run(cards[0], POOL, 0)
    run(cards[1], REAR, MS)
    FAULTS[fault][0](cards[1])
    is_cached = run is cached
    holds, reason = judged(
        observed(views(cards, is_cached, threads=threads), cards, ATTACHED if is_cached else {})
    )
    assert holds is False and (FAULTS[fault][2] in reason or 'imported' in reason), reason
