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

"""I3 counts imports by their purpose: each frame's own, or once for each new buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from verify import verify_kit as kit
from verify.verify_kit import MS, POOL, START, TIMES

from zc_perception.npu.axl.kind import Axl
from zc_perception.observe.frame_log import RecordKind
from zc_perception.verify.evidence.buffers import Snapshot
from zc_perception.verify.evidence.kernel_events import Trace
from zc_perception.verify.imports import FencePlaces, find_fences, FrameJob
from zc_perception.verify.invariants import check_imports
from zc_perception.verify.observation import Observation

ALL = dict.fromkeys(POOL, 1)
OF_NO_FRAME = '20 imports belong to no frame, though the cache is off'


@pytest.mark.parametrize('given_back', [True, False])
def test_without_a_cache_an_import_that_no_job_reads_is_one_too_many(given_back: bool) -> None:
    card = kit.Card()

    def twice(time_ns: int, inode: int) -> None:
        handle = card.take(time_ns, inode)
        if given_back:
            card.give_back(time_ns + 100_000, handle, inode, thread=card.thread)

    kit.uncached(card, more=twice)
    seen = kit.observed([kit.node(card, cached=False)], [card])
    assert kit.judged(seen) == (False, OF_NO_FRAME)
    assert 'parameter import_cache' in check_imports(seen).next_step
    assert check_imports(seen).figures['imports'] == 40


def test_imports_on_trial_are_given_back_and_counted_by_the_node() -> None:
    card = kit.Card()
    for inode in POOL:
        card.give_back(START + 3 * MS, card.take(START + 2 * MS, inode), inode, thread=card.thread)
    kit.uncached(card)
    assert kit.judged_node(card, cached=False, trials=3) == (True, '')
    assert kit.judged_node(card, cached=False, trials=2)[0] is False
    card.take(TIMES[4] + 2 * MS, POOL[0])
    assert kit.judged_node(card, cached=False, trials=9) == (
        False,
        '1 imports belong to no frame, though the cache is off',
    )


def test_an_import_whose_job_is_still_to_come_when_the_recording_ends_is_no_matter() -> None:
    card = kit.Card()
    kit.uncached(card)
    # The driver still has the previous frame, and its thread releases that import later.
    last = card.take(TIMES[-1] + 4 * MS, POOL[0])
    assert kit.judged_node(card, cached=False) == (True, '')
    card.give_back(TIMES[-1] + 9 * MS, last, POOL[0], thread=card.thread)
    assert kit.judged_node(card, cached=False)[0] is False


def test_the_import_of_a_frame_whose_job_the_card_refused_is_none_too_many() -> None:
    card = kit.Card()
    kit.uncached(card)
    card.give_back(
        TIMES[5] + 22 * MS, card.take(TIMES[5] + 20 * MS, POOL[0]), POOL[0], thread=card.thread
    )
    without = kit.observed([kit.node(card, cached=False)], [card])
    card.refused(TIMES[5] + 21 * MS, POOL[0])
    assert kit.judged(without) == (False, '1 imports belong to no frame, though the cache is off')
    assert kit.judged_node(card, cached=False) == (True, '')


@pytest.mark.parametrize('on', [True, False])
def test_a_cache_that_is_turned_on_or_off_meanwhile_is_not_measured(on: bool) -> None:
    told = 'parameter import_cache of /inference (process 100) changed during the measurement'
    card = kit.Card()
    kit.uncached(card)
    assert kit.judged_node(card, cached=on, was_cached=not on) == (None, told)


def opened_anew(times: int) -> Observation:
    """Let the card come back, so that everything is imported again."""
    card = kit.Card()
    handles = kit.had(card)
    length = len(TIMES) // (times + 1)
    for part in range(times + 1):
        kit.cached(card, handles, TIMES[slice(part * length, (part + 1) * length)])
        if part < times:
            end = TIMES[(part + 1) * length - 1]
            for inode, handle in handles.items():
                card.give_back(end + 20 * MS, handle, inode, thread=card.thread)
            card.reopened()
            handles = kit.taken(card, end + 30 * MS)
    return kit.observed([kit.node(card, cached=True)], [card], ALL)


def test_who_gives_everything_back_imports_it_once_more() -> None:
    assert kit.judged(opened_anew(1)) == (True, '')
    assert kit.judged(opened_anew(3)) == (
        False,
        'buffers were imported without need 6 times, though the cache is on',
    )


def test_a_number_of_an_earlier_job_is_not_the_later_frame_s() -> None:
    """The frames before the window are not in the log."""
    card = kit.Card()
    kit.cached(card, kit.had(card), [START - 800 * MS + index * MS for index in range(6)])
    card.records.clear()
    card.reopened()
    kit.cached(card, kit.taken(card, START - 400 * MS))
    second = {'ctx': '101', 'seqno': '2'}.items()
    submitted = (one for one in card.events if one.name == 'axl_submit')
    card.events.remove(next(one for one in submitted if second <= one.fields.items()))
    told = '0 jobs of the driver have no frame, 1 frames have no job'
    assert kit.judged_node(card, ALL, cached=True) == (False, told)


def test_a_cache_that_was_too_small_imports_again_what_it_threw_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = 64
    monkeypatch.setattr(Axl, 'EVENTS', replace(Axl.EVENTS, kept=entries))
    card = kit.Card()
    times = [START + 5 * MS + index * 6 * MS for index in range(2 * entries + 4)]
    many = [100 + index for index in range(entries + 2)]
    handles = {}
    for index, time_ns in enumerate(times):
        inode = many[index % len(many)]
        if inode not in handles or (index >= len(many) and inode < 102):
            handles[inode] = card.take(time_ns - MS, inode)
        card.run(time_ns, handles[inode], inode)
    assert kit.judged_node(card, cached=True) == (True, '')
    card.take(times[-1], 103)
    assert kit.judged_node(card, cached=True)[0] is False


def test_a_driver_that_tells_no_job_numbers_is_followed_by_time() -> None:
    card = kit.Card()
    kit.cached(card, kit.had(card))
    card.records = [one._replace(device_seqno=0) for one in card.records]
    assert kit.judged_node(card, ALL, cached=True) == (True, '')


def test_a_cache_that_has_two_at_a_time_is_none() -> None:
    card = kit.Card()
    times = [START - 300 * MS + index * 30 * MS for index in range(6)] + TIMES[:12]
    for index in range(0, 18, 2):
        pair = {60 + (index + more) % 6: times[index + more] for more in (0, 1)}
        handles = {inode: card.take(time_ns - MS, inode) for inode, time_ns in pair.items()}
        for inode, time_ns in pair.items():
            card.run(time_ns, handles[inode], inode)
        for inode in pair:
            card.give_back(times[index + 1] + 9 * MS, handles[inode], inode)
    told = 'buffers were imported without need 6 times, though the cache is on'
    assert kit.judged_node(card, cached=True) == (False, told)


def test_a_trace_that_cannot_be_read_everywhere_proves_nothing() -> None:
    seen = kit.cached_graph()
    assert seen.trace is not None
    damaged = replace(seen, trace=Trace(seen.trace.events, damaged=2))
    assert kit.verdicts(damaged) == {'I1': True, 'I2': True, 'I3': None, 'I4': None}
    assert check_imports(damaged).reason == "the kernel's trace has 2 lines that cannot be read"
    lost = check_imports(replace(seen, trace=Trace(seen.trace.events, 3, 2)))
    assert lost.reason == "the kernel's trace lost 3 events and has 2 lines that cannot be read"


def test_another_process_s_release_of_the_same_buffer_by_the_same_number_is_its_own() -> None:
    first, second = kit.Card(), kit.Card(thread=201, context=2, pid=200)
    kit.cached(first, kit.taken(first, START - 100 * MS))
    kit.cached(second, kit.taken(second, START - 90 * MS), [time_ns + MS for time_ns in TIMES[:5]])
    for handle, inode in enumerate(POOL, 1):
        # On the driver's thread, after the job that it completed last.
        done = kit.event(
            TIMES[4] + 20 * MS + handle, 'axl_complete', kit.DRIVER_THREAD, ctx=2, seqno=handle,
            handle=handle,
        )  # fmt: skip
        second.events.append(done)
        second.give_back(TIMES[4] + 20 * MS + handle, handle, inode)
    nodes = [kit.node(first, cached=True), kit.node(second, cached=True, pid=200, name='/rear')]
    assert kit.judged(kit.observed(nodes, [first, second])) == (True, '')


@pytest.mark.parametrize(('frames', 'kept', 'left'), [(20, 2, 2), (5, 1, 1), (4, 1, 0)])
def test_an_import_has_to_be_given_back_after_a_few_frames(
    frames: int, kept: int, left: int
) -> None:
    """Of the last *frames*, the first *kept* keep their imports."""
    card = kit.Card()
    kit.uncached(card, TIMES[: len(TIMES) - frames])
    kit.uncached(card, TIMES[slice(-frames, None)], kept=kept)
    check = check_imports(kit.observed([kit.node(card, cached=False)], [card]))
    told = f'{left} imports were not released after their frames, though the cache is off'
    assert (check.holds, check.reason) == ((False, told) if left else (True, ''))
    assert ('release_errors' in check.next_step) is bool(left)


def test_the_import_of_a_job_that_was_given_up_may_last() -> None:
    card = kit.Card()
    kit.uncached(card)
    handle = card.take(TIMES[3] + 20 * MS, POOL[0])
    card.run(TIMES[3] + 21 * MS, handle, POOL[0], kind=RecordKind.FAILED)
    assert kit.judged_node(card, cached=False) == (True, '')


# Two nodes of one process each open the card: I3 holds for both.


MAIN = 107  # a thread that submits nothing
REAR = tuple(inode + 100 for inode in POOL)
TwoCards = tuple[kit.Card, kit.Card]


def two_cards(*, seqno: int = 0, contexts: bool = True) -> TwoCards:
    """Return both open files, with handles that repeat."""
    front, rear = (
        kit.Card(context=2 * contexts),
        kit.Card(thread=kit.THREAD + 50, context=3 * contexts),
    )
    rear.seqno = seqno
    return front, rear


def run_both(
    cards: TwoCards, with_cache: bool, pool: tuple[int, ...] = REAR, later_ns: int = MS
) -> dict[int, int]:
    """Run both nodes' frames; return by buffer how often the card was attached before."""
    for card, inodes, later in zip(cards, (POOL, pool), (0, later_ns), strict=True):
        times = [time_ns + later for time_ns in TIMES]
        if with_cache:
            kit.cached(card, kit.had(card, inodes), times)
        else:
            kit.uncached(card, times, inodes)
    return dict.fromkeys((*POOL, *REAR), 1) if with_cache else {}


