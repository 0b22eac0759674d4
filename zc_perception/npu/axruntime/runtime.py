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
Sessions of the Voyager runtime: the base classes of its two interfaces, and its C interface.

The other interface is Axelera's Python package (``binding``).

A session owns the runtime's context and the chosen device. For each core that a model runs on, the
session opens one connection, which has at most one instance: the model on that core. Only one
thread uses an instance and its connection, because users reported that cards hang when threads
share a connection. A connection has one sub-device (core), because models take one frame per run:
on a connection of four cores, three would have no work.

The threads of all cores set up and release objects under the session's lock, so that only one
thread at a time uses the context.

In the C interface the context owns all objects made from it. But an instance must be destroyed
before its model and its connection, and a device stays reserved for this process while a
connection exists. So :class:`Session` destroys the instances first, then the connections, and the
model last. Source: Voyager SDK, *API Reference* of ``axruntime.h``. The reference and the SDK's
code disagree on two points:

* Properties in one string: the reference separates them by newlines, but the examples separate
  them by semicolons. This module sets each property by a call of its own.
* ``axr_list_devices`` returns an array of structs in the SDK's code, but of pointers in the
  reference's example. In fact the entries are structs. Their length differs between releases,
  so :func:`device_stride` measures it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
import ctypes
from dataclasses import dataclass, field
import math
import os
from pathlib import Path
import re
import shutil
import threading
from typing import Any, ClassVar

from zc_perception.errors import AcceleratorError, ConfigError, ZcError
from zc_perception.npu.axruntime.library import (
    Argument,
    BoardType,
    DeviceInfo,
    explain,
    known_result,
    mismatches,
    Result,
    RuntimeLibrary,
    TensorDataType,
    TensorInfo,
)
from zc_perception.npu.axruntime.tensors import c_arguments, Pack, runtime_tensor
from zc_perception.npu.manifest import TensorSpec
from zc_perception.npu.metis_card import card_at, driver_version, INDEX, place_of

TOOLS = {'lspci': 'pciutils', 'lsmod': 'kmod'}
"""The programs that the runtime calls to find cards, each with the package to install."""
_LAST = (1 << 32, 0, 0, 0)


@dataclass(frozen=True)
class Device:
    """
    A card's chip, as the runtime lists it.

    :param name: ``metis-0:1:0``, or ``metis-0-1-0`` with later drivers.
    :param info: the runtime's description of the device, needed to connect: an address from the
        runtime's C library, or an object from its Python module.
    """

    name: str
    sub_devices: int
    board: str
    firmware: str
    info: Any
    board_controller: str = ''


@dataclass(frozen=True)
class InstanceOptions:
    """The options of a model on one connection (one core), named as in the runtime."""

    input_dmabuf: bool = False
    output_dmabuf: bool = False
    double_buffer: bool = False
    aipu_cores: int = 1
    num_sub_devices: int = 1

    def numbers(self) -> dict[str, int]:
        """Return the options with 0 and 1 for booleans, as the runtime needs them."""
        return {name: int(value) for name, value in vars(self).items()}

    def __str__(self) -> str:
        return ', '.join(f'{name}={number}' for name, number in self.numbers().items())


class Connection:
    """
    One core of the card, reserved for this process, and the model on that core.

    One thread runs the model. Loading and releasing the model takes the session's lock.

    :param model: the model: a handle of the C library, or an object of Axelera's Python package.
    :param handle: the connection, as such a handle or object.
    """

    def __init__(self, session: Session, model: Any, handle: Any) -> None:
        self._session, self._model, self._handle = session, model, handle
        self._instance: Any = None

    def load_instance(self, options: InstanceOptions) -> None:
        """
        Put the model on the device; release an earlier instance first.

        :raises ConfigError: the runtime refuses the options.
        :raises AcceleratorError: the device can't load the model.
        """
        with self._session.lock:
            self.close_instance()
            self._instance = self._session.load_instance(self._handle, self._model, options)

    def run(self, inputs: Any, outputs: Any) -> None:
        """
        Run the model on one tensor; block until the runtime returns.

        The arguments were made by the session's ``pack``.

        :raises DeviceLostError: the connection to the device is gone.
        :raises AcceleratorError: the run failed.
        """
        if self._instance is None:
            raise ValueError('the model was taken off the device')
        self._session.run(self._instance, inputs, outputs)

    def close_instance(self) -> None:
        """Take the model off the device. A second call does nothing."""
        with self._session.lock:
            instance, self._instance = self._instance, None
            if instance is not None:
                self._session.free(instance)

    def close(self) -> None:
        """Close the instance, then the connection, so that other programs can use the core."""
        self.close_instance()
        handle, self._handle, self._model = self._handle, None, None
        if handle is not None:
            self._session.free(handle)


