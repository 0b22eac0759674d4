"""What makes a V4L2 camera the same one after it was unplugged: never ``/dev/videoN``, whose number goes to whoever comes first.

Source: the kernel's sysfs (``/sys/dev/char``, video4linux ``index``, USB ``serial``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from zc_perception.camera.v4l2.device import V4l2Device, capture_devices
from zc_perception.errors import CameraError

SYSFS = Path('/sys')


def identity_of(device: V4l2Device, sysfs: Path = SYSFS) -> str:
    """Bus, card, serial number and which of its nodes, such as ``usb-0000:00:14.0-2 / HD Webcam / serial 1234 / node 0``.

    Where there is no serial number, the device's place in sysfs stands for it: the same socket. Two cameras that claim the same serial
    number differ by their bus.
    """
    parts = [device.bus_info or 'no bus', device.card]
    try:
        number = os.stat(device.path).st_rdev
    except OSError:
        return ' / '.join(parts)
    node = sysfs / 'dev' / 'char' / f'{os.major(number)}:{os.minor(number)}'
    serial, place = _serial(node)
    if serial:
        parts.append(f'serial {serial}')
    elif place:
        parts.append(f'at {place}')
    index = _read(node / 'index')
    return ' / '.join([*parts, f'node {index}'] if index else parts)


def _serial(node: Path) -> tuple[str, str]:
    """The serial number of the device that the node belongs to, and its place below ``/sys/devices``."""
    try:
        place = (node / 'device').resolve(strict=True)
    except OSError:
        return '', ''
    for folder in (place, *place.parents):
        if folder.name == 'devices':
            return '', str(place.relative_to(folder))
        serial = _read(folder / 'serial')
        # A host controller's is its own, not the camera's: it has no parent on the bus.
        if serial and not folder.name.startswith('usb'):
            return serial, ''
    return '', str(place)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding='utf-8', errors='replace').strip()
    except OSError:
        return ''


def find_device(
    identity: str,
    paths: Callable[[], list[tuple[str, str]]] = capture_devices,
    open_device: Callable[[str], V4l2Device] = V4l2Device.open,
) -> str | None:
    """The node that has *identity* now, or ``None`` while there is no such camera."""
    for path, _ in paths():
        try:
            device = open_device(path)
        except CameraError:
            continue
        try:
            if identity_of(device) == identity:
                return path
        finally:
            device.close()
    return None
