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

They run alone, with consumers that accept such images, and with consumers that can't. As a
program, ``test_implicit_layout MODIFIER COUNT`` is a viewer that reads them as a device does. It
ends after COUNT frames or by SIGINT, and prints its result as one JSON object.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
import json
import os
from pathlib import Path
import sys
import time
from typing import Any

from frame_kit import next_frame, nv12, pool_of
from nodes.programs import Program
from nodes.ros_kit import CaptureBench
import pytest
import rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

from zc_perception import Frame, FrameSubscription
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.frame import Header
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints, NO_CPU
from zc_perception.negotiation.settings import AllocationRequest
from zc_perception.nodes.capture import CaptureNode
from zc_perception.observe.diagnostics import Level
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import INVALID, LINEAR

pytestmark = pytest.mark.usefixtures('ros_home')
SIZE = (128, 96)
NVIDIA_BLOCK = 3 << 56 | 0x10


def content(sequence: int, size: int) -> bytes:
    """Return the bytes in the buffer of frame *sequence*, which has no rows."""
    cycle = bytes((sequence + step * 7) % 251 for step in range(251))
    return (cycle * (size // 251 + 1))[:size]


def is_good(frame: Frame, modifier: int) -> bool:
    memory = frame.data.buffers[0].memory()
    wanted = content(frame.data.sequence, len(memory))
    return frame.data.modifier == modifier and bytes(memory) == wanted


class TiledCamera(SyntheticCamera):
    """
    A live camera of one modifier, which stands in for a sensor with a vendor's tiles.

    With *converts* it offers LINEAR, too, at a higher cost.
    """

    device = 'tiled camera'  # type: ignore[assignment]

    def __init__(self, modifier: int = INVALID, *, converts: bool = False) -> None:
        drawn = {'heap': SealedMemfd(), 'now_ns': time.time_ns, 'ledger': CopyLedger()}
        super().__init__(*SIZE, 60.0, 'lens', seed=1, pattern='counter', **drawn)
        self._modifier = modifier
        self._converts = converts
        self._tiled: BufferPool | None = None

    def constraints(self) -> BufferConstraints:
        formats = ((NV12, self._modifier), *(((NV12, LINEAR),) if self._converts else ()))
        return replace(
            super().constraints(), participant=self.device, formats=formats, cpu_access=NO_CPU
        )

    def allocate(self, request: AllocationRequest) -> None:
        if request.modifiers[0] == LINEAR:
            super().allocate(request)
        else:
            layout = replace(nv12(*SIZE), modifier=self._modifier)
            self._pool = self._tiled = pool_of(layout, request.slots, reserve=2)

    def capture(self) -> Frame | None:
        if self._tiled is None:
            return super().capture()
        if not self._wait_for_turn():
            return None
        slot = self._tiled.acquire()
        if slot is None:
            self._skip()
            return None
        memory = slot.buffers[0].memory(write=True)
        memory[:] = content(self._sequence, len(memory))
        header = Header(time.time_ns(), 'lens')
        frame = next_frame(self._tiled, self._sequence, slot, header=header)
        self._sequence += 1
        self._captured += 1
        return frame


class Bench(CaptureBench):
    """A capture node with a tiled camera, and a foreign node in the same context, both spun."""

    user: Node

    def captured(self) -> int:
        return int(self.status('camera').values['captured'])  # type: ignore[call-overload]


@contextmanager
def running(domain: int, camera: TiledCamera, **values: Any) -> Iterator[Bench]:
    with Bench(domain) as bench:
        bench.capture = bench.make(CaptureNode, values, camera_factory=lambda identity: camera)
        bench.user = Node('user', context=bench.context)
        bench.spins(bench.user)
        bench.capture.start()
        bench.grows(bench.captured, 3)
        yield bench
        bench.user.destroy_node()


def test_plain_readers_hear_why_they_get_no_picture_and_the_camera_goes_on(
    free_domain: int,
) -> None:
    with running(free_domain, TiledCamera(), jpeg_quality=80) as bench:
        raw = bench.hear(Image, 'image_raw')
        compressed = bench.hear(CompressedImage, 'image_raw/compressed')
        bench.until(lambda: bench.status('link').values['readers_without_picture'] == 2)
        bench.grows(bench.captured, 20)
        found = bench.status('link')
        assert found.level is Level.WARN
        assert found.message == (
            '2 plain reader(s) of image_raw get no picture: NV12 with modifier INVALID has no '
            'rows that a CPU could read'
        )
        assert "'viewer: NV12'" in found.advice
        assert (found.values['conversions'], found.values['conversion_errors']) == (0, 0)
        assert not raw and not compressed


def viewer(modifier: int, count: int, domain: int) -> Program:
    command = [sys.executable, '-m', f'nodes.{Path(__file__).stem}', str(modifier), str(count)]
    variables = {'PYTHONPATH': os.pathsep.join(sys.path)}
    return Program(command, domain=domain, variables=variables).start('listening')


def result(viewer: Program) -> dict[str, Any]:
    (line,) = (line for line in viewer.lines if line.startswith('{'))
    found: dict[str, Any] = json.loads(line)
    return found


def test_consumers_that_take_the_layout_get_the_memory_itself_in_both_processes(
    free_domain: int,
) -> None:
    modifier = NVIDIA_BLOCK
    with running(free_domain, TiledCamera(modifier)) as bench:
        heard = bench.hear(String, 'image_raw/_zc', 1, latched=True)
        bench.until(lambda: heard)
        assert json.loads(heard[0].data)['formats'] == ['NV12:0x0300000000000010']
        good: list[bool] = []
        npu = BufferConstraints('npu', formats=((NV12, modifier),))
        frames = FrameSubscription(
            bench.user,
            'image_raw',
            lambda frame: good.append(is_good(frame, modifier)),
            constraints=npu,
        )
        with viewer(modifier, 5, free_domain) as program:
            assert program.ended() == 0, program.output
        found = result(program)
        assert (found['good'], found['rung']) == (5, 'shared_memory'), program.output
        bench.until(lambda: len(good) > 5)
        assert all(good) and frames.statistics().rung == 'in_process'
        assert bench.status('negotiation').values['participant npu'] == 'accepted'
        # A pipeline would hear of it. The camera may hear later of the viewer's end.
        known = bench.capture._known_consumers
        bench.until(lambda: [one.participant for one in known()] == ['npu'], known)
        frames.destroy()


def test_consumers_that_need_linear_images_are_refused_by_name_at_both_ends(
    free_domain: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(free_domain, TiledCamera()) as bench, viewer(LINEAR, 1, free_domain) as far:
        frames: list[Frame] = []
        needs = BufferConstraints('near', formats=((NV12, LINEAR),), cpu_access=CpuAccess.READ)
        near = FrameSubscription(bench.user, 'image_raw', frames.append, constraints=needs)
        bench.until(lambda: near.statistics().rung == 'ros_message')
        refused = bench.status('negotiation')
        why = 'format NV12 INVALID is not accepted (accepted: NV12 LINEAR)'
        assert refused.level is Level.WARN and f'near refused: {why}' in refused.message
        assert why in near.statistics().reason

        def far_is_named() -> bool:
            message = bench.status('link').message
            return 'viewer' in message and 'NV12 INVALID' in message

        bench.until(far_is_named)
        bench.until(lambda: 'NV12 INVALID' in far.output)
        bench.grows(bench.captured, 20)
        assert far.interrupt() == 0, far.output
        found = result(far)
        both = 'no common pixel format and modifier (tiled camera: NV12 INVALID; viewer'
        assert found['good'] == 0 and both in found['reason']
        said = capfd.readouterr().err
        assert 'near refused: format NV12 INVALID' in said and 'viewer' in said
        assert not frames and bench.status('link').values['conversion_errors'] == 0
        near.destroy()


def test_a_stand_in_for_a_reader_makes_a_camera_that_can_give_linear_images(
    free_domain: int,
) -> None:
    values = {'participants': ['viewer: NV12; cpu=read']}
    with running(free_domain, TiledCamera(converts=True), **values) as bench:
        assert [one.participant for one in bench.capture._known_consumers()] == ['viewer']
        messages = bench.hear(Image, 'image_raw')
        bench.until(lambda: messages)
        assert bench.status('link').level is Level.OK


def main(modifier: int, count: int) -> None:
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node('viewer')
    good: list[bool] = []
    frames = FrameSubscription(
        node,
        'image_raw',
        lambda frame: good.append(is_good(frame, modifier)),
        constraints=BufferConstraints('viewer', formats=((NV12, modifier),)),
    )
    print('listening', flush=True)
    # The announcement file may connect this viewer before the graph shows the publisher.
    with suppress(KeyboardInterrupt):
        while len(good) < count or frames.statistics().rung == 'unmatched':
            rclpy.spin_once(node, timeout_sec=0.1)
    link = frames.statistics()
    found = {'good': good[:count].count(True), 'rung': link.rung, 'reason': link.reason}
    print(json.dumps(found), flush=True)
    frames.destroy()
    node.destroy_node()
    rclpy.shutdown()


if __name__ == '__main__':
    main(*map(int, sys.argv[1:]))
