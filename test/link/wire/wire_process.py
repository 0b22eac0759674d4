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

"""Build programs with client/, and run those that print a JSON line for each event."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
import functools
import json
from os import environ
from pathlib import Path
import queue
import shlex
import shutil
import subprocess
import tempfile
import threading
from typing import Any

HERE = Path(__file__).resolve().parent
CLIENT = HERE.parents[2] / 'client'
FLAGS = ('-std=c99', '-O1', '-Wall', '-Wextra', '-Wpedantic', '-Werror', '-Wshadow', '-pthread')
CHECKED = ('-g', '-fsanitize=address,undefined', '-fno-sanitize-recover=all')
"""So that each test of the wire is one of the memory and of undefined behaviour, too."""
FRAMES_READ, ENDED, USAGE, REFUSED, RULE_BROKEN = range(5)


class CompilerError(Exception):
    """There is no C compiler, or it reported an error."""


def compiler() -> list[str]:
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


class Lines(AbstractContextManager[Any]):
    """Runs a program; *came* takes each line of its output, and then None."""

    def __init__(
        self, came: Callable[[str | None], object], command: Sequence[str | Path], **options: Any
    ) -> None:
        self._came = came
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._came(line)
        self._came(None)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.kill()
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class ConsumerProcess(Lines):
    def __init__(self, program: Path, path: Path, *options: str) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        command = [program, '--socket', path, *options]
        super().__init__(self._lines.put, command, stderr=subprocess.PIPE)

    def line(self, timeout_s: float = 60.0) -> dict[str, Any]:
        text = self._lines.get(timeout=timeout_s)
        assert text is not None, f'the consumer ended with {self.process.wait(timeout_s)}'
        return dict(json.loads(text))

    def result(self, timeout_s: float = 60.0) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
        """Return exit code, remaining lines and summary; fail on an open descriptor or errors."""
        texts = list(iter(lambda: self._lines.get(timeout=timeout_s), None))
        code = self.process.wait(timeout_s)
        errors = self.errors()
        assert errors == '', errors
        *lines, summary = map(json.loads, texts)
        assert summary['open_fds'] == summary['open_fds_at_start'], 'descriptors left open'
        return code, lines, summary

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def refusal(self) -> tuple[int, str]:
        code, lines, _ = self.result()
        assert code == REFUSED, lines[-1:]
        return lines[-1]['refused'], lines[-1]['text']
