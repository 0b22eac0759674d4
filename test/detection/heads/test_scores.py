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

"""A threshold in raw numbers lets through exactly what reaches the score in float arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.heads.score_filter import (
    activated,
    CellMajorFilter,
    ChannelMajorFilter,
    make_score_filter,
    numpy_filter,
    raw_threshold,
)
from zc_perception.detection.raw_tensor import RawTensor

SIXTEEN = ('int16', 'uint16')


@st.composite
def every_value(draw: st.DrawFn) -> tuple[RawTensor, bool, NDArray[np.float32]]:
    """
    Return a tensor with each value that its type has, and each one's score.

    The score is that of the float path.
    """
    dtype = draw(st.sampled_from(['int8', 'uint8', *SIXTEEN]))
    limits = np.iinfo(dtype)
    scale = draw(st.floats(1e-6, 10, allow_subnormal=False))
    zero_point = draw(st.integers(int(limits.min) - 300, int(limits.max) + 300))
    tensor = RawTensor(np.arange(limits.min, limits.max + 1).astype(dtype), scale, zero_point)
    by_sigmoid = draw(st.booleans())
    with np.errstate(over='ignore'):
        return tensor, by_sigmoid, activated(tensor.real(), by_sigmoid)


@given(
    every_value(),
    st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, 0.25, 0.5, 1e-30, 1 - 1e-9])),
)
def test_nothing_below_the_raw_threshold_reaches_the_score(
    case: tuple[RawTensor, bool, NDArray[np.float32]], score: float
) -> None:
    check(*case, score)


@given(every_value(), st.integers(0, 2**16))
def test_a_score_at_the_threshold_counts(
    case: tuple[RawTensor, bool, NDArray[np.float32]], which: int
) -> None:
    tensor, by_sigmoid, scores = case
    score = float(scores[which % len(scores)])
    if 0 <= score <= 1:
        check(tensor, by_sigmoid, scores, score)


def check(tensor: RawTensor, by_sigmoid: bool, scores: NDArray[np.float32], score: float) -> None:
    with np.errstate(over='ignore'):
        raw = raw_threshold(tensor, score, by_sigmoid)
    assert raw.dtype == tensor.values.dtype and raw.ndim == 0
    enough = scores >= np.float32(score)
    assert not enough[tensor.values < raw].any()
    if tensor.values.itemsize == 1 and enough.any():
        assert (tensor.values[enough] >= raw).all() and enough[tensor.values == raw].all(), (
            'exact for 8 bits'
        )
    # What the filters do with it, in both orders of memory: exactly the float path's cells.
    with np.errstate(over='ignore'):
        for classes in (1, 2):
            values = np.stack([tensor.values] * classes, axis=1)
            for made in (
                CellMajorFilter(tensor, values, by_sigmoid),
                ChannelMajorFilter(tensor, by_sigmoid),
            ):
                found = made.find(values, score)
                assert np.array_equal(found.cells, np.flatnonzero(enough))
                assert np.array_equal(found.scores, scores[enough]) and not found.classes.any()


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.floats(1e-9, 1),
    st.floats(0, 1),
    st.booleans(),
)
def test_wide_integers(
    value: int, zero_point: int, scale: float, score: float, by_sigmoid: bool
) -> None:
    near = np.clip(np.arange(value - 20, value + 20), -(2**31), 2**31 - 1).astype(np.int32)
    tensor = RawTensor(near, scale, zero_point)
    with np.errstate(over='ignore'):
        raw = raw_threshold(tensor, score, by_sigmoid)
        assert not (activated(tensor.real(), by_sigmoid)[near < raw] >= np.float32(score)).any()


@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20),
    st.floats(0, 1),
    st.booleans(),
)
def test_floats(values: list[float], score: float, by_sigmoid: bool) -> None:
    tensor = RawTensor(np.array(values, np.float32))
    with np.errstate(over='ignore'):
        raw = raw_threshold(tensor, score, by_sigmoid)
        assert not (
            activated(tensor.real(), by_sigmoid)[tensor.values < raw] >= np.float32(score)
        ).any()
        # One far too low would be right, and slow: all cells would be looked at.
        assert float(activated(raw, by_sigmoid)) == pytest.approx(score, rel=1e-4)


def brute_force(
    real: NDArray[np.float32], score: float, by_sigmoid: bool
) -> tuple[list[int], list[int], list[float]]:
    cells, classes, scores = [], [], []
    for cell, row in enumerate(real):
        finite = np.where(np.isfinite(row), row, -np.inf)
        best = int(finite.argmax())
        value = activated(finite[slice(best, best + 1)], by_sigmoid)[0]
        if np.isfinite(finite[best]) and value >= np.float32(score):
            cells.append(cell)
            classes.append(best)
            scores.append(float(value))
    return cells, classes, scores


@pytest.mark.parametrize('channels_first', [False, True])
@pytest.mark.parametrize('dtype', ['float32', 'int8', 'uint8', 'int16'])
@given(
    st.integers(0, 2**32),
    st.integers(1, 100),
    st.integers(0, 12),
    st.integers(1, 12),
    st.floats(0, 1),
    st.booleans(),
    st.booleans(),
)
def test_filters_find_what_a_loop_finds(
    channels_first: bool,
    dtype: str,
    seed: int,
    classes: int,
    rows: int,
    columns: int,
    score: float,
    by_sigmoid: bool,
    quiet: bool,
) -> None:
    """
    Few levels, so that equal scores are common; not numbers and infinities among them.

    Views with gaps.
    """
    random = np.random.default_rng(seed)
    shape = (classes, rows, columns) if channels_first else (rows, columns + 2, classes + 3)
    if dtype == 'float32':
        pool = np.array([-np.inf, np.inf, np.nan, -2, -1, 0, 0.25, 0.5, 1, 3], np.float32)
        values = random.choice(
            pool, shape, p=[0.02, 0.02, 0.02, 0.9, *[0.04 / 6] * 6] if quiet else None
        ).astype(np.float32)
        tensor = RawTensor(values)
    else:
        limits = np.iinfo(dtype)
        values = random.integers(
            limits.min,
            limits.max if not quiet else limits.min + 30,
            shape,
            dtype=dtype,
            endpoint=True,
        )
        tensor = RawTensor(
            values, float(random.uniform(0.005, 0.1)), int(random.integers(-20, 20))
        )
    view = (
        values.transpose(1, 2, 0)
        if channels_first
        else values[:, slice(1, columns + 1), slice(2, classes + 2)]
    )
    with np.errstate(all='ignore'):
        expected = brute_force(tensor.read(view).reshape(-1, classes), score, by_sigmoid)
        chosen = numpy_filter(tensor, view, by_sigmoid)
        # In a single row both orders of memory are the same.
        assert rows < 2 or isinstance(
            chosen, ChannelMajorFilter if channels_first else CellMajorFilter
        )
        # Few and many cells are found in different ways: with 1 as many, the second time is the
        # other way if there was any.
        for made in (
            chosen,
            ChannelMajorFilter(tensor, by_sigmoid, many=1),
            make_score_filter(tensor, view, by_sigmoid),
        ):
            for _ in range(3):
                found = made.find(view, score)
                assert (
                    found.cells.tolist(),
                    found.classes.tolist(),
                    found.scores.tolist(),
                ) == expected
