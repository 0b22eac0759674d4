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

"""Computes the pause between a failed attempt and the next one."""

from __future__ import annotations

import time


class BackOff:
    """
    Compute the pause between attempts: *first_s*, then twice as long each time, up to *last_s*.

    The methods only compute; the caller waits. They take no lock: if several threads share one
    instance, the callers need a lock.

    ``due``: when the next attempt may begin, in seconds of CLOCK_MONOTONIC; 0 means at once.
    ``pause_s``: the latest pause in seconds; 0 while no attempt has failed.
    """

    __slots__ = ('_first_s', '_last_s', 'due', 'pause_s')

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s, self._last_s = first_s, last_s
        self.due = self.pause_s = 0.0

    @property
    def remaining_s(self) -> float:
        """Return the seconds until the next attempt may begin; 0: it may begin now."""
        return max(0.0, self.due - time.monotonic())

    def failed(self, last_s: float | None = None) -> None:
        """Record a failed attempt; *last_s*: the longest pause after this attempt only."""
        self.pause(
            min(self._last_s if last_s is None else last_s, 2.0 * self.pause_s or self._first_s)
        )

    def pause(self, pause_s: float) -> None:
        """Let the next attempt begin in *pause_s* seconds at the earliest."""
        self.pause_s = pause_s
        self.due = time.monotonic() + pause_s

    def start_over(self) -> None:
        """Record a success: the next attempt may begin at once; pauses restart at *first_s*."""
        self.due = self.pause_s = 0.0
