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

"""Accelerator ``onnx``: real detectors on real pixels, on a thread of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zc_perception.detection.tiles import Parts
from zc_perception.errors import ConfigError
from zc_perception.frame import Frame
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import Capabilities, ImportHandle
from zc_perception.npu.engine_thread import Engine, EngineJob, EngineThread
from zc_perception.npu.manifest import check_head, ModelManifest
from zc_perception.npu.onnx.hog import HogEngine
from zc_perception.npu.onnx.kind import CONSTRAINTS, JOBS, ONNX, Onnx, OPENCV_HOG, parse_providers
from zc_perception.npu.onnx.session import CPU, OnnxEngine

# Compiling for a device may take minutes.
_LOAD_TIMEOUT_S = 600.0


class OnnxAccelerator(Onnx):
    """
    See :class:`Onnx`. It owns the thread ``onnx-accelerator``.

    :param ledger: books the pass over each frame's pixels.
    :param values: as :meth:`own` of :class:`Onnx` has them.
    """

    def __init__(self, ledger: CopyLedger, values: Mapping[str, Any] | None = None) -> None:
        self._values = Onnx.own(values or {})
        self._name = 'no model'
        self._threads = {'threads': self._values['threads'] or 'one per core'}
        self._facts: Mapping[str, object] = self._threads
        self._notices: Sequence[str] = ()
        self._thread = EngineThread('onnx-accelerator', ledger, Parts(self._values))

    def capabilities(self) -> Capabilities:
        return Capabilities(
            'onnx', self._name, copy_free=False, max_in_flight=JOBS, may_hang=False, on_card=False
        )

    def constraints(self) -> BufferConstraints:
        return CONSTRAINTS

    def load(self, manifest: ModelManifest) -> None:
        if manifest.engine not in (ONNX.name, OPENCV_HOG.name):
            raise ConfigError(
                f"model '{manifest.name}' (engine {manifest.engine}) can't run on the onnx "
                'accelerator'
            )
        self._thread.load(lambda: self._made(manifest), _LOAD_TIMEOUT_S)

    def _made(self, manifest: ModelManifest) -> Engine:
        if manifest.engine == OPENCV_HOG.name:
            self._name, self._facts, self._notices = 'OpenCV HOG', self._threads, ()
            return HogEngine()
        engine = OnnxEngine(manifest, self._values['threads'], self._values['providers'])
        check_head(manifest, engine.infer_blank())
        nodes, first, model = engine.nodes, engine.provider, manifest.name
        self._name = f'ONNX Runtime{"" if first == CPU else f" on {first}"}, {model}'
        share = f'{nodes[CPU]} of {nodes.total()}'
        self._facts = {
            **self._threads,
            'provider': first,
            'nodes_on_cpu': share if nodes else 'this ONNX Runtime does not tell',
        }
        asked = ', '.join(name for name, _ in parse_providers(self._values['providers']))
        by_cpu = f'{share} nodes of model {model} run on the CPU, as {asked} does not take them'
        self._notices = (by_cpu,) if asked not in ('', CPU) and nodes[CPU] else ()
        return engine

    def facts(self) -> Mapping[str, object]:
        return self._facts

    def notices(self) -> Sequence[str]:
        return self._notices

    def submit(self, handle: ImportHandle, frame: Frame) -> EngineJob:
        return self._thread.submit(frame)

    def close(self) -> None:
        self._thread.close()
