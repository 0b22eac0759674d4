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
Graphs in this process that ``zc_verify`` checks from outside.

They are sabotaged while they run, use a plain link, or read from or write to GStreamer pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
import os
from pathlib import Path
import tempfile
from typing import Any
from unittest import mock

from link.unixfd.unixfd_kit import gst
import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from waiting import eventually

from zc_perception.camera import camera as camera_module
from zc_perception.camera import synthetic
from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.memory.heaps import OfferedHeaps, working_heaps
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import Slot
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.process import NodeGroup

from . import sabotage
from .camera_kit import OneMemfd, ShadowHeap, unmapped, UntouchedCamera
from .graph_kit import MODEL, ros, RunningGraph
from .graph_variants import HEIGHT, SINGLE, SLOW, SLOW_FPS, Variant, WIDTH
from .kernel_api import bufinfo
from .sabotage import Consumer, mapped_by_the_device
from .verifier import FRAMES, judged, Outcome

_NV12 = f'video/x-raw,format=NV12,width={WIDTH},height={HEIGHT},framerate={SLOW_FPS}/1'


class Spectator(Consumer):
    def __init__(self, context: rclpy.Context) -> None:
        super().__init__()
        self.node = Node('spectator', context=context)
        adapter = frame_adapter('mono8', CopyLedger(), holder='spectator')
        self._subscription = AdaptedSubscription(
            self.node, adapter, 'image_raw', QoSProfile(depth=1), callback=self._on_frame
        )

    def _on_frame(self, frame: Frame) -> None:
        self.act(frame)
        self.seen += 1

    def close(self) -> None:
        self._subscription.destroy()
        self.node.destroy_node()


def sabotaged(names: Sequence[str], out: Path) -> Iterator[tuple[str, Outcome]]:
    with (
        ros() as context,
        RunningGraph(context, Variant(FRAMES, True, SLOW, keep_all=False)) as running,
    ):
        spectator = Spectator(context)
        running.add_node(spectator.node)
        running.start()
        yield from sabotage.sabotaged(running, spectator, names, out)
        spectator.close()