def both_seen(
    cards: TwoCards, with_cache: bool, attached: dict[int, int], *, threads: bool = True
) -> Observation:
    """Return the observation; *threads*: whether log and trace have equal thread numbers."""
    nodes = [
        kit.node(card, cached=with_cache, name=name)
        for card, name in zip(cards, ('/front', '/rear'), strict=True)
    ]
    if not threads:
        nodes = [
            replace(one, records=tuple(old._replace(thread_id=9) for old in one.records))
            for one in nodes
        ]
    return kit.observed(nodes, cards, attached)


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
    cards = two_cards(seqno=seqno, contexts=contexts)
    attached = run_both(cards, with_cache, pool, later_ns)
    assert kit.judged(both_seen(cards, with_cache, attached, threads=threads)) == (True, '')


@pytest.mark.parametrize('pool', [REAR, POOL], ids=['two cameras', 'one camera'])
def test_imports_that_another_thread_made_before_the_first_frame(pool: tuple[int, ...]) -> None:
    cards = two_cards()
    for card, inodes in zip(cards, (POOL, pool), strict=True):
        kit.cached(card, {inode: card.take(START + MS, inode, thread=MAIN) for inode in inodes})
    whole = both_seen(cards, True, {})
    assert kit.judged(replace(whole, process_of={**whole.process_of, MAIN: kit.PID})) == (True, '')


