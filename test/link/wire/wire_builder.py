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

"""Build the consumer of the wire tests from client/ and a program, with the C compiler."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
import functools
from os import environ
from pathlib import Path
import shlex
import shutil
import subprocess
import tempfile

HERE = Path(__file__).resolve().parent
CLIENT = HERE.parents[2] / 'client'
FLAGS = ('-std=c99', '-O1', '-Wall', '-Wextra', '-Werror', '-Wshadow', '-pthread')
CHECKED = ('-g', '-fsanitize=address,undefined', '-fno-sanitize-recover=all')
"""So that each test of the wire is one of the memory and of undefined behaviour, too."""


class CompilerError(Exception):
    """There is no C compiler, or it reported an error."""


def compiler() -> list[str]:
    """Return the command in ``CC``, else ``cc``; raise CompilerError if it isn't installed."""
    command = shlex.split(environ.get('CC', '')) or ['cc']
    if shutil.which(command[0]) is None:
        raise CompilerError(
            f'{command[0]!r} is not installed: the wire tests need a C compiler, install gcc '
            'and libc6-dev or set CC'
        )
    return command


def build(target: Path, *programs: Path, flags: Sequence[str] = ()) -> Path:
    objects = _client(tuple(flags), *compiler()).glob('*.o')
    _compile(flags, '-o', target, *programs, *objects)
    return target


@functools.cache
def _client(flags: tuple[str, ...], *_: str) -> Path:
    """Return the folder of client/'s objects, which is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix='zc-client-'))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for source in (CLIENT / 'src').glob('*.c'):
        _compile(flags, '-c', source, '-o', folder / f'{source.stem}.o')
    return folder


def _compile(flags: Sequence[str], *words: str | Path) -> None:
    command = [*compiler(), *FLAGS, *flags, f'-I{CLIENT / "include"}', *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilerError(f'{shlex.join(command)} failed:\n{done.stderr}')


def build_consumer(folder: Path, flags: Sequence[str] = CHECKED) -> Path:
    return build(folder / 'wire_consumer', HERE / 'wire_consumer.c', flags=flags)
