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

"""Each kind of head in all layouts, against a decoder written cell by cell and known boxes."""

from __future__ import annotations

from collections.abc import Sequence
import math
from types import ModuleType
import weakref

import head_reference as ref
from hypothesis import assume, given
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head, score_filter
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor

Array, GRIDS, INPUT, NEAR, STRIDES = ref.Array, ref.GRIDS, ref.INPUT, ref.NEAR, ref.STRIDES
# 1920x1080 in 640x640: scale 1/3, picture in rows 140..500.
BOX = Letterbox.fit(1920, 1080, 640, 640)
SMALL, TALL = Letterbox.fit(321, 203, *INPUT), Letterbox.fit(203, 321, *INPUT)
SEEDS, SCORES = st.integers(0, 2**32), st.floats(0.05, 0.95)


def decoded(spec: HeadSpec, *tables: NDArray[np.float32]) -> Detections:
    """Return the detections, which must be the same for each layout."""
    limits = DecodeLimits(0.25, 0.5, 100)
    found = [
        make_head(spec).decode([RawTensor(np.ascontiguousarray(table))], BOX, limits)
        for table in tables
    ]
    for name in ('boxes', 'scores', 'classes'):
        first, *others = (getattr(one, name).tolist() for one in found)
        assert all(other == first for other in others)
    return found[0]


@pytest.mark.parametrize('bad', [float('nan'), float('inf'), -5.0, 0.0])
def test_boxes_that_are_no_boxes_are_no_detections_and_suppress_none(bad: float) -> None:
    rows = np.full((50, 7), 0.01, np.float32)
    rows[:2] = (400, 300, bad, bad, 0.9, 0, 0), (400, 300, 50, 60, 0.7, 0, 0)
    found = decoded(HeadSpec('yolov8', 3), rows.T[None], rows[None], rows)
    assert found.scores.tolist() == pytest.approx([0.7]) and np.isfinite(found.boxes).all()


@pytest.mark.parametrize('compiled', [score_filter.compiled, None], ids=['compiled', 'plain'])
@pytest.mark.parametrize('columns', [('count', 'box', 'scores'), ('image box scores',)], ids=str)
def test_each_frame_of_a_table_has_its_own_number_of_rows(
    columns: tuple[str, ...], compiled: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_filter, 'compiled', compiled)
    head = make_head(HeadSpec('boxes', 3, columns=columns))
    for used in (0, 5, 2, 10, 0):
        image = np.where(np.arange(10) < used, 0, -1)[:, None]
        boxes, scores = np.tile([[9, 150, 90, 300]], (10, 1)), np.tile([[0, 0.9, 0.8]], (10, 1))
        parts = [np.array([[used]]), boxes, scores]
        tables = parts if len(columns) > 1 else [np.concatenate((image, boxes, scores), axis=1)]
        outputs = [RawTensor(table.astype(np.float32)) for table in tables]
        found = head.decode(outputs, BOX, DecodeLimits(0.5, 0.5, 100))
        assert found.rows.tolist() == [*range(used)] and found.classes.tolist() == [1] * used


@pytest.mark.parametrize('compiled', [score_filter.compiled, None], ids=['compiled', 'plain'])
@pytest.mark.parametrize('kind', ['yolov8', 'yolov5'])
@pytest.mark.parametrize('cells_first', [True, False])
def test_a_head_keeps_no_numbers_of_a_frame_because_they_are_the_accelerator_s_memory(
    kind: str, cells_first: bool, compiled: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_filter, 'compiled', compiled)
    values = np.full((1, 8400 if kind == 'yolov8' else 25200, 85), 0.9, np.float32)
    memory = weakref.ref(values)
    output = values if cells_first else values.transpose(0, 2, 1)
    head = make_head(HeadSpec(kind, 81 if kind == 'yolov8' else 80))
    head.decode([RawTensor(output)], BOX, DecodeLimits(0.5, 0.5, 100))
    del values, output
    assert memory() is None


