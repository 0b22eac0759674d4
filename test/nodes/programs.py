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

"""Start the package's programs as a user would, in a ROS domain of the test's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading
from typing import Any

from ros_domains import discovery_range
from waiting import eventually
from warm_start import Started

BIN = Path(sys.executable).parent
TIMEOUT_S = 60.0


def environment(domain: int) -> dict[str, str]:
    """Return this environment, with *domain*, limited to this host."""
    return {
        **os.environ,
        'ROS_DOMAIN_ID': str(domain),
        'ROS_AUTOMATIC_DISCOVERY_RANGE': discovery_range(),
        'PYTHONUNBUFFERED': '1',
    }


class Program:
    """
    A running console script, whose output a thread collects, so that no pipe fills up.

    :param name: the script, or a whole command.
    :param cold: start a new interpreter, as a user does, instead of forking a prepared one; see
        ``warm_start.py``.
    :param variables: additional environment variables.
    """

    def __init__(
        self,
        name: str | Sequence[str],
        *args: str,
        domain: int,
        cold: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.process = (subprocess.Popen if cold else Started)(
            [*([str(BIN / name)] if isinstance(name, str) else name), *args],
            env={**environment(domain), **(variables or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)

    def start(self, *ready_marks: str) -> Program:
        """Begin reading, and wait until every mark was printed, or the program has ended."""
        self._reader.start()
        ready = lambda: all(mark in self.output for mark in ready_marks)  # noqa: E731
        if not eventually(lambda: ready() or not self._reader.is_alive(), TIMEOUT_S):
            self.process.kill()
            raise AssertionError(f'{self.process.args} did not get ready:\n{self.output}')
        return self

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def output(self) -> str:
        return ''.join(self.lines)

    def interrupt(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(60.0)
        return code

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(TIMEOUT_S)
        self._reader.join(60.0)
        if self.process.stdout is not None:
            self.process.stdout.close()


PERCEPTION_READY = ('[capture]: ready', '[inference]: ready', '[overlay]: ready')


def parameters(**values: Any) -> list[str]:
    """Return ``--ros-args -p …`` for values named ``node__parameter``."""
    args = ['--ros-args']
    for key, value in values.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        args += ['-p', f'{key.replace("__", ":")}:={text}']
    return args
