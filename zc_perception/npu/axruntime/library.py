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
The C library ``libaxruntime.so``: structs, functions, result codes, paths and releases.

The first part of this module checks that the releases of runtime, driver and card firmware work
together. An unknown release is never reported as wrong.

Sources: Voyager SDK, ``RELEASE_COMPATIBILITY_MATRIX.md`` and ``RELEASE_NOTES.md`` of 1.6 to 1.8;
*API Reference* of ``axruntime.h`` (``docs/reference/axruntime.md``, releases 1.2 to 1.6); the
struct offsets that a C compiler computes from that header (``test/npu/test_axruntime_abi.py``).
Axelera's installers put the library into ``axelera/lib`` of a Python environment (wheel
``axelera-runtime``, from 1.6 on), into ``/opt/axelera/runtime-<release>``, or into the folder that
``AXELERA_RUNTIME_DIR`` of an activated SDK names. The library is bound by ctypes, because neither
its header nor its licence comes with this package.
"""

from __future__ import annotations

import contextlib
from contextlib import suppress
import ctypes
from enum import IntEnum
import glob
from importlib import metadata
import importlib.util
import os
import re
from types import SimpleNamespace
from typing import Any

from zc_perception.errors import AcceleratorError, ConfigError, DeviceLostError, ZcError

PACKAGE = 'axelera-runtime'
# The names of the runtime's pip package: the first since release 1.9, the second before.
_PACKAGES = ('axelera-rt', PACKAGE)
_NUMBER = re.compile(r'(\d+)\.(\d+)(?:\.(\d+))?', re.ASCII)
# The known releases of the runtime, each with the oldest driver that works with it.
_DRIVERS = {(1, 8): '1.6.2', (1, 7): '1.5.5', (1, 6): '1.4.4'}
_FIRMWARE_FLOOR = '1.4.0'
_BOARD_CONTROLLER_FLOOR = '7.0'
_WITHOUT_TOOLCHAIN = (1, 8, 0)


def release_number(text: str) -> tuple[int, int, int] | None:
    """Return the first release number in *text*, or ``None`` if there is none."""
    match = _NUMBER.search(text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))


def wheel_release() -> str:
    """Return the release of the runtime's Python package; empty if it isn't installed."""
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return ''


def needs_toolchain(release: str) -> bool:
    """
    Return whether the runtime needs the SDK's RISC-V compiler to load a model.

    Before release 1.8 the runtime compiles a part of each model when it loads the model.
    """
    number = release_number(release)
    return number is None or number < _WITHOUT_TOOLCHAIN


def needed_driver(release: str) -> str:
    """Return the oldest driver version that works with a runtime's release; empty: unknown."""
    number = release_number(release)
    return '' if number is None else _DRIVERS.get(number[:2], '')


def mismatches(
    release: str, driver: str, firmware: str = '', board_controller: str = ''
) -> list[str]:
    """
    Return a line with advice for each driver or firmware that is too old for the runtime.

    There are no lines if the runtime's release is unknown.

    :param release: the runtime's release.
    :param driver: the driver's version, as in ``/sys/class/metis/version``.
    """
    oldest_driver = needed_driver(release)
    if not oldest_driver:
        return []
    reload = 'install a newer metis-dkms, then run modprobe -r metis and modprobe metis'
    floors = (
        ('the Metis driver', driver, oldest_driver, reload),
        (
            "the card's firmware",
            firmware,
            _FIRMWARE_FLOOR,
            "update it with the SDK's tools ('axdevice' shows the firmware's version)",
        ),
        (
            "the card's board controller",
            board_controller,
            _BOARD_CONTROLLER_FLOOR,
            "update it with the SDK's tools",
        ),
    )
    lines = []
    for what, version, floor, advice in floors:
        number, least = release_number(version), release_number(floor)
        if number is not None and least is not None and number < least:
            lines.append(
                f'{what} is {version}, and runtime {release} needs {floor} or later: {advice}'
            )
    return lines


MAX_TENSOR_DIMS = 8
_NAME = ctypes.c_char * 256


class Result(IntEnum):
    """``axrResult``, a call's result. ``PENDING_ERROR``: the device isn't configured yet."""

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


def known_result(code: int) -> Result:
    """Return a call's result code as :class:`Result`; ``UNKNOWN_ERROR`` for an unlisted code."""
    return Result(code) if code in Result.__members__.values() else Result.UNKNOWN_ERROR


