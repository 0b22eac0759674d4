"""The synthetic camera: an animated road-like scene with known truth, or a test pattern, drawn straight into NV12 slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.camera import DrawnCamera
from zc_perception.camera.pattern import PATTERNS, ColourBars, TimeCode, draw_counter
from zc_perception.camera.scene import RoadScene, check_size
from zc_perception.frame import Header
from zc_perception.parameters import ParameterSpec


class SyntheticCamera(DrawnCamera):
    """Draws :class:`RoadScene`, where frame *n* of a seed is always the same picture, or a pattern of :mod:`pattern`.

    :param seed: which scene; the counter shows its lowest 8 bits.
    :param palette: colours of the objects, see :class:`RoadScene`.
    :param pattern: one of :data:`PATTERNS`.
    :raises ValueError: the scene or pattern can't have that size.
    """

    PARAMETERS = (
        ParameterSpec('seed', 0, 'number of the scene. The same number gives the same scene.', '', 0, 2**31 - 1),
        ParameterSpec('palette', 'all', 'which colours the objects have.', choices=('all', 'train', 'held_out')),
        ParameterSpec('pattern', 'road', 'the road scene, colour bars, or a frame counter with a time code in the pixels.',
                      choices=PATTERNS),
    )  # fmt: skip

    def __init__(
        self,
        width: int,
        height: int,
        framerate: float,
        frame_id: str,
        *,
        seed: int,
        palette: str = 'all',
        pattern: str = 'road',
        **base: Any,
    ) -> None:
        check_size(width, height)
        super().__init__(width, height, framerate, frame_id, **base)
        self._seed = seed
        self._pattern = pattern
        self._stamp_ns = 0
        self._scene: RoadScene | None = None
        self._bars: ColourBars | None = None
        if pattern == 'road':
            self._scene = RoadScene(width, height, seed, palette)
        elif pattern == 'bars':
            self._bars = ColourBars(width, height, self.colorimetry)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], **base: Any) -> DrawnCamera:
        drawn = {spec.name: parameters[spec.name] for spec in cls.PARAMETERS}
        return super().from_parameters(parameters, **drawn, **base)

    @property
    def device(self) -> str:
        return (
            f'synthetic {"scene" if self._pattern == "road" else self._pattern}, seed {self._seed}'
        )

    def _header(self) -> Header:
        header = super()._header()
        self._stamp_ns = header.stamp_ns
        return header

    def render(self, sequence: int, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> bool:
        if self._scene is not None:
            self._scene.draw(sequence, luma, chroma)
        elif self._bars is not None:
            self._bars.draw(luma, chroma)
        else:
            draw_counter(TimeCode(self._seed, sequence, self._stamp_ns), luma, chroma)
        return True
