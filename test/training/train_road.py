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
Trains, exports and measures the road detector that ships in ``zc_perception/models/road``.

One command, CPU or GPU (PyTorch 2.13, onnx, onnxruntime, opencv-python-headless, numpy)::

    python test/training/train_road.py --minutes 40 --out zc_perception/models/road

Training sees ``palette='train'`` only; the figures in ``report.json`` come from scenes with other
seeds and ``palette='held_out'``. ``--checkpoint`` names a file with the training's state, which is
loaded at the start and written every two minutes; ``--minutes 0`` exports and measures it
unchanged. Seeds are fixed, but a limit in minutes ends at a different step on every machine:
``--steps`` makes runs comparable.

The shipped weights took 2885 steps of 16 frames in three runs on two shared cores, 90 minutes
together. The first, at the default rate, was stopped after 1077 steps, to give every level of the
heads its own batch norm (with statistics measured anew on training frames). ``--minutes 26 --rate
0.002`` and ``--minutes 40 --rate 0.0015`` followed.
"""

from __future__ import annotations

import argparse
import copy
from datetime import date
import io
import json
import math
from pathlib import Path
import statistics
import sys
import time
from typing import Any
import warnings

import numpy as np
import torch
from torch.utils.data import DataLoader

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder)
    for folder in ('', 'test')
)

from detection.road_evaluation import (  # noqa: E402
    average_precision,
    AveragePrecision,
    ColourBaseline,
    ImageBoxes,
    precision_recall,
    road_frames,
    RoadFrame,
    RoadModel,
)
import onnx  # noqa: E402
from onnx import helper, numpy_helper, TensorProto  # noqa: E402
from road_data import INPUT_HEIGHT, INPUT_WIDTH, RoadFrames, to_input  # noqa: E402, I100
from road_network import cell_centres, Decoded, detection_loss, RoadNetwork, STRIDES  # noqa: E402

from zc_perception.camera.road_scene import CLASS_NAMES  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SEED = 20
TRAIN_SCENES = (0, 1_000_000)
BATCH = 16
WARM_UP = 0.03
CHECKPOINT_SECONDS = 120


def main() -> None:
    options = _options()
    torch.manual_seed(SEED)
    torch.set_num_threads(options.threads)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    trainer = Trainer(options.checkpoint, device, options.rate)
    trainer.run(options.minutes * 60, options.steps)
    model_path = options.out / 'model.onnx'
    export(trainer.average.cpu(), model_path)
    report = write_report(model_path, trainer.facts())
    print(json.dumps(report, indent=2))


class Trainer:
    """Network, its running average (which ships), optimiser, and their checkpoint file."""

    def __init__(self, checkpoint: Path, device: torch.device, peak_rate: float) -> None:
        self._checkpoint = checkpoint
        self._peak_rate = peak_rate
        self._device = device
        self._network = RoadNetwork(len(CLASS_NAMES)).to(device, memory_format=torch.channels_last)
        self._optimiser = torch.optim.AdamW(
            self._network.parameters(), peak_rate, weight_decay=0.02
        )
        self.average = copy.deepcopy(self._network).eval()
        self.steps = 0
        if checkpoint.exists():
            state = torch.load(checkpoint, map_location=device, weights_only=True)
            self._network.load_state_dict(state['network'])
            self._optimiser.load_state_dict(state['optimiser'])
            self.average.load_state_dict(state['average'])
            self.steps = state['steps']

    def run(self, seconds: float, steps: int | None) -> None:
        """Train for ``steps``, else for ``seconds``; the cosine schedule covers exactly that."""
        if not seconds and not steps:
            return
        frames = RoadFrames(SEED + self.steps, 'train', *TRAIN_SCENES)
        loader = DataLoader(frames, BATCH, num_workers=1, prefetch_factor=4)
        centres = torch.cat(
            [cell_centres(INPUT_HEIGHT // s, INPUT_WIDTH // s, s, self._device) for s in STRIDES]
        )
        started = saved = time.monotonic()
        smooth = math.nan
        self._network.train()
        for count, batch in enumerate(loader):
            elapsed = time.monotonic() - started
            progress = count / steps if steps else elapsed / seconds
            if progress >= 1:
                break
            loss = self._step(batch, centres, progress)
            smooth = loss if math.isnan(smooth) else 0.98 * smooth + 0.02 * loss
            if count % 50 == 0:
                print(f'step {self.steps} {elapsed:.0f} s loss {smooth:.3f}', flush=True)
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                self._save()
                saved = time.monotonic()
        self._save()

    def facts(self) -> dict[str, Any]:
        return {
            'command': 'python test/training/train_road.py',
            'seed': SEED,
            'torch': torch.__version__,
            'training_palette': 'train',
            'training_scene_seeds': [TRAIN_SCENES[0], TRAIN_SCENES[1] - 1],
            'training_steps': self.steps,
            'training_frames': self.steps * BATCH,
            'parameters': sum(parameter.numel() for parameter in self._network.parameters()),
        }

    def _step(self, batch: list[torch.Tensor], centres: torch.Tensor, progress: float) -> float:
        pictures, boxes, labels = (tensor.to(self._device, non_blocking=True) for tensor in batch)
        rate = self._peak_rate * min(progress / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * progress))
        for group in self._optimiser.param_groups:
            group['lr'] = rate
        with torch.autocast(self._device.type, torch.bfloat16):
            predicted, logits = self._network(to_input(pictures))
        loss = detection_loss(predicted, logits, centres, boxes, labels)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 10.0)
        self._optimiser.step()
        self.steps += 1
        self._update_average()
        return loss.item()

    @torch.no_grad()
    def _update_average(self) -> None:
        keep = min(0.998, self.steps / (self.steps + 10))
        for mean, value in zip(
            self.average.state_dict().values(), self._network.state_dict().values(), strict=True
        ):
            if mean.dtype.is_floating_point:
                mean.lerp_(value, 1 - keep)
            else:
                mean.copy_(value)

    def _save(self) -> None:
        state = {
            'network': self._network.state_dict(),
            'optimiser': self._optimiser.state_dict(),
            'average': self.average.state_dict(),
            'steps': self.steps,
        }
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        partial = self._checkpoint.with_suffix('.partial')
        torch.save(state, partial)
        partial.replace(self._checkpoint)


# The report: the exported file is measured.
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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--minutes', type=float, default=40.0, help='training time (default: 40; 0: only export)'
    )
    parser.add_argument(
        '--steps', type=int, help=f'training steps of {BATCH} frames, instead of --minutes'
    )
    parser.add_argument(
        '--rate', type=float, default=3e-3, help='peak learning rate (default: 0.003)'
    )
    parser.add_argument(
        '--threads', type=int, default=2, help='CPU threads of the training (default: 2)'
    )
    checkpoint = ROOT / 'build/road_training.pt'
    parser.add_argument(
        '--checkpoint',
        type=Path,
        default=checkpoint,
        help='training state, continued if it exists',
    )
    parser.add_argument(
        '--out', type=Path, default=ROOT / 'zc_perception/models/road', help='folder of the model'
    )
    return parser.parse_args()


if __name__ == '__main__':
    main()