class BoardType(IntEnum):
    """``axrBoardType``: the boards that are on the market."""

    METIS_OMEGA_PCIE = 2
    METIS_OMEGA_M2 = 3


class TensorDataType(IntEnum):
    """The kind of a tensor's elements; :attr:`TensorInfo.bits` has their size."""

    UNSIGNED = 0
    SIGNED = 1
    FLOAT = 2


class Argument(ctypes.Structure):
    """
    ``axrArgument``: the memory of one tensor.

    For host memory, ``ptr`` is set and ``fd`` is 0 or −1. For a dma-buf, ``fd`` is set and ``ptr``
    is NULL. ``offset`` must be 0, so each tensor needs a buffer of its own. The runtime checks
    ``size`` against the tensor's size, unless ``size`` is 0.
    """

    _fields_ = (
        ('ptr', ctypes.c_void_p),
        ('fd', ctypes.c_int),
        ('offset', ctypes.c_size_t),
        ('size', ctypes.c_size_t),
    )


class DeviceInfo(ctypes.Structure):
    """``axrDeviceInfo`` of releases up to 1.6; in later releases this struct may be longer."""

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
    """
    ``axrTensorInfo``: an input or output of a model.

    ``dims`` include ``padding``, which has a pair (before, after) for each axis. Real value = (raw
    − zero_point) · scale.
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
"""The handle of any object that the library creates; NULL: creating it failed."""

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
        (
            Object,
            ctypes.POINTER(Argument),
            ctypes.c_size_t,
            ctypes.POINTER(Argument),
            ctypes.c_size_t,
        ),
    ),
}
"""The result type and the argument types of each function that this package needs.

A library that lacks one of these functions is refused."""

OPTIONAL_FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    'axr_api_version': (ctypes.c_uint, ()),
    'axr_get_model_properties': (Object, (Object,)),
}
"""Functions that only give more information; earlier releases may lack them."""


LIBRARY = 'libaxruntime.so'
INSTALLED = (
    '/opt/axelera/runtime-*/lib/libaxruntime.so',
    '/opt/axelera/runtime-*/omega/lib/libaxruntime.so',
)
_WITHOUT = (
    'install the Voyager runtime (pip package axelera-runtime), set axruntime_library '
    "to the path of the runtime's library, or use accelerator: onnx"
)

# Errors that the user or the model's maker must correct; all other errors are the device's.
_MISCONFIGURED = (
    Result.VALUE_ERROR,
    Result.INVALID_ARGUMENT,
    Result.INVALID_CONFIGURATION,
    Result.NOT_IMPLEMENTED,
)
_LOST = (Result.CONNECTION_ERROR, Result.DEVICE_IN_USE, Result.INCOMPATIBLE_DEVICE)
_ADVICE = {
    Result.CONNECTION_ERROR: (
        "check that 'axdevice' lists the device; 'axdevice --refresh' or "
        'a power cycle brings it back'
    ),
    Result.DEVICE_IN_USE: 'a Metis device is exclusive to one process at a time',
    Result.INCOMPATIBLE_DEVICE: (
        "the firmware doesn't fit this runtime: update the firmware ('axdevice' shows its version)"
    ),
    Result.PENDING_ERROR: 'the device is still being configured, try again in a moment',
    Result.NOT_IMPLEMENTED: (
        'this release of the runtime or driver lacks the function; update the Voyager SDK'
    ),
}
_TOOLCHAIN = 'Failed to create executor'
_OLD_MODEL = re.compile(r'Unsupported model version: .*expected at least')


def explain(what: str, text: str, code: Result, *, release: str, running: bool = False) -> ZcError:
    """
    Return the exception for a call that failed in the runtime.

    :param what: the start of the message: what could not be done.
    :param text: the runtime's own error text.
    :param release: the runtime's release; empty: unknown.
    :param running: ``True``: a run of the model failed; ``False``: a step before the first run
        failed. Only for a run, the result codes of a dead device become :class:`DeviceLostError`.
    """
    text = ' '.join(text.split()) or code.name
    advice = _ADVICE.get(code, '')
    old = _OLD_MODEL.search(text)
    if old is not None:
        advice = (
            'an older SDK compiled this model: compile it again with the SDK that has the release '
            f'of the runtime{f" ({release})" if release else ""}'
        )
    elif _TOOLCHAIN in text and needs_toolchain(release):
        advice = (
            'before release 1.8 the runtime compiles part of a model when it loads the model: '
            'activate the SDK, so that riscv64-unknown-elf-gcc is on PATH'
        )
    message = f'{what}: {text} ({code.name})' + (f'; {advice}' if advice else '')
    if running:
        return DeviceLostError(message) if code in _LOST else AcceleratorError(message)
    return (
        ConfigError(message)
        if code in _MISCONFIGURED or old is not None
        else AcceleratorError(message)
    )


def _in_site_packages() -> list[str]:
    """Return the paths where Axelera's wheels may have the library, without importing a wheel."""
    with contextlib.suppress(ImportError, ValueError):
        package = importlib.util.find_spec('axelera')
        if package is not None:
            return [
                os.path.join(folder, 'lib', LIBRARY)
                for folder in package.submodule_search_locations or ()
            ]
    return []


