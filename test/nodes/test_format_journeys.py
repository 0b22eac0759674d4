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

"""Recordings of the same road in every format, from camera to detections: the boxes are NV12's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
from nodes.format_kit import Boxes, check_same_boxes, PERIOD, record_road, START
from nodes.programs import parameters, PlainSubscriber, Program
from nodes.ros_kit import ros, spun
import numpy as np
from numpy.typing import NDArray
import pytest
from waiting import until

from zc_perception.camera.synthetic import RoadScene
from zc_perception.detection.detections import Detections
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.pixel.fourcc import fourcc_code

WIDTH, HEIGHT, FRAMES = 640, 360, 10
# Of each kind of layout those that cameras have.
FORMATS = (
    'NV12',
    'NV21',
    'NV16',
    'NV24',
    'YU12',
    'YV12',
    'YUYV',
    'UYVY',
    'P010',
    'BG24',
    'RG24',
    'XR24',
    'AB24',
)


def in_one_process(domain: int, path: Path) -> tuple[Boxes, set[str], set[int]]:
    """Return what is found in each frame, the ledger's reasons, and the frames' fourccs."""
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


def corners(boxes: list[Any]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Of the boxes that a subscriber has printed."""
    numbers = np.array([box[:4] for box in boxes], np.float64).reshape(-1, 4)
    centres, halves = numbers[:, :2], numbers[:, 2:] / 2
    return np.hstack([centres - halves, centres + halves]), np.array(
        [int(box[4]) for box in boxes], np.intp
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


@pytest.mark.parametrize('name', ['NV21', 'YUYV', 'P010'])
def test_in_two_processes_and_as_messages_it_is_the_same_picture(
    name: str, nv12: Boxes, free_domain: int, tmp_path: Path
) -> None:
    path = tmp_path / 'clip'
    record_road(path, name, FRAMES, WIDTH, HEIGHT)
    subscriber = PlainSubscriber(
        ['120', '--image', '--until-detections', str(FRAMES), '--until-silent', '20'],
        domain=free_domain,
    )
    slowly = parameters(
        camera='replay',
        video=path,
        stamps='recorded',
        loop=False,
        replay_rate=0.15,
        start_delay=2.0,
    )
    with (
        Program('inference_node', *parameters(threads=1, timeout=20.0), domain=free_domain).start(
            '[inference]: ready'
        ),
        Program('capture_node', *slowly, domain=free_domain).start('[capture]: ready'),
    ):
        seen = subscriber.result()
    expected = {START + number * PERIOD: boxes for number, boxes in enumerate(nv12)}
    found = {message['stamp']: corners(message['boxes']) for message in seen['detections']}
    assert len(found) >= FRAMES // 2 and set(found) <= set(expected)
    check_same_boxes(list(found.values()), [expected[stamp] for stamp in found])
    image = seen['image']
    assert image is not None and (image['encoding'], image['size']) == ('rgb8', [WIDTH, HEIGHT])
    luma, chroma = (
        np.empty((HEIGHT, WIDTH), np.uint8),
        np.empty((HEIGHT // 2, WIDTH // 2, 2), np.uint8),
    )
    RoadScene(WIDTH, HEIGHT, 11).draw((image['stamp'] - START) // PERIOD, luma, chroma)
    wanted = cv2.cvtColorTwoPlane(luma, chroma, cv2.COLOR_YUV2RGB_NV12)
    shown = np.frombuffer(bytes.fromhex(image['hex']), np.uint8).reshape(wanted.shape)
    assert np.abs(shown.astype(np.int16) - wanted).max() <= 2
