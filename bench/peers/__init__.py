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

A library that is not installed is reported as absent.

Read ``processes`` first: it has the list of the peers and their bars, and runs their processes.
``worker`` is such a process. Each peer has a module of its name, and only that module imports the
library. Its producer and consumer are :class:`~bench.link_roles.PicturesOut` and ``PicturesIn``.
The clock starts when the stamped picture is in the producer's own buffer, and stops when the
consumer has a NumPy view of all pixels. So copies into and out of the library are measured.
"""

from __future__ import annotations

from collections.abc import Callable
import time

from zc_perception.errors import ZcError

_MATCH_S = 20.0


def wait_until(there: Callable[[], bool], what: str) -> None:
    """
    Wait until *there* returns true.

    :param what: the beginning of the error's text, such as ``iceoryx2 has no subscriber``.
    :raises ZcError: it is still false after 20 s.
    """
    deadline = time.monotonic() + _MATCH_S
    while not there():
        if time.monotonic() > deadline:
            raise ZcError(f'{what} within {_MATCH_S:g} s')
        time.sleep(0.01)