@dataclass
class OpenedModel:
    """
    A compiled model, and its connections, one for each core.

    :param handle: the model: a handle of the C library, or an object of Axelera's Python package.
    :param inputs: the input tensors, with their padding in memory; *outputs* likewise.
    :param properties: the compiler's notes about the model, for diagnostics; the keys may change.
    """

    handle: Any
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    connections: list[Connection] = field(default_factory=list)


class Session(ABC):
    """
    The use of one device through the runtime's C or Python interface.

    The session owns a context of the runtime and the open model. A derived class makes the
    context, calls this constructor, and implements the abstract methods for its interface.

    :param wanted: the device, see :func:`choose_device`.
    :ivar runtime: the name of the Python package, or the path of the C library.
    :ivar api_version: the version that the package or library reports, for diagnostics.
    :ivar release: the runtime's release, such as ``1.8.0``; empty: unknown.
    :ivar devices: the devices that the runtime lists.
    :ivar device: the chosen device.
    :ivar lock: held while a model or an instance is loaded or released.
    :raises AcceleratorError: there is no device, or not the wanted one.
    """

    interface: ClassVar[str]
    pack: Pack
    """A function that makes the arguments of :meth:`Connection.run`."""
    runtime: str
    api_version: str
    release: str

    def __init__(self, wanted: str) -> None:
        self.lock = threading.RLock()
        self._model: OpenedModel | None = None
        try:
            self.devices = self._list_devices()
            self.device = choose_device(self.devices, wanted)
        except BaseException:
            self._close_context()
            raise

    @abstractmethod
    def _list_devices(self) -> Sequence[Device]: ...

    @abstractmethod
    def _load_model(self, file: Path) -> Any: ...

    @abstractmethod
    def _describe(self, model: OpenedModel) -> None:
        """Set the inputs, outputs and properties of *model* to what the runtime reports."""

    @abstractmethod
    def _connect(self) -> Any:
        """Reserve one sub-device (core) of the device; return the connection."""

    @abstractmethod
    def load_instance(self, connection: Any, model: Any, options: InstanceOptions) -> Any:
        """Put the model on the connection's core, see :meth:`Connection.load_instance`."""

    @abstractmethod
    def run(self, instance: Any, inputs: Any, outputs: Any) -> None:
        """Run an instance once, see :meth:`Connection.run`."""

    @abstractmethod
    def free(self, handle: Any) -> None:
        """Release an instance, a connection or a model."""

    @abstractmethod
    def _close_context(self) -> None:
        """Close the context. A second call does nothing."""

    def open_model(self, file: Path, cores: int) -> OpenedModel:
        """
        Close the open model, if any; load a compiled model and connect to *cores* cores.

        :raises ConfigError: the file isn't a compiled model, or its tensors can't be used.
        :raises AcceleratorError: the device is in use or doesn't answer.
        """
        with self.lock:
            self.close_model()
            self._model = model = OpenedModel(self._load_model(file))
            try:
                self._describe(model)
                if not (model.inputs and model.outputs):
                    raise ConfigError(
                        'the model has no inputs or no outputs; compile it again with the '
                        'Voyager SDK'
                    )
                for _ in range(cores):
                    model.connections.append(Connection(self, model.handle, self._connect()))
            except BaseException:
                self.close_model()
                raise
            return model

    def close_model(self) -> None:
        """Close the instances and connections of the open model, then the model itself."""
        with self.lock:
            model, self._model = self._model, None
            if model is not None:
                for connection in model.connections:
                    connection.close()
                # Drop the model's reference to the handle now: Axelera's Python package destroys
                # an object when nothing refers to it any more. This must happen before the
                # context is closed.
                handle, model.handle = model.handle, None
                self.free(handle)

    def facts(self) -> Mapping[str, Any]:
        """Return the values about runtime and device that diagnostics show."""
        return {
            'interface': self.interface,
            'runtime': self.runtime,
            'runtime_api': self.api_version,
            'device': self.device.name,
            'board': self.device.board,
            'firmware': self.device.firmware,
            'sub_devices': self.device.sub_devices,
        }

    def close(self) -> None:
        """Close everything, the context last. A second call does nothing."""
        self.close_model()
        self._close_context()

    def _connect_failure(self, refusal: Exception, code: Result) -> Exception:
        """Return *refusal*, or an exception with advice if another process uses the device."""
        if code is not Result.DEVICE_IN_USE:
            return refusal
        others = [other.name for other in self.devices if other is not self.device]
        return AcceleratorError(
            (
                f"{refusal}: 'fuser -v /dev/metis*' shows the process that uses the device; stop "
                'that process, or let it use fewer cores (aipu_cores)'
            )
            + (f', or use another device: {", ".join(others)}' if others else '')
        )


