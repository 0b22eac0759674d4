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

"""Convert frames to BGR pictures: the work of :meth:`Frame.bgr`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.mapping import PlaneViews
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.conversion import ToPicture
from zc_perception.pixel.layout import ImageLayout

_KEPT = 4


class _Converters(threading.local):
    """
    The converters of one thread: at most four, each for one format, size and colorimetry.

    Threads can't share a converter, because it reuses its working memory.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], ToPicture] = {}

    def of(self, layout: ImageLayout, colorimetry: Colorimetry) -> ToPicture:
        key = layout.fourcc, layout.width, layout.height, colorimetry
        found = self._kept.get(key)
        if found is None:
            found = ToPicture(layout.fourcc, layout.width, layout.height, colorimetry, bgr=True)
            if len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = found
        return found


_converters = _Converters()


def bgr_picture(
    planes: PlaneViews,
    layout: ImageLayout,
    colorimetry: Colorimetry,
    out: NDArray[np.uint8] | None,
) -> NDArray[np.uint8]:
    """
    Convert a frame's planes to a BGR picture (height, width, 3), in *out* or in a new array.

    :raises FormatError: the format or colorimetry has no conversion.
    :raises LayoutError: *out* has the wrong shape or type.
    """
    converter = _converters.of(layout, colorimetry)
    if out is None:
        out = np.empty((layout.height, layout.width, 3), np.uint8)
    return converter.convert(planes, out)
