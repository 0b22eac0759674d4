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
Declare accelerator axl, and its engine ``axl`` for manifests.

A model of this engine is already on the card. The model writes its result into one buffer, and
only the manifest tells what this buffer contains. Every node imports this module when it starts;
therefore only :meth:`Axl.open` imports the module that implements the accelerator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
import importlib
from itertools import pairwise
from typing import Any

from zc_perception.errors import ZcError
from zc_perception.machine.checks import Check
from zc_perception.machine.system import System
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import Accelerator, with_frames
from zc_perception.npu.kinds import DriverEvents
from zc_perception.npu.manifest import EngineRules, OUTPUTS, TensorSpec, Values
from zc_perception.npu.metis_card import CARD, CARD_CHECKS, choose_card, read_iommu
from zc_perception.parameters import ParameterSpec
from zc_perception.rules import integer, Key, Place

_LARGEST_TENSOR = 1 << 30


class AxlRules(EngineRules):
    """Rules for engine ``axl``: each output has dtype and shape, and no two outputs overlap."""

    def check_outputs(self, outputs: Sequence[Values] | None, place: Place) -> None:
        if outputs is None:
            raise place.missing(f'a list of at least one tensor for engine {self.name}')
        for index, values in enumerate(outputs):
            for name in ('dtype', 'shape'):
                if name not in values:
                    raise place.item(index).at(name).missing(OUTPUTS.table.keys[name].rule.words)

    def check_tensors(self, tensors: Sequence[TensorSpec], place: Place) -> None:
        for index, tensor in enumerate(tensors):
            if tensor.num_bytes > _LARGEST_TENSOR:
                raise (
                    place.item(index)
                    .at('shape')
                    .refuse(
                        list(tensor.shape),
                        f'the shape of a tensor with at most {_LARGEST_TENSOR} bytes (padding '
                        'included)',
                    )
                )
        for first, second in pairwise(sorted(tensors, key=lambda tensor: tensor.offset)):
            if second.offset < first.offset + first.num_bytes:
                where = place.item(tensors.index(second)).at('offset')
                raise where.refuse(
                    second.offset,
                    (
                        f'at least {first.offset + first.num_bytes}, because tensor '
                        f"'{first.name}' ends there"
                    ),
                )


AXL = AxlRules(
    'axl',
    needs_file=False,
    keys={'model_id': Key(integer(0, (1 << 32) - 1), 'Number of the model on the card.', 0)},
)


ENTRIES = 512
"""
The highest number of cached imports; all cameras together have fewer buffers.

The cache is limited because each import takes device addresses and at least one descriptor.
"""


def _numbers(entries: Sequence[str]) -> dict[str, int]:
    from zc_perception.npu.axl.abi import parse_ioctl_numbers

    return parse_ioctl_numbers(entries)


class Axl(Accelerator):
    """Declare accelerator axl; :mod:`~zc_perception.npu.axl.accelerator` implements it."""

    ENGINES = (AXL,)
    PARAMETERS = (
        CARD,
        ParameterSpec(
            'import_cache',
            True,
            'Import each buffer once. false: import a buffer again for every frame.',
            dynamic=True,
        ),
        ParameterSpec(
            'axl_ioctls',
            [],
            "Ioctl numbers that the driver has changed, each as 'name=number' (0 to 255).",
            check=_numbers,
        ),
    )
    CHECKS = (
        *CARD_CHECKS,
        Check(
            'metis.ioctls',
            'whether the driver has the import and submit ioctls',
            'zc_perception.npu.axl.checks:metis_ioctls',
        ),
        Check(
            'buffers.import',
            'import a real buffer of each heap into each Metis card, then end the import',
            'zc_perception.npu.axl.checks:import_trials',
        ),
    )
    IMPORTS = True
    EVENTS = DriverEvents(
        'axl',
        'axl_dmabuf_import',
        'axl_dmabuf_release',
        'axl_submit',
        'axl_complete',
        (
            "use a metis driver with the tracepoints of axl_trace.h; without them the driver's "
            "imports and submits can't be seen"
        ),
        (
            'dmesg | grep axl; strace -f -e trace=ioctl -p PID; compare the ioctl numbers of '
            'driver and package (parameter axl_ioctls)'
        ),
        ENTRIES,
    )
    AUTO = 10
    DEVICE_FIRST = True

    @classmethod
    def foreseen(cls, values: Mapping[str, Any], system: System) -> BufferConstraints | None:
        """
        Ask this machine's card for its constraints, see :meth:`Accelerator.foreseen`.

        :returns: ``None`` if no card answers, or its driver has no ioctls to import frames.
        """
        from zc_perception.npu.axl.device import AxlDevice

        with suppress(ZcError):
            card = choose_card(values['accelerator_device'], system.host)
            numbers = _numbers(values['axl_ioctls'])
            with closing(system.opener(AxlDevice)(card.path, numbers, tree=system.host)) as device:
                answer = device.query()
            if answer.level:
                iommu = read_iommu(card.pci_address, system.host)
                return with_frames(
                    answer.constraints(card.path, iommu), values['in_flight'], answer.jobs
                )
        return None

    @classmethod
    def open(cls, values: Mapping[str, Any], ledger: CopyLedger) -> Accelerator:  # noqa: A003
        """
        Open the card, see :meth:`Accelerator.open`.

        *ledger* is not used, because the CPU makes no pass over the pixels.
        """
        module = importlib.import_module('zc_perception.npu.axl.accelerator')
        accelerator: Accelerator = module.AxlAccelerator(values)
        return accelerator
