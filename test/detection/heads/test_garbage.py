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

"""A head survives any output of a device: no crash, no warning, no invalid box."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
import re
from typing import Any, ClassVar
import warnings

from head_reference import GRIDS, INPUT
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from zc_perception.detection.heads import HEADS, make_head
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.rules import Key

PAGE = Path(__file__).resolve().parents[3] / 'docs' / 'models.md'
BOX = Letterbox.fit(321, 203, *INPUT)
CLASSES = 3
CELLS = sum(rows * columns for rows, columns in GRIDS)
ANCHORS = (((10.0, 13.0), (16.0, 30.0)),) * 3
PRIORS = {'priors': ((0.5, 0.5, 0.3, 0.3),) * 30}

OF_SCORES = {
    'columns': ('-', 'scores', 'box'), 'sigmoid': True, 'box_order': 'cxcywh',
    'coordinates': 'relative', 'background': 0,
}  # fmt: skip
TURNED = {'oriented': True, 'box_order': 'cxcywh', 'suppressed': False}
CASES: dict[str, tuple[str, dict[str, Any], list[tuple[int, ...]]]] = {
    'boxes': ('boxes', {}, [(20, 6)]),
    'boxes of scores': ('boxes', OF_SCORES, [(1, 2, 3), (1, 30, 4), (1, 30, 4)]),
    'boxes with their number': ('boxes', {'columns': ('count', 'box', 'score', 'class')},
                [(1, 1), (1, 30, 4), (1, 30), (1, 30)]),
    'boxes in the input': ('boxes', {'coordinates': 'input', 'suppressed': False}, [(1, 20, 6)]),
    'yolov5': ('yolov5', {'anchors': ANCHORS}, [(1, *grid, 16) for grid in GRIDS]),
    'yolov5 rows': ('yolov5', {}, [(1, 40, 8)]),
    'yolov8': ('yolov8', {}, [(1, *grid, n) for grid in GRIDS for n in (64, CLASSES)]),
    'yolov8 without dfl': ('yolov8', {'reg_max': 1}, [(1, 4 + CLASSES, *grid) for grid in GRIDS]),
    'yolov8 with keypoints': ('yolov8', {'reg_max': 1, 'keypoints': (2, 3)},
                [(1, *grid, 10 + CLASSES) for grid in GRIDS]),
    'yolov8 with masks': ('yolov8', {'masks': 5}, [(1, 12, 40), (1, 5, 20, 30)]),
    'yolov8 oriented': ('yolov8', {'oriented': True}, [(1, 8, 40)]),
    'boxes with masks': ('boxes', {'masks': 5}, [(1, 20, 11), (1, 5, 20, 30)]),
    'boxes with keypoints': ('boxes', {'keypoints': (2, 2)}, [(1, 20, 10)]),
    'boxes oriented': ('boxes', TURNED, [(1, 20, 7)]),
    'yolov8 decoded': ('yolov8', {}, [(1, 7, 40)]),
    'yolov8 decoded logits': ('yolov8', {'sigmoid': True}, [(1, 40, 7)]),
    'yolox': ('yolox', {}, [(1, CELLS, 8)]),
    'yolox parts': ('yolox', {'sigmoid': True},
                [(1, *grid, n) for grid in GRIDS for n in (4, 1, CLASSES)]),
    'ssd': ('ssd', PRIORS, [(1, 30, 4), (1, 30, 4)]),
    'ssd anchors': ('ssd', {'anchors': ANCHORS}, [(1, 2 * CELLS, 4), (1, 2 * CELLS, 4)]),
    'ssd softmax': ('ssd', {'softmax': True, **PRIORS}, [(1, 30, 4), (1, 30, 4)]),
    'ssd sigmoid': ('ssd', {'sigmoid': True, 'background': -1, **PRIORS},
                [(1, 30, 4), (1, 30, 3)]),
    'of the page': ('mine', {}, [(20, 5)]),
}  # fmt: skip


def head_of_the_page(spec: HeadSpec) -> Any:
    block = re.search(
        r'^```python\n(.*?)^```$', PAGE.read_text(encoding='utf-8'), re.DOTALL | re.MULTILINE
    )
    assert block is not None
    names: dict[str, Any] = {}
    exec(block[1], names)
    return names['Mine'](spec)


class Watched(HeadSpec):
    """Records the names of the settings that a head reads."""

    read: ClassVar[set[str]] = set()

    def completed(self, keys: Mapping[str, Key]) -> HeadSpec:
        self.__init__(
            self.kind, self.num_classes, self.input_size, **super().completed(keys).options
        )  # type: ignore[misc]
        self.read.clear()
        return self

    def __getattribute__(self, name: str) -> object:
        Watched.read.add(name)
        return object.__getattribute__(self, name)


@pytest.mark.parametrize('kind', HEADS.built_in)
def test_the_options_of_a_kind_are_those_that_it_reads(kind: str) -> None:
    options = {name for kind in HEADS.built_in for name in HEADS.load(kind).OPTIONS}
    read = set()
    for _, given_here, shapes in (case for case in CASES.values() if case[0] == kind):
        head = make_head(Watched(kind, CLASSES, INPUT, **given_here))
        outputs = [garbage(np.random.default_rng(0), 'int8', shape) for shape in shapes]
        head.decode(outputs, BOX, DecodeLimits(0.0, 0.5, 50))
        read |= Watched.read & options
    assert read == set(HEADS.load(kind).OPTIONS)
    assert kind in {case[0] for case in CASES.values()}, (
        'add a case, so that this head gets garbage, too'
    )


@pytest.mark.parametrize('case', CASES)
@given(
    st.integers(0, 2**32),
    st.sampled_from(['bits', 'special', 'huge', 'int8', 'saturated', 'uint8', 'int16', 'int32']),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from([0.0, 0.45, 1.0]), st.booleans(),
)  # fmt: skip
def test_no_box_that_is_none(
    case: str, seed: int, numbers: str, score: float, iou: float, agnostic: bool
) -> None:
    kind, options, shapes = CASES[case]
    random = np.random.default_rng(seed)
    agnostic &= kind != 'boxes' or not options.get('suppressed', True)
    spec = HeadSpec(kind, CLASSES, INPUT, class_agnostic=agnostic, **options)
    head = head_of_the_page(spec) if kind == 'mine' else make_head(spec)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        outputs = [garbage(random, numbers, shape) for shape in shapes]
        found = head.decode(outputs, BOX, DecodeLimits(score, iou, 50))
    assert len(found) <= 50 and found.boxes.shape == (len(found), 4)
    assert found.boxes.dtype == found.scores.dtype == np.float32
    assert np.isfinite(found.boxes).all()
    assert (found.boxes[:, 2:] > found.boxes[:, :2]).all() and (found.boxes >= 0).all()
    assert (found.boxes <= [321, 203, 321, 203]).all()
    assert (found.scores >= np.float32(score)).all() and (found.scores <= 1).all()
    assert (np.diff(found.scores) <= 0).all()
    assert ((found.classes >= 0) & (found.classes < CLASSES)).all()


def garbage(random: np.random.Generator, numbers: str, shape: tuple[int, ...]) -> RawTensor:
    if numbers == 'bits':
        return RawTensor(random.integers(0, 2**32, shape, np.uint32).view(np.float32))
    if numbers == 'special':
        return RawTensor(random.choice(np.array(SPECIAL, np.float32), shape))
    if numbers == 'huge':
        with np.errstate(over='ignore'):  # too large values become infinite
            values = random.normal(0, 1, shape) * 10.0 ** random.uniform(-3, 38)
            return RawTensor(values.astype(np.float32))
    dtype = 'int8' if numbers == 'saturated' else numbers
    limits = np.iinfo(dtype)
    if numbers == 'saturated':
        values = random.choice(np.array([limits.min, limits.max], dtype), shape)
    else:
        values = random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    return RawTensor(values, float(10.0 ** random.uniform(-6, 2)), int(random.integers(-300, 300)))


SPECIAL = (
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1, 0.5, -1, 3, 3.4e38, -3.4e38, 1e-45, 40, 100,
)  # fmt: skip


@pytest.mark.parametrize(('kind', 'options', 'shapes', 'message'), [
    ('yolov8', {}, [], 'there is no output|no outputs|no channels'),
    ('yolov8', {}, [(2, 7, 10)], r'0 has shape 2x7x10: expected 1x7xN or 1xNx7 \(4'),
    ('yolov8', {}, [(1, 7, 10)] * 2, '1x7x10: expected .* for each of the grids 8x12,'),
    ('yolov8', {}, [(1, 8, 12, 64), (1, 8, 12, 4)], '64 box and 3 class channels'),
    ('yolov8', {}, [(1, 8, 12, 64), (1, 8, 12, 3)], 'no output has grid 4x6'),
    ('yolov5', {}, [(1, 30, 10)], 'output 0 has shape 1x30x10: expected 1xNx8 or 1x8xN'),
    ('yolov5', {}, [(1, *grid, 24) for grid in GRIDS], '3 raw levels, but .* no head.anchors'),
    ('yolov5', {'anchors': ANCHORS}, [(1, 2, 8, 12, 8)] * 2, 'x channel: 2x8x12x8'),
    ('yolox', {}, [(1, 120, 8)], 'output 0 has shape 1x120x8: expected 1x126x8 or 1x8x126'),
    ('yolox', {}, [(1, 8, 12, 8), (1, 4, 6, 9)], '1 objectness and 3 class channels'),
    ('ssd', PRIORS, [(1, 30, 4)], 'deltas 1x30x4 and scores 1x30x4 .3 classes and'),
    ('boxes', {}, [(3, 5)], 'expected one output nx6 or 1xnx6'),
    ('mine', {}, [(5,)], 'expected one output nx5'),
    ('yolox', {'input_size': (640, 640)}, [(1, CELLS, 8)], 'is 640x640, but frames'),
    ('yolov8', {'input_size': (0, 0), 'strides': (8, 48)}, [(1, 9, 12, 12)], '48 does not divide'),
])  # fmt: skip
def test_outputs_that_are_no_head_s_are_an_error_with_their_shape(
    kind: str, options: dict[str, Any], shapes: list[tuple[int, ...]], message: str
) -> None:
    spec = HeadSpec(kind, CLASSES, **{'input_size': INPUT, **options})
    head = head_of_the_page(spec) if kind == 'mine' else make_head(spec)
    outputs = [RawTensor(np.zeros(shape, np.float32)) for shape in shapes]
    with pytest.raises(AcceleratorError, match=f'head.*{kind}.*({message})'):
        head.decode(outputs, BOX, DecodeLimits(0.5, 0.5, 10))


@pytest.mark.parametrize(('kind', 'options', 'message'), [
    ('yolov9', {}, "'yolov9' is not known; it must be one of .*did you mean 'yolov"),
    ('yolov8', {'coordinates': 'input'}, "not for head 'yolov8'; it is for boxes: leave"),
    ('boxes', {'anchors': ANCHORS}, "not for head 'boxes'; it is for ssd, yolov5"),
    ('boxes', {'class_agnostic': True}, 'not remove duplicates: add suppressed: false'),
    ('boxes', {'oriented': True}, 'head.box_order is xyxy: with head.oriented it must be cxcywh'),
    ('boxes', {'keypoints': (2, 2), 'coordinates': 'relative'},
     'head.coordinates is relative: with head.keypoints it must be input'),
    ('yolov8', {'masks': 32, 'oriented': True}, 'masks and head.oriented: each row of an'),
    ('yolov8', {'strides': (8, 8, 16)}, r'head.strides is \[8, 8, 16\]; it must be a list'),
    ('yolox', {'strides': (0, 8)}, r'head.strides is \[0, 8\]; it must be a list'),
    ('yolov5', {'anchors': ANCHORS[:2]}, r'has lists of \[2, 2\] anchors; there must be one list'),
    ('yolov5', {'anchors': (((0.0, 5.0),),) * 3}, 'head.anchors: every width and height'),
    ('ssd', {'strides': (8, 16), **PRIORS}, 'belongs to head.anchors, .*: give both'),
    ('ssd', {'background': 2, **PRIORS}, 'is 2: must be 0 .first., 3 .last. or -1'),
    ('ssd', {'softmax': True, 'sigmoid': True, **PRIORS}, 'head.softmax and head.sigmoid'),
    ('ssd', {'anchors': ANCHORS, **PRIORS}, 'head.anchors and head.priors: give one'),
    ('ssd', {}, 'itself decodes the boxes, use head: boxes .with columns such as .box, s'),
])  # fmt: skip
def test_options_that_are_none_or_don_t_belong_together(
    kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_head(HeadSpec(kind, CLASSES, **options)).decode([], BOX, DecodeLimits(0.5, 0.5, 10))
