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

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from verify.verify_kit import (
    cached,
    cached_graph,
    Card,
    DRIVER_THREAD,
    event,
    had,
    image,
    judged,
    look,
    MS,
    node,
    observed,
    POOL,
    START,
    taken,
    TIMES,
    uncached,
)

from zc_perception.npu.axl.kind import Axl
from zc_perception.observe.frame_log import RecordKind
from zc_perception.verify.evidence.buffers import Snapshot
from zc_perception.verify.evidence.kernel_events import Trace
from zc_perception.verify.imports import FencePlaces, find_fences, FrameJob
from zc_perception.verify.invariants import all_checks, check_imports
from zc_perception.verify.observation import Observation

ALL = dict.fromkeys(POOL, 1)
OF_NO_FRAME = '20 imports belong to no frame, though the cache is off'


@pytest.mark.parametrize('given_back', [True, False])
def test_without_a_cache_an_import_that_no_job_reads_is_one_too_many(given_back: bool) -> None:
    card = Card()

    def twice(time_ns: int, inode: int) -> None:
        handle = card.take(time_ns, inode)
        if given_back:
            card.give_back(time_ns + 100_000, handle, inode, thread=card.thread)

    uncached(card, TIMES, more=twice)
    seen = observed([node(card, cached=False)], [card])
    assert judged(seen) == (False, OF_NO_FRAME)
    assert 'parameter import_cache' in check_imports(seen).next_step
    assert check_imports(seen).figures['imports'] == 40


def test_imports_on_trial_are_given_back_and_counted_by_the_node() -> None:
    card = Card()
    for inode in POOL:
        card.give_back(START + 3 * MS, card.take(START + 2 * MS, inode), inode, thread=card.thread)
    uncached(card, TIMES)
    assert judged(observed([node(card, cached=False, trials=3)], [card])) == (True, '')
    assert judged(observed([node(card, cached=False, trials=2)], [card]))[0] is False
    card.take(TIMES[4] + 2 * MS, POOL[0])
    assert judged(observed([node(card, cached=False, trials=9)], [card])) == (
        False,
        '1 imports belong to no frame, though the cache is off',
    )


def test_an_import_whose_job_is_still_to_come_when_the_recording_ends_is_no_matter() -> None:
    card = Card()
    uncached(card, TIMES)
    # The driver still has the previous frame, and its thread releases that import later.
    last = card.take(TIMES[-1] + 4 * MS, POOL[0])
    assert judged(observed([node(card, cached=False)], [card])) == (True, '')
    card.give_back(TIMES[-1] + 9 * MS, last, POOL[0], thread=card.thread)
    assert judged(observed([node(card, cached=False)], [card]))[0] is False


def test_the_import_of_a_frame_whose_job_the_card_refused_is_none_too_many() -> None:
    card = Card()
    uncached(card, TIMES)
    card.give_back(
        TIMES[5] + 22 * MS, card.take(TIMES[5] + 20 * MS, POOL[0]), POOL[0], thread=card.thread
    )
    without = observed([node(card, cached=False)], [card])
    card.refused(TIMES[5] + 21 * MS, POOL[0])
    assert judged(without) == (False, '1 imports belong to no frame, though the cache is off')
    assert judged(observed([node(card, cached=False)], [card])) == (True, '')


def turned(on: bool) -> Observation:
    """Change the parameter in the middle of the window."""
    card = Card()
    first, second = TIMES[:10], TIMES[10:]
    middle = TIMES[10] - 20 * MS
    if on:
        uncached(card, first)
        cached(card, taken(card, middle), second)
    else:
        handles = had(card)
        cached(card, handles, first)
        for inode, handle in handles.items():
            card.give_back(middle, handle, inode, thread=card.thread)
        uncached(card, second)
    return observed([node(card, cached=on, was_cached=not on)], [card], {} if on else ALL)


@pytest.mark.parametrize('on', [True, False])
def test_a_cache_that_is_turned_on_or_off_meanwhile_is_not_measured(on: bool) -> None:
    told = 'parameter import_cache of /inference (process 100) changed during the measurement'
    assert judged(turned(on)) == (None, told)


def opened_anew(times: int) -> Observation:
    """Let the card come back, so that everything is imported again."""
    card = Card()
    handles = had(card)
    length = len(TIMES) // (times + 1)
    for part in range(times + 1):
        cached(card, handles, TIMES[slice(part * length, (part + 1) * length)])
        if part < times:
            end = TIMES[(part + 1) * length - 1]
            for inode, handle in handles.items():
                card.give_back(end + 20 * MS, handle, inode, thread=card.thread)
            card.reopened()
            handles = taken(card, end + 30 * MS)
    return observed([node(card, cached=True)], [card], ALL)


