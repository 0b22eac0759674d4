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
Use the runtime through Axelera's Python package ``axelera.runtime``.

The package is preferred if it can be imported, because users measured more frames per second with
it than with the C interface. :class:`BindingSession` owns the package's context and all objects
made from it. The package's model instance has no method ``close``: dropping the last reference to
the instance destroys it. This must happen before the instance's connection is closed.

:class:`AxmEngine` runs an ``.axm`` of ``yolo export format=axelera``: a compiled model in one
file, which takes a float tensor and gives raw outputs. The runtime quantises and pads the tensor,
runs the model, removes the outputs' padding and dequantises the outputs. The runtime also runs the
ONNX graphs before and after the compiled part, so that the outputs are those of the trained
network. For each frame, zc_perception reads the frame once and writes the float tensor once, and
the runtime writes the tensor once more. The runtime's scheduler object is bound to the thread that
makes it, and reserves the whole card.

Sources: Voyager SDK 1.8, ``docs/reference/apis/axruntime-py.md`` and the tutorials of
``axruntime-python``; SDK 1.9, pages ``axelera.runtime.op.inference`` and
``axelera.runtime.scheduler`` of *Pipeline Builder*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
from dataclasses import replace
import importlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import (
    AcceleratorError,
    ConfigError,
    DeviceLostError,
    message_of,
    one_line,
    ZcError,
)
from zc_perception.npu.accelerator import Outputs
from zc_perception.npu.axruntime.library import explain, PACKAGE, Result, wheel_release
from zc_perception.npu.axruntime.runtime import (
    Device,
    InstanceOptions,
    no_device,
    OpenedModel,
    Session,
)
from zc_perception.npu.axruntime.tensors import Pack, places, runtime_tensor
from zc_perception.npu.engine_thread import TensorEngine
from zc_perception.npu.manifest import check_head, ModelManifest, TensorSpec

MODULE = 'axelera.runtime'
# The C library's result code for each error class of Axelera's package, by the class's name. A
# class is named like its code (InvalidArgument: INVALID_ARGUMENT); only Pending has another name.
_CODES = {
    'Pending': Result.PENDING_ERROR,
    **{code.name.title().replace('_', ''): code for code in Result},
}


def import_binding() -> Any:
    """
    Import Axelera's package.

    :raises AcceleratorError: the package isn't installed, or can't be imported.
    """
    try:
        module = importlib.import_module(MODULE)
    except ModuleNotFoundError as error:
        if error.name is not None and (
            error.name == MODULE or MODULE.startswith(f'{error.name}.')
        ):
            raise AcceleratorError(
                f'Python package {PACKAGE} ({MODULE}) is not installed'
            ) from error
        raise AcceleratorError(f"{MODULE} can't be imported: {error}") from error
    except Exception as error:  # Axelera's package may raise any exception
        raise AcceleratorError(
            f"{MODULE} can't be imported: {type(error).__name__}: {message_of(error)}"
        ) from error
    if not callable(getattr(module, 'Context', None)):
        raise AcceleratorError(
            f'{MODULE} has no Context; so it is not the package of the Voyager SDK'
        )
    return module


def binding_release(module: Any) -> str:
    """Return the release of Axelera's package *module*; empty if it is unknown."""
    return wheel_release() or str(getattr(module, '__version__', ''))


def _tensor(info: Any) -> TensorSpec:
    """Convert *info*, the package's description of a tensor, to a :class:`TensorSpec`."""
    try:
        padding = tuple((int(before), int(after)) for before, after in info.padding)
        shape, dtype = tuple(map(int, info.shape)), np.dtype(info.dtype).name
        return runtime_tensor(
            str(info.name), shape, padding, dtype, float(info.scale), int(info.zero_point)
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f'{MODULE} describes a tensor in an unknown way: {error}; use the C library instead '
            '(set axruntime_library)'
        ) from error


def _properties(model: Any) -> dict[str, str]:
    properties = getattr(model, 'properties', None)
    if isinstance(properties, Mapping):
        return {str(key): str(value) for key, value in properties.items() if value}
    keys = ('input_tensor_layout', 'preamble_graph', 'postamble_graph')
    values = {key: getattr(properties, key, None) for key in keys}
    return {key: str(value) for key, value in values.items() if value}


