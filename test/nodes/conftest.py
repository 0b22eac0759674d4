"""Fixtures of the nodes' tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nodes.managed import Managed, managed
from nodes.ros_kit import ros
import pytest
import rclpy


@pytest.fixture
def context(free_domain: int) -> Iterator[rclpy.Context]:
    with ros(free_domain) as opened:
        yield opened


@pytest.fixture
def run(free_domain: int) -> Iterator[Managed]:
    with managed(free_domain) as opened:
        yield opened


@pytest.fixture
def ros_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    return tmp_path
