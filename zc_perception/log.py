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

"""Limit the logging of messages that could occur at each frame, attempt or check."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import sys
import threading
import time

#: An infinite interval: a message is logged only once.
ONCE = float('inf')
_MOST = 64


class Seldom:
    """
    Log a message; log the same message again only after an interval. Thread-safe.

    :param say: logs or prints a text. rclpy demands that one line of code always logs with the
        same severity, so a function is passed and not a logger with a severity.
    :param again_s: the interval in seconds; :data:`ONCE`: no message is repeated.
    """

    def __init__(self, say: Callable[[str], object], again_s: float = 60.0) -> None:
        self._say = say
        self._again_s = again_s
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}

    def __call__(self, text: str | Callable[[], str], about: str = '') -> None:
        """
        Log *text*, unless the same message was logged within the interval.

        :param text: the text, or a function that returns it and is called only if the text is
            logged. With a function, *about* is required.
        :param about: texts with the same *about* count as the same message; default: the text.
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
    """Print *text* on standard error, for code without a logger; ignore a closed stream."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(text.rstrip(), file=sys.stderr, flush=True)
