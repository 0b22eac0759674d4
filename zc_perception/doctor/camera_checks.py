"""Cameras: what V4L2 nodes there are, and whether the ones that the parameter file names offer what it asks for."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator

from zc_perception.camera.jpeg import INSTALL, missing_library
from zc_perception.camera.v4l2.formats import JPEGS, format_offers
from zc_perception.doctor.asking import NoAnswerError
from zc_perception.doctor.camera_view import CameraView, FormatView, look_at, offers_size, taking_turns
from zc_perception.doctor.finding import Finding, Need, Status, ok, skip
from zc_perception.doctor.heap_nodes import rights_advice
from zc_perception.doctor.needs import CameraNeed, Needs
from zc_perception.doctor.system import DENIED, System
from zc_perception.errors import CameraError, FormatError
from zc_perception.pixel.fourcc import NV12, fourcc_code

_UDEV = 'SUBSYSTEM=="video4linux", GROUP="video", MODE="0660"'
_SHOWN = 6
# What frames of the YAML's other cameras come from; looked at by other checks.
_ELSEWHERE = {'gstreamer': 'gstreamer.pipeline', 'argus': 'gstreamer.pipeline', 'libcamera': 'libcamera.bindings'}


def _view(system: System, node: str, wanted: str = '') -> tuple[CameraView | None, int, str]:
    """What the node offers; or the errno of opening it; or why it couldn't be asked."""
    path = str(system.root / node.lstrip('/'))
    with taking_turns():
        try:
            file = system.open_video(path)
        except OSError as error:
            return None, error.errno or errno.EIO, ''
        try:
            return look_at(file, wanted), 0, ''
        except CameraError as error:
            return None, 0, str(error)


def _nodes(system: System) -> list[str]:
    names = [name for name in system.names('dev') if name.startswith('video') and name[5:].isdigit()]
    return [f'/dev/{name}' for name in sorted(names, key=lambda name: int(name[5:]))]


def _need(needs: Needs, node: str) -> Need:
    """Who needs that very node."""
    if not needs.known:
        return Need.POSSIBLE
    return Need.REQUIRED if any(c.camera == 'v4l2' and c.device == node for c in needs.cameras) else Need.UNUSED


def _refused(system: System, needs: Needs, node: str, number: int) -> Finding:
    figures = {'errno': number}
    if number in DENIED:
        return Finding(_need(needs, node).missing, f'this user may not open {node}', rights_advice(_UDEV, node), node, figures)
    if number == errno.EBUSY:
        return Finding(_need(needs, node).missing, f'{node} is busy{_users(system, node)}', 'end the program that uses it', node, figures)
    return Finding(
        _need(needs, node).missing,
        f"{node} can't be opened: {os.strerror(number)}",
        'read dmesg; unplug the camera and plug it in again',
        node,
        figures,
    )


def _users(system: System, node: str) -> str:
    users = [user for user in system.users_of(str(system.root / node.lstrip('/'))) if user != 'this process']
    return f': {", ".join(users)}' if users else ''


def camera_devices(system: System, needs: Needs) -> Iterator[Finding]:
    """Each node: cameras with all that they offer, the others told apart."""
    nodes, captures = _nodes(system), 0
    for node in nodes:
        view, number, problem = _view(system, node)
        if view is None and number:
            captures += 1
            yield _refused(system, needs, node, number)
        elif view is None:
            yield Finding(
                _need(needs, node).missing, f'{node} does not answer: {problem}', 'read dmesg; unplug the camera and plug it in again', node
            )
        elif view.role != 'capture':
            what = 'carries metadata, not pictures' if view.role == 'metadata' else 'is no streaming capture device'
            yield skip(f'{node} ({view.card}) {what}', node, driver=view.driver, card=view.card, role=view.role)
        else:
            captures += 1
            yield _camera(system, needs, node, view)
    if not captures and needs.camera('v4l2') is not Need.REQUIRED:
        found = 'there is no V4L2 camera' + ('' if nodes else ': no /dev/video*')
        if needs.known:
            yield skip(f'{found}, and none is needed')
        else:
            advice = (
                'plug a camera in, load its driver, or give the container its device node (--device /dev/video0); '
                'cameras synthetic and replay need none'
            )
            yield Finding(Status.WARN, found, advice)
    elif not nodes:
        yield Finding(
            Status.FAIL,
            'there is no V4L2 camera: no /dev/video*',
            'plug the camera in, load its driver, or give the container its device node (--device)',
        )


