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

"""Formats, modifiers and colorimetry: against the distribution's headers, and by other names."""

from __future__ import annotations

from collections.abc import Callable
import ctypes
import itertools
import os
from pathlib import Path
import re
import subprocess
import sys

from doubles.c_layout import c_values
from environment.errors import SetupError
from environment.fixtures import headers
from hypothesis import given
from hypothesis import strategies as st
import pytest

from zc_perception.errors import FormatError
from zc_perception.link.unixfd import VIDEO_FORMATS
from zc_perception.pixel import format_names
from zc_perception.pixel.colorimetry import (
    BT601_LIMITED,
    Colorimetry,
    from_gstreamer_colorimetry,
    from_v4l2_colorimetry,
    gstreamer_colorimetry,
    Matrix,
    named_colorimetry,
    Range,
    RGB_FULL,
    Transfer,
    V4l2Colorimetry,
)
from zc_perception.pixel.format_names import drm_format_string, from_v4l2, parse_drm_format
from zc_perception.pixel.fourcc import (
    format_by_name,
    FORMATS,
    fourcc_code,
    NV12,
    pixel_format,
    PixelFormat,
)
from zc_perception.pixel.layout import compute_layout, ImageLayout
from zc_perception.pixel.modifier import (
    INVALID,
    KnownModifier,
    LINEAR,
    modifier_name,
    plane_count,
    same_layout,
    Vendor,
)

every_format = pytest.mark.parametrize(
    'entry', FORMATS.values(), ids=lambda entry: entry.name.strip()
)
VIVANTE_TILED = 0x0600000000000001
SAMSUNG_64_32 = 0x0400000000000001


@pytest.fixture(scope='session')
def header() -> Callable[[str], str]:
    """Return a header reader; without headers tests skip, or fail with ``ZC_RIG=required``."""
    try:
        paths: dict[str, Path] = headers()
    except SetupError as error:
        if os.environ.get('ZC_RIG') == 'required':
            pytest.fail(f'headers are required: {error}')
        pytest.skip(f'headers can be fetched only on Debian and Ubuntu: {error}')
    return lambda name: paths[name].read_text(encoding='utf-8').replace('\\\n', ' ')


@pytest.fixture(scope='session')
def drm(header: Callable[[str], str]) -> str:
    return header('drm_fourcc.h').replace('#include "drm.h"', '#include <linux/types.h>')


@pytest.fixture(scope='session')
def v4l2(header: Callable[[str], str]) -> str:
    return header('videodev2.h')


@pytest.fixture
def values(tmp_path: Path) -> Callable[..., dict[str, int]]:
    """Return a function that compiles C expressions after a header's text."""

    def made(text: str, *expressions: str) -> dict[str, int]:
        (tmp_path / 'header.h').write_text(text, encoding='utf-8')
        return c_values(expressions, [str(tmp_path / 'header.h')], tmp_path)

    return made


NAMED = r'is not known.*; known are NV12, .*R8, .*; and the names of ROS: nv12, .*rgb8'


def code(name: str) -> int:
    return format_by_name(name).code


