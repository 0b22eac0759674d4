# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
``zc_doctor``'s checks of V4L2 cameras.

The checks list the device files, and compare the cameras' formats with the parameter file. They
open a device file without blocking, and use only ioctls that change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
import errno
import os
import threading
from typing import Any

from zc_perception.camera.camera import Agree, Known, offered_heaps, plan, PlannedPool, UNKNOWN
from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2.choice import aligned_format, choose_formats, EXPORTED, FormatChoice
from zc_perception.camera.v4l2.device import asked, DeviceFile, V4l2Controls, V4l2Device, V4l2Error
from zc_perception.camera.v4l2.formats import driver_layout, format_offers, JPEGS, SizeRange
from zc_perception.camera.v4l2.kind import reserve_of
from zc_perception.camera.v4l2.mjpeg import INSTALL
from zc_perception.errors import (
    CameraBusyError,
    CameraError,
    ConfigError,
    NegotiationError,
    ZcError,
)
from zc_perception.machine.checks import fail, Finding, Need, Needs, NodeNeed, ok, skip, Status
from zc_perception.machine.system import DENIED, rights_advice, System
from zc_perception.memory.heaps import HeapUse, OfferedHeaps
from zc_perception.negotiation.constraints import Size, size_text
from zc_perception.pixel.fourcc import fourcc_name, NV12

# Checks run in parallel, but some drivers let a device file be opened only once at a time. So a
# check first waits for the lock _TURN, for at most _TURN_S seconds.
_TURN, _TURN_S = threading.Lock(), 5.0


@contextmanager
def video(system: System, node: str) -> Iterator[DeviceFile]:
    """
    Open a V4L2 device file for a ``with`` block, while no other check has a device file open.

    A check waits for the end of another check's block, but at most 5 s, because that check may
    hang in a driver. After 5 s, the file is opened even if the other block hasn't ended.

    :raises OSError: the device file can't be opened.
    """
    mine = _TURN.acquire(timeout=_TURN_S)
    try:
        with closing(system.opener(DeviceFile)(str(system.root / node.lstrip('/')))) as file:
            yield file
    finally:
        if mine:
            _TURN.release()


# Some drivers list a hundred formats. So the check queries rates only for JPEGs and for the best
# _RATED_FORMATS formats, and only for _RATED_SIZES sizes of each format.
_RATED_FORMATS, _RATED_SIZES = 8, 64


@dataclass(frozen=True)
class CameraView:
    """
    A V4L2 driver's answers about a device; they become figures of ``zc_doctor``'s report.

    :param role: ``capture``, ``metadata`` or ``other``.
    :param busy: whether another program has buffers of the device.
    :param imports: whether the driver can import a heap's buffers (``memory: import``); ``None``:
        the driver doesn't report it.
    :param formats: formats, the best first, with their sizes and the rates of each size. If a
        size has no rates, the driver wasn't asked for the rates of this size, or didn't answer.
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


def look_at(file: DeviceFile) -> CameraView:
    """
    Query a V4L2 device file, and return its answers.

    :raises CameraError: the device is gone, or the file isn't a V4L2 device file.
    """
    capability, flags = asked(file)
    driver, card, bus = (
        raw.decode(errors='replace')
        for raw in (capability.driver, capability.card, capability.bus_info)
    )
    if (
        not flags & (abi.CAP_VIDEO_CAPTURE | abi.CAP_VIDEO_CAPTURE_MPLANE)
        or not flags & abi.CAP_STREAMING
    ):
        return CameraView(
            driver, card, bus, 'metadata' if flags & abi.CAP_META_CAPTURE else 'other'
        )
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
    return CameraView(
        driver, card, bus, 'capture', device.multiplanar, current, busy, imports, formats
    )


def _buffers(device: V4l2Device) -> tuple[bool, bool | None]:
    """
    Return whether the device is busy, and whether its driver imports buffers.

    A request for zero buffers changes nothing. The driver answers with the kinds of buffers that
    it supports, and refuses the request while another open file has buffers of the device.
    """
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


def _video_nodes(system: System) -> list[str]:
    names = [
        name for name in system.names('dev') if name.startswith('video') and name[5:].isdigit()
    ]
    return [f'/dev/{name}' for name in sorted(names, key=lambda name: int(name[5:]))]


def _need(needs: Needs, node: str) -> Need:
    """Return whether a camera of the parameter file uses the device file *node*."""
    if not needs.known:
        return Need.POSSIBLE
    return (
        Need.REQUIRED
        if any(c.kind == 'v4l2' and c['device'] == node for c in needs.cameras)
        else Need.UNUSED
    )


def _refused(system: System, status: Status, node: str, number: int, subject: str) -> Finding:
    """Return the finding for a device file that can't be opened."""
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
    """Yield a finding for each ``/dev/video*`` file, and one if there is no camera."""
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
        yield skip(f'{found}; the parameter file needs no V4L2 camera')
    elif not captures and (need is Need.POSSIBLE or not nodes):
        advice = (
            'plug a camera in, load its driver, or give the container its device node (--device '
            '/dev/video0); camera synthetic draws its frames itself, and needs no device'
        )
        yield Finding(need.missing, found, advice)


