"""Cameras: the V4L2 nodes that are there, whether the cameras that the parameter file names offer what it asks for, and calibrations.

A V4L2 node is opened without waiting, and asked only what changes nothing in it. GStreamer and libcamera are asked in processes of their
own: GStreamer's version, the elements that matter, and the parameter file's pipelines.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zc_perception.camera.calibration import (
    CameraInfoStore,
    NoPackageError,
    calibration_path,
    camera_name_of,
)
from zc_perception.camera.jpeg import INSTALL
from zc_perception.camera.kinds import CAMERAS, draws
from zc_perception.camera.libcamera import choose_camera
from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2.checks import video
from zc_perception.camera.v4l2.choice import FormatChoice, choose_formats
from zc_perception.camera.v4l2.device import DeviceFile, V4l2Device, V4l2Error, call
from zc_perception.camera.v4l2.formats import JPEGS, SizeRange, format_offers
from zc_perception.doctor import answers
from zc_perception.errors import CameraBusyError, CameraError, ConfigError, ZcError
from zc_perception.local_path import local_path
from zc_perception.machine.asking import NoAnswerError
from zc_perception.machine.finding import Finding, Need, Status, ok, skip, told
from zc_perception.machine.heaps import rights_advice
from zc_perception.machine.needs import Needs, NodeNeed
from zc_perception.machine.system import DENIED, System
from zc_perception.negotiation.constraints import size_text
from zc_perception.pixel.fourcc import NV12, fourcc_name

# Some drivers list a hundred formats: rates are asked of the best ones, for so many sizes.
_RATED_FORMATS, _RATED_SIZES = 8, 64


@dataclass(frozen=True)
class CameraView:
    """What a V4L2 node says of itself, as it is in the report's figures.

    :param role: ``capture``, ``metadata`` or ``other``.
    :param busy: whether another open file streams from it.
    :param imports: whether it takes buffers of ours (``memory: import``); ``None``: it doesn't say.
    :param formats: the best first, each with its sizes, and the rates of each size: none where they weren't asked for.
    """

    driver: str
    card: str
    bus: str
    role: str
    multiplanar: bool = False
    current: str = ''
    busy: bool = False
    imports: bool | None = None
    formats: tuple[dict[str, Any], ...] = ()


def _decoded(raw: bytes) -> str:
    return raw.decode(errors='replace')


def look_at(file: DeviceFile) -> CameraView:
    """Ask it everything.

    :raises CameraError: it is gone, or no V4L2 node.
    """
    capability = abi.Capability()
    call(file, 'QUERYCAP', abi.VIDIOC_QUERYCAP, capability)
    flags = (
        capability.device_caps
        if capability.capabilities & abi.CAP_DEVICE_CAPS
        else capability.capabilities
    )
    names = _decoded(capability.driver), _decoded(capability.card), _decoded(capability.bus_info)
    if (
        not flags & (abi.CAP_VIDEO_CAPTURE | abi.CAP_VIDEO_CAPTURE_MPLANE)
        or not flags & abi.CAP_STREAMING
    ):
        return CameraView(*names, 'metadata' if flags & abi.CAP_META_CAPTURE else 'other')
    device = V4l2Device(file)
    busy, imports = _buffers(device)
    current = ''
    with suppress(CameraError):
        now = device.get_format()
        current = f'{fourcc_name(now.fourcc)} {now.width}x{now.height}'
    codes = device.fourccs()
    best = [code for offer in format_offers(codes)[0] for code in offer.codes]
    rated = {*best[:_RATED_FORMATS], *JPEGS}
    formats = tuple(
        _format(device, code, rated=code in rated)
        for code in [*best, *(code for code in codes if code not in best)]
    )
    return CameraView(*names, 'capture', device.multiplanar, current, busy, imports, formats)


def _buffers(device: V4l2Device) -> tuple[bool, bool | None]:
    """Asking for no buffers changes nothing, is refused while another file has some, and tells which kinds there are."""
    try:
        _, kinds = device.request_buffers(0, abi.MEMORY_MMAP)
    except CameraBusyError:
        return True, None
    except CameraError:
        return False, None
    return False, bool(kinds & abi.BUF_CAP_SUPPORTS_DMABUF) if kinds else None


def _format(device: V4l2Device, code: int, *, rated: bool) -> dict[str, Any]:
    sizes: list[SizeRange] = []
    rates: dict[str, list[str]] = {}
    with suppress(V4l2Error):
        sizes = device.frame_sizes(code)
    for size in sizes[:_RATED_SIZES] if rated else ():
        with suppress(V4l2Error):
            rates[str(size)] = list(map(str, device.frame_rates(code, *size.most)))
    return {'fourcc': fourcc_name(code), 'sizes': list(map(str, sizes)), 'rates': rates}


_UDEV = 'SUBSYSTEM=="video4linux", GROUP="video", MODE="0660"'
_SHOWN = 6
# What frames of the YAML's other cameras come from; looked at by other checks.
_ELSEWHERE = {
    'gstreamer': 'gstreamer.pipeline',
    'argus': 'gstreamer.pipeline',
    'libcamera': 'libcamera.bindings',
}


def _video_nodes(system: System) -> list[str]:
    names = [
        name for name in system.names('dev') if name.startswith('video') and name[5:].isdigit()
    ]
    return [f'/dev/{name}' for name in sorted(names, key=lambda name: int(name[5:]))]


def _need(needs: Needs, node: str) -> Need:
    """Who needs that very node."""
    if not needs.known:
        return Need.POSSIBLE
    return (
        Need.REQUIRED
        if any(c.kind == 'v4l2' and c['device'] == node for c in needs.cameras)
        else Need.UNUSED
    )


def _refused(system: System, status: Status, node: str, number: int, subject: str) -> Finding:
    """Of a node that can't be opened."""
    if number in DENIED:
        found, advice = f'this user may not open {node}', rights_advice(_UDEV, node)
    elif number == errno.EBUSY:
        found, advice = f'{node} is busy{_users(system, node)}', 'end the program that uses it'
    else:
        found, advice = (
            f"{node} can't be opened: {os.strerror(number)}",
            'read dmesg; unplug the camera and plug it in again',
        )
    return Finding(status, found, advice, subject, {'errno': number})


