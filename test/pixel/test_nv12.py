"""Nv12Writer against the textbook's BT.601, computed here with nothing of OpenCV's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from zc_perception.pixel.nv12 import Nv12Writer

UNTOUCHED = 0xAB


def limited_bt601(rgb: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Luma and (U, V) of every pixel, from Kr = 0.299, Kb = 0.114 and limited range."""
    red, green, blue = np.moveaxis(rgb.astype(np.float64) / 255.0, 2, 0)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    u, v = (blue - luma) / (2 * (1 - 0.114)), (red - luma) / (2 * (1 - 0.299))
    return 16 + 219 * luma, np.stack([128 + 224 * u, 128 + 224 * v], axis=2)


def strided_planes(width: int, height: int, padding: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Memory of both planes with *padding* bytes behind each row."""
    return np.full((height, width + padding), UNTOUCHED, np.uint8), np.full((height // 2, width + padding), UNTOUCHED, np.uint8)


@pytest.mark.parametrize('rgb_order', [True, False])
@pytest.mark.parametrize(('width', 'height', 'padding'), [(64, 48, 0), (50, 34, 14), (2, 2, 1)])
def test_samples_are_bt601_limited(width: int, height: int, padding: int, rgb_order: bool) -> None:
    # Blocks of 2x2 equal pixels, so that the result doesn't depend on where between pixels chroma is sited.
    blocks = np.random.default_rng(width).integers(0, 256, (height // 2, width // 2, 3), np.uint8)
    rgb = blocks.repeat(2, axis=0).repeat(2, axis=1)
    luma_memory, chroma_memory = strided_planes(width, height, padding)
    luma, chroma = luma_memory[:, :width], chroma_memory[:, :width].reshape(height // 2, width // 2, 2)
    if padding:
        chroma = np.ndarray(chroma.shape, np.uint8, chroma_memory, strides=(width + padding, 2, 1))

    Nv12Writer(width, height).write(rgb if rgb_order else rgb[..., ::-1].copy(), luma, chroma, rgb=rgb_order)

    wanted_luma, wanted_chroma = limited_bt601(rgb)
    assert np.abs(luma - wanted_luma).max() <= 2
    assert np.abs(chroma - wanted_chroma[::2, ::2]).max() <= 2
    assert (luma_memory[:, width:] == UNTOUCHED).all() and (chroma_memory[:, width:] == UNTOUCHED).all()


def test_a_writer_keeps_nothing_of_the_picture_before() -> None:
    writer, random = Nv12Writer(32, 16), np.random.default_rng(0)
    first, second = (random.integers(0, 256, (16, 32, 3), np.uint8) for _ in range(2))
    results = []
    for writers in ((writer, writer), (Nv12Writer(32, 16),)):
        luma, chroma = np.zeros((16, 32), np.uint8), np.zeros((8, 16, 2), np.uint8)
        for one, picture in zip(writers, (first, second)[-len(writers) :], strict=True):
            one.write(picture, luma, chroma)
        results.append((luma, chroma))
    assert np.array_equal(results[0][0], results[1][0]) and np.array_equal(results[0][1], results[1][1])


def test_a_picture_cut_out_of_a_larger_one_is_accepted() -> None:
    large = np.random.default_rng(1).integers(0, 256, (20, 40, 3), np.uint8)
    results = []
    for picture in (large[:16, :32], large[:16, :32].copy()):
        luma, chroma = np.zeros((16, 32), np.uint8), np.zeros((8, 16, 2), np.uint8)
        Nv12Writer(32, 16).write(picture, luma, chroma)
        results.append(luma.tobytes() + chroma.tobytes())
    assert results[0] == results[1]
