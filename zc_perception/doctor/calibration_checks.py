"""Calibrations: whether each camera's file is there and fits, by the node's own rules. Without one a camera works, uncalibrated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from zc_perception.camera.calibration_file import CameraInfoStore, calibration_path, camera_name_of
from zc_perception.doctor.finding import Finding, Status, ok, skip
from zc_perception.doctor.needs import CameraNeed, Needs
from zc_perception.doctor.system import System
from zc_perception.errors import ConfigError

_UNCALIBRATED = 'the node warns and goes on, and its camera_info says uncalibrated (a camera matrix of zeros)'


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


def _calibration(system: System, camera: CameraNeed) -> Finding:
    name = camera_name_of(camera.camera_name or camera.node)
    size = (camera.width, camera.height) if camera.width and camera.height else (0, 0)
    try:
        path = calibration_path(
            camera.camera_info_url, name, package_folder=lambda package: _share_folder(system, package), environment=system.environment
        )
        there = system.root / str(path).lstrip('/')
        store = CameraInfoStore(str(there), name, size)
    except ConfigError as error:
        return Finding(Status.FAIL, str(error), 'correct it: the node does not start with this value', camera.node)
    figures = {'file': str(path), 'camera_name': name, 'there': there.exists(), 'named': bool(camera.camera_info_url)}
    if not there.exists():
        if not camera.camera_info_url:
            return skip(f"no calibration is set (camera_info_url), and there is no '{path}'", camera.node, **figures)
        advice = 'put the file there (camera_calibration writes it), or set camera_info_url to a file that exists'
        return Finding(Status.WARN, f"there is no '{path}' (camera_info_url); {_UNCALIBRATED}", advice, camera.node, figures)
    if troubles := store.troubles:
        texts, steps = ('; '.join(dict.fromkeys(part)) for part in zip(*troubles, strict=True))
        return Finding(Status.WARN if store.wrong else Status.OK, texts, steps if store.wrong else '', camera.node, figures)
    return ok(f"calibration '{path}' can be used", camera.node, **figures)