@pytest.mark.parametrize(
    ('translate', 'name', 'why'),
    [
        (fourcc_code, 'NV1', 'four ASCII characters'),
        (fourcc_code, 'NÜ12', 'four ASCII characters'),
        (pixel_format, 0x5A5A5A5A, r"'ZZZZ' \(0x5a5a5a5a\) is not known; known are NV12, "),
        (format_by_name, 'YUYW', "'YUYW' is not known; did you mean 'YUYV'"),
        (from_v4l2, 'HM12', "'HM12' can't be used: no DRM modifier describes its tiles"),
        (from_v4l2, 'MJPG', 'compressed stream'),
        (from_v4l2, 'RG16', 'raw Bayer'),
        (from_v4l2, 'RGB4', "depends on the driver; use 'BX24'"),
        (from_v4l2, 'BG24', "V4L2 format 'BG24' is not known; DRM's 'BG24' is V4L2's 'RGB3'"),
        (from_v4l2, 'YUYW', "is not known; did you mean 'YUYV'"),
        (format_names.from_gstreamer, 'DMA_DRM', 'does not name a pixel format'),
        (format_names.from_gstreamer, 'I42O', "DRM fourcc in this package; did you mean 'I420'"),
        (
            format_names.from_ros_encoding,
            'bayer_rggb8',
            "encoding 'bayer_rggb8' has no DRM fourcc",
        ),
        (format_names.from_ros_encoding, '', "image encoding '' has no DRM fourcc"),
        (format_names.from_nvbufsurface, 0, 'colour format 0 has no DRM fourcc'),
        (format_names.from_nvbufsurface, 1000, 'colour format 1000 has no DRM fourcc'),
        (
            parse_drm_format,
            'NV12:0x0000000000000000',
            "a LINEAR modifier must be left out; write 'NV12'",
        ),
        (parse_drm_format, 'NV12:0x00ffffffffffffff', 'INVALID'),
        # A misprint in the document.
        (
            parse_drm_format,
            'NV12:0x0x0100000000000001',
            "the modifier must be '0x' and 16 hexadecimal digits",
        ),
        # The document's second example uses GStreamer's names.
        (parse_drm_format, 'I420', "'I420' is GStreamer's name; the DRM fourcc is 'YU12'"),
        (parse_drm_format, 'P010_10LE', "the DRM fourcc is 'P010'"),
        (parse_drm_format, 'R8', "write 'R8  ' with its trailing blanks"),
        (parse_drm_format, 'nv12', "'nv12' is no DRM fourcc.*did you mean 'NV12'"),
        (parse_drm_format, '    ', 'is no DRM fourcc'),
        (parse_drm_format, 'ÑV12', 'is no DRM fourcc'),
        (parse_drm_format, 'NV12:', "the modifier must be '0x' and 16"),
        (parse_drm_format, 'NV12:0X0100000000000001', 'must be'),
        (parse_drm_format, 'NV12:0x010000000000000g', 'must be'),
        (parse_drm_format, 'NV12:0x01000000000_0001', 'must be'),
        (parse_drm_format, 'NV12:0x010000000000000\u0661', 'must be'),
        (parse_drm_format, 'NV12:0x00100000000000001', 'must be'),
        (parse_drm_format, 'NV12\n', 'is no DRM fourcc'),
        (drm_format_string, (NV12, INVALID), 'ask the allocator for the real modifier first'),
        (drm_format_string, (NV12, 1 << 64), 'outside'),
        (drm_format_string, (NV12 | 1 << 31, LINEAR), 'has no drm-format string'),
        (drm_format_string, (-1, LINEAR), 'has no drm-format string'),
        (drm_format_string, (fourcc_code('I420'), LINEAR), "the DRM fourcc is 'YU12'"),
        (format_names.ros_encoding, code('P010'), 'has no ROS image encoding; convert it'),
        (
            format_names.nvbufsurface_format,
            (code('NV21'), Colorimetry(Matrix.BT709, Range.LIMITED)),
            "for 'NV21' bt709 limited: known are bt601 limited, bt601 full",
        ),
        (format_names.nvbufsurface_format, (code('NV16'), BT601_LIMITED), 'have such a format'),
        (format_names.named_format, 'nv13', NAMED),
        (format_names.named_format, '', NAMED),
        (format_names.named_format, (None,), NAMED),
    ],
)
def test_names_that_are_refused_say_why(
    translate: Callable[..., object], name: object, why: str
) -> None:
    with pytest.raises(FormatError, match=why):
        translate(*name if isinstance(name, tuple) else (name,))


@pytest.mark.parametrize(
    ('v4l2', 'gstreamer', 'fourcc', 'modifier', 'multiplanar'),
    [
        ('VT12', 'NV12_4L4', 'NV12', VIVANTE_TILED, False),
        ('VT15', 'NV12_10LE40_4L4', 'NV15', VIVANTE_TILED, False),
        ('ST12', 'NV12_32L32', 'NV12', 0x0900000000000001, False),
        ('TM12', 'NV12_64Z32', 'NV12', SAMSUNG_64_32, True),
        ('MM21', 'NV12_16L32S', 'NV12', 0x0B00000000000001, True),
        ('Q08C', 'DMA_DRM', 'NV12', 0x0500000000000001, False),
    ],
)
def test_well_known_tilings_have_names_of_their_own(
    v4l2: str, gstreamer: str, fourcc: str, modifier: int, multiplanar: bool
) -> None:
    assert from_v4l2(v4l2) == format_names.V4l2Format(fourcc_code(fourcc), modifier, multiplanar)
    assert format_names.gstreamer_format(fourcc_code(fourcc), modifier) == gstreamer
    assert format_names.gstreamer_format(code('AR24'), modifier) == 'DMA_DRM'
    assert gstreamer == 'DMA_DRM' or format_names.from_gstreamer(gstreamer) == (
        fourcc_code(fourcc),
        modifier,
    )


@given(st.one_of(st.text(max_size=6), st.integers(0, (1 << 32) - 1)))
def test_any_v4l2_name_is_a_format_or_refused(name: str | int) -> None:
    try:
        found = from_v4l2(name)
    except FormatError:
        return
    assert found.fourcc in FORMATS


@every_format
def test_gstreamer_names_go_both_ways(entry: PixelFormat) -> None:
    if entry.gstreamer is None:
        with pytest.raises(
            FormatError, match='has no GStreamer format; GStreamer can get images of this format'
        ):
            format_names.gstreamer_format(entry.code, LINEAR)
    else:
        assert format_names.from_gstreamer(format_names.gstreamer_format(entry.code, LINEAR)) == (
            entry.code,
            LINEAR,
        )
        if entry.bits == 8 and 'G' in entry.components[0]:
            assert entry.gstreamer.upper() == ''.join(entry.components[0]), (
                'as the bytes lie in memory'
            )


@pytest.mark.parametrize(('old', 'fourcc'), [('yuv422', 'UYVY'), ('yuv422_yuy2', 'YUYV')])
def test_humble_s_names_are_understood_and_not_written(old: str, fourcc: str) -> None:
    assert format_names.from_ros_encoding(old) == code(fourcc)
    assert format_names.ros_encoding(code(fourcc)) == fourcc.lower()


# NvBufSurface; the numbers are those of NVIDIA's documented enumeration.


