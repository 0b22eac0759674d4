"""The container where foreign code fails at a moment that no real component can be told to choose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import rclpy
from composition_interfaces.srv import ListNodes, LoadNode, UnloadNode
from rclpy.node import Node

from zc_perception.nodes import container as container_module
from zc_perception.nodes.container import ComponentManager, LoadError

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
    monkeypatch.setattr(container_module, 'load_class', lambda package, plugin: Plain)
    made = ComponentManager(context, lambda: None, multi_threaded=False)
    made.start()
    yield made
    assert made.close(WAIT_S)
    assert made.components.stop(WAIT_S)
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

    monkeypatch.setattr(container_module, 'load_class', refuse)
    answer = load(container)
    assert (answer.success, answer.error_message) == (False, '/opt/\\udcff is no module\\x00')


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
