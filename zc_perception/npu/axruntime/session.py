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
The runtime by its C interface.

The context owns everything that is made from it, but an instance has to go before its model and
its connection, and a device stays reserved for this process as long as the connection lives:
:class:`~zc_perception.npu.axruntime.runtime.Session` destroys them in order.

Source: Voyager SDK, *API Reference* of ``axruntime.h``. Where sources disagree:

* Properties: the reference separates them by newlines in one string, examples by semicolons. Each
  is set by itself here.
* The array of ``axr_list_devices`` is one of structs in the SDK's own code, of pointers in the
  reference's example: it is one of structs. Releases differ in the struct's length, so that the
  distance is measured (:func:`device_stride`).
"""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
import re

from zc_perception.errors import AcceleratorError, ConfigError, ZcError
from zc_perception.npu.axruntime.library import (
    Argument,
    BoardType,
    DeviceInfo,
    explain,
    known_result,
    Result,
    RuntimeLibrary,
    TensorDataType,
    TensorInfo,
)
from zc_perception.npu.axruntime.runtime import (
    Device,
    InstanceOptions,
    no_device,
    OpenedModel,
    Session,
)
from zc_perception.npu.axruntime.tensors import c_arguments, Pack, runtime_tensor
from zc_perception.npu.manifest import TensorSpec

_DEVICE_NAME = re.compile(rb'[A-Za-z][\w.]*(?:[:-][0-9A-Fa-f]+){2,}\0')
_SHORTEST_INFO = 536
_LONGEST_INFO = 4096
_DTYPES = {
    (TensorDataType.SIGNED, 8): 'int8',
    (TensorDataType.UNSIGNED, 8): 'uint8',
    (TensorDataType.SIGNED, 16): 'int16',
    (TensorDataType.SIGNED, 32): 'int32',
    (TensorDataType.FLOAT, 32): 'float32',
}
_MODEL_PROPERTIES = ('input_tensor_layout', 'preamble_graph', 'postamble_graph')


def device_stride(first: int, count: int) -> int:
    """
    Return the distance in bytes between the entries of the library's device list.

    Later releases have appended members. The second entry begins with a name. So a search for one,
    which starts at the length of the shortest struct, ends at the right distance and never reads
    behind the list.

    :param first: address of the first entry.
    :raises AcceleratorError: there is no second name where one could be.
    """
    if count < 2:
        return ctypes.sizeof(DeviceInfo)
    for stride in range(_SHORTEST_INFO, _LONGEST_INFO, ctypes.sizeof(ctypes.c_size_t)):
        if _DEVICE_NAME.match(ctypes.string_at(first + stride, 64)):
            return stride
    raise AcceleratorError(
        'libaxruntime lists its devices in a way that is not known here; leave only one in, or '
        'use accelerator: onnx'
    )


class RuntimeSession(Session):
    """
    The library's context, and the device that was chosen.

    Handles are addresses of the library's objects, each destroyed once.

    :param library: the library's path; empty: the system's.
    :param device: see :func:`~zc_perception.npu.axruntime.runtime.choose_device`.
    :raises AcceleratorError: no library, no device, or not that one.
    """

    interface = 'c'
    pack: Pack = staticmethod(c_arguments)

    def __init__(self, library: str = '', device: str = '') -> None:
        self.library = RuntimeLibrary(library)
        self.runtime, self.api_version, self.release = (
            self.library.path,
            self.library.api_version,
            self.library.release,
        )
        self._call = self.library.call
        self._context: int | None = self._call.axr_create_context()
        if not self._context:
            raise AcceleratorError(
                'libaxruntime could not create a context; see what axdevice says'
            )
        super().__init__(device)

    def _failure(self, what: str) -> ZcError:
        """Return the exception for the context's last error."""
        return explain(what, *self.library.last_error(self._context), release=self.release)

    def _list_devices(self) -> tuple[Device, ...]:
        first = ctypes.c_void_p()
        count = self._call.axr_list_devices(self._context, ctypes.byref(first))
        if count == 0 or not first.value:
            raise no_device(
                self.library.last_error(self._context)[0] or 'no reason given', self.release
            )
        stride = device_stride(first.value, count)
        return tuple(_device(first.value + index * stride) for index in range(count))

    def _load_model(self, file: Path) -> int:
        model: int | None = self._call.axr_load_model(self._context, str(file).encode())
        if not model:
            raise self._failure(f"model '{file}' can't be loaded")
        return model

    def _describe(self, model: OpenedModel) -> None:
        model.inputs, model.outputs = (
            self._tensors(model.handle, 'input'),
            self._tensors(model.handle, 'output'),
        )
        properties = (
            self._call.axr_get_model_properties(model.handle)
            if self.library.has('axr_get_model_properties')
            else None
        )
        if properties:
            values = {
                key: self._call.axr_get_property(properties, key.encode())
                for key in _MODEL_PROPERTIES
            }
            model.properties = {
                key: value.decode(errors='replace') for key, value in values.items() if value
            }
            self.free(properties)

    def _tensors(self, model: int, direction: str) -> tuple[TensorSpec, ...]:
        tensors = []
        for index in range(getattr(self._call, f'axr_num_model_{direction}s')(model)):
            info = getattr(self._call, f'axr_get_model_{direction}')(model, index)
            if not 1 <= info.ndims <= len(info.dims):
                raise self._failure(f'{direction} {index} of the model is unknown')
            size = info.bits // 8 * math.prod(info.dims[: info.ndims])
            real = self._call.axr_tensor_size(ctypes.byref(info))
            if size != real:
                raise AcceleratorError(
                    f'libaxruntime says that {direction} {index} has {real} bytes, its shape '
                    f'says {size}: this release has another struct '
                    'layout than is known here; use another release of the Voyager SDK, or '
                    'accelerator: onnx'
                )
            tensors.append(_tensor(info))
        return tuple(tensors)

    def _connect(self) -> int:
        connection: int | None = self._call.axr_device_connect(
            self._context, self.device.info, 1, None
        )
        if not connection:
            code = self.library.last_error(self._context)[1]
            raise self._connect_failure(
                self._failure(f"device '{self.device.name}' can't be connected"), code
            )
        return connection

    def load_instance(self, connection: int, model: int, options: InstanceOptions) -> int:
        properties = self._call.axr_create_properties(self._context, b'')
        if not properties:
            raise self._failure('the runtime could not make a set of properties')
        try:
            for key, value in options.numbers().items():
                self._call.axr_set_property(properties, key.encode(), str(value).encode())
            instance: int | None = self._call.axr_load_model_instance(
                connection, model, properties
            )
            if not instance:
                raise self._failure(f'the model can not be put on the device with {options}')
            return instance
        finally:
            self.free(properties)

    def run(
        self, instance: int, inputs: ctypes.Array[Argument], outputs: ctypes.Array[Argument]
    ) -> None:
        """
        Run one frame, see :class:`Session`.

        Other Python threads go on meanwhile.
        """
        code = self._call.axr_run_model_instance(
            instance, inputs, len(inputs), outputs, len(outputs)
        )
        if code != Result.SUCCESS:
            text = self.library.last_error(self._context)[0]
            raise explain(
                'the runtime could not run the model',
                text,
                known_result(code),
                release=self.release,
                running=True,
            )

    def free(self, handle: int) -> None:
        self._call.axr_destroy(handle)

    def _close_context(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            self.free(context)


def _device(address: int) -> Device:
    info = DeviceInfo.from_address(address)
    board = (
        BoardType(info.board_type).name.lower()
        if info.board_type in BoardType.__members__.values()
        else f'board {info.board_type}'
    )
    texts = (info.name, info.firmware_version, info.board_controller_firmware_version)
    name, firmware, controller = (text.decode(errors='replace') for text in texts)
    return Device(name, info.subdevice_count, board, firmware, address, controller)


def _tensor(info: TensorInfo) -> TensorSpec:
    name = info.name.decode(errors='replace')
    dtype = _DTYPES.get((info.type, info.bits))
    if dtype is None:
        known = ', '.join(_DTYPES.values())
        raise ConfigError(
            f"tensor '{name}' has {info.bits}-bit elements of type {info.type}; {known} can be "
            'read'
        )
    padding = tuple((before, after) for before, after in info.padding[: info.ndims])
    return runtime_tensor(
        name, tuple(info.dims[: info.ndims]), padding, dtype, info.scale, info.zero_point
    )
