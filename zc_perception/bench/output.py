"""Where the results and the words of a benchmark go, and how it ends: what went wrong as one line, and the exit code that tells it.

That a file can be written is checked before minutes of measuring, and no file takes the place of another.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from zc_perception.errors import EXIT_USAGE, ConfigError, ZcError, error_line
from zc_perception.terminal import Interrupted, interruptions, put
from zc_perception.whole_file import check_writable, write_whole


def target(name: str, option: str) -> Path:
    """The file that *option* names. Its folder is made.

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
    """Each of these options, as far as they are given, names a file of its own. What goes to a device replaces nothing.

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


def write(path: Path, content: str | bytes, option: str) -> None:
    """What *option* names, see :func:`write_whole`.

    :raises ConfigError: it can't be written.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        raise ConfigError(
            f"{option} '{path}' can't be written: {error.strerror}; name another file with {option}"
        ) from error


EXIT_FAILURE = 1


def say(line: str) -> None:
    """What goes on, to standard error, if that can be."""
    put(line, sys.stderr)


def show(text: str) -> str:
    """A result, to standard output; why it can't be, or nothing."""
    error = put(text, sys.stdout)
    return '' if error is None else error.strerror or str(error)


def exit_code_of(command: str, work: Callable[[], int]) -> int:
    """What *work* returns, or 1: it failed, 2: arguments, or nowhere to put the result, 128 + n: signal n.

    :param command: its name, for the line that says so.
    """
    with interruptions() as interruption:
        try:
            with interruption.allowed():
                return work()
        except ZcError as error:
            say(error_line(command, error))
            return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILURE
        except Interrupted as interrupted:
            say(f'{command}: ended by {interrupted}')
            return interrupted.exit_code
