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

"""An output as a device or runtime wrote it: raw numbers, and how to read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class RawTensor:
    """
    An output tensor; real value = (value − zero_point) · scale.

    The values are usually a view of memory that belongs to a job, so they are valid until the job
    is closed. The view may be not contiguous, because strides skip a device's padding.

    :param values: the numbers as written: int8, uint8, int16, int32 or float32.
    :param scale: one number, or an array with one for each element of the last axis.
    :param layout: the meaning of the axes, if a head can't find it out: ``nchw``, ``nhwc``, or
        empty.
    :param name: the output's name, for messages.
    """

    values: NDArray[Any]
    scale: float | NDArray[np.float32] = 1.0
    zero_point: int = 0
    layout: str = ''
    name: str = ''

    @property
    def quantised(self) -> bool:
        """Whether the values need scale and zero point."""
        return self.values.dtype != np.float32

    def real(self) -> NDArray[np.float32]:
        """Return all values as real numbers: the array itself if it holds them already."""
        return self.read(self.values)

    def read(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """
        Return some of the values as real numbers.

        Where each element of the last axis has a scale, the last axis must be whole.
        """
        if not self.quantised:
            plain: NDArray[np.float32] = values
            return plain
        scale = np.asarray(self.scale, np.float32)
        real: NDArray[np.float32] = values.astype(np.float32)
        real -= np.float32(self.zero_point)
        real *= scale
        return real
