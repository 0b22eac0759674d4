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
Random outputs of models, decoded by compiled steps and by Python, must give equal bits.

As a program, ``two_forms.py COMPILED SEED CASES`` tests a module from another build, such as one
for a sanitizer.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection import extras
from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import candidates, make_head, score_filter
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor

TYPES = ('float32', 'int8', 'uint8', 'int16', 'uint16', 'int32', 'float16')
ODD = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, 3e38], np.float32)


def _tensor(random: np.random.Generator, real: NDArray[np.float32]) -> RawTensor:
    """Return a tensor of a random type and layout, with NaN and infinities."""
    kind = np.dtype(str(random.choice(TYPES)))
    if kind.kind == 'f':
        odd = random.random(real.shape) < random.choice([0, 0.002])
        real = np.where(odd, random.choice(ODD, real.shape), real)
        with np.errstate(all='ignore'):
            values, scale, zero = real.astype(kind), 1.0, 0
    else:
        limits, scale = np.iinfo(kind), float(random.choice([1 / 255, 0.02, 0.5, 3.0]))
        zero = int(random.integers(-100, 100)) if limits.min else int(random.integers(0, 100))
        values = np.clip(np.rint(real / scale + zero), limits.min, limits.max).astype(kind)
    turn = random.integers(4)
    if turn == 1:  # the other memory order
        values = np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)
    elif turn == 2:  # padded, as devices write
        values = np.pad(values, ((0, 0), (0, 1), (0, 3)))[:, : real.shape[1], : real.shape[2]]
    elif turn == 3 and kind.itemsize > 1:  # at an odd address
        raw = np.zeros(values.nbytes + 1, np.uint8)
        odd_place = np.ndarray(values.shape, kind, raw, 1)
        odd_place[...] = values
        values = odd_place
    return RawTensor(values, scale, zero)


def _case(random: np.random.Generator) -> tuple[HeadSpec, RawTensor, DecodeLimits, Letterbox]:
    classes, cells = int(random.choice([1, 2, 7, 80, 200])), int(random.integers(1, 1500))
    places = random.uniform(-40, 700, (2, int(random.integers(1, 40))))
    which = random.integers(places.shape[1], size=cells)
    real = np.empty((1, 4 + classes, cells), np.float32)
    real[0, :2] = places[:, which] + random.normal(0, 6, (2, cells))
    real[0, 2:4] = random.choice([0, 8, 30, 200]) * random.uniform(0.7, 1.3, (2, cells))
    real[0, 4:] = random.beta(0.3, random.choice([1, 20]), (classes, cells))
    if random.random() < 0.4:  # equal boxes and equal scores
        real = np.round(real * 8) / 8
    if random.random() < 0.3:
        real = np.ascontiguousarray(real.swapaxes(1, 2))
    spec = HeadSpec('yolov8', classes, (640, 640), sigmoid=bool(random.random() < 0.3),
                    class_agnostic=bool(random.random() < 0.3))  # fmt: skip
    score, iou = random.choice([0.0, 0.01, 0.25, 0.5, 1.0]), random.choice([0.0, 0.3, 0.45, 1.0])
    limits = DecodeLimits(float(score), float(iou), int(random.choice([1, 20, 300])))
    size = random.integers(2, 4000, 2).tolist()
    return spec, _tensor(random, real), limits, Letterbox.fit(*size, 640, 640)


def bits(found: Detections) -> tuple[object, ...]:
    return (
        (found.boxes + np.float32(0)).tobytes(), (found.scores + np.float32(0)).tobytes(),
        found.classes.tolist(), found.rows.tolist(),
    )  # fmt: skip


def compare(seed: int, cases: int, compiled: ModuleType) -> int:
    """Compare both forms in each case; return how many boxes they found."""
    random, boxes = np.random.default_rng(seed), 0
    for case in range(cases):
        spec, tensor, limits, box = _case(random)
        found = []
        for form in (compiled, None):
            with (
                patch.object(candidates, 'compiled', form),
                patch.object(score_filter, 'compiled', form),
            ):
                head = make_head(spec)
                found += [head.decode([tensor], box, limits) for _ in range(2)]
        assert len({str(bits(each)) for each in found}) == 1, (seed, case, spec, limits, found)
        boxes += len(found[0])
    return boxes


def compare_masks(seed: int, cases: int, compiled: ModuleType) -> int:
    """Compare both forms in each case; return how many mask pixels they set."""
    random, pixels = np.random.default_rng(seed), 0
    for case in range(cases):
        many, count = int(random.choice([1, 5, 8, 32, 40])), int(random.integers(0, 12))
        grid, size = random.integers(2, 40, 2), random.integers(16, 300, 2) * 2
        real = random.normal(0, random.choice([0.01, 1.0]), (1, many, *grid)).astype(np.float32)
        turned = bool(random.random() < 0.3)
        tensor = _tensor(random, np.ascontiguousarray(real[0]))
        if turned:
            values = np.ascontiguousarray(tensor.values.transpose(1, 2, 0))[None]
            tensor = RawTensor(values, tensor.scale, tensor.zero_point, 'nhwc')
        box = Letterbox.fit(*size.tolist(), 640, 480, stretch=bool(random.random() < 0.3))
        corners = np.sort(random.uniform(0, 1, (count, 2, 2)) ** random.choice([1, 0.1]), axis=1)
        boxes = (corners * size).reshape(count, 4).astype(np.float32)
        rows = np.concatenate(
            (boxes, np.ones((count, 1)), np.zeros((count, 1)), random.normal(0, 1, (count, many))),
            axis=1,
        ).astype(np.float32)
        table = RawTensor(rows)
        head = make_head(HeadSpec('boxes', 1, (640, 480), masks=many))
        found = Detections(
            boxes, rows[:, 4], np.zeros(count, np.intp), rows=np.arange(count, dtype=np.intp)
        )
        painted = []
        for form in (compiled, None):
            with patch.object(extras, 'compiled', form), np.errstate(all='ignore'):
                painter = extras.MaskPainter(head, many)
                labels = np.zeros(size[::-1], np.uint16)
                if random.random() < 0.5:  # padded rows
                    labels = np.zeros((size[1], size[0] + 8), np.uint16)[:, : size[0]]
                painter.paint([table, tensor], box, found, labels)
                painted.append(labels.copy())
                painter.paint([table, tensor], box, Detections.empty(), labels)
                assert not labels.any(), (seed, case)
        assert (painted[0] == painted[1]).all(), (seed, case, tensor.values.dtype, grid, size)
        pixels += int(np.count_nonzero(painted[0]))
    return pixels


def load(path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader('zc_perception.native.compiled', path)
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


if __name__ == '__main__':
    given, numbers = load(sys.argv[1]), (int(sys.argv[2]), int(sys.argv[3]))
    print(compare(*numbers, given), compare_masks(*numbers, given))
