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

"""Decoded frames of PyAV as NV12. Their planes are read where the decoder left them."""

from __future__ import annotations

from collections.abc import Sequence
import re
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.replay.source import PlaneWriter
from zc_perception.camera.replay.video_facts import colorimetry, Said, Turn, UPRIGHT
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import compute_layout, PlaneArray
from zc_perception.pixel.nv12 import even

# Alpha of planar formats is a plane of its own, which is left out.
_PLANAR = {
    f'yuv{kind}4{sampling}p': name
    for sampling, name in (('20', 'YU12'), ('22', 'YU16'), ('44', 'YU24'))
    for kind in ('', 'j', 'a')
}
_RGB = {
    'bgr24': 'RG24', 'bgr0': 'XR24', 'bgra': 'AR24', '0bgr': 'RX24', 'abgr': 'RA24',
    'rgb24': 'BG24', 'rgb0': 'XB24', 'rgba': 'AB24', '0rgb': 'BX24', 'argb': 'BA24',
    'rgb565le': 'RG16', 'bgr565le': 'BG16',
}  # fmt: skip
_GREY = {'gray': 'R8  ', 'gray16le': 'R16 '}
_FOURCCS = {
    **_PLANAR, **_RGB, **_GREY,
    'nv12': 'NV12', 'nv21': 'NV21', 'nv16': 'NV16', 'nv24': 'NV24', 'nv42': 'NV42',
    'p010le': 'P010', 'p012le': 'P012', 'p016le': 'P016', 'p210le': 'P210',
    'yuyv422': 'YUYV', 'uyvy422': 'UYVY', 'yvyu422': 'YVYU',
}  # fmt: skip
"""FFmpeg's names of formats that have a DRM format."""
# Samples in the low bits of two bytes each.
_DEEP = re.compile(r'(yuva?4(?:20|22|44)p|gray)(9|10|12|14|16)le')


class _Kind(NamedTuple):
    """
    How to read frames of one format and size.

    :param form: FFmpeg's name of a format in :data:`_FOURCCS`.
    :param parts: of its planes.
    :param bits: of a sample, if it has two bytes and *form* has one; else 0.
    :param converted: whether FFmpeg has to convert frames to *form* before.
    """

    form: str
    fourcc: int
    parts: tuple[PlaneArray, ...]
    bits: int
    converted: bool


def _kind_of(frame: Any, *, upside_down: bool) -> _Kind:
    name, bits, converted = frame.format.name, 0, False
    deep = _DEEP.fullmatch(name)
    # Versions of PyAV differ in where such a plane begins.
    if upside_down or (deep is None and name not in _FOURCCS):
        name, converted = _plain(frame.format), True
    elif name not in _FOURCCS:
        assert deep is not None
        name, bits = deep[1], int(deep[2])
    fourcc = fourcc_code(_FOURCCS[name])
    layout = compute_layout(fourcc, even(frame.width), even(frame.height))
    return _Kind(name, fourcc, layout.arrays, bits, converted)


def _plain(form: Any) -> str:
    """Return another format, in :data:`_FOURCCS`, that keeps what NV12 can hold of *form*."""
    if form.is_rgb or form.has_palette or form.name.startswith('xyz'):
        best = 'bgr24'
    elif len(form.components) < 3:
        best = 'gray'
    else:
        best = 'yuvj444p' if form.name.startswith('yuvj') else 'yuv444p'
    return next(name for name in (best, 'bgr24', 'rgb24') if name != form.name)