@pytest.mark.parametrize(('value', 'fourcc', 'matrix', 'span'), [
    (6, 'NV12', Matrix.BT601, Range.LIMITED), (34, 'NV12', Matrix.BT709, Range.FULL),
    (36, 'NV12', Matrix.BT2020, Range.LIMITED), (8, 'NV21', Matrix.BT601, Range.LIMITED),
    (5, 'YV12', Matrix.BT601, Range.FULL), (10, 'UYVY', Matrix.BT601, Range.LIMITED),
    (14, 'YUYV', Matrix.BT601, Range.LIMITED), (29, 'P010', Matrix.BT601, Range.LIMITED),
])  # fmt: skip
def test_nvbufsurface_formats_carry_matrix_and_range(
    value: int, fourcc: str, matrix: Matrix, span: Range
) -> None:
    assert format_names.from_nvbufsurface(value) == (code(fourcc), Colorimetry(matrix, span))


def test_every_nvbufsurface_format_goes_both_ways() -> None:
    pairs = {
        value: format_names.from_nvbufsurface(value) for value in format_names.NvBufSurfaceFormat
    }
    assert len(set(pairs.values())) == len(pairs)
    assert all(format_names.nvbufsurface_format(*pair) == value for value, pair in pairs.items())
    # The transfer function isn't part of the format.
    assert (
        format_names.nvbufsurface_format(
            NV12, Colorimetry(Matrix.BT709, Range.LIMITED, Transfer.SRGB)
        )
        == 33
    )


@pytest.mark.parametrize(
    ('name', 'fourcc'),
    [('NV12', 'NV12'), ('R8', 'R8  '), ('rgb8', 'BG24'), ('yuv422_yuy2', 'YUYV')],
)
def test_a_person_s_name_is_a_fourcc_s_or_ros_s(name: str, fourcc: str) -> None:
    assert format_names.named_format(name).name == fourcc


DRM_FORMAT = re.compile(
    r"^#define DRM_FORMAT_\w+\s+fourcc_code\('(.)', '(.)', '(.)', '(.)'\)(?:\s*/\*(.*)\*/)?", re.M
)
# V4L2's macros for the same bytes in memory: all planes in one buffer, or a buffer for each plane.
V4L2_MACROS = {
    'NV12': ('NV12', 'NV12M'), 'NV21': ('NV21', 'NV21M'), 'NV16': ('NV16', 'NV16M'),
    'NV61': ('NV61', 'NV61M'), 'NV24': ('NV24', None), 'NV42': ('NV42', None),
    'NV15': (None, None), 'P010': ('P010', None), 'P012': ('P012', 'P012M'), 'P016': (None, None),
    'P210': (None, None), 'YUYV': ('YUYV', None), 'YVYU': ('YVYU', None), 'UYVY': ('UYVY', None),
    'VYUY': ('VYUY', None), 'YU12': ('YUV420', 'YUV420M'), 'YV12': ('YVU420', 'YVU420M'),
    'YU16': ('YUV422P', 'YUV422M'), 'YV16': (None, 'YVU422M'), 'YU24': (None, 'YUV444M'),
    'YV24': (None, 'YVU444M'), 'R8  ': ('GREY', None), 'R16 ': ('Y16', None),
    'RG24': ('BGR24', None), 'BG24': ('RGB24', None), 'XR24': ('XBGR32', None),
    'AR24': ('ABGR32', None), 'XB24': ('RGBX32', None), 'AB24': ('RGBA32', None),
    'RX24': ('BGRX32', None), 'RA24': ('BGRA32', None), 'BX24': ('XRGB32', None),
    'BA24': ('ARGB32', None), 'RG16': ('RGB565', None), 'BG16': (None, None),
}  # fmt: skip
V4L2_TILED_MACROS = {
    'VT12': 'NV12_4L4', 'VT15': 'NV15_4L4', 'ST12': 'NV12_32L32', 'TM12': 'NV12MT', 'MM21': 'MM21',
    'Q08C': 'QC08C',
}  # fmt: skip
# In videodev2.h of Linux 6.12, but not yet in that of some distributions.
YOUNG_IN_V4L2 = {
    'P012': 'P012', 'P012M': 'PM12', 'NV15_4L4': 'VT15', 'NV12_8L128': 'AT12', 'MT2110T': 'MT2T',
    'MT2110R': 'MT2R',
}  # fmt: skip
# In GStreamer since 1.24, so not in some distributions.
YOUNG_IN_GSTREAMER = {'NV12_10LE40_4L4'}
LETTERS = {'Cr': 'V', 'Cb': 'U', 'x': 'X'}
IMAGE_ENCODINGS = Path(sys.prefix, 'include/sensor_msgs/sensor_msgs/image_encodings.hpp')


def memory_order(most_significant_first: str) -> tuple[str, ...]:
    """Return the letters of ``Cr0:Y1:Cb0:Y0`` from the least significant, without lone padding."""
    names = [re.sub(r'\d+$', '', name) for name in most_significant_first.split(':')]
    return tuple(LETTERS.get(name, name) for name in reversed(names))


