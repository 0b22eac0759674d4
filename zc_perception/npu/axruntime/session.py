"""Context, device, model, connection and instance of ``libaxruntime``, each owned by one object and destroyed in the right order.

The context owns everything that is made from it, but an instance has to go before its model and its connection, and a device stays
reserved for this process as long as the connection lives: so each is destroyed by whoever made it, also when a later step fails.

Source: Voyager SDK, *API Reference* of ``axruntime.h``. Where sources disagree:

* Properties: the reference separates them by newlines in one string, examples by semicolons. Each is set by itself here.
* The array of ``axr_list_devices`` is one of structs in the SDK's own code, of pointers in the reference's example: it is one of structs.
  Releases differ in the struct's length, so that the distance is measured (:func:`device_stride`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.npu.axruntime.library import Argument, BoardType, DeviceInfo, Result, RuntimeLibrary, TensorInfo
from zc_perception.npu.metis_card import INDEX, card_at, place_of

_DEVICE_NAME = re.compile(rb'[A-Za-z][\w.]*-[0-9A-Fa-f]+(?::[0-9A-Fa-f]+)+\0')
_LAST = (1 << 32, 0, 0, 0)
_SHORTEST_INFO = 536
_LONGEST_INFO = 4096
_MODEL_PROPERTIES = ('input_tensor_layout', 'preamble_graph', 'postamble_graph')


@dataclass(frozen=True)
class Device:
    """A card's chip, as the runtime names it: ``metis-0:1:0``.

    :param info: address of the library's own description of it, valid until devices are listed again.
    """

    name: str
    sub_devices: int
    board: str
    firmware: str
    info: int


@dataclass(frozen=True)
class InstanceOptions:
    """How a model is to run; see the properties of ``axr_load_model_instance``."""

    aipu_cores: int
    num_sub_devices: int
    input_dmabuf: bool
    output_dmabuf: bool
    double_buffer: bool

    def properties(self) -> dict[str, str]:
        """As the library wants them: decimal numbers, 0 and 1 for booleans."""
        return {name: str(int(value)) for name, value in vars(self).items()}


def device_stride(first: int, count: int) -> int:
    """Distance in bytes between the entries of the library's device list.

    Later releases have appended members. The second entry begins with a name, so that looking for one from the shortest struct on ends at
    the right distance, and never reads behind the list.

    :param first: address of the first entry.
    :raises AcceleratorError: there is no second name where one could be.
    """
    if count < 2:
        return ctypes.sizeof(DeviceInfo)
    for stride in range(_SHORTEST_INFO, _LONGEST_INFO, ctypes.sizeof(ctypes.c_size_t)):
        if _DEVICE_NAME.match(ctypes.string_at(first + stride, 64)):
            return stride
    raise AcceleratorError('libaxruntime lists its devices in a way that is not known here; leave only one in, or use accelerator: cpu')


class _Owned:
    """A library object that is destroyed once."""

    def __init__(self, library: RuntimeLibrary, handle: int) -> None:
        self._library = library
        self._handle: int | None = handle

    @property
    def handle(self) -> int:
        """For a call made right now.

        :raises ValueError: after close.
        """
        if self._handle is None:
            raise ValueError('the runtime object was closed')
        return self._handle

    def close(self) -> None:
        """Destroy it. A second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.call.axr_destroy(handle)


class RuntimeInstance(_Owned):
    """A model on a device, ready to run."""

    def __init__(self, library: RuntimeLibrary, handle: int, context: _Owned) -> None:
        super().__init__(library, handle)
        self._context = context
        self._run = library.call.axr_run_model_instance

    def run(self, inputs: ctypes.Array[Argument], outputs: ctypes.Array[Argument]) -> None:
        """One frame; blocks until the device has taken it and given a result. Other Python threads go on meanwhile.

        :raises DeviceLostError: the connection to the device is gone.
        :raises AcceleratorError: the run failed.
        """
        code = self._run(self.handle, inputs, len(inputs), outputs, len(outputs))
        if code != Result.SUCCESS:
            known = Result(code) if code in Result.__members__.values() else Result.UNKNOWN_ERROR
            raise self._library.failure(self._context.handle, 'the runtime could not run the model', running=True, code=known)


