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

"""Sealed memory under the name of another heap."""

from __future__ import annotations

from zc_perception.errors import AllocationError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd


class NamedHeap(SealedMemfd):
    """Count heaps that are open; *room* is the heap's size in bytes."""

    open = 0  # noqa: A003

    def __init__(self, name: str, room: int = 1 << 30) -> None:
        self.name = name
        self._room = room
        NamedHeap.open += 1

    def allocate(self, size: int) -> DmaBuf:
        self._room -= size
        if self._room < 0:
            raise AllocationError(
                f'{self.name} could not allocate {size} bytes: Cannot allocate memory'
            )
        return super().allocate(size)

    def close(self) -> None:
        NamedHeap.open -= 1
