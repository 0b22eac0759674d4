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

"""NvBufSurface images and the VIC against doubles of NVIDIA's libraries, built from C."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, ExitStack
from copy import copy
import ctypes
import gc
import os
from pathlib import Path
import subprocess
import threading

import cv2
import numpy as np
from numpy.typing import NDArray
from pixel.format_samples import published_rgb
import pytest

from zc_perception.errors import AcceleratorError, AllocationError, FormatError
from zc_perception.jetson import nvbufsurface
from zc_perception.jetson.nvbufsurface import check_structs, NvBufSurfaceHeap, SurfaceImage
from zc_perception.jetson.vic import Vic, VicImage
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.layout import compute_layout, ImageLayout, validate_layout
from zc_perception.pixel.modifier import INVALID

pytestmark = pytest.mark.usefixtures('no_fd_leak')

DOUBLES = Path(__file__).resolve().parents[1] / 'doubles'
RELEASES = {
    'current': (),
    'old': ('-DWITHOUT_ALLOCATE', '-DWITHOUT_IMPORT'),
    'R39.2': ('-DNEWER_RELEASE',),
}
LAYOUT = compute_layout(NV12, 322, 46)
RGBA = fourcc_code('AB24')


def build(folder: Path, source: str, *options: str) -> str:
    """Build a library in a new file and return its path: a loaded file stays loaded."""
    target = str(folder / f'lib{source}{"".join(options)}.so')
    flags = ['-shared', '-fPIC', '-O2', '-Wall', '-Wextra', '-Werror', *options]
    subprocess.run(['gcc', *flags, '-o', target, DOUBLES / f'{source}.c'], check=True)
    return target


class Libraries:
    def __init__(self, folder: Path) -> None:
        self.releases = {
            name: build(folder, 'nvbufsurface', *options) for name, options in RELEASES.items()
        }
        self.surface = self.releases['current']
        self.transform = build(folder, 'nvbufsurftransform')

    def count(self, name: str, library: str = '') -> int:
        own = self.transform if name in ('sessions', 'last_filter') else self.surface
        return ctypes.c_int.in_dll(ctypes.CDLL(library or own), f'double_{name}').value


@pytest.fixture(scope='module')
def built(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return Libraries(tmp_path_factory.mktemp('nvbufsurface'))


@pytest.fixture
def libraries(built: Libraries) -> Iterator[Libraries]:
    before = [built.count(name) for name in ('live_surfaces', 'mapped_planes')]
    yield built
    gc.collect()
    assert [built.count(name) for name in ('live_surfaces', 'mapped_planes')] == before


@pytest.mark.parametrize('release', RELEASES)
def test_an_image_has_the_library_s_strides_and_its_surface_ends_once_with_its_buffer(
    release: str, libraries: Libraries
) -> None:
    library = libraries.releases[release]
    (buffer,), layout = NvBufSurfaceHeap(library).allocate_image(LAYOUT, BT601_LIMITED)
    assert (layout.width, layout.height, layout.fourcc) == (322, 46, NV12)
    assert layout.modifier == LAYOUT.modifier
    # The double's pitch is a multiple of 256 bytes, and its planes are multiples of 64 KiB.
    assert [(p.buffer, p.offset, p.stride, p.size) for p in layout.planes] == [
        (0, 0, 512, 0x10000), (0, 0x10000, 512, 0x10000),
    ]  # fmt: skip
    validate_layout(layout, [buffer.size])
    assert (buffer.heap, buffer.writable) == ('nvbufsurface', True)
    assert libraries.count('last_format', library) == 6
    if release != 'old':
        assert libraries.count('last_tag', library) == 0x200, 'camera memory'
    view = memoryview(buffer.mapping())
    with pytest.raises(BufferError):
        buffer.close()
    assert libraries.count('live_surfaces', library) == 1
    view.release()
    buffer.close()
    buffer.close()
    assert libraries.count('live_surfaces', library) == 0
    assert libraries.count('lost_descriptors', library) == 0, "a surface's descriptor is its own"
    assert libraries.count('filled_at_destroy', library) == 1


def test_other_modifiers_and_formats_are_refused(libraries: Libraries) -> None:
    heap = NvBufSurfaceHeap(libraries.surface)
    tiled = ImageLayout(LAYOUT.width, LAYOUT.height, NV12, 0x0300000000000014, LAYOUT.planes)
    with pytest.raises(AllocationError, match='LINEAR'):
        heap.allocate_image(tiled, BT601_LIMITED)
    with pytest.raises(FormatError):
        heap.allocate_image(compute_layout(fourcc_code('RG16'), 64, 48), BT601_LIMITED)


def test_without_the_libraries_it_is_no_jetson(
    monkeypatch: pytest.MonkeyPatch, libraries: Libraries
) -> None:
    monkeypatch.setattr(nvbufsurface, 'LIBRARY', 'libmissing.so')
    with pytest.raises(AllocationError, match=r"heap 'nvbufsurface' needs libmissing.so of Jet"):
        NvBufSurfaceHeap()
    monkeypatch.setattr(nvbufsurface, 'LIBRARY', libraries.surface)
    assert NvBufSurfaceHeap().name == 'nvbufsurface'
    with pytest.raises(AllocationError, match='NvBufSurface'):
        NvBufSurfaceHeap('libc.so.6')
    for names in (('libmissing.so', libraries.surface), (libraries.transform, 'libmissing.so')):
        with pytest.raises(AllocationError, match=r'needs libmissing\.so of JetPack'):
            Vic(*names)


def test_the_structs_of_both_generations_are_known(libraries: Libraries) -> None:
    for release in ('current', 'R39.2'):
        check_structs(libraries.releases[release])


@pytest.mark.parametrize(
    ('kind', 'words'),
    [
        ('MOVED_LIST', r'no list of images at byte 24 of NvBufSurface\)'),
        ('MOVED_PLANES', r'0 planes of .* at byte 48 of the list of images\)'),
    ],
)
def test_other_structs_are_refused(kind: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(
        AllocationError, match=rf'other structs than Jetson Linux R35 to R39 \({words}'
    ):
        check_structs(build(tmp_path, 'nvbufsurface', f'-D{kind}'))


# The VIC, against doubles that really transform.


@pytest.fixture
def vic(libraries: Libraries) -> Iterator[Vic]:
    with closing(Vic(libraries.transform, libraries.surface)) as vic:
        yield vic


class Images(ExitStack):
    """Makes images, and closes them at the end."""

    def __init__(self, vic: Vic, libraries: Libraries) -> None:
        super().__init__()
        self.vic, self.library = vic, libraries.surface

    def source(
        self, width: int = 64, height: int = 64, colorimetry: Colorimetry = BT601_LIMITED
    ) -> SurfaceImage:
        buffers, layout = NvBufSurfaceHeap(self.library).allocate_image(
            compute_layout(NV12, width, height), colorimetry
        )
        self.callback(buffers[0].close)
        return SurfaceImage(buffers, layout, colorimetry)

    def target(self, width: int = 32, height: int = 32) -> VicImage:
        return self.enter_context(closing(self.vic.allocate(width, height, RGBA)))


@pytest.fixture
def images(vic: Vic, libraries: Libraries) -> Iterator[Images]:
    with Images(vic, libraries) as images:
        yield images


def picture(height: int, width: int, seed: int = 1) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return planes with smooth detail, so that scaling differs only by rounding."""
    random = np.random.default_rng(seed)
    luma = cv2.GaussianBlur(random.integers(16, 236, (height, width), np.uint8), (0, 0), 3)
    chroma = cv2.GaussianBlur(
        random.integers(60, 196, (height // 2, width // 2, 2), np.uint8), (0, 0), 3
    )
    return luma, chroma


def write(image: SurfaceImage, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
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


def expected_rgb(
    luma: NDArray[np.uint8],
    chroma: NDArray[np.uint8],
    size: tuple[int, int],
    colours: Colorimetry = BT601_LIMITED,
) -> NDArray[np.float64]:
    y, u, v = (
        cv2.resize(plane.astype(np.float32), size, interpolation=cv2.INTER_LINEAR)
        for plane in (luma, chroma[..., 0], chroma[..., 1])
    )
    return published_rgb(y, u, v, colours.matrix.value, colours.range.value)


@pytest.mark.parametrize(
    ('size', 'colours'),
    [
        ((160, 90), BT601_LIMITED),
        ((320, 180), Colorimetry(Matrix.BT601, Range.FULL)),
        ((400, 226), Colorimetry(Matrix.BT709, Range.LIMITED)),
    ],
)
def test_nv12_becomes_rgba_of_the_wanted_size(
    size: tuple[int, int], colours: Colorimetry, vic: Vic, images: Images, libraries: Libraries
) -> None:
    source, target = images.source(320, 180, colours), images.target(*size)
    luma, chroma = picture(180, 320)
    write(source, luma, chroma)
    vic.transform(source, target)
    with target.reading() as planes:
        assert planes[0].shape == (size[1], size[0], 4) and (planes[0][..., 3] == 255).all()
        assert np.abs(planes[0][..., :3] - expected_rgb(luma, chroma, size, colours)).max() <= 2.0
        with pytest.raises(ValueError, match='read-only'):
            planes[0][0, 0, 0] = 1
        del planes
    assert libraries.count('last_filter') == 1, 'bilinear, as the CPU does it'


def test_the_cpu_sees_each_new_picture(vic: Vic, images: Images) -> None:
    """The double's mapping is stale until it is synchronised."""
    source, target = images.source(), images.target(64, 64)
    for value in (40, 120, 200):
        write(source, np.full((64, 64), value, np.uint8), np.full((32, 32, 2), 128, np.uint8))
        vic.transform(source, target)
        with target.reading() as planes:
            assert planes[0][32, 32, 0] == round((value - 16) * 255 / 219)
            del planes


def test_block_linear_becomes_linear_in_a_buffer_of_the_pool(
    vic: Vic, images: Images, libraries: Libraries
) -> None:
    """The double has a layout that no linear reader can read."""
    linear = images.source(128, 96)
    luma, chroma = picture(96, 128, 9)
    with closing(SealedMemfd().allocate(linear.buffers[0].size)) as memory:
        layout = ImageLayout(128, 96, NV12, INVALID, linear.layout.planes)
        flipped = SurfaceImage((memory,), linear.layout, BT601_LIMITED)
        write(flipped, luma[::-1], chroma[::-1])
        vic.transform(SurfaceImage((memory,), layout, BT601_LIMITED), linear)
        assert np.array_equal(read(linear, 0), luma) and np.array_equal(read(linear, 1), chroma)
        assert libraries.count('imports') >= 1, 'it was made elsewhere'
        vic.close()


def test_a_buffer_of_another_process_is_imported_with_its_layout(
    vic: Vic, images: Images, libraries: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('NVBUF_DOUBLE', 'stranger')
    source, target = images.source(128, 64), images.target(64, 32)
    luma, chroma = picture(64, 128, 2)
    write(source, luma, chroma)
    imports = libraries.count('imports')
    for _ in range(5):
        vic.transform(source, target)
    assert (libraries.count('imports') - imports, len(vic._surfaces)) == (1, 1), 'once per buffer'
    with target.reading() as planes:
        assert np.abs(planes[0][..., :3] - expected_rgb(luma, chroma, (64, 32))).max() <= 2.0
        del planes


def test_a_buffer_that_ended_is_let_go(vic: Vic, images: Images) -> None:
    target = images.target()
    for _ in range(6):
        source = images.source()
        vic.transform(source, target)
        assert len(vic._surfaces) == 1
        source.buffers[0].close()
    vic.tidy()
    assert len(vic._surfaces) == 0


def test_the_library_gets_descriptors_of_high_numbers(
    vic: Vic, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library caches by descriptor number, and low numbers are soon reused."""
    numbers = []
    cache = vic._surfaces
    original = cache._from_fd
    monkeypatch.setattr(
        cache, '_from_fd', lambda fd, pointer: numbers.append(fd.value) or original(fd, pointer)
    )
    source = images.source()
    vic.transform(source, images.target())
    assert numbers and min(numbers) >= nvbufsurface._HIGH_NUMBERS
    assert os.fstat(numbers[0]).st_ino == source.buffers[0].identity.inode


def test_a_stale_answer_of_the_library_is_noticed(
    vic: Vic, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    images.source()
    second, target = images.source(96, 64), images.target()
    monkeypatch.setenv('NVBUF_DOUBLE', 'stale')
    with pytest.raises(
        AcceleratorError, match=r'this buffer as \[64, 64, .*the frame has \[96, 64, .*was reused'
    ):
        vic.transform(second, target)
    assert len(vic._surfaces) == 0


@pytest.mark.parametrize(
    ('mode', 'words'),
    [
        ('-4', r'not make AB24 32x32 from NV12 64x64 \(status -4\): a rectangle lies outside'),
        ('-1', 'cannot convert between these formats'),
        ('-77', r'\(status -77\): see dmesg'),
        ('no_vic', r'finds no VIC on this machine \(status -1\)'),
    ],
)
def test_every_error_says_what_it_means(
    mode: str, words: str, vic: Vic, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('TRANSFORM_DOUBLE', mode)
    with pytest.raises(AcceleratorError, match=words):
        vic.transform(images.source(), images.target())


def test_each_thread_has_a_session_of_its_own(
    vic: Vic, images: Images, libraries: Libraries
) -> None:
    source, target, done = images.source(), images.target(), []
    sessions = libraries.count('sessions')

    def transform() -> None:
        vic.transform(source, target)
        vic.transform(source, target)
        done.append(True)

    for _ in range(2):
        thread = threading.Thread(target=transform)
        thread.start()
        thread.join()
    assert len(done) == libraries.count('sessions') - sessions == 2


ASKED: dict[str, Callable[[Vic, str], object]] = {
    'image': lambda _, library: NvBufSurfaceHeap(library).allocate_image(LAYOUT, BT601_LIMITED),
    'trial': lambda _, library: check_structs(library),
    'image of the vic': lambda vic, _: vic.allocate(32, 32, RGBA),
}


@pytest.mark.parametrize(
    ('asked', 'mode', 'words'),
    [
        ('image', 'refuse', r'not allocate NV12 322x46 \(status -1\); use fewer slots'),
        ('image', 'block_linear', "'layout': 1"),
        ('image', 'other_format', "'format': 1"),
        ('image', 'small', 'has 4096 bytes, 131072 were announced'),
        ('image', 'outside', 'impossible layout: .*plane 1'),
        ('image', 'no_fd', "can't be duplicated: Bad file descriptor"),
        ('image', 'batch', 'batch of 0.*another struct layout'),
        ('trial', 'refuse', r'not allocate a trial image of 646x358 \(status -1\)'),
        ('trial', 'block_linear', r'format and layout are \(646, 358, 7, 1\)'),
        ('trial', 'batch', 'a batch of 0'),
        ('trial', 'no_fd', 'descriptor 1048576, which is not open'),
        ('trial', 'outside', 'planes that end at'),
        ('image of the vic', 'refuse', 'could not allocate AB24'),
        ('image of the vic', 'no_map', 'could not map plane 0 of the image for the VIC'),
        ('image of the vic', 'block_linear', "'layout': 1"),
    ],
)
def test_what_came_back_is_checked_and_given_back(
    asked: str,
    mode: str,
    words: str,
    vic: Vic,
    libraries: Libraries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv('NVBUF_DOUBLE', mode)
    with pytest.raises(AllocationError, match=words):
        ASKED[asked](vic, libraries.surface)


def test_memory_that_is_none_of_theirs_is_refused(
    vic: Vic, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('NVBUF_DOUBLE', 'refuse_import')
    layout = compute_layout(NV12, 64, 64)
    split = compute_layout(NV12, 64, 64, buffer_per_plane=True)
    target, halves = images.target(), [SealedMemfd().allocate(64 * 64 * 3 // 2) for _ in range(2)]
    unknown = (
        r'does not know buffer \d+ \(memfd\) and refuses to import it; use heap: nvbufsurface'
    )
    for buffers, wrong, error, words in (
        (halves[:1], layout, AcceleratorError, unknown),
        (halves, split, AcceleratorError, 'in one buffer, but this image has 2'),
        (halves[:1], compute_layout(fourcc_code('RG16'), 32, 32), FormatError, ''),
    ):
        with pytest.raises(error, match=words):
            vic.transform(SurfaceImage(tuple(buffers), wrong, BT601_LIMITED), target)
    for buffer in halves:
        buffer.close()


def test_a_release_without_import_says_so(
    libraries: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('NVBUF_DOUBLE', 'stranger')
    libraries = copy(libraries)
    libraries.surface = libraries.releases['old']
    vic = Vic(libraries.transform, libraries.surface)
    with closing(vic), Images(vic, libraries) as images:
        source, target = images.source(), images.target()
        with pytest.raises(AcceleratorError, match='this release has no NvBufSurfaceImport'):
            vic.transform(source, target)
