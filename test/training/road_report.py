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

"""Exports a road model, measures the exported file and writes ``report.json`` beside it."""

from __future__ import annotations

from datetime import date
import io
import json
from pathlib import Path
import statistics
import time
from typing import Any
import warnings

from colour_baseline import ColourBaseline, road_frames, RoadFrame
from detection.average_precision import (
    average_precision,
    AveragePrecision,
    ImageBoxes,
    precision_recall,
)
import numpy as np
import onnx
from onnx import helper, numpy_helper, TensorProto
from road_data import INPUT_HEIGHT, INPUT_WIDTH
from road_evaluation import RoadModel
from road_network import Decoded, RoadNetwork
import torch

from zc_perception.camera.road_scene import CLASS_NAMES

SIZES = ((640, 360), (1280, 720), (640, 480))
HELD_OUT_SEED = 20_000_000
BASELINE_SEED = 3_000_000
SCENES, FRAMES_PER_SCENE = 15, 20
SCORE_THRESHOLD = 0.5


def write_report(model_path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Measure ``model_path``; write and return the report with the training's ``facts``."""
    model = RoadModel(model_path)
    report: dict[str, Any] = {
        'date': date.today().isoformat(),
        **facts,
        'file_bytes': model_path.stat().st_size,
        'inference_ms_one_core': round(_inference_ms(model), 2),
        'frames': SCENES * FRAMES_PER_SCENE,
        'scene_seeds': [HELD_OUT_SEED, HELD_OUT_SEED + SCENES - 1],
        'held_out': {},
    }
    for width, height in SIZES:
        frames = list(
            road_frames(width, height, 'held_out', HELD_OUT_SEED, SCENES, FRAMES_PER_SCENE)
        )
        report['held_out'][f'{width}x{height}'] = {
            **_quality(model, frames),
            'colour_baseline': _baseline_figures(width, height, 'held_out', frames),
        }
    frames = list(road_frames(*SIZES[0], 'all', HELD_OUT_SEED, SCENES, FRAMES_PER_SCENE))
    report['all_hues_640x360'] = {
        **_quality(model, frames),
        'colour_baseline': _baseline_figures(*SIZES[0], 'all', frames),
    }
    model_path.with_name('report.json').write_text(json.dumps(report, indent=2) + '\n')
    return report


def _quality(model: RoadModel, frames: list[RoadFrame]) -> dict[str, Any]:
    truth = [frame.truth for frame in frames]
    detections = [model.detect(frame.luma, frame.chroma) for frame in frames]
    precision, recall = precision_recall(detections, truth, SCORE_THRESHOLD)
    return {
        **_figures(average_precision(detections, truth, len(CLASS_NAMES))),
        'objects': sum(len(boxes.boxes) for boxes in truth),
        f'precision_at_{SCORE_THRESHOLD}': round(precision, 4),
        f'recall_at_{SCORE_THRESHOLD}': round(recall, 4),
    }


def _baseline_figures(
    width: int, height: int, palette: str, frames: list[RoadFrame]
) -> dict[str, Any]:
    """Return figures of the baseline, which learns the test's own palette: an advantage."""
    baseline = ColourBaseline(list(road_frames(width, height, palette, BASELINE_SEED, 12, 5)))
    detections: list[ImageBoxes] = [baseline.detect(frame) for frame in frames]
    measured = average_precision(detections, [frame.truth for frame in frames], len(CLASS_NAMES))
    return {'learnt_on_palette': palette, **_figures(measured)}


def _figures(measured: AveragePrecision) -> dict[str, Any]:
    per_class = {
        name: round(value, 4) for name, value in zip(CLASS_NAMES, measured.per_class, strict=True)
    }
    return {'map_50': round(measured.mean, 4), 'ap_50': per_class}


def _inference_ms(model: RoadModel) -> float:
    """Return the CPU time of one inference: other programs hardly change it."""
    tensor = np.full((1, 3, INPUT_HEIGHT, INPUT_WIDTH), 0.5, np.float32)
    times = []
    for _ in range(60):
        started = time.thread_time()
        model.engine.infer(tensor)
        times.append(time.thread_time() - started)
    return statistics.median(times[10:]) * 1e3


# Export as ONNX, the weights stored as float16.
OPSET = 17
INPUT_NAME, OUTPUT_NAME = 'image', 'detections'
SMALLEST_HALVED = 32


def export(network: RoadNetwork, path: Path) -> None:
    """Write ``network`` (evaluation mode, CPU) with its decoding to ``path``; fold batch norms."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # The legacy exporter warns that it is legacy. The new one needs another package and names
        # every node.
        warnings.simplefilter('ignore')
        torch.onnx.export(
            Decoded(network).eval(),
            (torch.zeros(1, 3, INPUT_HEIGHT, INPUT_WIDTH),),
            buffer,
            opset_version=OPSET,
            input_names=[INPUT_NAME],
            output_names=[OUTPUT_NAME],
            dynamo=False,
        )
    model = onnx.load_from_string(buffer.getvalue())
    _store_as_float16(model.graph)
    model.producer_name, model.producer_version, model.doc_string = 'zc_perception', '', ''
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


def _store_as_float16(graph: onnx.GraphProto) -> None:
    """Store every large float32 constant as float16; a Cast restores it, folded at loading."""
    _constants_to_initializers(graph)
    casts = []
    for tensor in graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.size < SMALLEST_HALVED:
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f'{name}.h'))
        casts.append(helper.make_node('Cast', [tensor.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    for node in graph.node:
        node.ClearField('name')
        node.ClearField('doc_string')
    del graph.value_info[:]
    _shorten_names(graph)


def _constants_to_initializers(graph: onnx.GraphProto) -> None:
    kept = []
    for node in graph.node:
        if node.op_type == 'Constant':
            tensor = node.attribute[0].t
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)


def _shorten_names(graph: onnx.GraphProto) -> None:
    short = {'': '', INPUT_NAME: INPUT_NAME, OUTPUT_NAME: OUTPUT_NAME}
    for tensor in graph.initializer:
        tensor.name = short.setdefault(tensor.name, f't{len(short)}')
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [short.setdefault(name, f't{len(short)}') for name in names]
