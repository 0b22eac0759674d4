"""The container's executor, where no real component can show it for certain."""

from __future__ import annotations

import threading

import pytest
import rclpy
from rclpy.task import Task

from zc_perception.nodes.container.executor import (
    _MAX_KINDS,
    AGAIN_AFTER_S,
    Complaints,
    ContainerExecutor,
)


def test_work_that_was_found_for_a_node_that_has_left_since_is_dropped(
    context: rclpy.Context,
) -> None:
    executor = ContainerExecutor(context, 'test', 1, lambda name, error: None, lambda: None)
    node = rclpy.create_node('leaver', context=context)
    executor.add_node(node)
    first, second = Task(lambda: None, executor=executor), Task(lambda: None, executor=executor)
    assert executor._take(first, node)
    assert not executor._take(first, node), 'it is in work'
    assert executor.busy() == ['/leaver']
    assert not executor.leave(node, 0.01), 'the first still runs'
    assert not executor._take(second, node)
    assert second.cancelled()
    executor.stop(1.0)
    node.destroy_node()


def test_the_end_of_the_context_is_told(context: rclpy.Context) -> None:
    ended = threading.Event()
    executor = ContainerExecutor(context, 'test', 2, lambda name, error: None, ended.set)
    executor.start()
    context.shutdown()
    assert ended.wait(60)
    assert executor.stop(60.0)
    assert executor.failure is None


def test_what_can_t_go_on_ends_with_the_reason(
    context: rclpy.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    executor = ContainerExecutor(context, 'test', 1, lambda name, error: None, ended.set)

    def fail(**_: object) -> None:
        raise RuntimeError('no wait set')

    monkeypatch.setattr(executor, 'wait_for_ready_callbacks', fail)
    executor.start()
    assert ended.wait(60)
    assert executor.stop(60.0)
    assert 'RuntimeError: no wait set' in (executor.failure or '')


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
    assert (
        complaints.text("'/a'", raised())
        == "a callback of '/a' raises again and again (8 times since it was said last): ValueError: no"
    )
    assert complaints.text("'/a'", raised()) == ''


@pytest.mark.parametrize(
    'other', [("'/b'", raised()), ("'/a'", raised(TypeError)), ("'/a'", raised_elsewhere())]
)
def test_another_node_kind_or_place_is_told_at_once(
    other: tuple[str, BaseException], clock: Clock
) -> None:
    complaints = Complaints(clock)
    assert complaints.text("'/a'", raised())
    assert complaints.text(*other)


def test_it_remembers_a_limited_number(clock: Clock) -> None:
    complaints = Complaints(clock)
    for number in range(_MAX_KINDS + 1):
        assert complaints.text(f"'/n{number}'", raised())
    assert complaints.text("'/n1'", raised()) == ''
    assert complaints.text("'/n0'", raised()), 'the oldest was forgotten'