@given(SEEDS, st.sampled_from([1, 2, 7, 16, 80]), SCORES, st.booleans())
def test_decoded_tensors_are_decoded_as_the_slow_way_does(
    seed: int, classes: int, score: float, by_sigmoid: bool
) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 60))
    scores = (
        random.normal(0, 2, (count, classes)) if by_sigmoid else random.random((count, classes))
    )
    boxes = random.uniform(-50, 700, (count, 2)), random.uniform(1, 200, (count, 2))
    table = np.concatenate([*boxes, scores], axis=1).astype(np.float32)
    expected = ref.scored(ref.yolov8_rows(table.astype(np.float64), by_sigmoid), score, BOX)
    head = make_head(HeadSpec('yolov8', classes, sigmoid=by_sigmoid))
    for values in (np.ascontiguousarray(table.T[None]), table[None]):
        if values.shape[1:] != (4 + classes, 4 + classes):
            ref.check(head, [RawTensor(values)], BOX, score, expected)


Levels = tuple[list[Array], list[Array]]


def random_levels(random: np.random.Generator, bins: int, classes: int, loud: float) -> Levels:
    boxes = [random.normal(0, 3, (1, *grid, 4 * bins)) for grid in GRIDS]
    return boxes, [random.normal(-loud, 2, (1, *grid, classes)) for grid in GRIDS]


def outputs_of(
    random: np.random.Generator, levels: Levels, arrangement: str
) -> tuple[list[RawTensor], Levels]:
    """Return outputs, and the real numbers that they represent after quantisation."""

    def one(real: Array) -> RawTensor:
        if arrangement not in ('int8', 'uint8', 'nchw'):
            return RawTensor(real.astype(np.float32), layout='nhwc')
        dtype = 'uint8' if arrangement == 'uint8' else 'int8'
        zero_point = (128 if dtype == 'uint8' else 0) + int(random.integers(-40, 40))
        scale = float(random.uniform(0.02, 0.6))
        made = ref.quantised(real, random, scale=scale, zero_point=zero_point, dtype=dtype)
        return ref.as_nchw(made) if arrangement == 'nchw' else made

    pairs = [(one(b), one(s)) for b, s in zip(*levels, strict=True)]
    left = [ref.dequantised(b) for b, _ in pairs], [ref.dequantised(s) for _, s in pairs]
    flat = [tensor for pair in pairs for tensor in pair]
    if arrangement == 'together':  # one tensor for each level, box channels first
        parts = [np.concatenate((b.values, s.values), axis=3) for b, s in pairs]
        flat = [RawTensor(part, layout='nhwc') for part in parts]
    return [flat[i] for i in random.permutation(len(flat))], left


@pytest.mark.parametrize(
    'arrangement', ['int8', 'uint8', 'nchw', 'float', 'far from zero', 'together']
)
@given(SEEDS, st.sampled_from([(16, 3), (16, 80), (8, 1), (1, 5)]), SCORES, st.booleans())
def test_raw_levels_are_decoded_as_the_slow_way_does(
    arrangement: str, seed: int, sizes: tuple[int, int], score: float, by_sigmoid: bool
) -> None:
    random = np.random.default_rng(seed)
    bins, classes = sizes
    levels = random_levels(random, bins, classes, 3.0 if by_sigmoid else 0.0)
    if arrangement == 'far from zero' and bins > 1:  # where exp() would overflow or vanish
        levels = [box + random.choice([-300, 300]) for box in levels[0]], levels[1]
    outputs, left = outputs_of(random, levels, arrangement)
    expected = ref.scored(ref.yolov8_levels(*left, STRIDES, bins, by_sigmoid), score, SMALL)
    spec = HeadSpec('yolov8', classes, INPUT, strides=STRIDES, reg_max=bins, sigmoid=by_sigmoid)
    ref.check(make_head(spec), outputs, SMALL, score, expected)


def realistic_levels(random: np.random.Generator, objects: int, classes: int) -> Levels:
    """Make levels in which the cells around each object's centre fire; other cells are quiet."""
    boxes = [random.normal(0, 0.5, (1, *grid, 64)) for grid in GRIDS]
    scores = [random.normal(-7, 1, (1, *grid, classes)) for grid in GRIDS]
    for _ in range(objects):
        level, number = int(random.integers(3)), int(random.integers(classes))
        stride = STRIDES[level]
        half, centre = random.uniform(1.5, 5, 2) * stride / 2, random.uniform(0, INPUT)
        for row, column in np.ndindex(*GRIDS[level]):
            place = np.array([column + 0.5, row + 0.5]) * stride
            if (np.abs(place - centre) > 1.2 * stride).any():
                continue
            sides = np.concatenate([place - centre + half, centre + half - place]) / stride
            sides = np.clip(sides + random.normal(0, 0.1, 4), 0, 14.9)
            scores[level][0, row, column, number] = random.uniform(-1, 3)
            for bins, distance in zip(
                boxes[level][0, row, column].reshape(4, 16), sides, strict=True
            ):
                low = int(distance)
                bins[:] = -6.0
                bins[low] = np.log(max(1 - distance + low, 1e-3)) + 4
                bins[low + 1] = np.log(max(distance - low, 1e-3)) + 4
    return boxes, scores


