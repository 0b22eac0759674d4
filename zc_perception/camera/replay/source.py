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
The base of the sources that the replay camera plays.

:func:`recording_path` returns the path of a recording. :func:`refuse_foreign` refuses files whose
first bytes show that they are no recordings. :class:`FrameSource` is the base class of the sources
for the kinds of recordings. :class:`PlaneWriter` converts pictures to NV12 planes and scales them,
in one pass over the pixels (two for Bayer). :class:`RecordedStamps` replaces useless stamps: if a
camera has no clock, all its frames have the stamp 0 or the same constant.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
import os
from pathlib import Path
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.mcap_file import MAGIC, METADATA, SUFFIX
from zc_perception.errors import ConfigError
from zc_perception.frame import Header
from zc_perception.local_path import local_path
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.conversion import cut_to, even, Planes, ToNv12
from zc_perception.pixel.fourcc import NV12, pixel_format
from zc_perception.pixel.layout import check_dimensions, ImageLayout
from zc_perception.pixel.raw_picture import PictureReader, RawPicture

ZSTD = b'\x28\xb5\x2f\xfd'
_URL = re.compile(r'(?!file:)[a-z][a-z0-9+.-]*://', re.IGNORECASE)
_SECRET = re.compile(r'(?<=://)[^/@]*@')


def recording_path(video: str) -> str:
    """
    Return the local path of the recording that parameter ``video`` names.

    :raises ConfigError: *video* is empty, the URL of a stream, or a path that doesn't exist or is
        a pipe or device. Reading a pipe or device could block for ever.
    """
    if not video:
        raise ConfigError(
            "parameter 'video' is empty; camera 'replay' needs the path of a video file or of "
            'another recording'
        )
    if _URL.match(video) and not os.path.exists(video):
        raise ConfigError(
            f"parameter 'video' is '{_SECRET.sub('', video)}'; camera replay plays what a path or "
            "a file:// URL names; for a stream set 'camera' to gstreamer and 'pipeline' to "
            "'uridecodebin uri=URL ! videoconvert'"
        )
    path = local_path(video, 'video')
    if not os.path.exists(path):
        raise ConfigError(
            f"video '{path}' does not exist; set parameter 'video' to the path of a video file "
            'or another recording'
        )
    if not os.path.isfile(path) and not os.path.isdir(path):
        raise ConfigError(
            f"video '{path}' is neither a file nor a folder; "
            "set parameter 'video' to the path of a recording"
        )
    return path


_COMPRESSED = {
    'zstd': ZSTD,
    'gzip': b'\x1f\x8b\x08',
    'xz': b'\xfd7zXZ\0',
    'bzip2': b'BZh',
    'lz4': b'\x04\x22\x4d\x18',
}
_FOREIGN = (
    *(
        (f'compressed by {tool}', magic, f"run {tool} -dc 'PATH' > 'TARGET' and play 'TARGET'")
        for tool, magic in _COMPRESSED.items()
    ),
    (
        'a bag of ROS 1',
        b'#ROSBAG V',
        "run rosbags-convert --src 'PATH' --dst 'TARGET' (pip install rosbags) and play 'TARGET'",
    ),
    ('a zip archive', b'PK\x03\x04', "run unzip 'PATH' and play what was in it"),
    ('a tar archive', b'ustar', "run tar -xf 'PATH' and play what was in it"),
    (
        'only a pointer of Git LFS',
        b'version https://git-lfs.github.com/spec/',
        'run git lfs pull in its repository, then play it again',
    ),
)
"""
Kinds of files that can't be played: name, first bytes, and how to extract the recording.

In the last text PATH stands for the file's path, and TARGET for this path without suffix.
"""
_TAR_AT = 257
BAG_MAGIC = {SUFFIX: MAGIC, '.db3': b'SQLite format 3\0'}
"""
The first bytes of rosbag2's storage files, by suffix.

The keys are in lower case, because rosbags accepts no other suffixes.
"""


