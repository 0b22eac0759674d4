"""Structs, enums and functions of ``libaxruntime``'s C interface, as the Voyager SDK documents them.

Source: *API Reference* of ``axruntime.h`` in the Voyager SDK (``docs/reference/axruntime.md``, releases 1.2 to 1.6) and the struct
offsets that a C compiler makes of it (``test/npu/test_axruntime_abi.py``). The library is bound by ctypes, because neither its header nor
its licence travel with this package.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

MAX_TENSOR_DIMS = 8
_NAME = ctypes.c_char * 256


class Result(IntEnum):
    """``axrResult``. ``PENDING_ERROR``: a device that is being configured isn't ready yet."""

    SUCCESS = 0
    RUNTIME_ERROR = 1
    VALUE_ERROR = 2
    INVALID_ARGUMENT = 3
    CONNECTION_ERROR = 4
    DEVICE_IN_USE = 5
    INCOMPATIBLE_DEVICE = 6
    INVALID_CONFIGURATION = 7
    NOT_IMPLEMENTED = 8
    INTERNAL_ERROR = 9
    PENDING_ERROR = 10
    UNKNOWN_ERROR = 11


class BoardType(IntEnum):
    """``axrBoardType``: the boards that are on the market."""

    METIS_OMEGA_PCIE = 2
    METIS_OMEGA_M2 = 3


class TensorDataType(IntEnum):
    """What an element of a tensor is; its size is in ``bits``."""

    UNSIGNED = 0
    SIGNED = 1
    FLOAT = 2


class Argument(ctypes.Structure):
    """``axrArgument``: where a tensor is. Host memory: ``ptr``, and ``fd`` 0 or −1. dma-buf: ``fd``, and ``ptr`` NULL.

    ``offset`` must be 0, so that a tensor needs a buffer of its own; ``size`` is checked against the tensor's unless it is 0.
    """

    _fields_ = (
        ('ptr', ctypes.c_void_p),
        ('fd', ctypes.c_int),
        ('offset', ctypes.c_size_t),
        ('size', ctypes.c_size_t),
    )


class DeviceInfo(ctypes.Structure):
    """``axrDeviceInfo`` as in the releases up to 1.6. Later ones may be longer: see :func:`device_stride`."""

    _fields_ = (
        ('name', _NAME),
        ('subdevice_count', ctypes.c_size_t),
        ('max_memory', ctypes.c_size_t),
        ('in_use', ctypes.c_int),
        ('in_use_by', _NAME),
        ('board_type', ctypes.c_int),
        ('firmware_version', _NAME),
        ('board_revision', ctypes.c_int),
        ('flashed_firmware_version', _NAME),
        ('board_controller_firmware_version', _NAME),
        ('board_controller_board_type', _NAME),
    )


class TensorInfo(ctypes.Structure):
    """``axrTensorInfo``: an input or output of a model. ``dims`` include ``padding``, (before, after) of each axis.

    Real value = (raw − zero_point) · scale.
    """

    _fields_ = (
        ('dims', ctypes.c_size_t * MAX_TENSOR_DIMS),
        ('ndims', ctypes.c_size_t),
        ('bits', ctypes.c_size_t),
        ('type', ctypes.c_size_t),
        ('name', _NAME),
        ('padding', (ctypes.c_size_t * 2) * MAX_TENSOR_DIMS),
        ('scale', ctypes.c_double),
        ('zero_point', ctypes.c_int),
    )


Object = ctypes.c_void_p
"""Every kind of object that the library creates; NULL says that it couldn't."""

FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    'axr_create_context': (Object, ()),
    'axr_destroy': (None, (Object,)),
    'axr_last_error': (ctypes.c_int, (Object,)),
    'axr_last_error_string': (ctypes.c_char_p, (Object,)),
    'axr_list_devices': (ctypes.c_size_t, (Object, ctypes.POINTER(ctypes.c_void_p))),
    'axr_create_properties': (Object, (Object, ctypes.c_char_p)),
    'axr_set_property': (None, (Object, ctypes.c_char_p, ctypes.c_char_p)),
    'axr_get_property': (ctypes.c_char_p, (Object, ctypes.c_char_p)),
    'axr_device_connect': (Object, (Object, ctypes.c_void_p, ctypes.c_size_t, Object)),
    'axr_load_model': (Object, (Object, ctypes.c_char_p)),
    'axr_num_model_inputs': (ctypes.c_size_t, (Object,)),
    'axr_num_model_outputs': (ctypes.c_size_t, (Object,)),
    'axr_get_model_input': (TensorInfo, (Object, ctypes.c_size_t)),
    'axr_get_model_output': (TensorInfo, (Object, ctypes.c_size_t)),
    'axr_tensor_size': (ctypes.c_size_t, (ctypes.POINTER(TensorInfo),)),
    'axr_load_model_instance': (Object, (Object, Object, Object)),
    'axr_run_model_instance': (
        ctypes.c_int,
        (Object, ctypes.POINTER(Argument), ctypes.c_size_t, ctypes.POINTER(Argument), ctypes.c_size_t),
    ),
}
"""Result and argument types of each function that is used; a library that lacks one is refused by name."""

OPTIONAL_FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    'axr_api_version': (ctypes.c_uint, ()),
    'axr_get_model_properties': (Object, (Object,)),
}
"""Functions that only tell more; earlier releases may lack them."""
