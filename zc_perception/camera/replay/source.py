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
What the replay camera plays.

:class:`FrameSource` is what each kind of recording has to do, :class:`PlaneWriter` makes NV12
    planes of its pictures. Every conversion that replay makes is there: each is one pass, scaled
    where it has to be. Bayer takes one more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.replay.stamps import RecordedStamps
from zc_perception.frame import Header
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import NV12, pixel_format
from zc_perception.pixel.layout import check_dimensions, ImageLayout
from zc_perception.pixel.nv12 import even, ToNv12
from zc_perception.pixel.raw_picture import PictureReader, RawPicture
from zc_perception.pixel.samples import cut_to, Planes

DEFAULT_FRAMERATE = 30.0
RATE_FROM = 64
"""This many of a recording's first frames give its rate; the rest may have gaps."""
STAMPS = ('now', 'recorded')
"""
Which headers frames get: the ROS clock's time with the camera's frame_id, or the recording's own
headers.
"""


@dataclass(frozen=True)
class Moment:
    """
    A frame that comes next, before its pixels are read.

    :param time_ns: since the source's first frame, on the source's own time axis.
    :param header: as recorded, if the source has headers.
    """

    time_ns: int
    header: Header | None = None


class FrameSource(ABC):
    """
    Frames in their order.

    One thread uses it. Frames of another size than *width* and *height* are scaled.

    :param name: what it plays, for messages.
    :param framerate: its own, frames per second; nominal where it has time stamps.
    """

    fourcc = NV12
    colorimetry = BT601_LIMITED
    has_headers = False
    stamps: RecordedStamps | None = None
    """Of a source with headers: what became of stamps that say nothing."""
    number = -1
    """Of the frame that :meth:`advance` went to, or could not go to."""

    def __init__(self, name: str, width: int, height: int, framerate: float) -> None:
        self.name = name
        self.width = width
        self.height = height
        self.framerate = framerate

    def advance(self) -> Moment | None:
        """
        Go to the next frame; ``None``: there is none.

        :raises RecordingError: the recording can't be read on.
        """
        self.number += 1
        return self._moment()

    @abstractmethod
    def _moment(self) -> Moment | None:
        """Return when frame :attr:`number`, the next one, is due; ``None``: there is none."""

    def _nominal(self) -> Moment:
        """Return its time in a recording that has only a rate."""
        return Moment(round(self.number * 1e9 / self.framerate))

    @abstractmethod
    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """
        Write the pixels of the frame that :meth:`advance` went to, in one pass.

        ``False``: they are damaged.
        """

    def restart(self) -> None:
        """Go before the first frame."""
        self.number = -1

    def seek(self, offset_ns: int) -> Moment | None:
        """
        Go, from the start, to the first frame at least *offset_ns* after the first one.

        :raises RecordingError: the recording can't be read up to there.
        """
        while (moment := self.advance()) is not None and moment.time_ns < offset_ns:
            pass
        return moment

    def notice(self) -> str:
        """
        Return what the user should know of the recording.

        That is parts that are missing or damaged; empty for nothing.
        """
        return ''

    def close(self) -> None:  # noqa: B027
        """Give everything back. Idempotent."""


def rate_of(stamps: Iterable[int]) -> float:
    """
    Return frames per second, by the median distance of some frames' stamps.

    :data:`DEFAULT_FRAMERATE` where they say nothing.
    """
    intervals = np.diff(sorted(stamps))
    middle = float(np.median(intervals)) if len(intervals) else 0.0
    return 1e9 / middle if middle > 0 else DEFAULT_FRAMERATE


_FULL = Colorimetry(Matrix.RGB, Range.FULL)


class PlaneWriter:
    """
    Writes pictures into NV12 planes of one size.

    Scratch memory is allocated when a kind of picture first comes.

    :param width: of the planes.
    :param height: likewise.
    :raises LayoutError: a size that NV12 can't have.
    """

    def __init__(self, width: int, height: int) -> None:
        check_dimensions(pixel_format(NV12), width, height)
        self._size = width, height
        self._converters: dict[tuple[int, int, int, Colorimetry], ToNv12] = {}
        self._reader = PictureReader()

    def write_planes(
        self,
        fourcc: int,
        size: tuple[int, int],
        colorimetry: Colorimetry,
        sources: Planes,
        planes: Sequence[NDArray[Any]],
    ) -> None:
        """
        Write planes of any readable format.

        An odd last row or column is cut off, other sizes are scaled. If luma and chroma become
        NV12 they keep their matrix and range; everything else becomes BT.601 limited.

        What becomes NV12 of luma and chroma keeps its matrix and range, everything else becomes
        BT.601 limited.

        :raises FormatError: a format or a colorimetry that has no conversion.
        """
        if size != self._size and (even(size[0]), even(size[1])) == self._size:
            size = self._size
            sources = cut_to(size, pixel_format(fourcc), sources)
        key = fourcc, *size, colorimetry
        converter = self._converters.get(key)
        if converter is None:
            converter = self._converters[key] = ToNv12(fourcc, *size, colorimetry, size=self._size)
        converter.convert(sources, planes[0], planes[1])

    def write(
        self, picture: RawPicture, layout: ImageLayout, planes: Sequence[NDArray[Any]]
    ) -> None:
        """
        Write a picture with its :func:`layout_of`.

        Its Y'CbCr is BT.601 limited, its grey levels are 0..255.
        """
        fourcc, sources = self._reader.read(picture, layout)
        colorimetry = BT601_LIMITED if layout.format.is_yuv else _FULL
        self.write_planes(fourcc, (picture.width, picture.height), colorimetry, sources, planes)
