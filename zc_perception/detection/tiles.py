"""
A part of the picture instead of all of it, and overlapping tiles of that part.

So small objects are seen as large as they are in the picture.

:func:`plan` says where the tiles are, and :func:`crop` takes one out of a frame's planes.
    :func:`decode` makes one list of what was found in all of them, in pixels of the frame, and
    joins boxes that a tile's border has cut. It compares boxes by intersection over the smaller
    box (IoS): two parts of one object hardly overlap by their union, but much by the smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
import re
from typing import Any, NamedTuple, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.spec import DecodeLimits, Head
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError, shown
from zc_perception.parameters import ParameterSpec

if TYPE_CHECKING:
    from zc_perception.pixel.samples import (
        Planes,
    )  # whose OpenCV every node's start would wait for

_MOST = 16
_SAME = 0.5
# A box that ends so close to an inner border was cut by it, as a share of the tile's side.
_CUT = 0.02


def parse_roi(text: str) -> tuple[int, int, int, int] | None:
    """
    Parse parameter ``roi``: x, y, width and height.

    ``None``: all of the picture.

    :raises ConfigError: it isn't a region.
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
    """
    Parse parameter ``tiles``: columns and rows.

    :raises ConfigError: it isn't that.
    """
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
                              "'x,y,width,height' in even numbers of pixels. Empty: all of it.")),
    ParameterSpec('tiles', '1x1', ('COLUMNSxROWS of overlapping tiles, each of which the model '
                                   'runs on. 1x1: none.')),
    ParameterSpec('tile_overlap', 0.2, ('tiles: how much two neighbours share, as a part of a '
                                        'side. More than the largest small object.'),
                  '', 0.0, 0.5),
)  # fmt: skip
"""Of an accelerator that can run a model on parts of a frame."""


class Region(NamedTuple):
    """A rectangle of a frame, in pixels."""

    x: int
    y: int
    width: int
    height: int


_NOWHERE = Region(0, 0, 0, 0)


class Part(NamedTuple):
    """What an engine has to know of a part of a frame."""

    fourcc: int
    width: int
    height: int


@dataclass(frozen=True)
class Tiling(Letterbox):
    """
    The frame's geometry, as several regions.

    :param regions: the tiles, all of one size.
    :param whole: what they cover together.
    """

    regions: tuple[Region, ...] = ()
    whole: Region = _NOWHERE

    @classmethod
    def of(cls, one: Letterbox, regions: tuple[Region, ...], whole: Region) -> Tiling:
        """Make the tiling of a frame."""
        values = {field.name: getattr(one, field.name) for field in fields(Letterbox)}
        return cls(**values, regions=regions, whole=whole)


def plan(
    size: tuple[int, int],
    roi: tuple[int, int, int, int] | None,
    tiles: tuple[int, int],
    overlap: float,
) -> tuple[Region, tuple[Region, ...]]:
    """
    Return the region that is looked at, and the tiles that cover it.

    No tiles if the model sees all of the frame at once.

    :raises AcceleratorError: the frames are smaller than that.
    """
    whole = Region(0, 0, *size) if roi is None else Region(*roi)
    if whole.x + whole.width > size[0] or whole.y + whole.height > size[1]:
        raise AcceleratorError(
            f"parameter 'roi' is {','.join(map(str, whole))}, but frames have "
            f'{size[0]}x{size[1]} pixels; take a part of them'
        )
    if roi is None and tiles == (1, 1):
        return whole, ()
    columns, rows = (_spread(*span, overlap) for span in zip(whole[2:], tiles, strict=True))
    return whole, tuple(
        Region(whole.x + x, whole.y + y, columns[0], rows[0]) for y in rows[1] for x in columns[1]
    )


def _spread(length: int, count: int, overlap: float) -> tuple[int, list[int]]:
    """Return the length of each of *count* parts, and where they begin, all even."""
    side = min(length, 2 * round(length / (count - (count - 1) * overlap) / 2 + 0.499))
    return side, [
        2 * round(index * (length - side) / max(count - 1, 1) / 2) for index in range(count)
    ]


