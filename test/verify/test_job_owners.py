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
from verify.verify_kit import (
    cached,
    Card,
    had,
    judged,
    MS,
    node,
    observed,
    PID,
    POOL,
    START,
    THREAD,
    TIMES,
    uncached,
)

from zc_perception.verify.observation import Observation

MAIN = 107  # a thread that submits nothing
REAR = tuple(inode + 100 for inode in POOL)
Pair = tuple[Card, Card]


def pair(*, seqno: int = 0, contexts: bool = True) -> Pair:
    """Return both open files, with handles that repeat."""
    front, rear = Card(context=2 * contexts), Card(thread=THREAD + 50, context=3 * contexts)
    rear.seqno = seqno
    return front, rear


def run(
    cards: Pair, with_cache: bool, pool: tuple[int, ...] = REAR, later_ns: int = MS
) -> dict[int, int]:
    """Run both nodes' frames; return by buffer how often the card was attached before."""
    for card, inodes, later in zip(cards, (POOL, pool), (0, later_ns), strict=True):
        times = [time_ns + later for time_ns in TIMES]
        if with_cache:
            cached(card, had(card, inodes), times)
        else:
            uncached(card, times, inodes)
    return dict.fromkeys((*POOL, *REAR), 1) if with_cache else {}


def seen(
    cards: Pair, with_cache: bool, attached: dict[int, int], *, threads: bool = True
) -> Observation:
    """Return the observation; *threads*: whether log and trace have equal thread numbers."""
    nodes = [
        node(card, cached=with_cache, name=name)
        for card, name in zip(cards, ('/front', '/rear'), strict=True)
    ]
    if not threads:
        nodes = [
            replace(one, records=tuple(old._replace(thread_id=9) for old in one.records))
            for one in nodes
        ]
    return observed(nodes, cards, attached)


@pytest.mark.parametrize('with_cache', [True, False])
@pytest.mark.parametrize('seqno', [0, 1, 3, 1000])
@pytest.mark.parametrize('later_ns', [0, 100_000, MS, 20 * MS])
@pytest.mark.parametrize('threads', [True, False])
@pytest.mark.parametrize('contexts', [True, False])
@pytest.mark.parametrize('pool', [REAR, POOL], ids=['two cameras', 'one camera'])
def test_two_good_nodes_of_one_process(
    with_cache: bool,
    seqno: int,
    later_ns: int,
    threads: bool,
    contexts: bool,
    pool: tuple[int, ...],
) -> None:
    cards = pair(seqno=seqno, contexts=contexts)
    attached = run(cards, with_cache, pool, later_ns)
    assert judged(seen(cards, with_cache, attached, threads=threads)) == (True, '')


@pytest.mark.parametrize('pool', [REAR, POOL], ids=['two cameras', 'one camera'])
def test_imports_that_another_thread_made_before_the_first_frame(pool: tuple[int, ...]) -> None:
    cards = pair()
    for card, inodes in zip(cards, (POOL, pool), strict=True):
        cached(card, {inode: card.take(START + MS, inode, thread=MAIN) for inode in inodes})
    whole = seen(cards, True, {})
    assert judged(replace(whole, process_of={**whole.process_of, MAIN: PID})) == (True, '')


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


def submits_one_handle(rear: Card) -> None:
    """Submit one handle for all buffers; the log names it, too."""
    rear.events = [
        replace(one, fields={**one.fields, 'handle': '1'}) if one.name == 'axl_submit' else one
        for one in rear.events
    ]
    rear.records = [one._replace(device_handle=1) for one in rear.records]


WRONG_BUFFER = 'frames were submitted whose buffer was not imported'


@pytest.mark.parametrize(
    ('spoil', 'with_cache', 'told'),
    [
        (drops_a_job, True, '0 jobs of the driver have no frame, 1 frames have no job'),
        (drops_a_job, False, '0 jobs of the driver have no frame, 1 frames have no job'),
        (has_a_job_too_many, True, '1 jobs of the driver have no frame, 0 frames have'),
        (takes_the_other_s_buffer, False, WRONG_BUFFER),
        (imports_twice, True, 'imported'),
        (imports_twice, False, 'imports'),
        (submits_one_handle, True, WRONG_BUFFER),
        (submits_one_handle, False, WRONG_BUFFER),
    ],
)
@pytest.mark.parametrize('seqno', [0, 1000])
@pytest.mark.parametrize('threads', [True, False])
def test_one_broken_node_of_two(
    spoil: Callable[[Card], None], with_cache: bool, told: str, seqno: int, threads: bool
) -> None:
    cards = pair(seqno=seqno)
    attached = run(cards, with_cache)
    spoil(cards[1])
    holds, reason = judged(seen(cards, with_cache, attached, threads=threads))
    assert holds is False and (told in reason or 'imported' in reason), reason
