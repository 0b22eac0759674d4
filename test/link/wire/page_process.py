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

"""Run page_consumer.py or page_producer.py, and wait for the JSON lines that they print."""

from __future__ import annotations

from collections.abc import Callable
import json
import os
from pathlib import Path
import sys
from typing import Any

from link.wire.wire_process import Lines
from waiting import until

Event = dict[str, Any]


class PageProcess(Lines):
    """One of the two programs, with its sockets in *folder*."""

    def __init__(self, name: str, folder: Path, domain: int, *options: str) -> None:
        self.events: list[Event] = []
        program = Path(__file__).with_name(f'page_{name}.py')
        super().__init__(
            [sys.executable, program, '--domain', str(domain), *options],
            env={**os.environ, 'ZC_RUNTIME_DIR': str(folder)},
        )

    def came(self, line: str | None) -> None:
        if line and line.endswith('\n'):  # a killed program may leave half a line
            self.events.append(json.loads(line))

    def told(self, event: str, **details: object) -> list[Event]:
        """Return the lines so far of this kind with these details."""
        wanted = {'event': event, **details}
        return [each for each in list(self.events) if wanted.items() <= each.items()]

    def wait_for(self, event: str, count: int = 1, **details: object) -> list[Event]:
        """Wait until *count* such lines were printed; return them."""
        self.wait_until(lambda: len(self.told(event, **details)) >= count)
        return self.told(event, **details)

    def wait_for_more(self, event: str, count: int, **details: object) -> None:
        """Wait until *count* more such lines were printed."""
        self.wait_for(event, len(self.told(event, **details)) + count, **details)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        until(condition, lambda: self.events[-20:])

    def pixels(self) -> set[tuple[int, ...]]:
        return {(each['sequence'], *each['crcs']) for each in self.told('frame')}
