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
All controls of a V4L2 device by name, with the driver's ranges.

Source: the kernel's *User Controls*, *Extended Controls API* and *VIDIOC_QUERY_EXT_CTRL*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import ctypes
import errno
import re

from zc_perception.camera.controls import (
    checked_value,
    ControlInfo,
    ControlKind,
    ControlValue,
    no_such_control,
)
from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2.device import V4l2Device, V4l2Error
from zc_perception.errors import CameraBusyError, CameraError, CameraLostError, printable

_KINDS: dict[int, ControlKind] = {
    abi.CTRL_TYPE_INTEGER: 'integer',
    abi.CTRL_TYPE_BOOLEAN: 'boolean',
    abi.CTRL_TYPE_MENU: 'menu',
    abi.CTRL_TYPE_BUTTON: 'button',
    abi.CTRL_TYPE_INTEGER64: 'integer',
    abi.CTRL_TYPE_STRING: 'string',
    abi.CTRL_TYPE_BITMASK: 'bitmask',
    abi.CTRL_TYPE_INTEGER_MENU: 'integer_menu',
}
_MOST_CONTROLS = 1024
# No menu has so many items; a broken one would take minutes.
_MOST_ITEMS = 256


def control_name(title: str) -> str:
    """
    Return a driver's title as a name.

    For example ``White Balance, Auto & Preset`` is ``white_balance_auto_preset``.
    """
    return re.sub(r'[^0-9a-z]+', '_', title.lower()).strip('_')


class V4l2Controls:
    """The controls of an opened device. Any thread may use it: the kernel serialises."""

    def __init__(self, device: V4l2Device) -> None:
        self._device = device
        self._found: dict[str, ctypes.Structure] = {}
        self._menus: dict[int, Mapping[int, str]] = {}
        for query in self._enumerate():
            name = control_name(query.name.decode(errors='replace')) or f'control_{query.id:08x}'
            if name in self._found:  # two of a title are told apart by their numbers
                name = f'{name}_{query.id:08x}'
            self._found[name] = query
            if _KINDS[query.type] in ('menu', 'integer_menu'):
                self._menus[query.id] = self._menu(query)

    def _enumerate(self) -> Iterator[ctypes.Structure]:
        """Yield all controls that a single number can set: no classes, arrays or compounds."""
        last = 0
        for _ in range(_MOST_CONTROLS):
            query = abi.QueryExtCtrl(id=last | abi.CTRL_FLAG_NEXT_CTRL)
            if not self._query(query) or query.id <= last:
                return
            last = query.id
            if (
                query.type in _KINDS
                and not query.flags & abi.CTRL_FLAG_DISABLED
                and not query.nr_of_dims
            ):
                yield query

    def _query(self, query: ctypes.Structure) -> bool:
        try:
            self._device.call('QUERY_EXT_CTRL', abi.VIDIOC_QUERY_EXT_CTRL, query)
        except V4l2Error:
            return False
        return True

    def _menu(self, query: ctypes.Structure) -> Mapping[int, str]:
        items: dict[int, str] = {}
        for index in range(
            max(0, query.minimum), min(query.maximum, query.minimum + _MOST_ITEMS - 1) + 1
        ):
            item = abi.QueryMenu(id=query.id, index=index)
            try:
                self._device.call('QUERYMENU', abi.VIDIOC_QUERYMENU, item)
            except V4l2Error:
                continue  # menus have holes
            text = printable(bytes(item.name).split(b'\0')[0].decode(errors='replace'))
            items[index] = text if query.type == abi.CTRL_TYPE_MENU else str(item.value)
        return items

    def minimum_buffers(self) -> int:
        """Return how many buffers the driver needs queued; 0 where it says nothing."""
        query = abi.QueryExtCtrl(id=abi.CID_MIN_BUFFERS_FOR_CAPTURE)
        return max(0, self._value(query) or 0) if self._query(query) else 0

    def infos(self) -> dict[str, ControlInfo]:
        """Return every control as it is now; the driver is asked for each."""
        return {name: self._info(name, found.id) for name, found in self._found.items()}

    def _info(self, name: str, number: int) -> ControlInfo:
        query = abi.QueryExtCtrl(id=number)
        self._device.call('QUERY_EXT_CTRL', abi.VIDIOC_QUERY_EXT_CTRL, query)
        flags = int(query.flags)
        return ControlInfo(
            name,
            _KINDS[query.type],
            int(query.minimum),
            # Of a bitmask this is a 32-bit mask in a signed field.
            int(query.maximum) & 0xFFFFFFFF
            if query.type == abi.CTRL_TYPE_BITMASK
            else int(query.maximum),
            int(query.step),
            int(query.default_value),
            self._value(query),
            self._menus.get(number, {}),
            read_only=bool(flags & abi.CTRL_FLAG_READ_ONLY),
            inactive=bool(flags & abi.CTRL_FLAG_INACTIVE),
            write_only=bool(flags & abi.CTRL_FLAG_WRITE_ONLY),
            title=printable(query.name.decode(errors='replace')),
        )

    def _value(self, query: ctypes.Structure) -> int | None:
        if query.flags & (abi.CTRL_FLAG_WRITE_ONLY | abi.CTRL_FLAG_HAS_PAYLOAD) or query.type in (
            abi.CTRL_TYPE_BUTTON,
            abi.CTRL_TYPE_STRING,
        ):
            return None
        try:
            return self._transfer('G_EXT_CTRLS', abi.VIDIOC_G_EXT_CTRLS, query, 0)
        except V4l2Error:
            return None

    def _transfer(self, name: str, request: int, query: ctypes.Structure, value: int) -> int:
        control = abi.ExtControl(id=query.id)
        wide = query.type == abi.CTRL_TYPE_INTEGER64
        if wide:
            control.value64 = value
        else:
            control.value = value if value < 1 << 31 else value - (1 << 32)
        controls = abi.ExtControls(
            which=abi.CTRL_WHICH_CUR_VAL, count=1, controls=ctypes.pointer(control)
        )
        self._device.call(name, request, controls)
        found = int(control.value64) if wide else int(control.value)
        return found & 0xFFFFFFFF if query.type == abi.CTRL_TYPE_BITMASK else found

    def set(self, name: str, value: ControlValue) -> int | None:  # noqa: A003
        """
        Set a control, and return the value in force afterwards.

        The driver may have rounded it. ``None`` where there is none to read.

        :raises ConfigError: no such control, or the value isn't in its range. The message names
            both.
        :raises CameraError: the driver refuses it now.
        """
        camera = f"'{self._device.path}' ({self._device.card})"
        found = self._found.get(name)
        if found is None:
            raise no_such_control(camera, name, self.infos())
        info = self._info(name, found.id)
        number = checked_value(camera, info, value)
        try:
            self._transfer('S_EXT_CTRLS', abi.VIDIOC_S_EXT_CTRLS, found, number)
        except CameraLostError:
            raise
        except CameraBusyError as error:
            raise CameraError(
                f"{camera}: control '{name}' can't be changed while the camera streams; set it "
                'before'
            ) from error
        except V4l2Error as error:
            why = (
                'another control has it'
                if info.inactive or error.number == errno.EACCES
                else str(error)
            )
            raise CameraError(
                f"{camera}: control '{name}' could not be set to {value!r}: {why}; it takes "
                f'{info.allowed()}'
            ) from error
        # Nothing to read, and what a button does may well be a reset.
        return (
            None if info.kind == 'button' or info.write_only else self._info(name, found.id).value
        )