def _users(system: System, node: str) -> str:
    users = [
        user
        for user in system.users_of(str(system.root / node.lstrip('/')))
        if user != 'this process'
    ]
    return f': {", ".join(users)}' if users else ''


def camera_devices(system: System, needs: Needs) -> Iterator[Finding]:
    """Each node: cameras with all that they offer, the others told apart."""
    nodes, captures = _video_nodes(system), 0
    for node in nodes:
        missing = _need(needs, node).missing
        try:
            with video(system, node) as file:
                view = look_at(file)
        except OSError as error:
            captures += 1
            yield _refused(system, missing, node, error.errno or errno.EIO, node)
        except CameraError as error:
            yield Finding(
                missing,
                f'{node} does not answer: {error}',
                'read dmesg; unplug the camera and plug it in again',
                node,
            )
        else:
            if view.role == 'capture':
                captures += 1
                yield _camera(system, needs, node, view)
            else:
                what = (
                    'carries metadata, not pictures'
                    if view.role == 'metadata'
                    else 'is no streaming capture device'
                )
                yield skip(
                    f'{node} ({view.card}) {what}',
                    node,
                    driver=view.driver,
                    card=view.card,
                    role=view.role,
                )
    need, found = (
        needs.camera('v4l2'),
        'there is no V4L2 camera' + ('' if nodes else ': no /dev/video*'),
    )
    if need is Need.UNUSED and not captures:
        yield skip(f'{found}, and none is needed')
    elif not captures and (need is Need.POSSIBLE or not nodes):
        advice = (
            'plug a camera in, load its driver, or give the container its device node (--device /dev/video0); '
            'cameras that draw their frames, such as synthetic, need none'
        )
        yield Finding(need.missing, found, advice)


