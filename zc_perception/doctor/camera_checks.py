"""What is asked of every camera of the parameter file: whether it is there, and its calibration. The rest each kind's class declares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from zc_perception.camera.calibration import (
    CameraInfoStore,
    NoPackageError,
    calibration_path,
    camera_name_of,
)
from zc_perception.camera.kinds import CAMERAS
from zc_perception.errors import ConfigError
from zc_perception.machine.finding import Finding, Status, ok, skip, told
from zc_perception.machine.needs import Needs, NodeNeed
from zc_perception.machine.system import System


def configured_cameras(system: System, needs: Needs) -> Iterator[Finding]:
    """Each camera of the parameter file, as its own class looks at it."""
    if not needs.known:
        yield skip('no parameter file was given (--params-file), so no camera is configured')
    for camera in needs.cameras:
        try:
            kind = CAMERAS.load(camera.kind)
        except ConfigError as error:
            yield told(Status.FAIL, error, camera.node)
        else:
            yield kind.examine(system, needs, camera)


_UNCALIBRATED = (
    'the node warns and goes on, and its camera_info says uncalibrated (a camera matrix of zeros)'
)


def _share_folder(system: System, package: str) -> str:
    """As ament looks for it, which may not be there.

    :raises LookupError: no such package in this environment.
    """
    for prefix in filter(None, system.environment.get('AMENT_PREFIX_PATH', '').split(os.pathsep)):
        index = Path(prefix, 'share/ament_index/resource_index/packages', package)
        if (system.root / str(index).lstrip('/')).exists():
            return str(Path(prefix, 'share', package))
    raise LookupError(package)


def calibrations(system: System, needs: Needs) -> Iterator[Finding]:
    """For each camera of the parameter file."""
    if not needs.known:
        yield skip('no parameter file was given (--params-file), so no camera is configured')
    for camera in needs.cameras:
        yield _calibration(system, camera)


def _calibration(system: System, camera: NodeNeed) -> Finding:
    name = camera_name_of(camera['camera_name'] or camera.node)
    size = (camera['width'], camera['height']) if camera['width'] and camera['height'] else (0, 0)
    try:
        path = calibration_path(
            camera['camera_info_url'],
            name,
            package_folder=lambda package: _share_folder(system, package),
            environment=system.environment,
        )
    except NoPackageError as error:
        return Finding(Status.FAIL, str(error), f'correct it: {_UNCALIBRATED}', camera.node)
    except ConfigError as error:
        return Finding(
            Status.FAIL,
            str(error),
            'correct it: the node does not start with this value',
            camera.node,
        )
    there = system.root / str(path).lstrip('/')
    store = CameraInfoStore(str(there), name, size, rescale=camera['rescale_camera_info'])
    if store.failure:
        return Finding(Status.FAIL, store.failure, f'correct it: {_UNCALIBRATED}', camera.node)
    figures = {
        'file': str(path),
        'camera_name': name,
        'there': there.exists(),
        'named': bool(camera['camera_info_url']),
    }
    if not there.exists():
        if not camera['camera_info_url']:
            return skip(
                f"no calibration is set (camera_info_url), and there is no '{path}'",
                camera.node,
                **figures,
            )
        advice = 'put the file there (camera_calibration writes it), or set camera_info_url to a file that exists'
        return Finding(
            Status.WARN,
            f"there is no '{path}' (camera_info_url); {_UNCALIBRATED}",
            advice,
            camera.node,
            figures,
        )
    if troubles := store.troubles:
        texts, steps = ('; '.join(dict.fromkeys(part)) for part in zip(*troubles, strict=True))
        return Finding(
            Status.WARN if store.wrong else Status.OK,
            texts,
            steps if store.wrong else '',
            camera.node,
            figures,
        )
    return ok(f"calibration '{path}' can be used", camera.node, **figures)