def plain_link(out: Path) -> Outcome:
    """Run a plain publisher of ``sensor_msgs/Image``, and the inference node."""
    message = Image(width=WIDTH, height=HEIGHT, encoding='nv12', step=WIDTH)
    message.data = (
        np.random.default_rng(1).integers(16, 235, HEIGHT * 3 // 2 * WIDTH, np.uint8).tobytes()
    )
    with ExitStack() as stack:
        context = stack.enter_context(ros())
        parameters = Variant(FRAMES, True, keep_all=False).inference(MODEL)
        node = InferenceNode(
            context=context,
            parameter_overrides=[
                Parameter(name, value=value) for name, value in parameters.items()
            ],
        )
        camera = Node('plain_camera', context=context)
        publisher = camera.create_publisher(Image, 'image_raw', 1)

        def publish() -> None:
            message.header.stamp = camera.get_clock().now().to_msg()
            publisher.publish(message)

        camera.create_timer(1 / SLOW_FPS, publish)
        group = stack.enter_context(NodeGroup(context, [node], lambda: None))
        group.add_node(camera)
        group.start()
        assert eventually(lambda: node.processed > 3, 60), 'no frame came over the plain link'
        outcome = judged(out)
        outcome['rung'] = node.subscription.statistics().rung
        outcome['copies'] = {
            reason: entry.count for reason, entry in node.ledger.entries().items()
        }
    camera.destroy_node()
    return outcome


def _of_heap(
    out: Path,
    heaps: Callable[[str], OfferedHeaps],
    camera: type[UntouchedCamera] = UntouchedCamera,
) -> Outcome:
    capture = {
        'camera': 'synthetic', 'pattern': 'counter', 'width': WIDTH, 'height': HEIGHT,
        'framerate': float(SLOW_FPS), 'slots': 8,
    }  # fmt: skip
    with (
        mock.patch.object(synthetic, 'SyntheticCamera', camera),
        mock.patch.object(camera_module, 'working_heaps', heaps),
        unmapped(),
    ):
        return _streaming(out, capture)


def writes_through_a_memfd(out: Path) -> Outcome:
    """Use buffers of a memfd that the camera has kept; it writes them without a mapping."""
    heap = OneMemfd()

    class WritingCamera(UntouchedCamera):
        def _fill(self, slot: Slot) -> None:
            heap.write(slot.buffers[0], bytes([self._sequence % 256]) * slot.layout.buffer_size(0))

    return _of_heap(out, lambda name: OfferedHeaps.only(heap), WritingCamera)


def _streaming(
    out: Path,
    capture: dict[str, Any],
    meanwhile: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Outcome:
    """Run a stream that keeps only the newest frame, because a pipeline has few buffers."""
    with (
        ros() as context,
        RunningGraph(context, Variant(FRAMES, True, capture, keep_all=False)) as running,
    ):
        running.start()
        assert eventually(lambda: running.graph.inference.processed > 3, 60), running.problems
        with meanwhile():
            outcome = judged(out)
        return outcome | running.figures()


def _of_pipeline(pipeline: str) -> dict[str, Any]:
    return {'camera': 'gstreamer', 'pipeline': pipeline, 'slots': 10, 'heap': 'dma_heap/system'}


_DRIVERS_BUFFERS = _of_pipeline(f'v4l2src device={SINGLE} io-mode=dmabuf ! {_NV12}')


def maps_a_pipelines_camera(out: Path) -> Outcome:
    """Run that pipeline, and map a buffer by the camera's device, which no node names."""
    return _streaming(out, _DRIVERS_BUFFERS, lambda: mapped_by_the_device(SINGLE, WIDTH * HEIGHT))


def gstreamer_copy(out: Path) -> Outcome:
    """Run a pipeline whose frames are in system memory: the camera has to copy them."""
    scaled = (
        f'v4l2src device={SINGLE} io-mode=dmabuf ! {_NV12} ! videoscale ! '
        'video/x-raw,width=480,height=270'
    )
    return _streaming(out, _of_pipeline(scaled))


def _dmabufs_of(pid: int) -> set[int]:
    found = set()
    for entry in Path(f'/proc/{pid}/fd').iterdir():
        with suppress(OSError):  # it is closed already
            if os.readlink(entry).startswith('/dmabuf:'):
                found.add(entry.stat().st_ino)
    return found


def unixfd(out: Path) -> Outcome:
    """Run with the driver's own buffers, which another process's GStreamer pipeline reads, too."""
    path = Path(tempfile.mkdtemp()) / 'front.sock'
    capture = {**SLOW, 'unixfd': str(path)}
    theirs: set[int] = set()
    with (
        ros() as context,
        RunningGraph(context, Variant(FRAMES, True, capture, keep_all=False)) as running,
    ):
        running.start()
        camera = running.graph.capture
        # It shows its frames late, so that its descriptors can be read.
        late = ('!', 'identity', 'sleep-time=300000', '!', 'fakesink')
        reader = gst('unixfdsrc', f'socket-path={path}', *late)
        try:

            def seen() -> bool:
                theirs.update(_dmabufs_of(reader.pid))
                return len(theirs) > 2

            assert eventually(seen, 120), (reader.poll(), camera.collect_diagnostics())
            outcome = judged(out)
            seen()
            socket = next(each for each in camera.collect_diagnostics() if each.part == 'unixfd')
            outcome['reader'] = {
                'theirs': sorted(theirs), 'own': sorted(running.inodes()), 'pid': reader.pid,
                'exporters': sorted({bufinfo()[inode].exporter for inode in theirs}),
                'status': {key: str(value) for key, value in socket.values.items()},
            }  # fmt: skip
        finally:
            reader.kill()
            reader.communicate()
        return outcome | running.figures()


#: Cases that have a graph of their own.
GRAPHS: dict[str, Callable[[Path], Outcome]] = {
    'known_exporter': lambda out: _of_heap(out, lambda name: working_heaps('dma_heap/system')),
    'unknown_exporter': lambda out: _of_heap(out, lambda name: OfferedHeaps.only(ShadowHeap())),
    # Memfds that no process has open any more.
    'udmabuf': lambda out: _of_heap(out, lambda name: working_heaps('udmabuf')),
    'writes_through_a_memfd': writes_through_a_memfd,
    'plain_link': plain_link,
    # It passes the driver's own buffers on.
    'gstreamer_dmabuf': lambda out: _streaming(out, _DRIVERS_BUFFERS),
    'gstreamer_copy': gstreamer_copy,
    'unixfd': unixfd,
    'maps_a_pipelines_camera': maps_a_pipelines_camera,
}