def _camera(system: System, needs: Needs, node: str, view: CameraView) -> Finding:
    names = [one['fourcc'] for one in view.formats]
    formats = (
        ', '.join(names[:_SHOWN])
        + (f' and {len(names) - _SHOWN} more formats' if len(names) > _SHOWN else '')
        or 'no formats'
    )
    if view.formats and view.formats[0]['sizes']:
        formats += f'; {names[0]} in {", ".join(view.formats[0]["sizes"])}'
    found = f'{node}: {view.card} (driver {view.driver}, {view.bus}), now {view.current or "?"}; {formats}'
    if not view.busy:
        return ok(found, node, **asdict(view))
    need = _need(needs, node)
    status, advice = (
        (Status.OK, '') if need is Need.UNUSED else (need.missing, 'end the program that uses it')
    )
    return Finding(status, f'{found}; in use{_users(system, node)}', advice, node, asdict(view))


def configured_cameras(system: System, needs: Needs) -> Iterator[Finding]:
    """Each camera of the parameter file: there, free, with the format, size, rate and memory that it asks for."""
    if not needs.known:
        yield skip('no parameter file was given (--params-file), so no camera is configured')
    for camera in needs.cameras:
        if camera.kind == 'v4l2':
            yield _configured(system, needs, camera)
        elif camera.kind == 'replay':
            yield _recording(system, camera)
        elif camera.kind in _ELSEWHERE:
            yield skip(f'camera {camera.kind}: see {_ELSEWHERE[camera.kind]}', camera.node)
        elif draws(camera.kind):
            yield ok(f'camera {camera.kind} needs no device', camera.node)
        elif camera.kind in CAMERAS.built_in:
            yield skip(
                f'camera {camera.kind}: nothing is known of what it needs; start the node to see what it says',
                camera.node,
            )
        elif camera.kind in CAMERAS.others:
            yield skip(
                f'camera {camera.kind} is of another package; start the node to see what it says',
                camera.node,
            )
        else:
            kinds = ', '.join(CAMERAS.names)
            yield Finding(
                Status.FAIL,
                f"there is no camera '{camera.kind}'",
                f'set camera to one of {kinds}',
                camera.node,
            )


def _recording(system: System, camera: NodeNeed) -> Finding:
    if not camera['video']:
        advice = f'set it in the parameter file, or when the node starts (-p {camera.node.rsplit("/", 1)[-1]}:video:=PATH)'
        return Finding(
            Status.WARN,
            "camera replay has no recording: parameter 'video' is empty",
            advice,
            camera.node,
        )
    path = camera['video']
    with suppress(ConfigError):  # what is wrong with it is what opening it says
        path = local_path(path, 'video')
    asked = {
        'video': str(system.root / path.lstrip('/')) if path.startswith('/') else path,
        **{
            name: camera[name]
            for name in ('width', 'height', 'framerate', 'replay_topic', 'pixel_format')
        },
    }
    try:
        answer = system.ask(answers.try_recording, json.dumps(asked))
    except NoAnswerError as error:
        answer = {'error': str(error)}
    if 'error' in answer:
        return Finding(
            Status.FAIL,
            answer['error'],
            'give video the path of a recording that can be played',
            camera.node,
        )
    return ok(
        f'{camera["video"]} can be played, {answer["width"]}x{answer["height"]}',
        camera.node,
        **answer,
    )


def _sharing(system: System, needs: Needs, camera: NodeNeed) -> list[str]:
    """Other nodes with that camera's device, whatever link to it they name."""

    def device(other: NodeNeed) -> str:
        return os.path.realpath(system.root / str(other['device']).lstrip('/'))

    return [
        c.node
        for c in needs.cameras
        if c.kind == 'v4l2' and c.node != camera.node and device(c) == device(camera)
    ]


def _configured(system: System, needs: Needs, camera: NodeNeed) -> Finding:
    device, subject = camera['device'], camera.node
    if others := _sharing(system, needs, camera):
        found = f'{device} is also the camera of {", ".join(others)}, and only one node can use it'
        return Finding(
            Status.FAIL,
            found,
            'give each node a device of its own',
            subject,
            {'shared_with': others},
        )
    there = ', '.join(_video_nodes(system)) or 'none'
    try:
        with video(system, device) as file:
            view = look_at(file)
            if view.role != 'capture':
                found = f'{device} ({view.card}) gives no pictures ({view.role})'
                return Finding(Status.FAIL, found, f'set device to a camera: {there}', subject)
            return _offered(system, needs, camera, view, V4l2Device(file))
    except OSError as error:
        if error.errno == errno.ENOENT:
            advice = 'plug it in, give the container its device node (--device), or set device to one that was found'
            return Finding(
                Status.FAIL,
                f'{device} is not there; found: {there}',
                advice,
                subject,
                {'errno': errno.ENOENT},
            )
        return _refused(system, Status.FAIL, device, error.errno or errno.EIO, subject)
    except CameraError as error:
        return Finding(
            Status.FAIL,
            f'{device} does not answer: {error}',
            f'set device to another one: {there}',
            subject,
        )


