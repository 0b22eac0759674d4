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

"""Video files. PyAV decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from zc_perception.camera.replay.source import DEFAULT_FRAMERATE, FrameSource, Moment
from zc_perception.camera.replay.video_file import VideoFile
from zc_perception.camera.replay.video_picture import PictureWriter
from zc_perception.errors import ConfigError, FormatError, RecordingError
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.nv12 import even

# Frames at the start without one that can be decoded, before the file counts as one that can't be.
_FIRST_TRIES = 1000
# The most that parameter 'framerate' takes.
_MOST_FRAMERATE = 1000.0
_MOST_NAMED = 5
_BEGINS_ANEW_NS = 1_000_000_000


class _Clock:
    """
    The times of frames.

    :param unit_s: of the file's own times.
    :param interval_ns: between frames that have none.
    """

    def __init__(self, unit_s: float, interval_ns: int) -> None:
        self._unit_ns = unit_s * 1e9
        self._interval_ns = interval_ns
        self._begin: int | None = None
        self._begin_ns = 0
        self._last_ns: int | None = None

    def time_ns(self, key: int | None) -> int:
        """
        Return the next frame's time.

        It never goes back. Where a file's times begin anew, as in recordings that were joined,
        they go on.
        """
        due_ns = 0 if self._last_ns is None else self._last_ns + self._interval_ns
        if key is not None and self._begin is not None:
            own_ns = self._begin_ns + round((key - self._begin) * self._unit_ns)
            if self._last_ns is None or own_ns > self._last_ns - _BEGINS_ANEW_NS:
                due_ns = max(own_ns, self._last_ns or 0)
            else:
                self._begin = None
        if key is not None and self._begin is None:
            self._begin, self._begin_ns = key, due_ns
        self._last_ns = due_ns
        return due_ns


class VideoSource(FrameSource):
    """
    A file's frames at its own times, turned as it says, in its own colour matrix and range.

    R, G, B and grey become BT.601 limited. Interlaced frames stay as they are decoded, and so do
    pixels that are no squares. An odd last column or row is cut off.

    :param framerate: what the user says of the recording; 0: nothing.
    :raises ConfigError: it can't be played; says why.
    """

    def __init__(self, path: str, width: int = 0, height: int = 0, framerate: float = 0.0) -> None:
        super().__init__(path, width, height, DEFAULT_FRAMERATE)
        self._frame: Any = None
        self._damaged: list[int] = []
        self._damaged_count = 0
        self._damaged_in_all: int | None = None
        self._shortfall = ''
        self._file = VideoFile(path)
        try:
            self._prepare(self._first_good(), framerate)
            self.restart()
        except BaseException as error:
            self.close()
            if isinstance(error, FormatError):
                raise ConfigError(f"video '{path}' can't be played: {error}") from error
            if isinstance(error, RecordingError):
                raise ConfigError(str(error)) from error
            raise

    def _first_good(self) -> Any:
        """Return the first frame that can be decoded."""
        for _ in range(_FIRST_TRIES):
            found = self._file.next()
            if self._file.encrypted:
                raise ConfigError(f"video '{self.name}' is encrypted; decrypt it before")
            if found is None:
                break
            if found.frame is not None:
                return found.frame
        raise ConfigError(
            f"video '{self.name}': no frame can be decoded as {self._file.codec}; "
            'it is damaged, or encrypted'
        )

    def _prepare(self, frame: Any, framerate: float) -> None:
        size = frame.width, frame.height
        if min(size) < 2:
            raise ConfigError(
                f"video '{self.name}': its pictures are {size[0]}x{size[1]}; "
                'they must be at least 2x2'
            )
        file = self._file
        self._said, turn = file.said(frame), file.turn(frame)
        upright = size[::-1] if turn[0] == 0 else size
        self.width, self.height = self.width or even(upright[0]), self.height or even(upright[1])
        self._writer = PictureWriter(self.width, self.height, turn, file.reformatter())
        colours = self._writer.colorimetry(frame, self._said)
        self.colorimetry = self._writer.written(colours)
        self._look = _look_of(frame, colours)
        self.framerate = file.framerate(framerate, _MOST_FRAMERATE)

    def _moment(self) -> Moment | None:
        found = self._file.next()
        if found is None:
            self._frame = None
            self._damaged_in_all = self._damaged_count
            self._shortfall = self._file.shortfall(self.number, 1 / self.framerate)
            return None
        self._frame = found.frame
        if found.frame is None:
            self._damaged_count += 1
            if len(self._damaged) < _MOST_NAMED and self.number not in self._damaged:
                self._damaged.append(self.number)
        return Moment(self._clock.time_ns(found.key))

    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """
        Read the next frame.

        :raises RecordingError: it has another size, turn or colorimetry than the first.
        """
        frame = self._frame
        if frame is None:
            return False
        try:
            said = self._file.said(frame).completed(self._said)
            colours = self._writer.colorimetry(frame, said)
        except FormatError as error:
            raise RecordingError(f"video '{self.name}' changes: {error}") from error
        for before, now in zip(self._look, _look_of(frame, colours), strict=True):
            if now != before:
                raise RecordingError(
                    f"video '{self.name}' changes from {before} to {now}; "
                    "cut it there and play its parts one by one, for example with 'ffmpeg -ss'"
                )
        self._writer.write(frame, colours, planes)
        return True

    def restart(self) -> None:
        """Open it again: not every container can seek to its exact first frame."""
        super().restart()
        self._frame = None
        self._file.close()
        try:
            self._file = VideoFile(self.name)
        except ConfigError as error:
            raise RecordingError(str(error)) from error
        self._clock = _Clock(self._file.unit_s, round(1e9 / self.framerate))
        self._damaged_count = 0

    def notice(self) -> str:
        found = []
        if self._file.others:
            found.append(
                f'it has {self._file.others + 1} video streams, of which the first is played; '
                "'ffmpeg -i IN -map 0:v:1 -c copy OUT' takes the second out"
            )
        if self._damaged:
            numbers = ', '.join(map(str, self._damaged))
            if self._damaged_in_all is None:
                more = ' and more' if self._damaged_count > len(self._damaged) else ''
            else:
                rest = self._damaged_in_all - len(self._damaged)
                more = f' and {rest} more' if rest > 0 else ''
            found.append(f'damaged frames are left out and counted as bad: frame {numbers}{more}')
        if self._shortfall:
            found.append(self._shortfall)
        return f"video '{self.name}': {'; '.join(found)}" if found else ''

    def close(self) -> None:
        self._frame = None
        self._file.close()


def _look_of(frame: Any, colours: Colorimetry) -> tuple[str, str, str]:
    """Describe what all frames of a recording have in common."""
    return (
        f'{frame.width}x{frame.height}',
        f'{colours.matrix.value} {colours.range.value}',
        # Before version 14 frames don't say.
        f'a turn by {getattr(frame, "rotation", 0)} degrees',
    )
