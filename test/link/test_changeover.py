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

"""A change between frames and messages: no duplicate, no disorder, no other loss."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from zc_perception.frame import Header
from zc_perception.link.changeover import BOTH_WAYS_S, Changeover, message_key


def directly(changeover: Changeover, *stamps: int, frame_id: str = 'left') -> list[bool]:
    return [changeover.accept_direct(Header(stamp, frame_id)) for stamp in stamps]


def by_message(changeover: Changeover, *stamps: int, frame_id: str = 'left') -> list[bool]:
    return [changeover.accept_message((frame_id, stamp)) for stamp in stamps]


def test_what_came_directly_does_not_come_again_by_message() -> None:
    both = Changeover()
    directly(both, 5, 6)
    both.changed(by_message=True)
    assert by_message(both, 5, 6, 7, 7) == [False, False, True, True]
    assert both.duplicates == 2


def test_each_object_stands_for_one_message_and_another_publisher_s_passes() -> None:
    both = Changeover()
    directly(both, 5, 5)
    both.changed(by_message=True)
    assert by_message(both, 5, 5, 5) == [False, False, True]
    both = Changeover()
    directly(both, 5)
    assert both.came_directly(('left', 5)) and not both.came_directly(('left', 5))


def test_messages_of_objects_that_were_left_out_are_late() -> None:
    both = Changeover()
    directly(both, 10, 20)
    both.changed(by_message=True)
    assert by_message(both, 12) == [False] and both.late == 1
    assert by_message(both, 12, frame_id='right') == [True]
    assert by_message(both, 20, 21) == [False, True]


@pytest.mark.parametrize('level', ['before the change', 'after it', 'by a newer one'])
def test_time_that_jumps_back_passes_once_messages_have_caught_up(level: str) -> None:
    both = Changeover()
    directly(both, 1000)
    if level == 'before the change':
        assert both.came_directly(('left', 1000))
    both.changed(by_message=True)
    if level != 'before the change':
        by_message(both, 1000 if level == 'after it' else 1001)
    assert by_message(both, 3, 2) == [True, True]


def test_without_a_stamp_everything_passes() -> None:
    both = Changeover()
    directly(both, 0)
    both.changed(by_message=True)
    assert by_message(both, 0, 0) == [True, True]
    both.changed(by_message=False)
    assert directly(both, 0, 0) == [True, True] and not both.duplicates


def test_an_object_whose_message_was_taken_is_dropped_once() -> None:
    both = Changeover()
    both.changed(by_message=True)
    by_message(both, 5, 6)
    both.changed(by_message=False)
    assert directly(both, 6, 6, 7) == [False, True, True] and both.duplicates == 1


def test_messages_are_taken_until_the_first_object_of_their_frame_id_comes() -> None:
    both = Changeover()
    assert not both.accept_last_message(('left', 1)), 'there was no change'
    both.changed(by_message=True)
    both.changed(by_message=False)
    assert both.accept_last_message(('left', 5))
    assert directly(both, 5, 6) == [False, True]
    assert not both.accept_last_message(('left', 7))
    assert both.accept_last_message(('right', 5))


def test_the_message_of_the_newest_object_that_was_ignored_is_level() -> None:
    both = Changeover()
    both.ignored += [Header(5, 'left'), Header(6, 'left'), Header(9, 'right')]
    assert [both.is_level(('left', stamp)) for stamp in (5, 6, 9)] == [False, True, False]
    assert not both.is_level(('other', 0))
    both.ignored.append(Header(2, 'left'))
    assert both.is_level(('left', 2)), 'time has gone back'


def test_nothing_is_dropped_two_seconds_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr('zc_perception.link.changeover.time.monotonic', lambda: now[0])
    both = Changeover()
    directly(both, 10, 20)
    both.changed(by_message=True)
    now[0] += BOTH_WAYS_S
    assert by_message(both, 10, 15, 20) == [True] * 3
    both.changed(by_message=False)
    now[0] += BOTH_WAYS_S
    assert not both.accept_last_message(('left', 30))
    assert directly(both, 10, 15, 20) == [True] * 3


def test_latched_messages_come_again_with_each_reader_and_are_known_each_time() -> None:
    both = Changeover(latched=True)
    directly(both, 1)
    for _ in range(3):
        assert both.came_directly(('left', 1))
    both.changed(by_message=True)
    assert by_message(both, 1, 2) == [False, True]
    both.changed(by_message=False)
    assert all(both.came_directly(('left', stamp)) for stamp in (1, 2))


def test_it_is_known_whose_frame_ids_come_directly() -> None:
    both = Changeover()
    directly(both, 1)
    assert both.sends_directly('left') and not both.sends_directly('right')
    both.changed(by_message=False)
    assert not both.sends_directly('left')


@pytest.mark.parametrize('remembered', [4, 256])
def test_memory_is_bounded_and_as_long_as_asked(remembered: int) -> None:
    both = Changeover(remembered)
    for stamp in range(1, 2001):
        directly(both, stamp, frame_id=f'frame {stamp}')
        both.came_directly(('', stamp))
        both.accept_message((f'message {stamp}', stamp))
        both.ignored.append(Header(stamp, f'ignored {stamp}'))
        both.is_level(('', stamp))
    for some in (both._came, both.taken, both._newest, both._newest_ignored, both._behind):
        assert 0 < len(some) <= remembered
    oldest = 2001 - remembered
    assert both.came_directly((f'frame {oldest}', oldest))


@given(st.lists(st.integers(1, 40), max_size=40, unique=True), st.data())
def test_any_change_to_messages_keeps_order_and_comes_once(
    stamps: list[int], data: st.DataObject
) -> None:
    """Messages may be any number of frames late, and some frames are left out."""
    stamps.sort()
    cut = data.draw(st.integers(0, len(stamps)))
    both = Changeover()
    taken = [s for s in stamps[:cut] if data.draw(st.booleans())]
    directly(both, *taken)
    read = data.draw(st.integers(0, cut))
    for stamp in stamps[:read]:
        both.came_directly(('left', stamp))
    both.changed(by_message=True)
    taken += [s for s in stamps[read:] if both.accept_message(('left', s))]
    assert taken == sorted(set(taken))
    assert set(stamps[cut:]) <= set(taken)


def test_a_message_s_key_is_its_header_s() -> None:
    stamp = SimpleNamespace(sec=2, nanosec=3)
    header = SimpleNamespace(frame_id='left', stamp=stamp)
    assert message_key(SimpleNamespace(header=header)) == ('left', 2_000_000_003)
    assert message_key(SimpleNamespace(header=b'jpeg')) is None
    assert message_key(SimpleNamespace(data='text')) is None
