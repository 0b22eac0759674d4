"""Nv12Writer against the textbook's BT.601, computed here with nothing of OpenCV's."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from zc_perception.errors import LayoutError
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout
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


@pytest.mark.parametrize('rgb_order', [True, False])
def test_alpha_is_ignored(rgb_order: bool) -> None:
    random = np.random.default_rng(2)
    picture = random.integers(0, 256, (16, 32, 3), np.uint8)
    # The extremes, too: whole transparency blackens nothing.
    alphas = [random.integers(0, 256, (16, 32, 1), np.uint8), *(np.full((16, 32, 1), alpha, np.uint8) for alpha in (0, 255))]
    results = set()
    for given in (picture, *(np.concatenate([picture, alpha], axis=2) for alpha in alphas)):
        luma, chroma = np.zeros((16, 32), np.uint8), np.zeros((8, 16, 2), np.uint8)
        Nv12Writer(32, 16).write(given, luma, chroma, rgb=rgb_order)
        results.add(luma.tobytes() + chroma.tobytes())
    assert len(results) == 1


def test_a_picture_cut_out_of_a_larger_one_is_accepted() -> None:
    large = np.random.default_rng(1).integers(0, 256, (20, 40, 3), np.uint8)
    results = []
    for picture in (large[:16, :32], large[:16, :32].copy()):
        luma, chroma = np.zeros((16, 32), np.uint8), np.zeros((8, 16, 2), np.uint8)
        Nv12Writer(32, 16).write(picture, luma, chroma)
        results.append(luma.tobytes() + chroma.tobytes())
    assert results[0] == results[1]


def test_planes_of_a_padded_layout_in_one_buffer_are_written_in_place() -> None:
    layout = compute_layout(NV12, 50, 34, stride_align=64, offset_align=256, height_align=16)
    memory = np.full(layout.buffer_size(0), UNTOUCHED, np.uint8)
    luma, chroma = (
        np.ndarray(shape, np.uint8, memory, plane.offset, (plane.stride, *rest))
        for plane, shape, rest in zip(layout.planes, ((34, 50), (17, 25, 2)), ((1,), (2, 1)), strict=True)
    )
    picture = np.full((34, 50, 3), 255, np.uint8)
    Nv12Writer(50, 34).write(picture, luma, chroma)
    assert (luma == 235).all() and (chroma == 128).all()
    significant = sum(plane.nbytes for plane in (luma, chroma))
    assert int((memory == UNTOUCHED).sum()) == memory.size - significant, 'padding stays as it was'


@pytest.mark.parametrize(('width', 'height'), [(63, 48), (64, 47), (0, 48), (64, -2), (65536, 48), (64.0, 48)])
def test_sizes_that_nv12_can_t_have_are_refused(width: Any, height: Any) -> None:
    with pytest.raises(LayoutError, match=r'^(width|height) '):
        Nv12Writer(width, height)


GOOD: dict[str, NDArray[Any]] = {
    'picture': np.zeros((16, 32, 3), np.uint8),
    'luma': np.full((16, 32), UNTOUCHED, np.uint8),
    'chroma': np.full((8, 16, 2), UNTOUCHED, np.uint8),
}


@pytest.mark.parametrize(
    ('name', 'array', 'message'),
    [
        ('picture', np.zeros((18, 32, 3), np.uint8), 'picture is uint8 (18, 32, 3); this writer needs uint8 (16, 32, 3)'),
        ('picture', np.zeros((16, 32), np.uint8), 'picture is uint8 (16, 32); this writer needs uint8 (16, 32, 3)'),
        ('picture', np.zeros((16, 34, 4), np.uint8), 'picture is uint8 (16, 34, 4); this writer needs uint8 (16, 32, 4)'),
        ('picture', np.zeros((16, 32, 5), np.uint8), 'picture is uint8 (16, 32, 5); this writer needs uint8 (16, 32, 3)'),
        ('picture', np.zeros((16, 32, 3), np.float32), 'picture is float32 (16, 32, 3); this writer needs uint8 (16, 32, 3)'),
        ('luma', np.zeros((16, 30), np.uint8), 'luma is uint8 (16, 30); this writer needs uint8 (16, 32)'),
        ('chroma', np.zeros((16, 16, 2), np.uint8), 'chroma is uint8 (16, 16, 2); this writer needs uint8 (8, 16, 2)'),
        ('chroma', np.zeros((8, 32), np.uint8), 'chroma is uint8 (8, 32); this writer needs uint8 (8, 16, 2)'),
        ('luma', np.frombuffer(bytes(512), np.uint8).reshape(16, 32), 'luma is read-only; map the frame with write=True'),
        ('chroma', np.frombuffer(bytes(256), np.uint8).reshape(8, 16, 2), 'chroma is read-only; map the frame with write=True'),
    ],
)
def test_arrays_that_opencv_would_silently_replace_are_refused(name: str, array: NDArray[Any], message: str) -> None:
    arrays = {**GOOD, name: array}
    with pytest.raises(LayoutError, match=f'^{re.escape(message)}$'):
        Nv12Writer(32, 16).write(arrays['picture'], arrays['luma'], arrays['chroma'])
    assert (GOOD['luma'] == UNTOUCHED).all() and (GOOD['chroma'] == UNTOUCHED).all(), 'nothing was written before'


def test_a_read_only_picture_is_as_good_as_any() -> None:
    picture = np.frombuffer(bytes(16 * 32 * 3), np.uint8).reshape(16, 32, 3)
    luma, chroma = GOOD['luma'].copy(), GOOD['chroma'].copy()
    Nv12Writer(32, 16).write(picture, luma, chroma)
    assert (luma == 16).all() and (chroma == 128).all()
