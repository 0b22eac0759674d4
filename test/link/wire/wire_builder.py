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
        raise CompilerError(f'{command[0]!r} is not installed: the wire tests need a C compiler, install gcc and libc6-dev or set CC')
    return command


def _build(source: str, target: Path, flags: Sequence[str] = ()) -> Path:
    command = [*compiler(), *FLAGS, *flags, '-o', str(target), str(HERE / source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilerError(f'{shlex.join(command)} failed:\n{done.stderr}')
    return target


def build_consumer(folder: Path, flags: Sequence[str] = ()) -> Path:
    """The consumer's path, compiled into *folder*."""
    return _build('wire_consumer.c', folder / 'wire_consumer', flags)


def build_fake_kernel(folder: Path) -> Path:
    """A library for ``LD_PRELOAD`` that acts a kernel with dma-bufs and sync_files; see its source."""
    return _build('wire_fake_kernel.c', folder / 'wire_fake_kernel.so', ('-shared', '-fPIC'))
