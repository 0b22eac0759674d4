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
A frame on disk.

Bytes that replay gives back, a picture in the right colours, all files or none.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import errno
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from zc_perception.camera.recording import Snapshot
from zc_perception.camera.replay.camera import open_source
from zc_perception.camera.synthetic import BAR_COLOURS, ColourBars
from zc_perception.errors import FormatError
from zc_perception.frame import Frame, Header
from zc_perception.mapping import map_buffers
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.layout import compute_layout, ImageLayout

STAMP = 1_700_000_123_000_000_042
COLORIMETRIES = [
    Colorimetry(matrix, span)
    for matrix in (Matrix.BT601, Matrix.BT709, Matrix.BT2020)
    for span in Range
]


def snapshot_of(
    layout: ImageLayout,
    fill: Callable[[list[Any]], None],
    colorimetry: Colorimetry = BT601_LIMITED,
    ledger: CopyLedger | None = None,
) -> tuple[Snapshot, list[Any]]:
    """Return a snapshot of a frame of that layout, and the frame's planes."""
    heap = SealedMemfd()
    pool = BufferPool(
        layout,
        lambda: tuple(heap.allocate(layout.buffer_size(i)) for i in range(layout.num_buffers)),
        1,
        name='camera',
    )
    slot = pool.acquire()
    assert slot is not None
    with map_buffers(layout, slot.buffers, CpuAccess.READ | CpuAccess.WRITE, []) as planes:
        fill(list(planes))
        kept = [plane.copy() for plane in planes]
    frame = Frame.publish_slot(
        pool,
        slot,
        header=Header(STAMP, 'lens'),
        colorimetry=colorimetry,
        sequence=5,
        captured_ns=77,
    )
    with frame:
        snapshot = Snapshot.of(frame, ledger or CopyLedger())
    pool.close()
    heap.close()
    return snapshot, kept


def bgr_of(luma: Any, chroma: Any, colorimetry: Colorimetry) -> Any:
    """Return the picture of a snapshot of these planes."""

    def fill(planes: list[Any]) -> None:
        planes[0][:], planes[1][:] = luma, chroma

    return snapshot_of(compute_layout(NV12, luma.shape[1], luma.shape[0]), fill, colorimetry)[
        0
    ].picture()


def noise(planes: list[Any]) -> None:
    rng = np.random.default_rng(3)
    for plane in planes:
        plane[:] = rng.integers(0, 256, plane.shape)


def replayed(path: Path, layout: ImageLayout) -> list[Any]:
    """Return what camera ``replay`` makes of a file."""
    source = open_source(str(path))
    try:
        assert (source.width, source.height, source.fourcc) == (
            layout.width,
            layout.height,
            layout.fourcc,
        )
        assert source.advance() is not None
        planes = [
            np.zeros(array.shape, array.sample)
            for array in compute_layout(layout.fourcc, layout.width, layout.height).arrays
        ]
        assert source.read(planes)
        assert source.advance() is None, 'one frame'
        return planes
    finally:
        source.close()


@pytest.mark.parametrize('colorimetry', COLORIMETRIES, ids=str)
def test_nv12_comes_back_bit_by_bit_with_its_colours(
    tmp_path: Path, colorimetry: Colorimetry
) -> None:
    layout = compute_layout(NV12, 66, 34, stride_align=128)
    ledger = CopyLedger()
    snapshot, planes = snapshot_of(layout, noise, colorimetry, ledger)
    paths = snapshot.write(tmp_path / 'a' / 'b', 'front_capture')
    base = tmp_path / 'a' / 'b' / 'front_capture_1700000123_000000042'
    assert [str(path) for path in paths] == [f'{base}.mcap', f'{base}.png']
    for plane, back in zip(planes, replayed(paths[0], layout), strict=True):
        assert np.array_equal(plane, back)
    with contextlib.closing(open_source(str(paths[0]))) as source:
        assert source.colorimetry == colorimetry
    picture = cv2.imread(str(paths[1]))
    assert picture.shape == (34, 66, 3) and np.array_equal(picture, snapshot.picture())
    assert ledger.entries()['snapshot'].bytes == 66 * 34 * 3 // 2 and ledger.count('snapshot') == 1


