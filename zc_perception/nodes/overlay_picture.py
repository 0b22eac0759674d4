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

"""Keeps reduced copies of frames until their detections come; draws boxes into pictures."""

from __future__ import annotations

from collections import deque, OrderedDict
from collections.abc import Sequence
import colorsys
from dataclasses import dataclass
import math
import threading
import zlib

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.frame import Frame
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.conversion import ToNv12
from zc_perception.pixel.layout import ImageLayout

MOST_BOXES = 200
"""At most this many boxes, those with the top scores, are drawn in a picture, to save time."""
_LONGEST_NAME = 80
# Larger coordinates are replaced by this one, far outside of every picture, because OpenCV fails
# with very large numbers.
_FARTHEST = 30_000.0
# Class ids with more digits are not converted to numbers, because Python refuses to convert very
# long texts.
_MOST_DIGITS = 9
Colour = tuple[int, int, int]
# Colours of the first classes as B, G, R, chosen to differ clearly.
_COLOURS: tuple[Colour, ...] = (
    (60, 220, 60),
    (40, 160, 255),
    (255, 180, 40),
    (200, 80, 255),
    (60, 230, 230),
    (255, 100, 160),
    (180, 180, 255),
    (120, 255, 180),
)
_GOLDEN = 0.61803398875
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)


@dataclass(frozen=True)
class ReducedPicture:
    """A reduced copy of a frame as NV12 planes; *captured_ns* is on CLOCK_MONOTONIC."""

    luma: NDArray[np.uint8]
    chroma: NDArray[np.uint8]
    colorimetry: Colorimetry
    scale: tuple[float, float]
    captured_ns: int


class PictureHistory:
    """
    Keeps reduced copies of the latest frames.

    The copies wait for a slow model's detections without holding the camera's slots. One thread
    calls :meth:`keep` and :meth:`take`. Any thread may set :attr:`scale`, for later frames.

    :param limit: the largest number of pictures; one more takes the memory of the oldest.
    """

    def __init__(self, limit: int, scale: float) -> None:
        self._limit = limit
        self.scale = scale
        self._key: tuple[ImageLayout, Colorimetry, int, int] | None = None
        self._converter: ToNv12 | None = None
        self._pictures: OrderedDict[int, ReducedPicture] = OrderedDict()
        self._spare: list[ReducedPicture] = []
        self._lock = threading.Lock()
        self.newest = 0

    def __len__(self) -> int:
        return len(self._pictures)

    def keep(self, frame: Frame) -> int:
        """
        Make a reduced copy of *frame*; return the number of bytes that were read.

        :raises FormatError: the frame's format or colorimetry has no conversion.
        :raises ZcError: the frame can't be mapped.
        """
        data, scale = frame.data, self.scale
        height, width = (max(2, round(size * scale / 2) * 2) for size in (data.height, data.width))
        key = data.layout, data.colorimetry, width, height
        if self._converter is None or self._key != key:
            self._converter = ToNv12(
                data.fourcc, data.width, data.height, data.colorimetry, size=(width, height)
            )
            self._key = key
        with self._lock:
            if len(self._pictures) >= self._limit:
                self._spare.append(self._pictures.popitem(last=False)[1])
            spare = self._spare.pop() if self._spare else None
        if spare is None or spare.luma.shape != (height, width):
            self._spare.clear()
            luma, chroma = (
                np.empty((height, width), np.uint8),
                np.empty((height // 2, width // 2, 2), np.uint8),
            )
        else:
            luma, chroma = spare.luma, spare.chroma
        with frame.map() as source:
            self._converter.convert(source, luma, chroma)
            num_bytes = sum(plane.nbytes for plane in source)
        stamp = frame.header.stamp_ns
        reduced = ReducedPicture(
            luma,
            chroma,
            self._converter.colorimetry,
            (width / data.width, height / data.height),
            data.captured_ns,
        )
        with self._lock:
            self._pictures[stamp] = reduced
            self.newest = stamp
        return num_bytes

    def __contains__(self, stamp: object) -> bool:
        return stamp in self._pictures

    def take(self, stamp: int) -> ReducedPicture | None:
        """
        Return the copy of the frame of time *stamp*; drop this and older copies from the history.

        The copy stays valid until the next :meth:`keep`. ``None``: no such copy is kept.
        """
        with self._lock:
            if stamp not in self._pictures:
                return None
            while True:
                found, picture = self._pictures.popitem(last=False)
                self._spare.append(picture)
                if found == stamp:
                    return picture

    def clear(self) -> None:
        """Drop all pictures and free their memory."""
        with self._lock:
            self._pictures.clear()
            self._spare.clear()
            self.newest = 0


@dataclass(frozen=True)
class LabelledBox:
    """A box in pixels of the frame, rotated by ``theta`` radians."""

    left: float
    top: float
    right: float
    bottom: float
    class_id: str
    name: str
    score: float
    track_id: str = ''
    theta: float = 0.0

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite; a box with a NaN or infinite number can't be drawn."""
        numbers = self.left, self.top, self.right, self.bottom, self.score, self.theta
        return all(map(math.isfinite, numbers))

    def corners(self) -> list[tuple[float, float]]:
        """Return the box's four corners, in pixels of the frame."""
        x, y = (self.left + self.right) / 2, (self.top + self.bottom) / 2
        cos, sin = math.cos(self.theta) / 2, math.sin(self.theta) / 2
        width, height = self.right - self.left, self.bottom - self.top
        return [
            (x + width * i * cos - height * j * sin, y + width * i * sin + height * j * cos)
            for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))
        ]

    def outline(self, scale: tuple[float, float]) -> list[tuple[int, int]]:
        """Return the box's corners, in pixels of a picture that is reduced by *scale*."""
        return [(pixel(x * scale[0]), pixel(y * scale[1])) for x, y in self.corners()]


