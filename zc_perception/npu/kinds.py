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

Other packages add accelerators by entry points of the group ``zc_perception.accelerators``: the
entry point's name is the accelerator's name, and its value ``module:Class`` names a class derived
from :class:`~zc_perception.npu.accelerator.Accelerator`.

An accelerator declares its driver's tracepoints as ``EVENTS``; ``zc_verify`` measures the
accelerator by them, and ``zc_timeline`` shows them. The tracepoints must have the fields of
``axl_trace.h``: ``handle`` and ``ino`` for an import and its release; ``handle``, ``ctx`` and
``seqno`` for a submit; ``ctx`` and ``seqno`` for the job's end.
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
        'Highest number of frames on the accelerator at the same time.',
        '',
        1,
        16,
        dynamic=True,
    ),
    ParameterSpec(
        'timeout',
        1.0,
        'A frame without a result after this time is given up.',
        's',
        0.01,
        60.0,
        dynamic=True,
    ),
)
"""Parameters of the inference node that every accelerator reads, besides its ``PARAMETERS``."""
AUTO = 'auto'
"""The value of parameter ``accelerator`` that chooses the first accelerator that fits."""
# The type is Any instead of Accelerator, the base class of the registered classes: Accelerator's
# module imports this module, so importing Accelerator here would be circular.
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
    The names of one driver's trace events, and advice for the user.

    :param system: the folder of the events in tracefs.
    :param absent: what to do if the kernel has no such events.
    :param unimported: what to check if a frame was not imported.
    :param kept: the highest number of imported buffers that a node's cache keeps.
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
        """The names of the events for import, release, submit and a job's end."""
        return self.imported, self.released, self.submitted, self.completed


class Traced:
    """
    The trace events of all drivers, grouped by their meaning.

    :param drivers: each accelerator's events, by the accelerator's name.
    """

    def __init__(self, drivers: Mapping[str, DriverEvents]) -> None:
        self.drivers = drivers
        events = drivers.values()
        self.imported = frozenset(driver.imported for driver in events)
        self.released = frozenset(driver.released for driver in events)
        self.submitted = frozenset(driver.submitted for driver in events)
        self.completed = frozenset(driver.completed for driver in events)


def traced() -> Traced:
    """Return the trace events of all accelerators whose package can be imported."""
    kinds = ACCELERATORS.declared.classes
    return Traced({name: kind.EVENTS for name, kind in kinds.items() if kind.EVENTS is not None})
