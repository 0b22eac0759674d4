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

"""Which camera it is, by sysfs as the kernel lays it out."""

from __future__ import annotations

import os
from pathlib import Path
import resource

from camera.v4l2_double import DriverDouble
from descriptors import limited, next_free
import pytest

from zc_perception.camera.v4l2.device import find_device, identity_of, V4l2Device
from zc_perception.errors import CameraError


def _sysfs(root: Path, place: str, number: int, *, serial: str = '', index: int = 0) -> Path:
    """
    Make a device below /sys/devices with the node ``videoN``.

    Its device number is that of *number*.
    """
    device = root / 'devices' / place
    node = device / 'video4linux' / 'video0'
    node.mkdir(parents=True)
    (node / 'index').write_text(f'{index}\n')
    (node / 'device').symlink_to(device)
    if serial:
        (device.parent / 'serial').write_text(f'{serial}\n')
    link = root / 'dev' / 'char' / f'{os.major(number)}:{os.minor(number)}'
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(node)
    return root


def _device(path: str = '/dev/null') -> V4l2Device:
    driver = DriverDouble()
    driver.path = path
    return V4l2Device(driver)


NULL = os.stat('/dev/null').st_rdev


def test_a_serial_number_counts_wherever_the_camera_is_plugged_in(tmp_path: Path) -> None:
    first = identity_of(
        _device(), _sysfs(tmp_path / 'a', 'pci/usb1/1-2/1-2:1.0', NULL, serial='SN1')
    )
    second = identity_of(
        _device(), _sysfs(tmp_path / 'b', 'pci/usb1/1-3/1-3:1.0', NULL, serial='SN1')
    )
    other = identity_of(
        _device(), _sysfs(tmp_path / 'c', 'pci/usb1/1-2/1-2:1.0', NULL, serial='SN2')
    )
    assert first == second == 'platform:double / Double Camera / serial SN1 / node 0'
    assert other != first


def test_the_host_controllers_serial_number_is_not_the_cameras(tmp_path: Path) -> None:
    root = _sysfs(tmp_path, 'pci/usb1/1-2/1-2:1.0', NULL)
    (root / 'devices/pci/usb1/serial').write_text('0000:00:14.0\n')
    assert 'serial' not in identity_of(_device(), root)


def test_the_nodes_of_one_device_differ(tmp_path: Path) -> None:
    nodes = [
        identity_of(
            _device(),
            _sysfs(tmp_path / str(i), 'pci/usb1/1-2/1-2:1.0', NULL, serial='SN1', index=i),
        )
        for i in (0, 2)
    ]
    assert nodes[0] != nodes[1]


def test_a_camera_is_found_by_its_identity_alone() -> None:
    devices: dict[str, V4l2Device] = {}

    def open_device(path: str) -> V4l2Device:
        if path == '/dev/video0':
            raise CameraError('busy')
        driver = DriverDouble()
        devices[path] = V4l2Device(driver)
        devices[path].bus_info = f'usb-{path}'
        return devices[path]

    paths = [(f'/dev/video{i}', '') for i in range(4)]
    assert (
        find_device('usb-/dev/video2 / Double Camera', lambda: paths, open_device) == '/dev/video2'
    )
    assert find_device('usb-/dev/video9 / Double Camera', lambda: paths, open_device) is None
    assert devices and all(
        isinstance(d.file, DriverDouble) and d.file.closed for d in devices.values()
    )


def test_a_node_that_is_no_camera_is_refused_by_its_own_answer() -> None:
    with pytest.raises(
        CameraError,
        match=r"camera '/dev/no_such_node' can't be opened: No such file.*devices found: "
        r".*'device'",
    ):
        V4l2Device.open('/dev/no_such_node')
    with pytest.raises(CameraError, match=r"'/dev/null': VIDIOC_QUERYCAP failed"):
        V4l2Device.open('/dev/null')


def test_without_descriptors_that_is_said_and_not_that_there_is_no_camera() -> None:
    with (
        limited(resource.RLIMIT_NOFILE, next_free()),
        pytest.raises(CameraError, match='this process has no file descriptor left'),
    ):
        V4l2Device.open('/dev/video0')


def test_the_name_that_a_device_gives_itself_moves_no_cursor() -> None:
    driver = DriverDouble()
    driver.card = b'Nice \x1b[2J Camera'
    assert V4l2Device(driver).card == 'Nice \\x1b[2J Camera'  # type: ignore[arg-type]
