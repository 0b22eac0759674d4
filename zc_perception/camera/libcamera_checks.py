"""What ``zc_doctor`` looks at for libcamera: its Python module, and the cameras that it finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from typing import Any

from zc_perception.errors import CameraError, ZcError
from zc_perception.machine.finding import Finding, Need, Status, ok, skip, told
from zc_perception.machine.needs import Needs
from zc_perception.machine.system import System


def libcamera_bindings(system: System, needs: Needs) -> Iterator[Finding]:
    """Whether the module loads, and whether the camera that the parameter file names is there."""
    from zc_perception.camera.libcamera import choose_camera

    need = needs.camera('libcamera')
    if need is Need.UNUSED:
        yield skip('no camera in the parameter file uses libcamera')
        return
    answer = system.ask(describe_libcamera)
    if 'error' in answer:
        yield told(need.missing_extra, answer['error'])
        return
    cameras: list[str] = answer['cameras']
    figures = {'version': answer['version'], 'file': answer['file'], 'cameras': cameras}
    for camera in needs.cameras:
        if camera.kind == 'libcamera':
            try:
                choose_camera(cameras, camera['libcamera_id'])
            except CameraError as error:
                yield told(Status.FAIL, error, camera.node, **figures)
                return
    version = f' {answer["version"]}' if answer['version'] else ''
    there = ', '.join(cameras) or 'no camera'
    yield ok(f'libcamera{version}: {there}', **figures)


def describe_libcamera() -> dict[str, Any]:
    """Its cameras' ids. Listing them acquires none."""
    from zc_perception.camera.libcamera import import_libcamera

    try:
        module = import_libcamera()
        cameras = [str(camera.id) for camera in module.CameraManager.singleton().cameras]
    except ZcError as error:
        return {'error': str(error)}
    except (RuntimeError, OSError) as error:
        return {'error': f'libcamera could not list its cameras: {error}'}
    version = str(
        getattr(module, '__version__', '')
        or getattr(module.CameraManager.singleton(), 'version', '')
    )
    with suppress(metadata.PackageNotFoundError):
        version = version or metadata.version('libcamera')
    return {'file': str(getattr(module, '__file__', '')), 'version': version, 'cameras': cameras}
