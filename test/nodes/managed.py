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

"""A few spun nodes in their own ROS domain, and a manager of their lifecycles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
import gc
import os
from pathlib import Path
import threading
import time
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetAvailableStates, GetAvailableTransitions, GetState
from nodes.ros_kit import Onlooker, overrides, WAIT_S, wait_until_known
import rclpy
from waiting import until

from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.nodes.process import ExecutorThread

CONFIGURE, ACTIVATE, DEACTIVATE, CLEANUP = (
    Transition.TRANSITION_CONFIGURE,
    Transition.TRANSITION_ACTIVATE,
    Transition.TRANSITION_DEACTIVATE,
    Transition.TRANSITION_CLEANUP,
)


class Managed:
    """Nodes, and a manager with its own executor, like another program."""

    def __init__(self, domain: int) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.nodes: list[PerceptionNode] = []
        self.failures: list[str] = []
        self._spinner = ExecutorThread(
            self.context, lambda: self.failures.append('the executor ended')
        )
        self._onlooker = Onlooker(domain, 'manager')
        self.manager = self._onlooker.node
        self.hear = self._onlooker.hear
        self._clients: dict[tuple[str, str], Any] = {}
        self._spinner.start()

    def make(self, kind: Any, values: Mapping[str, Any] | None = None, **options: Any) -> Any:
        node = kind(context=self.context, parameter_overrides=overrides(values or {}), **options)
        self.nodes.append(node)
        self._spinner.executor.add_node(node)
        return node

    def drop(self, node: PerceptionNode) -> None:
        """Remove and destroy a node, as a container unloads it."""
        self.nodes.remove(node)
        self._spinner.executor.remove_node(node)
        node.destroy_node()

    def call(self, kind: Any, service: str, request: Any) -> Any:
        """Call a service, as another program would."""
        client = self._clients.get((service, kind.__name__))
        if client is None:
            client = self._clients[service, kind.__name__] = self.manager.create_client(
                kind, service
            )
            assert client.wait_for_service(WAIT_S), service
            if self.nodes:  # else the service is another process's
                wait_until_known(client, self.manager, self.nodes[-1], WAIT_S)
        future = client.call_async(request)
        assert self._onlooker.done_within(future, WAIT_S), (
            f'{service}: no answer within {WAIT_S:g} s'
        )
        return future.result()

    def change(self, node: PerceptionNode, transition: int, label: str = '') -> bool:
        """Request a transition, as ``ros2 lifecycle set`` does."""
        request = ChangeState.Request(transition=Transition(id=transition, label=label))
        return bool(
            self.call(
                ChangeState, f'{node.get_fully_qualified_name()}/change_state', request
            ).success
        )

    def state(self, node: PerceptionNode) -> str:
        return str(
            self.call(
                GetState, f'{node.get_fully_qualified_name()}/get_state', GetState.Request()
            ).current_state.label
        )

    def transitions(self, node: PerceptionNode) -> set[str]:
        name = f'{node.get_fully_qualified_name()}/get_available_transitions'
        found = self.call(GetAvailableTransitions, name, GetAvailableTransitions.Request())
        return {each.transition.label for each in found.available_transitions}

    def states(self, node: PerceptionNode) -> set[str]:
        name = f'{node.get_fully_qualified_name()}/get_available_states'
        return {
            each.label
            for each in self.call(
                GetAvailableStates, name, GetAvailableStates.Request()
            ).available_states
        }

    def eventually(self, condition: Callable[[], Any], what: str = '') -> None:
        """Spin the manager until *condition* is true; fail if the nodes' executor failed."""

        def spin() -> None:
            assert not self.failures, self.failure
            self._onlooker.executor.spin_once(timeout_sec=0.005)

        until(
            condition,
            what
            or (lambda: [status for node in self.nodes for status in node.collect_diagnostics()]),
            pause=spin,
        )

    @property
    def failure(self) -> str | None:
        """Return the traceback that ended the nodes' executor, if any."""
        return self._spinner.failure

    def close(self) -> None:
        self._onlooker.close()
        self._spinner.stop()
        for node in self.nodes:
            node.stop()
        for node in self.nodes:
            node.destroy_node()
        self.context.try_shutdown()


@contextmanager
def managed(domain: int) -> Iterator[Managed]:
    run = Managed(domain)
    try:
        yield run
        assert run.failure is None, run.failure
    finally:
        run.close()


def status(node: Any, part: str) -> Any:
    return next(each for each in node.collect_diagnostics() if each.part == part)


def threads_named(*names: str) -> Sequence[str]:
    """Return which of these threads of the package run."""
    return [thread.name for thread in threading.enumerate() if thread.name in names]


def buffers_mapped() -> int:
    return Path('/proc/self/maps').read_text(encoding='utf-8').count('memfd:zc')


def descriptors() -> int:
    return len(os.listdir('/proc/self/fd'))


def held() -> tuple[int, int, int]:
    """Return descriptors, threads and mappings: the least of 20 looks, as jobs add fences."""
    gc.collect()
    looks = []
    for _ in range(20):
        looks.append((descriptors(), threading.active_count(), buffers_mapped()))
        time.sleep(0.002)
    return min(d for d, _, _ in looks), min(t for _, t, _ in looks), min(m for _, _, m in looks)


def given_back(before: tuple[int, int, int]) -> bool:
    return all(now <= then for now, then in zip(held(), before, strict=True))


def settle(run: Managed, nodes: list[Any]) -> None:
    for node in nodes:
        if run.state(node) == 'active':
            assert run.change(node, DEACTIVATE)
        if run.state(node) == 'inactive':
            assert run.change(node, CLEANUP)
        assert run.state(node) == 'unconfigured'
