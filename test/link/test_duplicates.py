"""Nothing twice and nothing old after new, whichever way it comes first, and no publisher's objects taken for another's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.frame import Header
from zc_perception.link.duplicates import DuplicateFilter, Origin, message_identity


@pytest.mark.parametrize('way', ['local', 'direct'])
def test_what_came_directly_stands_for_one_message_and_another_publisher_s_passes(
    way: str,
) -> None:
    both = DuplicateFilter()
    for _ in range(2):
        getattr(both, way).append(Header(5, 'left'))
    assert [both.accept_message('left', 5) for _ in range(4)] == [False, False, True, True]
    assert both.dropped == 2


def test_a_message_stands_for_one_object_that_comes_directly() -> None:
    both = DuplicateFilter()
    assert both.accept_message('left', 5)
    assert [both.accept_direct(Header(5, 'left')) for _ in range(2)] == [False, True]
    assert not both.accept_message('left', 5), "the second one's"


def test_without_a_stamp_everything_passes() -> None:
    both = DuplicateFilter()
    both.local.append(Header(0, 'left'))
    assert (
        both.accept_direct(Header(0, 'left'))
        and both.accept_message('left', 0)
        and both.accept_direct(Header(0, 'left'))
    )
    assert both.dropped == 0


def test_a_message_is_compared_with_what_its_publisher_may_have_sent_only() -> None:
    both = DuplicateFilter()
    both.local.append(Header(5, 'left'))
    both.direct.append(Header(6, 'left'))
    assert all(both.accept_message('left', stamp, Origin.PLAIN) for stamp in (5, 6, 7))
    assert both.accept_direct(Header(7, 'left')), 'a plain message stands for no object'
    assert both.accept_message('left', 5, Origin.ELSEWHERE) and both.accept_message(
        'left', 6, Origin.HERE
    )
    assert not both.accept_message('left', 5, Origin.HERE) and not both.accept_message(
        'left', 6, Origin.ELSEWHERE
    )


def test_messages_of_objects_that_were_left_out_are_late() -> None:
    both = DuplicateFilter()
    both.accept_direct(Header(10, 'left'))
    assert both.accept_message('left', 12), 'nothing newer has come'
    both.missed(Header(10, 'left'), Header(20, 'left'), 3)
    both.accept_direct(Header(20, 'left'))
    assert [both.accept_message('left', stamp) for stamp in (14, 16, 18)] == [
        False,
        False,
        True,
    ], 'as many as were left out'
    assert (
        both.accept_message('right', 15)
        and both.accept_message('left', 9)
        and both.accept_message('left', 21)
    )
    both.missed(Header(30, 'left'), Header(40, 'left'), 1)
    assert both.accept_message('left', 35, Origin.PLAIN) and not both.accept_message('left', 36)


def test_a_message_that_is_newer_than_what_came_directly_may_still_come_so() -> None:
    both = DuplicateFilter()
    assert not both.may_come_directly('left', 5)
    both.accept_direct(Header(5, 'left'))
    assert both.may_come_directly('left', 6) and both.may_come_directly(
        'left', 6, Origin.ELSEWHERE
    )
    assert not any(
        both.may_come_directly('left', 6, origin) for origin in (Origin.PLAIN, Origin.HERE)
    )
    assert (
        not both.may_come_directly('right', 6)
        and not both.may_come_directly('left', 5)
        and not both.may_come_directly('left', 0)
    )
    assert not both.may_come_directly('left', 3_000_000_000), 'of another clock'
    both.direct.append(Header(3, 'left'))
    assert both.may_come_directly('left', 4), 'time has gone back'
    both.direct_begins()
    assert not both.may_come_directly('left', 9), 'another publisher, of which nothing has come'


def test_the_middleware_s_numbers_tell_publishers_apart_where_stamps_do_not() -> None:
    both = DuplicateFilter()
    for stamp in (10, 20, 30):
        both.accept_direct(Header(stamp, 'left'))
    # The camera has written 100 messages by now, the other one two.
    assert not both.accept_message('left', 10, Origin.ELSEWHERE, 101)
    assert both.accept_message('left', 15, Origin.ELSEWHERE, 3)
    assert not both.accept_message('left', 20, Origin.ELSEWHERE, 102)
    assert both.may_come_directly(
        'left', 31, Origin.ELSEWHERE, 104
    ) and not both.may_come_directly('left', 32, Origin.ELSEWHERE, 4)
    both.missed(Header(30, 'left'), Header(40, 'left'), 2)
    both.accept_direct(Header(40, 'left'))
    messages = [(32, 4), (33, 104), (36, 105), (37, 5)]
    assert [
        both.accept_message('left', stamp, Origin.ELSEWHERE, number) for stamp, number in messages
    ] == [True, False, False, True]


def test_a_wrong_guess_of_whose_a_message_is_corrects_itself() -> None:
    both = DuplicateFilter()
    for stamp in range(10, 20):
        both.accept_direct(Header(stamp, 'left'))
    assert not both.accept_message('left', 10, Origin.ELSEWHERE, 7)
    assert not both.accept_message('left', 11, Origin.ELSEWHERE, 8)
    # Of a publisher that is ahead by chance.
    assert both.accept_message('left', 5, Origin.ELSEWHERE, 1) and both.accept_message(
        'left', 6, Origin.ELSEWHERE, 2
    )
    assert [
        both.accept_message('left', stamp, Origin.ELSEWHERE, stamp - 3) for stamp in range(12, 20)
    ] == [False] * 8


def test_a_new_reader_of_latched_messages_gets_nothing_twice() -> None:
    both = DuplicateFilter()
    both.accept_direct(Header(1, 'left'))
    both.local.append(Header(2, 'left'))
    for _ in range(3):
        assert not both.accept_message('left', 1) and not both.accept_message('left', 2)
        both.messages_begin_again()


def test_a_message_that_could_not_be_taken_does_not_cost_the_object_that_comes_directly() -> None:
    both = DuplicateFilter()
    assert both.accept_message('left', 5)
    both.forget_message('left', 5)
    assert both.accept_direct(Header(5, 'left'))
    assert not both.accept_message('left', 5)


@pytest.mark.parametrize('reader', [True, False], ids=['a reader of messages', 'none yet'])
def test_a_message_from_before_the_connection_does_not_come_after_its_frames(reader: bool) -> None:
    both = DuplicateFilter()
    both.direct_begins()
    if reader:
        assert both.accept_direct(Header(10, 'left'))
    else:
        both.direct.append(Header(10, 'left'))
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


def test_old_stamps_of_a_recording_are_late_only_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


@pytest.mark.parametrize('remembered', [4, 256])
def test_memory_is_bounded_and_as_long_as_asked(remembered: int) -> None:
    both = DuplicateFilter(remembered)
    for stamp in range(1, 5001):
        both.local.append(Header(stamp, f'frame {stamp}'))
        both.accept_direct(Header(stamp, f'remote {stamp}'))
        both.missed(Header(stamp, 'remote'), Header(stamp + 9, 'remote'), 1)
        if stamp % 2 == 0:
            both.accept_message('messages', stamp)
    for some in (
        both.local,
        both.direct,
        both._local,
        both._direct,
        both._message,
        both._gaps,
        both._first,
        both._latest,
    ):
        assert len(some) <= remembered
    assert not both.accept_message(f'remote {5000 - remembered // 2}', 5000 - remembered // 2)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=60))
def test_no_object_is_accepted_on_both_ways(events: list[tuple[bool, int]]) -> None:
    """Each publisher writes a stamp once per way; the ways race."""
    both, taken = DuplicateFilter(), []
    for direct, stamp in dict.fromkeys(events):
        if (
            both.accept_direct(Header(stamp, 'left'))
            if direct
            else both.accept_message('left', stamp)
        ):
            taken.append(stamp)
    assert len(taken) == len(set(taken))


def test_a_message_s_identity_is_its_header_s() -> None:
    stamp = SimpleNamespace(sec=2, nanosec=3)
    assert message_identity(
        SimpleNamespace(header=SimpleNamespace(frame_id='left', stamp=stamp))
    ) == ('left', 2_000_000_003)
    assert message_identity(SimpleNamespace(header=b'jpeg')) is None
    assert message_identity(SimpleNamespace(data='text')) is None
