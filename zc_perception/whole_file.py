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
Write output files atomically: programs' reports, the demo's files, camera calibrations.

:func:`output_file` checks whether a file can be written, before a program measures for minutes.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
import stat

from zc_perception.errors import ConfigError

# The process has these paths open already, and writes them by these descriptors. If a path were
# opened again, its file would be written from the beginning.
_OWN = {'/dev/stdout': 1, '/dev/stderr': 2}


def _mode(path: Path) -> int | None:
    """
    Return the mode of a regular file to replace; ``None``: no file exists; 0: write in place.

    Paths under ``/dev`` are written in place: a new file would replace the file to which
    ``/dev/stdout`` is redirected.

    :raises OSError: the name is too long, or its symbolic links form a circle.
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
    """Return a temporary path in *path*'s folder; its name is short, even if *path*'s is long."""
    return Path(os.path.realpath(path)).with_name(f'.zc-{os.getpid()}-{os.urandom(4).hex()}')


def check_writable(path: Path) -> None:
    """
    Check whether :func:`write_whole` can write *path*; its folder must exist.

    The check writes and removes a temporary file.

    :raises OSError: the path can't be written.
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
    Write a file atomically: after an error or a power cut it has its old or its new content.

    A symbolic link stays a link, and its target is written. An existing file keeps its
    permissions. A path that exists and is not a regular file (``/dev/stdout``, a FIFO, a device)
    is written in place.

    :param sync: whether to sync the file to the disk, which may be slow. With ``False``, call
        :func:`sync_whole` soon: a power cut before that may destroy the file.
    :raises OSError: the file can't be written; a regular file still has its old content.
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
    """Sync a folder's entries to the disk, so that a power cut can't undo a file's replacement."""
    with contextlib.suppress(OSError):  # some file systems can't sync a folder
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def output_file(name: str, option: str) -> Path:
    """
    Check that an output file can be written, make its folder, and return its path.

    :param name: the value of the command-line option *option*.
    :raises ConfigError: the file can't be written.
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
    """Write the file of the command-line option *option*; raise ConfigError if this fails."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise ConfigError(
            f"{option} '{path}' can't be written: {error.strerror}; name another file with "
            f'{option}'
        ) from error