def _camera(system: System, needs: Needs, node: str, view: CameraView) -> Finding:
    figures = {
        'driver': view.driver, 'card': view.card, 'bus': view.bus, 'role': view.role, 'multiplanar': view.multiplanar,
        'current': view.current, 'busy': view.busy, 'imports': view.dmabuf, 'formats': [f.as_json() for f in view.formats],
    }  # fmt: skip
    formats = _formats_text(view)
    found = f'{node}: {view.card} (driver {view.driver}, {view.bus}), now {view.current or "?"}; {formats or "no formats"}'
    if view.busy:
        advice = 'end the program that uses it'
        need = _need(needs, node)
        status = need.missing if need is not Need.UNUSED else Status.OK
        return Finding(status, f'{found}; in use{_users(system, node)}', advice if status is not Status.OK else '', node, figures)
    return ok(found, node, **figures)


def _formats_text(view: CameraView) -> str:
    """The best formats by name, and the sizes of the first one."""
    best = {
        code: number for number, code in enumerate(code for offer in format_offers(f.code for f in view.formats)[0] for code in offer.codes)
    }
    order = sorted(view.formats, key=lambda f: best.get(f.code, len(best)))
    names = ', '.join(f.name for f in order[:_SHOWN]) + (f' and {len(order) - _SHOWN} more formats' if len(order) > _SHOWN else '')
    sizes = ', '.join(map(str, order[0].sizes)) if order else ''
    return f'{names}; {order[0].name} in {sizes}' if sizes else names


def configured_cameras(system: System, needs: Needs) -> Iterator[Finding]:
    """Each camera of the parameter file: there, free, with the format, size, rate and memory that it asks for."""
    if not needs.known:
        yield skip('no parameter file was given (--params-file), so no camera is configured')
    for camera in needs.cameras:
        if camera.camera == 'v4l2':
            yield _configured(system, needs, camera)
        elif camera.camera == 'replay':
            yield _recording(system, camera)
        elif camera.camera in _ELSEWHERE:
            yield skip(f'camera {camera.camera}: see {_ELSEWHERE[camera.camera]}', camera.node)
        elif camera.camera == 'synthetic':
            yield ok('camera synthetic needs no device', camera.node)
        else:
            kinds = ', '.join(('synthetic', 'replay', 'v4l2', *_ELSEWHERE))
            yield Finding(Status.FAIL, f"there is no camera '{camera.camera}'", f'set camera to one of {kinds}', camera.node)


def _recording(system: System, camera: CameraNeed) -> Finding:
    if not camera.video:
        advice = f'set it in the parameter file, or when the node starts (-p {camera.node.rsplit("/", 1)[-1]}:video:=PATH)'
        return Finding(Status.WARN, "camera replay has no recording: parameter 'video' is empty", advice, camera.node)
    path = str(system.root / camera.video.lstrip('/')) if camera.video.startswith('/') else camera.video
    asked = {'video': path, **{name: getattr(camera, name) for name in ('width', 'height', 'framerate', 'replay_topic')}}
    try:
        answer = system.ask('recording', json.dumps(asked))
    except NoAnswerError as error:
        answer = {'error': str(error)}
    if 'error' in answer:
        return Finding(Status.FAIL, answer['error'], 'give video the path of a recording that can be played', camera.node)
    return ok(f'{camera.video} can be played, {answer["width"]}x{answer["height"]}', camera.node, **answer)


def _sharing(system: System, needs: Needs, camera: CameraNeed) -> list[str]:
    """Other nodes with that camera's device, whatever link to it they name."""

    def device(other: CameraNeed) -> str:
        return os.path.realpath(system.root / other.device.lstrip('/'))

    return [c.node for c in needs.cameras if c.camera == 'v4l2' and c.node != camera.node and device(c) == device(camera)]