def pixel(value: float) -> int:
    """Round a coordinate, and limit it to the range that OpenCV accepts."""
    return round(min(max(value, -_FARTHEST), _FARTHEST))


def class_colour(class_id: str) -> Colour:
    """Return a class's fixed colour (B, G, R); classes with neighbouring ids differ clearly."""
    is_number = class_id.isascii() and class_id.isdigit() and len(class_id) <= _MOST_DIGITS
    number = int(class_id) if is_number else zlib.crc32(class_id.encode(errors='replace'))
    if number < len(_COLOURS):
        return _COLOURS[number]
    # From one class to the next, the hue moves by a golden section of the colour circle, so that
    # it is far from the hues of the classes before. After some classes, hues come close to earlier
    # hues; therefore saturation and brightness change as well.
    red, green, blue = colorsys.hsv_to_rgb(
        number * _GOLDEN % 1.0, (0.85, 0.55)[number // 7 % 2], (1.0, 0.75, 0.9)[number // 5 % 3]
    )
    return round(blue * 255), round(green * 255), round(red * 255)


class Painter:
    """Draws into BGR pictures of one height; lines and text have a size that suits the height."""

    def __init__(self, height: int) -> None:
        self.line = max(1, round(height / 540))
        self.text_scale = min(2.5, max(0.35, height * 0.00065))
        self.text_line = max(1, round(self.text_scale * 1.5))
        self._taken: list[tuple[int, int, int, int]] = []

    def paint(
        self,
        picture: NDArray[np.uint8],
        boxes: Sequence[LabelledBox],
        scale: tuple[float, float],
        caption: str,
    ) -> None:
        """Draw boxes and labels, those with high scores on top, and *caption* in the corner."""
        self._taken.clear()
        shown = sorted(boxes, key=lambda box: -box.score)[:MOST_BOXES]
        if len(boxes) > len(shown):
            caption = f'{caption}  ({len(boxes) - len(shown)} more not drawn)'
        if caption:
            self._text(picture, caption, 0, 0, _BLACK)
        corners = [self._corners(box, scale) for box in shown]
        for box, (left, top, right, bottom) in zip(
            reversed(shown), reversed(corners), strict=True
        ):
            colour = class_colour(box.class_id)
            if box.theta:
                outline = [np.array(box.outline(scale))]
                cv2.polylines(picture, outline, True, colour, self.line, cv2.LINE_AA)
            else:
                cv2.rectangle(picture, (left, top), (right, bottom), colour, self.line)
        for box, corner in zip(shown, corners, strict=True):
            text = f'{box.name[:_LONGEST_NAME]} {box.score:.2f}'
            if box.track_id:
                text += f' #{box.track_id[:_LONGEST_NAME]}'
            self._label(picture, text, corner, class_colour(box.class_id))

    @staticmethod
    def _corners(box: LabelledBox, scale: tuple[float, float]) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom of the upright rectangle around a box, in pixels."""
        if box.theta:
            xs, ys = zip(*box.outline(scale), strict=True)
            return min(xs), min(ys), max(xs), max(ys)
        return (
            pixel(box.left * scale[0]),
            pixel(box.top * scale[1]),
            pixel(box.right * scale[0]) - 1,
            pixel(box.bottom * scale[1]) - 1,
        )

    def _size(self, text: str) -> tuple[int, int]:
        """Return width and height of the background of a text."""
        (width, height), below = cv2.getTextSize(text, _FONT, self.text_scale, self.text_line)
        return width + 2, height + below + 1

    def _label(
        self,
        picture: NDArray[np.uint8],
        text: str,
        corner: tuple[int, int, int, int],
        colour: Colour,
    ) -> None:
        """Write a label above, in or below its box, where no other label is; else leave it out."""
        text = text.encode('ascii', 'replace').decode()  # the font has only ASCII characters
        left, top, _, bottom = corner
        width, height = self._size(text)
        most_x, most_y = picture.shape[1] - width, picture.shape[0] - height
        x = min(max(0, left), max(0, most_x))
        for wanted in (top - height, top, bottom):
            y = min(max(0, wanted), max(0, most_y))
            if all(
                x + width <= left or right <= x or y + height <= top or bottom <= y
                for left, top, right, bottom in self._taken
            ):
                self._text(picture, text, x, y, colour)
                return

    def _text(self, picture: NDArray[np.uint8], text: str, x: int, y: int, colour: Colour) -> None:
        width, height = self._size(text)
        self._taken.append((x, y, x + width, y + height))
        (_, _), below = cv2.getTextSize(text, _FONT, self.text_scale, self.text_line)
        cv2.rectangle(picture, (x, y), (x + width - 1, y + height - 1), colour, cv2.FILLED)
        blue, green, red = colour
        ink = _BLACK if 0.114 * blue + 0.587 * green + 0.299 * red > 110 else _WHITE
        cv2.putText(
            picture,
            text,
            (x + 1, y + height - below),
            _FONT,
            self.text_scale,
            ink,
            self.text_line,
            cv2.LINE_AA,
        )


_NS = 2_000_000_000
_POINTS = 64
_MOST = 512
"""The largest number of trails, to limit the drawing time if a publisher sends many ids."""


class Trails:
    """Keeps the box centres of each track id for two seconds, and draws them as a line."""

    def __init__(self) -> None:
        self._trails: dict[str, deque[tuple[int, float, float]]] = {}
        self._last_ns = 0

    def paint(
        self,
        picture: NDArray[np.uint8],
        boxes: Sequence[LabelledBox],
        scale: tuple[float, float],
        stamp_ns: int,
        line: int,
    ) -> None:
        """
        Draw the trail of each of *boxes* that has a track id.

        First forget all trails if *stamp_ns* is earlier than in the last call, or more than 2 s
        later.
        """
        if not 0 <= stamp_ns - self._last_ns <= _NS:
            self._trails.clear()
        self._last_ns = stamp_ns
        for box in boxes:
            if box.track_id and (box.track_id in self._trails or len(self._trails) < _MOST):
                trail = self._trails.setdefault(box.track_id, deque(maxlen=_POINTS))
                trail.append((stamp_ns, (box.left + box.right) / 2, (box.top + box.bottom) / 2))
        for name, trail in [*self._trails.items()]:
            while trail and stamp_ns - trail[0][0] > _NS:
                trail.popleft()
            if not trail:
                del self._trails[name]
            elif trail[-1][0] == stamp_ns:  # draw only trails of objects that have a box now
                points = [(pixel(x * scale[0]), pixel(y * scale[1])) for _, x, y in trail]
                cv2.polylines(picture, [np.array(points)], False, class_colour(name), line)