@pytest.fixture(scope='session')
def described(drm: str) -> dict[str, tuple[str, str]]:
    """Return by fourcc the header's comments after its definition and before its group."""
    found = {}
    for match in DRM_FORMAT.finditer(drm):
        comments = re.findall(r'/\*.*?\*/', drm[: match.start()], re.DOTALL)
        planes = [comment for comment in comments if 'index 0' in comment]
        found[''.join(match.groups()[:4])] = (match[5] or '').strip(), (planes or [''])[-1]
    assert len(found) > 80
    return found


def test_every_fourcc_of_the_drm_header_can_be_written_in_caps(
    drm: str, described: dict[str, object], values: Callable[..., dict[str, int]]
) -> None:
    calls = {name: 'fourcc_code({!r}, {!r}, {!r}, {!r})'.format(*name) for name in described}
    numbers = values(drm, *calls.values())
    for name, call in calls.items():
        pair, text = (numbers[call], 1 << 56 | 0xAF), f'{name}:0x01000000000000af'
        assert parse_drm_format(text) == parse_drm_format(text[:-2] + 'AF') == pair, name
        assert drm_format_string(*pair) == text
    assert FORMATS.keys() <= set(numbers.values())


@every_format
def test_planes_are_those_that_the_drm_header_describes(
    entry: PixelFormat, described: dict[str, tuple[str, str]]
) -> None:
    comment, block = described[entry.name]
    if 'subsampled' not in comment:
        packed = re.match(r'\[(\d+):0\] ([\w:]+)', comment)
        (plane,) = entry.planes
        assert packed and plane.element_bytes * 8 == int(packed[1]) + 1
        assert plane.components == memory_order(packed[2])
        assert entry.horizontal == (2 if 'Cr0' in comment else 1)  # one chroma pair for Y0 and Y1
        return
    luma, chroma = entry.planes[0], entry.planes[1]
    if pair := re.search(r'subsampled C([rb]):C[rb] plane', comment):
        order = {'r': ('U', 'V'), 'b': ('V', 'U')}[pair[1]]
        assert chroma.components in (order, 2 * order)
    else:
        planes = re.search(r'subsampled C(\w) \(1\) and C(\w) \(2\) planes', comment)
        assert planes is not None, comment
        letters = [(LETTERS[f'C{letter}'],) for letter in planes.groups()]
        assert entry.components == (('Y',), *letters)
    ratio = re.match(r'(\d)x(\d) subsampled', comment)
    horizontal, vertical = map(int, ratio.groups()) if ratio else (1, 1)
    # Pixels for one chroma sample. With two planes one plane holds the pair; with three planes
    # each holds one component.
    samples = len(chroma.components) // (2 if len(entry.planes) == 2 else 1)
    assert (chroma.horizontal / samples, chroma.vertical) == (horizontal, vertical)
    assert luma.horizontal == len(luma.components) and luma.vertical == 1
    bits = {int(i): int(n) + 1 for i, n in re.findall(r'index (\d)\s*[=:].*?\[(\d+):0\]', block)}
    assert [plane.element_bytes * 8 for plane in entry.planes] == [
        bits[i] for i in range(len(bits))
    ]
    if significant := re.search(r'index 0 = Y plane, \[15:0\] Y:x \[(\d+):\d\]', block):
        assert entry.bits == int(significant[1])


def v4l2_name(header: str, macro: str | None) -> str | None:
    if macro is None:
        return None
    found = re.search(rf'V4L2_PIX_FMT_{macro}\s+v4l2_fourcc\((.*?)\)', header)
    return YOUNG_IN_V4L2[macro] if found is None else ''.join(re.findall("'(.)'", found[1]))


@every_format
def test_v4l2_names_are_those_of_the_kernel_header(entry: PixelFormat, v4l2: str) -> None:
    names = tuple(v4l2_name(v4l2, macro) for macro in V4L2_MACROS[entry.name])
    assert (entry.v4l2, entry.v4l2_multiplanar) == names


def test_v4l2_tiled_names_are_those_of_the_kernel_header(v4l2: str) -> None:
    names = {name: v4l2_name(v4l2, macro) for name, macro in V4L2_TILED_MACROS.items()}
    assert names == {name: name for name in format_names._V4L2_TILED}


def test_names_and_numbers_of_formats_are_those_of_gstreamer_s_header(
    header: Callable[[str], str],
) -> None:
    text = header('video-format.h')
    body = text[slice(text.index('typedef enum {'), text.index('} GstVideoFormat;'))]
    names = re.findall(r'^  GST_VIDEO_FORMAT_(\w+)', body, re.MULTILINE)
    numbers = {name: number for number, name in enumerate(names)}
    assert numbers['UNKNOWN'] == 0 and numbers['NV12'] == 23 and len(names) > 100
    known = {f.gstreamer for f in FORMATS.values() if f.gstreamer}
    assert (
        known | set(format_names._GSTREAMER_TILED.values())
    ) - numbers.keys() <= YOUNG_IN_GSTREAMER
    assert set(VIDEO_FORMATS) == known
    for name, number in VIDEO_FORMATS.items():
        assert numbers.get(name, number) == number, name


