"""Nothing twice and nothing old after new, whichever way it comes first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zc_perception.link.duplicates import DuplicateFilter


def test_a_message_of_what_came_directly_is_dropped_and_counted() -> None:
    both = DuplicateFilter()
    both.note_direct('left', 5)
    assert not both.accept_message('left', 5)
    assert both.accept_message('right', 5), 'another camera'
    assert both.dropped == 1


def test_what_comes_directly_after_its_message_is_dropped() -> None:
    both = DuplicateFilter()
    assert both.accept_message('left', 5)
    assert not both.accept_direct('left', 5)
    assert both.accept_direct('left', 6)


def test_a_late_message_does_not_come_after_newer_frames() -> None:
    both = DuplicateFilter()
    both.note_direct('left', 10)
    assert not both.accept_message('left', 9)
    assert both.accept_message('left', 11)


def test_messages_alone_are_never_dropped_even_without_stamps() -> None:
    both = DuplicateFilter()
    assert all(both.accept_message('', 0) for _ in range(5))
    assert both.dropped == 0


def test_memory_is_bounded() -> None:
    both = DuplicateFilter()
    for stamp in range(5000):
        both.note_direct(f'frame {stamp}', stamp)
        both.accept_message('messages', stamp)
    assert max(len(ring) for ring in (both._direct, both._message, both._newest)) <= 256


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=60))
def test_no_object_is_accepted_on_both_ways(events: list[tuple[bool, int]]) -> None:
    """Each publisher writes a stamp once per way; the ways race."""
    both, taken = DuplicateFilter(), []
    for direct, stamp in dict.fromkeys(events):
        if direct:
            both.note_direct('left', stamp)
        if both.accept_direct('left', stamp) if direct else both.accept_message('left', stamp):
            taken.append(stamp)
    assert len(taken) == len(set(taken))