class OpenModel:
    """A model and the connection to the sub-devices that it will run on.

    :raises ConfigError: the file isn't a compiled model, or its tensors can't be used.
    :raises AcceleratorError: the device is in use or doesn't answer.
    """

    def __init__(self, session: RuntimeSession, file: Path, aipu_cores: int) -> None:
        self._library, self._context = session.library, session.context
        self._instance: RuntimeInstance | None = None
        with contextlib.ExitStack() as undo:
            handle = self._library.call.axr_load_model(self._context.handle, str(file).encode())
            if not handle:
                raise self._library.failure(self._context.handle, f"model '{file}' can't be loaded")
            self._model = _Owned(self._library, handle)
            undo.callback(self._model.close)
            self.inputs = self._tensors('input')
            self.outputs = self._tensors('output')
            self.properties = self._model_properties()
            self.batch = self.inputs[0].dims[0]
            sub_devices = max(self.batch, aipu_cores)
            handle = self._library.call.axr_device_connect(self._context.handle, session.device.info, sub_devices, None)
            if not handle:
                raise session.connect_failure(sub_devices)
            self._connection = _Owned(self._library, handle)
            undo.pop_all()

    def _tensors(self, direction: str) -> tuple[TensorInfo, ...]:
        call = self._library.call
        count = getattr(call, f'axr_num_model_{direction}s')(self._model.handle)
        infos = []
        for index in range(count):
            info: TensorInfo = getattr(call, f'axr_get_model_{direction}')(self._model.handle, index)
            if not 1 <= info.ndims <= len(info.dims):
                raise self._library.failure(self._context.handle, f'{direction} {index} of the model is unknown')
            size = info.bits // 8
            for dimension in info.dims[: info.ndims]:
                size *= dimension
            real = call.axr_tensor_size(ctypes.byref(info))
            if size != real:
                raise AcceleratorError(
                    f'libaxruntime says that {direction} {index} has {real} bytes, its shape says {size}: this release has another struct '
                    'layout than is known here; use another release of the Voyager SDK, or accelerator: cpu'
                )
            infos.append(info)
        if not infos:
            raise ConfigError(f'the model has no {direction}s; compile it again with the Voyager SDK')
        return tuple(infos)

    def _model_properties(self) -> dict[str, str]:
        """What the compiler says of the model, for diagnostics. Which keys there are is subject to change."""
        call = self._library.call
        handle = call.axr_get_model_properties(self._model.handle) if self._library.has('axr_get_model_properties') else None
        if not handle:
            return {}
        properties = _Owned(self._library, handle)
        try:
            values = {key: call.axr_get_property(handle, key.encode()) for key in _MODEL_PROPERTIES}
            return {key: value.decode(errors='replace') for key, value in values.items() if value}
        finally:
            properties.close()

    def load_instance(self, options: InstanceOptions) -> RuntimeInstance:
        """Put the model on the device; an earlier instance is destroyed first.

        :raises ConfigError: the runtime refuses the options.
        :raises AcceleratorError: the device can't take it.
        """
        self.close_instance()
        call = self._library.call
        handle = call.axr_create_properties(self._context.handle, b'')
        if not handle:
            raise self._library.failure(self._context.handle, 'the runtime could not make a set of properties')
        properties = _Owned(self._library, handle)
        try:
            for key, value in options.properties().items():
                call.axr_set_property(properties.handle, key.encode(), value.encode())
            handle = call.axr_load_model_instance(self._connection.handle, self._model.handle, properties.handle)
            if not handle:
                wanted = ', '.join(f'{key}={value}' for key, value in options.properties().items())
                raise self._library.failure(self._context.handle, f'the model can not be put on the device with {wanted}')
        finally:
            properties.close()
        self._instance = RuntimeInstance(self._library, handle, self._context)
        return self._instance

    def close_instance(self) -> None:
        """Take the model off the device."""
        if self._instance is not None:
            self._instance.close()
            self._instance = None

    def close(self) -> None:
        """Instance, connection, model; the device is free for others then. A second call does nothing."""
        self.close_instance()
        self._connection.close()
        self._model.close()