def _camera(system: System, needs: Needs, node: str, view: CameraView) -> Finding:
    names = [one['fourcc'] for one in view.formats]
    formats = (
        ', '.join(names[:_SHOWN])
        + (f' and {len(names) - _SHOWN} more' if len(names) > _SHOWN else '')
        or 'none listed'
    )
    if view.formats and view.formats[0]['sizes']:
        formats += f'; sizes of {names[0]}: {", ".join(view.formats[0]["sizes"])}'
    found = (
        f'{node}: {view.card} (driver {view.driver}, {view.bus}), set to '
        f'{view.current or "?"}; formats: {formats}'
    )
    if not view.busy:
        return ok(found, node, **asdict(view))
    need = _need(needs, node)
    status, advice = (
        (Status.OK, '') if need is Need.UNUSED else (need.missing, 'end the program that uses it')
    )
    return Finding(status, f'{found}; in use{_users(system, node)}', advice, node, asdict(view))


def _sharing(system: System, needs: Needs, camera: NodeNeed) -> list[str]:
    """Return the other capture nodes that use *camera*'s device, directly or by a symlink."""

    def device(other: NodeNeed) -> str:
        return os.path.realpath(system.root / str(other['device']).lstrip('/'))

    return [
        c.node
        for c in needs.cameras
        if c.kind == 'v4l2' and c.node != camera.node and device(c) == device(camera)
    ]


def configured(system: System, needs: Needs, camera: NodeNeed) -> Finding:
    device, subject = camera['device'], camera.node
    if others := _sharing(system, needs, camera):
        found = f'{device} is also the camera of {", ".join(others)}, and only one node can use it'
        return fail(found, 'give each node a device of its own', subject, shared_with=others)
    there = ', '.join(_video_nodes(system)) or 'none'
    try:
        with video(system, device) as file:
            view = look_at(file)
            if view.role != 'capture':
                found = f'{device} ({view.card}) gives no pictures (its role: {view.role})'
                return fail(found, f'set device to a camera; device nodes: {there}', subject)
            return _offered(system, needs, camera, view, V4l2Device(file))
    except OSError as error:
        if error.errno == errno.ENOENT:
            advice = (
                "plug the camera in, give a container the camera's device node (--device), or set "
                "parameter 'device' to a device node that was found"
            )
            return fail(
                f'{device} does not exist; found: {there}', advice, subject, errno=errno.ENOENT
            )
        return _refused(system, Status.FAIL, device, error.errno or errno.EIO, subject)
    except CameraError as error:
        return fail(
            f'{device} does not answer: {error}',
            f'set device to another camera; device nodes: {there}',
            subject,
        )


