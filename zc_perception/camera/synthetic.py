"""The synthetic camera: an animated road-like scene with known truth, drawn straight into NV12 slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.camera import DrawnCamera
from zc_perception.camera.scene import RoadScene, SceneObject

DEFAULT_SIZE = (640, 360)
DEFAULT_FRAMERATE = 30.0


class SyntheticCamera(DrawnCamera):
    """Draws :class:`RoadScene`; frame *n* of a seed is always the same picture.

    :param seed: which scene.
    :param palette: colours of the objects, see :class:`RoadScene`.
    :raises ValueError: the scene can't have that size.
    """

    def __init__(self, width: int, height: int, framerate: float, frame_id: str, *, seed: int, palette: str = 'all', **base: Any) -> None:
        super().__init__(width, height, framerate, frame_id, **base)
        self._seed = seed
        self._scene = RoadScene(width, height, seed, palette)

    @property
    def device(self) -> str:
        """See :class:`Camera`."""
        return f'synthetic scene, seed {self._seed}'

    def render(self, sequence: int, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> bool:
        """See :class:`DrawnCamera`."""
        self._scene.draw(sequence, luma, chroma)
        return True

    def truth(self, sequence: int) -> tuple[SceneObject, ...]:
        """What is in frame *sequence*. Not thread-safe beside a running capture: make a :class:`RoadScene` of your own."""
        return self._scene.truth(sequence)
