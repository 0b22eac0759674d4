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
A stand-in for Axelera's Python package ``axelera.runtime``, written from its documents alone.

It is strict where the documents are: arrays are contiguous int8 with padding or descriptors, one
thread uses an instance, instances are closed before their connection, cores are exclusive. NumPy
computes the same model as the C double (``axruntime_model.c``). With ``double_buffer`` a call
returns the result of the call two before, and reads its input as late as that.

From release 1.9 it also has ``op`` and ``scheduler``, which run an ``.axm``: here a zip archive
with the model's settings. Those take and return real numbers, channels first, as the network did
before compiling.

:func:`make_module` makes the package. A test sets and reads ``module.double``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
import json
import mmap
import os
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any
import weakref
import zipfile

from npu.axruntime_kit import detect, tensor_spec
import numpy as np
from numpy.typing import NDArray

LATE_CALLS = 2
KEYS = {
    'aipu_cores', 'num_sub_devices', 'input_dmabuf', 'output_dmabuf', 'double_buffer',
    'elf_in_ddr', 'device_profiling', 'host_profiling',
}  # fmt: skip
ERRORS = (
    'ConnectionError', 'DeviceInUse', 'IncompatibleDevice', 'InternalError', 'InvalidArgument',
    'InvalidConfiguration', 'NotImplemented',
    'Pending', 'UnknownError',
)  # fmt: skip


BoardType = IntEnum(
    'BoardType', ['alpha_pcie', 'alpha_m2', 'pcie', 'm2', 'devboard', 'sbc', 'unknown'], start=0
)


@dataclass(frozen=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]
    padding: Sequence[tuple[int, int]]
    scale: float
    zero_point: int
    dtype = np.int8

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def unpadded_shape(self) -> tuple[int, ...]:
        return self.inside(np.empty(self.shape, np.int8)).shape

    def inside(self, values: NDArray[Any]) -> NDArray[Any]:
        pairs = zip(self.shape, self.padding, strict=True)
        return values[tuple(slice(before, size - after) for size, (before, after) in pairs)]


class Model:
    def __init__(self, settings: dict[str, float]) -> None:  # noqa: CNL100
        height, width = int(settings['height']), int(settings['width'])
        scale = settings.get('input_scale', 1 / 255)
        zero_point = int(settings.get('input_zero_point', -128))
        self.spec = tensor_spec(width, height, scale, zero_point)
        shape = (int(settings.get('batch', 1)), height + 2, width + 16, 4)
        padding = [(0, 0), (1, 1), (1, 15), (0, 1)]
        self._inputs = [TensorInfo('images', shape, padding, scale, zero_point)]
        self._outputs, none = [], (0, 0)
        for level, stride in enumerate((8, 16, 32)):
            rows, columns = height // stride, width // stride
            shape, padding = (1, rows, columns + 1, 64), [none, none, (0, 1), none]
            self._outputs.append(TensorInfo(f'box_{stride}', shape, padding, 1 / 16, 100))
            shape, padding = (1, rows, columns, 64), [none, none, none, (0, 61)]
            self._outputs.append(
                TensorInfo(f'scores_{stride}', shape, padding, 1 / 12, level - 20)
            )
        self.properties = {
            'input_tensor_layout': 'NHWC',
            'preamble_graph': '',
            'postamble_graph': 'postprocess_graph.onnx',
        }

    def inputs(self) -> list[TensorInfo]:
        return self._inputs

    def outputs(self) -> list[TensorInfo]:
        return self._outputs

    def compute(self, tensor: NDArray[np.int8], outputs: Sequence[NDArray[np.int8]]) -> None:
        found = detect(tensor[0], self.spec)
        for info, exact, raw in zip(self._outputs, found, outputs, strict=True):
            raw[:] = 0x7F
            steps = np.floor(exact.values / info.scale + info.zero_point + 0.5)
            info.inside(raw)[:] = np.clip(steps, -128, 127)


