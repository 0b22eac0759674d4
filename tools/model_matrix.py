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
Decode real exported models by this package and by other code, and print the differences.

This package reads the model's file alone; the other code reads the model's raw outputs. The
program is no part of package or tests, because Ultralytics is AGPL-3.0 and heavy. It needs an
environment of its own:

    pip install ultralytics onnx onnxslim onnxruntime transformers rfdetr
    PYTHONPATH=. python tools/model_matrix.py --table build/models.md [WORD …]

Each case runs in a process of its own with a time limit, and adds a line to the table when it
ends. Cases that already have a line are not run again. If WORDs are given, only cases with one of
them are run.

Weights are random. The last layers are scaled so that outputs differ from place to place and a
picture yields boxes of all classes. Backbones process the picture once, to set the mean values of
their batch normalisation. The picture is twice as large as the input. The other code runs the
model in an ONNX Runtime session of its own, on this package's input tensor; that tensor is
compared with the exporter's input tensor. The other code is:

- for Ultralytics' models: its `non_max_suppression`, and masks in PyTorch, all in float64. The IoU
  threshold is far from the overlap of any two boxes, so that rounding never decides which box
  stays.
- for the others: a few lines of NumPy, in float64.

Exit code 1 if boxes, keypoints or centres differ by more than 0.5 pixels, scores or angles by more
than 0.01, masks of 100 pixels or more have an IoU below 0.99, the input differs by more than 2 of
255 on average, there are more or fewer boxes, or a model is refused that should be accepted.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable
import contextlib
from dataclasses import dataclass, field
import io
import math
import multiprocessing
from multiprocessing.connection import Connection
import os
from pathlib import Path
import re
import sys
import tempfile
from typing import Any
import warnings

import cv2
import numpy as np

from zc_perception.detection.detections import Detections
from zc_perception.detection.extras import keypoints, MaskPainter
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.errors import ZcError
from zc_perception.npu.manifest import check_head, load_manifest
from zc_perception.npu.onnx.accelerator import OnnxEngine
from zc_perception.pixel.colorimetry import RGB_FULL
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import compute_layout

SCORE, COUNT = 0.2501, 3000  # no float16 has this score
WIDE, TALL = {'imgsz': (192, 320)}, {'imgsz': (320, 256)}
END = {'nms': False}  # Ultralytics' option to export the head that needs no suppression
# The network's name, the number of classes, the options of the export.
CASES: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ('yolov3-tiny', 80, {}), ('yolov5n', 80, {}), ('yolov5n-p6', 2, {}), ('yolov6n', 7, WIDE),
    ('yolov8n', 80, {}), ('yolov8n', 1, {}), ('yolov8n', 2, WIDE),
    ('yolov8n', 300, {'dynamic': True}), ('yolov8n', 80, {'nms': True}),
    ('yolov8n', 1, {**WIDE, 'nms': True}), ('yolov8n', 3, {'quantize': 16}),
    ('yolov8n', 3, {'quantize': 8}), ('yolov8n', 3, {'all_int8': True}),
    ('yolov8n', 5, {'float16': True}),
    ('yolov8n', 3, {'batch': 4}), ('yolov8n', 80, {'imgsz': (64, 64)}), ('yolov8n-p2', 2, {}),
    ('yolov8n-p6', 5, {}), ('yolov9t', 80, {}), ('yolov9t', 2, {**WIDE, 'dynamic': True}),
    ('yolov10n', 80, END), ('yolov10n', 1, {**END, **WIDE}),
    ('yolov10n', 2, {**END, 'dynamic': True}), ('yolov10n', 3, {}), ('yolo11n', 80, {}),
    ('yolo11n', 1, {**WIDE, 'opset': 12}), ('yolo11n', 2, {'nms': True, 'dynamic': True}),
    ('yolo11n', 300, TALL), ('yolo11n', 4, {'channels': 1}),
    ('yolo11n', 6, {**WIDE, 'quantize': 8}), ('yolo12n', 80, {}),
    ('yolo12n', 2, {'simplify': False}), ('yolo26n', 80, END), ('yolo26n', 1, {**END, **WIDE}),
    ('yolo26n', 2, {}), ('yolo26n', 300, {**END, 'dynamic': True}),
    ('yolo26n', 80, {'nms': True}), ('yolo26n-p2', 3, END),
    ('yolo26n', 4, {**END, 'quantize': 16}), ('yolo26n', 4, {**END, 'float16': True}),
    ('yolov8n-worldv2', 80, {}), ('yolov8n-rtdetr', 80, {}), ('yolov8n-rtdetr', 2, {}),
    ('yolov8n-rtdetr', 1, {'dynamic': True}), ('rtdetr-resnet50', 3, {}), ('yolov8n-seg', 2, {}),
    ('yolov8n-seg', 1, WIDE), ('yolo11n-seg', 80, {'nms': True}), ('yolo26n-seg', 3, END),
    ('yolo26n-seg', 2, {'dynamic': True}), ('yolov8n-pose', 1, {}),
    ('yolo11n-pose', 2, {'nms': True}), ('yolo11n-pose', 3, {'kpt_shape': [5, 2]}),
    ('yolo26n-pose', 1, {**END, **WIDE}), ('yolo26n-pose', 4, {}), ('yolov8n-obb', 3, WIDE),
    ('yolo11n-obb', 15, {}), ('yolo11n-obb', 2, {'nms': True}), ('yolo26n-obb', 2, END),
    ('yolo26n-obb', 15, {}), ('yolo11n-cls', 10, {}), ('yolo26n-depth', 1, {}),
    ('transformers/rtdetr', 3, {}), ('transformers/rtdetr', 1, {'imgsz': (192, 256)}),
    ('transformers/rtdetr_v2', 5, {}), ('transformers/dfine', 4, {}),
    ('transformers/rtdetr', 3, {'deploy': True}), ('transformers/dfine', 2, {'deploy': True}),
    ('transformers/detr', 3, {'softmax': True}), ('transformers/yolos', 2, {'softmax': True}),
    ('torchvision/ssdlite', 3, {}), ('torchvision/retinanet', 2, {}),
    ('torchvision/fasterrcnn', 4, {}), ('rfdetr/nano', 3, {}),
)  # fmt: skip
# Cases that must be refused: batches of frames, int8 scores that share the boxes' scale, and tasks
# without boxes.
REFUSED = ('batch', 'all_int8', '-cls', '-depth')
_NO_BOXES = ' | | | | '
HEADER = (
    '| network | classes | export | output | head | boxes | largest difference | result |\n'
    + '|---' * 8
    + '|'
)