def test_ros_encodings_are_those_of_sensor_msgs() -> None:
    if not IMAGE_ENCODINGS.is_file():
        assert os.environ.get('ZC_RIG') != 'required', f'{IMAGE_ENCODINGS} is missing'
        pytest.skip(f'{IMAGE_ENCODINGS} is not there: this is no environment of `make env`')
    encodings = set(
        re.findall(r'const char \w+\[\] = "(\w+)"', IMAGE_ENCODINGS.read_text(encoding='utf-8'))
    )
    ours = {f.ros for f in FORMATS.values() if f.ros} | set(format_names._ROS_OLD_NAMES)
    assert ours - encodings == {'nv12'}, 'nv12 is the one that this package adds'


# GStreamer's names of four capitals and digits that are no DRM fourcc.
GSTREAMER_ONLY = {'I420', 'Y42B', 'Y444', 'YUY2', 'BGRA', 'RGBA', 'ABGR', 'ARGB'}
names = st.from_regex(r'\A[A-Z0-9]{1,4}\Z').map(lambda name: f'{name:<4}')
fourccs = st.one_of(
    st.sampled_from(sorted(FORMATS)),
    st.sampled_from(sorted(GSTREAMER_ONLY)).map(fourcc_code),
    names.map(fourcc_code),
)
modifiers = st.integers(1, (1 << 64) - 1).filter(lambda modifier: modifier != INVALID)


@given(fourccs, st.one_of(st.just(LINEAR), modifiers))
def test_what_is_written_is_read_again(fourcc: int, modifier: int) -> None:
    name = fourcc.to_bytes(4, 'little').decode()
    if name in GSTREAMER_ONLY:
        with pytest.raises(FormatError):
            drm_format_string(fourcc, modifier)
    else:
        assert parse_drm_format(drm_format_string(fourcc, modifier)) == (fourcc, modifier)


@given(fourccs.filter(lambda fourcc: fourcc.to_bytes(4, 'little').decode() not in GSTREAMER_ONLY))
def test_an_implicit_layout_is_written_outside_of_caps_only(fourcc: int) -> None:
    text = drm_format_string(fourcc, INVALID, implicit=True)
    assert text == f'{fourcc.to_bytes(4, "little").decode()}:INVALID'
    assert parse_drm_format(text, implicit=True) == (fourcc, INVALID)
    with pytest.raises(FormatError, match='16 hexadecimal digits'):
        parse_drm_format(text)
    with pytest.raises(FormatError, match=r"write '.{4}:INVALID'"):
        parse_drm_format(f'{text[:4]}:0x00ffffffffffffff', implicit=True)


@given(
    st.one_of(
        st.text(max_size=30),
        st.text(st.sampled_from('019afF_ gx:'), max_size=17).map('NV12:0x'.__add__),
        st.text(st.sampled_from('NVY12 8R:'), max_size=6),
    )
)
def test_any_text_is_a_format_in_its_one_spelling_or_refused(text: str) -> None:
    try:
        pair = parse_drm_format(text)
    except FormatError:
        return
    head, colon, digits = text.partition(':')
    assert drm_format_string(*pair) == head + colon + digits.lower()


# The caps for GStreamer that describe a picture.


def layout(name: str, modifier: int = LINEAR, **options: int | bool) -> ImageLayout:
    made = compute_layout(fourcc_code(name), 640, 360, **options)  # type: ignore[arg-type]
    return ImageLayout(made.width, made.height, made.fourcc, modifier, made.planes)


@pytest.mark.parametrize(
    'colours',
    [Colorimetry(m, r, t) for m in Matrix for r in Range for t in Transfer if m is not Matrix.RGB],
)
def test_colorimetry_comes_back(colours: Colorimetry) -> None:
    assert from_gstreamer_colorimetry(gstreamer_colorimetry(colours)) == colours
    assert from_gstreamer_colorimetry(gstreamer_colorimetry(RGB_FULL), RGB_FULL) == RGB_FULL


def test_caps_say_the_format_s_name_or_its_drm_format() -> None:
    plain = format_names.frame_caps(layout('NV12'), BT601_LIMITED, 29.97, dmabuf=False)
    assert plain == (
        'video/x-raw, format=(string)NV12, width=(int)640, height=(int)360, '
        'framerate=(fraction)2997/100, colorimetry=(string)2:4:5:4'
    )
    drm = 'video/x-raw(memory:DMABuf), format=(string)DMA_DRM, drm-format=(string)'
    assert format_names.frame_caps(
        layout('NV12'), BT601_LIMITED, dmabuf=True, drm=True
    ).startswith(f'{drm}NV12, width')
    tiled = layout('NV12', int(KnownModifier.QCOM_COMPRESSED))
    assert format_names.frame_caps(tiled, BT601_LIMITED, dmabuf=True).startswith(f'{drm}NV12:0x')
    nameless = layout('NV42')
    assert format_names.frame_caps(nameless, BT601_LIMITED, dmabuf=True).startswith(f'{drm}NV42,')
    for impossible, dmabuf in ((nameless, False), (tiled, False), (layout('NV12', INVALID), True)):
        with pytest.raises(FormatError):
            format_names.frame_caps(impossible, BT601_LIMITED, dmabuf=dmabuf)


