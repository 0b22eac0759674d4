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
Boxes that are turned: :func:`oriented`, from candidates and their angles to detections.

Two boxes are the same object where their Gaussians are: overlap is 1 less their Hellinger
distance. As in the exporters' own suppression, whatever overlaps a better box too much goes,
whether that one stays or not.

Source: Llerena et al., Gaussian Bounding Boxes and Probabilistic Intersection-over-Union for
Object Detection, 2021, equations 7 to 13.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.candidates import Candidates
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.detection.letterbox import Letterbox

# Candidates that are compared with the better ones in one go: memory is bounded, and few are
# looked at once enough have been found.
_CHUNK = 256
_SMALL = 1e-7
_FARTHEST = 100.0
Turned = NDArray[np.float64]


def oriented(
    candidates: Candidates,
    angles: NDArray[np.float32],
    box: Letterbox,
    limits: DecodeLimits,
    *,
    about: NDArray[np.float32] | None = None,
    suppressed: bool = False,
    class_agnostic: bool = False,
) -> Detections:
    """
    Return the boxes that stay, in source pixels, best first.

    Of equal scores the first comes first.

    A letterbox whose sides have different scales would distort turned boxes: their sides are
    scaled each by its own direction.

    :param candidates: with the corners that they have before they are turned.
    :param angles: (n) radians, from x to y.
    :param about: (2, n) the places about which they are turned; ``None``: their centres.
    :param suppressed: whether the model has removed duplicates.
    """
    low, high = (
        candidates.corners[:2].astype(np.float64),
        candidates.corners[2:].astype(np.float64),
    )
    centres, sizes = (low + high) / 2, high - low
    angles = angles.astype(np.float64)
    cos, sin = np.cos(angles), np.sin(angles)
    if about is not None:
        x, y = centres - about
        centres = about + np.stack((x * cos - y * sin, x * sin + y * cos))
    reach = np.abs(np.stack((sizes[0] * cos, sizes[0] * sin)))
    reach = (reach + np.abs(np.stack((sizes[1] * sin, sizes[1] * cos)))) / 2
    start, end = box.picture
    # Comparisons with NaN are false.
    fine = ((sizes > 0) & (centres + reach > start) & (centres - reach < end)).all(axis=0)
    fine &= np.isfinite(sizes.prod(axis=0)) & np.isfinite(reach).all(axis=0)
    turned: Turned = np.concatenate((centres, sizes, angles[None])).T
    order = np.argsort(-candidates.scores, kind='stable')
    order = order[fine[order]]
    if suppressed:
        order = order[: limits.count]
    else:
        kinds = np.zeros_like(candidates.classes) if class_agnostic else candidates.classes
        order = order[_kept(turned[order], kinds[order], limits)]
    hulls = np.concatenate((centres - reach, centres + reach))[:, order].T
    boxes = box.to_source(hulls.astype(np.float32))
    found = Detections(
        boxes,
        candidates.scores[order],
        candidates.classes[order],
        candidates.rows[order],
        turned=_in_source(turned[order], box),
    )
    return found.chosen(np.asarray((boxes[:, 2:] > boxes[:, :2]).all(axis=1)))


def overlaps(one: Turned, others: Turned) -> NDArray[np.float64]:
    """
    Return how much each of *one* (n, 5) overlaps each of *others* (m, 5).

    The result is (n, m), from 0 to nearly 1.
    """
    (x1, y1, a1, b1, c1), (x2, y2, a2, b2, c2) = _gaussian(one[:, None]), _gaussian(others[None])
    a, b, c, x, y = a1 + a2, b1 + b2, c1 + c2, x1 - x2, y1 - y2
    area = a * b - c * c
    apart = (a * y * y + b * x * x) / (4 * (area + _SMALL)) - c * x * y / (2 * (area + _SMALL))
    both = np.maximum(a1 * b1 - c1 * c1, 0) * np.maximum(a2 * b2 - c2 * c2, 0)
    apart += np.log(area / (4 * np.sqrt(both) + _SMALL) + _SMALL) / 2
    result: NDArray[np.float64] = 1 - np.sqrt(
        1 - np.exp(-np.clip(apart, _SMALL, _FARTHEST)) + _SMALL
    )
    return result


def _gaussian(turned: Turned) -> tuple[NDArray[np.float64], ...]:
    """Return the centre, and the covariance's three numbers."""
    x, y, width, height, angle = np.moveaxis(turned, -1, 0)
    a, b, cos, sin = width**2 / 12, height**2 / 12, np.cos(angle), np.sin(angle)
    return x, y, a * cos**2 + b * sin**2, a * sin**2 + b * cos**2, (a - b) * cos * sin


def _kept(turned: Turned, kinds: NDArray[np.intp], limits: DecodeLimits) -> NDArray[np.intp]:
    """Return the places of the boxes that stay; the boxes come best first."""
    kept: list[int] = []
    for start in range(0, len(turned), _CHUNK):
        end = min(start + _CHUNK, len(turned))
        some = slice(start, end)
        out = overlaps(turned[some], turned[:end]) > limits.iou
        out &= kinds[some, None] == kinds[:end]
        out &= np.arange(end) < np.arange(start, end)[:, None]
        kept += (np.flatnonzero(~out.any(axis=1)) + start).tolist()
        if len(kept) >= limits.count:
            break
    return np.array(kept[: limits.count], np.intp)


def _in_source(turned: Turned, box: Letterbox) -> NDArray[np.float32]:
    """
    Return (n, 5) in source pixels.

    They are not clipped, as a turned box can't be. Angles are from -pi/2 to below pi/2; other
    angles mean the same.
    """
    scale = np.array((box.source_width / box.width, box.source_height / box.height))
    centres = (turned[:, :2] - (box.left, box.top)) * scale
    cos, sin = np.cos(turned[:, 4]), np.sin(turned[:, 4])
    along, across = scale * np.stack((cos, sin), axis=1), scale * np.stack((-sin, cos), axis=1)
    sizes = turned[:, 2:4] * np.stack((np.hypot(*along.T), np.hypot(*across.T)), axis=1)
    angles = np.arctan2(along[:, 1], along[:, 0])
    angles = (angles + math.pi / 2) % math.pi - math.pi / 2
    result: NDArray[np.float32] = np.concatenate((centres, sizes, angles[:, None]), axis=1).astype(
        np.float32
    )
    return result
