"""The format table against what Linux itself says, and against the geometry that each format's documentation gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.errors import FormatError
from zc_perception.pixel.fourcc import FORMATS, NV12, PixelFormat, format_by_name, fourcc_code, fourcc_name, pixel_format

HEADER = Path('/usr/include/linux/videodev2.h')
MACRO = re.compile(r"^#define\s+V4L2_PIX_FMT_(\w+)\s+v4l2_fourcc\(\s*'(.)',\s*'(.)',\s*'(.)',\s*'(.)'\s*\)", re.MULTILINE)

# DRM name → V4L2's macros for the same bytes in memory, one buffer and one buffer per plane.
V4L2_MACROS = {
    'NV12': ('NV12', 'NV12M'),
    'NV21': ('NV21', 'NV21M'),
    'NV16': ('NV16', 'NV16M'),
    'NV24': ('NV24', None),
    'P010': ('P010', None),
    'YUYV': ('YUYV', None),
    'UYVY': ('UYVY', None),
    'YU12': ('YUV420', 'YUV420M'),
    'YV12': ('YVU420', 'YVU420M'),
    'R8  ': ('GREY', None),
    'RG24': ('BGR24', None),
    'BG24': ('RGB24', None),
    'XR24': ('XBGR32', None),
    'AR24': ('ABGR32', None),
    'XB24': ('RGBX32', None),
    'AB24': ('RGBA32', None),
    'RG16': ('RGB565', None),
}
# Bits per pixel as the kernel's and GStreamer's tables give them.
BITS_PER_PIXEL = {
    'NV12': 12, 'NV21': 12, 'NV16': 16, 'NV24': 24, 'P010': 24, 'YUYV': 16, 'UYVY': 16, 'YU12': 12, 'YV12': 12, 'R8  ': 8,
    'RG24': 24, 'BG24': 24, 'XR24': 32, 'AR24': 32, 'XB24': 32, 'AB24': 32, 'RG16': 16,
}  # fmt: skip


def entry_id(entry: PixelFormat) -> str:
    return entry.name.strip()


every_format = pytest.mark.parametrize('entry', FORMATS.values(), ids=entry_id)


@pytest.fixture(scope='module')
def v4l2_header() -> dict[str, str]:
    if not HEADER.is_file():
        pytest.skip(f'{HEADER} is not installed (linux-libc-dev)')
    return {name: ''.join(characters) for name, *characters in MACRO.findall(HEADER.read_text(encoding='ascii', errors='replace'))}


@every_format
def test_v4l2_names_are_those_of_the_kernel_header(entry: PixelFormat, v4l2_header: dict[str, str]) -> None:
    single, multi = V4L2_MACROS[entry.name]
    assert entry.v4l2 == v4l2_header[single]
    assert entry.v4l2_multiplanar == (None if multi is None else v4l2_header[multi])


def test_codes_are_little_endian_words() -> None:
    # Literal values of DRM_FORMAT_NV12, DRM_FORMAT_R8 and DRM_FORMAT_XRGB8888.
    assert fourcc_code('NV12') == NV12 == 0x3231564E
    assert fourcc_code('R8  ') == 0x20203852
    assert fourcc_code('XR24') == 0x34325258


@every_format
def test_planes_hold_as_many_bits_as_the_format_has(entry: PixelFormat) -> None:
    width, height = 16, 8
    size = sum(plane.row_bytes(width) * plane.rows(height) for plane in entry.planes)
    assert size * 8 == BITS_PER_PIXEL[entry.name] * width * height


@pytest.mark.parametrize(
    ('name', 'order'), [('RG24', 'bgr'), ('BG24', 'rgb'), ('XR24', 'bgrx'), ('AR24', 'bgra'), ('XB24', 'rgbx'), ('AB24', 'rgba')]
)
def test_names_elsewhere_say_the_order_in_memory(name: str, order: str) -> None:
    entry = format_by_name(name)
    # A DRM name lists the components of a little-endian word from its most significant byte.
    assert entry.gstreamer is not None and entry.gstreamer.lower() == order
    assert entry.ros in (None, f'{order}8')


@pytest.mark.parametrize(
    ('name', 'horizontal', 'vertical'), [('NV12', 2, 2), ('NV16', 2, 1), ('YUYV', 2, 1), ('NV24', 1, 1), ('RG24', 1, 1)]
)
def test_sizes_must_be_multiples_of_the_subsampling(name: str, horizontal: int, vertical: int) -> None:
    entry = format_by_name(name)
    assert (entry.horizontal, entry.vertical) == (horizontal, vertical)


def test_odd_sizes_round_up_to_whole_chroma_samples() -> None:
    chroma = format_by_name('NV12').planes[1]
    assert (chroma.row_bytes(5), chroma.rows(3)) == (6, 2)


def test_names_of_one_system_are_unique() -> None:
    for system in ('name', 'v4l2', 'v4l2_multiplanar', 'gstreamer', 'ros'):
        names = [getattr(entry, system) for entry in FORMATS.values() if getattr(entry, system) is not None]
        assert len(names) == len(set(names)), system


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=4, max_size=4))
def test_code_and_name_are_inverse(name: str) -> None:
    assert fourcc_name(fourcc_code(name)) == name


def test_unprintable_characters_are_shown_as_question_marks() -> None:
    assert fourcc_name(0x00FF4E41) == 'AN??'


@pytest.mark.parametrize('name', ['', 'NV1', 'NV123', 'NÜ12'])
def test_names_that_are_no_fourcc_are_refused(name: str) -> None:
    with pytest.raises(FormatError, match='four ASCII characters'):
        fourcc_code(name)


def test_unknown_codes_are_refused_with_the_known_ones() -> None:
    with pytest.raises(FormatError, match=r"'ZZZZ' \(0x5a5a5a5a\) is not known; known are NV12, "):
        pixel_format(0x5A5A5A5A)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(FormatError, match="'YUVY' is not known; did you mean 'YUYV'"):
        format_by_name('YUVY')


def test_padded_names_are_found_without_their_spaces() -> None:
    assert format_by_name('R8').code == fourcc_code('R8  ')
