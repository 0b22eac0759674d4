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

"""
Compare the frames that publishers let a subscription hold with what it asked for.

Also find windows in which it holds all frames that it may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zc_perception.log import ONCE, Seldom

STALLED_S = 1.0
"""A window that has been full for this time is worth a warning."""


def full_s(window: int, in_hand: Sequence[tuple[int, float]]) -> float:
    """
    Return for how many seconds a *window* has been full; 0 while it isn't.

    :param in_hand: the sequence of each frame that is held, and for how many seconds.
    """
    return min(seconds for _, seconds in in_hand) if in_hand and len(in_hand) >= window else 0.0


def describe_in_hand(in_hand: Sequence[tuple[int, float]]) -> str:
    """Say which frames are held, and for how long."""
    return ', '.join(f'frame {sequence} for {seconds:.1f} s' for sequence, seconds in in_hand)


def describe_full(window: int, in_hand: Sequence[tuple[int, float]], slow: TooSlow | None) -> str:
    """Say why no frame comes while a *window* is full."""
    which = describe_in_hand(in_hand)
    if slow is None:
        return f'this consumer holds all {window} that it may: {which}'
    return f'{slow.what}: it has all {window} that this consumer may hold: {which}'


@dataclass(frozen=True)
class Window:
    """
    What one connection was granted.

    :param publisher_id: of the publisher.
    :param connection: a new number for each time that the publisher was connected to.
    :param granted: frames that may be held at the same time.
    :param asked: how many were asked for.
    :param in_hand: the sequence of each frame that is held, and for how many seconds.
    """

    publisher_id: str
    connection: tuple[int, int]
    granted: int
    asked: int
    in_hand: tuple[tuple[int, float], ...] = ()

    @property
    def full_s(self) -> float:
        """Return for how many seconds the window has been full; 0: it isn't."""
        return full_s(self.granted, self.in_hand)


class TooSlow(NamedTuple):
    """Work that takes too long, so that all frames are held; and what to do about it."""

    what: str
    advice: str


SLOW_CALLBACK = TooSlow(
    'the callback is too slow', "make it quicker, or lower the camera's framerate"
)


class WindowWarnings:
    """
    What a subscription has to say about its windows.

    :param warn: logs a sentence.
    """

    def __init__(self, warn: Callable[[str], object]) -> None:
        self._narrow = Seldom(warn, ONCE)
        self._full = Seldom(warn, 10.0)

    def say(self, windows: Sequence[Window], slow: TooSlow | None = None) -> None:
        """
        Warn of windows.

        Each connection's window that is smaller than what was asked for is reported once. Full
        ones are reported soon, and then rarely.

        :param slow: why windows are full; ``None``: frames are kept.
        """
        for window in windows:
            publisher = f'publisher {window.publisher_id[:8]}'
            if window.granted < window.asked:
                self._narrow(
                    f'{publisher} lets this consumer hold {window.granted} frame(s) at a time, '
                    f'{window.asked} were asked for: it has too few slots left to promise; raise '
                    "its parameter 'slots', or end other consumers and start this one anew",
                    str(window.connection),
                )
            if window.full_s >= STALLED_S:
                self._full(
                    (
                        f'no frame comes from {publisher}, because '
                        f'{describe_full(window.granted, window.in_hand, slow)}; '
                    )
                    + (
                        slow.advice if slow else 'release them, or drop the arrays of their pixels'
                    ),
                    window.publisher_id,
                )