@given(SEEDS, st.integers(0, 25), st.sampled_from([1, 3, 20]), st.booleans())
def test_objects_in_quantised_levels_are_what_the_slow_way_finds(
    seed: int, objects: int, classes: int, agnostic: bool
) -> None:
    random = np.random.default_rng(seed)
    outputs, left = outputs_of(random, realistic_levels(random, objects, classes), 'int8')
    boxes = list(ref.yolov8_levels(*left, STRIDES, 16, True))
    assume(all(abs(one.score - 0.25) > NEAR for one in boxes))
    picture = [one for one in boxes if one.score >= 0.25 and ref.in_source([one], SMALL)]
    kept, nearest = ref.suppressed(picture, 0.45, agnostic)
    assume(nearest > NEAR)
    head = make_head(HeadSpec('yolov8', classes, INPUT, strides=STRIDES, class_agnostic=agnostic))
    ref.assert_same(
        head.decode(outputs, SMALL, DecodeLimits(0.25, 0.45, 300)), ref.in_source(kept, SMALL)
    )


@pytest.mark.parametrize('dtype', ['int8', 'int16'])
@pytest.mark.parametrize('layout', ['', 'nhwc'])
@pytest.mark.parametrize('classes', [5, 64])
def test_a_scale_for_each_channel_gives_what_real_numbers_give(
    dtype: str, layout: str, classes: int
) -> None:
    """All frames give identical bits, with boxes and classes in one tensor or in two."""
    random, limits = np.random.default_rng(classes), np.iinfo(dtype)
    spec = HeadSpec('yolov8', classes, INPUT, strides=STRIDES)
    head, plain = make_head(spec), make_head(spec)
    for _ in range(3):
        outputs, whole = [], []
        for pair in zip(*random_levels(random, 16, classes, 2), strict=True):
            for real in pair:
                scale = random.uniform(0.05, 0.2, real.shape[-1]).astype(np.float32)
                raw = np.clip(np.round(real / scale + 7), limits.min, limits.max).astype(dtype)
                outputs.append(RawTensor(raw, scale, 7, layout))
                exact = (raw.astype(np.float32) - np.float32(7)) * scale
                whole.append(RawTensor(exact, layout=layout))
        result = head.decode(outputs, SMALL, DecodeLimits(0.4, 0.6, 1000))
        expected = plain.decode(whole, SMALL, DecodeLimits(0.4, 0.6, 1000))
        assert len(expected) > 5
        for name in ('boxes', 'scores', 'classes', 'rows'):
            assert getattr(result, name).tolist() == getattr(expected, name).tolist()


ANCHORS = (
    ((10.0, 13.0), (16.0, 30.0), (33.0, 23.0)),
    ((30.0, 61.0), (62.0, 45.0), (59.0, 80.0)),
    ((90.0, 70.0), (50.0, 98.0), (73.0, 26.0)),
)


def split(level: Array) -> Array:
    return level.reshape(*level.shape[:2], 3, -1)


@pytest.mark.parametrize('arrangement', ['nhwc', 'nchw', 'anchors first'])
@given(SEEDS, SCORES, st.booleans(), st.sampled_from(['int8', 'uint8']))
def test_quantised_levels_with_anchors(
    arrangement: str, seed: int, score: float, by_sigmoid: bool, dtype: str
) -> None:
    random = np.random.default_rng(seed)
    step, zero_point = (0.06, 3) if by_sigmoid else (1.02 / 255, -128)
    zero_point += 128 * (dtype == 'uint8')
    outputs, left = [], []
    for grid in GRIDS:  # three anchors, each with 5 numbers and 4 classes
        shape = (1, *grid, 27)
        level = random.normal(0, 2, shape) if by_sigmoid else random.uniform(0, 1.02, shape)
        scale = step * random.uniform(0.9, 1.2)
        made = ref.quantised(level, random, scale=scale, zero_point=zero_point, dtype=dtype)
        left.append(split(ref.dequantised(made)))
        if arrangement == 'nchw':
            made = ref.as_nchw(made)
        elif arrangement == 'anchors first':  # exports have an axis for anchors
            values = split(made.values[0]).transpose(2, 0, 1, 3)[None]
            made = RawTensor(np.ascontiguousarray(values), made.scale, made.zero_point)
        outputs.append(made)
    expected = ref.scored(ref.yolov5_levels(left, STRIDES, ANCHORS, by_sigmoid), score, SMALL)
    ready = None if by_sigmoid else False
    head = make_head(HeadSpec('yolov5', 4, INPUT, strides=STRIDES, anchors=ANCHORS, sigmoid=ready))
    ref.check(head, [outputs[i] for i in random.permutation(3)], SMALL, score, expected)