class ModelInstance:
    def __init__(
        self, module: Any, connection: Connection, model: Model, options: dict[str, int]
    ) -> None:
        self._module, self._connection = module, connection
        self._model, self._options, self._thread = model, options, 0
        self._queue: list[Any] = []
        double = module.double
        double.live += 1
        connection.live += 1
        weakref.finalize(self, _instance_ends, double, connection)

    def run(self, inputs: list[Any], outputs: list[Any]) -> None:
        double = self._module.double
        self._thread = self._thread or threading.get_ident()
        if self._thread != threading.get_ident() or self._connection.released:
            double.misuses.append('run on another thread, or after the connection was released')
        count_run(self._module)
        if double.refuse_output_dmabuf and self._options.get('output_dmabuf'):
            raise self._module.NotImplemented('outputs are MMIO')
        maps: list[mmap.mmap] = []
        by_descriptor = (bool(self._options.get(f'{name}_dmabuf')) for name in ('input', 'output'))
        sources = self._arrays(inputs, self._model.inputs(), next(by_descriptor), maps)
        results = self._arrays(outputs, self._model.outputs(), next(by_descriptor), maps)
        double.used_connections.add(id(self._connection))
        if not self._options.get('double_buffer'):
            self._model.compute(sources[0], results)
            return
        self._queue.append(sources[0])
        if len(self._queue) > LATE_CALLS:
            self._model.compute(self._queue.pop(0), results)
        else:
            for result in results:
                result[:] = 0x55

    def _arrays(
        self, given: list[Any], infos: Sequence[TensorInfo], dmabuf: bool, maps: list[mmap.mmap]
    ) -> list[NDArray[np.int8]]:
        refuse = self._module.InvalidArgument
        if not isinstance(given, list) or len(given) != len(infos):
            raise refuse(f'a list of {len(infos)} is needed')
        arrays = []
        for value, info in zip(given, infos, strict=True):
            if dmabuf:
                if type(value) is not int or os.fstat(value).st_size < info.size:
                    raise refuse(f'{info.name}: a descriptor of {info.size} bytes is needed')
                maps.append(mmap.mmap(value, info.size))
                arrays.append(np.frombuffer(maps[-1], np.int8, info.size).reshape(info.shape))
            else:
                good = isinstance(value, np.ndarray) and value.flags.c_contiguous
                if not good or (value.dtype, value.shape) != (np.int8, info.shape):
                    raise refuse(f'{info.name}: a contiguous int8 array {info.shape} is needed')
                arrays.append(value)
        return arrays


def count_run(module: Any) -> None:
    """Count a run: it takes its set time, and fails if a failure is set for it."""
    double = module.double
    with double.lock:
        double.runs += 1
        number = double.runs
    if double.fail_from and 0 <= number - double.fail_from < double.fail_count:
        raise getattr(module, double.fail_with)(f'injected into run {number}')
    time.sleep(double.run_s)


def _instance_ends(double: Any, connection: Connection) -> None:
    double.live -= 1
    connection.live -= 1
    if connection.released:
        double.misuses.append('a connection was released before its instance')


class Connection:
    def __init__(self, module: Any, sub_devices: int) -> None:  # noqa: CNL100
        self._module, self.sub_devices, self.released, self.live = module, sub_devices, False, 0
        module.double.used_sub_devices += sub_devices

    def load_model_instance(self, model: Model, **options: int) -> ModelInstance:
        double = self._module.double
        if unknown := options.keys() - KEYS:
            raise self._module.InvalidConfiguration(f'unknown property {unknown}')
        double.options.append((self.sub_devices, dict(options)))
        if double.no_executor:
            raise self._module.UnknownError('Failed to create executor for model: kernel_function')
        batch = model.inputs()[0].shape[0]
        if (
            options.get('num_sub_devices') != batch
            or batch > self.sub_devices
            or not 1 <= options.get('aipu_cores', 0) <= 4
        ):
            raise self._module.InvalidArgument(
                f'{options}, the batch is {batch} and {self.sub_devices} are connected'
            )
        return ModelInstance(self._module, self, model, options)

    def release(self) -> None:
        if not self.released:
            self.released = True
            self._module.double.used_sub_devices -= self.sub_devices


class Context:
    module: Any = None

    def __init__(self) -> None:
        self._released = False
        self.module.double.contexts += 1

    def list_devices(self) -> list[SimpleNamespace]:
        double = self.module.double
        return [
            SimpleNamespace(
                name=name, subdevice_count=4, max_memory=1 << 30, in_use=False, in_use_by='',
                board_type=BoardType.pcie,
                firmware_version=double.firmware, board_revision=3,
                flashed_firmware_version=double.firmware,
                board_controller_firmware_version=double.board_controller,
                board_controller_board_type='',
            )
            for name in double.devices
        ]  # fmt: skip

    def load_model(self, path: str) -> Model:
        if self.module.double.old_model:
            raise self.module.UnknownError('Unsupported model version: 4.0, expected at least 5.0')
        try:
            with open(path, encoding='utf-8') as file:
                return Model(json.load(file))
        except (OSError, ValueError, KeyError) as error:
            raise self.module.InvalidArgument(f'{path} is no compiled model: {error}') from None

    def device_connect(self, device: Any = None, num_sub_devices: int = 1) -> Connection:
        if self.module.double.used_sub_devices + num_sub_devices > 4:
            raise self.module.DeviceInUse(
                f'{self.module.double.used_sub_devices} of 4 sub-devices are in use'
            )
        return Connection(self.module, num_sub_devices)

    def release(self) -> None:
        if not self._released:
            self._released = True
            self.module.double.contexts -= 1


