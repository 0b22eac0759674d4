"""Builds the C programs of the wire tests with the machine's C compiler."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from os import environ
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAGS = ('-std=c11', '-O2', '-Wall', '-Wextra', '-Werror', '-Wshadow', '-Wconversion')


class CompilerError(Exception):
    """There is no C compiler, or it didn't take the source."""


def compiler() -> list[str]:
    """The command in ``CC``, else ``cc``. Raises CompilerError where it isn't installed."""
    command = shlex.split(environ.get('CC', '')) or ['cc']
    if shutil.which(command[0]) is None:
        raise CompilerError(
            f'{command[0]!r} is not installed: the wire tests need a C compiler, install gcc and libc6-dev or set CC'
        )
    return command


def build_consumer(folder: Path, flags: Sequence[str] = ()) -> Path:
    """The consumer's path, compiled into *folder*."""
    target = folder / 'wire_consumer'
    command = [*compiler(), *FLAGS, *flags, '-o', str(target), str(HERE / 'wire_consumer.c')]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilerError(f'{shlex.join(command)} failed:\n{done.stderr}')
    return target
