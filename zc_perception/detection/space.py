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

"""Find boxes' 3D positions with a depth picture that shows the same view as the colour picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import ConfigError
from zc_perception.parameters import ParameterSpec

PARAMETERS = (
    ParameterSpec('depth_topic', '', "Topic of depth pictures with the same view as the camera's "
                                     'pictures. If set, topic detections_3d gives the '
                  'positions of objects in space. Empty: off.'),
)  # fmt: skip
"""The inference node's parameters for positions in space."""
# Read at most this many depths along each side of a box, to limit the work for a large box.
_SAMPLES = 32
# The object's surface is assumed at the quantile _NEAR of the depths in the middle of the box:
# anything nearer is in front of the object. If the share of valid depths is below _VALID, a box
# has no position.
_NEAR, _VALID = 0.25, 0.1
# Two depths belong to one surface if they differ by at most the share _SURFACE of the distance, or
# by _LEAST_SURFACE metres, whichever is more.
_SURFACE, _LEAST_SURFACE = 0.04, 0.08
# An object extends between these quantiles of its depths: the few depths outside may be wrong.
_FIRST, _LAST = 0.05, 0.95
# The numbers of coefficients that OpenCV's standard distortion model may have.
_COEFFICIENTS = 4, 5, 8, 12, 14


@dataclass(frozen=True, eq=False)
class Lens:
    """
    The calibration of a camera's lens, which maps pixels to directions.

    :param matrix: the camera matrix (3, 3) for pictures of *size*.
    :param distortion: coefficients of OpenCV's standard distortion model, or of its fisheye model
        if *fisheye* is set.
    :param size: width and height of the calibrated pictures, in pixels.
    :param region: a picture of another size shows only this part (x, y, width, height) of a
        calibrated picture; ``None``: it shows the whole picture.
    :raises ConfigError: the model doesn't allow this number of coefficients.
    """

    matrix: NDArray[np.float64]
    distortion: NDArray[np.float64]
    size: tuple[int, int]
    fisheye: bool = False
    region: tuple[int, int, int, int] | None = None

    def __post_init__(self) -> None:
        count, possible = len(self.distortion), (4,) if self.fisheye else _COEFFICIENTS
        if count not in possible:
            raise ConfigError(
                f'the calibration has {count} distortion coefficients; the possible numbers are '
                f'{", ".join(map(str, possible))}'
            )

    def rays(self, points: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.float64]:
        """
        Return for each point the x and y of its ray at z = 1, as (n, 2).

        :param points: (n, 2) pixels of a picture of *size*, which may differ from the size of the
            calibrated pictures.
        """
        whole = 0, 0, *self.size
        x, y, width, height = whole if self.region is None or size == self.size else self.region
        scaled = (points * (width / size[0], height / size[1]) + (x, y)).reshape(-1, 1, 2)
        import cv2  # imported late, because every node imports this module for PARAMETERS

        undistort = cv2.fisheye.undistortPoints if self.fisheye else cv2.undistortPoints
        rays = undistort(scaled, self.matrix, self.distortion)
        return np.asarray(rays, np.float64).reshape(-1, 2)


@dataclass(frozen=True, eq=False)
class Placed:
    """
    Positions of boxes in metres: x points right, y down, and z away from the camera.

    :param which: the indices of the boxes with enough valid depths; the others have no position.
    :param centres: (n, 3) the centre of each box, on the surface that faces the camera.
    :param sizes: (n, 3) the extent of each box along x, y and z.
    """

    which: NDArray[np.intp]
    centres: NDArray[np.float64]
    sizes: NDArray[np.float64]


def place(
    boxes: NDArray[np.float32],
    size: tuple[int, int],
    depth: NDArray[np.generic],
    metres: float,
    lens: Lens,
) -> Placed:
    """
    Return the 3D positions of *boxes* (n, 4) x0, y0, x1, y1 in a picture of *size*.

    :param depth: (rows, columns) the depth picture of the same view, of any size. A number that
        is 0, negative or not finite means an unknown depth.
    :param metres: the depth's unit in metres, such as 0.001 for millimetres.
    """
    which, distances, spans = [], [], []
    scale = np.array([depth.shape[1] / size[0], depth.shape[0] / size[1]] * 2)
    for index, corners in enumerate(boxes * scale):
        found = _distance(corners, depth, metres)
        if found is not None:
            which.append(index)
            distances.append(found[0])
            spans.append(found[1])
    x0, y0, x1, y1 = boxes[which].T.astype(np.float64)
    x, y = (x0 + x1) / 2, (y0 + y1) / 2
    points = np.concatenate(
        [np.stack(pair, 1) for pair in ((x, y), (x0, y), (x1, y), (x, y0), (x, y1))]
    )
    middle, left, right, top, bottom = (
        lens.rays(points, size).reshape(5, -1, 2) if which else np.zeros((5, 0, 2))
    )
    z = np.array(distances)
    return Placed(
        np.array(which, np.intp),
        np.stack((middle[:, 0] * z, middle[:, 1] * z, z), 1),
        np.stack(((right - left)[:, 0] * z, (bottom - top)[:, 1] * z, np.array(spans)), 1),
    )


def _distance(
    corners: NDArray[np.float64], depth: NDArray[np.generic], metres: float
) -> tuple[float, float] | None:
    """Return an object's distance and extent along z; ``None`` if too few depths are valid."""
    x0, y0, x1, y1 = corners
    inner = _samples(
        (x0 * 3 + x1) / 4, (y0 * 3 + y1) / 4, (x0 + x1 * 3) / 4, (y0 + y1 * 3) / 4, depth, metres
    )
    valid = np.sort(inner[np.isfinite(inner) & (inner > 0)])
    if len(valid) == 0 or len(valid) < _VALID * inner.size:
        return None
    near = valid[int(len(valid) * _NEAR)]
    band = max(near * _SURFACE, _LEAST_SURFACE)
    distance = float(np.median(valid[np.abs(valid - near) <= band]))
    every = _samples(x0, y0, x1, y1, depth, metres)
    own = np.sort(every[np.abs(every - distance) <= 2 * band])
    return distance, float(own[int(len(own) * _LAST)] - own[int(len(own) * _FIRST)]) if len(
        own
    ) else 0.0


def _samples(
    x0: float, y0: float, x1: float, y1: float, depth: NDArray[np.generic], metres: float
) -> NDArray[np.float64]:
    """Return depths from a regular grid inside a box, in metres; at least one."""
    rows, columns = depth.shape
    ranges = []
    for low, high, count in ((y0, y1, rows), (x0, x1, columns)):
        first = min(max(int(low), 0), count - 1)
        last = min(max(int(np.ceil(high)), first + 1), count)
        ranges.append(slice(first, last, -(-(last - first) // _SAMPLES)))
    return depth[ranges[0], ranges[1]].astype(np.float64).ravel() * metres