@dataclass
class Made:
    """
    The exported model of a case.

    :param model: the model's file, or a manifest, as a user gives it to this package.
    :param boxes: reads the raw outputs, for an input of this width and height; ``None``:
        Ultralytics reads them.
    """

    model: Path
    file: Path
    task: str = 'detect'
    keypoints: tuple[int, int] = (0, 0)
    boxes: Callable[[dict[str, Any], int, int], Reference] | None = None


@dataclass
class Reference:
    """
    The objects that other code finds.

    :param boxes: corners (n, 4) in pixels of the input.
    :param points: keypoints, if the task has them.
    :param weights: the masks' coefficients, if the task has masks.
    :param turned: turned boxes, if the task has them.
    """

    boxes: Any
    scores: Any
    classes: Any
    points: Any = None
    weights: Any = None
    turned: Any = None


@dataclass
class Ours:
    """The objects that this package finds."""

    found: Detections
    points: Any = None
    labels: Any = None


@dataclass
class Gaps:
    """The largest differences, and those that are too large."""

    most: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def add(self, what: str, gap: float, limit: float) -> None:
        self.most[what] = max(gap, self.most.get(what, 0.0))
        if not gap <= limit:
            self.wrong.append(f'{what} differ by {gap:.4g}')


def main() -> int:
    """Run the cases, print a line for each, and print the number of each result."""
    parser = argparse.ArgumentParser(
        description='Compares real exports; see the first lines of the file.'
    )
    parser.add_argument('words', nargs='*', help='only cases that have one of these words')
    parser.add_argument('--table', type=Path, help='file that lines are added to')
    parser.add_argument('--seconds', type=float, default=240, help='limit of each case (240)')
    options = parser.parse_args()
    os.environ.update(
        YOLO_OFFLINE='true', YOLO_AUTOINSTALL='false', HF_HUB_OFFLINE='1', OMP_NUM_THREADS='1'
    )
    there = (
        options.table.read_text().splitlines() if options.table and options.table.exists() else []
    )
    results: Counter[str] = Counter()
    processes = multiprocessing.get_context('forkserver')
    processes.set_forkserver_preload(
        ['torch.onnx', 'torchvision', 'ultralytics.engine.exporter', 'onnxruntime']
    )
    put = _appender(options.table)
    if not there:
        put(HEADER)
    for name, classes, export in CASES:
        said = ', '.join(f'{k}={v}' for k, v in export.items()).replace('=True', '')
        start = f'| {name} | {classes} | {said} | '
        if options.words and not any(word in start for word in options.words):
            continue
        line = next((line for line in there if line.startswith(start)), '')
        if not line:
            line = start + _in_process(processes, (name, classes, export), options.seconds) + ' |'
            put(line)
        result = line.split('|')[-2].strip().split(':')[0]
        expected = any(word in f'{name} {export}' for word in REFUSED)
        results['refused as it should be' if expected and result == 'refused' else result] += 1
    print(', '.join(f'{count} {result}' for result, count in sorted(results.items())))
    return int(any(word in results for word in ('DIFFERENT', 'refused')))


