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

"""Fixtures of the nodes' tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nodes.ros_kit import Managed, ros
import pytest
import rclpy


@pytest.fixture
def context(free_domain: int) -> Iterator[rclpy.Context]:
    with ros(free_domain) as opened:
        yield opened


@pytest.fixture
def run(free_domain: int) -> Iterator[Managed]:
    with Managed(free_domain) as opened:
        yield opened


@pytest.fixture
def ros_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(tmp_path / 'run'))
    return tmp_path
