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

"""Start link_program.py, or a program with the same commands, and talk to it."""

from __future__ import annotations

import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time
from types import TracebackType
from typing import Any

from warm_start import Started

PROGRAM = Path(__file__).with_name('link_program.py')


def end(
    name: str,
    kind: str,
    *,
    depth: int = 5,
    transient_local: bool = False,
    best_effort: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Return an endpoint for link_program.py to open; its topic is ``image`` by default."""
    qos = {'depth': depth, 'transient_local': transient_local, 'best_effort': best_effort}
    return {'name': name, 'kind': kind, 'topic': 'image', 'qos': qos, 'converts': True, **options}


class LinkProcess:
    """A process of link_program.py; each attribute is a command: ``process('open', [...])``."""

    def __init__(self, executor: str, domain: int, folder: Path, program: Path = PROGRAM) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        paths = str(PROGRAM.parents[1]), os.environ.get('PYTHONPATH', '')
        given = {'ROS_DOMAIN_ID': str(domain), 'ZC_RUNTIME_DIR': str(folder)}
        environment = os.environ | given | {'PYTHONPATH': os.pathsep.join(paths)}
        self._log = folder / f'{executor}-{os.urandom(3).hex()}.log'
        with self._log.open('w') as log:
            self.process = Started(
                [sys.executable, str(program), executor],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def send(self, operation: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({'op': operation, 'arguments': arguments}) + '\n')
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f'the program has ended:\n{self.log[-4000:]}'
        answer = json.loads(line)
        assert 'error' not in answer, f'{answer["error"]}\n{self.log[-4000:]}'
        return answer['result']

    def __call__(self, operation: str, *arguments: Any) -> Any:
        self.send(operation, *arguments)
        return self.answer()

    @property
    def log(self) -> str:
        # Open the file anew: the process shares this file's position, and moves it when it writes.
        return self._log.read_text(encoding='utf-8')

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60.0)

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(60.0)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGUSR1)
                time.sleep(1.0)
                self.kill()
                raise AssertionError(
                    f'the program does not end: where its threads are:\n{self.log[-8000:]}'
                ) from None
        self.process.stdout.close()

    def __enter__(self) -> LinkProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            sys.stderr.write(self.log[-4000:])
        self.close()