def _appender(table: Path | None) -> Callable[[str], None]:
    def put(line: str) -> None:
        print(line, flush=True)
        if table is not None:
            table.parent.mkdir(parents=True, exist_ok=True)
            with open(table, 'a', encoding='utf-8') as file:
                file.write(line + '\n')

    return put


def _in_process(processes: Any, case: tuple[str, int, dict[str, Any]], seconds: float) -> str:
    ours, theirs = processes.Pipe(duplex=False)
    process = processes.Process(target=_send, args=(theirs, case), daemon=True)
    process.start()
    theirs.close()
    cells = f'{_NO_BOXES}not exported: more than {seconds:g} s'
    if ours.poll(seconds):
        try:
            cells = ours.recv()
        except EOFError:
            process.join()
            cells = f'{_NO_BOXES}DIFFERENT: the process ended with {process.exitcode}'
    process.kill()
    process.join()
    return cells


def _send(connection: Connection, case: tuple[str, int, dict[str, Any]]) -> None:
    import torch

    warnings.filterwarnings('ignore')
    torch.manual_seed(7)
    torch.set_num_threads(1)
    noise = io.StringIO()
    with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        cells = _cells(*case)
    connection.send(cells)


def _words(result: str, error: Exception) -> str:
    kind = '' if isinstance(error, ZcError) else f'{type(error).__name__}: '
    text = re.sub(r'\S*/|[|\s]+', ' ', str(error))
    return f'{result}: {kind}{text:.250}'


def _cells(name: str, classes: int, export: dict[str, Any]) -> str:
    from ultralytics.utils import ASSETS, LOGGER

    LOGGER.setLevel('CRITICAL')
    height, width = export.get('imgsz', (320, 320))
    picture = cv2.resize(cv2.imread(str(ASSETS / 'bus.jpg')), (2 * width, 2 * height))
    make = MAKERS.get(name.split('/')[0], _made_by_ultralytics)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # Ultralytics writes there
        try:
            made = make(Path(folder), name, classes, dict(export), picture)
        except Exception as error:
            return _NO_BOXES + _words('not exported', error)
        try:
            kind, tensor, decode = _ours(made, picture)
            raw = _outputs(made.file, tensor)
            gaps = Gaps()
            if made.boxes is not None:
                ours, theirs = decode(0.45), made.boxes(raw, width, height)
            else:
                rows = next(iter(raw.values()))
                ready = 'nms' in export or 'rtdetr' in name
                iou = 0.45 if ready else _clear_overlap(rows, classes, made.task)
                ours = decode(iou)
                theirs = _ultralytics_reads(rows, made, classes, iou, ready=ready)
                if 'rtdetr' in name:
                    theirs.boxes = _of_centres(theirs.boxes) * (width, height, width, height)
                gaps.add('input (of 255)', _input_gap(tensor, picture), 2)
            count = _compare(ours, theirs, raw, picture, gaps)
        except ZcError as error:
            return _NO_BOXES + _words('refused', error)
        except Exception as error:
            return _NO_BOXES + _words('DIFFERENT', error)
    shapes = ', '.join('×'.join(map(str, values.shape)) for values in raw.values())
    most = ', '.join(f'{what} {gap:.2g}' for what, gap in gaps.most.items())
    result = f'DIFFERENT: {"; ".join(gaps.wrong)}' if gaps.wrong else 'equal'
    return f'{shapes} | {kind} | {count} | {most} | {result}'


# This package


