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

"""Run programs that print a JSON line for each event, such as the C consumer."""

from __future__ import annotations

from collections.abc import Sequence
import json
from pathlib import Path
import queue
import subprocess
import threading
from typing import Any, TypeVar

Self = TypeVar('Self', bound='Lines')
FRAMES_READ, ENDED, USAGE, REFUSED, RULE_BROKEN = range(5)


class Lines:
    """A program whose output a thread reads; at the context's end the program is killed."""

    def __init__(self, command: Sequence[str | Path], **options: Any) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def came(self, line: str | None) -> None:
        """Take a line, or None at the end of the output."""
        raise NotImplementedError

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.came(line)
        self.came(None)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self: Self) -> Self:
        return self

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
        self.came = self._lines.put  # type: ignore[method-assign, assignment]
        super().__init__([program, '--socket', path, *options], stderr=subprocess.PIPE)

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
        """Return the refusal's code and text; fail unless the consumer was refused."""
        code, lines, _ = self.result()
        assert code == REFUSED, lines[-1:]
        return lines[-1]['refused'], lines[-1]['text']
