"""Writes what a user asked for to where he asked for it: a file whole or not at all, anything else in place.

What programs report, the demo's files and a camera's calibration are written by it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

_STREAMS = (1, 2)


def _status(path: Path) -> os.stat_result | None:
    """Of what is there, links followed; none: nothing.

    :raises OSError: the name is too long, or its links lead in a circle.
    """
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _stream(status: os.stat_result) -> int | None:
    """Our standard output or error, if that is where the file is: another file in its place would take with it what is printed."""
    for number in _STREAMS:
        try:
            if os.path.samestat(os.fstat(number), status):
                return number
        except OSError:  # it is closed
            continue
    return None


def _unfinished(path: Path) -> Path:
    """Beside it; the name doesn't grow with the file's, which may have all the bytes that a name can have."""
    return path.with_name(f'.zc-{os.getpid()}-{os.urandom(4).hex()}')


def _write_new(path: Path, content: bytes, mode: int | None = None) -> None:
    """
    :param mode: its permissions; ``None``: what the umask leaves.
    """
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), 'wb'
    ) as file:
        file.write(content)
        file.flush()
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def check_writable(path: Path) -> None:
    """Make sure that :func:`write_whole` can write there, as far as can be known before; its folder must be there. Nothing is changed.

    :raises OSError: it can't.
    """
    status = _status(path)
    if status is not None:
        for wrong, number in ((stat.S_ISDIR, errno.EISDIR), (stat.S_ISSOCK, errno.ENXIO)):
            if wrong(status.st_mode):
                raise OSError(number, os.strerror(number))
        if not os.access(path, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    if status is None or (stat.S_ISREG(status.st_mode) and _stream(status) is None):
        trial = _unfinished(Path(os.path.realpath(path)))
        try:
            _write_new(trial, b'')
        finally:
            trial.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all, also when the power fails; a link stays one, and what it leads to is written. A file that is there
    keeps its permissions.

    What is there and is no regular file (``/dev/stdout``, a FIFO, a device) is written in place, as is our own standard output.

    :raises OSError: it can't be written; of a file, what was there before still is.
    """
    data = content.encode() if isinstance(content, str) else content
    status = _status(path)
    if status is not None and (number := _stream(status)) is not None:
        with open(os.dup(number), 'wb') as file:
            file.write(data)
        return
    if status is not None and not stat.S_ISREG(status.st_mode):
        with open(os.open(path, os.O_WRONLY | os.O_CLOEXEC), 'wb') as file:
            file.write(data)
        return
    real = Path(os.path.realpath(path))
    unfinished = _unfinished(real)
    try:
        _write_new(unfinished, data, None if status is None else stat.S_IMODE(status.st_mode))
        unfinished.replace(real)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _keep_name(real.parent)


def _keep_name(folder: Path) -> None:
    """Have the disk keep the new name, so that a power cut doesn't bring the old file back.

    Not every file system can.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