def _ours(made: Made, picture: Any) -> tuple[str, Any, Callable[[float], Ours]]:
    """Return the head's kind, the input tensor, and a function from an IoU limit to objects."""
    manifest = load_manifest(str(made.model))
    engine, spec = OnnxEngine(manifest, 1), manifest.head
    check_head(manifest, engine.infer_blank())
    height, width = picture.shape[:2]
    tensors: list[Any] = []
    infer = engine.infer

    def kept(tensor: Any) -> Any:
        tensors.append(tensor.copy())
        return infer(tensor)

    engine.infer = kept  # type: ignore[method-assign]
    layout = compute_layout(fourcc_code('RG24'), width, height)
    outputs = engine.run([np.ascontiguousarray(picture)], layout, RGB_FULL)
    box, head = engine.geometry(width, height), make_head(spec)

    def decode(iou: float) -> Ours:
        ours = Ours(head.decode(outputs, box, DecodeLimits(SCORE, iou, COUNT)))
        if shape := spec.options.get('keypoints'):
            ours.points = keypoints(head, outputs, box, ours.found, shape)
        if masks := spec.options.get('masks'):
            ours.labels = np.zeros((height, width), np.uint16)
            MaskPainter(head, masks).paint(outputs, box, ours.found, ours.labels)
        return ours

    return spec.kind, tensors[0], decode


def _outputs(file: Path, tensor: Any) -> dict[str, Any]:
    """Return the model's raw outputs, from ONNX Runtime without this package."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=['CPUExecutionProvider'])
    given = {one.name: tensor for one in session.get_inputs()[:1]}
    for other in session.get_inputs()[1:]:
        given[other.name] = np.array([tensor.shape[:1:-1]], np.int64)
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, given), strict=True))


def _input_gap(tensor: Any, picture: Any) -> float:
    """Return the mean difference (of 255) to the tensor of Ultralytics' own letterbox."""
    from ultralytics.data.augment import LetterBox

    height, width = tensor.shape[2:]
    own = LetterBox((height, width), auto=False)(image=picture).astype(np.float64)
    if tensor.shape[1] == 1:
        own = cv2.cvtColor(own.astype(np.uint8), cv2.COLOR_BGR2GRAY)[..., None]
    own = own[..., ::-1].transpose(2, 0, 1)
    return float(np.abs(own - tensor[0].astype(np.float64) * 255).mean())


# Ultralytics


def _made_by_ultralytics(
    folder: Path, name: str, classes: int, export: dict[str, Any], picture: Any
) -> Made:
    from ultralytics.utils import ASSETS
    import yaml

    network = _network(folder, name, classes, export, picture)
    settings = {'imgsz': 320, **export}
    whole = settings.pop('float16', False)
    for word in ('channels', 'kpt_shape', 'all_int8'):
        settings.pop(word, None)
    if settings.get('quantize') == 8:
        data = folder / 'data.yaml'
        values = {'path': str(ASSETS), 'train': '.', 'val': '.', 'names': network.model.names}
        data.write_text(yaml.safe_dump(values))
        settings['data'] = str(data)
    file = Path(network.export(format='onnx', verbose=False, **settings))
    if whole:  # inputs and outputs have float16, too, as in exports on a GPU
        import onnx
        from onnxruntime.transformers import float16

        onnx.save(float16.convert_float_to_float16(onnx.load(file)), file)
    if 'all_int8' in export:  # quantise the output, too, with boxes and scores
        from onnxruntime.quantization import CalibrationDataReader, quantize_static

        size = settings['imgsz'] if isinstance(settings['imgsz'], tuple) else (320, 320)
        pixels = cv2.resize(picture, size[::-1]).transpose(2, 0, 1)[None].astype(np.float32) / 255

        given = iter([{'images': pixels}])

        class Once(CalibrationDataReader):
            def get_next(self) -> Any:
                return next(given, None)

        quantize_static(file, file, Once())
    points = getattr(network.model.model[-1], 'kpt_shape', (0, 0))
    return Made(file, file, network.task, tuple(points))


def _network(folder: Path, name: str, classes: int, export: dict[str, Any], picture: Any) -> Any:
    """Return a network with random weights that finds many objects in *picture*."""
    import torch
    from ultralytics import RTDETR, YOLO
    from ultralytics.nn.tasks import yaml_model_load
    import yaml

    config = {**yaml_model_load(f'{name}.yaml'), 'nc': classes, 'channels': 3}
    config |= {word: export[word] for word in ('channels', 'kpt_shape') if word in export}
    config.pop('yaml_file', None)
    path = folder / f'{name}.yaml'
    path.write_text(yaml.safe_dump(config))
    network = (RTDETR if 'rtdetr' in name else YOLO)(str(path))
    if config['channels'] != 3:
        args = network.model.args
        network.model = type(network.model)(
            config | {'yaml_file': str(path)}, ch=config['channels'], verbose=False
        )
        network.model.args, network.model.task = args, network.task
    model = network.model.float()
    model.names = {i: f'class {i}' for i in range(classes)}
    if hasattr(model, 'txt_feats'):
        model.txt_feats = torch.randn(1, classes, 512)
    height, width = picture.shape[0] // 2, picture.shape[1] // 2
    image = cv2.cvtColor(
        cv2.resize(picture, (width, height)),
        cv2.COLOR_BGR2GRAY if config['channels'] == 1 else cv2.COLOR_BGR2RGB,
    )
    image = image.reshape(1, height, width, -1).transpose(0, 3, 1, 2)
    batch = torch.from_numpy(image.copy()) / 255
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # use the mean over all pictures so far
    with torch.no_grad():
        if 'rtdetr' not in name:
            model.train()
            model.predict(torch.cat([batch, batch.flip(3)]))
        model.eval()
        _spread(model, batch)
    return network


