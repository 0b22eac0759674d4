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
Read uncompressed pictures of messages and recordings: their encodings, planes and pixels.

:data:`ENCODINGS` lists the encodings, for messages and recordings alike, by their names in ROS's
``sensor_msgs/image_encodings.hpp``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import FormatError, nearest
from zc_perception.pixel.conversion import narrowed, Pixels
from zc_perception.pixel.format_names import from_ros_encoding, ROS_FORMATS
from zc_perception.pixel.fourcc import fourcc_code, pixel_format, PixelFormat
from zc_perception.pixel.layout import (
    chained_layout,
    check_dimensions,
    ImageLayout,
    MAX_DIMENSION,
    sample_bytes,
    views,
)


class Encoding(NamedTuple):
    """
    The format of pictures that have one of ROS's encodings.

    :param fourcc: the samples' format; for Bayer a grey format, because each pixel has one sample.
    :param demosaic: for Bayer, OpenCV's code to convert the pattern to B, G, R; ``None``: the
        encoding isn't Bayer.
    """

    fourcc: int
    demosaic: int | None = None


# ROS names a Bayer pattern by the first two pixels of the first two rows. OpenCV's names differ:
# they take the second and third pixels of the second and third rows.
_BAYER = {
    'rggb': cv2.COLOR_BayerBG2BGR,
    'bggr': cv2.COLOR_BayerRG2BGR,
    'gbrg': cv2.COLOR_BayerGR2BGR,
    'grbg': cv2.COLOR_BayerGB2BGR,
}
# Users of cv_bridge also write OpenCV's type names as encodings. The values are ROS's names.
_MEANT = {'8UC1': 'mono8', '8UC3': 'bgr8'}
NATIVE = 'native'
OUTPUT_ENCODINGS = ('rgb8', 'bgr8', 'mono8', 'nv12', NATIVE)
"""
The choices of parameter ``image_encoding``, the encoding of Image messages.

``native``: the frame's bytes without a conversion, if its format has a ROS encoding.
"""
DEPTHS = ('16UC1', '32FC1')
"""Encodings of depth pictures, whose samples are distances; they can't be read as colours."""

ENCODINGS: dict[str, Encoding] = (
    {name: Encoding(fourcc) for name, fourcc in ROS_FORMATS.items()}
    | {name: Encoding(from_ros_encoding(same)) for name, same in _MEANT.items()}
    | {
        f'bayer_{pattern}{bits}': Encoding(from_ros_encoding(f'mono{bits}'), code)
        for bits in (8, 16)
        for pattern, code in _BAYER.items()
    }
)
"""The encodings that can be read as colour or grey pictures, by name."""


def encoding_named(name: str) -> Encoding:
    """Return the entry of *name* in :data:`ENCODINGS`; raise FormatError if there is none."""
    found = ENCODINGS.get(name)
    if found is None:
        why = ', it has depths and no colours' if name in DEPTHS else nearest(name, ENCODINGS)
        raise FormatError(
            f"encoding '{name[:40]}' can't be read as a picture{why}; "
            f'known are {", ".join(ENCODINGS)}'
        )
    return found


_BGR = fourcc_code('RG24')
# Codecs and image processors round heights up to a multiple of one of these.
_HEIGHT_ALIGNMENTS = (1, 2, 4, 8, 16, 32, 64, 128)
# Drivers round a buffer's size up to whole pages.
_PAGE = 4096


class RawPicture(NamedTuple):
    """
    An uncompressed picture, with the fields of a ``sensor_msgs/Image``.

    :param step: the bytes of a row of the first plane, with padding.
    :param data: a ``uint8`` array, or another object that has Python's buffer interface.
    """

    width: int
    height: int
    encoding: str
    big_endian: bool
    step: int
    data: Any


