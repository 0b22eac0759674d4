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
Logs a message, but not too often.

A message that may come with each frame, each attempt or each look goes through :class:`Seldom`.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import sys
import threading
import time

#: An interval that never ends: the message is logged once.
ONCE = float('inf')
_MOST = 64


class Seldom:
    """
    Says a sentence, and the same one again only after a while.

    Any thread may call it.

    :param say: logs or prints. rclpy wants one line of code for each severity.
    :param again_s: the while; :data:`ONCE`: for ever.
    """

    def __init__(self, say: Callable[[str], object], again_s: float = 60.0) -> None:
        self._say = say
        self._again_s = again_s
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}

    def __call__(self, text: str | Callable[[], str], about: str = '') -> None:
        """
        Say *text*, unless it was said just now.

        :param text: or what makes it, where that costs something; with *about* then.
        :param about: what makes it the same sentence; empty: all of it.
        """
        now, about = time.monotonic(), about or str(text)
        with self._lock:
            said_at = self._said.pop(about, -ONCE)
            seldom_enough = now - said_at >= self._again_s
            self._said[about] = now if seldom_enough else said_at
            if not seldom_enough:
                return
            if len(self._said) > _MOST:
                del self._said[next(iter(self._said))]
        self._say(text() if callable(text) else text)


def on_stderr(text: str) -> None:
    """Print *text* where nobody has a logger. Nobody may be reading it, or it is closed."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(text.rstrip(), file=sys.stderr, flush=True)
