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
Play folders of pictures, which OpenCV decodes.

Files are sorted by the numbers in their names: 2.png comes before 10.png.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import os
from pathlib import Path
import re
import struct
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.replay.source import DEFAULT_FRAMERATE, FrameSource, Moment, PlaneWriter
from zc_perception.errors import ConfigError, FormatError, RecordingError
from zc_perception.pixel.conversion import even
from zc_perception.pixel.raw_picture import layout_of, RawPicture

UPRIGHT = 1
_JPEG, _PNG = b'\xff\xd8', b'\x89PNG\r\n\x1a\n'
_EXIF = b'Exif\0'
_TAG = 0x0112
_ENTRY_BYTES = 12
_NUMBERS = {3: 'H', 4: 'I'}
_NO_LENGTH = (0x01, *range(0xD0, 0xD8))
_SCAN, _APP1 = 0xDA, 0xE1
# For each EXIF orientation but UPRIGHT, the function that turns the picture upright.
_TURNS: Mapping[int, Callable[[NDArray[Any]], Any]] = {
    2: lambda picture: cv2.flip(picture, 1),
    3: lambda picture: cv2.rotate(picture, cv2.ROTATE_180),
    4: lambda picture: cv2.flip(picture, 0),
    5: cv2.transpose,
    6: lambda picture: cv2.rotate(picture, cv2.ROTATE_90_CLOCKWISE),
    7: lambda picture: cv2.rotate(cv2.transpose(picture), cv2.ROTATE_180),
    8: lambda picture: cv2.rotate(picture, cv2.ROTATE_90_COUNTERCLOCKWISE),
}


def orientation_of(content: NDArray[np.uint8]) -> int:
    """Return the EXIF orientation of an encoded picture, 1 to 8; :data:`UPRIGHT`: it has none."""
    view = content.data
    try:
        for block in _exif_blocks(view):
            found = _orientation_in(block)
            if found:
                return found
    except (struct.error, IndexError):
        pass  # the picture is cut off, or a length in it is wrong; decoding it reports the error
    return UPRIGHT


def turned(picture: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return *picture* (height, width, …) turned upright; it isn't copied if it is upright."""
    turn = _TURNS.get(orientation)
    return picture if turn is None else np.asarray(turn(picture))


def _exif_blocks(view: memoryview) -> Iterator[memoryview]:
    """Yield an encoded picture's blocks of EXIF data; each is structured like a TIFF file."""
    if view[:2] == _JPEG:
        yield from _in_jpeg(view)
    elif view[:8] == _PNG:
        yield from _in_chunks(view, 8, '>I4s', b'eXIf', after=4, padded=False)
    elif bytes(view[:4]) == b'RIFF' and bytes(view[8:12]) == b'WEBP':
        yield from _in_chunks(view, 12, '<4sI', b'EXIF', after=0, padded=True)


def _in_jpeg(view: memoryview) -> Iterator[memoryview]:
    at = 2
    while True:
        # Between segments, skip fill bytes and stray bytes, as decoders do.
        while view[at] != 0xFF or view[at + 1] in (0x00, 0xFF):
            at += 1
        marker, at = view[at + 1], at + 2
        if marker == _SCAN:
            return
        if marker in _NO_LENGTH:
            continue
        (length,) = struct.unpack_from('>H', view, at)
        segment = view[at + 2 : at + length]
        if marker == _APP1 and segment[: len(_EXIF)] == _EXIF:
            yield segment[len(_EXIF) + 1 :]
        at += max(2, length)


def _in_chunks(
    view: memoryview, at: int, head: str, wanted: bytes, *, after: int, padded: bool
) -> Iterator[memoryview]:
    """
    Yield the content of each chunk of kind *wanted* in a PNG or RIFF file.

    :param at: place of the first chunk in *view*.
    :param head: struct format of a chunk's kind and length, in either order.
    :param after: number of bytes that follow each chunk's content.
    :param padded: whether one more byte follows a content of odd length.
    """
    while at < len(view):
        first, second = struct.unpack_from(head, view, at)
        kind, length = (first, second) if isinstance(first, bytes) else (second, first)
        at += struct.calcsize(head)
        if kind == wanted:
            content = view[at : at + length]
            # Some writers put JPEG's prefix in front of the EXIF block.
            prefixed = content[: len(_EXIF)] == _EXIF
            yield content[len(_EXIF) + 1 :] if prefixed else content
        at += length + after + (length % 2 if padded else 0)


def _orientation_in(block: memoryview) -> int:
    """Return the orientation in the EXIF block's first directory; 0: it has none."""
    order = {b'II': '<', b'MM': '>'}.get(bytes(block[:2]))
    if order is None:
        return 0
    (directory,) = struct.unpack_from(f'{order}I', block, 4)
    (count,) = struct.unpack_from(f'{order}H', block, directory)
    for number in range(count):
        at = directory + 2 + _ENTRY_BYTES * number
        tag, kind = struct.unpack_from(f'{order}HH', block, at)
        if tag == _TAG and kind in _NUMBERS:
            (value,) = struct.unpack_from(order + _NUMBERS[kind], block, at + 8)
            return int(value) if value in _TURNS else 0
    return 0


PICTURES = ('.png', '.jpg', '.jpeg', '.bmp', '.webp', '.tif', '.tiff', '.ppm', '.pgm', '.pnm')
_FLAGS = cv2.IMREAD_ANYCOLOR | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION
_SHOWN = 5
_NO_PICTURE = "can't be decoded"
_WHITE = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}
# The header of a PNM file: magic, width, height and the value of white, separated by white space
# and comments.
_PNM = re.compile(rb'P[2356]' + rb'(?:\s|#[^\n]*\n)+(\d+)' * 3)


