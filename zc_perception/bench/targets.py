"""Where results go: known to be possible before minutes of measuring, and none in the place of another."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from zc_perception.errors import ConfigError
from zc_perception.observe.whole_file import check_writable, write_whole


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
            raise ConfigError(f"{other} and {option} are the same file '{name}', and one would replace the other; give each its own")


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
        raise ConfigError(f"{option} '{path}' can't be written: {error.strerror}; name another file with {option}") from error
