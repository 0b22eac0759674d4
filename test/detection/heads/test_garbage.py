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
Whatever a device writes, a head doesn't crash.

It warns of nothing and reports no box that isn't one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
import re
from typing import Any, ClassVar
import warnings

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from tensors import GRIDS, INPUT

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

CASES = {
    'boxes': ('boxes', {}, [(20, 6)]),
    'boxes of scores': (
        'boxes',
        {
            'columns': ('-', 'scores', 'box'),
            'sigmoid': True,
            'box_order': 'cxcywh',
            'coordinates': 'relative',
            'background': 0,
        },
        [(1, 2, 3), (1, 30, 4), (1, 30, 4)],
    ),
    'boxes with their number': (
        'boxes',
        {'columns': ('count', 'box', 'score', 'class')},
        [(1, 1), (1, 30, 4), (1, 30), (1, 30)],
    ),
    'boxes in the input': ('boxes', {'coordinates': 'input', 'suppressed': False}, [(1, 20, 6)]),
    'yolov5': ('yolov5', {'anchors': ANCHORS}, [(1, *grid, 16) for grid in GRIDS]),
    'yolov5 rows': ('yolov5', {}, [(1, 40, 8)]),
    'yolov8': (
        'yolov8',
        {},
        [(1, *grid, channels) for grid in GRIDS for channels in (64, CLASSES)],
    ),
    'yolov8 without dfl': ('yolov8', {'reg_max': 1}, [(1, 4 + CLASSES, *grid) for grid in GRIDS]),
    'yolov8 with keypoints': (
        'yolov8',
        {'reg_max': 1, 'keypoints': (2, 3)},
        [(1, *grid, 4 + CLASSES + 6) for grid in GRIDS],
    ),
    'yolov8 with masks': ('yolov8', {'masks': 5}, [(1, 12, 40), (1, 5, 20, 30)]),
    'yolov8 oriented': ('yolov8', {'oriented': True}, [(1, 8, 40)]),
    'boxes with masks': ('boxes', {'masks': 5}, [(1, 20, 11), (1, 5, 20, 30)]),
    'boxes with keypoints': ('boxes', {'keypoints': (2, 2)}, [(1, 20, 10)]),
    'boxes oriented': (
        'boxes',
        {'oriented': True, 'box_order': 'cxcywh', 'suppressed': False},
        [(1, 20, 7)],
    ),
    'yolov8 decoded': ('yolov8', {}, [(1, 7, 40)]),
    'yolov8 decoded logits': ('yolov8', {'sigmoid': True}, [(1, 40, 7)]),
    'yolox': ('yolox', {}, [(1, CELLS, 8)]),
    'yolox parts': (
        'yolox',
        {'sigmoid': True},
        [(1, *grid, channels) for grid in GRIDS for channels in (4, 1, CLASSES)],
    ),
    'ssd': ('ssd', PRIORS, [(1, 30, 4), (1, 30, 4)]),
    'ssd anchors': ('ssd', {'anchors': ANCHORS}, [(1, 2 * CELLS, 4), (1, 2 * CELLS, 4)]),
    'ssd softmax': ('ssd', {'softmax': True, **PRIORS}, [(1, 30, 4), (1, 30, 4)]),
    'ssd sigmoid': (
        'ssd',
        {'sigmoid': True, 'background': -1, **PRIORS},
        [(1, 30, 4), (1, 30, 3)],
    ),
    'of the page': ('mine', {}, [(20, 5)]),
}


def head_of_the_page(spec: HeadSpec) -> Any:
    """Return the head that docs/models.md shows to people who write their own."""
    block = re.search(
        r'^```python\n(.*?)^```$', PAGE.read_text(encoding='utf-8'), re.DOTALL | re.MULTILINE
    )
    assert block is not None
    names: dict[str, Any] = {}
    exec(block[1], names)
    return names['Mine'](spec)


