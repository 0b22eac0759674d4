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

"""A node is looked at only while it is spun, and its end is no error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import threading
from types import SimpleNamespace

import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from waiting import eventually

from zc_perception.link.endpoints.executor_turns import NodeWatch
from zc_perception.lookout import Lookout

WAIT_S = 60.0
SOON_S = 0.001
Logged = Callable[[], str]


@pytest.fixture
def context(free_domain: int) -> Iterator[rclpy.Context]:
    made = rclpy.Context()
    rclpy.init(context=made, domain_id=free_domain)
    yield made
    made.try_shutdown()


@pytest.fixture
def lookout(monkeypatch: pytest.MonkeyPatch) -> Lookout:
    """Use a new Lookout, so that the test can see whether it has work left."""
    made = Lookout()
    monkeypatch.setattr('zc_perception.link.endpoints.executor_turns.LOOKOUT', made)
    return made


def test_a_node_is_looked_at_once_it_is_spun(context: rclpy.Context, lookout: Lookout) -> None:
    node = rclpy.create_node('camera', context=context)
    looked, others = threading.Event(), threading.Event()
    watch = NodeWatch(node, SOON_S, looked.set)
    turns = iter(range(20))
    beside = lookout.watch(SOON_S, lambda: next(turns, None) is None and others.set())
    assert others.wait(WAIT_S) and not looked.is_set(), 'twenty turns of others, none of it'
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    assert looked.wait(WAIT_S)
    for each in (watch, beside):
        each.stop()
    executor.shutdown()
    node.destroy_node()


@pytest.mark.parametrize('end', [Node.destroy_node, lambda node: node.context.try_shutdown()])
def test_the_end_of_a_node_or_its_context_is_the_end_of_looking_and_no_error(
    context: rclpy.Context, lookout: Lookout, end: Callable[[Node], None], logged: Logged
) -> None:
    node = rclpy.create_node('camera', context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    looks: list[int] = []
    watch = NodeWatch(node, SOON_S, lambda: looks.append(node.count_publishers('/image')))
    assert eventually(lambda: looks)
    end(node)
    assert eventually(lambda: lookout._thread is None), 'there is nothing more to look at'
    assert 'Traceback' not in logged()
    watch.stop()
    executor.shutdown()


def test_another_error_of_the_middleware_is_told_and_ends_nothing(
    lookout: Lookout, logged: Logged
) -> None:
    node = SimpleNamespace(
        executor=object(), context=SimpleNamespace(ok=lambda: True), get_namespace=lambda: '/'
    )
    looks: list[int] = []

    def fail() -> None:
        looks.append(len(looks))
        raise RuntimeError('rmw said no')

    watch = NodeWatch(node, SOON_S, fail)  # type: ignore[arg-type]
    assert eventually(lambda: len(looks) >= 3)
    del watch
    assert eventually(lambda: lookout._thread is None), 'whoever forgets it ends it'
    assert logged().count('RuntimeError: rmw said no') == 1
