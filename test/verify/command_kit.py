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

"""Nodes in processes of their own, and ``zc_verify`` as a process that measures them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
import json
from pathlib import Path
import re
import signal
import subprocess
import sys
from typing import Any

from npu.json_schema import conforms
from processes import environment, ran, ready, TEST

from zc_perception.verify.verification import SCHEMA

# Signals that end a command; not SIGHUP, which nohup makes the tests' processes ignore.
ENDING = (
    signal.SIGINT,
    signal.SIGTERM,
    *((signal.SIGHUP,) if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else ()),
)


def nodes_command(*wishes: str) -> list[str]:
    return [sys.executable, str(TEST / 'verify' / 'made_nodes.py'), *wishes]


def nodes(*wishes: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run nodes, once frames flow."""
    return ready(*nodes_command(*wishes))


def verify_command(*options: object, command: Sequence[str] = ()) -> list[str]:
    started = ['--', *command] if command else []
    return [sys.executable, '-m', 'zc_perception.verify.zc_verify', *map(str, options), *started]


def verify(*options: object, command: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    words = verify_command(*options, command=command)
    return ran(*words, env=environment())


@contextmanager
def measuring(
    folder: Path, *options: object, command: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield ``zc_verify`` when it measures, and the pid of the measured process."""
    words = verify_command(*options, '--output', folder, command=command)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as process:
        try:
            assert process.stdout is not None
            found = None
            while found is None:
                line = process.stdout.readline()
                assert line, 'it ended'
                found = re.match(r'measuring inference /made/inference \(process (\d+)\)', line)
            yield process, int(found[1])
        finally:
            process.terminate()


def result_in(folder: Path) -> Any:
    """Return a folder's result.json, which must match the schema."""
    document = json.loads((folder / 'result.json').read_text())
    assert conforms(document, json.loads(SCHEMA.read_text()))
    return document
