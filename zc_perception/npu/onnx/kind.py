"""What accelerator onnx declares. The accelerator itself is imported when it is opened: every node's start reads this."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zc_perception.machine.system import System
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import Accelerator, reads_by_cpu, with_frames
from zc_perception.npu.engine_rules import EngineRules, Values
from zc_perception.npu.manifest import INPUT
from zc_perception.parameters import ParameterSpec
from zc_perception.rules import Place

JOBS = 2
CONSTRAINTS = reads_by_cpu('onnx accelerator')


class OnnxRules(EngineRules):
    """Engine ``onnx``: an ONNX file, whose input has a size of its own."""

    def input_size(self, given: Values, file: Path | None, place: Place) -> tuple[int, int] | None:
        dtype = given.get('dtype', 'float32')
        if dtype != 'float32' and given.get('scale') is None:
            raise place.at('scale').missing(
                f'{INPUT.keys["scale"].rule.words}, as the values are {dtype}'
            )
        return super().input_size(given, file, place)


ONNX = OnnxRules('onnx', file='the weights', needs_file=True, takes_frames=False)
OPENCV_HOG = EngineRules('opencv_hog', needs_file=False)


class Onnx(Accelerator):
    """See :class:`~zc_perception.npu.onnx.accelerator.OnnxAccelerator`."""

    ENGINES = (ONNX, OPENCV_HOG)
    PARAMETERS = (
        ParameterSpec(
            'threads', 0, 'Number of threads of ONNX Runtime. 0: one per core.', '', 0, 64
        ),
    )
    AUTO = 90

    @classmethod
    def foreseen(cls, values: Mapping[str, Any], system: System) -> BufferConstraints:
        return with_frames(CONSTRAINTS, values['in_flight'], JOBS)

    @classmethod
    def open(cls, values: Mapping[str, Any], ledger: CopyLedger) -> Accelerator:
        module = importlib.import_module('zc_perception.npu.onnx.accelerator')
        accelerator: Accelerator = module.OnnxAccelerator(ledger, values)
        return accelerator
