"""Real exports, read by this package from the file alone and by their makers' own code: a table of the differences.

An optional program, no part of package or tests: Ultralytics is AGPL-3.0 and heavy. It needs an
environment of its own:

    pip install ultralytics onnx onnxslim onnxruntime
    PYTHONPATH=. python tools/model_matrix.py [WORD …]    # cases that have one of these words

Weights are random, spread so that a picture yields boxes of all classes. Both sides get the tensor
that this package has made of the picture, and remove duplicates themselves; Ultralytics' in
float64, as it adds thousands of pixels to each box for its class. The picture fills the input:
Ultralytics lets boxes in the letterbox's border suppress others, this package drops them first.

Exit code 1 if boxes differ by more than 0.5 pixels, scores by more than 0.01, or if there are
others.
"""

from __future__ import annotations

import os
from pathlib import Path
import sys
import tempfile
from typing import Any
import warnings

import cv2
import numpy as np

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.errors import ZcError
from zc_perception.npu.manifest import check_head, load_manifest
from zc_perception.npu.onnx.session import OnnxEngine
from zc_perception.pixel.colorimetry import RGB_FULL
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import compute_layout

_THIN = 0.01
LIMITS = DecodeLimits(0.25, 0.45, 3000)
WIDE = {'imgsz': (192, 320)}
# Ultralytics' name of the network, how many classes it has, how it is exported.
CASES: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ('yolov3-tiny', 80, {}), ('yolov5n', 80, {}), ('yolov5n-p6', 2, {}), ('yolov6n', 80, {}),
    ('yolov8n', 80, {}), ('yolov8n', 1, {}), ('yolov8n', 2, WIDE), ('yolov8n', 300, {'dynamic': True}),
    ('yolov8n', 80, {'nms': True}), ('yolov8n', 1, {'nms': True, **WIDE}), ('yolov8n', 3, {'half': True}), ('yolov8n', 3, {'int8': True}),
    ('yolov8n', 3, {'batch': 4}), ('yolov8n', 80, {'imgsz': (64, 64)}), ('yolov8n-p2', 2, {}), ('yolov8n-p6', 5, {}),
    ('yolov9t', 80, {}), ('yolov9t', 2, {'dynamic': True, **WIDE}),
    ('yolov10n', 80, {}), ('yolov10n', 1, WIDE), ('yolov10n', 2, {'dynamic': True}), ('yolov10n', 3, {'end2end': False}),
    ('yolo11n', 80, {}), ('yolo11n', 1, {'opset': 12, **WIDE}), ('yolo11n', 2, {'nms': True, 'dynamic': True}), ('yolo11n', 300, {}),
    ('yolo11n', 4, {'channels': 1}), ('yolo12n', 80, {}), ('yolo12n', 2, {'simplify': False}),
    ('yolo26n', 80, {}), ('yolo26n', 1, WIDE), ('yolo26n', 2, {'end2end': False}), ('yolo26n', 300, {'dynamic': True}),
    ('yolo26n', 80, {'end2end': False, 'nms': True}), ('yolo26n-p2', 3, {}),
    ('yolov8n-rtdetr', 80, {}), ('yolov8n-rtdetr', 2, {}), ('yolov8n-rtdetr', 1, {'dynamic': True}), ('rtdetr-resnet50', 3, {}),
    ('yolov8n-seg', 2, {}), ('yolo11n-seg', 80, {'nms': True}), ('yolo26n-seg', 3, {}),
    ('yolov8n-pose', 1, {}), ('yolo11n-pose', 2, {'nms': True}), ('yolo26n-pose', 1, WIDE),
    ('yolo11n-obb', 15, {}), ('yolo26n-obb', 2, {}), ('yolo11n-cls', 10, {}),
)  # fmt: skip


def main(words: list[str]) -> int:
    """Print a line for each case."""
    os.environ.update(YOLO_OFFLINE='true', YOLO_AUTOINSTALL='false')
    import torch
    import ultralytics
    from ultralytics.utils import ASSETS, LOGGER

    LOGGER.setLevel('ERROR')
    warnings.filterwarnings('ignore')
    torch.manual_seed(7)
    picture = cv2.imread(str(ASSETS / 'bus.jpg'))
    print(f'Ultralytics {ultralytics.__version__}, PyTorch {torch.__version__}\n')
    print(
        '| network | classes | export | output | head | boxes | pixels | score |\n'
        + '|---' * 8
        + '|'
    )
    wrong = 0
    for name, classes, export in CASES:
        case = f'{name} {classes} {export}'
        if not words or any(word in case for word in words):
            with tempfile.TemporaryDirectory() as folder:
                height, width = export.get('imgsz', (320, 320))
                line, good = _tried(
                    Path(folder),
                    name,
                    classes,
                    export,
                    cv2.resize(picture, (2 * width, 2 * height)),
                )
            said = ', '.join(f'{k}={v}' for k, v in export.items()).replace('=True', '')
            print(f'| {name} | {classes} | {said} | {line} |', flush=True)
            wrong += not good
    return int(wrong > 0)


def _tried(
    folder: Path, name: str, classes: int, export: dict[str, Any], picture: Any
) -> tuple[str, bool]:
    try:
        network = _network(folder, name, classes, export, picture)
        settings = {'imgsz': 320, **export}
        settings.pop('channels', None)
        file = Path(network.export(format='onnx', verbose=False, **settings))
    except Exception as error:
        return f'not exported: {str(error).splitlines()[0]:.90} | | | |', True
    try:
        found, tensor, shape, head = _ours(file, picture)
    except ZcError as error:
        return f'refused: {str(error).split(": ", 1)[-1]} | | | |', True
    theirs = _theirs(file, network.task, tensor, picture)
    pixels, score, good = _difference(found, theirs)
    return (
        f'{shape} | {head} | {len(found.boxes)} of {len(theirs)} | {pixels:.3f} | {score:.4f}',
        good,
    )