class Scheduler:
    def __init__(self, module: Any, devices: str | None) -> None:
        names = [] if devices is None else devices.split(',')
        if unknown := set(names) - set(module.double.devices):
            raise ValueError(f'no such device: {unknown}')
        if module.double.used_sub_devices:
            raise RuntimeError('num_sub_devices > available')
        module.double.used_sub_devices = 4
        self._module = module

    def close(self) -> None:
        self._module.double.used_sub_devices = 0


class AxmModel:
    """The result of ``op.load``. It runs under the scheduler that is bound at the call."""

    def __init__(self, module: Any, current: ContextVar[Scheduler | None], file: str) -> None:
        if module.double.old_model:
            raise module.UnknownError('Unsupported model version: 4.0, expected at least 5.0')
        with zipfile.ZipFile(file) as archive:
            self._model = Model(json.loads(archive.read('settings.json')))
        self._module, self._current = module, current

    def __call__(self, tensor: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        double = self._module.double
        if self._current.get() is None:
            double.misuses.append('a model was run outside of its scheduler')
        count_run(self._module)
        (info,) = self._model.inputs()
        height, width = info.unpadded_shape[1:3]
        if tensor.dtype != np.float32 or tensor.shape != (1, 3, height, width):
            raise ValueError(
                f'expected float32 (1, 3, {height}, {width}), got {tensor.dtype} {tensor.shape}'
            )
        padded = np.full(info.shape, np.clip(info.zero_point, -128, 127), np.int8)
        raw = np.rint(tensor.transpose(0, 2, 3, 1) / info.scale + info.zero_point)
        info.inside(padded)[:] = np.clip(raw, -128, 127)
        outputs = [np.empty(each.shape, np.int8) for each in self._model.outputs()]
        self._model.compute(padded, outputs)
        found = []
        for each, values in zip(self._model.outputs(), outputs, strict=True):
            steps = each.inside(values).astype(np.float32) - each.zero_point
            found.append((steps * np.float32(each.scale)).transpose(0, 3, 1, 2))
        return tuple(found)


def add_pipelines(module: Any) -> dict[str, ModuleType]:
    current: ContextVar[Scheduler | None] = ContextVar('current', default=None)

    @contextlib.contextmanager
    def create(devices: str | None = None, num_workers: int = 4) -> Iterator[Scheduler]:
        scheduler = Scheduler(module, devices)
        token = current.set(scheduler)
        try:
            yield scheduler
        finally:
            current.reset(token)
            scheduler.close()

    def load(file: str, *, name: str = '', core_allocation: int | str | None = None) -> AxmModel:
        return AxmModel(module, current, file)

    op, scheduler = (ModuleType(f'axelera.runtime.{name}') for name in ('op', 'scheduler'))
    op.load, scheduler.create = load, create  # type: ignore[attr-defined]
    module.__version__ = '1.9.0'
    return {one.__name__: one for one in (op, scheduler)}


def make_module() -> Any:
    """Return the package; its attribute ``double`` is for tests."""
    module: Any = ModuleType('axelera.runtime')
    module.__version__ = '1.8.0'
    module.double = SimpleNamespace(
        devices=['metis-0:1:0', 'metis-1:3:0'], firmware='1.8.0', board_controller='7.4',
        lock=threading.Lock(), run_s=0.0,
        fail_from=0, fail_count=0, fail_with='UnknownError', refuse_output_dmabuf=False,
        no_executor=False, old_model=False, runs=0, live=0, contexts=0, used_sub_devices=0,
        used_connections=set(), options=[],
        misuses=[],
    )  # fmt: skip
    for name in ERRORS:
        setattr(module, name, type(name, (Exception,), {}))
    module.Context = type('Context', (Context,), {'module': module})
    module.BoardType = BoardType
    return module
