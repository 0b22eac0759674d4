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
The folder of a recording, as rosbag2 has it.

It has ``NAME/NAME_0.mcap``, ``NAME_1.mcap`` … and ``metadata.yaml``, which lists those that are
finished. A recorder that was killed leaves the last one without its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import fcntl
import os
from pathlib import Path
import re

import yaml

from zc_perception.camera.mcap_file import Contents, finish_file, LIBRARY, read_contents, SUFFIX
from zc_perception.errors import ConfigError, RecordingError
from zc_perception.whole_file import write_whole

METADATA = 'metadata.yaml'
# The newest whose QoS profiles are text, which every rosbag2 from Humble on reads.
_VERSION = 8
_NUMBER = re.compile(r'_(\d+)$')
Parts = Sequence[tuple[str, Contents]]


def number_of(path: Path) -> int:
    """Return the number of a file of a recording; -1: its name has none."""
    found = _NUMBER.search(path.stem)
    return int(found[1]) if found else -1


def parts_in(folder: Path) -> list[Path]:
    """Return a folder's MCAP files in their order."""
    return sorted(folder.glob(f'*{SUFFIX}'), key=lambda path: (number_of(path), path.name))


def _yaml(content: object) -> str:
    return str(yaml.safe_dump(content, sort_keys=False, width=1 << 20))


def describe(parts: Parts) -> str:
    """Return ``metadata.yaml`` of these files."""
    return _yaml({'rosbag2_bagfile_information': _information(parts)})


def describe_alone(name: str, contents: Contents) -> str:
    """Return what rosbag2 keeps in a file about this file."""
    return _yaml(_information([(name, contents)]))


def _information(parts: Parts) -> dict[str, object]:
    # Channels of one topic may differ in what rosbag2 doesn't know.
    counts: Counter[tuple[str, str, str]] = Counter()
    for _, contents in parts:
        for number, topic in contents.topics.items():
            qos = dict(topic.metadata).get('offered_qos_profiles', '')
            counts[topic.name, topic.msgtype, qos] += contents.counts[number]
    some = [contents for _, contents in parts if contents.messages]
    first_ns = min((contents.first_ns for contents in some), default=0)
    last_ns = max((contents.last_ns for contents in some), default=0)
    return {
        'version': _VERSION,
        'storage_identifier': 'mcap',
        'duration': {'nanoseconds': last_ns - first_ns},
        'starting_time': {'nanoseconds_since_epoch': first_ns},
        'message_count': sum(counts.values()),
        'topics_with_message_count': [
            {
                'topic_metadata': {
                    'name': name,
                    'type': msgtype,
                    'serialization_format': 'cdr',
                    'offered_qos_profiles': qos,
                    'type_description_hash': '',
                },
                'message_count': count,
            }
            for (name, msgtype, qos), count in counts.items()
        ],
        'compression_format': '',
        'compression_mode': '',
        'relative_file_paths': [name for name, _ in parts],
        'files': [
            {
                'path': name,
                'starting_time': {'nanoseconds_since_epoch': contents.first_ns},
                'duration': {'nanoseconds': contents.last_ns - contents.first_ns},
                'message_count': contents.messages,
            }
            for name, contents in parts
        ],
        'custom_data': None,
        'ros_distro': os.environ.get('ROS_DISTRO', 'rolling'),
    }


def read_parts(folder: Path) -> tuple[list[tuple[str, Contents]], list[str]]:
    """
    Return what a folder's MCAP files have, and which can't be read, in sentences.

    :raises OSError: the disk, or rights, stand against it.
    """
    parts, bad = [], []
    for path in parts_in(folder):
        try:
            parts.append((path.name, read_contents(path)))
        except RecordingError as error:
            bad.append(f'{error}; it is left out')
    return parts, bad


def finish_recording(folder: Path) -> tuple[list[tuple[str, Contents]], list[str]]:
    """
    Finish what a recorder has left without its end, and list all files.

    :returns: the files with their contents, and in sentences what was done or can't be.
    :raises ConfigError: a file can't be written, or is still being recorded.
    """
    metadata = folder / METADATA
    try:
        parts, said = read_parts(folder)
        for name, contents in parts:
            if not contents.finished:
                _finish(folder / name, contents)
                said.append(
                    f"'{folder / name}' had no end; {contents.messages} messages are whole"
                )
        ours = all(contents.library == LIBRARY for _, contents in parts)
        there = metadata.read_text() if metadata.exists() else ''
        if parts and (not there or (ours and there != describe(parts))):
            write_whole(metadata, describe(parts))
            said.append(f"'{metadata}' lists {len(parts)} files")
    except OSError as error:
        raise ConfigError(
            f"'{error.filename or folder}' can't be finished: {error.strerror}; "
            'make room there, or allow writing'
        ) from error
    return parts, said


def _finish(path: Path, contents: Contents) -> None:
    with path.open('rb') as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"'{path}' is still being recorded; end zc_record first") from error
        finish_file(path, contents, describe_alone(path.name, contents))
