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

"""Recordings that their recorder could not finish, seen as if it had; nothing is written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from zc_perception.camera.mcap_file import Contents, LIBRARY, read_contents, SUFFIX
from zc_perception.camera.recording_folder import (
    describe,
    describe_alone,
    METADATA,
    parts_in,
    read_parts,
)
from zc_perception.errors import RecordingError


class _Finished(io.RawIOBase):
    """A file's whole part, with its end behind it."""

    def __init__(self, path: Path, contents: Contents) -> None:
        self._file = open(path, 'rb', buffering=0)  # noqa: SIM115 - closed by close()
        self._whole = contents.end
        self._tail = contents.tail(describe_alone(path.name, contents))
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._at, self._whole + len(self._tail))[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast('B')
        if self._at < self._whole:
            self._file.seek(self._at)
            count = self._file.readinto(view[: self._whole - self._at])
        else:
            begin = self._at - self._whole
            rest = self._tail[begin:][: len(view)]
            count = len(rest)
            view[:count] = rest
        self._at += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def is_unfinished(path: Path) -> bool:
    """Tell whether it is an MCAP file of ours without its end."""
    try:
        contents = read_contents(path)
    except (RecordingError, OSError):  # whoever opens it says so
        return False
    return not contents.finished and contents.library == LIBRARY


class RecordedPath(type(Path())):  # type: ignore[misc]
    """
    A path by which rosbags reads unfinished recordings of ours.

    These are files without their end, and folders whose ``metadata.yaml`` doesn't list all files.
    """

    def open(self, mode: str = 'r', *args: Any, **options: Any) -> Any:  # noqa: A003
        if self.suffix == SUFFIX and mode == 'rb' and is_unfinished(self):
            return io.BufferedReader(_Finished(self, read_contents(self)))
        return super().open(mode, *args, **options)

    def exists(self, *args: Any, **options: Any) -> bool:
        return super().exists(*args, **options) or (
            self.name == METADATA and bool(parts_in(self.parent))
        )

    def read_text(self, *args: Any, **options: Any) -> str:
        if self.name != METADATA:
            return str(super().read_text(*args, **options))
        there = super().read_text(*args, **options) if super().exists() else ''
        parts, _ = read_parts(Path(self.parent))
        ours = parts and all(contents.library == LIBRARY for _, contents in parts)
        return describe(parts) if ours or not there else str(there)