def layout_of(picture: RawPicture) -> ImageLayout:
    """
    Compute the layout of the planes in the picture's data, without reading the data.

    Planes follow each other without gaps. If there are more data than the picture needs, the
    sender has rounded up the height, or the data's size to whole pages, see :func:`_padded`.

    :raises FormatError: the encoding, the byte order, the size or the step is wrong, or the number
        of bytes doesn't fit exactly one layout. The message has the values and what is needed.
    :raises LayoutError: the encoding doesn't allow the picture's width or height, because of its
        subsampling.
    """
    width, height, name, big_endian, step, data = picture
    encoding = encoding_named(name)
    fmt = pixel_format(encoding.fourcc)
    # A picture may be converted to NV12, which needs 2 rows and columns. A Bayer picture needs 3,
    # because OpenCV's demosaicing makes smaller pictures black.
    least = 2 if encoding.demosaic is None else 3
    if not (least <= width < MAX_DIMENSION and least <= height < MAX_DIMENSION):
        raise FormatError(
            f'the picture is {width}x{height}; width and height of {name} must be from {least} to '
            f'{MAX_DIMENSION - 1}'
        )
    check_dimensions(fmt, width, height)
    sample = sample_bytes(fmt, 0)
    if big_endian and sample > 1:  # samples of one byte are the same in both byte orders
        raise FormatError(f'{name} is big-endian; only little-endian can be read')
    row, text = fmt.planes[0].row_bytes(width), f'{width}x{height} {name}'
    if step < row or step % sample:
        multiple = f', a multiple of {sample}' if sample > 1 else ''
        raise FormatError(f'{text} needs a step of {row} or more{multiple}; step is {step}')
    layout = chained_layout(fmt.code, width, height, step)
    needed, whole, there = layout.buffer_size(0), _whole(fmt, layout, height), len(data)
    if needed <= there <= whole:
        return layout
    padded = _padded(fmt, layout, there) if there > whole else None
    if padded is not None:
        return padded
    more = ', and which of them are padding is not clear' if there > whole else ''
    raise FormatError(
        f'{text} with a step of {step} needs {whole} bytes of data; there are {there}{more}: '
        'let the publisher of the picture send exactly the needed bytes'
    )


def _whole(fmt: PixelFormat, layout: ImageLayout, rows: int) -> int:
    """
    Return the size of all planes together in bytes, if the first plane has *rows* rows.

    This includes the padding of the last row.
    """
    last = layout.planes[-1]
    return last.offset + last.stride * fmt.planes[-1].rows(rows)


def _padded(fmt: PixelFormat, tight: ImageLayout, there: int) -> ImageLayout | None:
    """
    Return the layout of a picture whose sender has rounded up the height or the data's size.

    :param tight: the layout without any rounding.
    :param there: how many bytes of data the picture really has.
    :returns: ``None`` if no rounding gives this number of bytes, or if several roundings do and
        differ in the offset of chroma.
    """
    found = []
    for rows in sorted({-(-tight.height // n) * n for n in _HEIGHT_ALIGNMENTS}):
        layout = chained_layout(fmt.code, tight.width, tight.height, tight.planes[0].stride, rows)
        whole = _whole(fmt, layout, rows)
        if there in (whole, -(-whole // _PAGE) * _PAGE):
            found.append(layout)
    return found[0] if len(set(found)) == 1 else None


class PictureReader:
    """Returns raw pictures' planes; converts Bayer pictures to B, G, R in its own memory."""

    def __init__(self) -> None:
        self._grey: Pixels | None = None
        self._bgr: Pixels | None = None

    def read(self, picture: RawPicture, layout: ImageLayout) -> tuple[int, list[NDArray[Any]]]:
        """
        Return a fourcc and the picture's planes in this format.

        The planes are views of the picture's data. A Bayer picture is converted to B, G, R in
        this object's memory, which the next call overwrites.

        :param layout: the result of :func:`layout_of` for the picture.
        """
        planes = views(layout, picture.data)
        code = encoding_named(picture.encoding).demosaic
        if code is None:
            return layout.fourcc, planes
        (samples,) = planes
        if samples.dtype != np.uint8:
            if self._grey is None or self._grey.shape != samples.shape:
                self._grey = np.empty(samples.shape, np.uint8)
            samples = narrowed(samples, self._grey)
        if self._bgr is None or self._bgr.shape[:2] != samples.shape:
            self._bgr = np.empty((*samples.shape, 3), np.uint8)
        cv2.cvtColor(samples, code, dst=self._bgr)
        return _BGR, [self._bgr]