def candidates(library: str = '') -> list[str]:
    """
    Return the paths where the library may be, best first; if *library* is given, only that path.

    The order: the loader's search path, an activated SDK, wheels, and last the releases in
    ``/opt/axelera``, of which the newest comes first.
    """
    if library:
        return [library]
    activated = os.environ.get('AXELERA_RUNTIME_DIR')
    of_sdk = (
        [
            os.path.join(activated, folder, LIBRARY)
            for folder in ('lib', os.path.join('omega', 'lib'))
        ]
        if activated
        else []
    )
    installed = [path for pattern in INSTALLED for path in glob.glob(pattern)]
    return [
        LIBRARY,
        *of_sdk,
        *_in_site_packages(),
        *sorted(installed, key=lambda path: release_number(path) or (0, 0, 0), reverse=True),
    ]


class RuntimeLibrary:
    """
    The loaded library, with its functions in ``call``.

    :param library: the library's path; empty: the first of :func:`candidates` that loads.
    :raises AcceleratorError: no library loads, or the library lacks a function.
    """

    def __init__(self, library: str = '') -> None:
        reasons = []
        loaded = None
        for path in candidates(library):
            try:
                loaded = ctypes.CDLL(path)
            except OSError as error:
                reasons.append(str(error))
                continue
            self.path = path
            break
        if loaded is None:
            raise AcceleratorError(
                f'accelerator axruntime needs {library or LIBRARY}: {"; ".join(reasons)}; '
                f'{_WITHOUT}'
            )
        bound = {}
        try:
            for name, (result, arguments) in FUNCTIONS.items():
                bound[name] = self._bind(loaded, name, result, arguments)
        except AttributeError as error:
            raise AcceleratorError(
                f'{self.path} is no axruntime library: {error}; {_WITHOUT}'
            ) from error
        for name, (result, arguments) in OPTIONAL_FUNCTIONS.items():
            with contextlib.suppress(AttributeError):
                bound[name] = self._bind(loaded, name, result, arguments)
        self.call = SimpleNamespace(**bound)

    @staticmethod
    def _bind(
        loaded: ctypes.CDLL, name: str, result: type | None, arguments: tuple[type, ...]
    ) -> Any:
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, list(arguments)
        return function

    def has(self, function: str) -> bool:
        """Return whether the library has a function that some releases lack."""
        return hasattr(self.call, function)

    @property
    def api_version(self) -> str:
        """
        Return the version of the library's API as major.minor.patch, or ``unknown``.

        The library returns one number. This method takes each of the three parts from one byte of
        the number; the SDK's documentation doesn't say how the parts are stored.
        """
        if not self.has('axr_api_version'):
            return 'unknown'
        version = int(self.call.axr_api_version())
        return f'{version >> 16 & 0xFF}.{version >> 8 & 0xFF}.{version & 0xFF}'

    @property
    def release(self) -> str:
        """
        Return the SDK's release that the library belongs to; empty: unknown.

        The release comes from the library's folder or wheel, or else from the library itself.
        """
        path = os.path.realpath(self.path)
        folder = re.search(r'runtime-(\d+\.\d+(?:\.\d+)?)', path)
        if folder is not None:
            return folder[1]
        if path in map(os.path.realpath, _in_site_packages()) and (wheel := wheel_release()):
            return wheel
        return '' if self.api_version == 'unknown' else self.api_version

    def last_error(self, context: int | None) -> tuple[str, Result]:
        """Return text and code of the last error that this thread's calls had in *context*."""
        code, text = self.call.axr_last_error(context), self.call.axr_last_error_string(context)
        return (text or b'').decode(errors='replace'), known_result(code)