def refuse_foreign(path: Path) -> None:
    """
    Refuse a file whose first bytes don't belong to a recording or don't fit its name.

    :raises ConfigError: the file is refused; the message names its kind and the next step.
    """
    try:
        with path.open('rb') as file:
            head = file.read(512)
    except OSError as error:
        raise ConfigError(f"'{path}' can't be read: {error.strerror}") from error
    if not head:
        raise ConfigError(
            f"'{path}' is empty (0 bytes): nothing was recorded, or copying the file failed; "
            'play another file'
        )
    for name, magic, how in _FOREIGN:
        if head.startswith(magic, _TAR_AT if magic == b'ustar' else 0):
            step = how.replace('PATH', str(path)).replace('TARGET', str(path.with_suffix('')))
            if magic == ZSTD and (path.parent / METADATA).is_file():
                step = f"play its folder '{path.parent}', or {step}"
            raise ConfigError(f"'{path}' is {name}, which can't be played; {step}")
    for suffix, magic in BAG_MAGIC.items():
        if head.startswith(magic) and path.suffix != suffix:
            raise ConfigError(
                f"'{path}' has the content of {suffix} files; rename it to '{path.stem}{suffix}'"
            )
    wanted = BAG_MAGIC.get(path.suffix.lower(), b'')
    if not head.startswith(wanted):
        raise ConfigError(
            f"'{path}' is no {path.suffix} file, because it begins with {head[: len(wanted)]!r}; "
            'play another file'
        )


class RecordedStamps:
    """
    Replaces useless stamps of a recording's frames; call :meth:`stamp` for each frame in order.

    A stamp is useless if it is 0 or equal to the previous frame's stamp. The replacement is the
    last good stamp, plus the time that passed at the recorder between the frame with that stamp
    and the frame with the useless stamp. Before the first good stamp, the replacement is the time
    at which the recorder got the frame. Good stamps don't change, because other recorded messages
    refer to them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._replaced = False
        self._went_back = False
        self.restart()

    def restart(self) -> None:
        """Forget the stamps so far, because the recording is played from its start again."""
        self._before: int | None = None
        self._good: tuple[int, int] | None = None
        self._given: int | None = None

    def stamp(self, recorded: int, at_ns: int) -> int:
        """
        Return the stamp of the next frame.

        :param recorded: the frame's own stamp.
        :param at_ns: the time at which the recorder got the frame.
        """
        before, self._before = self._before, recorded
        if recorded > 0 and recorded != before:
            self._good = recorded, at_ns
            self._went_back |= self._given is not None and recorded < self._given
            given = recorded
        else:
            self._replaced = True
            base, since_ns = self._good or (at_ns, at_ns)
            given = base + at_ns - since_ns
            if self._given is not None:
                given = max(given, self._given + 1)
        self._given = given
        return given

    def notice(self) -> str:
        """Return a sentence about useless stamps up to now; empty: all were good."""
        found = []
        if self._replaced:
            found.append(
                'has stamps that are 0 or equal to the previous one: times of the '
                "recorder's clock replace them"
            )
        if self._went_back:
            found.append('has stamps that go back: they stay as they are')
        return f"'{self._name}' {' and '.join(found)}" if found else ''


DEFAULT_FRAMERATE = 30.0
LONGEST_PAUSE_NS = 3_600_000_000_000
"""
A pause from this length on isn't played. Mostly, a clock was set while the recorder ran, or it
recorded only when something moved.
"""
RATE_FROM = 64
"""Number of frames at a recording's start that are read to compute the frame rate."""


@dataclass(frozen=True)
class Moment:
    """
    The time and header of the next frame, whose pixels are not read yet.

    :param time_ns: the frame's time in ns since the source's first frame, by the source's clock.
    :param header: the recorded header, if the source has headers.
    """

    time_ns: int
    header: Header | None = None


