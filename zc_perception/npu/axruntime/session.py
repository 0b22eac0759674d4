"""The runtime by its C interface: context, device, model, connections and instances, each owned by one object and destroyed in order.

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
import re
from pathlib import Path

from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.npu.axruntime.library import Argument, BoardType, DeviceInfo, Result, RuntimeLibrary
from zc_perception.npu.axruntime.runtime import Connection, Device, InstanceOptions, OpenedModel, Session, choose_device, in_use, no_device
from zc_perception.npu.axruntime.tensors import Pack, Tensor, c_arguments

_DEVICE_NAME = re.compile(rb'[A-Za-z][\w.]*(?:[:-][0-9A-Fa-f]+){2,}\0')
_SHORTEST_INFO = 536
_LONGEST_INFO = 4096
_MODEL_PROPERTIES = ('input_tensor_layout', 'preamble_graph', 'postamble_graph')


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


class CConnection(Connection):
    """The library's connection to some of the card's cores."""

    def __init__(self, session: RuntimeSession, model: _Owned, handle: int) -> None:
        super().__init__(session.lock)
        self._library, self._context = session.library, session.context
        self._model = model
        self._connection = _Owned(self._library, handle)

    def _load(self, options: InstanceOptions) -> RuntimeInstance:
        call = self._library.call
        handle = call.axr_create_properties(self._context.handle, b'')
        if not handle:
            raise self._library.failure(self._context.handle, 'the runtime could not make a set of properties')
        properties = _Owned(self._library, handle)
        try:
            for key, value in options.numbers().items():
                call.axr_set_property(properties.handle, key.encode(), str(value).encode())
            handle = call.axr_load_model_instance(self._connection.handle, self._model.handle, properties.handle)
            if not handle:
                raise self._library.failure(self._context.handle, f'the model can not be put on the device with {options}')
        finally:
            properties.close()
        return RuntimeInstance(self._library, handle, self._context)

    def _disconnect(self) -> None:
        self._connection.close()


class OpenModel(OpenedModel):
    """A model, and one connection to each core that it will run on.

    :param cores: how many connections.
    :raises ConfigError: the file isn't a compiled model, or its tensors can't be used.
    :raises AcceleratorError: the device is in use or doesn't answer.
    """

    def __init__(self, session: RuntimeSession, file: Path, cores: int) -> None:
        super().__init__()
        self._library, self._context = session.library, session.context
        with contextlib.ExitStack() as undo:
            handle = self._library.call.axr_load_model(self._context.handle, str(file).encode())
            if not handle:
                raise self._library.failure(self._context.handle, f"model '{file}' can't be loaded")
            self._model = _Owned(self._library, handle)
            undo.callback(self.close)
            self.inputs = self._tensors('input')
            self.outputs = self._tensors('output')
            self.properties = self._model_properties()
            for _ in range(cores):
                handle = self._library.call.axr_device_connect(self._context.handle, session.device.info, self.batch, None)
                if not handle:
                    raise session.connect_failure(self.batch)
                self.connections.append(CConnection(session, self._model, handle))
            undo.pop_all()

    def _tensors(self, direction: str) -> tuple[Tensor, ...]:
        call = self._library.call
        count = getattr(call, f'axr_num_model_{direction}s')(self._model.handle)
        tensors = []
        for index in range(count):
            info = getattr(call, f'axr_get_model_{direction}')(self._model.handle, index)
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
            tensors.append(Tensor.from_info(info))
        if not tensors:
            raise ConfigError(f'the model has no {direction}s; compile it again with the Voyager SDK')
        return tuple(tensors)

    def _model_properties(self) -> dict[str, str]:
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

    def close(self) -> None:
        """See :class:`OpenedModel`; the model is closed last."""
        super().close()
        self._model.close()


class RuntimeSession(Session):
    """The library's context, and the device that was chosen.

    :param library: the library's path; empty: the system's.
    :param device: see :func:`~zc_perception.npu.axruntime.runtime.choose_device`.
    :raises AcceleratorError: no library, no device, or not that one.
    """

    interface = 'c'
    pack: Pack = staticmethod(c_arguments)

    def __init__(self, library: str = '', device: str = '') -> None:
        super().__init__()
        self.library = RuntimeLibrary(library)
        self.runtime, self.api_version, self.release = self.library.path, self.library.api_version, self.library.release
        handle = self.library.call.axr_create_context()
        if not handle:
            raise AcceleratorError('libaxruntime could not create a context; see what axdevice says')
        self.context = _Owned(self.library, handle)
        try:
            self.devices = self._list()
            self.device = choose_device(self.devices, device)
        except BaseException:
            self.close()
            raise

    def _list(self) -> tuple[Device, ...]:
        first = ctypes.c_void_p()
        count = self.library.call.axr_list_devices(self.context.handle, ctypes.byref(first))
        if count == 0 or not first.value:
            raise no_device(self.library.last_error(self.context.handle)[1] or 'no reason given', self.release)
        stride = device_stride(first.value, count)
        return tuple(_device(first.value + index * stride) for index in range(count))

    def connect_failure(self, sub_devices: int) -> Exception:
        """The exception for a connection that was refused."""
        code, _ = self.library.last_error(self.context.handle)
        failure = self.library.failure(self.context.handle, f"device '{self.device.name}' can't be connected ({sub_devices} sub-devices)")
        if code is not Result.DEVICE_IN_USE:
            return failure
        return in_use(failure, self.device, self.devices)

    def _open(self, file: Path, cores: int) -> OpenModel:
        return OpenModel(self, file, cores)

    def _close_context(self) -> None:
        self.context.close()


def _device(address: int) -> Device:
    info = DeviceInfo.from_address(address)
    board = BoardType(info.board_type).name.lower() if info.board_type in BoardType.__members__.values() else f'board {info.board_type}'
    texts = (info.name, info.firmware_version, info.board_controller_firmware_version)
    name, firmware, controller = (text.decode(errors='replace') for text in texts)
    return Device(name, info.subdevice_count, board, firmware, address, controller)
