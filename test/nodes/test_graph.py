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

"""The three nodes in one process: agreement on buffers, leaks, and the detector's boxes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
from pathlib import Path
from unittest.mock import Mock

from camera.video_kit import pictures_of
import cv2
from long_form import LONG
from nodes.ros_kit import alone, given_back, held, ros, spun, status
import numpy as np
from sensor_msgs.msg import Image
from waiting import until

from zc_perception.detection.detections import box_iou, Detections
from zc_perception.errors import AcceleratorError
from zc_perception.link.bus import MEETING
from zc_perception.link.endpoints.qos import bus_key
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.pool import SlotState
from zc_perception.negotiation.constraints import BufferConstraints, parse_stand_in
from zc_perception.negotiation.session import Consumer
from zc_perception.negotiation.settings import BufferSettings
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.perception import Overrides, PerceptionGraph
from zc_perception.observe.diagnostics import Level

VIDEO = Path(__file__).parents[2] / 'build' / 'fixtures' / 'vtest.avi'


@contextmanager
def running(domain: int, overrides: Overrides) -> Iterator[PerceptionGraph]:
    with ros(domain) as context:
        inference = {'timeout': 20.0, **overrides.get('inference', {})}
        graph = PerceptionGraph(context, {**overrides, 'inference': inference})
        with spun(context, *graph.nodes):
            yield graph


def test_descriptors_threads_and_slots_are_flat_over_thousands_of_frames(free_domain: int) -> None:
    frames = 10_000 if LONG else 700
    overrides = {
        'capture': {'framerate': 1000.0, 'width': 64, 'height': 128},
        'inference': {'model': 'hog', 'timeout': 60.0},
    }
    with running(free_domain, overrides) as graph:

        captured = lambda: graph.capture.camera.statistics().captured  # noqa: E731
        until(lambda: captured() >= 300, captured, 150.0)
        before = held()
        for step in range(1, 11):
            until(lambda at=300 + frames // 10 * step: captured() >= at, captured, 150.0)
            until(lambda: given_back(before), lambda: f'{held()}, before: {before}')
            pool = graph.capture.camera.pool_statistics()
            assert (pool.slots, pool.abandoned, pool.retired) == (8, 0, 0)
        until(lambda: graph.inference.processed > frames // 10, 'results')
        assert graph.inference.failed == 0
        graph.capture.camera.stop()
        pool = graph.capture.camera.pool_statistics
        until(lambda: pool().states == {SlotState.FREE: 8}, 'all slots are free')
        assert pool().holders == {}


NAMES = 'camera', 'onnx accelerator', 'display'


def test_camera_accelerator_and_stand_ins_agree_and_diagnostics_say_on_what(
    free_domain: int,
) -> None:
    stand_in = 'display: NV12 XR24; stride_align=256; slots=2'
    overrides = {
        'capture': {'width': 128, 'height': 128, 'participants': [stand_in], 'slots': 3},
        'inference': {'model': 'hog', 'in_flight': 2},
    }
    with running(free_domain, overrides) as graph:
        found = status(graph.capture, 'negotiation')
        said = {name: found.values[f'participant {name}'] for name in NAMES}
        slots = graph.capture.camera.slots
        assert len(slots) == 2 + 3 + 2, 'camera, two in flight and one that waits, display'
        assert {plane.stride for plane in slots[0].layout.planes} == {256}
        assert graph.capture.session is not None
        assert graph.capture.session.join(Consumer(parse_stand_in(stand_in))).has_buffers
    assert found.level is Level.OK and 'NV12 LINEAR 128x128' in found.message
    assert '7 slots from heap' in found.message
    assert list(said.values()) == ['accepted', 'accepted', 'stand-in']


def test_each_slot_is_imported_on_trial_before_the_first_frame_and_who_gets_none_is_named(
    free_domain: int,
) -> None:
    seen: list[tuple[int, int, bool]] = []

    def trial(settings: BufferSettings, buffers: tuple[DmaBuf, ...]) -> None:
        seen.append((buffers[0].identity.inode, settings.slots, any(buffers[0].memory())))

    consumers = (
        Consumer(BufferConstraints('metis', heaps=('dma_heap/', 'udmabuf'))),
        Consumer(BufferConstraints('gpu'), Mock(side_effect=AcceleratorError('EINVAL'))),
        Consumer(BufferConstraints('npu', slots=1), trial),
    )
    values = {'width': 128, 'height': 128, 'heap': 'memfd'}
    with alone(free_domain, CaptureNode, values) as node, ExitStack() as stack:
        key = bus_key(node, '/image_raw', Image)
        for consumer in consumers:
            MEETING.add_consumer(key, consumer)
            stack.callback(MEETING.remove_consumer, key, consumer)
        assert status(node, 'negotiation').level is Level.WARN, 'it waits for the camera'
        node.configure_now()
        slots = node.camera.slots
        assert seen == [(slot.buffers[0].identity.inode, len(slots), False) for slot in slots], (
            'nothing is drawn yet'
        )
        found = status(node, 'negotiation')
        assert found.level is Level.WARN
        assert "metis can't use buffers of heap 'memfd'" in found.message
        failed = f'gpu fell back: trial import of slot 0 of {len(slots)} failed: EINVAL'
        assert failed in found.message
        assert str(found.values['participant metis']).startswith('refused: ')
        assert found.values['participant npu'] == 'accepted'
        node.start()
        until(lambda: node.camera.statistics().captured, 'frames')
        assert len(seen) == len(slots), 'once each'


def test_hog_boxes_equal_those_of_the_detector_on_the_same_luma(
    free_domain: int, tmp_path: Path
) -> None:
    """The frames are those of a real video of pedestrians."""
    assert VIDEO.is_file(), 'make test fetches it from the Debian package opencv-doc'
    frames = 45 if LONG else 6
    clip = tmp_path / 'clip.avi'
    pictures = pictures_of(VIDEO, frames, 'bgr24')
    size = pictures[0].shape[1::-1]
    writer = cv2.VideoWriter(str(clip), cv2.VideoWriter_fourcc(*'MJPG'), 10, size)
    for picture in pictures:
        writer.write(picture)
    writer.release()

    values = {
        'capture': {'camera': 'replay', 'video': str(clip), 'keep_all': True, 'start_delay': 0.0},
        'inference': {'model': 'hog', 'keep_all': True, 'timeout': 30.0},
    }
    published: list[tuple[int, Detections]] = []
    with ros(free_domain) as context:
        graph = PerceptionGraph(context, values)
        graph.inference.observers.append(
            lambda entry, found: published.append((entry.frame.header.stamp_ns, found))
        )
        with spun(context, *graph.nodes):
            until(lambda: len(published) >= frames, lambda: len(published), 200.0)
    hog = cv2.HOGDescriptor()
    hog.setSVMDetector(cv2.HOGDescriptor.getDefaultPeopleDetector())
    total = 0
    for number, luma in enumerate(pictures_of(clip, frames, 'gray')):
        stamp, found = published[number]
        assert stamp - published[0][0] == number * 100_000_000, 'every frame once, in order'
        boxes = np.asarray(hog.detectMultiScale(luma, winStride=(8, 8), scale=1.05)[0])
        expected = np.array([[x, y, x + w, y + h] for x, y, w, h in boxes.tolist()]).reshape(-1, 4)
        assert len(found) == len(expected)
        assert not len(found) or box_iou(expected, found.boxes).max(axis=1).min() >= 0.95
        total += len(found)
    assert total > frames, 'people were really found'