def decode_picture(content: NDArray[np.uint8]) -> RawPicture:
    """
    Decode a picture (PNG, JPEG, …), turn it upright by its EXIF data, and drop alpha.

    The result is bgr8, mono8 or mono16. Colours have 8 bits; grey levels have 16 bits if the file
    has 16, as depth images do.

    :raises FormatError: the picture can't be decoded. The message begins with a verb; the caller
        puts the picture's name before it.
    """
    if not content.size:
        raise FormatError(_NO_PICTURE)
    try:
        picture = cv2.imdecode(content, _FLAGS)
    except cv2.error:  # the header states a size that OpenCV refuses to allocate
        picture = None
    if picture is None:
        raise FormatError(_NO_PICTURE)
    if picture.dtype not in _WHITE:
        raise FormatError(
            f'has pixels of type {picture.dtype}; only pixels of 8 or 16 bits can be played'
        )
    white = _white(content, picture.dtype)
    if white != 255 and not (picture.ndim == 2 and white == 65535):
        picture = cv2.convertScaleAbs(picture, alpha=255 / white)
    pixels = np.ascontiguousarray(turned(np.asarray(picture), orientation_of(content)))
    height, width = pixels.shape[:2]
    encoding = 'bgr8' if pixels.ndim == 3 else f'mono{8 * pixels.itemsize}'
    data = pixels.reshape(-1).view(np.uint8)
    return RawPicture(width, height, encoding, False, len(data) // height, data)


def _white(content: NDArray[np.uint8], dtype: np.dtype[Any]) -> int:
    """Return the pixel value of white. A PNM file states this value, but OpenCV ignores it."""
    named = _PNM.match(content[:1024].tobytes())
    return (int(named[3]) or 1) if named else _WHITE[dtype]


def natural_key(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Return a sort key that compares numbers in names by value: '2.png' < '10.png'."""
    parts = re.split(r'(\d+)', name.lower())
    return [(1, int(part), '') if part.isdecimal() else (0, 0, part) for part in parts], name


def pictures_in(folder: Path) -> list[Path]:
    """Return the picture files of *folder*, sorted by :func:`natural_key`, without hidden ones."""
    found = [
        path
        for path in folder.iterdir()
        if path.suffix.lower() in PICTURES and not path.name.startswith('.') and path.is_file()
    ]
    return sorted(found, key=lambda path: natural_key(path.name))


class ImageSource(FrameSource):
    """
    Plays pictures at a given rate, because pictures have no times of their own.

    All pictures must have one size after they are turned upright. A folder with pictures of
    several sizes is refused, because it isn't a camera's recording.
    """

    def __init__(self, path: str, width: int = 0, height: int = 0, framerate: float = 0.0) -> None:
        try:
            self._files = pictures_in(Path(path)) if Path(path).is_dir() else [Path(path)]
        except OSError as error:
            raise ConfigError(f"folder '{path}' can't be read: {error.strerror}") from error
        if not self._files:
            there = ', '.join(sorted(os.listdir(path))[:_SHOWN]) or 'nothing'
            raise ConfigError(
                f"folder '{path}' has no picture and no recording, it has {there}; "
                f'pictures end in {", ".join(PICTURES)}'
            )
        try:
            first = _read_picture(self._files[0])
        except FormatError as error:
            raise ConfigError(
                f"picture '{self._files[0]}' {error}; remove it, or convert it to PNG"
            ) from error
        self._own = first.width, first.height
        if min(self._own) < 2:
            raise ConfigError(
                f"picture '{self._files[0]}' is {self._own[0]}x{self._own[1]}; "
                'pictures must be at least 2x2'
            )
        super().__init__(
            path,
            width or even(self._own[0]),
            height or even(self._own[1]),
            framerate or DEFAULT_FRAMERATE,
        )
        self._deep = first.encoding == 'mono16'
        self._writer = PlaneWriter(self.width, self.height)

    def _moment(self) -> Moment | None:
        return self._nominal() if self.number < len(self._files) else None

    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """
        Write the current picture into *planes*; return ``False`` if it can't be decoded.

        :raises RecordingError: the picture's size differs from the first picture's size.
        """
        file = self._files[self.number]
        try:
            picture = _read_picture(file)
        except FormatError:
            return False
        if (picture.width, picture.height) != self._own:
            raise RecordingError(
                f"picture '{file}' is {picture.width}x{picture.height}, '{self._files[0].name}' "
                f'is {self._own[0]}x{self._own[1]}; all pictures of a folder must have one size: '
                'scale them, or put them into folders of their own'
            )
        self._writer.write(picture, layout_of(picture), planes)
        return True

    def notice(self) -> str:
        return (
            f"'{self._files[0]}' has grey levels of 16 bits: they are played as brightness, "
            '65535 is white; if it is a depth image, play the folder of the colour pictures'
            if self._deep
            else ''
        )


def _read_picture(path: Path) -> RawPicture:
    """Read and decode a file; not by cv2.imread, which prints an error if opening it fails."""
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise FormatError(f"can't be read: {error.strerror}") from error
    return decode_picture(content)