def _network(folder: Path, name: str, classes: int, export: dict[str, Any], picture: Any) -> Any:
    """A network with random weights, which finds much in *picture*."""
    import torch
    from ultralytics import RTDETR, YOLO
    from ultralytics.nn.tasks import yaml_model_load
    import yaml

    torch.set_num_threads(2)
    config = {
        **yaml_model_load(f'{name}.yaml'),
        'nc': classes,
        'channels': export.get('channels', 3),
    }
    config.pop('yaml_file', None)
    path = folder / f'{name}.yaml'
    path.write_text(yaml.safe_dump(config))
    network = (RTDETR if 'rtdetr' in name else YOLO)(str(path))
    model = network.model.float()
    model.names = {i: f'class {i}' for i in range(classes)}
    image = cv2.resize(picture, (192, 256))
    if config['channels'] == 1:
        image = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    batch = (
        torch.from_numpy(image.reshape(1, 256, 192, -1).transpose(0, 3, 1, 2).copy()).float() / 255
    )
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the mean of all that it has seen
    with torch.no_grad():
        if 'rtdetr' not in name:
            model.train()
            model.predict(torch.cat([batch, batch.flip(3)]))
        model.eval()
        _spread(model, batch)
    return network


def _spread(model: Any, batch: Any) -> None:
    """Change the last layers so that each channel's outputs differ from place to place, and some cells reach the score."""
    head = model.model[-1]
    distances = (0.0, 1.5) if getattr(head, 'reg_max', 16) > 1 else (3.0, 0.7)
    layers: list[tuple[Any, float | None, float]] = []
    for prefix in ('', 'one2one_'):
        layers += [(level[-1], *distances) for level in getattr(head, f'{prefix}cv2', None) or ()]
        layers += [(level[-1], None, 1.5) for level in getattr(head, f'{prefix}cv3', None) or ()]
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
            by, mean = spread / rows.std(0).clamp_min(1e-6), rows.mean(0)
            if place is None:
                best = ((rows - mean) * by).max(1).values.sort().values
                place = -float(best[-min(len(best) // 3, 40)])
            layer.weight.mul_(by.reshape(-1, *[1] * (layer.weight.ndim - 1)))
            layer.bias.copy_((layer.bias - mean) * by + place)


def _ours(file: Path, picture: Any) -> tuple[Detections, Any, str, str]:
    """What the inference node makes of the file alone."""
    manifest = load_manifest(str(file))
    engine = OnnxEngine(manifest, 1)
    check_head(manifest, engine.infer_blank())
    height, width = picture.shape[:2]
    tensors: list[Any] = []
    infer = engine.infer
    engine.infer = lambda tensor: tensors.append(tensor.copy()) or infer(tensor)  # type: ignore[method-assign,func-returns-value]
    pixels = np.ascontiguousarray(picture)
    outputs = engine.run([pixels], compute_layout(fourcc_code('RG24'), width, height), RGB_FULL)
    found = make_head(manifest.head).decode(outputs, engine.geometry(width, height), LIMITS)
    shapes = ', '.join('×'.join(map(str, output.values.shape)) for output in outputs)
    return found, tensors[0], shapes, manifest.head.kind


def _theirs(file: Path, task: str, tensor: Any, picture: Any) -> Any:
    """(n, 6) corners, score, class: from Ultralytics' postprocessing."""
    import torch
    from ultralytics import RTDETR, YOLO

    network = (RTDETR if 'rtdetr' in file.name else YOLO)(
        str(file), **({} if 'rtdetr' in file.name else {'task': task})
    )
    given = {
        'conf': LIMITS.score,
        'iou': LIMITS.iou,
        'max_det': LIMITS.count,
        'imgsz': list(tensor.shape[2:]),
    }
    network.predict(picture, verbose=False, **given)
    predictor = network.predictor
    batch = torch.from_numpy(tensor).float()
    with torch.no_grad():
        outputs = predictor.inference(batch)
        outputs = (
            [o.double() for o in outputs]
            if isinstance(outputs, (list, tuple))
            else outputs.double()
        )
        results = predictor.postprocess(outputs, batch, [picture])
    boxes = results[0].boxes if results[0].obb is None else results[0].obb
    height, width = picture.shape[:2]
    corners = boxes.xyxy.numpy().clip(0, [width, height, width, height])
    rows = np.column_stack((corners, boxes.conf.numpy(), boxes.cls.numpy()))
    return rows[_are_boxes(rows)]


def _are_boxes(boxes: Any) -> Any:
    """Without those of no height, which random weights yield: whether these are boxes is a matter of rounding."""
    return (boxes[:, 2:4] - boxes[:, :2]).min(axis=1) > _THIN


def _difference(found: Detections, theirs: Any) -> tuple[float, float, bool]:
    pixels = score = 0.0
    left = np.flatnonzero(_are_boxes(found.boxes)).tolist()
    for row in theirs:
        same = [i for i in left if found.classes[i] == int(row[5])]
        if not same:
            return pixels, score, False
        gaps = [
            np.abs(found.boxes[i] - row[:4]).max() + abs(found.scores[i] - row[4]) for i in same
        ]
        best = same[int(np.argmin(gaps))]
        left.remove(best)
        pixels = max(pixels, float(np.abs(found.boxes[best] - row[:4]).max()))
        score = max(score, abs(float(found.scores[best]) - float(row[4])))
    return pixels, score, not left and bool(len(theirs)) and pixels <= 0.5 and score <= 0.01


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
