"""``zc_bench decode``: NV12 to a quantised input tensor, by three ways; how far the quicker two are from the exact one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.bench.worker import BenchError
from zc_perception.camera.scene import RoadScene
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.tensor import PlanesToQuantised, QuantisedTensorSpec
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.conversion import ToPicture
from zc_perception.pixel.fourcc import NV12

SIDE = 640
# As a YOLOv8n compiled for the Metis takes it: RGB and a fourth channel, padded.
SPEC = QuantisedTensorSpec(SIDE, SIDE, channels=3, scale=0.0039213, zero_point=-130, padding=((1, 1), (1, 15), (0, 1)))
# Of 255 grey levels, on the drawn road with its sensor noise. At an odd ratio (1080p) they are equal but for rounding.
MOST_OFF_MEAN = 1.0

Figures = Mapping[str, Mapping[str, float]]
Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def _pictures(width: int, height: int) -> dict[str, Planes]:
    road = np.empty((height, width), np.uint8), np.empty((height // 2, width // 2, 2), np.uint8)
    RoadScene(width, height, 1).draw(5, *road)
    random = np.random.default_rng(1)
    noise = tuple(random.integers(16, 236, plane.shape, np.uint8) for plane in road)
    return {'road': road, 'noise': (noise[0], noise[1])}


class _Ways:
    """All ways into tensors of their own, with memory that is allocated once."""

    def __init__(self, width: int, height: int) -> None:
        self.box = Letterbox.fit(width, height, SIDE, SIDE)
        inner = self.box.height, self.box.width
        self._ours = PlanesToQuantised(self.box, SPEC, NV12, BT601_LIMITED)
        self._rgb = ToPicture(NV12, width, height, BT601_LIMITED, size=inner[::-1])
        self._tensor = np.empty(SPEC.shape, np.int8)
        self._ours.prepare(self._tensor)
        self._luma, self._chroma = np.empty(inner, np.uint8), np.empty((inner[0] // 2, inner[1] // 2, 2), np.uint8)
        self._full, self._small = np.empty((height, width, 3), np.uint8), np.empty((*inner, 3), np.uint8)
        self._rgba = np.empty((*inner, 4), np.uint8)

    def ours(self, planes: Planes) -> None:
        self._ours.convert(planes, self._tensor)

    def ours_rgb(self, planes: Planes) -> NDArray[np.uint8]:
        return self._rgb.convert(planes)

    def half_chroma_rgb(self, planes: Planes) -> NDArray[np.uint8]:
        """Both planes resized as they are, so that the small picture is 4:2:0 too."""
        width, height = self.box.width, self.box.height
        cv2.resize(planes[0], (width, height), dst=self._luma)
        cv2.resize(planes[1], (width // 2, height // 2), dst=self._chroma)
        cv2.cvtColorTwoPlane(self._luma, self._chroma, cv2.COLOR_YUV2RGB_NV12, dst=self._small)
        return self._small

    def exact_rgb(self, planes: Planes) -> NDArray[np.uint8]:
        """The full frame's colours, then resized."""
        cv2.cvtColorTwoPlane(*planes, cv2.COLOR_YUV2RGB_NV12, dst=self._full)
        cv2.resize(self._full, (self.box.width, self.box.height), dst=self._small)
        return self._small

    def quantised(self, rgb: NDArray[np.uint8]) -> None:
        cv2.cvtColor(rgb, cv2.COLOR_RGB2RGBA, dst=self._rgba)
        self._ours.convert_rgba(self._rgba, self._tensor)


def tensor_case(width: int, height: int) -> tuple[dict[str, Callable[[], object]], Callable[[], Figures]]:
    """Variants, and what tells how far their pictures are from the exact one."""
    ways, pictures = _Ways(width, height), _pictures(width, height)
    road = pictures['road']
    colours = {'ours': ways.ours_rgb, 'half_chroma': ways.half_chroma_rgb}
    variants: dict[str, Callable[[], object]] = {
        'ours': lambda: ways.ours(road),
        'half_chroma': lambda: ways.quantised(ways.half_chroma_rgb(road)),
        'exact': lambda: ways.quantised(ways.exact_rgb(road)),
        'ours_rgb': lambda: ways.ours_rgb(road),
        'half_chroma_rgb': lambda: ways.half_chroma_rgb(road),
        'exact_rgb': lambda: ways.exact_rgb(road),
    }

    def check() -> Figures:
        figures: dict[str, dict[str, float]] = {}
        for kind, planes in pictures.items():
            exact = ways.exact_rgb(planes).astype(np.int16)
            for name, convert in colours.items():
                off = np.abs(convert(planes) - exact)
                told = {f'{kind}_mean_off_levels': float(off.mean()), f'{kind}_max_off_levels': float(off.max())}
                figures.setdefault(name, {}).update(told)
        if figures['ours']['road_mean_off_levels'] > MOST_OFF_MEAN:
            raise BenchError(f'the tensor of {width}x{height} is {figures["ours"]["road_mean_off_levels"]:.2f} levels off the exact one')
        return figures

    return variants, check
