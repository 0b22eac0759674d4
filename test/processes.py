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

"""Processes that a test has started, and their children."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import os
from pathlib import Path
import signal
import subprocess
from typing import Any

from zc_perception.observe.processes import process_state

TEST = Path(__file__).resolve().parent


def environment() -> dict[str, str]:
    """Return the environment for programs that import the tests' kits."""
    return {**os.environ, 'PYTHONPATH': f'{TEST}{os.pathsep}{TEST.parent}'}


@contextmanager
def ready(*words: object) -> Iterator[subprocess.Popen[str]]:
    """Start a test program, wait until it prints 'ready', and kill it at the end."""
    with subprocess.Popen(
        list(map(str, words)),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == 'ready\n'
            yield process
        finally:
            process.kill()


def ran(
    *words: object, timeout: float = 600.0, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)),
        capture_output=True, text=True, timeout=timeout, check=check, **options,
    )  # fmt: skip


def is_alive(pid: int) -> bool:
    """Return whether the process runs: a zombie doesn't."""
    state = process_state(pid)
    return state is not None and not state.ended


def passes_in_child(work: Callable[[], object]) -> bool:
    """Return whether *work* ends in a forked child: within a minute, without an exception."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
