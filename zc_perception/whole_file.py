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
Writes a user's file whole or not at all; anything that isn't a file is written in place.

Programs' reports, the demo's files and a camera's calibration are written by it. Whether a file
can be written is checked before minutes of measuring (:func:`output_file`).
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
import stat

from zc_perception.errors import ConfigError

# If opened again, they would be written from their beginning.
_OWN = {'/dev/stdout': 1, '/dev/stderr': 2}


def _mode(path: Path) -> int | None:
    """
    Return the mode of the file that is to be replaced.

    ``None``: there is no file; 0: it is written in place. ``/dev/stdout`` is written in place,
    whatever it leads to: if another file took its place, the output would go with it.

    :raises OSError: the name is too long, or its links lead in a circle.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    return mode if stat.S_ISREG(mode) and not str(path).startswith('/dev/') else 0


def _write_new(path: Path, content: bytes, mode: int | None, sync: bool = True) -> None:
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), 'wb'
    ) as file:
        file.write(content)
        file.flush()
        if mode is not None:
            os.fchmod(file.fileno(), stat.S_IMODE(mode))
        if sync:
            os.fsync(file.fileno())


def _unfinished(path: Path) -> Path:
    """
    Return a path beside the file.

    The name doesn't grow with the file's, which may be as long as a name can be.
    """
    return Path(os.path.realpath(path)).with_name(f'.zc-{os.getpid()}-{os.urandom(4).hex()}')


def check_writable(path: Path) -> None:
    """
    Make sure that :func:`write_whole` can write there, as far as can be known before.

    The folder must exist. Nothing is changed.

    :raises OSError: it can't.
    """
    mode = _mode(path)
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if mode is not None and not os.access(path, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    if mode != 0:
        trial = _unfinished(path)
        try:
            _write_new(trial, b'', None)
        finally:
            trial.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes, *, sync: bool = True) -> None:
    """
    Write a file whole or not at all, also when the power fails.

    A link stays a link, and the file that it leads to is written. A file that exists keeps its
    permissions. A path that exists and is no regular file (``/dev/stdout``, a FIFO, a device) is
    written in place.

    :param sync: ``False``: the caller calls :func:`sync_whole` soon, since the disk may be slow; a
        power cut until then may cost the file.
    :raises OSError: it can't be written; a file's former content still exists.
    """
    data = content.encode() if isinstance(content, str) else content
    mode = _mode(path)
    if mode == 0:
        own = _OWN.get(str(path))
        with open(
            os.open(path, os.O_WRONLY | os.O_CLOEXEC) if own is None else os.dup(own), 'wb'
        ) as file:
            file.write(data)
        return
    real, unfinished = Path(os.path.realpath(path)), _unfinished(path)
    try:
        _write_new(unfinished, data, mode, sync)
        unfinished.replace(real)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(real.parent)


def sync_whole(path: Path) -> None:
    """Sync a file to the disk, if it exists."""
    with contextlib.suppress(FileNotFoundError), path.open('rb') as file:
        os.fsync(file.fileno())
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """
    Have the disk keep the names in a folder.

    So a power cut doesn't bring an old file back. Not every file system can.
    """
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def output_file(name: str, option: str) -> Path:
    """
    Return the file that *option* names, and make its folder.

    :raises ConfigError: nothing can be written there.
    """
    step = f'name another file with {option}'
    if not name:
        raise ConfigError(f"{option} '' names no file; name one, or leave {option} out")
    path = Path(name)
    try:
        if _mode(path) is None:
            Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
        check_writable(path)
    except OSError as error:
        raise ConfigError(
            f"{option} '{name}' can't be written: {error.strerror}; {step}"
        ) from error
    return path


def write_output(path: Path, content: str | bytes, option: str) -> None:
    """
    Write what *option* names, see :func:`write_whole`.

    :raises ConfigError: it can't be written.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        raise ConfigError(
            f"{option} '{path}' can't be written: {error.strerror}; name another file with "
            f'{option}'
        ) from error
