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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from camera.video_kit import pictures_of
import cv2
from frame_kit import pool_of, written_frame
from long_form import LONG
from nodes.ros_kit import alone, given_back, held, ros, spun, status
import numpy as np
from numpy.typing import NDArray
from pixel.format_samples import rgb_planes, SUBSAMPLING, YUV, yuv_planes
import pytest
from sensor_msgs.msg import Image
from waiting import until

from zc_perception.camera.recording import Recorder
from zc_perception.camera.road_scene import RoadScene
from zc_perception.detection.detections import box_iou, Detections
from zc_perception.errors import AcceleratorError
from zc_perception.frame import Header
from zc_perception.link.bus import MEETING
from zc_perception.link.endpoints.qos import bus_key
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import SlotState
from zc_perception.negotiation.constraints import BufferConstraints, parse_stand_in
from zc_perception.negotiation.session import Consumer
from zc_perception.negotiation.settings import BufferSettings
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.perception import Overrides, PerceptionGraph
from zc_perception.observe.diagnostics import Level
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import compute_layout

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


# Recordings of one road in every format, from camera to detections, give the boxes of NV12.
WIDTH, HEIGHT, FRAMES = 640, 360, 10
START, PERIOD = 1_700_000_000_000_000_000, 50_000_000
Boxes = Sequence[tuple[NDArray[np.floating[Any]], NDArray[Any]]]
"""Of each frame, corners (n, 4) and classes (n)."""


def planes_in(name: str, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> list[NDArray[Any]]:
    random = np.random.default_rng(0)
    if name not in YUV:
        rgb = cv2.cvtColorTwoPlane(luma, chroma, cv2.COLOR_YUV2RGB_NV12)
        return rgb_planes(name, np.asarray(rgb, np.uint8), random)
    across, down = SUBSAMPLING[name]
    wide = chroma.repeat(2 // down, axis=0).repeat(2 // across, axis=1)
    return yuv_planes(name, luma, wide[..., 0], wide[..., 1], random)


def record_road(path: Path, name: str) -> None:
    """Record frames of the drawn road, from a pool whose rows have padding."""
    scene = RoadScene(WIDTH, HEIGHT, 11)
    pool = pool_of(compute_layout(fourcc_code(name), WIDTH, HEIGHT, stride_align=96), 2)
    luma = np.empty((HEIGHT, WIDTH), np.uint8)
    chroma = np.empty((HEIGHT // 2, WIDTH // 2, 2), np.uint8)
    colorimetry = BT601_LIMITED if name in YUV else Colorimetry(Matrix.RGB, Range.FULL)
    with Recorder(path, ledger=CopyLedger()) as recorder:
        for number in range(FRAMES):
            scene.draw(number, luma, chroma)
            header = Header(START + number * PERIOD, 'lens')
            planes, options = planes_in(name, luma, chroma), {'colorimetry': colorimetry}
            with written_frame(pool, planes, number, header=header, **options) as frame:
                assert recorder.put(frame, '/image_raw')
    pool.close()


def check_same_boxes(found: Boxes, expected: Boxes) -> None:
    """Check for the same objects in each frame; the total count may differ by 2 %."""
    assert len(found) == len(expected)
    counts = [sum(len(boxes) for boxes, _ in run) for run in (found, expected)]
    assert counts[1] > 2 * len(expected) and abs(counts[0] - counts[1]) <= 0.02 * counts[1], counts
    overlaps: list[float] = []
    for (boxes, classes), (other_boxes, other_classes) in zip(found, expected, strict=True):
        if len(boxes) and len(other_boxes):
            overlap = box_iou(boxes, other_boxes) * (classes[:, None] == other_classes)
            overlaps += list(overlap.max(axis=0))
    assert np.mean(np.array(overlaps) >= 0.9) >= 0.98, sorted(overlaps)[:10]


# One format of 16 bits, a packed one and an RGB one; test/pixel covers all formats.
FORMATS = ('P010', 'UYVY', 'BG24')


def in_one_process(domain: int, path: Path) -> tuple[Boxes, set[str], set[int]]:
    """Return each frame's detections, the ledger's reasons, and the frames' fourccs."""
    found: dict[int, Detections] = {}
    fourccs: set[int] = set()
    with ros(domain) as context:
        replayed = {'camera': 'replay', 'video': str(path), 'stamps': 'recorded'}
        overrides = {
            'capture': {**replayed, 'keep_all': True},
            'inference': {'keep_all': True, 'threads': 1, 'timeout': 20.0},
        }
        graph = PerceptionGraph(context, overrides)

        def observe(entry: object, detections: Detections) -> None:
            data = entry.frame.data  # type: ignore[attr-defined]
            fourccs.add(data.fourcc)
            found[data.header.stamp_ns] = detections

        graph.inference.observers.append(observe)
        with spun(context, *graph.nodes):
            until(lambda: len(found) >= FRAMES, lambda: f'{len(found)} frames', 120.0)
            reasons = set(graph.ledger.entries())
    assert sorted(found) == [START + number * PERIOD for number in range(FRAMES)]
    boxes = [(found[stamp].boxes, found[stamp].classes) for stamp in sorted(found)]
    return boxes, reasons, fourccs


@pytest.fixture(scope='module')
def nv12(module_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Boxes:
    path = tmp_path_factory.mktemp('nv12') / 'nv12'
    record_road(path, 'NV12')
    return in_one_process(module_domain, path)[0]


@pytest.mark.parametrize('name', FORMATS)
def test_in_one_process_every_format_has_nv12_s_boxes(
    name: str, nv12: Boxes, free_domain: int, tmp_path: Path
) -> None:
    path = tmp_path / 'clip'
    record_road(path, name)
    found, reasons, fourccs = in_one_process(free_domain, path)
    assert fourccs == {fourcc_code(name)} and reasons == {'decode', 'tensor'}, (
        'the frames came as they were recorded, and were read once'
    )
    check_same_boxes(found, nv12)