def choose_device(devices: Sequence[Device], wanted: str) -> Device:
    """
    Return the device that parameter ``accelerator_device`` names.

    :param wanted: the device's name as ``axdevice`` lists it, with dashes or colons; the card's
        device node; the card's PCI address; an index in the order of PCI addresses; or empty: the
        first device that the runtime lists.
    :raises AcceleratorError: there is no such device; the message lists the devices.
    """
    if not wanted:
        return devices[0]
    if INDEX.fullmatch(wanted):
        ordered, index = sorted(devices, key=lambda one: place_of(one.name) or _LAST), int(wanted)
        found = ordered[index:][:1]
    else:
        name = os.path.basename(os.path.realpath(wanted)) if wanted.startswith('/') else wanted
        place = (card_at(wanted).place if wanted.startswith('/') else None) or place_of(name)
        found = [device for device in devices if device.name == name]
        found = found or [
            device for device in devices if place is not None and place_of(device.name) == place
        ]
    if not found:
        raise AcceleratorError(
            f"could not find device '{wanted}', found "
            f'{", ".join(device.name for device in devices)}; set accelerator_device to '
            f"a found device's name, device node, PCI address or an index below {len(devices)}, "
            'or leave accelerator_device empty'
        )
    return found[0]


def no_device(text: str, release: str) -> AcceleratorError:
    """Return the exception for a runtime that lists no card, with advice."""
    lines = mismatches(release, driver_version())
    lines += [
        (
            f'the runtime looks for cards by calling {tool}, which is not on PATH: install '
            f"package {package} (for a container: in the container's image)"
        )
        for tool, package in TOOLS.items()
        if shutil.which(tool) is None
    ]
    return AcceleratorError(
        (
            f"the Voyager runtime found no Metis device ({text}): see 'axdevice' and 'lspci -d "
            "1f9d:', load the metis driver, "
        )
        + ''.join(f'{line}; ' for line in lines)
        + 'or use accelerator: onnx'
    )


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

    Later releases have longer structs. Each entry begins with a device's name. So this function
    searches for the second name, from the end of the shortest struct on. The search ends at the
    second entry, so it doesn't read past the end of the list. A list of one entry isn't searched.

    :param first: the address of the first entry.
    :raises AcceleratorError: no second name was found.
    """
    if count < 2:
        return ctypes.sizeof(DeviceInfo)
    for stride in range(_SHORTEST_INFO, _LONGEST_INFO, ctypes.sizeof(ctypes.c_size_t)):
        if _DEVICE_NAME.match(ctypes.string_at(first + stride, 64)):
            return stride
    raise AcceleratorError(
        'libaxruntime lists its devices in an unknown format; leave only one card in the machine, '
        'or use accelerator: onnx'
    )


class RuntimeSession(Session):
    """
    A session that uses the C interface of the library libaxruntime.

    Handles are addresses of the library's objects; each object is destroyed exactly once.

    :param library: the library's path; empty: search for it.
    :param device: see :func:`~zc_perception.npu.axruntime.runtime.choose_device`.
    :raises AcceleratorError: there is no library, no device, or not the wanted device.
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
                'libaxruntime could not create a context; check the output of axdevice'
            )
        super().__init__(device)

    def _failure(self, what: str) -> ZcError:
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
                raise self._failure(f'{direction} {index} of the model has an unknown shape')
            size = info.bits // 8 * math.prod(info.dims[: info.ndims])
            real = self._call.axr_tensor_size(ctypes.byref(info))
            if size != real:
                raise AcceleratorError(
                    f'libaxruntime says that {direction} {index} has {real} bytes, but its shape '
                    f'has {size}: this package does not know the struct layout of this release; '
                    'use another release of the Voyager SDK, or accelerator: onnx'
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
        """Run an instance once without holding Python's GIL, see :meth:`Connection.run`."""
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
            f"tensor '{name}' has {info.bits}-bit elements of type {info.type}; only {known} can "
            'be read'
        )
    padding = tuple((before, after) for before, after in info.padding[: info.ndims])
    return runtime_tensor(
        name, tuple(info.dims[: info.ndims]), padding, dtype, info.scale, info.zero_point
    )
