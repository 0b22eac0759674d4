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

"""Recorded stamps that say nothing: of cameras without a clock, which are 0 or never change."""

from __future__ import annotations


class RecordedStamps:
    """
    What a recording's frames are stamped with, in their order.

    A stamp of 0, and one that is the same as that of the frame before, says nothing. Such a frame
    gets the last good stamp plus the time since then by the recorder's clock; if there was none
    yet, the recorder's time. All others stay as they are: what else was recorded refers to them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._replaced = False
        self._went_back = False
        self.restart()

    def restart(self) -> None:
        """Note that the recording begins again."""
        self._before: int | None = None
        self._good: tuple[int, int] | None = None
        self._given: int | None = None

    def stamp(self, recorded: int, at_ns: int) -> int:
        """
        Return the stamp of the next frame.

        :param recorded: its own stamp.
        :param at_ns: when the recorder got it.
        """
        before, self._before = self._before, recorded
        if recorded > 0 and recorded != before:
            self._good = recorded, at_ns
            self._went_back |= self._given is not None and recorded < self._given
            given = recorded
        else:
            self._replaced = True
            base, since_ns = self._good or (at_ns, at_ns)
            given = base + at_ns - since_ns
            if self._given is not None:
                given = max(given, self._given + 1)
        self._given = given
        return given

    def notice(self) -> str:
        """Return what the user should know of the stamps up to now; empty for nothing."""
        found = []
        if self._replaced:
            found.append(
                'has stamps that are 0 or repeat: '
                'these frames are stamped by the times of recording'
            )
        if self._went_back:
            found.append('has stamps that go back: they stay as they are')
        return f"'{self._name}' {' and '.join(found)}" if found else ''
