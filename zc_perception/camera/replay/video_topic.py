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
Video of a topic (``foxglove_msgs/msg/CompressedVideo``).

Each message is one picture. It needs the pictures before it, back to a key frame, and no later
one. PyAV decodes it.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
from typing import Any

from numpy.typing import NDArray

from zc_perception.camera.replay.video_facts import said_by, UPRIGHT
from zc_perception.camera.replay.video_opening import pyav
from zc_perception.camera.replay.video_picture import PictureWriter
from zc_perception.errors import FormatError, RecordingError
from zc_perception.pixel.colorimetry import Colorimetry

DEFINITION = """\
builtin_interfaces/Time timestamp
string frame_id
uint8[] data
string format
"""
"""The definition of such a message, whose package need not be installed."""
_CODECS = {'h264': 'h264', 'h265': 'hevc', 'vp9': 'vp9', 'av1': 'libdav1d'}


class TopicDecoder:
    """
    Decodes the messages of one topic in their order.

    :raises ConfigError: PyAV is missing or too old.
    """

    def __init__(self, name: str) -> None:
        self._av = pyav(name)
        self._name = name
        self._codec: Any = None
        self._format = ''
        self._writer: PictureWriter | None = None
        self._colours: Colorimetry | None = None

    def restart(self) -> None:
        """Note that the next picture is the recording's first."""
        self._codec = None

    def decode(self, form: str, data: NDArray[Any]) -> Any:
        """
        Return a message's picture, a frame of PyAV.

        :raises FormatError: it is damaged, or what it refers to did not come.
        :raises RecordingError: its time can't be known, since later pictures come before it.
        """
        if form not in _CODECS:
            raise FormatError(f"format '{form[:60]}' is none of {', '.join(_CODECS)}")
        if self._codec is None or form != self._format:
            self._format, self._codec = form, self._av.CodecContext.create(_CODECS[form], 'r')
            # One picture in, one out; damage is said, as in video_file.py.
            self._codec.thread_type = 'SLICE'
            detect = {'err_detect': 'explode'} if form == 'h265' else {}
            self._codec.options = {'flags': 'low_delay', **detect}
        frames: list[Any] = []
        with contextlib.suppress(self._av.error.FFmpegError):
            frames = self._codec.decode(self._av.Packet(data.tobytes()))
        if self._codec.has_b_frames:
            raise RecordingError(
                f"recording '{self._name}' has B-frames, which belong to another message's time; "
                'record it from an encoder without them (max_b_frames: 0)'
            )
        if not frames or frames[-1].is_corrupt:
            raise FormatError('its picture is damaged, or no key frame came before')
        return frames[-1]

    def begin(self, frame: Any, size: tuple[int, int]) -> Colorimetry:
        """
        Return what frames of *size* say of their colours, made of pictures such as this one.

        :raises FormatError: its colours have no conversion.
        """
        self._writer = PictureWriter(*size, UPRIGHT, self._av.video.reformatter.VideoReformatter())
        self._colours = self._writer.colorimetry(frame, said_by(frame, self._codec))
        return self._writer.written(self._colours)

    def write(self, frame: Any, planes: Sequence[NDArray[Any]]) -> None:
        """
        Write a picture's pixels.

        :raises RecordingError: its colours are others than the first one's.
        """
        assert self._writer is not None and self._colours is not None
        try:
            colours = self._writer.colorimetry(frame, said_by(frame, self._codec))
        except FormatError as error:
            raise RecordingError(f"recording '{self._name}' changes: {error}") from error
        if colours != self._colours:
            raise RecordingError(
                f"recording '{self._name}' changes its colours; play its parts one by one"
            )
        self._writer.write(frame, colours, planes)