def test_planes_count_from_the_first_of_several_memories() -> None:
    apart = layout('NV12', buffer_per_plane=True)
    assert format_names.buffer_planes(apart) == (
        (640 * 360, 640 * 180),
        (0, 640 * 360),
        (640, 640),
    )
    assert format_names.is_default(apart)
    assert not format_names.is_default(layout('NV12', stride_align=256))
    assert not format_names.is_default(layout('NV12', height_align=16, offset_align=4096))
    assert format_names.from_gstreamer('NV12') == (fourcc_code('NV12'), LINEAR)


# Modifiers: their names, their planes, and the numbers of ``drm_fourcc.h``.

NVIDIA_BLOCK = 3 << 56 | 0x10
# The headers of some distributions lack these; the numbers are from Linux 6.15.
YOUNG = {
    'DRM_FORMAT_MOD_VENDOR_MTK': 0x0B, 'DRM_FORMAT_MOD_VENDOR_APPLE': 0x0C,
    'DRM_FORMAT_MOD_MTK_16L_32S_TILE': 0x0B00000000000001,
}  # fmt: skip
BLOCKS = st.builds(
    lambda compression, sector, generation, kind, height: (
        3 << 56 | 0x10 | height | kind << 12 | generation << 20 | sector << 22 | compression << 23
    ),
    st.integers(0, 7),
    st.integers(0, 1),
    st.integers(0, 3),
    st.sampled_from([0, 0xFE, 0x06, 0xDB]),
    st.integers(0, 5),
)


def test_two_numbers_of_one_nvidia_layout_are_those_that_the_header_makes_one(
    drm: str, tmp_path: Path
) -> None:
    """The header's own function decides, compiled as C."""
    body = re.search(
        r'static __inline__ __u64\s*(drm_fourcc_canonicalize_nvidia_format_mod.*?\n})', drm, re.S
    )
    assert body
    source, library = tmp_path / 'canonical.c', tmp_path / 'canonical.so'
    source.write_text(f'typedef unsigned long long __u64;\n__u64 {body[1]}\n', encoding='utf-8')
    subprocess.run(['gcc', '-shared', '-fPIC', '-o', library, source], check=True)
    canonical = ctypes.CDLL(str(library)).drm_fourcc_canonicalize_nvidia_format_mod
    canonical.argtypes, canonical.restype = [ctypes.c_uint64], ctypes.c_uint64

    @given(BLOCKS | st.integers(3 << 56, (3 << 56) + (1 << 27)))
    def check(modifier: int) -> None:
        own, *others = same_layout(modifier)
        assert own == modifier
        assert {canonical(number) for number in (own, *others)} == {canonical(modifier)}
        if canonical(modifier) != modifier:
            assert others == [canonical(modifier)]
        for other in others:
            assert same_layout(other) == (other, modifier)

    check()


@pytest.mark.parametrize('modifier', [LINEAR, INVALID, 1 << 56 | 0x10, 5 << 56 | 0x10])
def test_layouts_of_other_vendors_have_one_number(modifier: int) -> None:
    assert same_layout(modifier) == (modifier,)


@pytest.mark.parametrize(
    ('modifier', 'name'),
    [
        (LINEAR, 'LINEAR'), (INVALID, 'INVALID'), (0x0100000000000001, 'INTEL:X_TILED'),
        (NVIDIA_BLOCK, 'NVIDIA:0x00000000000010'),
        (0x7F << 56 | 5, 'vendor 0x7f:0x00000000000005'), (5, 'NONE:0x00000000000005'),
    ],
)  # fmt: skip
def test_short_names(modifier: int, name: str) -> None:
    assert modifier_name(modifier) == name


@pytest.mark.parametrize('modifier', [LINEAR, *KnownModifier, NVIDIA_BLOCK])
@pytest.mark.parametrize(('name', 'planes'), [('AR24', 1), ('NV12', 2), ('YU12', 3)])
def test_tiling_adds_no_planes(name: str, planes: int, modifier: int) -> None:
    assert plane_count(fourcc_code(name), modifier) == planes


@pytest.mark.parametrize(
    'modifier', [INVALID, 0x7F << 56 | 1, 1 << 56 | 4, 5, 2 << 56 | 0x3B02, 6 << 56 | 1 << 48 | 1]
)
def test_where_nobody_says_it_the_number_of_planes_is_open(modifier: int) -> None:
    """Either the vendor is unknown, or its modifiers can add planes for compression."""
    assert plane_count(NV12, modifier) is None


def macro(known: KnownModifier) -> str:
    vendor, _, rest = known.name.partition('_')
    return f'I915_FORMAT_MOD_{rest}' if vendor == 'INTEL' else f'DRM_FORMAT_MOD_{known.name}'


OURS = {
    'DRM_FORMAT_MOD_LINEAR': LINEAR,
    'DRM_FORMAT_MOD_NONE': LINEAR,
    'DRM_FORMAT_MOD_INVALID': INVALID,
    **{f'DRM_FORMAT_MOD_VENDOR_{vendor.name}': int(vendor) for vendor in Vendor},
    **{macro(known): int(known) for known in KnownModifier},
}


def test_numbers_are_those_of_the_header(drm: str, values: Callable[..., dict[str, int]]) -> None:
    there = {name for name in OURS if re.search(rf'^#define\s+{name}\b', drm, re.MULTILINE)}
    assert {**YOUNG, **values(drm, *there)} == OURS


