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
List the accelerators, one line each, and the tracepoints of their drivers.

Accelerators of other packages come by entry points of the group ``zc_perception.accelerators``:
the name is the accelerator's, the value ``module:Class`` is a class derived from
:class:`~zc_perception.npu.accelerator.Accelerator`.

``zc_verify`` measures an accelerator by its driver's tracepoints, and ``zc_timeline`` shows them:
an accelerator declares them as ``EVENTS``. Their fields are those of ``axl_trace.h``: ``handle``
and ``ino`` of an import and its release; ``handle``, ``ctx`` and ``seqno`` of a submit; ``ctx``
and ``seqno`` of its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zc_perception.kinds import ACCELERATOR_GROUP, Kinds
from zc_perception.parameters import ParameterSpec

FOR_ALL = (
    ParameterSpec(
        'in_flight',
        1,
        'Most frames that are on the accelerator at the same time.',
        '',
        1,
        16,
        dynamic=True,
    ),
    ParameterSpec(
        'timeout',
        1.0,
        'A frame that takes longer than this is given up.',
        's',
        0.01,
        60.0,
        dynamic=True,
    ),
)
"""Parameters of the inference node that every accelerator gets, too."""
AUTO = 'auto'
"""Not an accelerator, but the first that fits, in the order of their ``AUTO``."""
# Classes derived from Accelerator; its module needs this one, for the engines of manifests.
ACCELERATORS: Kinds[Any] = Kinds(
    'accelerator',
    ACCELERATOR_GROUP,
    {
        'axl': 'zc_perception.npu.axl.kind:Axl',
        'axruntime': 'zc_perception.npu.axruntime.kind:AxRuntime',
        'onnx': 'zc_perception.npu.onnx.kind:Onnx',
    },
    'zc_perception.npu.accelerator:Accelerator',
)


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
