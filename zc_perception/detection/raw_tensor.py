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

"""One output tensor of a model, as the device or runtime wrote it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class RawTensor:
    """
    An output tensor; real value = (value − zero_point) · scale.

    The values are usually a view of the job's memory, which is valid until the job is closed. The
    view may be non-contiguous, because its strides skip the device's padding.

    :param values: int8, uint8, int16, int32 or float32, not yet dequantised.
    :param scale: one number for all values, or an array with one number for each element of the
        last axis.
    :param layout: the order of the axes, ``nchw`` or ``nhwc``; empty: the head finds this order.
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

    def without_values(self) -> RawTensor:
        """
        Return this tensor's type, scale and zero point, with no values.

        An object that outlives the frame keeps only this. If it kept the values, which are a view
        of the accelerator's memory, the accelerator could not free that memory.
        """
        return replace(self, values=np.zeros(0, self.values.dtype))

    def real(self) -> NDArray[np.float32]:
        """Return all values as float32; if they are float32 already, don't copy the array."""
        return self.read(self.values)

    def read(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """
        Dequantise *values*, a part of this tensor's values.

        If the tensor has several scales, the part must contain the whole last axis.
        """
        if not self.quantised:
            plain: NDArray[np.float32] = values
            return plain
        scale = np.asarray(self.scale, np.float32)
        real: NDArray[np.float32] = values.astype(np.float32)
        real -= np.float32(self.zero_point)
        real *= scale
        return real
