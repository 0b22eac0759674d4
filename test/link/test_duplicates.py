"""Nothing twice and nothing old after new, whichever way it comes first, and no publisher's objects taken for another's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.frame import Header
from zc_perception.link.duplicates import DuplicateFilter, message_identity


def test_a_message_of_what_came_directly_is_dropped_and_counted() -> None:
    both = DuplicateFilter()
    both.direct.append(Header(5, 'left'))
    assert not both.accept_message('left', 5)
    assert both.accept_message('right', 5), 'another camera'
    assert both.dropped == 1


def test_what_comes_directly_after_its_message_is_dropped() -> None:
    both = DuplicateFilter()
    assert both.accept_message('left', 5)
    assert not both.accept_direct(Header(5, 'left'))
    assert both.accept_direct(Header(6, 'left'))


def test_a_message_that_could_not_be_taken_does_not_cost_the_object_that_comes_directly() -> None:
    both = DuplicateFilter()
    assert both.accept_message('left', 5)
    both.forget_message('left', 5)
    assert both.accept_direct(Header(5, 'left'))
    assert not both.accept_message('left', 5)


def test_a_message_from_before_the_connection_does_not_come_after_its_frames() -> None:
    both = DuplicateFilter()
    both.direct_begins()
    assert both.accept_direct(Header(10, 'left'))
    assert not both.accept_message('left', 9)
    assert both.accept_message('left', 11)
    assert both.accept_message('right', 9)


def test_each_connection_begins_anew() -> None:
    both = DuplicateFilter()
    assert both.accept_direct(Header(10, 'left'))
    both.direct_begins()
    assert both.accept_direct(Header(20, 'left'))
    assert not both.accept_message('left', 19)


def test_another_publisher_of_the_same_frame_id_may_be_late() -> None:
    both = DuplicateFilter()
    for stamp in range(0, 100, 10):
        both.accept_direct(Header(stamp, 'camera'))
        both.direct.append(Header(stamp + 1, 'camera'))
    assert all(both.accept_message('camera', stamp) for stamp in range(5, 100, 10))


def test_old_stamps_of_a_recording_are_late_only_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr('zc_perception.link.duplicates.time.monotonic', lambda: now[0])
    both = DuplicateFilter()
    both.direct_begins()
    assert both.accept_direct(Header(1000, 'left'))
    assert not both.accept_message('left', 3)
    now[0] += 2.5
    assert both.accept_message('left', 4)


def test_time_that_goes_back_costs_nothing() -> None:
    both = DuplicateFilter()
    both.accept_direct(Header(1000, 'left'))
    both.accept_direct(Header(3, 'left'))
    assert both.accept_message('left', 5)


def test_messages_alone_are_never_dropped_even_without_stamps() -> None:
    both = DuplicateFilter()
    assert all(both.accept_message('', 0) for _ in range(5))
    assert both.dropped == 0


@pytest.mark.parametrize('remembered', [4, 256])
def test_memory_is_bounded_and_as_long_as_asked(remembered: int) -> None:
    both = DuplicateFilter(remembered)
    for stamp in range(5000):
        both.direct.append(Header(stamp, f'frame {stamp}'))
        both.accept_direct(Header(stamp, f'remote {stamp}'))
        both.accept_message('messages', stamp)
    assert max(len(both.direct), len(both._message), len(both._first)) == remembered
    assert not both.accept_message(f'remote {5000 - remembered // 2}', 5000 - remembered // 2)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=60))
def test_no_object_is_accepted_on_both_ways(events: list[tuple[bool, int]]) -> None:
    """Each publisher writes a stamp once per way; the ways race."""
    both, taken = DuplicateFilter(), []
    for direct, stamp in dict.fromkeys(events):
        if both.accept_direct(Header(stamp, 'left')) if direct else both.accept_message('left', stamp):
            taken.append(stamp)
    assert len(taken) == len(set(taken))


def test_a_message_s_identity_is_its_header_s() -> None:
    stamp = SimpleNamespace(sec=2, nanosec=3)
    assert message_identity(SimpleNamespace(header=SimpleNamespace(frame_id='left', stamp=stamp))) == ('left', 2_000_000_003)
    assert message_identity(SimpleNamespace(header=b'jpeg')) is None
    assert message_identity(SimpleNamespace(data='text')) is None
