"""libcamera: its Python module, and its cameras."""

from __future__ import annotations

from collections.abc import Iterator

from zc_perception.doctor.finding import Finding, Need, Status, ok, skip
from zc_perception.doctor.needs import Needs
from zc_perception.doctor.system import System


def libcamera_bindings(system: System, needs: Needs) -> Iterator[Finding]:
    """Whether the module loads, and whether the camera that the parameter file names is there."""
    need = needs.camera('libcamera')
    if need is Need.UNUSED:
        yield skip('no camera in the parameter file uses libcamera')
        return
    answer = system.ask('libcamera')
    if 'error' in answer:
        found, _, advice = str(answer['error']).rpartition('; ')
        yield Finding(need.missing_extra, found or advice, advice)
        return
    cameras: list[str] = answer['cameras']
    figures = {'version': answer['version'], 'file': answer['file'], 'cameras': cameras}
    there = ', '.join(cameras) or 'no camera'
    version = f' {answer["version"]}' if answer['version'] else ''
    if need is Need.REQUIRED and not cameras:
        yield Finding(
            Status.FAIL,
            f'libcamera{version} finds no camera',
            'check it with cam -l; a container needs /dev/media* and /dev/video*',
            '',
            figures,
        )
        return
    for camera in needs.cameras:
        wanted = camera.libcamera_id
        if camera.camera != 'libcamera' or not wanted or (wanted.isdigit() and int(wanted) < len(cameras)):
            continue
        matching = [name for name in cameras if wanted == name] or [name for name in cameras if wanted in name]
        if len(matching) != 1:
            advice = f'set libcamera_id to one of {there}'
            found = f"libcamera_id '{wanted}' fits {len(matching)} cameras, not one; there are: {there}"
            yield Finding(Status.FAIL, found, advice, camera.node, figures)
            return
    yield ok(f'libcamera{version}: {there}', **figures)
