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
The format table against the kernel's headers, GStreamer's and sensor_msgs'.

Codes, memory order, subsampling, names.
"""

from __future__ import annotations

from collections.abc import Callable
import os
from pathlib import Path
import re
import sys

from environment.c_header import CHeader
import pytest

from zc_perception.pixel.format_names import (
    _GSTREAMER_TILED,
    _ROS_OLD_NAMES,
    _V4L2_REFUSED,
    _V4L2_TILED,
    parse_drm_format,
)
from zc_perception.pixel.fourcc import FORMATS, fourcc_code, PixelFormat

# The macros' names after DRM_FORMAT_, written from the header.
DRM_MACROS = {
    'NV12': 'NV12', 'NV21': 'NV21', 'NV16': 'NV16', 'NV61': 'NV61', 'NV24': 'NV24', 'NV42': 'NV42',
    'NV15': 'NV15', 'P010': 'P010',
    'P012': 'P012', 'P016': 'P016', 'P210': 'P210', 'YUYV': 'YUYV', 'YVYU': 'YVYU', 'UYVY': 'UYVY',
    'VYUY': 'VYUY', 'YU12': 'YUV420',
    'YV12': 'YVU420', 'YU16': 'YUV422', 'YV16': 'YVU422', 'YU24': 'YUV444', 'YV24': 'YVU444',
    'R8  ': 'R8', 'R16 ': 'R16',
    'RG24': 'RGB888', 'BG24': 'BGR888', 'XR24': 'XRGB8888', 'AR24': 'ARGB8888', 'XB24': 'XBGR8888',
    'AB24': 'ABGR8888',
    'RX24': 'RGBX8888', 'RA24': 'RGBA8888', 'BX24': 'BGRX8888', 'BA24': 'BGRA8888',
    'RG16': 'RGB565', 'BG16': 'BGR565',
}  # fmt: skip
# V4L2's macros for the same bytes in memory: all planes in one buffer, and a buffer for each
# plane.
V4L2_MACROS = {
    'NV12': ('NV12', 'NV12M'), 'NV21': ('NV21', 'NV21M'), 'NV16': ('NV16', 'NV16M'),
    'NV61': ('NV61', 'NV61M'), 'NV24': ('NV24', None),
    'NV42': ('NV42', None), 'NV15': (None, None), 'P010': ('P010', None),
    'P012': ('P012', 'P012M'), 'P016': (None, None),
    'P210': (None, None), 'YUYV': ('YUYV', None), 'YVYU': ('YVYU', None), 'UYVY': ('UYVY', None),
    'VYUY': ('VYUY', None),
    'YU12': ('YUV420', 'YUV420M'), 'YV12': ('YVU420', 'YVU420M'), 'YU16': ('YUV422P', 'YUV422M'),
    'YV16': (None, 'YVU422M'),
    'YU24': (None, 'YUV444M'), 'YV24': (None, 'YVU444M'), 'R8  ': ('GREY', None),
    'R16 ': ('Y16', None), 'RG24': ('BGR24', None),
    'BG24': ('RGB24', None), 'XR24': ('XBGR32', None), 'AR24': ('ABGR32', None),
    'XB24': ('RGBX32', None), 'AB24': ('RGBA32', None),
    'RX24': ('BGRX32', None), 'RA24': ('BGRA32', None), 'BX24': ('XRGB32', None),
    'BA24': ('ARGB32', None), 'RG16': ('RGB565', None),
    'BG16': (None, None),
}  # fmt: skip
V4L2_TILED_MACROS = {
    'VT12': 'NV12_4L4',
    'VT15': 'NV15_4L4',
    'ST12': 'NV12_32L32',
    'TM12': 'NV12MT',
    'MM21': 'MM21',
    'Q08C': 'QC08C',
}
# In videodev2.h of Linux 6.12, and not yet in that of some distributions.
YOUNG_IN_V4L2 = {
    'P012': 'P012',
    'P012M': 'PM12',
    'NV15_4L4': 'VT15',
    'NV12_8L128': 'AT12',
    'MT2110T': 'MT2T',
    'MT2110R': 'MT2R',
}
# In GStreamer since 1.24, likewise.
YOUNG_IN_GSTREAMER = {'NV12_10LE40_4L4'}
LETTERS = {'Cr': 'V', 'Cb': 'U', 'x': 'X'}
IMAGE_ENCODINGS = Path(sys.prefix, 'include/sensor_msgs/sensor_msgs/image_encodings.hpp')

every_format = pytest.mark.parametrize(
    'entry', FORMATS.values(), ids=lambda entry: entry.name.strip()
)


def macro_of(entry: PixelFormat) -> str:
    return f'DRM_FORMAT_{DRM_MACROS[entry.name]}'


def memory_order(most_significant_first: str) -> tuple[str, ...]:
    """
    Return the letters of a header's ``Cr0:Y1:Cb0:Y0`` from the least significant one.

    The padding of one sample isn't a channel.
    """
    names = [re.sub(r'\d+$', '', name) for name in most_significant_first.split(':')]
    return tuple(LETTERS.get(name, name) for name in reversed(names))


@every_format
def test_codes_are_those_of_the_drm_header(entry: PixelFormat, drm: CHeader) -> None:
    assert entry.code == drm.value(macro_of(entry))


def test_every_fourcc_of_the_drm_header_can_be_written_in_caps(drm: CHeader) -> None:
    named = [
        (name, m)
        for name, m in drm.macros.items()
        if name.startswith('DRM_FORMAT_') and m.body[:1] == ('fourcc_code',)
    ]
    assert len(named) > 80
    for name, macro in named:
        text = ''.join(token[1] for token in macro.body if token.startswith("'"))
        tiled = f'{text}:0x0100000000000002'
        assert parse_drm_format(tiled) == (drm.value(name), 0x0100000000000002), name


@every_format
def test_the_order_in_memory_is_the_drm_headers(entry: PixelFormat, drm: CHeader) -> None:
    comment = drm.macros[macro_of(entry)].comment
    if packed := re.match(r'\[(\d+):0\] ([\w:]+)', comment):
        (plane,) = entry.planes
        assert plane.element_bytes * 8 == int(packed[1]) + 1
        assert plane.components == memory_order(packed[2])
    elif chroma := re.match(r'(?:(\d)x(\d)|non-)\s*subsampled C([rb]):C[rb] plane', comment):
        order = {'r': ('U', 'V'), 'b': ('V', 'U')}[chroma[3]]
        assert entry.planes[1].components in (order, 2 * order)
    else:
        order_of_planes = re.search(r'subsampled C(\w) \(1\) and C(\w) \(2\) planes', comment)
        assert order_of_planes is not None, comment
        assert entry.components == (
            ('Y',),
            *((LETTERS[f'C{letter}'],) for letter in order_of_planes.groups()),
        )


@every_format
def test_the_subsampling_is_the_drm_headers(entry: PixelFormat, drm: CHeader) -> None:
    comment = drm.macros[macro_of(entry)].comment
    if 'subsampled' not in comment:
        assert len(entry.planes) == 1
        assert entry.horizontal == (2 if 'Cr0' in comment else 1)  # one chroma pair for Y0 and Y1
        return
    match = re.match(r'(\d)x(\d) subsampled', comment)
    horizontal, vertical = (int(match[1]), int(match[2])) if match else (1, 1)
    luma, chroma = entry.planes[0], entry.planes[1]
    # Pixels for one chroma sample, which is a pair in one plane and one of two planes' in three.
    samples = len(chroma.components) // (2 if len(entry.planes) == 2 else 1)
    assert (chroma.horizontal / samples, chroma.vertical) == (horizontal, vertical)
    assert luma.horizontal == len(luma.components) and luma.vertical == 1
    assert all(
        plane == entry.planes[1] or plane.components != chroma.components
        for plane in entry.planes[2:]
    )


@every_format
def test_planes_and_their_bits_are_the_drm_headers(entry: PixelFormat, drm: CHeader) -> None:
    if 'subsampled' not in drm.macros[macro_of(entry)].comment:
        assert len(entry.planes) == 1
        return
    block = drm.preceding_comment(macro_of(entry), 'index 0')
    described = {
        int(index): int(bits) + 1
        for index, bits in re.findall(r'index (\d)\s*[=:].*?\[(\d+):0\]', block)
    }
    assert [plane.element_bytes * 8 for plane in entry.planes] == [
        described[i] for i in range(len(described))
    ]
    if significant := re.search(r'index 0 = Y plane, \[15:0\] Y:x \[(\d+):\d\]', block):
        assert entry.bits == int(significant[1])


def v4l2_code(header: CHeader, macro: str) -> int:
    name = f'V4L2_PIX_FMT_{macro}'
    if name not in header:
        assert macro in YOUNG_IN_V4L2, f'{name} is not in videodev2.h'
        return fourcc_code(YOUNG_IN_V4L2[macro])
    return header.value(name)


@every_format
def test_v4l2_names_are_those_of_the_kernel_header(entry: PixelFormat, v4l2: CHeader) -> None:
    for name, macro in zip(
        (entry.v4l2, entry.v4l2_multiplanar), V4L2_MACROS[entry.name], strict=True
    ):
        assert (None if name is None else fourcc_code(name)) == (
            None if macro is None else v4l2_code(v4l2, macro)
        )


@every_format
def test_v4l2_has_no_name_for_what_we_leave_without_one(entry: PixelFormat, v4l2: CHeader) -> None:
    # V4L2 often takes DRM's own fourcc for the same thing; then we must not have missed it.
    # Elsewhere it is Bayer.
    bayer = {'RG16': 'SRGGB16'}
    named = {
        v4l2.value(name)
        for name, m in v4l2.macros.items()
        if name.startswith('V4L2_PIX_FMT_') and m.body[:1] == ('v4l2_fourcc',)
    }
    assert len(named) > 100
    if entry.v4l2 != entry.name and entry.code in named:
        assert v4l2.value(f'V4L2_PIX_FMT_{bayer[entry.name]}') == entry.code


@pytest.mark.parametrize(
    'name',
    [
        f.name
        for f in FORMATS.values()
        if f.bits == 8 and f.components[0][-1] in 'RGBAX' and len(f.components[0]) > 1
    ],
)
def test_v4l2_and_drm_agree_on_the_bytes_of_rgb(name: str, v4l2: CHeader) -> None:
    entry = FORMATS[fourcc_code(name)]
    macro = v4l2.macros[f'V4L2_PIX_FMT_{V4L2_MACROS[name][0]}']
    # V4L2's comments name the bytes in memory, DRM's the bits from the top.
    letters = re.match(r'\d+\s+([A-Z]+)-8-8-8', macro.comment)
    assert letters is not None and tuple(letters[1]) == entry.components[0]


def test_v4l2_tiled_names_are_those_of_the_kernel_header(v4l2: CHeader) -> None:
    assert set(V4L2_TILED_MACROS) == set(_V4L2_TILED)
    for name, macro in V4L2_TILED_MACROS.items():
        assert fourcc_code(name) == v4l2_code(v4l2, macro)
    # The kernel's older name for the same tiles.
    assert v4l2.value('V4L2_PIX_FMT_SUNXI_TILED_NV12') == fourcc_code('ST12')


def test_every_v4l2_name_that_is_refused_is_one_of_v4l2s(v4l2: CHeader) -> None:
    known = {
        v4l2.value(name)
        for name, m in v4l2.macros.items()
        if name.startswith('V4L2_PIX_FMT_') and m.body[:1] == ('v4l2_fourcc',)
    }
    strange = {name for name in _V4L2_REFUSED if fourcc_code(name) not in known}
    assert strange <= set(YOUNG_IN_V4L2.values())


def test_gstreamer_names_are_those_of_its_header(header: Callable[[str], CHeader]) -> None:
    text = header('video-format.h').text
    enum = set(re.findall(r'^\s+GST_VIDEO_FORMAT_(\w+)[,\s]', text, re.MULTILINE))
    assert len(enum) > 100
    ours = {f.gstreamer for f in FORMATS.values() if f.gstreamer} | set(_GSTREAMER_TILED.values())
    assert ours - enum <= YOUNG_IN_GSTREAMER


def test_ros_encodings_are_those_of_sensor_msgs() -> None:
    if not IMAGE_ENCODINGS.is_file():
        assert os.environ.get('ZC_RIG') != 'required', f'{IMAGE_ENCODINGS} is missing'
        pytest.skip(f'{IMAGE_ENCODINGS} is not there: this is no environment of `make env`')
    encodings = set(
        re.findall(r'const char \w+\[\] = "(\w+)"', IMAGE_ENCODINGS.read_text(encoding='utf-8'))
    )
    ours = {f.ros for f in FORMATS.values() if f.ros} | set(_ROS_OLD_NAMES)
    assert ours - encodings == {'nv12'}, 'nv12 is the one that this package adds'
