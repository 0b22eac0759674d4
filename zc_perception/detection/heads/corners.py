"""Corners that a model gives itself: their order and their unit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.heads.grid import input_size
from zc_perception.detection.heads.spec import BOX_ORDERS, COORDINATES, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.errors import ConfigError

_TURNED = [1, 0, 3, 2]


def check_corners(spec: HeadSpec) -> None:
    """:raises ConfigError: an order or a unit that doesn't exist."""
    if spec.box_order not in BOX_ORDERS:
        raise ConfigError(f"head.box_order is '{spec.box_order}': must be one of {', '.join(BOX_ORDERS)}")
    if spec.coordinates not in COORDINATES:
        raise ConfigError(f"head.coordinates is '{spec.coordinates}': must be one of {', '.join(filter(None, COORDINATES))}")


def x_first(spec: HeadSpec, four: NDArray[np.float32]) -> NDArray[np.float32]:
    """(4, n) with x before y."""
    return four[_TURNED] if spec.box_order == 'yxyx' else four


class CornerUnit:
    """:param usual: the unit where the spec names none."""

    def __init__(self, spec: HeadSpec, usual: str) -> None:
        self._spec = spec
        self._unit = spec.coordinates or usual

    def corners(self, corners: NDArray[np.float32], box: Letterbox) -> tuple[NDArray[np.float32], Letterbox]:
        """(4, n) x0, y0, x1, y1 in pixels, and the geometry that leads from them to the source.

        :param corners: (4, n) as the model gives them.
        """
        corners = x_first(self._spec, corners)
        if self._unit == 'source':
            width, height = box.source_width, box.source_height
            return corners, Letterbox(width, height, width, height, width, height, 0, 0)
        size = input_size(self._spec, box)
        if self._unit == 'relative':
            corners = corners * np.array([size * 2], np.float32).T
        return corners, box
