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
Turn a V4L2 driver's answers into formats, sizes, rates, and layouts of planes.

The rules come from two documents of the kernel: *Image Formats* (strides and offsets of the chroma
planes), and *Single- and multi-planar APIs* (``data_offset``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zc_perception.errors import FormatError, LayoutError
from zc_perception.negotiation.constraints import Format, Placement, Size, size_text
from zc_perception.pixel.colorimetry import Colorimetry, from_v4l2_colorimetry, V4l2Colorimetry
from zc_perception.pixel.format_names import from_v4l2, V4l2Format
from zc_perception.pixel.fourcc import fourcc_code, fourcc_name, pixel_format
from zc_perception.pixel.layout import ImageLayout, PlaneLayout, validate_layout
from zc_perception.pixel.modifier import LINEAR

# The best formats first: those that consumers use directly, then those that need the least
# conversion. All other formats follow.
_PREFERRED = tuple(map(fourcc_code, ('NV12', 'YUYV', 'UYVY', 'NV16', 'NV21', 'YU12', 'NV24')))
JPEGS = tuple(map(fourcc_code, ('MJPG', 'JPEG')))
"""V4L2's fourccs of buffers that hold one whole JPEG each."""


@dataclass(frozen=True)
class DriverPlane:
    """One of a frame's buffers: stride of the buffer's first plane, and size of the buffer."""

    stride: int
    size: int


@dataclass(frozen=True)
class DriverFormat:
    """
    The answer of G_FMT, S_FMT or TRY_FMT, for the single- and the multi-planar API.

    :param fourcc: V4L2's fourcc of the format.
    :param planes: one entry for each memory buffer.
    :param colours: the driver's colour fields.
    """

    width: int
    height: int
    fourcc: int
    planes: tuple[DriverPlane, ...]
    colours: V4l2Colorimetry

    @property
    def size(self) -> Size:
        """Width and height in pixels."""
        return self.width, self.height

    @property
    def colorimetry(self) -> Colorimetry:
        """
        The colorimetry by the driver's colour fields.

        An unknown transfer counts as BT.709, an unknown encoding as BT.601, and an unknown
        quantization as the colour space's default. So a camera with unknown colours can still be
        used.
        """
        rgb = not pixel_format(from_v4l2(self.fourcc).fourcc).is_yuv
        colours = self.colours
        for usual in {'xfer_func': 1}, {'ycbcr_enc': 1}:
            try:
                return from_v4l2_colorimetry(colours, rgb=rgb)
            except FormatError:
                colours = colours._replace(**usual)
        if colours.quantization not in (1, 2):
            colours = colours._replace(quantization=0)
        return from_v4l2_colorimetry(colours, rgb=rgb)


def driver_layout(driver: DriverFormat, data_offsets: Sequence[int] = ()) -> ImageLayout:
    """
    Return the layout of the planes in the buffers.

    In one buffer, planes follow each other without a gap, and their strides are proportional to
    the first plane's stride. Planes in buffers of their own begin at *data_offsets*. A tiled
    format in one buffer is accepted only without padding, because V4L2 doesn't report where the
    chroma begins after the padding.

    :param data_offsets: per buffer, the offset of the data; all 0 by default.
    :raises FormatError: this package doesn't support the V4L2 format.
    :raises LayoutError: an image doesn't fit the driver's strides and sizes. The message names
        the plane.
    """
    known = from_v4l2(driver.fourcc)
    fmt = pixel_format(known.fourcc)
    offsets = tuple(data_offsets) or (0,) * len(driver.planes)
    name = fourcc_name(driver.fourcc)
    wanted = len(fmt.planes) if known.multiplanar else 1
    if len(driver.planes) != wanted or len(offsets) != wanted:
        raise LayoutError(
            f'V4L2 format {name} has {wanted} buffers for each image, but the driver reports '
            f'{len(driver.planes)}'
        )
    planes: list[PlaneLayout] = []
    place = offsets[0]
    for index, plane in enumerate(fmt.planes):
        buffer = index if known.multiplanar else 0
        stride = driver.planes[buffer].stride
        if not known.multiplanar:
            first = fmt.planes[0]
            numerator, denominator = (
                plane.element_bytes * first.horizontal,
                first.element_bytes * plane.horizontal,
            )
            stride, rest = divmod(stride * numerator, denominator)
            if rest:
                raise LayoutError(
                    f'plane {index}: its stride is no whole number, because bytesperline of '
                    f'{name} is {driver.planes[0].stride}'
                )
        else:
            place = offsets[index]
        size = stride * plane.rows(driver.height)
        if known.modifier != LINEAR and known.multiplanar:
            size = driver.planes[buffer].size - place
        planes.append(PlaneLayout(buffer, place, stride, size))
        place += size
    if known.modifier != LINEAR and not known.multiplanar and place != driver.planes[0].size:
        raise LayoutError(
            f'V4L2 format {name} is tiled and padded to {driver.planes[0].size} bytes; where its '
            'chroma begins is unknown; use a size that needs no padding, or an untiled format'
        )
    layout = ImageLayout(driver.width, driver.height, known.fourcc, known.modifier, tuple(planes))
    validate_layout(layout, [plane.size for plane in driver.planes])
    return layout


def least_bytes(layout: ImageLayout) -> tuple[int, ...]:
    """
    Return for each buffer the least number of bytes that the driver fills for a complete frame.

    Behind the last row of a LINEAR plane, no padding is needed.
    """
    ends = [0] * layout.num_buffers
    for index, plane in enumerate(layout.planes):
        end = plane.offset + plane.size
        if layout.modifier == LINEAR:
            element = layout.format.planes[index]
            end = (
                plane.offset
                + plane.stride * (element.rows(layout.height) - 1)
                + element.row_bytes(layout.width)
            )
        ends[plane.buffer] = max(ends[plane.buffer], end)
    return tuple(ends)


@dataclass(frozen=True)
class FormatOffer:
    """A format of the device, with V4L2's fourcc for each placement of its planes."""

    fourcc: int
    modifier: int
    one_buffer: int | None = None
    per_plane: int | None = None

    @property
    def format(self) -> Format:  # noqa: A003
        """The pair (fourcc, modifier)."""
        return self.fourcc, self.modifier

    @property
    def codes(self) -> tuple[int, ...]:
        """V4L2's fourccs of this format: first with one buffer, then with a buffer per plane."""
        return tuple(code for code in (self.one_buffer, self.per_plane) if code is not None)

    def code(self, placement: Placement | None) -> int | None:
        """Return V4L2's fourcc for *placement*; the first one if the placement doesn't matter."""
        if placement is None or len(pixel_format(self.fourcc).planes) == 1:
            return self.codes[0]
        return self.one_buffer if placement is Placement.ONE_BUFFER else self.per_plane


def format_offers(codes: Iterable[int]) -> tuple[tuple[FormatOffer, ...], dict[str, str]]:
    """
    Return the usable formats among a device's V4L2 fourccs, the best first.

    The second result is a dict. A key is the name of a format that isn't usable, and the value is
    the reason.
    """
    found: dict[Format, dict[bool, int]] = {}
    refused: dict[str, str] = {}
    for code in codes:
        try:
            known: V4l2Format = from_v4l2(code)
        except FormatError as error:
            refused[fourcc_name(code)] = str(error)
            continue
        found.setdefault((known.fourcc, known.modifier), {})[known.multiplanar] = code
    offers = [FormatOffer(*pair, by.get(False), by.get(True)) for pair, by in found.items()]
    return tuple(sorted(offers, key=_rank)), refused


def _rank(offer: FormatOffer) -> tuple[bool, int]:
    """Rank LINEAR formats first, because every consumer can read LINEAR frames."""
    place = _PREFERRED.index(offer.fourcc) if offer.fourcc in _PREFERRED else len(_PREFERRED)
    return offer.modifier != LINEAR, place


def one_placement(
    offers: Sequence[FormatOffer],
) -> tuple[Placement | None, tuple[FormatOffer, ...]]:
    """
    Return one placement of planes, and the formats that the driver offers in this placement.

    Constraints have one placement for all formats. So the best format with several planes decides.
    If the driver offers this format in both placements, the placement is ``None``, and only
    formats that the driver offers in both placements are returned. If all formats have one plane,
    they fit either placement: the placement is ``None``, and all formats are returned.
    """
    best = next((offer for offer in offers if len(pixel_format(offer.fourcc).planes) > 1), None)
    if best is None:
        return None, tuple(offers)
    both = len(best.codes) == 2
    placement = (
        None
        if both
        else Placement.ONE_BUFFER
        if best.per_plane is None
        else Placement.BUFFER_PER_PLANE
    )
    wanted = tuple(Placement) if placement is None else (placement,)
    return placement, tuple(
        offer for offer in offers if all(offer.code(place) is not None for place in wanted)
    )


@dataclass(frozen=True)
class SizeRange:
    """Sizes of a format: a single size (step 0), or all sizes from least to most by the step."""

    least: Size
    most: Size
    step: Size = (0, 0)

    def __str__(self) -> str:
        if self.least == self.most:
            return size_text(self.least)
        steps = '' if self.step in ((0, 0), (1, 1)) else f' by {self.step[0]} and {self.step[1]}'
        return f'{size_text(self.least)} to {size_text(self.most)}{steps}'


@dataclass(frozen=True)
class RateRange:
    """The frame rates (in Hz) that a size can have: one rate, or all from least to most."""

    least: float
    most: float

    def __str__(self) -> str:
        return f'{self.most:g}' if self.least == self.most else f'{self.least:g} to {self.most:g}'

    def holds(self, rate: float) -> bool:
        """Tell whether *rate* is in the range, with a tolerance of 1 %: 29.97 counts as 30."""
        return self.least * 0.99 <= rate <= self.most * 1.01