@pytest.mark.parametrize(
    'arrangement', ['rows', 'rows turned', 'levels', 'levels nchw', 'parts', 'parts nchw']
)
@given(SEEDS, st.sampled_from([1, 3, 4, 20]), SCORES, st.booleans(), st.booleans())
def test_every_arrangement_of_yolox(
    arrangement: str, seed: int, classes: int, score: float, by_sigmoid: bool, exact: bool
) -> None:
    random = np.random.default_rng(seed)
    cuts = [slice(0, 4), slice(4, 5), slice(5, None)] if 'parts' in arrangement else [slice(None)]
    outputs: list[list[RawTensor]] = []
    for grid in GRIDS:
        shape = (1, *grid, 1 + classes)
        scores = random.normal(0, 2, shape) if by_sigmoid else random.uniform(0, 1, shape)
        level, parts = np.concatenate([random.normal(0, 1, (1, *grid, 4)), scores], axis=3), []
        for cut in cuts:
            scale, point = float(random.uniform(0.01, 0.05)), int(random.integers(-9, 9))
            parts.append(
                RawTensor(level[..., cut].astype(np.float32), layout='nhwc')
                if exact or 'rows' in arrangement
                else ref.quantised(level[..., cut], random, scale=scale, zero_point=point)
            )
        outputs.append(parts)
    left = [np.concatenate([ref.dequantised(part) for part in parts], axis=2) for parts in outputs]
    boxes = list(ref.yolox_levels(left, STRIDES, by_sigmoid))
    assume(all(abs(one.score - score) > NEAR for one in boxes))
    if not by_sigmoid:
        # Where the device computed the objectness, one below the threshold rejects the cell
        # whatever its class scores are.
        objects = np.concatenate([level[..., 4].reshape(-1) for level in left])
        boxes = [one for one, own in zip(boxes, objects, strict=True) if own >= score]
    if 'rows' in arrangement:
        rows = np.concatenate([parts[0].values.reshape(-1, 5 + classes) for parts in outputs])
        table = np.ascontiguousarray(rows.T[None]) if 'turned' in arrangement else rows[None]
        given_outputs = [RawTensor(table)]
    else:
        flat = [part for level in random.permutation(3) for part in outputs[level]]
        given_outputs = [ref.as_nchw(part) if 'nchw' in arrangement else part for part in flat]
    ready = True if by_sigmoid else None
    head = make_head(HeadSpec('yolox', classes, INPUT, strides=STRIDES, sigmoid=ready))
    ref.check(head, given_outputs, TALL, score, ref.scored(boxes, score, TALL))


WHOLE = Letterbox.fit(321, 203, *INPUT, stretch=True)


