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

"""Opening a video file with PyAV (extra ``video``), or saying what the file is instead."""

from __future__ import annotations

import codecs
import importlib
import os
from typing import Any, NamedTuple

from zc_perception.errors import ConfigError, message_of, NO_DESCRIPTOR, shown

_HEAD_BYTES = 1024
# What a text has below a blank.
_TEXT_CONTROLS = frozenset(b'\t\n\v\f\r\x1b')
# A line of text with binary pictures behind it.
_YUV4MPEG = b'YUV4MPEG2'
_COVER_RATE = 90_000
# libavformat of FFmpeg 6.1, the first whose frames have what is said of their stream.
_ASKABLE = (60, 16)
_CONVERT = "convert it to H.264 with another program, for example 'ffmpeg -i IN OUT.mp4'"
_ANOTHER = "set parameter 'video' to the path of a video file or another recording"


class OpenVideo(NamedTuple):
    """
    An open file.

    :param av: PyAV.
    :param stream: of *container*, the one to play.
    :param others: how many more streams it has that could be played.
    """

    av: Any
    container: Any
    stream: Any
    others: int


def open_video(path: str) -> OpenVideo:
    """
    Open *path*.

    :raises ConfigError: PyAV is missing, or the file is no video that it can decode; says what the
        file is.
    """
    av = pyav(path)
    head = _head(path)
    try:
        # A name with a colon would be taken for a protocol, and a playlist could name any host.
        container = av.open(
            f'file:{os.path.abspath(path)}',
            options={'protocol_whitelist': 'file'},
            metadata_errors='replace',
        )
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise ConfigError(_why_not(path, head, error)) from error
    try:
        stream, others = _choose(path, container)
    except BaseException:
        container.close()
        raise
    return OpenVideo(av, container, stream, others)


def pyav(path: str) -> Any:
    """
    Return PyAV.

    :raises ConfigError: it is missing, or too old to say how pictures are turned and coloured.
    """
    try:
        av = importlib.import_module('av')
        importlib.import_module('av.video.reformatter')
    except ImportError as error:
        raise ConfigError(
            f"video '{path}' needs the library PyAV, which is not installed: "
            'sudo apt install python3-av, or pip install av'
        ) from error
    version = av.library_versions['libavformat'][:2]
    if version < _ASKABLE or not hasattr(av.VideoCodecContext, 'color_trc'):
        raise ConfigError(
            f"video '{path}' needs PyAV 12 with FFmpeg 6.1, or newer; here is PyAV "
            f'{av.__version__} '
            f'with libavformat {".".join(map(str, version))}, which does not say how pictures are '
            "turned and coloured: pip install -U 'av<20'"
        )
    # Old ones hand FFmpeg's warnings to Python's logging, from the threads that decode.
    if av.logging.get_level() is not None:
        av.logging.set_level(av.logging.PANIC)
    return av


def _head(path: str) -> bytes:
    """
    Return the first bytes.

    :raises ConfigError: they are text, or can't be read.
    """
    try:
        with open(path, 'rb') as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        reason = NO_DESCRIPTOR.get(error.errno or 0, error.strerror)
        raise ConfigError(f"video '{path}' can't be read: {reason}") from error
    line = _first_line(head)
    if line is not None:
        raise ConfigError(
            f"video '{path}' is a text, not a video; it begins with {shown(line)}: {_ANOTHER}"
        )
    return head


def _first_line(head: bytes) -> str | None:
    """
    Return the first line of a text; ``None``: it is none.

    FFmpeg would play a text as a picture of a terminal, and follow a playlist.
    """
    controls = (byte for byte in head if byte < 0x20 and byte not in _TEXT_CONTROLS)
    if not head or head.startswith(_YUV4MPEG) or any(True for _ in controls):
        return None
    try:
        # The last character may be cut.
        text = codecs.getincrementaldecoder('utf-8-sig')().decode(head)
    except UnicodeDecodeError:
        return None
    return next((line.strip() for line in text.splitlines() if line.strip()), '')


def _why_not(path: str, head: bytes, error: Exception) -> str:
    number = getattr(error, 'errno', 0)
    if number in NO_DESCRIPTOR:
        return f"video '{path}' can't be opened: {NO_DESCRIPTOR[number]}"
    if head[4:8] == b'ftyp':
        return (
            f"video '{path}' is an MP4 or MOV file whose index (moov) is missing, because its "
            'recorder was cut off. It can be mended with the program untrunc; '
            'recordings in Matroska (.mkv) need no index'
        )
    reason = getattr(error, 'strerror', None) or message_of(error)
    return (
        f"video '{path}' is of no kind that FFmpeg knows ({reason}); "
        f"'file NAME' says what it is. If it is a video, {_CONVERT}"
    )


def _choose(path: str, container: Any) -> tuple[Any, int]:
    """
    Return the first stream with moving pictures, and how many more there are.

    :raises ConfigError: there is none, or nothing here decodes it.
    """
    sound = [_codec_name(stream) for stream in container.streams if stream.type == 'audio']
    pictures = [stream for stream in container.streams if stream.type == 'video']
    videos = [stream for stream in pictures if not _is_cover(stream, bool(sound))]
    if not videos:
        has = f'has sound ({", ".join(sound)})' if sound else 'has no sound'
        cover = ' and a cover picture' if pictures else ''
        raise ConfigError(
            f"video '{path}' {has}{cover}, but no moving pictures "
            f'(a file of kind {container.format.name}); {_ANOTHER}'
        )
    if not _codec_name(videos[0]):
        raise ConfigError(
            f"video '{path}' has pictures of a codec for which the FFmpeg of PyAV has no decoder; "
            f'{_CONVERT}'
        )
    return videos[0], len(videos) - 1


def _codec_name(stream: Any) -> str:
    context = stream.codec_context
    return '' if context is None else context.name or ''


def _is_cover(stream: Any, has_sound: bool) -> bool:
    """
    Tell whether it is a picture that belongs to music.

    FFmpeg gives it the rate of its clock, and old PyAV tells no more of it.
    """
    disposition = getattr(stream, 'disposition', None)
    if disposition is not None:
        return bool(disposition & type(disposition).attached_pic)
    return has_sound and not stream.average_rate and stream.base_rate == _COVER_RATE
