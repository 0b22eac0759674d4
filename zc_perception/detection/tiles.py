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
Run a model on a part of the picture, or on overlapping tiles of that part.

A tile is scaled down less than the whole picture, or not at all, so small objects stay visible.

:func:`plan` computes the tiles, and :func:`crop` returns views of one tile in a frame's planes.
:func:`decode` makes one list of the detections of all tiles, in pixels of the frame, and joins
boxes that a tile's border has cut. It compares boxes by the intersection's share of the smaller
box (IoS): for two parts of one object this share is large, while IoU is small. Keypoints, masks'
coefficients and angles come from a tile that contains the whole object, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
import re
from typing import Any, NamedTuple, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.spec import DecodeLimits, Head
from zc_perception.detection.letterbox import Letterbox, Ran, Region
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError, shown
from zc_perception.parameters import ParameterSpec

if TYPE_CHECKING:
    # Not imported at run time: importing OpenCV would delay the start of every node.
    from zc_perception.pixel.conversion import Planes

_MOST = 16
# Boxes from different tiles are the same object if their IoS (the intersection's share of the
# smaller box) reaches this.
_SAME = 0.5
# A box counts as cut if the distance of one of its edges to a border of its tile is below this
# fraction of the tile's side. Borders of the whole region don't count: no tile shows what is
# beyond them.
_CUT = 0.02
# Detections of different tiles must have different row numbers. So this number times the tile's
# index is added to each row number.
_ROWS = 1 << 22
# The highest value that parameter max_detections allows.
_EVERY = 10000
# A grid of 16x16 points in a box, as offsets from the box's centre, in fractions of the box's
# width and height.
_PLACES = np.stack(np.meshgrid(*[(np.arange(16) + 0.5) / 16 - 0.5] * 2), axis=-1).reshape(-1, 2)


def parse_roi(text: str) -> tuple[int, int, int, int] | None:
    """
    Parse parameter ``roi`` into x, y, width and height; ``None``: the whole picture.

    :raises ConfigError: the value is invalid.
    """
    numbers = [int(part) for part in text.split(',') if re.fullmatch(r'\s*\d{1,5}\s*', part)]
    if text and (
        len(numbers) != 4
        or len(text.split(',')) != 4
        or any(n % 2 for n in numbers)
        or min(numbers[2:]) < 2
    ):
        raise ConfigError(
            f"parameter 'roi' is {shown(text)}; it must be 'x,y,width,height', four even "
            "numbers of pixels, such as '640,360,1280,720'"
        )
    return (numbers[0], numbers[1], numbers[2], numbers[3]) if text else None


def parse_tiles(text: str) -> tuple[int, int]:
    """Parse parameter ``tiles`` into columns and rows; raise ConfigError if it is invalid."""
    found = re.fullmatch(r'(\d{1,2})x(\d{1,2})', text)
    columns, rows = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (1 <= columns <= _MOST and 1 <= rows <= _MOST):
        raise ConfigError(
            f"parameter 'tiles' is {shown(text)}; it must be 'COLUMNSxROWS', each from 1 to "
            f"{_MOST}, such as '3x2'"
        )
    return columns, rows


PARAMETERS = (
    ParameterSpec('roi', '', ('The part of the frame that the model sees, as '
                              "'x,y,width,height' in even numbers of pixels. Empty: the whole "
                              'frame.')),
    ParameterSpec('tiles', '1x1', ('COLUMNSxROWS of overlapping tiles; the model runs on each. '
                                   '1x1: no tiles.')),
    ParameterSpec('tile_overlap', 0.2, ('How far neighbouring tiles overlap, as a share of a '
                                        "tile's side. Small objects should be smaller than the "
                                        'overlap.'),
                  '', 0.0, 0.5),
)  # fmt: skip
"""The parameters of an accelerator that can run a model on parts of a frame."""


_NOWHERE = Region(0, 0, 0, 0)


class Part(NamedTuple):
    """The format and the size of the part of a frame that an engine gets."""

    fourcc: int
    width: int
    height: int


@dataclass(frozen=True)
class Tiling(Letterbox):
    """
    The geometry of a frame that the model sees in several tiles.

    The inherited fields describe one tile, because all tiles have the same size.

    :param regions: the tiles, in pixels of the frame.
    :param whole: the region that the tiles cover together.
    """

    regions: tuple[Region, ...] = ()
    whole: Region = _NOWHERE

    @classmethod
    def of(cls, one: Letterbox, regions: tuple[Region, ...], whole: Region) -> Tiling:
        """Make a tiling from the letterbox of one tile."""
        values = {field.name: getattr(one, field.name) for field in fields(Letterbox)}
        return cls(**values, regions=regions, whole=whole)

    def outputs_of(self, tile: int, outputs: Sequence[RawTensor]) -> Sequence[RawTensor]:
        """Return the part of *outputs* that the model made from the tile with index *tile*."""
        each = len(outputs) // len(self.regions)
        first = tile * each
        return outputs[first:][:each]

    def runs(self, outputs: Sequence[RawTensor], rows: NDArray[np.intp]) -> Iterator[Ran]:
        """
        Yield a :class:`Ran` for each tile that has detections.

        :param rows: for each detection, its row number as :func:`decode` returns it.
        """
        tiles, rows = np.divmod(rows, _ROWS)
        for tile in np.unique(tiles).tolist():
            which = np.flatnonzero(tiles == tile)
            yield Ran(self.regions[tile], self.outputs_of(tile, outputs), which, rows[which])