def _offered(
    system: System, needs: Needs, camera: NodeNeed, view: CameraView, device: V4l2Device
) -> Finding:
    """Whether it offers what is asked: the node's own choice of formats, which changes nothing in the device."""
    names = sorted(one['fourcc'] for one in view.formats)
    figures: dict[str, Any] = {'formats': names, 'imports': view.imports, 'nv12': False}
    wrong, steps = [], []
    if view.busy:
        wrong.append(f'it is in use{_users(system, camera["device"])}')
        steps.append('end the program that uses it')
    if camera['memory'] == 'import' and view.imports is False:
        wrong.append("its driver can't use buffers of this package (memory: import)")
        steps.append('set memory to export or auto')
    try:
        choice = choose_formats(
            device, camera['width'], camera['height'], camera['pixel_format'], camera['framerate']
        )
    except ConfigError as error:  # only JPEGs come into question, and their library is missing
        wrong.append(str(error))
        steps.append(INSTALL)
    except ZcError as error:
        wrong.append(str(error))
        steps.append('set pixel_format, width and height to what it offers, or use another camera')
    else:
        figures['nv12'] = choice.jpeg is not None or any(
            offer.fourcc == NV12 for offer in choice.offers
        )
        if camera['framerate'] and (rates := _other_rates(device, choice, camera['framerate'])):
            wrong.append(
                f'it does not offer {camera["framerate"]:g} Hz at this size, but {", ".join(rates)}'
            )
            steps.append('set framerate to one of these rates')
    where = f'{camera["device"]} ({view.card})'
    if wrong:
        return Finding(
            Status.FAIL, f'{where}: {"; ".join(wrong)}', '; '.join(steps), camera.node, figures
        )
    if not figures['nv12'] and camera['pixel_format'] == 'auto':
        status = Status.FAIL if needs.accelerator('axl') is Need.REQUIRED else Status.WARN
        advice = 'use a camera or mode with NV12, or look at metis.ioctls: the card may import one of these formats'
        if choice.notices:
            advice += f'; JPEGs would become NV12: {INSTALL}'
        found = f'{where} offers no NV12, only {", ".join(names)}: a consumer that takes only NV12 gets a converted copy'
        return Finding(status, found, advice, camera.node, figures)
    rate = f' at {camera["framerate"]:g} Hz' if camera['framerate'] else ''
    return ok(
        f'{where} offers what is asked: {size_text(choice.size)}{rate}, {camera["pixel_format"]}',
        camera.node,
        **figures,
    )


def _other_rates(device: V4l2Device, choice: FormatChoice, wanted: float) -> list[str]:
    """The rates that there are instead of the one that is wanted; none where it is among them, or the driver doesn't say."""
    found: list[str] = []
    codes = [
        *(code for offer in choice.offers for code in offer.codes),
        *([] if choice.jpeg is None else [choice.jpeg]),
    ]
    for code in codes:
        try:
            rates = device.frame_rates(code, *choice.size)
        except V4l2Error:
            return []
        if not rates or any(rate.holds(wanted) for rate in rates):
            return []
        found += map(str, rates)
    return list(dict.fromkeys(found))


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


_JETPACK = 'it comes with JetPack (nvidia-l4t-gstreamer), and a container needs it mounted'
#: What each is for, and where it comes from.
PURPOSES = {
    'appsink': (
        'the end of every pipeline, which gives frames to this package',
        'apt install gstreamer1.0-plugins-base',
    ),
    'v4l2src': ('V4L2 cameras in pipelines', 'apt install gstreamer1.0-plugins-good'),
    'nvarguscamerasrc': ("the Argus camera (ZED X through Jetson's ISP)", _JETPACK),
    'nvv4l2camerasrc': ('V4L2 cameras into NVMM memory', _JETPACK),
    'nvvidconv': ('conversions in NVMM memory', _JETPACK),
    'libcamerasrc': ('libcamera in pipelines', 'apt install gstreamer1.0-libcamera'),
}
# What cannot be done without.
_OF_CAMERA = {'gstreamer': ('appsink',), 'argus': ('appsink', 'nvarguscamerasrc')}


