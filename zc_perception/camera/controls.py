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

"""A camera's controls: name, range and value of each, and the check of a wanted value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from zc_perception.errors import ConfigError, nearest

ControlKind = Literal['integer', 'boolean', 'menu', 'integer_menu', 'bitmask', 'button', 'string']
"""
``menu`` has texts to choose from, ``integer_menu`` numbers; a ``button`` has no value; a
``string`` can't be set here.
"""

ControlValue = int | bool | str


@dataclass(frozen=True)
class ControlInfo:
    """
    One control as it is now.

    :param name: the driver's name in lower case with underscores, unique on its camera.
    :param minimum: smallest value; of a bitmask 0.
    :param maximum: largest value; of a bitmask all bits that may be set.
    :param step: between values; drivers round.
    :param value: the value in force; ``None`` for a button, a write-only control, and one that the
        driver can't read now.
    :param menu: what each value stands for, of a menu.
    :param read_only: the driver never lets it be set.
    :param inactive: it has no effect while another one stands as it does: exposure time under
        automatic exposure.
    :param write_only: it can be set but not read.
    :param title: the driver's own name.
    """

    name: str
    kind: ControlKind
    minimum: int = 0
    maximum: int = 0
    step: int = 1
    default: int = 0
    value: int | None = None
    menu: Mapping[int, str] = field(default_factory=dict)
    read_only: bool = False
    inactive: bool = False
    write_only: bool = False
    title: str = ''

    def allowed(self) -> str:
        """
        Return what it takes, for messages.

        For example ``0 .. 255`` or ``0 (Disabled), 1 (50 Hz)``.
        """
        if self.kind == 'boolean':
            return 'true or false'
        if self.menu:
            return ', '.join(f'{value} ({text})' for value, text in sorted(self.menu.items()))
        if self.kind == 'bitmask':
            return f'bits of {self.maximum:#x}'
        return f'{self.minimum} .. {self.maximum}' + (
            f' in steps of {self.step}' if self.step > 1 else ''
        )


NO_CONTROLS: Mapping[str, ControlInfo] = MappingProxyType({})


def no_such_control(camera: str, name: str, known: Mapping[str, ControlInfo]) -> ConfigError:
    """Return the error for a control that *camera* doesn't have."""
    names = ', '.join(known) or 'none'
    return ConfigError(f"{camera} has no control '{name}'{nearest(name, known)}; it has {names}")


def checked_value(camera: str, info: ControlInfo, value: ControlValue) -> int:
    """
    Return *value* as the number that the driver takes.

    The driver rounds to its own steps.

    :param value: an integer; ``True`` and ``False`` for a boolean; for a menu also one of its
        texts; anything for a button.
    :raises ConfigError: read-only, the wrong type, or outside the range. The message names both.
    """
    what = f"{camera}: control '{info.name}'"
    if info.kind == 'string':
        raise ConfigError(f"{what} holds a text, which can't be set here; use v4l2-ctl --set-ctrl")
    if info.read_only:
        raise ConfigError(f"{what} is read-only; it is {info.value} and can't be set to {value!r}")
    if info.kind == 'button':
        return 0
    number = _number(what, info, value)
    if info.kind == 'bitmask':
        good = number >= 0 and not number & ~info.maximum
    elif info.menu:
        good = number in info.menu
    else:
        good = info.minimum <= number <= info.maximum
    if not good:
        raise ConfigError(f"{what} can't be {value!r}; it takes {info.allowed()}")
    return number


def _number(what: str, info: ControlInfo, value: ControlValue) -> int:
    if isinstance(value, str):
        found = [
            number
            for number, text in info.menu.items()
            if text.casefold() == value.strip().casefold()
        ]
        if not found:
            hint = nearest(value, info.menu.values())
            raise ConfigError(f"{what} can't be {value!r}{hint}; it takes {info.allowed()}")
        return found[0]
    if isinstance(value, bool) and info.kind != 'boolean':
        raise ConfigError(f"{what} can't be {value!r}, it is no switch; it takes {info.allowed()}")
    if not isinstance(value, int):
        raise ConfigError(
            f"{what} can't be {value!r}, which is not an integer; it takes {info.allowed()}"
        )
    return int(value)