def _spread(model: Any, batch: Any) -> None:
    """
    Scale the last layers of a network with random weights.

    Afterwards each channel's outputs differ from place to place, and some cells reach the score.
    """
    head = model.model[-1]
    distances = (0.0, 1.5) if getattr(head, 'reg_max', 16) > 1 else (3.0, 0.7)
    layers: list[tuple[Any, float | None, float]] = []
    for prefix in ('', 'one2one_'):
        layers += [(level[-1], *distances) for level in getattr(head, f'{prefix}cv2', None) or ()]
        scores = getattr(head, f'{prefix}cv3', None) or ()
        if 'World' in type(head).__name__:  # its scores are similarities to texts
            scores = [[level] for level in head.cv4] if not prefix else []
        layers += [(level[-1], None, 1.5) for level in scores]
    layers += [(level, None, 1.5) for level in list(getattr(head, 'dec_score_head', ()))[-1:]]
    seen: dict[Any, Any] = {}
    hooks = [
        layer.register_forward_hook(lambda layer, _, out: seen.update({layer: out}))
        for layer, *_ in layers
    ]
    model.predict(batch)
    for hook in hooks:
        hook.remove()
    for layer, place, spread in layers:
        if layer in seen:
            rows = seen[layer].movedim(1, -1) if seen[layer].ndim == 4 else seen[layer]
            rows = rows.reshape(-1, rows.shape[-1])
            single = hasattr(layer, 'logit_scale')
            by, mean = spread / rows.std(0).clamp_min(1e-6), rows.mean(0)
            by, mean = (by.min(), mean.mean()) if single else (by, mean)
            if place is None:
                best = ((rows - mean) * by).max(1).values.sort().values
                place = -float(best[-min(len(best) // 3, 40)])
            if single:
                layer.logit_scale.add_(by.log())
            else:
                layer.weight.mul_(by.reshape(-1, *[1] * (layer.weight.ndim - 1)))
            layer.bias.copy_((layer.bias - mean) * by + place)


def _clear_overlap(raw: Any, classes: int, task: str) -> float:
    """Return an IoU limit that is as far as possible from the IoU of any two boxes of a class."""
    import torch
    from torchvision.ops import box_iou
    from ultralytics.utils.metrics import batch_probiou
    from ultralytics.utils.ops import xywh2xyxy

    rows = torch.from_numpy(raw[0].T.astype(np.float64))
    scores, kinds = rows[:, 4:][:, :classes].max(1)
    rows, kinds = rows[scores > SCORE], kinds[scores > SCORE]
    if task == 'obb':
        turned = torch.cat((rows[:, :4], rows[:, -1:]), 1)
        overlaps = batch_probiou(turned, turned)
    else:
        overlaps = box_iou(*[xywh2xyxy(rows[:, :4])] * 2)
    near = overlaps[(kinds[:, None] == kinds).triu(1)].numpy()
    near = near[(near > 0.35) & (near < 0.65)]
    limits = np.arange(0.4, 0.6, 0.002)
    return float(limits[np.abs(near[None] - limits[:, None]).min(1, initial=1.0).argmax()])


def _ultralytics_reads(
    raw: Any, made: Made, classes: int, iou: float, *, ready: bool
) -> Reference:
    import torch
    from ultralytics.utils.nms import non_max_suppression
    from ultralytics.utils.ops import xywhr2xyxyxyxy

    rows = non_max_suppression(
        torch.from_numpy(raw.astype(np.float64)), SCORE, iou, max_det=COUNT, nc=classes,
        end2end=ready, rotated=made.task == 'obb',
    )[0].double()  # fmt: skip
    found = Reference(rows[:, :4].numpy(), rows[:, 4].numpy(), rows[:, 5].numpy())
    if made.task == 'obb':
        turned = torch.cat((rows[:, :4], rows[:, 6:7]), 1)
        corners = xywhr2xyxyxyxy(turned).numpy()
        found.turned = turned.numpy()
        found.boxes = np.concatenate((corners.min(1), corners.max(1)), 1)
    elif made.task == 'pose':
        found.points = rows[:, 6:].numpy().reshape(-1, *made.keypoints)
    elif made.task == 'segment':
        found.weights = rows[:, 6:].numpy()
    return found


# Other exporters


def _sigmoid(values: Any) -> Any:
    return 1 / (1 + np.exp(-values.astype(np.float64)))


def _of_centres(boxes: Any) -> Any:
    centres, half = boxes[:, :2].astype(np.float64), boxes[:, 2:4].astype(np.float64) / 2
    return np.concatenate((centres - half, centres + half), 1)


def _best(boxes: Any, scores: Any) -> Reference:
    return Reference(boxes, scores.max(1), scores.argmax(1))


def _manifest(folder: Path, file: Path, classes: int, head: str = '') -> Path:
    path = folder / 'model.yaml'
    names = ', '.join(f'class {i}' for i in range(classes))
    path.write_text(f'file: {file.name}\nclasses: [{names}]\n' + (head and f'head: {head}\n'))
    return path


def _lively(model: Any, words: Iterable[str], spread: float = 0.15, place: float = -2.5) -> None:
    """Set random class scores, because those of a new network are all the same."""
    import torch

    for name, values in model.named_parameters():
        if any(re.search(word, name) for word in words):
            with torch.no_grad():
                values.copy_(
                    torch.randn_like(values) * spread if values.ndim > 1 else values * 0 + place
                )


def _exported(file: Path, model: Any, inputs: dict[str, Any], outputs: list[str]) -> None:
    import torch

    torch.onnx.export(
        model.eval(), tuple(inputs.values()), str(file), input_names=list(inputs),
        output_names=outputs, opset_version=17, dynamo=False,
    )  # fmt: skip


def _made_by_transformers(
    folder: Path, name: str, classes: int, export: dict[str, Any], picture: Any
) -> Made:
    import torch
    import transformers

    small = {
        'd_model': 64, 'encoder_hidden_dim': 64, 'encoder_ffn_dim': 128, 'decoder_ffn_dim': 128,
        'num_queries': 60, 'decoder_layers': 2, 'encoder_attention_heads': 4,
        'num_labels': classes,
        'decoder_attention_heads': 4, 'eval_size': None, 'anchor_image_size': None,
    }  # fmt: skip
    stages = ['stage2', 'stage3', 'stage4']
    resnet = transformers.RTDetrResNetConfig(
        embedding_size=32, hidden_sizes=[32, 48, 64, 96], depths=[1, 1, 1, 1],
        layer_type='basic', out_features=stages,
    )  # fmt: skip
    levels = {'encoder_in_channels': [48, 64, 96], 'decoder_in_channels': [64] * 3}
    height, width = export.get('imgsz', (320, 320))
    kind = name.split('/')[1]
    if kind.startswith('rtdetr'):
        version = 'V2' if kind.endswith('v2') else ''
        config = getattr(transformers, f'RTDetr{version}Config')(
            backbone_config=resnet, **levels, **small
        )
        model = getattr(transformers, f'RTDetr{version}ForObjectDetection')(config)
    elif kind == 'dfine':
        config = transformers.DFineConfig(
            num_labels=classes, num_queries=60, eval_size=None, anchor_image_size=None
        )
        model = transformers.DFineForObjectDetection(config)
    elif kind == 'detr':
        config = transformers.DetrConfig(
            num_labels=classes, use_timm_backbone=False, use_pretrained_backbone=False,
            backbone=None,
            backbone_config=transformers.ResNetConfig(
                embedding_size=16, hidden_sizes=[32, 48, 64, 96], depths=[1] * 4,
                layer_type='basic', out_features=['stage4'],
            ),
            d_model=64, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64,
            num_queries=60,
        )  # fmt: skip
        model = transformers.DetrForObjectDetection(config)
    else:
        config = transformers.YolosConfig(
            num_labels=classes, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=128, image_size=[height, width], num_detection_tokens=60,
        )  # fmt: skip
        model = transformers.YolosForObjectDetection(config)
    softmax, deploy = export.get('softmax'), export.get('deploy')
    words = ('class_embed', 'score_head', 'class_labels_classifier')
    _lively(model, words, 0.5 if softmax else 0.3, 0 if softmax else -1.5)

    class Deploy(torch.nn.Module):
        """The network as its authors export it: the picture's size is a second input."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, picture: Any, sizes: Any = None) -> Any:
            output = self.model(pixel_values=picture)
            scores, boxes = output.logits, output.pred_boxes
            if softmax:
                return scores.softmax(-1), boxes
            if sizes is None:
                return scores, boxes
            best, labels = scores.sigmoid().max(-1)
            corners = torch.cat(
                (boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2), -1
            )
            return labels, corners * sizes.repeat(1, 2)[:, None], best

    file, inputs = folder / 'model.onnx', {'images': torch.randn(1, 3, height, width)}
    if deploy:
        inputs['orig_target_sizes'] = torch.tensor([[width, height]])
    _exported(
        file,
        Deploy(),
        inputs,
        ['labels', 'boxes', 'scores'] if deploy else ['logits', 'pred_boxes'],
    )
    asked = (
        '{kind: boxes, columns: [scores, box], coordinates: relative, box_order: cxcywh, '
        'background: %d}'
    )

    def read(raw: dict[str, Any], width: int, height: int) -> Reference:
        if deploy:
            return Reference(
                raw['boxes'][0].astype(np.float64), raw['scores'][0], raw['labels'][0]
            )
        scores = raw['logits'][0, :, :classes] if softmax else _sigmoid(raw['logits'][0])
        return _best(_of_centres(raw['pred_boxes'][0]) * (width, height, width, height), scores)

    model_yaml = _manifest(folder, file, classes, asked % classes if softmax else '')
    return Made(model_yaml, file, boxes=read)


def _made_by_torchvision(
    folder: Path, name: str, classes: int, export: dict[str, Any], picture: Any
) -> Made:
    import torch
    from torchvision.models import detection

    makers = {
        'ssdlite': detection.ssdlite320_mobilenet_v3_large,
        'retinanet': detection.retinanet_resnet50_fpn,
        'fasterrcnn': detection.fasterrcnn_mobilenet_v3_large_320_fpn,
    }
    kind = name.split('/')[1]
    given = {'min_size': 320, 'max_size': 320} if kind != 'ssdlite' else {}
    model = makers[kind](weights=None, weights_backbone=None, num_classes=classes + 1, **given)
    word, spread, place = {
        'ssdlite': (r'classification_head.module_list.\d.1', 0.3, 0.0),
        'retinanet': ('cls_logits', 3.0, -1.0),
        'fasterrcnn': ('cls_score', 1.0, 0.0),
    }[kind]
    _lively(model, [word], spread, place)
    file = folder / 'model.onnx'
    pixels = cv2.resize(picture, (320, 320)).transpose(2, 0, 1)[None].astype(np.float32) / 255
    if kind == 'ssdlite':  # set the means of batch normalisation, as in _network
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None
        with torch.no_grad():
            model.backbone.train()
            model.head.train()
            both = torch.from_numpy(np.concatenate((pixels, pixels[..., ::-1])) * 2 - 1)
            model.head(list(model.backbone(both).values()))
    outputs = (
        ['boxes', 'labels', 'scores'] if kind == 'fasterrcnn' else ['boxes', 'scores', 'labels']
    )
    _exported(file, model, {'images': torch.from_numpy(pixels)}, outputs)
    columns = ', '.join(
        {'boxes': 'box', 'labels': 'class', 'scores': 'score'}[word] for word in outputs
    )

    def read(raw: dict[str, Any], width: int, height: int) -> Reference:
        real = raw['labels'] > 0  # class 0 is the background, which RetinaNet may yield
        return Reference(
            raw['boxes'][real].astype(np.float64), raw['scores'][real], raw['labels'][real] - 1
        )

    head = f'{{kind: boxes, columns: [{columns}], coordinates: input, background: 0}}'
    return Made(_manifest(folder, file, classes, head), file, boxes=read)


def _made_by_rfdetr(
    folder: Path, name: str, classes: int, export: dict[str, Any], picture: Any
) -> Made:
    import rfdetr

    network = rfdetr.RFDETRNano(pretrain_weights=None, num_classes=classes)
    _lively(network.model.model, ('class_embed',), 0.3)
    network.export(output_dir=str(folder), verbose=False)
    file = next(folder.glob('*.onnx'))

    def read(raw: dict[str, Any], width: int, height: int) -> Reference:
        scores = _sigmoid(raw['labels'][0])[:, :classes]
        return _best(_of_centres(raw['dets'][0]) * (width, height, width, height), scores)

    return Made(_manifest(folder, file, classes), file, boxes=read)


MAKERS: dict[str, Callable[[Path, str, int, dict[str, Any], Any], Made]] = {
    'transformers': _made_by_transformers,
    'torchvision': _made_by_torchvision,
    'rfdetr': _made_by_rfdetr,
}


# Comparison


def _compare(ours: Ours, theirs: Reference, raw: dict[str, Any], picture: Any, gaps: Gaps) -> str:
    """
    Add the differences to *gaps*; return how many boxes there are, as a text.

    Boxes without width or height, which random weights yield, are ignored: rounding decides
    whether they are found.
    """
    height, width = picture.shape[:2]
    found, scale = ours.found, 2.0
    boxes = (theirs.boxes * scale).clip(0, (width, height, width, height))
    fine = (_thickness(boxes) > 0.01) & (theirs.scores >= SCORE)
    if theirs.turned is not None:
        fine &= theirs.turned[:, 2:4].min(1) > 0
    fine = np.flatnonzero(fine)
    left = np.flatnonzero(_thickness(found.boxes) > 0.01).tolist()
    count = f'{len(left)} of {len(fine)}'
    pairs = []
    for row in fine:
        same = [i for i in left if found.classes[i] == int(theirs.classes[row])]
        if same:
            far = np.abs(found.boxes[same] - boxes[row]).max(1) + np.abs(
                found.scores[same] - theirs.scores[row]
            )
            pairs.append((same[int(far.argmin())], int(row)))
            left.remove(pairs[-1][0])
    if left or len(pairs) < len(fine) or not pairs:
        gaps.wrong.append('boxes are missing, or too many' if pairs else 'there are no boxes')
        return count
    mine, rows = (np.array(side) for side in zip(*pairs, strict=True))
    gaps.add('px', np.abs(found.boxes[mine] - boxes[rows]).max(), 0.5)
    gaps.add('score', np.abs(found.scores[mine] - theirs.scores[rows]).max(), 0.01)
    if theirs.turned is not None:
        turned = theirs.turned[rows] * ([scale] * 4 + [1])
        gap = found.turned[mine] - turned
        gaps.add('centre and sides, px', np.abs(gap[:, :4]).max(), 0.5)
        gaps.add('angle', np.abs((gap[:, 4] + math.pi / 2) % math.pi - math.pi / 2).max(), 0.01)
    if theirs.points is not None:
        places = (theirs.points[rows, :, :2] * scale).clip(0, (width, height))
        gaps.add('keypoint px', np.abs(ours.points[mine, :, :2] - places).max(), 0.5)
        seen = theirs.points[rows, :, 2] if theirs.points.shape[2] == 3 else 1.0
        gaps.add('keypoint score', np.abs(ours.points[mine, :, 2] - seen).max(), 0.01)
    if theirs.weights is not None:
        grids = next(values for values in raw.values() if values.ndim == 4)
        _compare_masks(ours.labels, grids[0], theirs.weights, boxes, sorted(pairs), gaps)
    return count


def _thickness(boxes: Any) -> Any:
    return (boxes[:, 2:4] - boxes[:, :2]).min(axis=1)


def _compare_masks(
    labels: Any, grids: Any, weights: Any, boxes: Any, pairs: list[tuple[int, int]], gaps: Gaps
) -> None:
    """
    Compare the masks with those that PyTorch computes.

    A mask has only pixels with centres in its box. Masks of higher scores hide the others.
    """
    import torch

    own = np.zeros_like(labels)
    middles = [np.arange(size) + 0.5 for size in labels.shape]
    for mine, row in reversed(pairs):
        values = torch.from_numpy(np.tensordot(weights[row], grids.astype(np.float64), 1))
        values = torch.nn.functional.interpolate(values[None, None], labels.shape, mode='bilinear')
        x0, y0, x1, y1 = boxes[row]
        rows, columns = (
            (m >= a) & (m < b) for m, a, b in zip(middles, (y0, x0), (y1, x1), strict=True)
        )
        own[(values[0, 0].numpy() > 0) & rows[:, None] & columns] = mine + 1
    gaps.add('masks: parts of pixels', float((own != labels).mean()), 0.01)
    for mine, _ in pairs:
        there, here = own == mine + 1, labels == mine + 1
        if there.sum() >= 100:
            gaps.add('mask 1 - IoU', 1 - (there & here).sum() / (there | here).sum(), 0.01)


if __name__ == '__main__':
    sys.exit(main())
