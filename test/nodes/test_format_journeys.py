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

"""Recordings of one road in every format, from camera to detections, give the boxes of NV12."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
from nodes.ros_kit import ros, spun
import numpy as np
from numpy.typing import NDArray
from pixel.format_samples import rgb_planes, SUBSAMPLING, YUV, yuv_planes
import pytest
from waiting import until

from zc_perception.camera.recording import Recorder
from zc_perception.camera.road_scene import RoadScene
from zc_perception.detection.detections import box_iou, Detections
from zc_perception.frame import Frame, Header
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import compute_layout

START, PERIOD = 1_700_000_000_000_000_000, 50_000_000
Boxes = Sequence[tuple[NDArray[np.floating[Any]], NDArray[Any]]]
"""Of each frame, corners (n, 4) and classes (n)."""


def planes_in(name: str, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> list[NDArray[Any]]:
    random = np.random.default_rng(0)
    if name not in YUV:
        return rgb_planes(
            name,
            np.asarray(cv2.cvtColorTwoPlane(luma, chroma, cv2.COLOR_YUV2RGB_NV12), np.uint8),
            random,
        )
    across, down = SUBSAMPLING[name]
    wide = chroma.repeat(2 // down, axis=0).repeat(2 // across, axis=1)
    return yuv_planes(name, luma, wide[..., 0], wide[..., 1], random)


def record_road(
    path: Path, name: str, frames: int, width: int, height: int, seed: int = 11
) -> None:
    """Record *frames* of the drawn road, from a pool whose rows have padding."""
    layout = compute_layout(fourcc_code(name), width, height, stride_align=96)
    heap, scene = SealedMemfd(), RoadScene(width, height, seed)
    pool = BufferPool(layout, lambda: (heap.allocate(layout.buffer_size(0)),), 2, name='camera')
    luma, chroma = (
        np.empty((height, width), np.uint8),
        np.empty((height // 2, width // 2, 2), np.uint8),
    )
    colorimetry = BT601_LIMITED if name in YUV else Colorimetry(Matrix.RGB, Range.FULL)
    with Recorder(path, ledger=CopyLedger()) as recorder:
        for number in range(frames):
            scene.draw(number, luma, chroma)
            slot = pool.acquire()
            assert slot is not None
            header = Header(START + number * PERIOD, 'lens')
            with Frame.publish_slot(
                pool,
                slot,
                header=header,
                colorimetry=colorimetry,
                sequence=number,
                captured_ns=number,
            ) as frame:
                _write(frame, planes_in(name, luma, chroma))
                assert recorder.put(frame, '/image_raw')
    pool.close()
    heap.close()


def _write(frame: Frame, planes: Sequence[NDArray[Any]]) -> None:
    with frame.map(write=True) as targets:
        for target, plane in zip(targets, planes, strict=True):
            np.copyto(target, plane)


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


WIDTH, HEIGHT, FRAMES = 640, 360, 10
# One format of 16 bits, a packed one and an RGB one; test/pixel covers all formats.
FORMATS = ('P010', 'UYVY', 'BG24')


def in_one_process(domain: int, path: Path) -> tuple[Boxes, set[str], set[int]]:
    """Return each frame's detections, the ledger's reasons, and the frames' fourccs."""
    found: dict[int, Detections] = {}
    fourccs: set[int] = set()
    with ros(domain) as context:
        overrides = {
            'capture': {
                'camera': 'replay',
                'video': str(path),
                'keep_all': True,
                'stamps': 'recorded',
            },
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
    return (
        [(found[stamp].boxes, found[stamp].classes) for stamp in sorted(found)],
        reasons,
        fourccs,
    )


@pytest.fixture(scope='module')
def nv12(module_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Boxes:
    path = tmp_path_factory.mktemp('nv12') / 'nv12'
    record_road(path, 'NV12', FRAMES, WIDTH, HEIGHT)
    return in_one_process(module_domain, path)[0]


@pytest.mark.parametrize('name', FORMATS)
def test_in_one_process_every_format_has_nv12_s_boxes(
    name: str, nv12: Boxes, free_domain: int, tmp_path: Path
) -> None:
    path = tmp_path / 'clip'
    record_road(path, name, FRAMES, WIDTH, HEIGHT)
    found, reasons, fourccs = in_one_process(free_domain, path)
    assert fourccs == {fourcc_code(name)} and reasons == {'decode', 'tensor'}, (
        'the frames came as they were recorded, and were read once'
    )
    check_same_boxes(found, nv12)
