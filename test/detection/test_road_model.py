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
The shipped road model on scenes and colours that are not in its training.

A baseline that uses colour alone is tested on the same frames.
"""

from __future__ import annotations

import json
from pathlib import Path

from detection.road_evaluation import (
    average_precision,
    ColourBaseline,
    ImageBoxes,
    precision_recall,
    road_frames,
    RoadFrame,
    RoadModel,
)
import pytest

import zc_perception
from zc_perception.camera.road_scene import CLASS_NAMES

FOLDER = Path(zc_perception.__file__).parent / 'models' / 'road'
FIRST_HELD_OUT_SEED = 10_000_000
BASELINE_SEED = 4_000_000


@pytest.fixture(scope='module')
def model() -> RoadModel:
    return RoadModel(FOLDER / 'model.onnx')


@pytest.fixture(scope='module')
def held_out() -> list[RoadFrame]:
    seed = FIRST_HELD_OUT_SEED
    return list(road_frames(640, 360, 'held_out', seed, scenes=20, frames_per_scene=5))


def mean_precision(found: list[ImageBoxes], frames: list[RoadFrame]) -> float:
    return average_precision(found, [frame.truth for frame in frames], len(CLASS_NAMES)).mean


def test_finds_the_objects_of_held_out_scenes_and_rarely_errs(
    model: RoadModel, held_out: list[RoadFrame]
) -> None:
    found = [model.detect(frame.luma, frame.chroma) for frame in held_out]
    assert mean_precision(found, held_out) >= 0.90
    truth, threshold = [frame.truth for frame in held_out], model.manifest.score_threshold
    precision, recall = precision_recall(found, truth, threshold)
    assert precision >= 0.97 and recall >= 0.80


@pytest.mark.parametrize(('width', 'height'), [(1920, 1080), (320, 240)])
def test_finds_them_at_other_frame_sizes(model: RoadModel, width: int, height: int) -> None:
    seed = FIRST_HELD_OUT_SEED + 500
    frames = list(road_frames(width, height, 'held_out', seed, scenes=4, frames_per_scene=4))
    found = [model.detect(frame.luma, frame.chroma) for frame in frames]
    assert mean_precision(found, frames) >= 0.85


def test_colour_alone_finds_little(held_out: list[RoadFrame]) -> None:
    """The baseline learns the test's own colours, so it has an advantage over the model."""
    learnt = list(road_frames(640, 360, 'held_out', BASELINE_SEED, scenes=8, frames_per_scene=5))
    baseline = ColourBaseline(learnt)
    found = [baseline.detect(frame) for frame in held_out]
    assert mean_precision(found, held_out) <= 0.5


def test_manifest_describes_the_file(model: RoadModel) -> None:
    """Loading checks what the file says about its input and outputs."""
    assert model.manifest.classes == CLASS_NAMES
    assert (FOLDER / 'model.onnx').stat().st_size <= 500_000


def test_report_belongs_to_the_file() -> None:
    report = json.loads((FOLDER / 'report.json').read_text())
    assert report['file_bytes'] == (FOLDER / 'model.onnx').stat().st_size
    for size in ('640x360', '1280x720', '640x480'):
        figures = report['held_out'][size]
        assert figures['map_50'] >= 0.90
        assert figures['colour_baseline']['map_50'] <= 0.5
