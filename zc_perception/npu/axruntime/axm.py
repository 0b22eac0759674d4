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
An ``.axm``: a compiled model in one file, which takes a float tensor and gives raw outputs.

``yolo export format=axelera`` writes such files. The runtime quantises, pads, runs, takes the
padding off and dequantises, and runs the ONNX graphs before and behind the compiled part, so that
the outputs are those of the network as it was trained. So we read a frame once and write its
tensor once, and the runtime writes it once more.

Source: Voyager SDK 1.9, pages ``axelera.runtime.op.inference`` and ``axelera.runtime.scheduler``
of *Pipeline Builder*. A scheduler is bound to the thread that makes it, and reserves the whole
card that it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
from dataclasses import replace
import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError, DeviceLostError, one_line, ZcError
from zc_perception.npu.accelerator import Outputs
from zc_perception.npu.axruntime.binding import code_of, MODULE
from zc_perception.npu.axruntime.library import explain, Result
from zc_perception.npu.engine_thread import TensorEngine
from zc_perception.npu.manifest import check_head, ModelManifest

SUFFIX = '.axm'


class AxmEngine(TensorEngine):
    """
    One ``.axm`` on one core.

    One thread makes, uses and closes it.

    :param device: the runtime's name of the card.
    :param release: of the runtime; empty where it is unknown.
    :raises ConfigError: this release can't load such files, or the file doesn't fit the manifest.
    :raises AcceleratorError: the card can't take it.
    """

    def __init__(self, manifest: ModelManifest, device: str, release: str) -> None:
        super().__init__(replace(manifest.input, layout='nchw', dtype='float32'))
        self._file, self._release = manifest.file, release
        try:
            op, scheduler = (
                importlib.import_module(f'{MODULE}.{name}') for name in ('op', 'scheduler')
            )
        except ImportError as error:
            raise ConfigError(
                f"model '{self._file}' needs {MODULE} 1.9 or later, and this is "
                f'{release or "an unknown release"} ({one_line(error)}): '
                'pip install axelera-rt==1.9.0, or compile the model to a model.json with the '
                'SDK of this release'
            ) from error
        if manifest.tensors:
            raise ConfigError(
                f"{manifest.path}: key 'outputs' is not for an {SUFFIX}, which says itself "
                'what it yields; leave it out'
            )
        self._scope = contextlib.ExitStack()
        try:
            try:
                self._scope.enter_context(scheduler.create(devices=device))
                self._model: Any = op.load(str(self._file), core_allocation=1)
            except Exception as error:
                raise self._explained(error, f"model '{self._file}' can't be loaded") from None
            try:
                blank = self.infer_blank()
            except DeviceLostError:
                raise
            except AcceleratorError as error:
                raise ConfigError(f"model '{self._file}': {error}") from None
            check_head(manifest, blank)
        except BaseException:
            self.close()
            raise

    def _explained(self, error: Exception, what: str, *, running: bool = False) -> ZcError:
        code = code_of(error)
        if code is Result.UNKNOWN_ERROR and isinstance(error, (ValueError, OSError)):
            code = Result.INVALID_ARGUMENT  # a file or an array that it doesn't take
        return explain(what, str(error), code, release=self._release, running=running)

    def infer(self, tensor: NDArray[Any]) -> Outputs:
        """See :class:`TensorEngine`."""
        try:
            outputs: NDArray[Any] | Sequence[NDArray[Any]] = self._model(tensor)
        except Exception as error:
            raise self._explained(
                error, 'the runtime could not run the model', running=True
            ) from None
        values = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        return [
            RawTensor(np.asarray(each, np.float32), layout='nchw' if np.ndim(each) == 4 else '')
            for each in values
        ]

    def close(self) -> None:
        """Give the cores back."""
        self._model = None
        with contextlib.suppress(Exception):  # the card may be gone
            self._scope.close()
