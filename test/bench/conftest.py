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

"""Fixtures for runs of the benchmark."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any

from bench_kit import processes, Start
import pytest


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder for sockets: its short name fits their paths, and marks a run's processes."""
    folder = Path(tempfile.mkdtemp(prefix='zcb'))
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def start(free_domain: int, runtime: Path) -> Iterator[Start]:
    """Start a module of the benchmark, such as ``bench``; all its processes end at teardown."""
    started: list[subprocess.Popen[str]] = []

    def begin(module: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        command, pipe = ([sys.executable, '-m', module, *arguments], subprocess.PIPE)
        started.append(
            subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **options)
        )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()
    for pid in processes(runtime):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
