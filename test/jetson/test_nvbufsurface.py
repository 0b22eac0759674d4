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

import ctypes
import gc
from pathlib import Path
import subprocess

import pytest

from zc_perception.errors import AllocationError, FormatError
from zc_perception.jetson import nvbufsurface
from zc_perception.jetson.nvbufsurface import NvBufSurfaceHeap
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.layout import compute_layout, ImageLayout, validate_layout

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