class PictureWriter:
    """
    Writes frames of any format, upright, into NV12 planes of one size.

    Scratch memory is allocated when a kind of frame first comes. What has no DRM format (4:1:1,
    palettes, planar R, G, B …) is converted by FFmpeg before, which allocates each picture.

    :param turn: how the frames have to be turned.
    :param reformatter: PyAV's ``VideoReformatter()``.
    :raises LayoutError: a size that NV12 can't have.
    """

    def __init__(self, width: int, height: int, turn: Turn, reformatter: Any) -> None:
        self._reformatter = reformatter
        self._transposed = turn[0] == 0
        across, down = (turn[2], turn[1]) if self._transposed else (turn[0], turn[3])
        # OpenCV's numbers: 1 mirrors left and right, 0 top and bottom, -1 both.
        self._flip = {(1, 1): None, (-1, 1): 1, (1, -1): 0, (-1, -1): -1}[across, down]
        columns, rows = (height, width) if self._transposed else (width, height)
        self._writer = PlaneWriter(columns, rows)
        self._as_stored: list[NDArray[Any]] = []
        if turn != UPRIGHT:
            shapes = (rows, columns), (rows // 2, columns // 2, 2)
            self._as_stored = [np.empty(shape, np.uint8) for shape in shapes]
        self._narrow: list[NDArray[np.uint8]] = []
        self._kinds: dict[tuple[str, int, int, bool], _Kind] = {}

    def colorimetry(self, frame: Any, said: Said) -> Colorimetry:
        """
        Return what the numbers in *frame* mean.

        :raises FormatError: they have no conversion.
        """
        form = self._kind(frame).form
        return colorimetry(
            said,
            rgb=form in _RGB,
            grey=form in _GREY,
            jpeg=form.startswith('yuvj'),
            size=(frame.width, frame.height),
        )

    @staticmethod
    def written(colours: Colorimetry) -> Colorimetry:
        """Return what the numbers in the NV12 planes mean, for frames of *colours*."""
        return BT601_LIMITED if colours.matrix is Matrix.RGB else colours

    def write(self, frame: Any, colours: Colorimetry, planes: Sequence[NDArray[Any]]) -> None:
        """Write the pixels of *frame* into *planes*."""
        kind = self._kind(frame)
        if kind.converted:
            frame = self._reformatter.reformat(frame, format=kind.form)
        sources = [
            _samples(part, plane, wide=bool(kind.bits))
            for part, plane in zip(kind.parts, frame.planes, strict=False)
        ]
        if kind.bits:
            sources = self._narrowed(sources, kind.bits)
        size = even(frame.width), even(frame.height)
        stored = self._as_stored or planes
        self._writer.write_planes(kind.fourcc, size, colours, sources, stored)
        for source, plane in zip(self._as_stored, planes, strict=False):
            self._turn(source, plane)

    def _kind(self, frame: Any) -> _Kind:
        upside_down = frame.planes[0].line_size < 0
        key = frame.format.name, frame.width, frame.height, upside_down
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _kind_of(frame, upside_down=upside_down)
        return kind

    def _narrowed(self, sources: list[NDArray[Any]], bits: int) -> list[NDArray[Any]]:
        """Narrow samples to 8 bits, rounded."""
        if [plane.shape for plane in self._narrow] != [plane.shape for plane in sources]:
            self._narrow = [np.empty(plane.shape, np.uint8) for plane in sources]
        for plane, out in zip(sources, self._narrow, strict=True):
            cv2.convertScaleAbs(plane, dst=out, alpha=1 / (1 << (bits - 8)))
        return list(self._narrow)

    def _turn(self, stored: NDArray[Any], out: NDArray[Any]) -> None:
        if self._transposed:
            cv2.transpose(stored, dst=out)
            stored = out
        if self._flip is not None:
            cv2.flip(stored, self._flip, dst=out)


def _samples(part: PlaneArray, plane: Any, *, wide: bool) -> NDArray[Any]:
    """
    View a plane of PyAV as an array over its memory.

    :param wide: its samples have two bytes instead of one.
    """
    scale = 2 if wide else 1
    strides = plane.line_size, *(scale * stride for stride in part.strides[1:])
    samples: NDArray[Any] = np.ndarray(
        part.shape, np.uint16 if wide else part.sample, plane, 0, strides
    )
    return samples
