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

"""The source of a recording's frames, by what is at a path."""

from __future__ import annotations

from pathlib import Path

from zc_perception.camera.replay.bag import BagSource, is_bag
from zc_perception.camera.replay.pictures import ImageSource, PICTURES
from zc_perception.camera.replay.place import recording_path, refuse_foreign
from zc_perception.camera.replay.source import FrameSource
from zc_perception.camera.replay.video import VideoSource
from zc_perception.errors import ConfigError

_RAW = ('.nv12', '.yuv')


def open_source(
    path: str, *, width: int = 0, height: int = 0, framerate: float = 0.0, topic: str = ''
) -> FrameSource:
    """
    Return the source of *path*.

    A folder is a recording of zc_record or rosbag2, or a folder of pictures; ``.mcap`` and
    ``.db3`` are recordings too, a single picture is a recording of one frame; anything else is a
    video.

    :param path: as :func:`recording_path` returns it.
    :param width: of the frames; 0 for the recording's own.
    :param height: likewise.
    :param framerate: for recordings without a rate of their own: pictures, and videos without a
        plausible one.
    :param topic: which topic of a rosbag2 recording.
    :raises ConfigError: it can't be used.
    :raises LayoutError: an odd width or height.
    """
    path = recording_path(path)
    place = Path(path)
    suffix = place.suffix.lower()
    if place.is_file():
        if suffix in _RAW:
            raise ConfigError(
                f"raw file '{path}' says neither size nor format; put it into a container: ffmpeg "
                '-f rawvideo -pix_fmt nv12 -video_size WIDTHxHEIGHT -framerate 30 -i IN -c '
                'copy OUT.nut'
            )
        refuse_foreign(place)
    try:
        bag = is_bag(place)
    except OSError as error:
        raise ConfigError(f"'{path}' can't be read: {error.strerror}") from error
    if topic and not bag:
        raise ConfigError(
            f"parameter 'replay_topic' is '{topic}', but '{path}' is no rosbag2 recording; "
            'leave it empty'
        )
    if bag:
        return BagSource(path, topic, width, height)
    if place.is_dir() or suffix in PICTURES:
        return ImageSource(path, width, height, framerate)
    return VideoSource(path, width, height, framerate)