def test_no_vendor_of_the_header_is_missing(drm: str) -> None:
    names = set(re.findall(r'^#define\s+DRM_FORMAT_MOD_VENDOR_(\w+)', drm, re.MULTILINE))
    assert len(names) > 10 and names <= set(Vendor.__members__)


def test_parameters_of_vendors_whose_layouts_have_no_planes_of_their_own(
    drm: str, values: Callable[..., dict[str, int]]
) -> None:
    parameters = (
        'NVIDIA_BLOCK_LINEAR_2D(0, 1, 2, 0x06, 4)',
        'ARM_AFBC(AFBC_FORMAT_MOD_BLOCK_SIZE_16x16 | AFBC_FORMAT_MOD_SPARSE)',
        'AMLOGIC_FBC(AMLOGIC_FBC_LAYOUT_BASIC, AMLOGIC_FBC_OPTION_MEM_SAVING)',
    )
    for name, modifier in values(drm, *(f'DRM_FORMAT_MOD_{one}' for one in parameters)).items():
        assert plane_count(NV12, modifier) == 2, name
        assert f'MOD_{modifier_name(modifier).partition(":")[0]}_' in name


# Colorimetry as GStreamer's texts and V4L2's numbers, both ways, against their headers.

FULL, LIMITED = Range.FULL, Range.LIMITED
ALL = [Colorimetry(*parts) for parts in itertools.product(Matrix, Range, Transfer)]


@pytest.mark.parametrize(
    ('text', 'default', 'expected'),
    [
        ('bt601', (), BT601_LIMITED),
        ('bt2100-pq', (), Colorimetry(Matrix.BT2020, LIMITED, Transfer.PQ)),
        ('1:3:5:1', (), Colorimetry(Matrix.BT709, FULL)),
        # A webcam's JPEG.
        ('1:4:7:1', (), Colorimetry(Matrix.BT601, FULL, Transfer.SRGB)),
        # PAL and NTSC as a decoder reports them.
        ('2:4:4:2', (), BT601_LIMITED),
        ('0:4:16:4', (), BT601_LIMITED),
        # What GStreamer doesn't know is the default: its jpegdec reports this for every picture.
        ('1:4:0:0', (Colorimetry(Matrix.BT709, LIMITED),), Colorimetry(Matrix.BT601, FULL)),
        ('0:0:0:0', (Colorimetry(Matrix.BT709, LIMITED),), Colorimetry(Matrix.BT709, LIMITED)),
        ('2:1:0:0', (RGB_FULL,), Colorimetry(Matrix.RGB, LIMITED, Transfer.SRGB)),
        # Grey has no matrix, and R, G, B have only their own.
        ('2:5:5:1', (RGB_FULL,), Colorimetry(Matrix.RGB, LIMITED)),
    ],
)
def test_gstreamer_s_words(
    text: str, default: tuple[Colorimetry, ...], expected: Colorimetry
) -> None:
    assert from_gstreamer_colorimetry(text, *default) == expected


LISTED = (
    'matrix: bt601, bt709, bt2020, rgb; then range: limited, full; then transfer: bt709, srgb, pq'
)


@pytest.mark.parametrize(
    ('read', 'given_value', 'why'),
    [
        (
            from_gstreamer_colorimetry,
            'smpte240m',
            r'matrix 5 is not one of 3 \(bt709\), 4 \(bt601\), 6 \(bt2020\)',
        ),
        (from_gstreamer_colorimetry, 'bt2100-hlg', 'transfer 15 is not one of 4'),
        (from_gstreamer_colorimetry, '', 'neither one of'),
        (from_gstreamer_colorimetry, '2:4:16:4:1', 'nor four numbers'),
        (from_gstreamer_colorimetry, '2:4:16:٤', 'nor four numbers'),
        (
            from_gstreamer_colorimetry,
            '3:4:16:4',
            r'range 3 is not one of 1 \(full\), 2 \(limited\)',
        ),
        (from_v4l2_colorimetry, V4l2Colorimetry(2), 'V4L2'),
        (from_v4l2_colorimetry, V4l2Colorimetry(3, 2, 2, 3), 'V4L2'),
        (from_v4l2_colorimetry, V4l2Colorimetry(3, 2, 3), 'V4L2'),
        (named_colorimetry, '', LISTED),
        (named_colorimetry, 'full', LISTED),
        (named_colorimetry, 'bt709 wide', LISTED),
        (named_colorimetry, 'bt709 full srgb srgb', LISTED),
    ],
)
def test_what_is_no_colorimetry_of_ours_is_refused(
    read: Callable[..., Colorimetry], given_value: object, why: str
) -> None:
    with pytest.raises(FormatError, match=why):
        read(given_value)


@given(
    st.one_of(
        st.text(max_size=12),
        st.lists(st.integers(0, 20), min_size=4, max_size=4).map(lambda n: ':'.join(map(str, n))),
    )
)
def test_any_text_is_a_colorimetry_or_refused(text: str) -> None:
    try:
        found = from_gstreamer_colorimetry(text)
    except FormatError:
        return
    assert found in ALL


