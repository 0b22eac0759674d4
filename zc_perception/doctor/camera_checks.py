"""Cameras: the V4L2 nodes that are there, whether the cameras that the parameter file names offer what it asks for, and calibrations.

A V4L2 node is opened without waiting, and asked only what changes nothing in it. GStreamer and libcamera are asked in processes of their
own: GStreamer's version, the elements that matter with the real names of their properties, and the parameter file's pipelines.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zc_perception.camera.calibration import CameraInfoStore, calibration_path, camera_name_of
from zc_perception.camera.jpeg import INSTALL, missing_library
from zc_perception.camera.kinds import CAMERAS, draws, other_cameras
from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2.device import DeviceFile, V4l2Device, V4l2Error, call
from zc_perception.camera.v4l2.formats import JPEGS, RateRange, SizeRange, format_offers
from zc_perception.doctor.asking import NoAnswerError
from zc_perception.doctor.finding import Finding, Need, Status, ok, skip
from zc_perception.doctor.heaps import rights_advice
from zc_perception.doctor.needs import CameraNeed, Needs
from zc_perception.doctor.system import DENIED, System
from zc_perception.errors import CameraBusyError, CameraError, ConfigError, FormatError
from zc_perception.pixel.fourcc import NV12, fourcc_code, fourcc_name

# Some drivers list a hundred formats: rates are asked of the best ones, for so many sizes.
_RATED_FORMATS, _RATED_SIZES = 8, 64
_TURN = threading.Lock()
_TURN_S = 5.0


@dataclass(frozen=True)
class FormatView:
    """One of V4L2's formats, with its sizes, and the rates of each: none where they weren't asked for."""

    name: str
    code: int
    sizes: tuple[SizeRange, ...] = ()
    rates: dict[str, tuple[RateRange, ...]] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """For the report."""
        return {
            'fourcc': self.name,
            'sizes': [str(size) for size in self.sizes],
            'rates': {size: [str(rate) for rate in rates] for size, rates in self.rates.items()},
        }


@dataclass(frozen=True)
class CameraView:
    """A node, opened.

    :param role: ``capture``, ``metadata`` or ``other``.
    :param busy: whether another open file streams from it.
    :param dmabuf: whether it takes buffers of ours (``memory: import``); ``None``: it doesn't say.
    """

    driver: str
    card: str
    bus: str
    role: str
    multiplanar: bool = False
    current: str = ''
    formats: tuple[FormatView, ...] = ()
    busy: bool = False
    dmabuf: bool | None = None


@contextmanager
def taking_turns() -> Iterator[None]:
    """Open a V4L2 node in this block: checks run side by side, and some drivers let only one file have the node at a time.

    If a check hangs in a driver, the others wait for it a few seconds and then go on.
    """
    mine = _TURN.acquire(timeout=_TURN_S)
    try:
        yield
    finally:
        if mine:
            _TURN.release()


def _decoded(raw: bytes) -> str:
    return raw.decode(errors='replace')


def look_at(file: DeviceFile, wanted: str = '') -> CameraView:
    """Ask it everything. Owns *file*.

    :param wanted: a format whose rates matter, whatever there is besides.
    :raises CameraError: it is gone, or no V4L2 node.
    """
    capability = abi.Capability()
    try:
        call(file, 'QUERYCAP', abi.VIDIOC_QUERYCAP, capability)
        flags = capability.device_caps if capability.capabilities & abi.CAP_DEVICE_CAPS else capability.capabilities
        names = _decoded(capability.driver), _decoded(capability.card), _decoded(capability.bus_info)
        if not flags & (abi.CAP_VIDEO_CAPTURE | abi.CAP_VIDEO_CAPTURE_MPLANE) or not flags & abi.CAP_STREAMING:
            return CameraView(*names, 'metadata' if flags & abi.CAP_META_CAPTURE else 'other')
        device = V4l2Device(file)
        busy, dmabuf = _buffers(device)
        current = ''
        with suppress(CameraError):
            now = device.get_format()
            current = f'{fourcc_name(now.fourcc)} {now.width}x{now.height}'
        codes = device.fourccs()
        best = [code for offer in format_offers(codes)[0] for code in offer.codes]
        rated = {*best[:_RATED_FORMATS], *(code for code in codes if code in JPEGS or fourcc_name(code) == wanted)}
        formats = tuple(_format_view(device, code, rated=code in rated) for code in codes)
        return CameraView(*names, 'capture', device.multiplanar, current, formats, busy, dmabuf)
    finally:
        file.close()


def _buffers(device: V4l2Device) -> tuple[bool, bool | None]:
    """Asking for no buffers changes nothing, is refused while another file has some, and tells which kinds there are."""
    try:
        _, kinds = device.request_buffers(0, abi.MEMORY_MMAP)
    except CameraBusyError:
        return True, None
    except CameraError:
        return False, None
    return False, bool(kinds & abi.BUF_CAP_SUPPORTS_DMABUF) if kinds else None


def _format_view(device: V4l2Device, code: int, *, rated: bool) -> FormatView:
    sizes: tuple[SizeRange, ...] = ()
    rates: dict[str, tuple[RateRange, ...]] = {}
    with suppress(V4l2Error):
        sizes = tuple(device.frame_sizes(code))
    for size in sizes[:_RATED_SIZES] if rated else ():
        with suppress(V4l2Error):
            rates[str(size)] = tuple(device.frame_rates(code, *size.most))
    return FormatView(fourcc_name(code), code, sizes, rates)


def offers_size(view: FormatView, width: int, height: int) -> bool:
    """Whether a format has that size; yes where the driver doesn't list sizes."""
    return not view.sizes or any(_within(size, width, height) for size in view.sizes)


