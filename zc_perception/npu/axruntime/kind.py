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
Declare accelerator axruntime.

The accelerator itself is imported when it is opened, because every node reads this file at its
start.
"""

from __future__ import annotations

from collections.abc import Mapping
import importlib
from typing import Any

from zc_perception.machine.checks import Check
from zc_perception.machine.system import System
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import Accelerator, reads_by_cpu, with_frames
from zc_perception.npu.metis_card import CARD, CARD_CHECKS
from zc_perception.npu.voyager_model import AXRUNTIME
from zc_perception.parameters import ParameterSpec

OUTPUT_DMABUF = ('auto', 'true', 'false')
LATE_CALLS = 2
"""With double buffering: how many calls later a result comes."""
CONSTRAINTS = reads_by_cpu('axruntime accelerator')
_JOBS = 2
# Two inside the runtime and one that is converted or running: with fewer, no result would ever
# push another one out.
_JOBS_DOUBLE_BUFFERED = LATE_CALLS + 1


def jobs(values: Mapping[str, Any]) -> int:
    """Return how many jobs it takes before the first has completed."""
    each = _JOBS_DOUBLE_BUFFERED if values['double_buffer'] else _JOBS
    cores: int = values['aipu_cores']
    return max(1, cores) * each


class AxRuntime(Accelerator):
    """See :class:`~zc_perception.npu.axruntime.accelerator.AxRuntimeAccelerator`."""

    ENGINES = (AXRUNTIME,)
    PARAMETERS = (
        CARD,
        ParameterSpec(
            'axruntime_library',
            '',
            (
                'Path of libaxruntime.so. Empty: the Python package axelera.runtime, or else the '
                "system's library."
            ),
        ),
        ParameterSpec(
            'aipu_cores',
            1,
            'Number of cores that run the model, each on frames of its own. 0: one.',
            '',
            0,
            4,
        ),
        ParameterSpec(
            'double_buffer',
            False,
            (
                'Transfers overlap with computing: more frames per second, results two frames '
                'late. Set in_flight to 3.'
            ),
        ),
        ParameterSpec(
            'output_dmabuf',
            'auto',
            'Whether results are written to dma-bufs. auto: yes if a trial run works.',
            choices=OUTPUT_DMABUF,
        ),
    )
    CHECKS = (
        *CARD_CHECKS,
        Check(
            'metis.attach',
            'whether a shipped driver can attach a buffer of ours',
            'zc_perception.npu.axruntime.checks:metis_attach',
        ),
        Check(
            'voyager.runtime',
            'which interface, where, which release; the driver and programs it needs',
            'zc_perception.npu.axruntime.checks:voyager_runtime',
        ),
        Check(
            'voyager.toolchain',
            'before release 1.8: the compiler that loads a model',
            'zc_perception.npu.axruntime.checks:voyager_toolchain',
        ),
    )
    AUTO = 20

    @classmethod
    def foreseen(cls, values: Mapping[str, Any], system: System) -> BufferConstraints:
        return with_frames(CONSTRAINTS, values['in_flight'], jobs(values))

    @classmethod
    def open(cls, values: Mapping[str, Any], ledger: CopyLedger) -> Accelerator:  # noqa: A003
        module = importlib.import_module('zc_perception.npu.axruntime.accelerator')
        accelerator: Accelerator = module.AxRuntimeAccelerator(ledger, values)
        return accelerator