def _pipeline_need(needs: Needs) -> Need:
    return needs.camera('gstreamer', 'argus')


def gstreamer_library(system: System, needs: Needs) -> Iterator[Finding]:
    """Whether it loads."""
    if _pipeline_need(needs) is Need.UNUSED:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
        return
    answer = system.ask(answers.describe_gstreamer, *PURPOSES)
    if 'error' in answer:
        yield told(
            _pipeline_need(needs).missing_extra, answer['error']
        )  # as the camera itself says it, with the packages to install
    else:
        yield ok(f'GStreamer {answer["version"]}', version=answer['version'])


def gstreamer_elements(system: System, needs: Needs) -> Iterator[Finding]:
    """One line for each element."""
    if _pipeline_need(needs) is Need.UNUSED:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
        return
    answer = system.ask(answers.describe_gstreamer, *PURPOSES)
    if 'error' in answer:
        yield skip('GStreamer can not be loaded; see gstreamer.library')
        return
    wanted = {name for camera in needs.cameras for name in _OF_CAMERA.get(camera.kind, ())}
    if all(camera['pipeline'].strip() for camera in needs.cameras if camera.kind == 'argus'):
        wanted.discard('nvarguscamerasrc')  # a pipeline brings its own source
    pipelines = [camera['pipeline'] for camera in needs.cameras if camera.kind in _OF_CAMERA]
    wanted |= {
        part.split()[0] for pipeline in pipelines for part in pipeline.split('!') if part.split()
    }
    for name, (purpose, advice) in PURPOSES.items():
        found: dict[str, Any] = answer['elements'].get(name, {'there': False})
        need = Need.REQUIRED if name in wanted else Need.UNUSED if needs.known else Need.POSSIBLE
        figures = {'there': found['there']}
        if not found['there']:
            step = advice if need is Need.REQUIRED else ''
            yield Finding(
                need.missing_extra,
                f'element {name} is missing; it is for: {purpose}',
                step,
                name,
                figures,
            )
        elif 'error' in found:
            yield Finding(need.missing, f'{name}: {found["error"]}', advice, name, figures)
        else:
            yield ok(f'{name}, for: {purpose}', name, **figures)


def gstreamer_pipelines(system: System, needs: Needs) -> Iterator[Finding]:
    """Each pipeline of the parameter file, made and thrown away."""
    cameras = [camera for camera in needs.cameras if camera.kind in _OF_CAMERA]
    if not cameras:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
    for camera in cameras:
        if not camera['pipeline'].strip():
            if camera.kind == 'argus':
                yield skip(
                    f'argus makes its own pipeline for sensor {camera["sensor_id"]}; see gstreamer.elements',
                    camera.node,
                )
            else:
                advice = "set parameter pipeline, for example to 'v4l2src device=/dev/video0 io-mode=dmabuf'"
                yield Finding(
                    Status.FAIL, 'camera gstreamer has an empty pipeline', advice, camera.node
                )
            continue
        answer = system.ask(answers.try_pipeline, camera['pipeline'])
        if 'error' in answer:
            advice = 'compare the names of elements and properties with gst-inspect-1.0 ELEMENT, and see gstreamer.elements'
            yield Finding(
                Status.FAIL,
                f'GStreamer can not make the pipeline: {answer["error"]}',
                advice,
                camera.node,
            )
        else:
            yield ok('GStreamer can make the pipeline', camera.node)


def libcamera_bindings(system: System, needs: Needs) -> Iterator[Finding]:
    """Whether the module loads, and whether the camera that the parameter file names is there."""
    need = needs.camera('libcamera')
    if need is Need.UNUSED:
        yield skip('no camera in the parameter file uses libcamera')
        return
    answer = system.ask(answers.describe_libcamera)
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