def test_who_gives_everything_back_imports_it_once_more() -> None:
    assert judged(opened_anew(1)) == (True, '')
    assert judged(opened_anew(3)) == (
        False,
        'buffers were imported 6 times more often than the cache needs',
    )


def test_a_number_of_an_earlier_job_is_not_the_later_frame_s() -> None:
    """The frames before the window are not in the log."""
    card = Card()
    cached(card, had(card), [START - 800 * MS + index * MS for index in range(6)])
    card.records.clear()
    card.reopened()
    cached(card, taken(card, START - 400 * MS))
    lost = next(
        one
        for one in card.events
        if one.name == 'axl_submit' and one.fields['ctx'] == '101' and one.fields['seqno'] == '2'
    )
    card.events.remove(lost)
    told = '0 jobs of the driver have no frame, 1 frames have no job'
    assert judged(observed([node(card, cached=True)], [card], ALL)) == (False, told)


def test_a_cache_that_was_too_small_imports_again_what_it_threw_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = 64
    monkeypatch.setattr(Axl, 'EVENTS', replace(Axl.EVENTS, kept=entries))
    card = Card()
    times = [START + 5 * MS + index * 6 * MS for index in range(2 * entries + 4)]
    many = [100 + index for index in range(entries + 2)]
    handles = {}
    for index, time_ns in enumerate(times):
        inode = many[index % len(many)]
        if inode not in handles or (index >= len(many) and inode < 102):
            handles[inode] = card.take(time_ns - MS, inode)
        card.run(time_ns, handles[inode], inode)
    assert judged(observed([node(card, cached=True)], [card])) == (True, '')
    card.take(times[-1], 103)
    assert judged(observed([node(card, cached=True)], [card]))[0] is False


def test_a_driver_that_tells_no_job_numbers_is_followed_by_time() -> None:
    card = Card()
    cached(card, had(card))
    card.records = [one._replace(device_seqno=0) for one in card.records]
    assert judged(observed([node(card, cached=True)], [card], ALL)) == (True, '')


def test_a_cache_that_has_two_at_a_time_is_none() -> None:
    card = Card()
    times = [START - 300 * MS + index * 30 * MS for index in range(6)] + TIMES[:12]
    for index in range(0, 18, 2):
        pair = {60 + (index + more) % 6: times[index + more] for more in (0, 1)}
        handles = {inode: card.take(time_ns - MS, inode) for inode, time_ns in pair.items()}
        for inode, time_ns in pair.items():
            card.run(time_ns, handles[inode], inode)
        for inode in pair:
            card.give_back(times[index + 1] + 9 * MS, handles[inode], inode)
    told = 'buffers were imported 6 times more often than the cache needs'
    assert judged(observed([node(card, cached=True)], [card])) == (False, told)


def test_a_trace_that_cannot_be_read_everywhere_proves_nothing() -> None:
    seen = cached_graph()
    assert seen.trace is not None
    damaged = replace(seen, trace=Trace(seen.trace.events, damaged=2))
    assert {check.name: check.holds for check in all_checks(damaged)} == {
        'I1': True,
        'I2': True,
        'I3': None,
        'I4': None,
    }
    assert check_imports(damaged).reason == "the kernel's trace has 2 lines that cannot be read"
    lost = check_imports(replace(seen, trace=Trace(seen.trace.events, 3, 2)))
    assert lost.reason == "the kernel's trace lost 3 events and has 2 lines that cannot be read"


def test_another_process_s_release_of_the_same_buffer_by_the_same_number_is_its_own() -> None:
    first, second = Card(), Card(thread=201, context=2, pid=200)
    cached(first, taken(first, START - 100 * MS))
    cached(second, taken(second, START - 90 * MS), [time_ns + MS for time_ns in TIMES[:5]])
    for handle, inode in enumerate(POOL, 1):
        # On the driver's thread, after the job that it completed last.
        done = event(
            TIMES[4] + 20 * MS + handle, 'axl_complete', DRIVER_THREAD, ctx=2, seqno=handle,
            handle=handle,
        )  # fmt: skip
        second.events.append(done)
        second.give_back(TIMES[4] + 20 * MS + handle, handle, inode)
    nodes = [node(first, cached=True), node(second, cached=True, pid=200, name='/rear')]
    assert judged(observed(nodes, [first, second])) == (True, '')