def plan(
    size: tuple[int, int],
    roi: tuple[int, int, int, int] | None,
    tiles: tuple[int, int],
    overlap: float,
) -> tuple[Region, tuple[Region, ...]]:
    """
    Return the region that the model sees, and the tiles that cover it.

    There are no tiles if the model's input is the whole frame.

    :param size: the frames' width and height.
    :raises AcceleratorError: the region extends beyond the frame.
    """
    whole = Region(0, 0, *size) if roi is None else Region(*roi)
    if whole.x + whole.width > size[0] or whole.y + whole.height > size[1]:
        raise AcceleratorError(
            f"parameter 'roi' is {','.join(map(str, whole))}, but frames have "
            f'{size[0]}x{size[1]} pixels; choose a region inside them'
        )
    if roi is None and tiles == (1, 1):
        return whole, ()
    columns, rows = (_spread(*span, overlap) for span in zip(whole[2:], tiles, strict=True))
    return whole, tuple(
        Region(whole.x + x, whole.y + y, columns[0], rows[0]) for y in rows[1] for x in columns[1]
    )


def _spread(length: int, count: int, overlap: float) -> tuple[int, list[int]]:
    """
    Divide *length* into *count* overlapping parts; return the parts' length and starts.

    The length and the starts are even, as formats with less chroma than luma need. Only if
    *length* is odd, either the parts' length or the last start is odd.
    """
    side = min(length, 2 * round(length / (count - (count - 1) * overlap) / 2 + 0.499))
    last = length - side
    return side, [2 * round(index * last / (count - 1) / 2) for index in range(count - 1)] + [last]


