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
The tracepoints of drivers that import frames.

``zc_verify`` measures an accelerator by them, and ``zc_timeline`` shows them. An accelerator
declares its driver's as ``EVENTS``. Their fields are those of ``axl_trace.h``: ``handle`` and
``ino`` of an import and its release; ``handle``, ``ctx`` and ``seqno`` of a submit; ``ctx`` and
``seqno`` of its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zc_perception.npu.kinds import ACCELERATORS


@dataclass(frozen=True)
class DriverEvents:
    """
    The events of one driver.

    :param system: tracefs' folder of the events.
    :param absent: what to do where the kernel does not have them.
    :param unimported: what to look at where a frame was not imported.
    :param kept: how many imports a node's cache keeps.
    """

    system: str
    imported: str
    released: str
    submitted: str
    completed: str
    absent: str
    unimported: str
    kept: int

    @property
    def names(self) -> tuple[str, ...]:
        """All names of events."""
        return self.imported, self.released, self.submitted, self.completed


class Traced:
    """
    What can be traced.

    :param drivers: by accelerator.
    """

    def __init__(self, drivers: Mapping[str, DriverEvents]) -> None:
        self.drivers = drivers
        events = drivers.values()
        self.imported = frozenset(driver.imported for driver in events)
        self.released = frozenset(driver.released for driver in events)
        self.submitted = frozenset(driver.submitted for driver in events)
        self.completed = frozenset(driver.completed for driver in events)


def traced() -> Traced:
    """Return the events of all accelerators whose package can be imported here."""
    kinds = ACCELERATORS.declared.classes
    return Traced({name: kind.EVENTS for name, kind in kinds.items() if kind.EVENTS is not None})
