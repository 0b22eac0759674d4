"""Manifests to change, and how to change and write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

GOOD: dict[str, Any] = {
    'name': 'boxes',
    'engine': 'onnx',
    'file': 'weights.onnx',
    'input': {'width': 320, 'height': 192, 'layout': 'nchw', 'colour': 'bgr', 'range': [-1, 1.0], 'resize': 'stretch', 'pad': 0},
    'outputs': [{'name': 'detections'}],
    'head': 'yolov8',
    'classes': ['car', 'person'],
    'score_threshold': 0.3,
    'nms_threshold': 1,
    'max_detections': 20,
    'licence': 'MIT',
}
TENSOR: dict[str, Any] = {'name': 'out', 'dtype': 'int8', 'shape': [1, 6, 2], 'offset': 64, 'scale': [0.5, 0.25], 'zero_point': -3}
AXL: dict[str, Any] = {**GOOD, 'engine': 'axl', 'model_id': 7, 'outputs': [TENSOR]}
MISSING = object()


def written(folder: Path, values: Any) -> str:
    (folder / 'weights.onnx').touch()
    path = folder / 'model.yaml'
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values), encoding='utf-8')
    return str(path)


def changed(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with the value at 'a.b' or 'a[0].b' replaced, added, or with MISSING left out."""
    copy = yaml.safe_load(yaml.safe_dump(values))
    target: Any = copy
    *parents, last = (int(name) if name == '0' else name for name in key.replace('[0]', '.0').split('.'))
    for parent in parents:
        target = target[parent]
    if value is MISSING:
        del target[last]
    else:
        target[last] = value
    return copy  # type: ignore[no-any-return]
