"""The container's executor, where no real component can show it for certain."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import rclpy
from rclpy.node import Node
from rclpy.task import Task

from zc_perception.nodes.container.executor import ContainerExecutor


@pytest.fixture
def context(free_domain: int) -> Iterator[rclpy.Context]:
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=free_domain)
    yield context
    context.try_shutdown()


def test_work_that_was_found_for_a_node_that_has_left_since_is_dropped(context: rclpy.Context) -> None:
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


class Same(Node):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same)

    def __hash__(self) -> int:
        return 7


def test_a_node_that_is_equal_to_another_is_not_taken_and_does_not_take_its_name(context: rclpy.Context) -> None:
    executor = ContainerExecutor(context, 'test', 1, lambda name, error: None, lambda: None)
    first, second = Same('first', context=context), Same('second', context=context)
    assert executor.add_node(first)
    assert not executor.add_node(second)
    assert executor._name_of(first) == '/first'
    assert [node.get_name() for node in executor.get_nodes()] == ['first']
    executor.stop(1.0)
    for node in (first, second):
        node.destroy_node()


def test_the_end_of_the_context_is_told(context: rclpy.Context) -> None:
    ended = threading.Event()
    executor = ContainerExecutor(context, 'test', 2, lambda name, error: None, ended.set)
    executor.start()
    context.shutdown()
    assert ended.wait(30)
    assert executor.stop(5.0)
    assert executor.failure is None


def test_what_can_t_go_on_ends_with_the_reason(context: rclpy.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    executor = ContainerExecutor(context, 'test', 1, lambda name, error: None, ended.set)

    def fail(**_: object) -> None:
        raise RuntimeError('no wait set')

    monkeypatch.setattr(executor, 'wait_for_ready_callbacks', fail)
    executor.start()
    assert ended.wait(30)
    assert executor.stop(5.0)
    assert 'RuntimeError: no wait set' in (executor.failure or '')