@given(
    SEEDS, st.sampled_from([1, 3, 20]), st.sampled_from(['first', 'last', 'none']),
    st.sampled_from(['softmax', 'sigmoid', 'done']), st.sampled_from(['xyxy', 'yxyx']), SCORES,
    st.booleans(),
)  # fmt: skip
def test_deltas_on_priors(
    seed: int, classes: int, ground: str, kind: str, order: str, score: float, int8: bool
) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 60))
    background = {'first': 0, 'last': classes, 'none': -1}[ground]
    width, variances = classes + (background >= 0), (0.1, 0.2)
    priors = np.concatenate((random.random((count, 2)), random.uniform(0.05, 0.6, (count, 2))), 1)
    shape = (1, count, width)
    logits = random.random(shape) if kind == 'done' else random.normal(0, 3, shape)
    deltas = random.normal(0, 2, (1, count, 4))
    if int8:
        scale, point = (1 / 255, -128) if kind == 'done' else (0.08, 5)
        steps = np.round(logits / scale) + point, np.round(deltas / 0.05) - 7
        raw = [np.clip(step, -128, 127).astype(np.int8) for step in steps]
        scores, boxes = RawTensor(raw[0], scale, point), RawTensor(raw[1], 0.05, -7)
    else:
        scores, boxes = RawTensor(logits.astype(np.float32)), RawTensor(deltas.astype(np.float32))
    expected = []
    for row, delta, prior in zip(
        ref.dequantised(scores), ref.dequantised(boxes), priors, strict=True
    ):
        number, value = ref.ssd_scores(
            row.tolist(), background, kind == 'softmax', kind == 'sigmoid'
        )
        turned = delta[[1, 0, 3, 2]] if order == 'yxyx' else delta
        pixels = (prior * (INPUT * 2)).tolist()
        expected.append(ref.ssd_box(value, number, turned.tolist(), pixels, variances))
    head = make_head(
        HeadSpec(
            'ssd', classes, INPUT, sigmoid=kind == 'sigmoid', softmax=kind == 'softmax',
            variances=variances, background=background, priors=priors.tolist(), box_order=order,
        )
    )  # fmt: skip
    # With four numbers in each only the order identifies them: boxes first.
    outputs = [boxes, scores] if width == 4 or seed % 2 else [scores, boxes]
    ref.check(head, outputs, WHOLE, score, ref.scored(expected, score, WHOLE))


def test_priors_are_made_from_anchors_level_row_column_anchor() -> None:
    anchors = (((8.0, 6.0), (5.0, 9.0)), ((20.0, 12.0),), ((30.0, 40.0),))
    count = 2 * math.prod(GRIDS[0]) + math.prod(GRIDS[1]) + math.prod(GRIDS[2])
    scores, deltas = np.zeros((1, count, 2), np.float32), np.zeros((1, count, 4), np.float32)
    scores[0, [2 * (3 * 12 + 5) + 1, 2 * 96 + 6 + 2, 2 * 96 + 24 + 4], 1] = 0.9, 0.8, 0.7
    found = make_head(HeadSpec('ssd', 1, INPUT, strides=STRIDES, anchors=anchors)).decode(
        [RawTensor(scores), RawTensor(deltas)], Letterbox.fit(*INPUT, *INPUT),
        DecodeLimits(0.3, 0.5, 10),
    )  # fmt: skip
    expected = [(44, 28, 5, 9), (2.5 * 16, 1.5 * 16, 20, 12), (1.5 * 32, 1.5 * 32, 30, 40)]
    assert found.boxes.tolist() == [
        [x - w / 2, y - h / 2, x + w / 2, min(y + h / 2, 64)] for x, y, w, h in expected
    ]


def table(*rows: Sequence[float], coordinates: str = 'source', **options: object) -> Detections:
    values = np.array(rows, np.float32).reshape(-1, 6)
    return decoded(HeadSpec('boxes', 8, coordinates=coordinates, **options), values, values[None])


def test_boxes_are_filtered_and_sorted_and_not_moved() -> None:
    found = table(
        (1, 2, 30, 40, 0.3, 1),
        (5, 6, 70, 80, 0.9, 0),
        (1, 2, 30, 40, 0.1, 1),
        (1, 1, 9, 9, float('nan'), 0),
    )
    assert found.boxes.tolist() == [[5, 6, 70, 80], [1, 2, 30, 40]]
    assert found.classes.tolist() == [0, 1] and found.scores.tolist() == pytest.approx([0.9, 0.3])


def test_input_pixels_go_through_the_letterbox_and_are_clipped() -> None:
    for found in (
        table((-5, 140, 320, 320, 0.9, 3), coordinates='input'),
        table((0, 0.21875, 0.5, 0.5, 0.9, 3), coordinates='relative'),
        table((0.21875, 0, 0.5, 0.5, 0.9, 3), coordinates='relative', box_order='yxyx'),
    ):
        assert found.boxes.tolist() == [[0, 0, 960, 540]]


def test_duplicates_are_left_alone_unless_the_manifest_says_so() -> None:
    twice = ((1, 2, 30, 40, 0.9, 1), (1, 2, 30, 41, 0.8, 1))
    assert len(table(*twice)) == 2
    assert table(*twice, suppressed=False).scores.tolist() == pytest.approx([0.9])