class FrameSource(ABC):
    """
    A source of frames in their order.

    Only one thread may use it. Frames are scaled to *width* and *height*.

    :param name: the recording's name, for messages.
    :param framerate: frames per second. If the recording has time stamps, the frames follow the
        stamps instead.
    """

    fourcc = NV12
    colorimetry = BT601_LIMITED
    has_headers = False
    stamps: RecordedStamps | None = None
    """The object that replaces useless stamps; ``None``: the recording has no message headers."""
    left_out_ns = 0
    """Length of the pauses that :meth:`advance` has left out since the first frame."""
    number = -1
    """Number of the frame that :meth:`advance` last went to, or failed to reach; -1: none yet."""

    def __init__(self, name: str, width: int, height: int, framerate: float) -> None:
        self.name = name
        self.width = width
        self.height = height
        self.framerate = framerate

    def advance(self) -> Moment | None:
        """
        Go to the next frame and return its time and header; ``None``: the recording has ended.

        :raises RecordingError: the rest of the recording can't be read.
        """
        self.number += 1
        return self._moment()

    @abstractmethod
    def _moment(self) -> Moment | None:
        """Return time and header of frame :attr:`number`; ``None``: the recording has ended."""

    def _nominal(self) -> Moment:
        """Compute a frame's time from its number, for a recording that has only a rate."""
        return Moment(round(self.number * 1e9 / self.framerate))

    @abstractmethod
    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """Write the current frame's pixels into *planes*; return ``False`` if it is damaged."""

    def restart(self) -> None:
        """Start again: the next :meth:`advance` goes to the first frame."""
        self.number, self.left_out_ns = -1, 0

    def seek(self, offset_ns: int) -> Moment | None:
        """
        Go on to the first frame that is at least *offset_ns* after the recording's first frame.

        :raises RecordingError: the recording can't be read up to this frame.
        """
        while (moment := self.advance()) is not None and moment.time_ns < offset_ns:
            pass
        return moment

    def duration_ns(self) -> int:
        """Return ns from the first to the last message of all topics; 0: there are no topics."""
        return 0

    def notice(self) -> str:
        """Return a sentence about missing or damaged parts of the recording; empty: none."""
        return ''

    def close(self) -> None:  # noqa: B027
        """Close the recording's files. Idempotent."""


def rate_of(stamps: Iterable[int]) -> float:
    """
    Return frames per second from the median interval of *stamps*, which are in ns.

    If they are too few or all equal, return :data:`DEFAULT_FRAMERATE`.
    """
    intervals = np.diff(sorted(stamps))
    middle = float(np.median(intervals)) if len(intervals) else 0.0
    return 1e9 / middle if middle > 0 else DEFAULT_FRAMERATE


_FULL = Colorimetry(Matrix.RGB, Range.FULL)


class PlaneWriter:
    """
    Writes pictures into NV12 planes of one size.

    It allocates scratch memory for the first picture of each size, format and colorimetry.

    :param width: width of the planes in pixels.
    :param height: height of the planes in pixels.
    :raises LayoutError: NV12 can't have this size.
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
        Write a picture that is given as planes of any format that this package can read.

        If the picture is larger than *planes* only by an odd last row or column, this row or
        column is cut off. A picture of any other size is scaled. Pictures that have luma and
        chroma keep their matrix and range; all others become BT.601, limited range.

        :raises FormatError: this package can't convert the picture's format or colorimetry.
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
        Write *picture*, which is one array, into *planes*.

        Y'CbCr pictures are read as BT.601, limited range; grey pictures as full range (0..255).

        :param layout: the picture's layout, from :func:`layout_of`.
        """
        fourcc, sources = self._reader.read(picture, layout)
        colorimetry = BT601_LIMITED if layout.format.is_yuv else _FULL
        self.write_planes(fourcc, (picture.width, picture.height), colorimetry, sources, planes)