class Parts:
    """
    The parameters, and the geometry that follows from them.

    :raises ConfigError: a parameter is none.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._roi, self._tiles = parse_roi(values['roi']), parse_tiles(values['tiles'])
        self._overlap = values['tile_overlap']
        self._last: tuple[tuple[int, int], Letterbox] | None = None

    def geometry(
        self, size: tuple[int, int], engines: Callable[[int, int], Letterbox]
    ) -> Letterbox:
        """
        Return the geometry of a frame of *size*: the engine's, or a :class:`Tiling`.

        One thread uses it.

        One thread.

        :raises AcceleratorError: the frame is too small.
        """
        if self._last is None or self._last[0] != size:
            whole, regions = plan(size, self._roi, self._tiles, self._overlap)
            box = engines(*regions[0][2:]) if regions else engines(*size)
            self._last = size, Tiling.of(box, regions, whole) if regions else box
        return self._last[1]


def crop(planes: Planes, size: tuple[int, int], region: Region) -> Planes:
    """
    Return views of a part of *planes*.

    Each plane may have fewer rows and columns than the frame's *size*.

    :raises AcceleratorError: samples of this format lie across the part's border.
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
                    f'frames of this format have no part {",".join(map(str, region))}; take '
                    'multiples of 4'
                )
            limits.append(slice(*(edge // pixels for edge in edges)))
        parts.append(plane[tuple(limits)])
    return tuple(parts)


def seen_region(box: Letterbox) -> Region:
    """Return the part of the frame that the model sees at once."""
    if isinstance(box, Tiling):
        return box.regions[0]
    return Region(0, 0, box.source_width, box.source_height)


def decode(
    head: Head, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
) -> Detections:
    """
    Decode as :meth:`Head.decode` does, also a frame that was run in tiles.

    *outputs* are those of the first tile, then of the second, and so on.
    """
    if not isinstance(box, Tiling):
        return head.decode(outputs, box, limits)
    if len(box.regions) == 1:
        return head.decode(outputs, box, limits).moved(*seen_region(box)[:2])
    each = len(outputs) // len(box.regions)
    found = []
    for index, region in enumerate(box.regions):
        part = head.decode(outputs[index * each : (index + 1) * each], box, limits)
        found.append(part.boxes + np.array((region.x, region.y) * 2, np.float32))
        found[-1] = np.concatenate(
            (found[-1], part.scores[:, None], part.classes[:, None]), axis=1
        )
    table = np.concatenate(found)
    tiles = np.repeat(np.arange(len(found)), [len(part) for part in found])
    return _merged(table, tiles, box, limits.count)


def _merged(
    table: NDArray[np.float32], tiles: NDArray[np.intp], box: Tiling, count: int
) -> Detections:
    """
    Keep one box for each object.

    Beginning with the best score, each box takes in the same object's boxes of other tiles.
    """
    order = np.argsort(-table[:, 4], kind='stable')
    rows, tiles = table[order].astype(np.float64), tiles[order]
    cut = _cut(rows[:, :4], tiles, box)
    left = np.ones(len(rows), np.bool_)
    chosen = []
    for index in range(len(rows)):
        if not left[index]:
            continue
        left[index] = False
        own, is_cut, used = rows[index, :4].copy(), cut[index], {int(tiles[index])}
        while True:
            same = left & (rows[:, 5] == rows[index, 5]) & (_ios(own, rows[:, :4]) >= _SAME)
            same &= ~np.isin(tiles, list(used))
            others = np.flatnonzero(same)
            if not len(others):
                break
            left[others] = False
            used.update(tiles[others].tolist())
            if not is_cut:
                continue  # it is whole: what else overlaps it is a part of it
            own[:2] = np.minimum(own[:2], rows[others, :2].min(axis=0))
            own[2:] = np.maximum(own[2:], rows[others, 2:4].max(axis=0))
        rows[index, :4] = own
        chosen.append(index)
        if len(chosen) == count:
            break
    rows = rows[chosen]
    return Detections(
        rows[:, :4].astype(np.float32), rows[:, 4].astype(np.float32), rows[:, 5].astype(np.intp)
    )


def _cut(boxes: NDArray[np.float64], tiles: NDArray[np.intp], box: Tiling) -> NDArray[np.bool_]:
    """Tell which boxes reach a border of their tile that is no border of the whole."""
    regions = np.array(box.regions, np.float64).reshape(-1, 4)[tiles]
    margin = regions[:, 2:] * _CUT
    low, high = regions[:, :2], regions[:, :2] + regions[:, 2:]
    whole_low = np.array(box.whole[:2])
    whole_high = whole_low + box.whole[2:]
    before = (boxes[:, :2] <= low + margin) & (low > whole_low)
    after = (boxes[:, 2:] >= high - margin) & (high < whole_high)
    result: NDArray[np.bool_] = (before | after).any(axis=1)
    return result


def _ios(one: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the intersection of a box with others, over the smaller of the two."""
    sides = np.minimum(one[2:], others[:, 2:]) - np.maximum(one[:2], others[:, :2])
    shared = np.maximum(sides, 0.0).prod(axis=1)
    areas = (others[:, 2:] - others[:, :2]).prod(axis=1)
    ios: NDArray[np.float64] = shared / np.maximum(
        np.minimum(areas, (one[2:] - one[:2]).prod()), 1e-9
    )
    return ios
