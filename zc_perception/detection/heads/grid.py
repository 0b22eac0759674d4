"""The grids that a network's levels predict on: their sizes, and each cell's place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.heads.spec import HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.errors import AcceleratorError, ConfigError


@dataclass(frozen=True, eq=False)
class Grids:
    """All levels' cells in one line: level by level, row by row.

    :param shapes: rows, columns of each level.
    :param starts: index of each level's first cell, and the number of all cells.
    :param corners: (2, cells) x and y of each cell in cells of its level.
    :param strides: (cells) input pixels per cell.
    """

    shapes: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]
    corners: NDArray[np.float32]
    strides: NDArray[np.float32]

    @property
    def count(self) -> int:
        """Cells of all levels."""
        return self.starts[-1]


@lru_cache(maxsize=16)
def grids_of(input_size: tuple[int, int], strides: tuple[int, ...]) -> Grids:
    """The grids of a network's input, which every stride has to divide.

    :raises ConfigError: it doesn't.
    """
    width, height = input_size
    for stride in strides:
        if width % stride or height % stride:
            raise ConfigError(f'head.strides: {stride} does not divide the input of {width}x{height} pixels')
    shapes = tuple((height // stride, width // stride) for stride in strides)
    corners = [np.mgrid[:rows, :columns][::-1].reshape(2, -1) for rows, columns in shapes]
    counts = [rows * columns for rows, columns in shapes]
    starts = tuple(sum(counts[:level]) for level in range(len(counts) + 1))
    place = np.concatenate(corners, axis=1).astype(np.float32)
    per_cell = np.repeat(np.array(strides, np.float32), counts)
    for array in (place, per_cell):
        array.flags.writeable = False
    return Grids(shapes, starts, place, per_cell)


def check_strides(spec: HeadSpec, *, has_grids: bool) -> None:
    """:param has_grids: whether the outputs are grids for certain: a decoded tensor can be of any input's size.
    :raises ConfigError: no strides, not ascending, or not dividing the input's size.
    """
    if not spec.strides or min(spec.strides) < 1 or any(a >= b for a, b in zip(spec.strides, spec.strides[1:], strict=False)):
        raise ConfigError(f'head.strides is {list(spec.strides)}: must be at least one whole number above 0, finest level first, ascending')
    if has_grids and spec.input_size != (0, 0):
        grids_of(spec.input_size, spec.strides)


def input_size(spec: HeadSpec, box: Letterbox) -> tuple[int, int]:
    """The size that the head's numbers refer to.

    :raises AcceleratorError: frames are letterboxed to another.
    """
    size = (box.input_width, box.input_height)
    if spec.input_size not in ((0, 0), size):
        said = f'{spec.input_size[0]}x{spec.input_size[1]}'
        raise AcceleratorError(f'head {spec.kind}: head.input_size is {said}, but frames are letterboxed to {size[0]}x{size[1]}')
    return size


def grids_for(spec: HeadSpec, box: Letterbox) -> Grids:
    """The grids for frames of this geometry.

    :raises AcceleratorError: there are none.
    """
    try:
        return grids_of(input_size(spec, box), spec.strides)
    except ConfigError as error:
        raise AcceleratorError(f'head {spec.kind}: {error}') from error