def drops_a_job(rear: kit.Card) -> None:
    rear.events.remove(next(one for one in rear.events if one.name == 'axl_submit'))


def has_a_job_too_many(rear: kit.Card) -> None:
    rear.run(TIMES[7] + 30 * MS, 1, REAR[0])
    rear.records.pop()


def takes_the_other_s_buffer(rear: kit.Card) -> None:
    rear.events = [
        replace(one, fields={**one.fields, 'inode': str(POOL[0])})
        if one.name in ('axl_dmabuf_import', 'axl_dmabuf_release')
        else one
        for one in rear.events
    ]


def imports_twice(rear: kit.Card) -> None:
    for time_ns in TIMES:
        rear.take(time_ns + 2 * MS, REAR[0])


def submits_one_handle(rear: kit.Card) -> None:
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
    spoil: Callable[[kit.Card], None], with_cache: bool, told: str, seqno: int, threads: bool
) -> None:
    cards = two_cards(seqno=seqno)
    attached = run_both(cards, with_cache)
    spoil(cards[1])
    holds, reason = kit.judged(both_seen(cards, with_cache, attached, threads=threads))
    assert holds is False and (told in reason or 'imported' in reason), reason


# Which buffers the driver's jobs read, by the fences in the buffers.


LEFT, RIGHT, BACK = POOL
FIRST = FrameJob(START, 1, frozenset((LEFT,)))


