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

"""Where the driver's numbers put the planes, for drivers of every kind."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
import pytest

from zc_perception.camera.v4l2.formats import (
    driver_layout,
    DriverFormat,
    DriverPlane,
    format_offers,
    least_bytes,
    one_placement,
)
from zc_perception.errors import FormatError, LayoutError
from zc_perception.negotiation.constraints import Placement
from zc_perception.pixel.colorimetry import Matrix, Range, V4l2Colorimetry
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import validate_layout
from zc_perception.pixel.modifier import LINEAR

# Of each V4L2 format what its page in the kernel's documentation draws: per plane the bytes of a
# row per pixel of width, and the share of the rows; and whether each has a buffer.
_HALF = Fraction(1, 2)
PAGES = {
    'NV12': (((1, 1), (1, 2)), False), 'NM12': (((1, 1), (1, 2)), True),
    'NV16': (((1, 1), (1, 1)), False),
    'NM16': (((1, 1), (1, 1)), True), 'NV24': (((1, 1), (2, 1)), False),
    'YU12': (((1, 1), (_HALF, 2), (_HALF, 2)), False),
    'YM12': (((1, 1), (_HALF, 2), (_HALF, 2)), True), 'YUYV': (((2, 1),), False),
    'P010': (((2, 1), (2, 2)), False),
    'RGB3': (((3, 1),), False), 'GREY': (((1, 1),), False),
}  # fmt: skip
COLOURS = V4l2Colorimetry()


@st.composite
def drivers(
    draw: st.DrawFn,
) -> tuple[str, DriverFormat, tuple[int, ...], list[tuple[int, int, int]]]:
    """
    Return a driver's answer with its padding, and where the planes must be.

    A place is buffer, offset and stride.
    """
    name = draw(st.sampled_from(sorted(PAGES)))
    planes, separate = PAGES[name]
    width, height = 2 * draw(st.integers(1, 2000)), 2 * draw(st.integers(1, 2000))
    padding = 4 * draw(st.integers(0, 64))
    tail = draw(st.integers(0, 8192))
    first = width * planes[0][0] + padding
    sizes, places, end = [], [], 0
    offsets = (
        tuple(2 * draw(st.integers(0, 2048)) for _ in planes)
        if separate
        else (2 * draw(st.integers(0, 2048)),)
    )
    for index, (share, rows) in enumerate(planes):
        stride = int(first * Fraction(share) / planes[0][0])
        if separate:
            stride = int(width * share) + padding
            places.append((index, offsets[index], stride))
            sizes.append(DriverPlane(stride, offsets[index] + stride * (height // rows) + tail))
        else:
            end = end or offsets[0]
            places.append((0, end, stride))
            end += stride * (height // rows)
    if not separate:
        sizes = [DriverPlane(int(first), end + tail)]
    return (
        name,
        DriverFormat(width, height, fourcc_code(name), tuple(sizes), COLOURS),
        offsets,
        places,
    )


@given(drivers())
def test_planes_lie_where_the_documentation_draws_them(
    case: tuple[str, DriverFormat, tuple[int, ...], list[tuple[int, int, int]]],
) -> None:
    _, driver, offsets, places = case
    layout = driver_layout(driver, offsets)
    assert [(plane.buffer, plane.offset, plane.stride) for plane in layout.planes] == places
    assert (layout.width, layout.height, layout.modifier) == (driver.width, driver.height, LINEAR)
    validate_layout(layout, [plane.size for plane in driver.planes])
    for needed, plane in zip(least_bytes(layout), driver.planes, strict=True):
        assert needed <= plane.size


@given(drivers(), st.integers(1, 4096), st.data())
def test_a_driver_whose_buffers_are_too_small_is_refused(
    case: tuple[str, DriverFormat, tuple[int, ...], list[tuple[int, int, int]]],
    less: int,
    data: st.DataObject,
) -> None:
    _, driver, offsets, _ = case
    ends = least_bytes(driver_layout(driver, offsets))
    index = data.draw(st.integers(0, len(driver.planes) - 1))
    planes = list(driver.planes)
    planes[index] = DriverPlane(planes[index].stride, max(0, ends[index] - less))
    with pytest.raises(LayoutError):
        driver_layout(
            DriverFormat(driver.width, driver.height, driver.fourcc, tuple(planes), COLOURS),
            offsets,
        )


@given(
    st.sampled_from([*sorted(PAGES), 'MM21', 'ST12', 'MJPG', '????']),
    st.integers(0, 1 << 17),
    st.integers(0, 1 << 17),
    st.lists(st.builds(DriverPlane, st.integers(0, 1 << 32), st.integers(0, 1 << 32)), max_size=4),
    st.lists(st.integers(0, 1 << 32), max_size=4),
)
def test_whatever_a_driver_says_is_a_layout_or_a_sentence(
    name: str, width: int, height: int, planes: list[DriverPlane], offsets: list[int]
) -> None:
    try:
        layout = driver_layout(
            DriverFormat(width, height, fourcc_code(name), tuple(planes), COLOURS), offsets
        )
    except (LayoutError, FormatError):
        return
    validate_layout(layout, [plane.size for plane in planes])


def _driver(name: str, *planes: DriverPlane, size: tuple[int, int] = (64, 32)) -> DriverFormat:
    return DriverFormat(*size, fourcc_code(name), planes, COLOURS)


def test_tiled_formats_are_taken_only_where_nothing_is_left_to_guess() -> None:
    layout = driver_layout(_driver('MM21', DriverPlane(64, 2560), DriverPlane(64, 1024)))
    assert layout.modifier != LINEAR and [(p.buffer, p.offset, p.size) for p in layout.planes] == [
        (0, 0, 2560),
        (1, 0, 1024),
    ]
    assert driver_layout(_driver('ST12', DriverPlane(64, 3072))).planes[1].offset == 2048
    with pytest.raises(LayoutError, match='tiled and padded to 4096 bytes'):
        driver_layout(_driver('ST12', DriverPlane(64, 4096)))
    with pytest.raises(FormatError, match='no DRM modifier'):
        driver_layout(_driver('HM12', DriverPlane(64, 3072)))


def test_a_frame_is_complete_without_the_padding_of_its_last_row() -> None:
    layout = driver_layout(_driver('NV12', DriverPlane(128, 6144)))
    assert least_bytes(layout) == (128 * 32 + 128 * 15 + 64,)
    layout = driver_layout(
        _driver('NM12', DriverPlane(128, 5000), DriverPlane(128, 3000)), (100, 50)
    )
    assert least_bytes(layout) == (100 + 128 * 31 + 64, 50 + 128 * 15 + 64)


def _codes(*names: str) -> list[int]:
    return [fourcc_code(name) for name in names]


def test_offers_are_in_order_of_preference_with_reasons_for_the_rest() -> None:
    offers, refused = format_offers(
        _codes('RGB3', 'MJPG', 'UYVY', 'NM12', 'HM12', 'YUYV', 'NV12', 'RGGB')
    )
    assert [offer.fourcc for offer in offers] == _codes('NV12', 'YUYV', 'UYVY', 'BG24')
    assert offers[0].codes == tuple(_codes('NV12', 'NM12'))
    assert (
        set(refused) == {'MJPG', 'HM12', 'RGGB'}
        and 'decoder' in refused['MJPG']
        and 'ISP' in refused['RGGB']
    )


@pytest.mark.parametrize(
    ('names', 'placement', 'left'),
    [
        (('NV12', 'NM16', 'YUYV'), Placement.ONE_BUFFER, ('NV12', 'YUYV')),
        (('NM12', 'NV16', 'YUYV'), Placement.BUFFER_PER_PLANE, ('NV12', 'YUYV')),
        (('NV12', 'NM12', 'NV16', 'YUYV'), None, ('NV12', 'YUYV')),
    ],
)
def test_formats_without_the_placement_of_the_best_one_are_left_out(
    names: tuple[str, ...], placement: Placement | None, left: tuple[str, ...]
) -> None:
    found, offers = one_placement(format_offers(_codes(*names))[0])
    assert found is placement and [offer.fourcc for offer in offers] == _codes(*left)


@pytest.mark.parametrize(
    ('name', 'fields', 'matrix', 'span'),
    [
        ('NV12', V4l2Colorimetry(3), Matrix.BT709, Range.LIMITED),
        ('NV12', V4l2Colorimetry(8, 0, 1), Matrix.BT601, Range.FULL),
        ('NV12', V4l2Colorimetry(2), Matrix.BT601, Range.LIMITED),  # SMPTE 240M has no name here
        ('NV12', V4l2Colorimetry(2, 0, 1), Matrix.BT601, Range.FULL),
        ('RGB3', V4l2Colorimetry(8), Matrix.RGB, Range.FULL),
    ],
)
def test_colours_are_the_drivers_own_or_the_usual_ones(
    name: str, fields: V4l2Colorimetry, matrix: Matrix, span: Range
) -> None:
    colorimetry = DriverFormat(
        64, 32, fourcc_code(name), (DriverPlane(64, 3072),), fields
    ).colorimetry
    assert (colorimetry.matrix, colorimetry.range) == (matrix, span)