class BindingSession(Session):
    """
    A session that uses AxRuntime's Python interface.

    :param device: see :func:`~zc_perception.npu.axruntime.runtime.choose_device`.
    :raises AcceleratorError: AxRuntime's Python package or the wanted device is missing.
    """

    interface = 'python'
    pack: Pack = staticmethod(places)
    runtime = MODULE

    def __init__(self, device: str = '') -> None:
        module = import_binding()
        self.release = binding_release(module)
        self.api_version = self.release or 'unknown'
        try:
            self._context: Any = module.Context()
        except Exception as error:
            raise self._failure(error, f'{MODULE} could not create a context') from None
        super().__init__(device)

    def _failure(self, error: Exception, what: str, *, running: bool = False) -> ZcError:
        return explain(what, str(error), code_of(error), release=self.release, running=running)

    def _list_devices(self) -> Sequence[Device]:
        try:
            listed = self._context.list_devices()
        except Exception as error:
            raise no_device(one_line(error), self.release) from None
        if not listed:
            raise no_device('the list is empty', self.release)
        return tuple(map(_device, listed))

    def _load_model(self, file: Path) -> Any:
        try:
            return self._context.load_model(str(file))
        except Exception as error:
            raise self._failure(error, f"model '{file}' can't be loaded") from None

    def _describe(self, model: OpenedModel) -> None:
        try:
            model.inputs, model.outputs = (
                tuple(map(_tensor, model.handle.inputs())),
                tuple(map(_tensor, model.handle.outputs())),
            )
            model.properties = _properties(model.handle)
        except ZcError:
            raise
        except Exception as error:
            raise self._failure(error, 'the model does not describe its tensors') from None

    def _connect(self) -> Any:
        try:
            return self._context.device_connect(self.device.info, 1)
        except Exception as error:
            raise self._connect_failure(
                self._failure(error, f"device '{self.device.name}' can't be connected"),
                code_of(error),
            ) from None

    def load_instance(self, connection: Any, model: Any, options: InstanceOptions) -> Any:
        try:
            return connection.load_model_instance(model, **options.numbers())
        except Exception as error:
            raise self._failure(
                error, f'the model can not be put on the device with {options}'
            ) from None

    def run(self, instance: Any, inputs: Any, outputs: Any) -> None:
        try:
            instance.run(inputs, outputs)
        except Exception as error:
            raise self._failure(
                error, 'the runtime could not run the model', running=True
            ) from None

    def free(self, handle: Any) -> None:
        """Release a connection; instances and models are destroyed when nothing refers to them."""
        if hasattr(handle, 'release'):
            handle.release()

    def _close_context(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.release()


def code_of(error: Exception) -> Result:
    """Return the C library's result code that matches an error of Axelera's Python package."""
    return next(
        (_CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _CODES),
        Result.UNKNOWN_ERROR,
    )


def _device(info: Any) -> Device:
    board = getattr(info.board_type, 'name', info.board_type)
    return Device(
        str(info.name),
        int(info.subdevice_count),
        str(board),
        str(getattr(info, 'firmware_version', '')),
        info,
        str(getattr(info, 'board_controller_firmware_version', '')),
    )


SUFFIX = '.axm'


class AxmEngine(TensorEngine):
    """
    One ``.axm`` model on one core; one thread makes, runs and closes it.

    :param device: the runtime's name of the card.
    :param release: the runtime's release; empty: unknown.
    :raises ConfigError: this release can't load ``.axm`` files, or the file doesn't fit the
        manifest.
    :raises AcceleratorError: the card can't load the model.
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
                f"model '{self._file}' needs {MODULE} 1.9 or later; what is installed is "
                f'{release or "an unknown release"} ({one_line(error)}): '
                'pip install axelera-rt==1.9.0, or compile the model to a model.json with the '
                'SDK of the installed release'
            ) from error
        if manifest.tensors:
            raise ConfigError(
                f"{manifest.path}: key 'outputs' is not for an {SUFFIX}, which itself describes "
                'its outputs; leave the key out'
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
            # axelera.runtime raises ValueError or OSError for a wrong file or array.
            code = Result.INVALID_ARGUMENT
        return explain(what, str(error), code, release=self._release, running=running)

    def infer(self, tensor: NDArray[Any]) -> Outputs:
        """Run the model; return float32 outputs, with axes in the trained network's order."""
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
        """Release the model and the card; ignore errors, because the card may be gone."""
        self._model = None
        with contextlib.suppress(Exception):
            self._scope.close()