def _within(size: SizeRange, width: int, height: int) -> bool:
    for value, least, most, step in (
        (width, size.least[0], size.most[0], size.step[0]),
        (height, size.least[1], size.most[1], size.step[1]),
    ):
        if not least <= value <= most or (step > 1 and (value - least) % step):
            return False
    return True


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


def _video_nodes(system: System) -> list[str]:
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
    nodes, captures = _video_nodes(system), 0
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
                'cameras that draw their frames, such as synthetic, need none'
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
        elif draws(camera.camera):
            yield ok(f'camera {camera.camera} needs no device', camera.node)
        elif camera.camera in CAMERAS:
            yield skip(f'camera {camera.camera}: nothing is known of what it needs; start the node to see what it says', camera.node)
        elif camera.camera in (others := other_cameras()):
            yield skip(f'camera {camera.camera} is of another package; start the node to see what it says', camera.node)
        else:
            kinds = ', '.join((*CAMERAS, *others))
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
    there = ', '.join(_video_nodes(system)) or 'none'
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


_JETPACK = 'it comes with JetPack (nvidia-l4t-gstreamer), and a container needs it mounted'
_SDK = 'activate the Voyager SDK (GST_PLUGIN_PATH)'
#: What each is for, and where it comes from.
PURPOSES = {
    'appsink': ('the end of every pipeline, which gives frames to this package', 'apt install gstreamer1.0-plugins-base'),
    'v4l2src': ('V4L2 cameras in pipelines', 'apt install gstreamer1.0-plugins-good'),
    'nvarguscamerasrc': ("the Argus camera (ZED X through Jetson's ISP)", _JETPACK),
    'nvv4l2camerasrc': ('V4L2 cameras into NVMM memory', _JETPACK),
    'nvvidconv': ('conversions in NVMM memory', _JETPACK),
    'libcamerasrc': ('libcamera in pipelines', 'apt install gstreamer1.0-libcamera'),
    'axinferencenet': ("the Voyager SDK's own inference in pipelines; this package does not need it", _SDK),
    'axtransform': ("the Voyager SDK's preprocessing in pipelines; this package does not need it", _SDK),
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
    answer = system.ask('gstreamer')
    if 'error' in answer:
        # It is what the camera itself would say, with the packages to install.
        found, _, advice = str(answer['error']).rpartition('; ')
        yield Finding(_pipeline_need(needs).missing_extra, found or advice, advice)
    else:
        yield ok(f'GStreamer {answer["version"]}', version=answer['version'])


def gstreamer_elements(system: System, needs: Needs) -> Iterator[Finding]:
    """One line for each element."""
    if _pipeline_need(needs) is Need.UNUSED:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
        return
    answer = system.ask('gstreamer')
    if 'error' in answer:
        yield skip('GStreamer can not be loaded; see gstreamer.library')
        return
    wanted = {name for camera in needs.cameras for name in _wanted_elements(camera.camera, camera.pipeline)}
    for name, (purpose, advice) in PURPOSES.items():
        found: dict[str, Any] = answer['elements'].get(name, {'there': False})
        need = Need.REQUIRED if name in wanted else Need.UNUSED if needs.known else Need.POSSIBLE
        figures = {'there': found['there'], 'plugin': found.get('plugin', ''), 'properties': found.get('properties', {})}
        if not found['there']:
            yield Finding(
                need.missing_extra,
                f'element {name} is missing; it is for: {purpose}',
                advice if need is Need.REQUIRED else '',
                name,
                figures,
            )
        elif 'error' in found:
            yield Finding(need.missing, f'{name}: {found["error"]}', advice, name, figures)
        else:
            properties = ', '.join(f'{key} ({kind})' for key, kind in figures['properties'].items()) or 'none of interest'
            yield ok(f'{name} of plugin {figures["plugin"]}; properties: {properties}', name, **figures)


def _wanted_elements(kind: str, pipeline: str) -> set[str]:
    """Elements that the camera can't do without; an argus camera with a pipeline brings its own source."""
    named = {part.split()[0] for part in pipeline.split('!') if part.split()} if kind in _OF_CAMERA else set()
    own = set(_OF_CAMERA.get(kind, ()))
    return named | (own - {'nvarguscamerasrc'} if pipeline.strip() else own)


def gstreamer_pipelines(system: System, needs: Needs) -> Iterator[Finding]:
    """Each pipeline of the parameter file, made and thrown away."""
    cameras = [camera for camera in needs.cameras if camera.camera in _OF_CAMERA]
    if not cameras:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
    for camera in cameras:
        if not camera.pipeline.strip():
            if camera.camera == 'argus':
                yield skip(f'argus makes its own pipeline for sensor {camera.sensor_id}; see gstreamer.elements', camera.node)
            else:
                advice = "set parameter pipeline, for example to 'v4l2src device=/dev/video0 io-mode=dmabuf'"
                yield Finding(Status.FAIL, 'camera gstreamer has an empty pipeline', advice, camera.node)
            continue
        answer = system.ask('pipeline', camera.pipeline)
        if 'error' in answer:
            advice = 'compare the names of elements and properties with gst-inspect-1.0 ELEMENT, and see gstreamer.elements'
            yield Finding(Status.FAIL, f'GStreamer can not make the pipeline: {answer["error"]}', advice, camera.node)
        else:
            yield ok('GStreamer can make the pipeline', camera.node)


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
