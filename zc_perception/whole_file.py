"""Writes what a user asked for to where he asked for it: a file whole or not at all, anything else in place.

What programs report, the demo's files and a camera's calibration are written by it. That a file can be written is checked before
minutes of measuring (:func:`output_file`), and no file takes the place of another (:func:`check_apart`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from zc_perception.errors import ConfigError

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


def output_file(name: str, option: str) -> Path:
    """Return the file that *option* names, and make its folder.

    :raises ConfigError: nothing can be written there.
    """
    step = f'name another file with {option}'
    if not name:
        raise ConfigError(f"{option} '' names no file; name one, or leave {option} out")
    path, what = Path(name), f"{option} '{name}' can't be written"
    try:
        try:
            os.stat(path)
        except FileNotFoundError:
            what = f"folder of {option} '{name}' can't be made"
            Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
        what = f"{option} '{name}' can't be written"
        check_writable(path)
    except OSError as error:
        raise ConfigError(f'{what}: {error.strerror}; {step}') from error
    return path


def check_apart(names: Mapping[str, str | None]) -> None:
    """Make sure that each of these options, as far as they are given, names a file of its own. What goes to a device replaces nothing.

    :raises ConfigError: two name the same one.
    """
    seen: dict[str, str] = {}
    for option, name in names.items():
        if not name or _is_device(name):
            continue
        other = seen.setdefault(os.path.realpath(name), option)
        if other != option:
            raise ConfigError(
                f"{other} and {option} are the same file '{name}', and one would replace the other; give each its own"
            )


def _is_device(name: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(name).st_mode)
    except OSError:  # said where it is to be written
        return False


def write_output(path: Path, content: str | bytes, option: str) -> None:
    """Write what *option* names, see :func:`write_whole`.

    :raises ConfigError: it can't be written.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        raise ConfigError(
            f"{option} '{path}' can't be written: {error.strerror}; name another file with {option}"
        ) from error
