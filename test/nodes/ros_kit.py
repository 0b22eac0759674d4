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

"""ROS for tests: a context, nodes, another program that observes them, and service calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
import gc
import os
from pathlib import Path
import threading
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from waiting import until

from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.nodes.process import ExecutorThread, NodeGroup

WAIT_S = 60.0


def overrides(values: Mapping[str, Any]) -> list[Parameter]:
    return [Parameter(name, value=value) for name, value in values.items()]


def set_or_why_not(node: Node, name: str, value: Any) -> str:
    """Set a parameter as the node's owner; return the reason if that fails, else an empty text."""
    done = node.set_parameters([Parameter(name, value=value)])[0]
    assert done.successful == (not done.reason)
    return str(done.reason)


@contextmanager
def ros(domain: int, *arguments: str) -> Iterator[rclpy.Context]:
    """Yield a context, and shut it down; *arguments* follow ``--ros-args``."""
    context = rclpy.Context()
    rclpy.init(args=['--ros-args', *arguments], context=context, domain_id=domain)
    try:
        yield context
    finally:
        context.try_shutdown()


@contextmanager
def alone(
    domain: int, kind: Any, values: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[Any]:
    """Yield a node of this package that no executor spins, and destroy it."""
    with ros(domain) as context:
        node = kind(context=context, parameter_overrides=overrides(values or {}), **options)
        try:
            yield node
        finally:
            node.destroy_node()


@contextmanager
def spun(context: rclpy.Context, *nodes: Any) -> Iterator[NodeGroup]:
    """Start nodes, producers first, spin them together, check for failures, and destroy them."""
    with NodeGroup(context, nodes, lambda: None) as group:
        group.start()
        yield group
        assert group.failure is None, group.failure


class Onlooker:
    """Another program: a node in its own context, which is spun only while it waits."""

    def __init__(self, domain: int, name: str = 'onlooker', *arguments: str) -> None:
        self.own_context = rclpy.Context()
        rclpy.init(args=list(arguments), context=self.own_context, domain_id=domain)
        self.node = rclpy.create_node(name, context=self.own_context)
        self.executor = SingleThreadedExecutor(context=self.own_context)
        self.executor.add_node(self.node)

    def hear(self, kind: Any, topic: str, depth: int = 10, *, latched: bool = False) -> list[Any]:
        heard: list[Any] = []
        durability = DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
        qos = QoSProfile(depth=depth, durability=durability)
        self.node.create_subscription(kind, topic, heard.append, qos)
        return heard

    def until(self, condition: Callable[[], Any], what: object = '') -> None:
        """Spin until *condition* is true; see :func:`until`."""
        until(condition, what, pause=lambda: self.executor.spin_once(timeout_sec=0.02))

    def done_within(self, future: Any, seconds: float) -> bool:
        self.executor.spin_until_future_complete(future, timeout_sec=seconds)
        return bool(future.done())

    def close(self) -> None:
        self.executor.shutdown()
        self.node.destroy_node()
        self.own_context.try_shutdown()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Reader(Onlooker):
    """Another program, which stores the last status of each name."""

    def __init__(self, domain: int, name: str = 'diagnostics_reader') -> None:
        super().__init__(domain, name)
        self.last: dict[str, DiagnosticStatus] = {}
        self.node.create_subscription(
            DiagnosticArray,
            '/diagnostics',
            lambda message: self.last.update({each.name: each for each in message.status}),
            100,
        )

    def level(self, name: str) -> int | None:
        level = self.last[name].level if name in self.last else None
        return level[0] if isinstance(level, bytes) else level

    def text(self, name: str) -> str:
        return str(self.last[name].message) if name in self.last else ''

    def values(self, name: str) -> dict[str, str]:
        values = self.last[name].values if name in self.last else ()
        return {value.key: value.value for value in values}

    def messages(self) -> dict[str, str]:
        return {name: status.message for name, status in list(self.last.items())}

    def comes_to(self, name: str, level: int, *words: str) -> None:
        """Wait until *name* has this level, and a text with all *words*."""
        self.until(
            lambda: self.level(name) == level and all(word in self.text(name) for word in words),
            lambda: f'{name} at {level} with {words}: {self.messages()}',
        )


# After ``wait_for_service`` the client knows the server. If the server doesn't discover the
# client's reader within 100 ms, the middleware drops the answer ("failed to send response"). On a
# busy machine that happens.
def wait_until_known(client: Any, caller: Node, server: Node) -> None:
    """Wait until client and server know each other; the server must be in this process."""
    name = client.srv_name
    assert client.wait_for_service(WAIT_S), name
    known = lambda: server.count_clients(name) >= caller.count_clients(name)  # noqa: E731
    until(known, f'{name}: its server sees the client')


def answer_of(client: Any, request: Any, wait: Callable[[Any, float], bool]) -> Any:
    """Call a server in another process, perhaps twice; *wait* returns whether a future is done."""
    deadline = time.monotonic() + WAIT_S
    while True:
        future = client.call_async(request)
        if wait(future, 10.0):
            return future.result()
        assert time.monotonic() < deadline, f'{client.srv_name}: no answer within {WAIT_S:g} s'


# Nodes of this package, which another program manages.
CONFIGURE, ACTIVATE, DEACTIVATE, CLEANUP = (
    Transition.TRANSITION_CONFIGURE,
    Transition.TRANSITION_ACTIVATE,
    Transition.TRANSITION_DEACTIVATE,
    Transition.TRANSITION_CLEANUP,
)


class Managed(Onlooker):
    """Nodes, and a manager with its own executor, like another program."""

    def __init__(self, domain: int) -> None:
        super().__init__(domain, 'manager')
        self.manager = self.node
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.nodes: list[PerceptionNode] = []
        self._failed = threading.Event()
        self._spinner = ExecutorThread(self.context, self._failed.set)
        self._clients: dict[tuple[str, str], Any] = {}
        self._spinner.start()

    def make(self, kind: Any, values: Mapping[str, Any] | None = None, **options: Any) -> Any:
        node = kind(context=self.context, parameter_overrides=overrides(values or {}), **options)
        self.nodes.append(node)
        self.spins(node)
        return node

    def spins(self, node: Node) -> None:
        self._spinner.executor.add_node(node)

    def drop(self, node: PerceptionNode) -> None:
        """Remove and destroy a node, as a container unloads it."""
        self.nodes.remove(node)
        self._spinner.executor.remove_node(node)
        node.destroy_node()

    def call(self, kind: Any, service: str, request: Any) -> Any:
        """Call a service, as another program would."""
        client = self._clients.get((service, kind.__name__))
        if client is None:
            client = self.manager.create_client(kind, service)
            self._clients[service, kind.__name__] = client
            assert client.wait_for_service(WAIT_S), service
            if self.nodes:  # else the service is another process's
                wait_until_known(client, self.manager, self.nodes[-1])
        future = client.call_async(request)
        assert self.done_within(future, WAIT_S), f'{service}: no answer'
        return future.result()

    def change(self, node: PerceptionNode, transition: int, label: str = '') -> bool:
        """Request a transition, as ``ros2 lifecycle set`` does."""
        request = ChangeState.Request(transition=Transition(id=transition, label=label))
        return bool(self._ask(node, ChangeState, 'change_state', request).success)

    def state(self, node: PerceptionNode) -> str:
        return str(self._ask(node, GetState, 'get_state', GetState.Request()).current_state.label)

    def _ask(self, node: PerceptionNode, kind: Any, service: str, request: Any) -> Any:
        return self.call(kind, f'{node.get_fully_qualified_name()}/{service}', request)

    def eventually(self, condition: Callable[[], Any], what: str = '') -> None:
        """Spin the manager until *condition* is true; fail if the nodes' executor failed."""

        def spin() -> None:
            assert not self._failed.is_set(), self._spinner.failure
            self.executor.spin_once(timeout_sec=0.005)

        until(
            condition,
            what or (lambda: [each.collect_diagnostics() for each in self.nodes]),
            pause=spin,
        )

    def grows(self, count: Callable[[], int], by: int, what: str = '') -> None:
        start = count()
        self.eventually(lambda: count() >= start + by, what)

    def close(self) -> None:
        super().close()
        self._spinner.stop()
        for node in self.nodes:
            node.stop()
        for node in self.nodes:
            node.destroy_node()
        self.context.try_shutdown()

    def __exit__(self, kind: Any, *exception: object) -> None:
        self.close()
        assert kind or self._spinner.failure is None, self._spinner.failure


class CaptureBench(Managed):
    capture: Any

    def status(self, part: str) -> Any:
        return status(self.capture, part)


def status(node: Any, part: str) -> Any:
    return next(each for each in node.collect_diagnostics() if each.part == part)


def held() -> tuple[int, int, int]:
    """Return descriptors, threads and mappings: the least of 20 looks, as jobs add fences."""
    gc.collect()
    looks = []
    for _ in range(20):
        maps = Path('/proc/self/maps').read_text(encoding='utf-8')
        found = len(os.listdir('/proc/self/fd')), threading.active_count(), maps.count('memfd:zc')
        looks.append(found)
        time.sleep(0.002)
    descriptors, threads, buffers = map(min, zip(*looks, strict=True))
    return descriptors, threads, buffers


def given_back(before: tuple[int, int, int]) -> bool:
    return all(now <= then for now, then in zip(held(), before, strict=True))


def settle(run: Managed, nodes: list[Any]) -> None:
    for node in nodes:
        if run.state(node) == 'active':
            assert run.change(node, DEACTIVATE)
        if run.state(node) == 'inactive':
            assert run.change(node, CLEANUP)
        assert run.state(node) == 'unconfigured'
