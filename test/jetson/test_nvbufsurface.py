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
NvBufSurface images against a C double of the library.

The C compiler lays out the double's structs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import ctypes
import gc
import os
from pathlib import Path
import subprocess
import threading

import cv2
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.errors import AcceleratorError, AllocationError, FormatError
from zc_perception.jetson import nvbufsurface
from zc_perception.jetson.nvbufsurface import NvBufSurfaceHeap, SurfaceImage
from zc_perception.jetson.vic import Vic
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.layout import compute_layout, ImageLayout, validate_layout
from zc_perception.pixel.modifier import INVALID

pytestmark = pytest.mark.usefixtures('no_fd_leak')

SOURCE = Path(__file__).parent.parent / 'doubles' / 'nvbufsurface.c'
RELEASES = {'current': (), 'before R35': ('-DWITHOUT_ALLOCATE',), 'R39.2': ('-DNEWER_RELEASE',)}
LAYOUT = compute_layout(NV12, 322, 46)


@pytest.fixture(scope='module')
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """
    Return the double's releases, by name.

    Each is a file of its own: a library that is loaded once stays loaded.
    """
    folder = tmp_path_factory.mktemp('nvbufsurface')
    paths = {
        release: folder / f'libnvbufsurface_{number}.so' for number, release in enumerate(RELEASES)
    }
    for release, options in RELEASES.items():
        subprocess.run(
            [
                'gcc',
                '-shared',
                '-fPIC',
                '-Wall',
                '-Werror',
                *options,
                '-o',
                paths[release],
                SOURCE,
            ],
            check=True,
        )
    return {release: str(path) for release, path in paths.items()}


def value(library: str, name: str) -> int:
    return ctypes.c_int.in_dll(ctypes.CDLL(library), name).value


@pytest.mark.parametrize('release', RELEASES)
def test_an_image_has_the_library_s_strides_and_the_asked_size(
    release: str, libraries: dict[str, str]
) -> None:
    (buffer,), layout = NvBufSurfaceHeap(libraries[release]).allocate_image(LAYOUT, BT601_LIMITED)
    assert (layout.width, layout.height, layout.fourcc, layout.modifier) == (
        322,
        46,
        NV12,
        LAYOUT.modifier,
    )
    # 256-byte pitch and 64 KiB planes are the double's.
    assert [(p.buffer, p.offset, p.stride, p.size) for p in layout.planes] == [
        (0, 0, 512, 0x10000),
        (0, 0x10000, 512, 0x10000),
    ]
    validate_layout(layout, [buffer.size])
    assert (buffer.heap, buffer.writable) == ('nvbufsurface', True)
    buffer.mapping()[layout.planes[1].offset] = 200
    buffer.close()


@pytest.mark.parametrize(
    ('colorimetry', 'number'),
    [
        (BT601_LIMITED, 6),
        (Colorimetry(Matrix.BT601, Range.FULL), 7),
        (Colorimetry(Matrix.BT709, Range.LIMITED), 33),
    ],
)
def test_colorimetry_is_part_of_the_format(
    colorimetry: Colorimetry, number: int, libraries: dict[str, str]
) -> None:
    (buffer,), _ = NvBufSurfaceHeap(libraries['current']).allocate_image(LAYOUT, colorimetry)
    assert value(libraries['current'], 'double_last_format') == number
    assert value(libraries['current'], 'double_last_tag') == 0x200, 'camera memory'
    buffer.close()


@pytest.mark.parametrize('release', RELEASES)
def test_the_surface_is_destroyed_with_its_buffer_once(
    release: str, libraries: dict[str, str]
) -> None:
    library = libraries[release]
    heap = NvBufSurfaceHeap(library)
    (buffer,), _ = heap.allocate_image(LAYOUT, BT601_LIMITED)
    assert value(library, 'double_live_surfaces') == 1
    lost = value(library, 'double_lost_descriptors')
    buffer.close()
    buffer.close()
    assert value(library, 'double_lost_descriptors') == lost, (
        'the descriptor in the surface is its own'
    )
    assert (
        value(library, 'double_live_surfaces'),
        value(library, 'double_filled_at_destroy'),
    ) == (0, 1)


def test_a_buffer_under_a_view_keeps_its_surface(libraries: dict[str, str]) -> None:
    library = libraries['current']
    (buffer,), _ = NvBufSurfaceHeap(library).allocate_image(LAYOUT, BT601_LIMITED)
    view = memoryview(buffer.mapping())
    with pytest.raises(BufferError):
        buffer.close()
    assert value(library, 'double_live_surfaces') == 1
    view.release()
    buffer.close()
    assert value(library, 'double_live_surfaces') == 0


