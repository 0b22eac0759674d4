"""Machines that are not as usual: the programs go on, and say in one line what to change."""

from __future__ import annotations

from pathlib import Path

import pytest
from link_ros import Ros, eventually
from nodes.programs import Program
from rclpy.qos import QoSProfile

from zc_perception.frame import Frame
from zc_perception.link.endpoints import SHARED_MEMORY, SharedMemoryLinks

CAMERA = ('-p', 'camera:=synthetic', '-p', 'width:=64', '-p', 'height:=64', '-p', 'framerate:=20.0')


def test_a_camera_without_its_runtime_folder_shares_memory_all_the_same(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program that su, cron or docker starts."""
    monkeypatch.setenv('XDG_RUNTIME_DIR', str(tmp_path / 'nowhere'))
    monkeypatch.delenv('ZC_RUNTIME_DIR', raising=False)
    ros, sequences = Ros(free_domain, 'single'), []

    def look(frame: Frame) -> None:
        sequences.append(frame.data.sequence)

    try:
        with Program('capture_node', '--ros-args', *CAMERA, domain=free_domain).start('ready') as camera:
            viewer = ros.subscription(
                ros.node('viewer'), qos=QoSProfile(depth=1), topic='image_raw', callback=look, remote=SharedMemoryLinks('viewer')
            )
            assert eventually(lambda: len(sequences) > 3), camera.output
            assert viewer.statistics().rung == SHARED_MEMORY, viewer.statistics()
            assert camera.interrupt() == 0
            said = [line for line in camera.lines if 'XDG_RUNTIME_DIR' in line]
            assert len(said) == 1 and '[WARN]' in said[0] and str(tmp_path / 'nowhere') in said[0] and 'ZC_RUNTIME_DIR' in said[0]
    finally:
        ros.close()