def _configured(system: System, needs: Needs, camera: CameraNeed) -> Finding:
    if others := _sharing(system, needs, camera):
        found = f'{camera.device} is also the camera of {", ".join(others)}, and only one node can use it'
        return Finding(Status.FAIL, found, 'give each node a device of its own', camera.node, {'shared_with': others})
    view, number, problem = _view(system, camera.device, camera.pixel_format)
    there = ', '.join(_nodes(system)) or 'none'
    if number == errno.ENOENT:
        advice = 'plug it in, give the container its device node (--device), or set device to one that was found'
        return Finding(Status.FAIL, f'{camera.device} is not there; found: {there}', advice, camera.node, {'errno': number})
    if number:
        refused = _refused(system, needs, camera.device, number)
        return Finding(Status.FAIL, refused.found, refused.advice, camera.node, refused.figures)
    if view is None:
        return Finding(Status.FAIL, f'{camera.device} does not answer: {problem}', f'set device to another one: {there}', camera.node)
    if view.role != 'capture':
        advice = f'set device to a camera: {there}'
        return Finding(Status.FAIL, f'{camera.device} ({view.card}) gives no pictures ({view.role})', advice, camera.node)
    wrong, steps, figures = _shortcomings(view, camera)
    if view.busy:
        wrong.insert(0, f'it is in use{_users(system, camera.device)}')
        steps.insert(0, 'end the program that uses it')
    if wrong:
        return Finding(Status.FAIL, f'{camera.device} ({view.card}): {"; ".join(wrong)}', '; '.join(steps), camera.node, figures)
    if not figures['nv12'] and camera.pixel_format == 'auto':
        status = Status.FAIL if needs.accelerator('axl') is Need.REQUIRED else Status.WARN
        names = ', '.join(f.name for f in view.formats)
        advice = 'use a camera or mode with NV12, or look at metis.ioctls: the card may import one of these formats'
        found = f'{camera.device} ({view.card}) offers no NV12, only {names}: a consumer that takes only NV12 gets a converted copy'
        return Finding(status, found, advice, camera.node, figures)
    asked = f'{camera.width}x{camera.height}' if camera.width and camera.height else view.current
    rate = f' at {camera.framerate:g} Hz' if camera.framerate else ''
    return ok(f'{camera.device} ({view.card}) offers what is asked: {asked}{rate}, {camera.pixel_format}', camera.node, **figures)


def _shortcomings(view: CameraView, camera: CameraNeed) -> tuple[list[str], list[str], dict[str, object]]:
    """What it lacks, and what to do about each."""
    names = {f.name for f in view.formats}
    offers, refused = format_offers(f.code for f in view.formats if f.code not in JPEGS)
    jpegs = [f.code for f in view.formats if f.code in JPEGS]
    nv12 = any(offer.fourcc == NV12 for offer in offers) or (bool(jpegs) and not missing_library())
    figures: dict[str, object] = {'formats': sorted(names), 'unusable': sorted(refused), 'nv12': nv12, 'imports': view.dmabuf}
    wrong: list[str] = []
    advice: list[str] = []
    if camera.memory == 'import' and view.dmabuf is False:
        wrong.append("its driver can't use buffers of this package (memory: import)")
        advice.append('set memory to export or auto')
    usable = _usable(view, camera, [*(code for offer in offers for code in offer.codes), *jpegs])
    if isinstance(usable, str):
        return [*wrong, usable], [*advice, f'set pixel_format to auto, or one of {", ".join(sorted(names - refused.keys()))}'], figures
    if not usable:
        reasons = '; '.join(refused.values()) or 'it lists no formats'
        return (
            [*wrong, f'none of its formats can be used ({reasons})'],
            [*advice, 'use another camera, or camera: gstreamer with a decoder'],
            figures,
        )
    if camera.width and camera.height:
        fitting = [f for f in usable if offers_size(f, camera.width, camera.height)]
        if not fitting:
            sizes = ', '.join(dict.fromkeys(str(size) for f in usable for size in f.sizes))
            wrong.append(f'it does not offer {camera.width}x{camera.height}, but {sizes}')
            advice.append('set width and height to one of these sizes')
        usable = fitting
    if camera.framerate and usable and not any(_has_rate(f, camera) for f in usable):
        rates = ', '.join(dict.fromkeys(str(rate) for f in usable for some in f.rates.values() for rate in some))
        wrong.append(f'it does not offer {camera.framerate:g} Hz at this size, but {rates}')
        advice.append('set framerate to one of these rates')
    if usable and not isinstance(usable, str) and all(f.code in JPEGS for f in usable) and (missing := missing_library()):
        wrong.append(f'it offers nothing but JPEGs for that: {missing}')
        advice.append(INSTALL)
    return wrong, advice, figures


def _usable(view: CameraView, camera: CameraNeed, codes: list[int]) -> list[FormatView] | str:
    """The formats that come into question, or why the one that is named doesn't."""
    if camera.pixel_format == 'auto':
        return [f for f in view.formats if f.code in codes]
    try:
        wanted = fourcc_code(camera.pixel_format)
    except (FormatError, ValueError):
        return f"pixel_format '{camera.pixel_format}' is no fourcc"
    found = [f for f in view.formats if f.code == wanted]
    return found or f'it does not offer {camera.pixel_format}, but {", ".join(f.name for f in view.formats) or "nothing"}'


def _has_rate(view: FormatView, camera: CameraNeed) -> bool:
    rates = [rate for size, some in view.rates.items() for rate in some]
    return not rates or any(rate.holds(camera.framerate) for rate in rates)