def test_gstreamer_s_numbers_are_those_of_its_header(header: Callable[[str], str]) -> None:
    text = re.sub(r'/\*.*?\*/', '', header('video-color.h'), flags=re.DOTALL)

    def numbers(prefix: str) -> dict[str, int]:
        blocks = re.findall(r'typedef enum\s*\{(.*?)\}', text, re.DOTALL)
        (block,) = (b for b in blocks if f'{prefix}_UNKNOWN = 0' in b)
        names = re.findall(rf'^\s*{prefix}_(\w+)', block, re.MULTILINE)
        return {name: number for number, name in enumerate(names)}

    spans, matrices = numbers('GST_VIDEO_COLOR_RANGE'), numbers('GST_VIDEO_COLOR_MATRIX')
    transfers = numbers('GST_VIDEO_TRANSFER')

    def read(span: str, matrix: str, transfer: str) -> Colorimetry:
        written = f'{spans[span]}:{matrices[matrix]}:{transfers[transfer]}:1'
        return from_gstreamer_colorimetry(written, RGB_FULL if matrix == 'RGB' else BT601_LIMITED)

    for matrix in (Matrix.BT601, Matrix.BT709, Matrix.BT2020):
        assert read('0_255', matrix.name, 'BT709') == Colorimetry(matrix, FULL)
    assert read('16_235', 'BT709', 'SRGB').transfer is Transfer.SRGB
    assert read('0_255', 'BT2020', 'SMPTE2084').transfer is Transfer.PQ
    assert read('16_235', 'RGB', 'BT709') == Colorimetry(Matrix.RGB, LIMITED)
    for matrix, transfer in (('SMPTE240M', 'BT709'), ('FCC', 'BT709'), ('BT2020', 'ARIB_STD_B67')):
        with pytest.raises(FormatError):
            read('16_235', matrix, transfer)
    for same in ('BT709', 'BT601', 'BT2020_10', 'BT2020_12', 'GAMMA22', 'GAMMA28'):
        assert read('16_235', 'BT601', same) == BT601_LIMITED


PQ = Colorimetry(Matrix.BT2020, LIMITED, Transfer.PQ)
V4L2_NUMBERS = [
    ('DEFAULT', 'DEFAULT', 'DEFAULT', 'DEFAULT', BT601_LIMITED),
    ('REC709', '709', 'LIM_RANGE', '709', Colorimetry(Matrix.BT709, LIMITED)),
    ('REC709', '601', 'FULL_RANGE', '709', Colorimetry(Matrix.BT601, FULL)),
    ('BT2020', 'BT2020', 'LIM_RANGE', 'SMPTE2084', PQ),
    ('SRGB', 'XV601', 'LIM_RANGE', 'SRGB', Colorimetry(Matrix.BT601, LIMITED, Transfer.SRGB)),
    ('REC709', 'XV709', 'LIM_RANGE', '709', Colorimetry(Matrix.BT709, LIMITED)),
    ('JPEG', 'DEFAULT', 'DEFAULT', 'DEFAULT', Colorimetry(Matrix.BT601, FULL, Transfer.SRGB)),
]


def test_v4l2_s_numbers(v4l2: str, values: Callable[..., dict[str, int]]) -> None:
    prefixes = ('COLORSPACE', 'YCBCR_ENC', 'QUANTIZATION', 'XFER_FUNC')
    named = [
        [f'V4L2_{prefix}_{name}' for prefix, name in zip(prefixes, names, strict=True)]
        for *names, _ in V4L2_NUMBERS
    ]
    number = values(v4l2, *{name for names in named for name in names})
    for names, (*_, expected) in zip(named, V4L2_NUMBERS, strict=True):
        assert from_v4l2_colorimetry(V4l2Colorimetry(*map(number.get, names))) == expected, names


def colorimetry_or_none(fields: V4l2Colorimetry, rgb: bool) -> Colorimetry | None:
    try:
        return from_v4l2_colorimetry(fields, rgb=rgb)
    except FormatError:
        return None


def test_what_a_driver_leaves_at_default_is_what_the_header_maps_it_to(
    v4l2: str, values: Callable[..., dict[str, int]]
) -> None:
    mapped = {}
    for colorspace, rgb in itertools.product(range(13), (False, True)):
        encoding = f'V4L2_MAP_YCBCR_ENC_DEFAULT({colorspace})'
        mapped[colorspace, rgb] = (
            encoding,
            f'V4L2_MAP_QUANTIZATION_DEFAULT({int(rgb)}, {colorspace}, {encoding})',
            f'V4L2_MAP_XFER_FUNC_DEFAULT({colorspace})',
        )
    number = values(v4l2, *{one for three in mapped.values() for one in three})
    for (colorspace, rgb), three in mapped.items():
        whole = V4l2Colorimetry(colorspace, *map(number.get, three))
        assert colorimetry_or_none(V4l2Colorimetry(colorspace), rgb) == colorimetry_or_none(
            whole, rgb
        ), (colorspace, rgb)


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('bt601', BT601_LIMITED),
        ('bt601  full', Colorimetry(Matrix.BT601, Range.FULL)),
        ('bt2020 limited pq', Colorimetry(Matrix.BT2020, Range.LIMITED, Transfer.PQ)),
        ('rgb', RGB_FULL),
    ],
)
def test_a_person_s_words_name_matrix_range_and_transfer(text: str, expected: Colorimetry) -> None:
    assert named_colorimetry(text) == expected