class RuntimeSession:
    """The library's context, and the device that was chosen.

    :param library: the library's path; empty: the system's.
    :param device: a name as ``axdevice`` lists them, or what says the same to the accelerator ``axl``: the card's device node, its PCI
        address, an index in the order of these; empty: the first that the library lists.
    :raises AcceleratorError: no library, no device, or not that one.
    """

    def __init__(self, library: str = '', device: str = '') -> None:
        self.library = RuntimeLibrary(library)
        handle = self.library.call.axr_create_context()
        if not handle:
            raise AcceleratorError('libaxruntime could not create a context; see what axdevice says')
        self.context = _Owned(self.library, handle)
        self._model: OpenModel | None = None
        try:
            self.devices = self._list()
            self.device = self._choose(device)
        except BaseException:
            self.context.close()
            raise

    def _list(self) -> tuple[Device, ...]:
        first = ctypes.c_void_p()
        count = self.library.call.axr_list_devices(self.context.handle, ctypes.byref(first))
        if count == 0 or not first.value:
            raise self._no_device()
        stride = device_stride(first.value, count)
        return tuple(_device(first.value + index * stride) for index in range(count))

    def _no_device(self) -> AcceleratorError:
        _, text = self.library.last_error(self.context.handle)
        return AcceleratorError(
            f"libaxruntime found no Metis device ({text}): see 'axdevice' and 'lspci -d 1f9d:', load the metis driver, "
            'or use accelerator: cpu'
        )

    def _choose(self, wanted: str) -> Device:
        if not wanted:
            return self.devices[0]
        if INDEX.fullmatch(wanted):
            found = sorted(self.devices, key=lambda device: place_of(device.name) or _LAST)[int(wanted) :][:1]
        else:
            name = os.path.basename(os.path.realpath(wanted)) if wanted.startswith('/') else wanted
            place = (card_at(wanted).place if wanted.startswith('/') else None) or place_of(name)
            found = [device for device in self.devices if device.name == name]
            found = found or [device for device in self.devices if place is not None and place_of(device.name) == place]
        if not found:
            raise AcceleratorError(
                f"could not find device '{wanted}', found {', '.join(device.name for device in self.devices)}; set accelerator_device to "
                f'one of them, its device node, its PCI address or an index below {len(self.devices)}, or leave it empty'
            )
        return found[0]

    def connect_failure(self, sub_devices: int) -> Exception:
        """The exception for a connection that was refused."""
        code, _ = self.library.last_error(self.context.handle)
        failure = self.library.failure(self.context.handle, f"device '{self.device.name}' can't be connected ({sub_devices} sub-devices)")
        if code is not Result.DEVICE_IN_USE:
            return failure
        others = [device.name for device in self.devices if device is not self.device]
        return AcceleratorError(
            f"{failure}: 'fuser -v /dev/metis*' says who has it; stop that one, or leave it fewer cores (aipu_cores)"
            + (f', or use another device: {", ".join(others)}' if others else '')
        )

    def open_model(self, file: Path, aipu_cores: int) -> OpenModel:
        """Load a compiled model and connect to as many sub-devices as it needs; the one before is closed. See :class:`OpenModel`."""
        self.close_model()
        self._model = OpenModel(self, file, aipu_cores)
        return self._model

    def close_model(self) -> None:
        """Close the open model, if there is one."""
        if self._model is not None:
            self._model.close()
            self._model = None

    def facts(self) -> Mapping[str, Any]:
        """For diagnostics."""
        device = self.device
        return {
            'runtime': self.library.path,
            'runtime_api': self.library.api_version,
            'device': device.name,
            'board': device.board,
            'firmware': device.firmware,
            'sub_devices': device.sub_devices,
        }

    def close(self) -> None:
        """Everything, the context last. A second call does nothing."""
        self.close_model()
        self.context.close()


def _device(address: int) -> Device:
    info = DeviceInfo.from_address(address)
    board = BoardType(info.board_type).name.lower() if info.board_type in BoardType.__members__.values() else f'board {info.board_type}'
    return Device(info.name.decode(errors='replace'), info.subdevice_count, board, info.firmware_version.decode(errors='replace'), address)