def never_given_back(card: Card, times: list[int], wanted: int) -> None:
    """Import and run each frame; do not release the first *wanted* ones."""
    for index, time_ns in enumerate(times):
        inode = image(index)
        handle = card.take(time_ns - MS // 2, inode)
        card.run(time_ns, handle, inode)
        if index >= wanted:
            card.give_back(time_ns + 5 * MS, handle, inode)


def test_without_a_cache_an_import_has_to_be_given_back() -> None:
    card = Card()
    never_given_back(card, TIMES, 2)
    seen = observed([node(card, cached=False)], [card])
    assert judged(seen) == (
        False,
        '2 imports were not released after their frames, though the cache is off',
    )
    assert 'release_errors' in check_imports(seen).next_step


@pytest.mark.parametrize(('later', 'holds'), [(3, True), (4, False)])
def test_the_driver_may_give_an_import_back_some_frames_later(later: int, holds: bool) -> None:
    card = Card()
    uncached(card, TIMES[: -1 - later])
    never_given_back(card, TIMES[slice(-1 - later, None)], 1)
    assert judged(observed([node(card, cached=False)], [card]))[0] is holds


def test_the_import_of_a_job_that_was_given_up_may_last() -> None:
    card = Card()
    uncached(card, TIMES)
    handle = card.take(TIMES[3] + 20 * MS, POOL[0])
    card.run(TIMES[3] + 21 * MS, handle, POOL[0], kind=RecordKind.FAILED)
    assert judged(observed([node(card, cached=False)], [card])) == (True, '')


# Which buffers the driver's jobs read, by the fences in the buffers.


LEFT, RIGHT, BACK = POOL
FIRST, SECOND, THIRD = (
    FrameJob(START + index * MS, index + 1, frozenset((inode,)))
    for index, inode in enumerate(POOL)
)


def fences(time_ns: int, numbers: Mapping[int, Sequence[int]], driver: str = 'axl') -> Snapshot:
    """Return a look with these fences: by buffer, the numbers of the fences in it."""
    made = look(time_ns, dict.fromkeys(numbers, ()))
    for inode, found in numbers.items():
        made.objects[inode].reads += [(driver, number) for number in found]
    return made


def places(
    jobs: Sequence[FrameJob],
    *looks: Snapshot,
    strangers: Sequence[int] = (),
    others: Mapping[int, int] | None = None,
) -> FencePlaces:
    """Return where the jobs' fences are; *others*: by job, a buffer of another node's frame."""
    users = {job.seqno: set(job.inodes) for job in jobs}
    for number, inode in (others or {}).items():
        users[number].add(inode)
    return find_fences(jobs, users, strangers, looks, ['axl'])


def test_what_is_not_there_says_nothing() -> None:
    late = fences(START - MS, {LEFT: [], RIGHT: [1]})
    assert places([FIRST], late) == FencePlaces(), 'the job came after the look'
    assert places([FIRST], fences(START + 20 * MS, {RIGHT: [1]})) == FencePlaces(), (
        'the buffer is gone'
    )
    assert places([FIRST], fences(START + 20 * MS, {LEFT: [], RIGHT: []})) == FencePlaces(), (
        'the driver adds no fences'
    )
    assert (
        places([FIRST], fences(START + 20 * MS, {LEFT: [], RIGHT: [1]}, driver='gpu'))
        == FencePlaces()
    ), "another driver's"


def test_a_number_that_several_open_files_have_accuses_nobody() -> None:
    seen = fences(START + 20 * MS, {LEFT: [], RIGHT: [1]})
    assert places([FIRST], seen) == FencePlaces(set(), {0})
    assert places([FIRST], seen, others={1: RIGHT}) == FencePlaces(), "it is the other node's job"
    assert places([FIRST], seen, strangers=[1]) == FencePlaces(), (
        "it may be the other program's job"
    )


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
    check = check_imports(with_fences(cached_graph(), {}))
    assert check.holds is True and check.figures['frames_confirmed_by_fence'] > 3
    assert len(check.figures['not_seen']) == 1, check.figures['not_seen']
    unsure = check_imports(cached_graph())
    assert unsure.holds is True and unsure.figures['frames_confirmed_by_fence'] == 0
    assert (
        'whether the images of 3 handles from before the recording are the right ones'
        in unsure.figures['not_seen'][1]
    )


def test_handles_that_were_exchanged_before_the_recording_are_found_out() -> None:
    check = check_imports(with_fences(cached_graph(), {LEFT: RIGHT, RIGHT: BACK, BACK: LEFT}))
    assert check.holds is False and 'the fence of their job is in another buffer' in check.reason
    assert (
        check.figures['frames_not_imported'] == 0
        and check.figures['frames_confirmed_by_fence'] == 0
    )