@pytest.mark.parametrize('shapes', [[], [(20, 6)], [(5,)], [(20, 5), (20, 5)]])
def test_the_head_of_the_page_refuses_other_outputs(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(AcceleratorError, match=r'head mine: .*: expected one output nx5'):
        head_of_the_page(HeadSpec('mine', CLASSES)).decode(
            [RawTensor(np.zeros(shape, np.float32)) for shape in shapes],
            BOX,
            DecodeLimits(0.5, 0.5, 10),
        )


class Watched(HeadSpec):
    """Notes the names that a head reads."""

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
        head.decode(
            [garbage(np.random.default_rng(0), 'int8', shape) for shape in shapes],
            BOX,
            DecodeLimits(0.0, 0.5, 50),
        )
        read |= Watched.read & options
    assert read == set(HEADS.load(kind).OPTIONS)
    assert kind in {case[0] for case in CASES.values()}, (
        'add a case, so that this head gets garbage, too'
    )


@pytest.mark.parametrize('case', CASES)
@given(
    st.integers(0, 2**32),
    st.sampled_from(['bits', 'special', 'huge', 'int8', 'saturated', 'uint8', 'int16', 'int32']),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.sampled_from([0.0, 0.45, 1.0]),
    st.booleans(),
)
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
        found = head.decode(
            [garbage(random, numbers, shape) for shape in shapes],
            BOX,
            DecodeLimits(score, iou, 50),
        )
    assert len(found) <= 50 and found.boxes.shape == (len(found), 4)
    assert found.boxes.dtype == found.scores.dtype == np.float32
    assert np.isfinite(found.boxes).all()
    assert (found.boxes[:, 2:] > found.boxes[:, :2]).all() and (found.boxes >= 0).all()
    assert (found.boxes <= [321, 203, 321, 203]).all()
    assert (
        (found.scores >= np.float32(score)).all()
        and (found.scores <= 1).all()
        and (np.diff(found.scores) <= 0).all()
    )
    assert ((found.classes >= 0) & (found.classes < CLASSES)).all()


def garbage(random: np.random.Generator, numbers: str, shape: tuple[int, ...]) -> RawTensor:
    if numbers == 'bits':
        return RawTensor(random.integers(0, 2**32, shape, np.uint32).view(np.float32))
    if numbers == 'special':
        pool = np.array(
            [np.nan, np.inf, -np.inf, 0.0, -0.0, 1, 0.5, -1, 3, 3.4e38, -3.4e38, 1e-45, 40, 100],
            np.float32,
        )
        return RawTensor(random.choice(pool, shape))
    if numbers == 'huge':
        with np.errstate(over='ignore'):  # what is too large becomes infinite
            return RawTensor(
                (random.normal(0, 1, shape) * 10.0 ** random.uniform(-3, 38)).astype(np.float32)
            )
    dtype = 'int8' if numbers == 'saturated' else numbers
    limits = np.iinfo(dtype)
    if numbers == 'saturated':
        values = random.choice(np.array([limits.min, limits.max], dtype), shape)
    else:
        values = random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    return RawTensor(values, float(10.0 ** random.uniform(-6, 2)), int(random.integers(-300, 300)))


@pytest.mark.parametrize('kind', ['yolov5', 'yolov8', 'yolox'])
@pytest.mark.parametrize('strides', [(), (8, 8, 16), (16, 8), (0, 8)])
def test_strides_that_do_not_ascend(kind: str, strides: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r'head.strides is \[.*\]: must be at least one'):
        make_head(HeadSpec(kind, 1, strides=strides))


@pytest.mark.parametrize('kind', ['ssd', 'yolov5', 'yolox'])
def test_an_input_that_a_stride_does_not_divide(kind: str) -> None:
    with pytest.raises(
        ConfigError, match=r'head.strides: 32 does not divide the input of 640x368 pixels'
    ):
        make_head(
            HeadSpec(kind, 1, (640, 368), **({} if kind == 'yolox' else {'anchors': ANCHORS}))
        )


def test_decoded_tensors_can_be_of_any_input_s_size() -> None:
    for kind in ('yolov5', 'yolov8'):
        table = np.array([[20, 20, 10, 10, 0.9, 0.9]], np.float32)
        head = make_head(HeadSpec(kind, 1 if kind == 'yolov5' else 2, input_size=(50, 50)))
        assert (
            len(
                head.decode(
                    [RawTensor(table)], Letterbox.fit(50, 50, 50, 50), DecodeLimits(0.5, 0.5, 10)
                )
            )
            == 1
        )


@pytest.mark.parametrize('kind', ['yolov5', 'yolov8', 'yolox'])
def test_a_letterbox_that_a_stride_does_not_divide(kind: str) -> None:
    head = make_head(HeadSpec(kind, 1, **({'anchors': ANCHORS} if kind == 'yolov5' else {})))
    with pytest.raises(
        AcceleratorError, match=r'head.strides: 32 does not divide the input of 96x80 pixels'
    ):
        head.decode(
            [RawTensor(np.zeros((1, 9, 12, 12), np.float32))],
            Letterbox.fit(64, 48, 96, 80),
            DecodeLimits(0.5, 0.5, 10),
        )


def test_frames_of_another_geometry_than_the_head_s() -> None:
    head = make_head(HeadSpec('yolox', 1, input_size=(640, 640)))
    with pytest.raises(
        AcceleratorError,
        match=r'head yolox: head.input_size is 640x640, but frames are letterboxed to 96x64',
    ):
        head.decode(
            [RawTensor(np.zeros((1, CELLS, 6), np.float32))], BOX, DecodeLimits(0.5, 0.5, 10)
        )


@pytest.mark.parametrize(
    ('spec', 'message'),
    [
        (
            HeadSpec('yolov9', 1),
            (
                rf"head 'yolov9' is not known; it must be one of {', '.join(HEADS.built_in)}; did "
                r"you mean 'yolov"
            ),
        ),
        (
            HeadSpec('yolov8', 1, coordinates='input'),
            "head.coordinates is not for head 'yolov8'; it is for boxes: leave it out, or",
        ),
        (
            HeadSpec('boxes', 1, anchors=ANCHORS),
            "head.anchors is not for head 'boxes'; it is for ssd, yolov5",
        ),
        (
            HeadSpec('boxes', 1, softmax=True),
            "head.softmax is not for head 'boxes'; it is for ssd",
        ),
        (
            HeadSpec('boxes', 1, softmax=False),
            "head.softmax is not for head 'boxes'; it is for ssd",
        ),
        (
            HeadSpec('yolox', 1, suppressed=False),
            "head.suppressed is not for head 'yolox'; it is for boxes",
        ),
        (
            HeadSpec('boxes', 1, class_agnostic=True),
            'head.class_agnostic is for boxes that the host suppresses: add suppressed: false',
        ),
        (
            HeadSpec('ssd', 1, strides=(8, 16), **PRIORS),
            'head.strides belongs to head.anchors, from which priors are made: give both',
        ),
    ],
)
def test_specs_that_are_none(spec: HeadSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_head(spec)
