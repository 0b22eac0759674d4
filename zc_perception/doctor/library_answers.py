"""Questions about the vendors' libraries, each asked in a process of its own."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from importlib import metadata
from typing import Any

from zc_perception.errors import ZcError


def _file_of(library: ctypes.CDLL | str) -> str:
    """The file that the loader took: its name often ends in the version."""
    wanted = library if isinstance(library, str) else library._name
    base = os.path.basename(wanted or '').split('.so')[0]
    with open('/proc/self/maps', encoding='utf-8', errors='replace') as maps:
        for line in maps:
            path = line.rstrip('\n').partition('/')
            if path[1] and os.path.basename(path[2]).startswith(f'{base}.so'):
                return os.path.realpath('/' + path[2])
    return ''


def describe_voyager(library: str = '') -> dict[str, Any]:
    """Load the runtime as accelerator axruntime does: file, version, and the functions that not every release has."""
    from zc_perception.npu.axruntime.library import OPTIONAL_FUNCTIONS, RuntimeLibrary

    try:
        runtime = RuntimeLibrary(library)
    except ZcError as error:
        return {'error': str(error)}
    return {
        'path': runtime.path,
        'file': _file_of(runtime.path),
        'api_version': runtime.api_version,
        'functions': {name: runtime.has(name) for name in OPTIONAL_FUNCTIONS},
    }


def describe_nvbufsurface(library: str = '') -> dict[str, Any]:
    """Load it, and try its structs on an image of our own, as the argus camera does."""
    from zc_perception.memory.nvbufsurface import LIBRARY
    from zc_perception.memory.nvbufsurface_reading import SurfaceReader

    try:
        loaded = ctypes.CDLL(library or LIBRARY)
    except OSError as error:
        return {'error': str(error), 'loaded': False}
    functions = {name: hasattr(loaded, f'NvBufSurface{name}') for name in ('Create', 'Allocate', 'FromFd', 'Import', 'GetMapParams')}
    answer: dict[str, Any] = {'loaded': True, 'file': _file_of(loaded), 'functions': functions}
    try:
        SurfaceReader(library or None)
    except ZcError as error:
        return {**answer, 'error': str(error)}
    return answer


def describe_vic(library: str = '') -> dict[str, Any]:
    """Whether the library of the video image compositor loads."""
    from zc_perception.memory.vic import TRANSFORM_LIBRARY

    try:
        return {'file': _file_of(ctypes.CDLL(library or TRANSFORM_LIBRARY))}
    except OSError as error:
        return {'error': str(error)}


def describe_libcamera() -> dict[str, Any]:
    """Its cameras' ids. Listing them acquires none."""
    from zc_perception.camera.libcamera_bindings import import_libcamera

    try:
        module = import_libcamera()
        cameras = [str(camera.id) for camera in module.CameraManager.singleton().cameras]
    except ZcError as error:
        return {'error': str(error)}
    except (RuntimeError, OSError) as error:
        return {'error': f'libcamera could not list its cameras: {error}'}
    version = str(getattr(module, '__version__', '') or getattr(module.CameraManager.singleton(), 'version', ''))
    with suppress(metadata.PackageNotFoundError):
        version = version or metadata.version('libcamera')
    return {'file': str(getattr(module, '__file__', '')), 'version': version, 'cameras': cameras}
