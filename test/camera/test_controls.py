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
Controls: what a camera takes, what it refuses, and its message.

All controls of a V4L2 driver are found by name.
"""

from __future__ import annotations

import ctypes
import errno

from camera.v4l2_double import Control, DriverDouble
from hypothesis import given
from hypothesis import strategies as st
import pytest

from zc_perception.camera.camera import checked_value, ControlInfo, NO_CONTROLS, no_such_control
from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2.device import call, DeviceFile, V4l2Controls, V4l2Device
from zc_perception.errors import CameraError, CameraLostError, ConfigError

INTEGER = ControlInfo('gain', 'integer', -5, 20, 5, 0, 10)
SWITCH = ControlInfo('flip', 'boolean', 0, 1)
MENU = ControlInfo('power_line', 'menu', 0, 3, menu={0: 'Disabled', 1: '50 Hz', 3: 'Auto'})
BITS = ControlInfo('bits', 'bitmask', 0, 0b1101)


@pytest.mark.parametrize(
    ('info', 'value', 'number'),
    [
        (INTEGER, -5, -5), (INTEGER, 20, 20), (INTEGER, 7, 7), (SWITCH, True, 1),
        (SWITCH, False, 0), (SWITCH, 1, 1), (MENU, 3, 3),
        (MENU, '50 hz', 1), (BITS, 0b1001, 9), (BITS, 0, 0),
        (ControlInfo('go', 'button'), 'whatever', 0),
    ],
)  # fmt: skip
def test_what_it_takes(info: ControlInfo, value: int | bool | str, number: int) -> None:
    assert checked_value('cam', info, value) == number


@pytest.mark.parametrize(
    ('info', 'value', 'words'),
    [
        (INTEGER, 21, r"cam: control 'gain' can't be 21; it takes -5 .. 20 in steps of 5"),
        (INTEGER, -6, r'-6; it takes -5 .. 20'),
        (INTEGER, True, r'True, it is no switch; it takes -5 .. 20'),
        (INTEGER, 1.5, r'1.5, which is not an integer'),
        (INTEGER, 'much', r"'much'; it takes"),
        (SWITCH, 2, r'2; it takes true or false'),
        (MENU, 2, r'2; it takes 0 \(Disabled\), 1 \(50 Hz\), 3 \(Auto\)'),
        (MENU, '60 Hz', r"did you mean '50 Hz'"),
        (BITS, 0b10, r'2; it takes bits of 0xd'),
        (BITS, -1, r'-1; it takes'),
        (
            ControlInfo('temperature', 'integer', 0, 100, value=40, read_only=True),
            1,
            r'read-only; it is 40',
        ),
        (ControlInfo('label', 'string'), 'x', r'v4l2-ctl'),
    ],
)
def test_what_it_refuses(info: ControlInfo, value: int | bool | str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        checked_value('cam', info, value)


@given(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-(1 << 64), 1 << 64),
)
def test_an_integer_is_taken_exactly_when_it_is_in_the_range(
    low: int, high: int, value: int
) -> None:
    info = ControlInfo('x', 'integer', min(low, high), max(low, high))
    if info.minimum <= value <= info.maximum:
        assert checked_value('cam', info, value) == value
    else:
        with pytest.raises(ConfigError, match=r'it takes'):
            checked_value('cam', info, value)


def test_an_unknown_name_gets_the_nearest_one() -> None:
    known = {'brightness': INTEGER, 'contrast': INTEGER}
    assert "did you mean 'brightness'?; it has brightness, contrast" in str(
        no_such_control('cam', 'brigthness', known)
    )
    assert 'it has none' in str(no_such_control('cam', 'x', NO_CONTROLS))


BASE = 0x00980900


def _driver() -> DriverDouble:
    driver = DriverDouble()
    driver.controls = {
        BASE: Control('Brightness', abi.CTRL_TYPE_INTEGER, 0, 255, 5, 100),
        BASE + 1: Control(
            'User Controls',
            abi.CTRL_TYPE_CTRL_CLASS,
            flags=abi.CTRL_FLAG_READ_ONLY | abi.CTRL_FLAG_WRITE_ONLY,
        ),
        BASE + 2: Control('Gone', abi.CTRL_TYPE_INTEGER, 0, 1, flags=abi.CTRL_FLAG_DISABLED),
        BASE + 3: Control(
            'Matrix', abi.CTRL_TYPE_INTEGER, 0, 1, dims=2, flags=abi.CTRL_FLAG_HAS_PAYLOAD
        ),
        BASE + 4: Control('Compound', 0x0100, flags=abi.CTRL_FLAG_HAS_PAYLOAD),
        BASE + 5: Control(
            'Power Line', abi.CTRL_TYPE_MENU, 0, 3, menu={0: b'Disabled', 1: b'50 Hz', 3: b'Auto'}
        ),
        BASE + 6: Control(
            'Link Rate', abi.CTRL_TYPE_INTEGER_MENU, 0, 1, menu={0: b'400000000000', 1: b'-3'}
        ),
        BASE + 7: Control(
            'Pixel Rate', abi.CTRL_TYPE_INTEGER64, -(1 << 62), 1 << 62, value=1 << 40
        ),
        BASE + 8: Control('Mask', abi.CTRL_TYPE_BITMASK, 0, -1, value=-1),
        BASE + 9: Control('Gain', abi.CTRL_TYPE_INTEGER, 0, 9, flags=abi.CTRL_FLAG_INACTIVE),
        BASE + 10: Control('Gain', abi.CTRL_TYPE_INTEGER, 0, 9),
        BASE + 11: Control('Reset', abi.CTRL_TYPE_BUTTON, flags=abi.CTRL_FLAG_WRITE_ONLY),
        BASE + 12: Control('Serial', abi.CTRL_TYPE_STRING, 0, 32, flags=abi.CTRL_FLAG_HAS_PAYLOAD),
    }
    return driver


@pytest.mark.parametrize(
    ('name', 'value', 'in_force'),
    [
        ('brightness', 103, 100), ('power_line', 'auto', 3), ('link_rate', '-3', 1),
        ('pixel_rate', -(1 << 62), -(1 << 62)),
        ('mask', 0x80000001, 0x80000001), ('gain', 9, 9), ('reset', True, None),
    ],
)  # fmt: skip
def test_setting_returns_what_is_in_force(
    name: str, value: int | str, in_force: int | None
) -> None:
    assert V4l2Controls(V4l2Device(_driver())).set(name, value) == in_force


def test_what_the_driver_refuses_is_said() -> None:
    driver = _driver()
    controls = V4l2Controls(V4l2Device(driver))
    driver.fail('S_EXT_CTRLS', errno.EBUSY)
    with pytest.raises(
        CameraError, match=r"'brightness' can't be changed while the camera streams"
    ):
        controls.set('brightness', 1)
    driver.fail('S_EXT_CTRLS', errno.EIO)
    with pytest.raises(
        CameraError,
        match=r"'brightness' could not be set to 1: .*Input/output error; it takes 0 .. 255",
    ):
        controls.set('brightness', 1)
    driver.fail('S_EXT_CTRLS', errno.EACCES)
    with pytest.raises(CameraError, match=r'another control has it'):
        controls.set('gain', 1)
    driver.fail('S_EXT_CTRLS', errno.ENODEV)
    with pytest.raises(CameraLostError, match='unplugged'):
        controls.set('brightness', 1)


def test_a_device_that_was_closed_is_lost() -> None:
    file = DeviceFile('/dev/null')
    file.close()
    with pytest.raises(CameraLostError, match=r"'/dev/null' was closed"):
        call(file, 'QUERYCAP', 0, ctypes.c_int(0))


def test_a_driver_without_controls_and_one_whose_enumeration_never_ends() -> None:
    assert V4l2Controls(V4l2Device(DriverDouble())).infos() == {}
    driver = _driver()
    original = driver._query_ext_ctrl

    def stuck(argument: abi.QueryExtCtrl) -> None:
        original(argument)
        if argument.id > BASE:
            argument.id, argument.type = BASE, abi.CTRL_TYPE_INTEGER

    driver._query_ext_ctrl = stuck  # type: ignore[method-assign]
    assert list(V4l2Controls(V4l2Device(driver)).infos()) == ['brightness']
