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

"""Print one line per step; log all other output, and show the log's end when a step fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
import os
from pathlib import Path
import subprocess
import time

from environment.errors import SetupError

_TAIL_LINES = 25

# Variables that a sourced ROS or another environment of wheels sets: with them, our interpreter
# would load the other one's libraries.
_FOREIGN_VARIABLES = (
    'AMENT_PREFIX_PATH', 'LD_LIBRARY_PATH', 'PYTHONHOME', 'PYTHONPATH', 'RMW_IMPLEMENTATION',
    'VIRTUAL_ENV', '_ROS_WHEELS_BOOTSTRAP_COMPLETE',
)  # fmt: skip


def own_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _FOREIGN_VARIABLES}


@contextmanager
def step(title: str) -> Iterator[None]:
    print(f'{title} ... ', end='', flush=True)
    started = time.monotonic()
    try:
        yield
    except BaseException:
        print('failed', flush=True)
        raise
    print(f'{time.monotonic() - started:.1f} s', flush=True)


def run_logged(
    command: Sequence[str],
    log: Path,
    cwd: Path,
    *,
    extra: Mapping[str, str] | None = None,
    advice: str = '',
) -> None:
    """
    Run ``command`` with its output appended to ``log``.

    A failure raises with the log's end and ``advice``. ``extra`` is added to the environment.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, 'a', encoding='utf-8') as output:
        output.write(f'$ {" ".join(command)}\n')
        output.flush()
        environment = own_environment() | dict(extra or {})
        code = subprocess.call(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    if code:
        lines = log.read_text(encoding='utf-8', errors='replace').splitlines()[-_TAIL_LINES:]
        tail = '\n'.join('  ' + line for line in lines)
        raise SetupError(
            f'{" ".join(command[:4])} ... ended with status {code}. The end of {log}:\n{tail}\n'
            f'{advice}'
        )
