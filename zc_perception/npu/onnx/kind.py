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
Declare accelerator onnx.

Every node imports this module when the node starts. The module that implements the accelerator
loads OpenCV and ONNX Runtime, which is slow. So only :meth:`Onnx.open` imports that module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import importlib
from pathlib import Path
from typing import Any

from zc_perception.detection.tiles import PARAMETERS as TILES
from zc_perception.errors import ConfigError
from zc_perception.machine.system import System
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import Accelerator, reads_by_cpu, with_frames
from zc_perception.npu.manifest import EngineRules, INPUT, Values
from zc_perception.parameters import ParameterSpec
from zc_perception.rules import Place

JOBS = 2
CONSTRAINTS = reads_by_cpu('onnx accelerator')


class OnnxRules(EngineRules):
    """Rules for manifests of engine ``onnx``: int8 inputs need key ``scale``."""

    def input_size(self, given: Values, file: Path | None, place: Place) -> tuple[int, int] | None:
        if given.get('dtype') == 'int8' and given.get('scale') is None:
            raise place.at('scale').missing(
                f'{INPUT.keys["scale"].rule.words}, as the input is int8'
            )
        return super().input_size(given, file, place)


ONNX = OnnxRules(
    'onnx', file='the weights', files=('*.onnx',), needs_file=True, takes_frames=False
)
OPENCV_HOG = EngineRules('opencv_hog', needs_file=False)


def parse_providers(entries: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """
    Return for each entry of parameter ``providers`` the provider's name and its options.

    :raises ConfigError: an entry can't be parsed.
    """
    parsed: list[tuple[str, dict[str, str]]] = []
    for entry in entries:
        name, *options = (part.strip() for part in entry.split(';'))
        pairs = [option.partition('=') for option in options if option]
        if not name or '=' in name or not all(key.strip() and equals for key, equals, _ in pairs):
            raise ConfigError(
                f"parameter 'providers' has '{entry}'; it must be a name, or 'NAME; option=value; "
                "…', such as 'OpenVINOExecutionProvider; device_type=NPU'"
            )
        if name in dict(parsed):
            raise ConfigError(f"parameter 'providers' has '{name}' twice; leave one out")
        parsed.append((name, {key.strip(): value.strip() for key, _, value in pairs}))
    return parsed


class Onnx(Accelerator):
    """Declare accelerator onnx; :mod:`~zc_perception.npu.onnx.accelerator` implements it."""

    ENGINES = (ONNX, OPENCV_HOG)
    PARAMETERS = (
        ParameterSpec(
            'threads', 0, 'Number of threads of ONNX Runtime. 0: one per core.', '', 0, 64
        ),
        ParameterSpec(
            'providers',
            [],
            "ONNX Runtime's execution providers, best first, each as 'NAME' or 'NAME; "
            "option=value; …'. Operators of the model that no provider supports run on the CPU. "
            'Empty: only CPU.',
            check=parse_providers,
        ),
        *TILES,
    )
    AUTO = 90

    @classmethod
    def foreseen(cls, values: Mapping[str, Any], system: System) -> BufferConstraints:
        return with_frames(CONSTRAINTS, values['in_flight'], JOBS)

    @classmethod
    def open(cls, values: Mapping[str, Any], ledger: CopyLedger) -> Accelerator:  # noqa: A003
        module = importlib.import_module('zc_perception.npu.onnx.accelerator')
        accelerator: Accelerator = module.OnnxAccelerator(ledger, values)
        return accelerator
