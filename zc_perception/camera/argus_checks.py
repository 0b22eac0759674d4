"""What ``zc_doctor`` looks at for Argus cameras: which Jetson this is, and the two libraries of its images."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from typing import Any

from zc_perception.errors import ZcError
from zc_perception.machine.asking import Question
from zc_perception.machine.finding import Finding, Need, Status, ok, skip
from zc_perception.machine.libraries import file_of
from zc_perception.machine.needs import Needs
from zc_perception.machine.system import System

_RELEASE = re.compile(r'R(\d+) \(release\), REVISION: ([\d.]+)')


#: JetPack's major version by that of Jetson Linux.
_JETPACK = {32: 4, 34: 5, 35: 5, 36: 6, 38: 7, 39: 7}


_NOT_HERE = 'this is no Jetson'


_JETPACK_ADVICE = 'it comes with JetPack (nvidia-l4t-multimedia); a container needs the NVIDIA runtime (--runtime nvidia)'


def jetson_release(system: System, needs: Needs) -> Iterator[Finding]:
    """Jetson Linux and board."""
    if not system.is_tegra:
        if needs.camera('argus') is Need.REQUIRED:
            yield Finding(
                Status.FAIL,
                f'{_NOT_HERE}, and the parameter file has an argus camera',
                'use camera: v4l2, gstreamer or libcamera here',
            )
        else:
            yield skip(_NOT_HERE)
        return
    model = system.read('proc/device-tree/model') or 'Jetson'
    match = _RELEASE.search(system.read('etc/nv_tegra_release'))
    if match is None:
        yield ok(
            f'{model}, Linux {system.release}; its Jetson Linux release is unknown (no /etc/nv_tegra_release)',
            model=model,
            release='',
        )
        return
    release = f'R{match[1]}.{match[2]}'
    jetpack = _JETPACK.get(int(match[1]))
    yield ok(
        f'{model}, Jetson Linux {release}{f" (JetPack {jetpack})" if jetpack else ""}',
        model=model,
        release=release,
        jetpack=jetpack,
    )


def _of_jetson(
    question: Question, judge: Callable[[Need, dict[str, Any]], Finding]
) -> Callable[[System, Needs], Iterator[Finding]]:
    """A check of what a Jetson's library answers to a question. Elsewhere it does not apply."""

    def check(system: System, needs: Needs) -> Iterator[Finding]:
        need = needs.camera('argus')
        if need is Need.UNUSED or (need is Need.POSSIBLE and not system.is_tegra):
            yield skip(
                'no camera in the parameter file needs it' if need is Need.UNUSED else _NOT_HERE
            )
        else:
            yield judge(need, system.ask(question))

    return check


def _nvbufsurface(need: Need, answer: dict[str, Any]) -> Finding:
    """Loaded, and its structs tried on an image of our own."""
    if not answer.get('loaded'):
        return Finding(
            need.missing,
            f"libnvbufsurface can't be loaded: {answer['error']}",
            _JETPACK_ADVICE,
            '',
            answer,
        )
    file = answer['file'] or 'libnvbufsurface'
    if 'error' in answer:
        advice = (
            'give this user access to /dev/nvmap (group video; container: --device /dev/nvmap); '
            'if it has access, report the Jetson Linux release'
        )
        return Finding(need.missing, f'{file}: {answer["error"]}', advice, '', answer)
    return ok(f'{file}: an image was allocated and its layout is understood', **answer)


def _vic(need: Need, answer: dict[str, Any]) -> Finding:
    """Block-linear camera images become linear by it."""
    if 'error' in answer:
        # Only cameras whose images are block-linear, and only where nobody can use them so.
        return Finding(
            Status.WARN,
            f"libnvbufsurftransform can't be loaded: {answer['error']}",
            _JETPACK_ADVICE,
            '',
            answer,
        )
    return ok(f'{answer["file"] or "libnvbufsurftransform"} loads', **answer)


def describe_nvbufsurface(library: str = '') -> dict[str, Any]:
    """Load it, and try its structs on an image of our own, as the argus camera does."""
    from zc_perception.jetson.nvbufsurface import LIBRARY, check_structs

    try:
        loaded = ctypes.CDLL(library or LIBRARY)
    except OSError as error:
        return {'error': str(error), 'loaded': False}
    answer: dict[str, Any] = {'loaded': True, 'file': file_of(loaded)}
    try:
        check_structs(library or None)
    except ZcError as error:
        return {**answer, 'error': str(error)}
    return answer


def describe_vic(library: str = '') -> dict[str, Any]:
    """Whether the library of the video image compositor loads."""
    from zc_perception.jetson.vic import TRANSFORM_LIBRARY

    try:
        return {'file': file_of(ctypes.CDLL(library or TRANSFORM_LIBRARY))}
    except OSError as error:
        return {'error': str(error)}


nvbufsurface = _of_jetson(describe_nvbufsurface, _nvbufsurface)


vic = _of_jetson(describe_vic, _vic)