def _offered(
    system: System, needs: Needs, camera: NodeNeed, view: CameraView, device: V4l2Device
) -> Finding:
    """
    Check that the camera offers what the parameters ask for.

    The check chooses formats as the capture node does; that changes nothing in the device.
    """
    names = sorted(one['fourcc'] for one in view.formats)
    figures: dict[str, Any] = {'formats': names, 'imports': view.imports, 'nv12': False}
    wrong, steps = [], []
    if view.busy:
        wrong.append(f'it is in use{_users(system, camera["device"])}')
        steps.append('end the program that uses it')
    if camera['memory'] == 'import' and view.imports is False:
        wrong.append("its driver can't use buffers of this package (memory: import)")
        steps.append("set parameter 'memory' to export or auto")
    try:
        choice = choose_formats(
            device, camera['width'], camera['height'], camera['pixel_format'], camera['framerate']
        )
    # ConfigError: the camera offers only JPEGs, and the library to decode them is missing
    except ConfigError as error:
        wrong.append(str(error))
        steps.append(INSTALL)
    except ZcError as error:
        wrong.append(str(error))
        steps.append('set pixel_format, width and height to what the camera offers')
    else:
        figures['nv12'] = choice.jpeg is not None or any(
            offer.fourcc == NV12 for offer in choice.offers
        )
        if camera['framerate'] and (rates := _other_rates(device, choice, camera['framerate'])):
            wrong.append(
                f'it does not offer {camera["framerate"]:g} Hz at this size, but only '
                f'{", ".join(rates)}'
            )
            steps.append('set framerate to one of these rates')
    where = f'{camera["device"]} ({view.card})'
    if wrong:
        return fail(f'{where}: {"; ".join(wrong)}', '; '.join(steps), camera.node, **figures)
    if not figures['nv12'] and camera['pixel_format'] == 'auto':
        status = Status.FAIL if needs.accelerator('axl') is Need.REQUIRED else Status.WARN
        advice = (
            'use a camera that offers NV12, or see check metis.ioctls: the Metis card may '
            "import one of this camera's formats"
        )
        if choice.notices:
            advice += f'; with libturbojpeg, JPEGs are decoded to NV12: {INSTALL}'
        found = (
            f'{where} offers no NV12, only {", ".join(names)}: a consumer that takes only '
            'NV12 gets a converted copy'
        )
        return Finding(status, found, advice, camera.node, figures)
    rate = f' at {camera["framerate"]:g} Hz' if camera['framerate'] else ''
    return ok(
        f'{where} offers what the parameters ask for: {size_text(choice.size)}{rate}, '
        f'pixel_format {camera["pixel_format"]}',
        camera.node,
        **figures,
    )


def _other_rates(device: V4l2Device, choice: FormatChoice, wanted: float) -> list[str]:
    """Return the rates that the driver lists; an empty list if the wanted rate is among them."""
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


def picture_size(system: System, values: Mapping[str, Any]) -> Size:
    """Return the picture size that the device is set to; UNKNOWN: the query failed."""
    with suppress(ZcError, OSError), video(system, values['device']) as file:
        return V4l2Device(file).get_format().size
    return UNKNOWN


def driver_pool(
    system: System, values: Mapping[str, Any], heaps: OfferedHeaps | None, agree: Agree
) -> PlannedPool | None:
    """
    Plan the camera's pool by the driver's answers; ``None``: the driver can't be queried.

    :raises NegotiationError: no buffers suit both the camera and its consumers.
    """
    try:
        with video(system, values['device']) as file:
            device = V4l2Device(file)
            offered = heaps or OfferedHeaps((f'v4l2/{device.driver}',), (EXPORTED,))
            choice = choose_formats(
                device,
                *(values[name] for name in ('width', 'height', 'pixel_format', 'framerate')),
            )
            decoded: tuple[str, ...] = ()
            if choice.jpeg is not None:
                decoded = offered_heaps(system, values['heap'], HeapUse.CAMERA).names
            reserve = reserve_of(V4l2Controls(device).minimum_buffers())
            own = choice.constraints(offered.names, reserve, '; '.join(offered.reasons), decoded)
            known = heaps is not None or values['memory'] == 'export'
            planned = plan(Known(own, choice.size, known), agree, own_heap=heaps is not None)
            settings = planned.settings
            code = choice.code(settings.format, settings.placement)
            assert code is not None, 'the camera agreed on this format'
            if code in JPEGS:
                heap = '' if settings.heap is None else settings.heap.name
                return replace(planned, heap=heap)
            align = settings.limits.stride_align
            driver = aligned_format(device.try_format, code, choice.size, align)
            return replace(
                planned,
                settings=replace(settings, layout=driver_layout(driver)),
                buffers=tuple(plane.size for plane in driver.planes),
            )
    except NegotiationError:
        raise
    except (ZcError, OSError):
        return None
