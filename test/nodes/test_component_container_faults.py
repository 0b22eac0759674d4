"""The container where foreign code fails at a moment that no real component can be told to choose."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import rclpy
from composition_interfaces.srv import ListNodes, LoadNode, UnloadNode
from rclpy.node import Node

from zc_perception.nodes.container import manager
from zc_perception.nodes.container.executor import ContainerExecutor
from zc_perception.nodes.container.manager import (
    ComponentManager,
    LoadError,
    construct,
    node_options,
)

WAIT_S = 60.0


class Plain(Node):
    """A component as it should be."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__('plain', **kwargs)


@pytest.fixture
def container(
    context: rclpy.Context, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ComponentManager]:
    """Its services are called as functions; every plugin is :class:`Plain`."""
    monkeypatch.setattr(manager, 'load_class', lambda package, plugin: Plain)
    made = ComponentManager(context, multi_threaded=False)
    executor = ContainerExecutor(context, 'components', 1, made.on_callback_error, lambda: None)
    made.use(executor)
    executor.start()
    yield made
    assert made.close(WAIT_S)
    assert executor.stop(WAIT_S)
    made.destroy_node()


def load(container: ComponentManager) -> Any:
    return container._on_load(
        LoadNode.Request(package_name='p', plugin_name='Plain'), LoadNode.Response()
    )


def listed(container: ComponentManager) -> list[str]:
    return list(container._on_list(ListNodes.Request(), ListNodes.Response()).full_node_names)


def test_an_answer_is_text_that_can_be_sent(
    container: ComponentManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(package: str, plugin: str) -> type[Node]:
        raise LoadError('/opt/\udcff is no module\0')

    monkeypatch.setattr(manager, 'load_class', refuse)
    answer = load(container)
    assert (answer.success, answer.error_message) == (False, '/opt/\\udcff is no module\\x00')


def test_an_executor_that_takes_no_node_leaves_nothing_of_it(
    container: ComponentManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(Plain, 'stop', lambda node: stopped.append(node.get_name()), raising=False)
    real = ContainerExecutor.add_node

    def half_way(executor: ContainerExecutor, node: Node) -> bool:
        real(executor, node)
        raise TypeError('no \udcff room')

    with monkeypatch.context() as patch:
        patch.setattr(ContainerExecutor, 'add_node', half_way)
        answer = load(container)
    assert not answer.success
    assert answer.error_message.startswith(
        "The container can't spin it: TypeError: no \\udcff room"
    )
    assert (listed(container), stopped) == ([], ['plain'])
    assert container._executor is not None
    assert not container._executor.get_nodes(), 'it would be waited for, though it is destroyed'


@pytest.mark.parametrize('error', [RuntimeError('no'), SystemExit('no'), KeyboardInterrupt()])
def test_however_a_step_of_its_end_fails_the_component_is_forgotten_and_who_waits_is_answered(
    error: BaseException, container: ComponentManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(container, '_say_error', said.append)
    loaded = load(container)
    assert loaded.success

    def fail(node: Node) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Plain, 'destroy_node', fail)
        answer = container._on_unload(
            UnloadNode.Request(unique_id=loaded.unique_id), UnloadNode.Response()
        )
    assert answer.success, answer.error_message
    assert listed(container) == []
    assert len(said) == 1
    assert said[0].startswith("'/plain': destroy_node() failed, unloading goes on:\nTraceback")


def test_a_loop_of_spin_once_in_a_constructor_is_named_and_goes_on(
    context: rclpy.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, '_SLOW_AFTER_S', 0.01)
    said: list[str] = []
    hint = threading.Event()

    def warn(text: str) -> None:
        said.append(text)
        if '; it spins: ' in text:
            hint.set()

    class Loops(Node):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__('loops', **kwargs)
            executor = rclpy.executors.SingleThreadedExecutor(context=context)
            executor.add_node(self)
            while not hint.is_set():
                executor.spin_once(timeout_sec=0.05)
            executor.shutdown()

    options = node_options(LoadNode.Request(package_name='p', plugin_name='Loops'), context, warn)
    node = construct(Loops, options, warn)
    assert node.get_name() == 'loops', 'it was not interrupted: it may wait for something'
    assert any('has been in its constructor for' in text for text in said)
    assert any('; it spins: ' in text for text in said)
    node.destroy_node()


def test_a_constructor_that_only_waits_is_not_told_of_spinning(
    context: rclpy.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, '_SLOW_AFTER_S', 0.01)
    said: list[str] = []
    enough = threading.Event()

    def warn(text: str) -> None:
        said.append(text)
        enough.set()

    class Waits(Node):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__('waits', **kwargs)
            assert enough.wait(WAIT_S)

    options = node_options(LoadNode.Request(package_name='p', plugin_name='Waits'), context, warn)
    construct(Waits, options, warn).destroy_node()
    assert said
    assert not any('it spins' in text for text in said)
