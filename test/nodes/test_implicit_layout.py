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
Cameras whose images no CPU can read.

They run alone, with consumers that accept such images, and with consumers that can't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import json
import os
from pathlib import Path
import subprocess
import sys
from typing import Any

from nodes.managed import status
from nodes.programs import environment
from nodes.ros_kit import overrides, ros, spun, WAIT_S
from nodes.tiled_camera import content, NVIDIA_BLOCK, TiledCamera
import pytest
import rclpy
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String
from waiting import until
from warm_start import Started

from zc_perception import Frame, FrameSubscription
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.nodes.capture import CaptureNode
from zc_perception.observe.diagnostics import Level, Status
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

HERE = Path(__file__).parent


class Bench:
    """A capture node with a tiled camera, and a foreign node, both spun."""

    def __init__(
        self, context: rclpy.Context, camera: TiledCamera, values: dict[str, Any]
    ) -> None:
        self.capture = CaptureNode(
            camera_factory=lambda identity: camera,
            context=context,
            parameter_overrides=overrides(values),
        )
        self.user = Node('user', context=context)

    def status(self, part: str) -> Status:
        found: Status = status(self.capture, part)
        return found

    def until(self, condition: Callable[[], Any]) -> None:
        until(condition, self.capture.collect_diagnostics)

    def captured(self) -> int:
        return int(self.status('camera').values['captured'])  # type: ignore[call-overload]


@contextmanager
def running(domain: int, camera: TiledCamera, **values: Any) -> Iterator[Bench]:
    with ros(domain) as context:
        bench = Bench(context, camera, values)
        try:
            with spun(context, bench.capture) as group:
                group.add_node(bench.user)
                bench.until(lambda: bench.captured() > 3)
                yield bench
        finally:
            bench.user.destroy_node()


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(tmp_path / 'run'))


def test_plain_readers_hear_why_they_get_no_picture_and_the_camera_goes_on(
    free_domain: int,
) -> None:
    with running(free_domain, TiledCamera(), jpeg_quality=80) as bench:
        messages: list[Any] = []
        bench.user.create_subscription(Image, 'image_raw', messages.append, 1)
        bench.user.create_subscription(CompressedImage, 'image_raw/compressed', messages.append, 1)
        bench.until(lambda: bench.status('link').values['readers_without_picture'] == 2)
        before = bench.captured()
        bench.until(lambda: bench.captured() > before + 20)
        found = bench.status('link')
        assert found.level is Level.WARN
        assert found.message == (
            '2 plain reader(s) of image_raw get no picture: NV12 with modifier INVALID has no '
            'rows that a CPU could read'
        )
        assert "'viewer: NV12'" in found.advice
        assert (found.values['conversions'], found.values['conversion_errors']) == (0, 0)
        assert not messages


class Viewer:
    def __init__(self, modifier: int, count: int, domain: int) -> None:
        pipes: dict[str, Any] = {
            'stdin': subprocess.PIPE,
            'stdout': subprocess.PIPE,
            'stderr': subprocess.PIPE,
            'text': True,
        }
        path = f'{HERE.parent}:{os.environ.get("PYTHONPATH", "")}'
        command = [sys.executable, str(HERE / 'tiled_camera.py'), str(modifier), str(count)]
        self.process = Started(command, env={**environment(domain), 'PYTHONPATH': path}, **pipes)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == 'listening'

    def result(self, *, ask: bool = False) -> tuple[dict[str, Any], str]:
        """Return the viewer's result and its log; with *ask*, don't wait for all frames."""
        if not ask:
            self.process.wait(WAIT_S)
        out, err = self.process.communicate(timeout=WAIT_S)
        found: dict[str, Any] = json.loads(out)
        return found, err


def test_consumers_that_take_the_layout_get_the_memory_itself_in_both_processes(
    free_domain: int,
) -> None:
    modifier = NVIDIA_BLOCK
    with running(free_domain, TiledCamera(modifier)) as bench:
        heard: list[String] = []
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        bench.user.create_subscription(String, 'image_raw/_zc', heard.append, latched)
        bench.until(lambda: heard)
        assert json.loads(heard[0].data)['formats'] == ['NV12:0x0300000000000010']
        good: list[bool] = []

        def look(frame: Frame) -> None:
            memory = frame.data.buffers[0].memory()
            good.append(
                frame.data.modifier == modifier
                and bytes(memory) == content(frame.data.sequence, len(memory))
            )

        npu = BufferConstraints('npu', formats=((NV12, modifier),))
        frames = FrameSubscription(bench.user, 'image_raw', look, constraints=npu)
        found, log = Viewer(modifier, 5, free_domain).result()
        assert (found['good'], found['rung']) == (5, 'shared_memory'), (found, log)
        bench.until(lambda: len(good) > 5)
        assert all(good) and frames.statistics().rung == 'in_process'
        assert bench.status('negotiation').values['participant npu'] == 'accepted'
        assert [one.participant for one in bench.capture._known_consumers()] == ['npu'], (
            'a pipeline would hear of it'
        )
        frames.destroy()


def test_consumers_that_need_linear_images_are_refused_by_name_at_both_ends(
    free_domain: int, capfd: pytest.CaptureFixture[str]
) -> None:
    camera = TiledCamera()
    with running(free_domain, camera) as bench:
        frames: list[Frame] = []
        needs = BufferConstraints('near', formats=((NV12, LINEAR),), cpu_access=CpuAccess.READ)
        near = FrameSubscription(bench.user, 'image_raw', frames.append, constraints=needs)
        far = Viewer(LINEAR, 1, free_domain)
        bench.until(lambda: near.statistics().rung == 'ros_message')
        refused = bench.status('negotiation')
        why = 'format NV12 INVALID is not one of its formats (NV12 LINEAR)'
        assert (
            refused.level is Level.WARN
            and f'near refused: {why}' in refused.message
            and why in near.statistics().reason
        )
        bench.until(
            lambda: (
                'viewer' in bench.status('link').message
                and 'NV12 INVALID' in bench.status('link').message
            )
        )
        before = bench.captured()
        bench.until(lambda: bench.captured() > before + 20)
        found, log = far.result(ask=True)
        both = 'no common pixel format and modifier (tiled camera: NV12 INVALID; viewer'
        assert found['good'] == 0 and both in found['reason']
        assert 'NV12 INVALID' in log
        said = capfd.readouterr().err
        assert 'near refused: format NV12 INVALID' in said and 'viewer' in said
        assert not frames and bench.status('link').values['conversion_errors'] == 0
        near.destroy()


def test_a_stand_in_for_a_reader_makes_a_camera_that_can_give_linear_images(
    free_domain: int,
) -> None:
    with running(
        free_domain, TiledCamera(converts=True), participants=['viewer: NV12; cpu=read']
    ) as bench:
        assert [one.participant for one in bench.capture._known_consumers()] == ['viewer']
        messages: list[Image] = []
        bench.user.create_subscription(Image, 'image_raw', messages.append, 1)
        bench.until(lambda: messages)
        assert bench.status('link').level is Level.OK