class Parts:
    """
    The parameters ``roi``, ``tiles`` and ``tile_overlap``, and the geometry computed from them.

    :raises ConfigError: a parameter's value is invalid.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._roi, self._tiles = parse_roi(values['roi']), parse_tiles(values['tiles'])
        self._overlap = values['tile_overlap']
        self._last: tuple[tuple[int, int], Letterbox] | None = None

    def geometry(
        self, size: tuple[int, int], engines: Callable[[int, int], Letterbox]
    ) -> Letterbox:
        """
        Return the geometry for frames of *size*, a :class:`Tiling` if parts of frames are used.

        Only one thread may call this method.

        :param engines: the engine's function that returns the letterbox for pictures of a width
            and a height.
        :raises AcceleratorError: the frame is smaller than ``roi`` needs.
        """
        if self._last is None or self._last[0] != size:
            whole, regions = plan(size, self._roi, self._tiles, self._overlap)
            box = engines(*regions[0][2:]) if regions else engines(*size)
            self._last = size, Tiling.of(box, regions, whole) if regions else box
        return self._last[1]


def crop(planes: Planes, size: tuple[int, int], region: Region) -> Planes:
    """
    Return views of a region in a frame's planes, without copying.

    :param size: the frame's width and height; a chroma plane may have fewer columns and rows.
    :raises AcceleratorError: a border of the region lies inside a sample of a plane.
    """
    parts = []
    for plane in planes:
        limits = []
        for samples, pixels, start, length in zip(
            plane.shape, size[::-1], region[1::-1], region[:1:-1], strict=False
        ):
            edges = start * samples, (start + length) * samples
            if any(edge % pixels for edge in edges):
                raise AcceleratorError(
                    f"frames of this format can't be cut to {','.join(map(str, region))}, which "
                    "parameters 'roi' and 'tiles' demand; set 'tiles' to 1x1, and 'roi' to "
                    'multiples of 4'
                )
            limits.append(slice(*(edge // pixels for edge in edges)))
        parts.append(plane[tuple(limits)])
    return tuple(parts)


def decode(
    head: Head, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
) -> Detections:
    """
    Decode a frame's outputs with *head*, and join the detections of its tiles, if there are any.

    :param outputs: the outputs of the first tile, then those of the second, and so on.
    :param limits: ``count`` counts only detections of the wanted ``classes``.
    """
    if not isinstance(box, Tiling):
        return _decoded(head, outputs, box, limits)
    if len(box.regions) == 1:
        return _decoded(head, outputs, box, limits).moved(*box.regions[0][:2])
    parts = []
    for index, region in enumerate(box.regions):
        part = _decoded(head, box.outputs_of(index, outputs), box, limits)
        part = part.moved(region.x, region.y)
        parts.append(replace(part, rows=part.rows + index * _ROWS))
    tiles = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return _merged(Detections.joined(parts), tiles, box, limits.count)


def _decoded(
    head: Head, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
) -> Detections:
    wanted = limits.classes
    if wanted is None:
        return head.decode(outputs, box, limits)
    found = head.decode(outputs, box, replace(limits, count=_EVERY))
    return found.chosen(wanted[found.classes].nonzero()[0][: limits.count])


def _merged(found: Detections, tiles: NDArray[np.intp], box: Tiling, count: int) -> Detections:
    """
    Keep one detection for each object, at most *count*.

    Beginning with the best score, each detection absorbs detections of the same object from other
    tiles.

    :param tiles: (n) the index of the tile that found each detection.
    """
    order = np.argsort(-found.scores, kind='stable')
    found, tiles = found.chosen(order), tiles[order]
    boxes = found.boxes.astype(np.float64)
    cut, turned, reached = _cut(boxes, tiles, box), found.turned, _reached(boxes, box)
    left = np.ones(len(found), np.bool_)
    best, rows = [], []
    for index in range(len(found)):
        if not left[index]:
            continue
        left[index] = False
        row, own, unused = index, boxes[index].copy(), np.ones(len(box.regions), np.bool_)
        unused[tiles[index]] = False
        while reached[index] > 1:
            others = np.flatnonzero(left & (found.classes == found.classes[index]) & unused[tiles])
            overlaps = _ios(own, boxes[others])
            if turned is None:
                others = others[overlaps >= _SAME]
            else:
                others = others[overlaps > 0]
                others = others[_turned_ios(turned[row], turned[others]) >= _SAME]
            if not len(others):
                break
            left[others] = False
            unused[tiles[others]] = False
            if not cut[row]:
                # This box isn't cut, so the absorbed boxes were parts of it: keep its corners.
                continue
            whole = others[~cut[others]]
            row = int(whole[0]) if len(whole) else row
            if turned is not None:
                own = boxes[row].copy()
                continue
            own[:2] = np.minimum(own[:2], boxes[others, :2].min(axis=0))
            own[2:] = np.maximum(own[2:], boxes[others, 2:].max(axis=0))
        boxes[index] = own
        best.append(index)
        rows.append(row)
        if len(best) == count:
            break
    return replace(
        found.chosen(np.array(rows, np.intp)),
        boxes=boxes[best].astype(np.float32),
        scores=found.scores[best],
    )


def _cut(boxes: NDArray[np.float64], tiles: NDArray[np.intp], box: Tiling) -> NDArray[np.bool_]:
    """Return for each box whether its tile's edge cuts it; ``box.whole``'s edges cut no box."""
    regions = np.array(box.regions, np.float64).reshape(-1, 4)[tiles]
    margin = regions[:, 2:] * _CUT
    low, high = regions[:, :2], regions[:, :2] + regions[:, 2:]
    whole_low = np.array(box.whole[:2])
    whole_high = whole_low + box.whole[2:]
    before = (boxes[:, :2] <= low + margin) & (low > whole_low)
    after = (boxes[:, 2:] >= high - margin) & (high < whole_high)
    result: NDArray[np.bool_] = (before | after).any(axis=1)
    return result


def _reached(boxes: NDArray[np.float64], box: Tiling) -> NDArray[np.intp]:
    """Count the tiles that each box overlaps; a box in only one tile can't be a duplicate."""
    regions = np.array(box.regions, np.float64).reshape(-1, 4)
    low, high = regions[:, :2], regions[:, :2] + regions[:, 2:]
    inside = (boxes[:, None, :2] < high) & (boxes[:, None, 2:] > low)
    reached: NDArray[np.intp] = np.count_nonzero(inside.all(axis=2), axis=1)
    return reached


def _ios(one: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the IoS of *one* with each of *others*: intersection divided by the smaller area."""
    sides = np.minimum(one[2:], others[:, 2:]) - np.maximum(one[:2], others[:, :2])
    shared = np.maximum(sides, 0.0).prod(axis=1)
    areas = (others[:, 2:] - others[:, :2]).prod(axis=1)
    ios: NDArray[np.float64] = shared / np.maximum(
        np.minimum(areas, (one[2:] - one[:2]).prod()), 1e-9
    )
    return ios


def _turned_ios(one: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float64]:
    """
    Approximate :func:`_ios` for oriented boxes: *one* of shape (5), *others* of shape (n, 5).

    For each pair, take a grid of points in the smaller box; return the share of these points that
    lies in the larger box.
    """
    smaller = (others[:, 2:4].prod(axis=1) < one[2:4].prod())[:, None]
    inner, outer = np.where(smaller, others, one), np.where(smaller, one, others)
    places = _turn(_PLACES * inner[:, None, 2:4], inner[:, 4]) + inner[:, None, :2]
    places = _turn(places - outer[:, None, :2], -outer[:, 4])
    share: NDArray[np.float64] = (
        (np.abs(places) <= outer[:, None, 2:4] / 2).all(axis=2).mean(axis=1)
    )
    return share


def _turn(places: NDArray[np.float64], angles: NDArray[np.float32]) -> NDArray[np.float64]:
    """Turn points (n, k, 2) about the origin, each group of k points by its angle (n)."""
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    x, y = places[..., 0], places[..., 1]
    turned: NDArray[np.float64] = np.stack((x * cos - y * sin, x * sin + y * cos), axis=-1)
    return turned
