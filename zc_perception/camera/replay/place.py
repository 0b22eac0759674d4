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

"""Where a recording is, and files that are none: their first bytes say what they are."""

from __future__ import annotations

import os
from pathlib import Path
import re

from zc_perception.camera.mcap_file import MAGIC, SUFFIX
from zc_perception.camera.recording_folder import METADATA
from zc_perception.errors import ConfigError
from zc_perception.local_path import local_path

ZSTD = b'\x28\xb5\x2f\xfd'
_URL = re.compile(r'(?!file:)[a-z][a-z0-9+.-]*://', re.IGNORECASE)
_SECRET = re.compile(r'(?<=://)[^/@]*@')


def recording_path(video: str) -> str:
    """
    Return the path that parameter ``video`` means.

    :raises ConfigError: no path, the URL of a stream, nothing is there, or something for which one
        could wait for ever: a pipe, a device.
    """
    if not video:
        raise ConfigError(
            "parameter 'video' is empty; set it to the path of a video file or another recording "
            "(camera is 'replay')"
        )
    if _URL.match(video) and not os.path.exists(video):
        raise ConfigError(
            f"parameter 'video' is '{_SECRET.sub('', video)}'; "
            'camera replay plays what a path or a file:// URL names; '
            "for a stream set 'camera' to gstreamer and 'pipeline' to "
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
"""What a file is, how it begins, and the step to the recording in it; PATH and TARGET are the
file's path, with and without suffix."""
_TAR_AT = 257
BAG_MAGIC = {SUFFIX: MAGIC, '.db3': b'SQLite format 3\0'}
"""How the storage files of rosbag2 begin. rosbags tells them by these suffixes, in lower case."""


def refuse_foreign(path: Path) -> None:
    """
    Refuse a file whose first bytes say that it is no recording, or not what its name says.

    :raises ConfigError: says what it is, and how to get the recording.
    """
    try:
        with path.open('rb') as file:
            head = file.read(512)
    except OSError as error:
        raise ConfigError(f"'{path}' can't be read: {error.strerror}") from error
    if not head:
        raise ConfigError(
            f"'{path}' is empty (0 bytes): nothing was recorded, or the copy broke off; "
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
            f"'{path}' is no {path.suffix} file, for it begins with {head[: len(wanted)]!r}; "
            'play another file'
        )