def fences(time_ns: int, numbers: Mapping[int, Sequence[int]], driver: str = 'axl') -> Snapshot:
    """Return a look with these fences: by buffer, the numbers of the fences in it."""
    made = kit.look(time_ns, dict.fromkeys(numbers, ()))
    for inode, found in numbers.items():
        made.objects[inode].reads += [(driver, number) for number in found]
    return made


def places(
    looked: Snapshot, strangers: Sequence[int] = (), others: Sequence[int] = ()
) -> FencePlaces:
    """Return where the first job's fence is; *others*: buffers of another node's job 1."""
    return find_fences([FIRST], {1: {LEFT, *others}}, strangers, [looked], ['axl'])


def test_what_is_not_there_says_nothing() -> None:
    now = START + 20 * MS
    for looked, why in (
        (fences(START - MS, {LEFT: [], RIGHT: [1]}), 'the job came after the look'),
        (fences(now, {RIGHT: [1]}), 'the buffer is gone'),
        (fences(now, {LEFT: [], RIGHT: []}), 'the driver adds no fences'),
        (fences(now, {LEFT: [], RIGHT: [1]}, driver='gpu'), "another driver's"),
    ):
        assert places(looked) == FencePlaces(), why


def test_a_number_that_several_open_files_have_accuses_nobody() -> None:
    seen = fences(START + 20 * MS, {LEFT: [], RIGHT: [1]})
    assert places(seen) == FencePlaces(set(), {0})
    assert places(seen, others=[RIGHT]) == FencePlaces(), "it is the other node's job"
    assert places(seen, strangers=[1]) == FencePlaces(), "it may be the other program's job"


def with_fences(seen: Observation, exchanged: Mapping[int, int]) -> Observation:
    jobs = [
        (record.submitted_ns, record.inodes[0], record.device_seqno)
        for record in seen.nodes[1].records
    ]
    for made in seen.snapshots:
        last = {inode: number for time_ns, inode, number in jobs if time_ns < made.start_ns}
        for inode, number in last.items():
            made.objects[exchanged.get(inode, inode)].reads.append(('axl', number))
    return seen


def test_handles_of_the_right_buffers_are_confirmed() -> None:
    check = check_imports(with_fences(kit.cached_graph(), {}))
    assert check.holds is True and check.figures['frames_confirmed_by_fence'] > 3
    assert len(check.figures['not_seen']) == 1, check.figures['not_seen']
    unsure = check_imports(kit.cached_graph())
    assert unsure.holds is True and unsure.figures['frames_confirmed_by_fence'] == 0
    assert (
        'whether the images of 3 handles from before the recording are the right ones'
        in unsure.figures['not_seen'][1]
    )


def test_handles_that_were_exchanged_before_the_recording_are_found_out() -> None:
    check = check_imports(with_fences(kit.cached_graph(), {LEFT: RIGHT, RIGHT: BACK, BACK: LEFT}))
    assert check.holds is False and 'the fence of their job is in another buffer' in check.reason
    assert (
        check.figures['frames_not_imported'] == 0
        and check.figures['frames_confirmed_by_fence'] == 0
    )
