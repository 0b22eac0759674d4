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
import time
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from waiting import until

from zc_perception.nodes.process import NodeGroup

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
        self.context = rclpy.Context()
        rclpy.init(args=list(arguments), context=self.context, domain_id=domain)
        self.node = rclpy.create_node(name, context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)

    def hear(self, kind: Any, topic: str, depth: int = 10, *, latched: bool = False) -> list[Any]:
        heard: list[Any] = []
        durability = DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
        qos = QoSProfile(depth=depth, durability=durability)
        self.node.create_subscription(kind, topic, heard.append, qos)
        return heard

    def until(
        self, condition: Callable[[], Any], what: object = '', timeout_s: float = WAIT_S
    ) -> None:
        """Spin until *condition* is true; see :func:`until`."""
        until(condition, what, timeout_s, lambda: self.executor.spin_once(timeout_sec=0.02))

    def done_within(self, future: Any, seconds: float) -> bool:
        """Spin until *future* is done, or *seconds* have passed."""
        self.executor.spin_until_future_complete(future, timeout_sec=seconds)
        return bool(future.done())

    def close(self) -> None:
        self.executor.shutdown()
        self.node.destroy_node()
        self.context.try_shutdown()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# After ``wait_for_service`` the client knows the server. If the server doesn't discover the
# client's reader within 100 ms, the middleware drops the answer ("failed to send response"). On a
# busy machine that happens.


def wait_until_known(client: Any, caller: Node, server: Node, timeout_s: float = 60.0) -> None:
    """Wait until client and server know each other; the server must be in this process."""
    assert client.wait_for_service(timeout_s), client.srv_name
    name = client.srv_name
    known = lambda: server.count_clients(name) >= caller.count_clients(name)  # noqa: E731
    until(known, f'{name}: its server sees the client', timeout_s)


def answer_of(
    client: Any, request: Any, wait: Callable[[Any, float], bool], timeout_s: float = 60.0
) -> Any:
    """Call a server in another process, perhaps twice; *wait* returns whether a future is done."""
    deadline = time.monotonic() + timeout_s
    while True:
        future = client.call_async(request)
        if wait(future, 10.0):
            return future.result()
        assert time.monotonic() < deadline, f'{client.srv_name}: no answer within {timeout_s:g} s'
