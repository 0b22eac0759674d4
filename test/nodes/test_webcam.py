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

"""A webcam with the stock nodes and the shipped files, with YUYV and MJPG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from camera.jpeg_kit import need_decoder, without_tables
from camera.v4l2_double import exports_are_memfds, LiveWebcam, road_pictures
from camera.video_kit import pictures_of
import cv2
from nodes.managed import Managed, managed
import numpy as np
import pytest
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray
import yaml

from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode

SIZE = (640, 360)
ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / 'config' / 'v4l2.yaml'
VIDEO = ROOT / 'build' / 'fixtures' / 'vtest.avi'


@pytest.fixture(scope='module', autouse=True)
def _library() -> None:
    need_decoder()


@pytest.fixture(autouse=True)
def _memfds(monkeypatch: pytest.MonkeyPatch) -> None:
    exports_are_memfds(monkeypatch)


def section(file: Path, node: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(file.read_text(encoding='utf-8'))[f'/**/{node}']
    return values['ros__parameters']


class Desk:
    """Capture and inference with a webcam, and a plain program that reads their topics."""

    def __init__(self, run: Managed, webcam: LiveWebcam, detector: dict[str, Any]) -> None:
        self.run, self.ledger = run, CopyLedger()
        values = section(CONFIG, 'capture')
        asked = {name: values[name] for name in ('pixel_format', 'memory')}
        del values['device']
        self.images = run.hear(Image, '/image_raw', 1)
        self.boxes = run.hear(Detection2DArray, '/detections')
        self.capture = run.make(
            CaptureNode,
            values,
            camera_factory=lambda identity: webcam.camera(self.ledger, heap='memfd', **asked),
            ledger=self.ledger,
        )
        inference = run.make(InferenceNode, {**detector, 'timeout': 20.0}, ledger=self.ledger)
        self.capture.start()
        inference.start()


def test_a_webcam_with_yuyv_and_mjpg_works_with_the_shipped_file(
    free_domain: int, capfd: pytest.CaptureFixture[str]
) -> None:
    pictures = road_pictures(*SIZE, 12)
    webcam = LiveWebcam(
        'YUYV', 'MJPG', pictures=[*pictures[:6], *map(without_tables, pictures[6:])], size=SIZE
    )
    webcam.rates = {'YUYV': 5}
    with managed(free_domain) as run:
        made = Desk(run, webcam, {'model': 'road', 'accelerator': 'onnx'})
        run.eventually(lambda: sum(len(found.detections) for found in made.boxes) > 20)
        run.eventually(lambda: len(made.images) > 2)
        image = made.images[-1]
        assert (image.encoding, image.width, image.height) == ('rgb8', *SIZE)
        pixels = np.frombuffer(bytes(image.data), np.uint8).reshape(SIZE[1], SIZE[0], 3)
        assert pixels.std(axis=(0, 1)).min() > 10, 'a picture with colours'
        statistics = made.capture.camera.statistics()
        assert made.ledger.count('decode') >= statistics.captured > 0 and statistics.bad == 0
    log = capfd.readouterr().err
    assert (
        'MJPG, which the CPU decodes to NV12, about 3 to 6 ns for each pixel (booked as '
        'decode): YUYV does 5 Hz at this size'
    ) in log


def test_the_file_for_a_webcam_finds_the_people_in_its_picture(free_domain: int) -> None:
    file = ROOT / 'config' / 'webcam.yaml'
    asked = section(file, 'capture')
    size = asked['width'], asked['height']
    picture = cv2.resize(pictures_of(VIDEO, 1, 'bgr24')[0], size)
    yuyv = np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2YUV_YUY2), np.uint8).tobytes()
    webcam = LiveWebcam('YUYV', 'MJPG', pictures=[yuyv], size=size)
    with managed(free_domain) as run:
        made = Desk(run, webcam, section(file, 'inference'))
        run.eventually(lambda: any(found.detections for found in made.boxes), 'people')
        assert made.ledger.count('decode') == 0
