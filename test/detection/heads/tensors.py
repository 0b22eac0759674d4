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

"""Outputs as devices write them: quantised, with padding around them that holds garbage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.raw_tensor import RawTensor

INPUT = (96, 64)
STRIDES = (8, 16, 32)
GRIDS = tuple((INPUT[1] // stride, INPUT[0] // stride) for stride in STRIDES)


def quantised(
    real: NDArray[np.floating],
    random: np.random.Generator,
    *,
    scale: float,
    zero_point: int,
    dtype: str = 'int8',
    name: str = '',
) -> RawTensor:
    """(1, rows, columns, channels) as a view into a larger buffer."""
    limits = np.iinfo(dtype)
    before, after = random.integers(0, 3, 3), random.integers(0, 20, 3)
    shape = np.array(real.shape[1:])
    buffer = random.integers(
        limits.min, limits.max, (1, *(shape + before + after)), dtype=dtype, endpoint=True
    )
    inner = buffer[
        (slice(None), *(slice(b, b + size) for b, size in zip(before, shape, strict=True)))
    ]
    inner[...] = np.clip(np.round(real / scale + zero_point), limits.min, limits.max)
    return RawTensor(inner, scale, zero_point, 'nhwc', name)


def as_nchw(tensor: RawTensor) -> RawTensor:
    """Return the same values with channels in front, contiguous."""
    return RawTensor(
        np.ascontiguousarray(tensor.values.transpose(0, 3, 1, 2)),
        tensor.scale,
        tensor.zero_point,
        'nchw',
        tensor.name,
    )


def dequantised(tensor: RawTensor) -> NDArray[np.float64]:
    """(rows, columns, channels) in float64."""
    values = tensor.values[0].astype(np.float64)
    if tensor.layout == 'nchw':
        values = values.transpose(1, 2, 0)
    return (
        values
        if tensor.values.dtype == np.float32
        else (values - tensor.zero_point) * float(tensor.scale)
    )
