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
One pass through a video file: its frames in the order in which they are shown.

Each is good or damaged. The file also says what rate it has, and whether it was cut off.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Generator, Iterator
import os
import re
from typing import Any, NamedTuple

from zc_perception.camera.replay.source import RATE_FROM, rate_of
from zc_perception.camera.replay.video_facts import Said, said_by, Turn, turn_of
from zc_perception.camera.replay.video_opening import open_video
from zc_perception.errors import ConfigError, RecordingError

# They share the slices of one picture, of which there are rarely more. The other CPUs are the
# detector's. Threads with a picture each would be quicker, but then nobody knows which picture an
# error is about.
_MOST_THREADS = 4
# No codec shows a picture later than after so many others.
_MOST_REORDERED = 16
# Reading goes on behind a damaged place, but not for ever.
_READ_TRIES = 8
_TOLERANCE_S = 0.2
_MATROSKA_TIME = re.compile(r'(\d+):(\d+):(\d+\.?\d*)')


class Decoded(NamedTuple):
    """
    A frame.

    :param key: its time, in units of the stream; ``None``: the file has none.
    :param frame: PyAV's; ``None``: it is damaged.
    """

    key: int | None
    frame: Any


class VideoFile:
    """
    A file's frames, from its first one on.

    To begin again, open another object.

    :raises ConfigError: nothing here can play it.
    """

    def __init__(self, path: str) -> None:
        self._av, self._container, self._stream, self.others = open_video(path)
        self._path = path
        self._codec = self._stream.codec_context
        self._codec.thread_type = 'SLICE'
        self._codec.thread_count = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        self.codec = str(self._codec.name)
        if self._codec.codec.intra_only or self.codec == 'hevc':
            # By default these decoders give a damaged picture as a good one, and what is missing
            # of it is what was in its memory before. Others conceal that, and mark the picture.
            self._codec.options = {'err_detect': 'explode'}
        # AVI has no times at which frames are shown. FFmpeg guesses them wrong for H.264.
        self._by_order = self._container.format.name == 'avi'
        self.unit_s = float(self._stream.time_base)
        self._end: int | None = None
        self._keys: list[int] = []
        self.encrypted = False
        self._frames = self._decoded()

    def reformatter(self) -> Any:
        """Return FFmpeg's conversion of pixels, for frames of any format."""
        return self._av.video.reformatter.VideoReformatter()

    def said(self, frame: Any) -> Said:
        """Return what the stream says of a frame's colours."""
        return said_by(frame, self._codec)

    def turn(self, frame: Any) -> Turn:
        """
        Return how the first frame, and with it all of them, is turned.

        :raises FormatError: it isn't turned by a quarter of a circle.
        """
        return turn_of(frame)

    def next(self) -> Decoded | None:  # noqa: A003
        """
        Return the next frame; ``None``: there is none.

        A frame that the decoder leaves out because the file begins between key frames counts as
        damaged.

        :raises RecordingError: the file can't be read on.
        """
        return next(self._frames, None)

    def _decoded(self) -> Generator[Decoded, None, None]:
        early: list[int] | None = []
        damaged: list[int] = []
        for packet in self._packets():
            key = None if packet is None else self._key(packet)
            frames, error = self._decode(packet)
            if early is not None and key is not None:
                early.append(key)
            if error and key is not None and not self._by_order:
                if key not in damaged:
                    insort(damaged, key)
            elif error and packet is not None:
                yield Decoded(key, None)
            for frame in frames:
                shown = self._key(frame)
                if early is not None and shown is not None and not self._by_order:
                    begin = self._stream.start_time or 0
                    damaged = sorted({*damaged, *(k for k in early if begin <= k < shown)})
                early = None
                while damaged and (shown is None or damaged[0] < shown):
                    yield Decoded(damaged.pop(0), None)
                # Some decoders say that a picture is damaged, and give it later all the same.
                hit = bool(damaged) and damaged[0] == shown
                if hit:
                    damaged.pop(0)
                yield Decoded(shown, None if hit or frame.is_corrupt else frame)
            while len(damaged) > _MOST_REORDERED:
                yield Decoded(damaged.pop(0), None)
        for key in damaged:
            yield Decoded(key, None)

    def _packets(self) -> Iterator[Any]:
        """Yield packets with content, and finally ``None``, for what the decoder still has."""
        tries = 0
        while tries < _READ_TRIES:
            try:
                for packet in self._container.demux(self._stream):
                    if packet.size or packet.dts is not None:
                        tries = 0
                        self._count(packet)
                    if packet.size:
                        yield packet
                break
            except IndexError:
                # PyAV, at the end of a file to which a stream came when it was open already.
                break
            except self._av.error.InvalidDataError:
                tries += 1
            except self._av.error.FFmpegError as error:
                raise RecordingError(
                    f"video '{self._path}' can't be read on: {error.strerror}"
                ) from error
        yield None

    def _count(self, packet: Any) -> None:
        if not self._keys and hasattr(packet, 'has_sidedata'):
            self.encrypted = packet.has_sidedata('encryption_info')
        key = self._key(packet)
        if key is not None:
            self._end = max(self._end or key, key + (packet.duration or 0))
            if len(self._keys) < RATE_FROM:
                self._keys.append(key)

    def _decode(self, packet: Any) -> tuple[list[Any], bool]:
        """Return the frames that come out, and whether *packet* is damaged."""
        try:
            return self._codec.decode(packet), False
        except self._av.error.FFmpegError:
            return [], True

    def _key(self, timed: Any) -> int | None:
        """Return the time of a packet or a frame."""
        key = timed.dts if self._by_order else timed.pts
        return None if key is None else int(key)

    def framerate(self, wanted: float, most: float) -> float:
        """
        Return frames per second: the header's, unless the first frames' times disagree.

        :param wanted: what the user says; 0: nothing.
        :param most: the highest rate that is believed.
        :raises ConfigError: it is beyond that, and the user says nothing.
        """
        for _ in self._packets():
            if len(self._keys) == RATE_FROM:
                break
        named = float(self._stream.average_rate or 0)
        measured = rate_of(round(key * 1e9 * self.unit_s) for key in self._keys)
        # The header's has not been rounded. Some have that of a clock, or a mean with long pauses.
        near = 0.2 * measured < named < 2.5 * measured
        rate = named if near or (named and len(self._keys) < 2) else measured
        if rate <= most:
            return rate
        if not wanted:
            raise ConfigError(
                f"video '{self._path}' has {rate:g} frames per second by their times, "
                f'{named:g} by its header, and at most {most:g} are believed; '
                "set parameter 'framerate' to the true rate"
            )
        return wanted

    def shortfall(self, came: int, interval_s: float) -> str:
        """
        Explain what the file promised and did not hold, once all frames have come.

        Empty: nothing.

        :param came: how many frames came.
        :param interval_s: between two frames.
        """
        begin = self._stream.start_time or 0
        end_s = ((self._end or begin) - begin) * self.unit_s
        promised, promised_s = self._stream.frames, self._promised_s()
        if promised_s - end_s <= max(_TOLERANCE_S, 1.5 * interval_s):
            return ''
        many = f'{promised} frames in ' if promised else ''
        return (
            f'it ends after {came} frames in {end_s:.4g} s, '
            f'its header promises {many}{promised_s:.4g} s'
        )

    def _promised_s(self) -> float:
        """Return how long the header says that the pictures last; 0: it doesn't say."""
        if not self._keys:  # without times it is a guess from the size of the file
            return 0.0
        if self._by_order:  # FFmpeg measures a cut AVI anew, but keeps the header's number
            return float(self._stream.frames * self.unit_s)
        if self._stream.duration is not None:
            return float(self._stream.duration * self.unit_s)
        for name, value in self._stream.metadata.items():
            end = _MATROSKA_TIME.fullmatch(value) if name.startswith('DURATION') else None
            if end:
                hours, minutes, seconds = (float(part) for part in end.groups())
                begin_s = (self._stream.start_time or 0) * self.unit_s
                return 3600 * hours + 60 * minutes + seconds - begin_s
        # Of several streams it may be another one that lasts so long.
        alone = len(self._container.streams) == 1
        return (self._container.duration or 0) / 1e6 if alone else 0.0

    def close(self) -> None:
        """Give threads and descriptor back. Idempotent."""
        container, self._container = self._container, None
        if container is None:
            return
        self._frames.close()
        # In old PyAV the decoder's threads wait for the garbage collector otherwise.
        if hasattr(self._codec, 'close'):
            self._codec.close(False)
        self._codec = self._stream = None
        container.close()