def test_a_forgotten_buffer_gives_its_surface_back(libraries: dict[str, str]) -> None:
    buffers, _ = NvBufSurfaceHeap(libraries['current']).allocate_image(LAYOUT, BT601_LIMITED)
    del buffers
    gc.collect()
    assert value(libraries['current'], 'double_live_surfaces') == 0


def test_a_duplicate_outlives_the_surface(libraries: dict[str, str]) -> None:
    (buffer,), _ = NvBufSurfaceHeap(libraries['current']).allocate_image(LAYOUT, BT601_LIMITED)
    buffer.mapping()[0] = 77
    kept = DmaBuf.from_fd(buffer.dup())
    buffer.close()
    assert kept.mapping()[0] == 77
    kept.close()


@pytest.mark.parametrize(
    ('mode', 'words'),
    [
        ('refuse', r'could not allocate NV12 322x46 \(status -1\); use fewer slots'),
        ('block_linear', "'layout': 1"),
        ('other_format', "'format': 1"),
        ('small', 'has 4096 bytes, 131072 were announced'),
        ('outside', 'impossible layout: .*plane 1'),
        ('no_fd', "can't be duplicated: Bad file descriptor"),
        ('batch', 'batch of 0.*another struct layout'),
    ],
)
def test_what_came_back_is_checked_and_given_back(
    mode: str, words: str, libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = libraries['current']
    monkeypatch.setenv('NVBUF_DOUBLE', mode)
    with pytest.raises(AllocationError, match=words):
        NvBufSurfaceHeap(library).allocate_image(LAYOUT, BT601_LIMITED)
    gc.collect()
    assert value(library, 'double_live_surfaces') == 0


def test_other_modifiers_and_formats_are_refused(libraries: dict[str, str]) -> None:
    heap = NvBufSurfaceHeap(libraries['current'])
    tiled = ImageLayout(LAYOUT.width, LAYOUT.height, NV12, 0x0300000000000014, LAYOUT.planes)
    with pytest.raises(AllocationError, match='LINEAR'):
        heap.allocate_image(tiled, BT601_LIMITED)
    with pytest.raises(FormatError):
        heap.allocate_image(compute_layout(fourcc_code('RG16'), 64, 48), BT601_LIMITED)


def test_without_the_library_it_is_no_jetson(
    monkeypatch: pytest.MonkeyPatch, libraries: dict[str, str]
) -> None:
    monkeypatch.setattr(nvbufsurface, 'LIBRARY', 'libnvbufsurface_that_is_missing.so')
    with pytest.raises(
        AllocationError,
        match=r"heap 'nvbufsurface' needs libnvbufsurface_that_is_missing.so of JetPack",
    ):
        NvBufSurfaceHeap()
    monkeypatch.setattr(nvbufsurface, 'LIBRARY', libraries['current'])
    assert NvBufSurfaceHeap().name == 'nvbufsurface'


def test_a_library_of_something_else_is_refused() -> None:
    with pytest.raises(AllocationError, match='NvBufSurface'):
        NvBufSurfaceHeap('libc.so.6')


# The VIC against doubles of NVIDIA's libraries that really transform.


DOUBLES = Path(__file__).resolve().parents[1] / 'doubles'
RGBA = fourcc_code('AB24')
COLORIMETRIES = {
    'BT.601 limited': BT601_LIMITED,
    'BT.601 full': Colorimetry(Matrix.BT601, Range.FULL),
    'BT.709 limited': Colorimetry(Matrix.BT709, Range.LIMITED),
}


class Libraries:
    """The doubles, and what they count."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.surface, self.transform = (
            str(folder / 'libnvbufsurface.so'),
            str(folder / 'libnvbufsurftransform.so'),
        )
        for path, source in (
            (self.surface, 'nvbufsurface.c'),
            (self.transform, 'nvbufsurftransform.c'),
        ):
            flags = ['-shared', '-fPIC', '-O2', '-Wall', '-Wextra', '-Werror', *options]
            subprocess.run(['gcc', *flags, '-o', path, DOUBLES / source], check=True)

    def count(self, name: str) -> int:
        library = (
            self.transform if name in ('transforms', 'sessions', 'last_filter') else self.surface
        )
        return ctypes.c_int.in_dll(ctypes.CDLL(library), f'double_{name}').value


@pytest.fixture(scope='module')
def built(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return Libraries(tmp_path_factory.mktemp('vic'))


@pytest.fixture
def vic_libraries(built: Libraries) -> Iterator[Libraries]:
    before = [built.count(name) for name in ('live_surfaces', 'mapped_planes')]
    yield built
    gc.collect()
    assert [built.count(name) for name in ('live_surfaces', 'mapped_planes')] == before, (
        'surfaces, mapped planes'
    )


@pytest.fixture
def vic(vic_libraries: Libraries) -> Iterator[Vic]:
    vic = Vic(vic_libraries.transform, vic_libraries.surface)
    yield vic
    vic.close()


def picture(height: int, width: int, seed: int = 1) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Planes with smooth detail: scaling differs in its rounding alone."""
    random = np.random.default_rng(seed)
    luma = cv2.GaussianBlur(random.integers(16, 236, (height, width), np.uint8), (0, 0), 3)
    chroma = cv2.GaussianBlur(
        random.integers(60, 196, (height // 2, width // 2, 2), np.uint8), (0, 0), 3
    )
    return luma, chroma


def write(image: SurfaceImage, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
    """Into the buffer, as a camera would."""
    memory = np.frombuffer(image.buffers[0].memory(write=True), np.uint8)
    for plane, shape, values in zip(
        image.layout.planes, image.layout.arrays, (luma, chroma), strict=True
    ):
        np.ndarray(shape[1], np.uint8, memory, plane.offset, shape[4])[:] = values


def read(image: SurfaceImage, plane: int) -> NDArray[np.uint8]:
    _, shape, _, offset, strides = image.layout.arrays[plane]
    return np.ndarray(
        shape, np.uint8, np.frombuffer(image.buffers[0].memory(), np.uint8), offset, strides
    ).copy()


def surface(
    vic_libraries: Libraries, width: int, height: int, colorimetry: Colorimetry = BT601_LIMITED
) -> SurfaceImage:
    buffers, layout = NvBufSurfaceHeap(vic_libraries.surface).allocate_image(
        compute_layout(NV12, width, height), colorimetry
    )
    return SurfaceImage(buffers, layout, colorimetry)


def expected_rgb(
    luma: NDArray[np.uint8],
    chroma: NDArray[np.uint8],
    size: tuple[int, int],
    colorimetry: Colorimetry,
) -> NDArray[np.float64]:
    """Resized by OpenCV and converted by the recommendation's own formula."""
    small = cv2.resize(luma.astype(np.float32), size, interpolation=cv2.INTER_LINEAR).astype(
        np.float64
    )
    whole = cv2.resize(chroma.astype(np.float32), size, interpolation=cv2.INTER_LINEAR).astype(
        np.float64
    )
    red, blue = (0.2126, 0.0722) if colorimetry.matrix is Matrix.BT709 else (0.299, 0.114)
    full = colorimetry.range is Range.FULL
    y = small if full else (small - 16) * 255 / 219
    u, v = ((whole[..., i] - 128) * (1 if full else 255 / 224) for i in range(2))
    green = 1 - red - blue
    of_green = y - 2 * blue * (1 - blue) / green * u - 2 * red * (1 - red) / green * v
    rgb: NDArray[np.float64] = np.stack(
        [y + 2 * (1 - red) * v, of_green, y + 2 * (1 - blue) * u], -1
    )
    return np.clip(rgb, 0, 255)


@pytest.mark.parametrize('colorimetry', COLORIMETRIES)
@pytest.mark.parametrize(
    'size', [(160, 90), (320, 180), (400, 226)], ids=['smaller', 'as it is', 'larger']
)
def test_nv12_becomes_rgba_of_the_wanted_size(
    colorimetry: str, size: tuple[int, int], vic: Vic, vic_libraries: Libraries
) -> None:
    colours = COLORIMETRIES[colorimetry]
    source = surface(vic_libraries, 320, 180, colours)
    luma, chroma = picture(180, 320)
    write(source, luma, chroma)
    target = vic.allocate(*size, RGBA)
    vic.transform(source, target)
    with target.reading() as planes:
        assert planes[0].shape == (size[1], size[0], 4) and (planes[0][..., 3] == 255).all()
        assert np.abs(planes[0][..., :3] - expected_rgb(luma, chroma, size, colours)).max() <= 2.0
        with pytest.raises(ValueError, match='read-only'):
            planes[0][0, 0, 0] = 1
        del planes
    assert vic_libraries.count('last_filter') == 1, 'bilinear, as the CPU does it'
    target.close()
    source.buffers[0].close()


def test_the_cpu_sees_each_new_picture(vic: Vic, vic_libraries: Libraries) -> None:
    """The double's mapping is stale until it is synchronised."""
    source, target = surface(vic_libraries, 64, 64), vic.allocate(64, 64, RGBA)
    for value in (40, 120, 200):
        write(source, np.full((64, 64), value, np.uint8), np.full((32, 32, 2), 128, np.uint8))
        vic.transform(source, target)
        with target.reading() as planes:
            assert planes[0][32, 32, 0] == round((value - 16) * 255 / 219)
            del planes
    target.close()
    source.buffers[0].close()


def test_block_linear_becomes_linear_in_a_buffer_of_the_pool(
    vic: Vic, vic_libraries: Libraries
) -> None:
    """
    What a camera needs: one buffer's layout to another's.

    The double knows a layout that no linear reader understands.
    """
    linear = surface(vic_libraries, 128, 96)
    tiled_memory = SealedMemfd().allocate(linear.buffers[0].size)
    tiled = SurfaceImage(
        (tiled_memory,), ImageLayout(128, 96, NV12, INVALID, linear.layout.planes), BT601_LIMITED
    )
    luma, chroma = picture(96, 128, 9)
    flipped = SurfaceImage((tiled_memory,), linear.layout, BT601_LIMITED)
    write(flipped, luma[::-1], chroma[::-1])
    vic.transform(tiled, linear)
    assert np.array_equal(read(linear, 0), luma) and np.array_equal(read(linear, 1), chroma)
    assert vic_libraries.count('imports') >= 1, 'it was made elsewhere'
    vic.close()
    tiled_memory.close()
    linear.buffers[0].close()


def test_a_buffer_of_another_process_is_imported_with_its_layout(
    vic: Vic, vic_libraries: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('NVBUF_DOUBLE', 'stranger')
    source, target = surface(vic_libraries, 128, 64), vic.allocate(64, 32, RGBA)
    luma, chroma = picture(64, 128, 2)
    write(source, luma, chroma)
    imports = vic_libraries.count('imports')
    for _ in range(5):
        vic.transform(source, target)
    assert (vic_libraries.count('imports') - imports, len(vic._surfaces)) == (1, 1), (
        'once per buffer'
    )
    with target.reading() as planes:
        assert (
            np.abs(planes[0][..., :3] - expected_rgb(luma, chroma, (64, 32), BT601_LIMITED)).max()
            <= 2.0
        )
        del planes
    target.close()
    source.buffers[0].close()
    vic.tidy()
    assert len(vic._surfaces) == 0, 'and given back with it'


def test_a_buffer_that_ended_is_let_go(vic: Vic, vic_libraries: Libraries) -> None:
    target = vic.allocate(32, 32, RGBA)
    for _ in range(6):
        source = surface(vic_libraries, 64, 64)
        vic.transform(source, target)
        assert len(vic._surfaces) == 1
        source.buffers[0].close()
    vic.tidy()
    assert len(vic._surfaces) == 0
    target.close()


def test_the_library_gets_descriptors_of_high_numbers(
    vic: Vic, vic_libraries: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It caches by number, and low numbers are reused soon."""
    numbers = []
    cache = vic._surfaces
    original = cache._from_fd
    monkeypatch.setattr(
        cache, '_from_fd', lambda fd, pointer: numbers.append(fd.value) or original(fd, pointer)
    )
    source, target = surface(vic_libraries, 64, 64), vic.allocate(32, 32, RGBA)
    vic.transform(source, target)
    assert numbers and min(numbers) >= nvbufsurface._HIGH_NUMBERS
    assert os.fstat(numbers[0]).st_ino == source.buffers[0].identity.inode
    target.close()
    source.buffers[0].close()


def test_a_stale_answer_of_the_library_is_noticed(
    vic: Vic, vic_libraries: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, target = (
        surface(vic_libraries, 64, 64),
        surface(vic_libraries, 96, 64),
        vic.allocate(32, 32, RGBA),
    )
    monkeypatch.setenv('NVBUF_DOUBLE', 'stale')
    with pytest.raises(
        AcceleratorError,
        match=r'says of this buffer \[64, 64, .*the frame \[96, 64, .*a reused descriptor',
    ):
        vic.transform(second, target)
    assert len(vic._surfaces) == 0
    target.close()
    for image in (first, second):
        image.buffers[0].close()


@pytest.mark.parametrize(
    ('mode', 'words'),
    [
        ('-4', r'could not make AB24 32x32 of NV12 64x64 \(status -4\): a rectangle lies outside'),
        ('-3', 'not what this release expects'),
        ('-2', 'the VIC failed, see dmesg'),
        ('-1', 'cannot convert between these formats'),
        ('-77', r'\(status -77\): see dmesg'),
        ('no_vic', r'has no VIC here \(status -1\)'),
    ],
)
def test_every_error_says_what_it_means(
    mode: str, words: str, vic: Vic, vic_libraries: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('TRANSFORM_DOUBLE', mode)
    source, target = surface(vic_libraries, 64, 64), vic.allocate(32, 32, RGBA)
    with pytest.raises(AcceleratorError, match=words):
        vic.transform(source, target)
    target.close()
    source.buffers[0].close()


def test_each_thread_has_a_session_of_its_own(vic: Vic, vic_libraries: Libraries) -> None:
    source, target, errors = surface(vic_libraries, 64, 64), vic.allocate(32, 32, RGBA), []
    sessions = vic_libraries.count('sessions')

    def transform() -> None:
        try:
            vic.transform(source, target)
            vic.transform(source, target)
        except AcceleratorError as error:
            errors.append(error)

    for _ in range(2):
        thread = threading.Thread(target=transform)
        thread.start()
        thread.join()
    assert not errors and vic_libraries.count('sessions') - sessions == 2
    target.close()
    source.buffers[0].close()


@pytest.mark.parametrize(
    ('mode', 'words'),
    [
        ('refuse', 'could not allocate AB24'),
        ('no_map', 'could not map plane 0 of the image for the VIC'),
        ('block_linear', "'layout': 1"),
    ],
)
def test_an_image_that_cannot_be_had_leaves_nothing(
    mode: str, words: str, vic: Vic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('NVBUF_DOUBLE', mode)
    with pytest.raises(AllocationError, match=words):
        vic.allocate(32, 32, RGBA)


def test_memory_that_is_none_of_theirs_is_refused(
    vic: Vic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('NVBUF_DOUBLE', 'refuse_import')
    layout = compute_layout(NV12, 64, 64)
    memory, target = SealedMemfd().allocate(layout.buffer_size(0)), vic.allocate(32, 32, RGBA)
    with pytest.raises(
        AcceleratorError,
        match=r'does not know buffer \d+ \(memfd\) and refuses to import it; use heap: '
        r'nvbufsurface',
    ):
        vic.transform(SurfaceImage((memory,), layout, BT601_LIMITED), target)
    split = compute_layout(NV12, 64, 64, buffer_per_plane=True)
    halves: tuple[DmaBuf, ...] = tuple(
        SealedMemfd().allocate(split.buffer_size(i)) for i in range(2)
    )
    with pytest.raises(AcceleratorError, match='in one buffer, this one has 2'):
        vic.transform(SurfaceImage(halves, split, BT601_LIMITED), target)
    with pytest.raises(FormatError):
        vic.transform(
            SurfaceImage((memory,), compute_layout(fourcc_code('RG16'), 32, 32), BT601_LIMITED),
            target,
        )
    target.close()
    for buffer in (memory, *halves):
        buffer.close()


def test_a_release_without_import_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Libraries(tmp_path, '-DWITHOUT_IMPORT')
    vic = Vic(old.transform, old.surface)
    monkeypatch.setenv('NVBUF_DOUBLE', 'stranger')
    source, target = surface(old, 64, 64), vic.allocate(32, 32, RGBA)
    with pytest.raises(AcceleratorError, match='this release has no NvBufSurfaceImport'):
        vic.transform(source, target)
    target.close()
    source.buffers[0].close()
    vic.close()


@pytest.mark.parametrize('missing', ['transform', 'surface', 'something else'])
def test_without_the_libraries_it_is_no_jetson(missing: str, vic_libraries: Libraries) -> None:
    names: dict[str, Callable[[], Vic]] = {
        'transform': lambda: Vic('libmissing.so', vic_libraries.surface),
        'surface': lambda: Vic(vic_libraries.transform, 'libmissing.so'),
        'something else': lambda: Vic('libc.so.6', vic_libraries.surface),
    }
    with pytest.raises(AllocationError, match=r'needs (libmissing\.so|libc\.so\.6) of JetPack'):
        names[missing]()
