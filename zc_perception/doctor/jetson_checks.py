"""A Jetson's own: release, NvBufSurface, VIC.

Sources: ``/etc/nv_tegra_release``; NvBufSurface pages of the *Jetson Linux API Reference* (R35 to R39): which functions came when.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from zc_perception.doctor.finding import Finding, Need, Status, ok, skip
from zc_perception.doctor.needs import Needs
from zc_perception.doctor.system import System

_RELEASE = re.compile(r'R(\d+) \(release\), REVISION: ([\d.]+)')
#: JetPack's major version by that of Jetson Linux.
_JETPACK = {32: 4, 34: 5, 35: 5, 36: 6, 38: 7, 39: 7}
_NOT_HERE = 'this is no Jetson'
_INSTALL = 'it comes with JetPack (nvidia-l4t-multimedia); a container needs the NVIDIA runtime (--runtime nvidia)'


def _need(needs: Needs) -> Need:
    heaps = {camera.heap for camera in needs.cameras}
    return Need.REQUIRED if 'nvbufsurface' in heaps else needs.camera('argus')


def jetson_release(system: System, needs: Needs) -> Iterator[Finding]:
    """Jetson Linux and board."""
    if not system.is_tegra:
        if _need(needs) is Need.REQUIRED:
            yield Finding(
                Status.FAIL, f'{_NOT_HERE}, and the parameter file has an argus camera', 'use camera: v4l2, gstreamer or libcamera here'
            )
        else:
            yield skip(_NOT_HERE)
        return
    model = system.read('proc/device-tree/model') or 'Jetson'
    match = _RELEASE.search(system.read('etc/nv_tegra_release'))
    if match is None:
        yield ok(
            f'{model}, Linux {system.release}; its Jetson Linux release is unknown (no /etc/nv_tegra_release)', model=model, release=''
        )
        return
    release = f'R{match[1]}.{match[2]}'
    jetpack = _JETPACK.get(int(match[1]))
    yield ok(f'{model}, Jetson Linux {release}{f" (JetPack {jetpack})" if jetpack else ""}', model=model, release=release, jetpack=jetpack)


def _generation(functions: dict[str, bool]) -> str:
    if not functions.get('Create'):
        return 'unknown'
    if not functions.get('Allocate'):
        return 'R32, before NvBufSurfaceAllocate'
    return 'R35 or newer, with NvBufSurfaceImport' if functions.get('Import') else 'R35 or newer'


def nvbufsurface(system: System, needs: Needs) -> Iterator[Finding]:
    """Loaded, and its structs tried on an image of our own."""
    need = _need(needs)
    if need is Need.UNUSED or (need is Need.POSSIBLE and not system.is_tegra):
        yield skip('no camera in the parameter file needs it' if need is Need.UNUSED else _NOT_HERE)
        return
    answer = system.ask('nvbufsurface')
    if not answer.get('loaded'):
        yield Finding(need.missing, f"libnvbufsurface can't be loaded: {answer['error']}", _INSTALL, '', answer)
        return
    functions = answer['functions']
    text = f'{answer["file"] or "libnvbufsurface"}, generation {_generation(functions)}'
    figures = {**answer, 'generation': _generation(functions)}
    if 'error' in answer:
        advice = (
            'give this user access to /dev/nvmap (group video; container: --device /dev/nvmap); '
            'if it has access, report the Jetson Linux release'
        )
        yield Finding(need.missing, f'{text}: {answer["error"]}', advice, '', figures)
    else:
        yield ok(f'{text}; an image was allocated and its layout is understood', **figures)


def vic(system: System, needs: Needs) -> Iterator[Finding]:
    """Block-linear camera images become linear by it."""
    need = _need(needs)
    if need is Need.UNUSED or (need is Need.POSSIBLE and not system.is_tegra):
        yield skip('no camera in the parameter file needs it' if need is Need.UNUSED else _NOT_HERE)
        return
    answer = system.ask('vic')
    if 'error' in answer:
        # Only cameras whose images are block-linear, and only where nobody can use them so.
        yield Finding(Status.WARN, f"libnvbufsurftransform can't be loaded: {answer['error']}", _INSTALL, '', answer)
    else:
        yield ok(f'{answer["file"] or "libnvbufsurftransform"} loads', **answer)
