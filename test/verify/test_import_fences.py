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

"""Which buffers the driver's jobs read, by the fences that lie in the buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verify.verify_kit import cached_graph, look, MS, POOL, START

from zc_perception.verify.evidence.buffers import Snapshot
from zc_perception.verify.imports import FencePlaces, find_fences, FrameJob
from zc_perception.verify.invariants import check_imports
from zc_perception.verify.observation import Observation

LEFT, RIGHT, BACK = POOL
FIRST, SECOND, THIRD = (
    FrameJob(START + index * MS, index + 1, frozenset((inode,)))
    for index, inode in enumerate(POOL)
)


def fences(time_ns: int, numbers: Mapping[int, Sequence[int]], driver: str = 'axl') -> Snapshot:
    """Return a look: by buffer, the numbers of the fences in it."""
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
    """
    Where they are.

    :param others: by job number, the buffer of another node's frame.
    """
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
    """
    Add fences at each look.

    The fence of each buffer's last job is there, or in the buffer with which it is exchanged.
    """
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
        'whether the images of 3 handles from before the recording were exchanged'
        in unsure.figures['not_seen'][1]
    )


def test_handles_that_were_exchanged_before_the_recording_are_found_out() -> None:
    check = check_imports(with_fences(cached_graph(), {LEFT: RIGHT, RIGHT: BACK, BACK: LEFT}))
    assert check.holds is False and 'the fence of their job lies in another buffer' in check.reason
    assert (
        check.figures['frames_not_imported'] == 0
        and check.figures['frames_confirmed_by_fence'] == 0
    )
