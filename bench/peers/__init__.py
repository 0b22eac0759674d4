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
Libraries that one could use instead of the links: zenoh, iceoryx2, Cyclone DDS.

A library that is not installed is reported as absent. Plain rclpy messages are measured beside
them.

Read ``processes`` first: the list of the peers, their goals, and how their processes are run.
``worker`` is such a process. Each peer has one module with its name, and only that module imports
it; its producer and consumer are :class:`~bench.link_roles.PicturesOut` and ``PicturesIn``: a
producer's picture is in a buffer of its own, stamped, when the clock starts, which stops when the
consumer has a NumPy view of all of it. Copies into and out of the peer are within.
"""

from __future__ import annotations

from collections.abc import Callable
import time

from zc_perception.errors import ZcError

_MATCH_S = 20.0


def wait_until(there: Callable[[], bool], what: str) -> None:
    """
    Wait until the condition is true.

    :raises ZcError: it isn't, for long.
    """
    deadline = time.monotonic() + _MATCH_S
    while not there():
        if time.monotonic() > deadline:
            raise ZcError(f'{what} within {_MATCH_S:g} s')
        time.sleep(0.01)
