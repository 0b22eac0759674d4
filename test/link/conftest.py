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

"""
Fixtures of the link's tests.

Each fixture imports ROS itself, because some folders below are tested on machines without ROS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
import tempfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from link_ros import Camera, LinkProcess, Ros


@pytest.fixture(scope='session')
def dds_sockets() -> None:
    """Make the middleware open its permanent sockets first, so that they don't count as leaks."""
    import rclpy
    from rclpy.node import Node

    context = rclpy.Context()
    rclpy.init(context=context, domain_id=101)
    Node('first', context=context).destroy_node()
    context.try_shutdown()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a socket's address, unlike ``tmp_path``."""
    with tempfile.TemporaryDirectory(prefix='zc-') as name:
        yield Path(name)


@pytest.fixture
def ros(free_domain: int) -> Iterator[Ros]:
    from link_ros import Ros

    opened = Ros('multi', free_domain)
    yield opened
    opened.close()


@pytest.fixture
def here(free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ros]:
    """Yield a context of this process, with the sockets' folder of :func:`start`'s processes."""
    from link_ros import Ros

    monkeypatch.setenv('ZC_RUNTIME_DIR', str(tmp_path))
    opened = Ros('single', free_domain)
    yield opened
    opened.close()


@pytest.fixture
def start(free_domain: int, tmp_path: Path) -> Iterator[Callable[..., LinkProcess]]:
    """Start link_ros.py with the named executor; the processes end with the test."""
    from link_ros import LinkProcess

    processes: list[LinkProcess] = []

    def start_one(executor: str = 'single') -> LinkProcess:
        processes.append(LinkProcess(executor, free_domain, tmp_path))
        return processes[-1]

    yield start_one
    for process in processes:
        process.close()


@pytest.fixture(params=['in_process', 'shared_memory', 'ros_message'])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def camera(here: Ros, way: str, tmp_path: Path) -> Callable[..., Camera]:
    from link_ros import Camera

    return lambda **options: here.own(Camera(here, way, tmp_path, **options))


@pytest.fixture(params=['compiled', 'plain'])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the compiled receiver, if there is one, and with the Python receiver."""
    if request.param == 'plain':
        monkeypatch.setattr('zc_perception.link.shared_memory.remote_slots.compiled', None)
