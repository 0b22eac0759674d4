"""What is said of exceptions that come again and again."""

from __future__ import annotations

import pytest

from zc_perception.nodes.container.complaints import _MAX_KINDS, AGAIN_AFTER_S, Complaints


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def raised(kind: type[BaseException] = ValueError, text: str = 'no') -> BaseException:
    try:
        raise kind(text)
    except BaseException as error:
        return error


def raised_elsewhere() -> BaseException:
    try:
        raise ValueError('no')
    except ValueError as error:
        return error


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_first_is_told_with_its_traceback_and_the_next_ones_are_counted(clock: Clock) -> None:
    complaints = Complaints(clock)
    first = complaints.text("'/a'", raised())
    assert first.startswith("a callback of '/a' has raised; the container goes on.\nTraceback")
    assert first.endswith('ValueError: no')
    for _ in range(7):
        assert complaints.text("'/a'", raised()) == ''
    clock.seconds += AGAIN_AFTER_S
    assert complaints.text("'/a'", raised()) == "a callback of '/a' raises again and again (8 times since it was said last): ValueError: no"
    assert complaints.text("'/a'", raised()) == ''


@pytest.mark.parametrize('other', [("'/b'", raised()), ("'/a'", raised(TypeError)), ("'/a'", raised_elsewhere())])
def test_another_node_kind_or_place_is_told_at_once(other: tuple[str, BaseException], clock: Clock) -> None:
    complaints = Complaints(clock)
    assert complaints.text("'/a'", raised())
    assert complaints.text(*other)


def test_it_remembers_a_limited_number(clock: Clock) -> None:
    complaints = Complaints(clock)
    for number in range(_MAX_KINDS + 1):
        assert complaints.text(f"'/n{number}'", raised())
    assert complaints.text("'/n1'", raised()) == ''
    assert complaints.text("'/n0'", raised()), 'the oldest was forgotten'


def test_who_exits_is_told_how_to_end(clock: Clock) -> None:
    assert 'To end a component, unload it.' in Complaints(clock).text("'/a'", raised(SystemExit, ''))
