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

"""Wait by polling, for events of other threads or processes that send no notification."""

from __future__ import annotations

from collections.abc import Callable
import os
import time
from typing import Any

PATIENCE_S = float(os.environ.get('ZC_PATIENCE_S', '60'))
"""
What comes at all comes within this time, on the slowest machine.

``tools/mutants.py`` has less patience: of what it breaks, much never comes.
"""


class NotInTimeError(AssertionError):
    """The awaited condition has not come true in time."""


def _a_moment() -> None:
    time.sleep(0.005)


def eventually(
    condition: Callable[[], Any],
    seconds: float = PATIENCE_S,
    pause: Callable[[], object] = _a_moment,
) -> bool:
    """Return whether *condition* came true in time; *pause* is called between two looks."""
    try:
        until(condition, seconds=seconds, pause=pause)
    except NotInTimeError:
        return False
    return True


def until(
    condition: Callable[[], Any],
    what: object = '',
    seconds: float = PATIENCE_S,
    pause: Callable[[], object] = _a_moment,
) -> Any:
    """
    Return the result of *condition* once it is true.

    :param what: added to the error; if callable, its result is added.
    :param pause: called between two looks.
    :raises NotInTimeError: *condition* did not come true in time.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() >= deadline:
            raise NotInTimeError(f'not within {seconds:g} s: {what() if callable(what) else what}')
        pause()
    return found
