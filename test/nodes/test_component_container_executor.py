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

"""The container's executor, where no real component can show it for certain."""

from __future__ import annotations

import threading
import time

import rclpy

from zc_perception.nodes.container import ContainerExecutor


def test_who_leaves_waits_for_a_callback_that_runs_and_none_comes_after_it(
    context: rclpy.Context,
) -> None:
    executor = ContainerExecutor(context, 'test', 1, lambda node, error: None, lambda: None)
    node = rclpy.create_node('leaver', context=context)
    begun, go_on, calls = threading.Event(), threading.Event(), []

    def tick() -> None:
        calls.append(1)
        begun.set()
        assert go_on.wait(60)

    node.create_timer(0.001, tick)
    executor.add_node(node)
    executor.start()
    assert begun.wait(60)
    assert not executor.leave(node, 0.01), 'it still runs'
    go_on.set()
    assert executor.leave(node, 60.0)
    number = len(calls)
    time.sleep(0.05)
    assert len(calls) == number
    assert executor.stop(60.0)
    node.destroy_node()


def test_the_end_of_the_context_is_told(context: rclpy.Context) -> None:
    ended = threading.Event()
    executor = ContainerExecutor(context, 'test', 2, lambda node, error: None, ended.set)
    executor.start()
    context.shutdown()
    assert ended.wait(60)
    assert executor.stop(60.0)
    assert executor.failure is None
