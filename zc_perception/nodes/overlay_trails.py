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

"""The overlay's layer of tracks: the way that objects with an id took."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.nodes.overlay_picture import class_colour, LabelledBox, pixel

_NS = 2_000_000_000
_POINTS = 64
_MOST = 512
"""Trails that are kept; the work of a picture is bounded, whoever publishes detections."""


class Trails:
    """
    Remember the centres of boxes with an id for two seconds, and draw them as lines.

    One thread uses it.
    """

    def __init__(self) -> None:
        self._trails: dict[str, deque[tuple[int, float, float]]] = {}
        self._last_ns = 0

    def paint(
        self,
        picture: NDArray[np.uint8],
        boxes: Sequence[LabelledBox],
        scale: tuple[float, float],
        stamp_ns: int,
        line: int,
    ) -> None:
        """
        Draw the trails of those *boxes* that have an id.

        :param stamp_ns: of the frame; trails from before a jump of time are forgotten.
        """
        if not 0 <= stamp_ns - self._last_ns <= _NS:
            self._trails.clear()
        self._last_ns = stamp_ns
        for box in boxes:
            if box.track_id and (box.track_id in self._trails or len(self._trails) < _MOST):
                trail = self._trails.setdefault(box.track_id, deque(maxlen=_POINTS))
                trail.append((stamp_ns, (box.left + box.right) / 2, (box.top + box.bottom) / 2))
        for name, trail in [*self._trails.items()]:
            while trail and stamp_ns - trail[0][0] > _NS:
                trail.popleft()
            if not trail:
                del self._trails[name]
            elif trail[-1][0] == stamp_ns:  # a lost object has no box, so it gets no trail
                points = [(pixel(x * scale[0]), pixel(y * scale[1])) for _, x, y in trail]
                cv2.polylines(picture, [np.array(points)], False, class_colour(name), line)