@pytest.mark.parametrize('name', ['YUYV', 'UYVY', 'P010', 'R8  ', 'RG24', 'NV21', 'YU12', 'AR24'])
def test_other_formats_come_back_as_they_are(tmp_path: Path, name: str) -> None:
    layout = compute_layout(fourcc_code(name), 64, 32)
    snapshot, planes = snapshot_of(layout, noise)
    paths = snapshot.write(tmp_path, 'capture')
    for plane, back in zip(planes, replayed(paths[0], layout), strict=True):
        assert np.array_equal(plane, back)
    assert [path.suffix for path in paths] == ['.mcap', '.png']
    picture = snapshot.picture()
    assert picture is not None and picture.shape == (
        (32, 64) if name == 'R8  ' else (32, 64, 3)
    ), 'grey has one channel'


@pytest.mark.parametrize('colorimetry', COLORIMETRIES, ids=str)
def test_colours_are_those_of_the_scene_in_every_colorimetry(colorimetry: Colorimetry) -> None:
    bars = ColourBars(128, 64, colorimetry, amplitude=0.75)
    luma, chroma = np.empty((64, 128), np.uint8), np.empty((32, 64, 2), np.uint8)
    bars.draw(luma, chroma)
    picture = bgr_of(luma, chroma, colorimetry)
    width = 128 // len(BAR_COLOURS)
    for number, colour in enumerate(BAR_COLOURS.values()):
        red, green, blue = (round(255 * 0.75 * part) for part in colour)
        found = picture[10, number * width + width // 2].astype(int)
        assert np.abs(found - (blue, green, red)).max() <= 4, (number, found.tolist())


def test_a_format_that_nobody_here_can_read_is_kept_without_a_picture(tmp_path: Path) -> None:
    layout = compute_layout(fourcc_code('NV15'), 64, 32)
    snapshot, planes = snapshot_of(layout, noise)
    paths = snapshot.write(tmp_path, 'capture')
    assert snapshot.picture() is None and [path.suffix for path in paths] == ['.mcap']
    assert all(
        np.array_equal(plane, back)
        for plane, back in zip(planes, replayed(paths[0], layout), strict=True)
    )


def test_nothing_is_ever_overwritten(tmp_path: Path) -> None:
    layout = compute_layout(NV12, 16, 16)
    snapshot, _ = snapshot_of(layout, noise)
    taken = tmp_path / 'capture_1700000123_000000042.png'
    taken.write_text('mine')
    first, second = snapshot.write(tmp_path, 'capture'), snapshot.write(tmp_path, 'capture')
    assert (
        first[0].name == 'capture_1700000123_000000042_2.mcap'
        and second[0].name == 'capture_1700000123_000000042_3.mcap'
    )
    assert taken.read_text() == 'mine'
    assert len(list(tmp_path.iterdir())) == 5, 'what was begun under a name that is taken is gone'


def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, _ = snapshot_of(compute_layout(NV12, 16, 16), noise)
    opened: list[Path] = []
    real = Path.open

    def full(path: Path, mode: str = 'r', *args: Any, **options: Any) -> Any:
        opened.append(path)
        if path.suffix == '.png':
            raise OSError(errno.ENOSPC, 'No space left on device', str(path))
        return real(path, mode, *args, **options)

    monkeypatch.setattr(Path, 'open', full)
    with pytest.raises(OSError, match='No space left on device'):
        snapshot.write(tmp_path, 'capture')
    assert len(opened) == 2 and list(tmp_path.iterdir()) == []


def test_tiles_are_refused_in_words() -> None:
    class Tiled:
        class data:
            layout = type(
                'L', (), {'modifier': 1, 'describe': staticmethod(lambda: 'NV12 TILED 16x16')}
            )

    with pytest.raises(FormatError, match='NV12 TILED 16x16 has no rows that the CPU reads'):
        Snapshot.of(Tiled(), CopyLedger())  # type: ignore[arg-type]
