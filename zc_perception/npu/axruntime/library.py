"""Finding and loading ``libaxruntime.so``, and what its result codes mean for the user.

Source: Voyager SDK, *API Reference* of ``axruntime.h``; where its installers put the library (``/opt/axelera/runtime-<release>/lib``, the
environment variable ``AXELERA_RUNTIME_DIR`` of an activated SDK).
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import re
from types import SimpleNamespace
from typing import Any

from zc_perception.errors import AcceleratorError, ConfigError, DeviceLostError, ZcError
from zc_perception.npu.axruntime.abi import FUNCTIONS, OPTIONAL_FUNCTIONS, Result

LIBRARY = 'libaxruntime.so'
INSTALLED = '/opt/axelera/runtime-*/lib/libaxruntime.so'
_WITHOUT = 'install the Voyager SDK runtime or name its library (axruntime_library), or use accelerator: cpu'

# What the user has to change, or the model's maker; anything else lies with the device.
_MISCONFIGURED = (Result.VALUE_ERROR, Result.INVALID_ARGUMENT, Result.INVALID_CONFIGURATION, Result.NOT_IMPLEMENTED)
_LOST = (Result.CONNECTION_ERROR, Result.DEVICE_IN_USE, Result.INCOMPATIBLE_DEVICE)
_ADVICE = {
    Result.CONNECTION_ERROR: "check that 'axdevice' lists the device; 'axdevice --refresh' or a power cycle brings it back",
    Result.DEVICE_IN_USE: 'Metis devices are exclusive to one process',
    Result.INCOMPATIBLE_DEVICE: "the firmware doesn't fit this runtime: update it ('axdevice' shows both versions)",
    Result.PENDING_ERROR: 'the device is still being configured, try again in a moment',
    Result.NOT_IMPLEMENTED: 'this release of the runtime or of the driver lacks it; update the Voyager SDK',
}
_TOOLCHAIN = 'Failed to create executor'


def _release_number(path: str) -> list[int]:
    return [int(number) for number in re.findall(r'\d+', path)]


def candidates(library: str = '') -> list[str]:
    """Where to look for the library: only *library* if it is given; else as the loader does, then an activated SDK's, then the newest
    release that is installed."""
    if library:
        return [library]
    activated = os.environ.get('AXELERA_RUNTIME_DIR')
    installed = sorted(glob.glob(INSTALLED), key=_release_number, reverse=True)
    return [LIBRARY, *([os.path.join(activated, 'lib', LIBRARY)] if activated else []), *installed]


class RuntimeLibrary:
    """The loaded library.

    :param library: its path; empty: the first of :func:`candidates` that loads.
    :raises AcceleratorError: none loads, or it lacks a function.
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
            raise AcceleratorError(f'accelerator axruntime needs {library or LIBRARY}: {"; ".join(reasons)}; {_WITHOUT}')
        bound = {}
        try:
            for name, (result, arguments) in FUNCTIONS.items():
                bound[name] = self._bind(loaded, name, result, arguments)
        except AttributeError as error:
            raise AcceleratorError(f'{self.path} is no axruntime library: {error}; {_WITHOUT}') from error
        for name, (result, arguments) in OPTIONAL_FUNCTIONS.items():
            with contextlib.suppress(AttributeError):
                bound[name] = self._bind(loaded, name, result, arguments)
        self.call = SimpleNamespace(**bound)

    @staticmethod
    def _bind(loaded: ctypes.CDLL, name: str, result: type | None, arguments: tuple[type, ...]) -> Any:
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, list(arguments)
        return function

    def has(self, function: str) -> bool:
        """Whether the library has one of the functions that not every release has."""
        return hasattr(self.call, function)

    @property
    def api_version(self) -> str:
        """Major.minor.patch as the library tells it, or ``unknown``. The packing (a byte each) is inferred, not documented."""
        if not self.has('axr_api_version'):
            return 'unknown'
        version = int(self.call.axr_api_version())
        return f'{version >> 16 & 0xFF}.{version >> 8 & 0xFF}.{version & 0xFF}'

    def last_error(self, context: int) -> tuple[Result, str]:
        """Code and text of the last error in *context*, of a call in this thread."""
        code = int(self.call.axr_last_error(context))
        text = self.call.axr_last_error_string(context)
        known = Result(code) if code in Result.__members__.values() else Result.UNKNOWN_ERROR
        return known, ' '.join((text or b'').decode(errors='replace').split()) or known.name

    def failure(self, context: int, what: str, *, running: bool = False, code: Result | None = None) -> ZcError:
        """The exception for the last error in *context*.

        :param what: what could not be done, the message's beginning.
        :param running: a job failed, not a set-up: codes that mean a dead device become :class:`DeviceLostError`.
        :param code: the code that the call returned; without it the context's last one.
        """
        last, text = self.last_error(context)
        code = last if code is None else code
        advice = _ADVICE.get(code, '')
        if _TOOLCHAIN in text:
            advice = "the runtime compiles part of a model when it loads it: activate the SDK, so that riscv64-unknown-elf-gcc is on PATH"
        message = f'{what}: {text} ({code.name})' + (f'; {advice}' if advice else '')
        if running:
            return DeviceLostError(message) if code in _LOST else AcceleratorError(message)
        return ConfigError(message) if code in _MISCONFIGURED else AcceleratorError(message)
