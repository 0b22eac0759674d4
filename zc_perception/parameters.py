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

"""Declare parameters of nodes and kinds, and check their values, without ROS."""

from __future__ import annotations

import array
from collections.abc import Callable, Mapping, Sequence
import contextlib
from dataclasses import dataclass, field
import math
from typing import Any

from zc_perception.errors import ConfigError, nearest, shown

TYPE_NAMES = {
    bool: 'a boolean (true or false)',
    int: 'an integer',
    float: 'a number',
    str: 'a string',
    list: 'a list of strings',
}
_MOST_DIGITS = 19


def whole_number(text: str, high: int) -> int | None:
    """
    Convert *text* to an integer; ``None``: it has other characters than 0 to 9, or exceeds *high*.

    ``str.isdigit`` alone would also accept ``²`` and thousands of digits, for which ``int``
    raises.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        return None
    number = int(text)
    return number if number <= high else None


@dataclass(frozen=True)
class ParameterSpec:
    """
    The declaration of one parameter.

    The type of *default* is the parameter's type. A list is a list of strings; its empty strings
    are ignored.

    :param low: the lowest allowed number; used only together with *high*, the highest.
    :param besides: one number outside the range; it is allowed, too, and has a special meaning.
    :param even: whether odd numbers are refused.
    :param choices: allowed strings. If ``true`` and ``false`` are among them, booleans are allowed
        too, because YAML reads these words as booleans unless they are quoted.
    :param other_choices: returns further allowed strings; called when a value is not in *choices*,
        and when a text lists the allowed values.
    :param renamed: former choices with their present names, for messages.
    :param whole_numbers: whether an integer is accepted in place of a string, also in a list,
        because YAML reads a number without quotes as an integer.
    :param dynamic: whether the parameter may change while the node runs. Other parameters may
        change only while the node is unconfigured, and never in a node without a lifecycle.
    :param fixed: whether the value can be set only when the node starts.
    :param check: called with a value of the right type and range; raises ConfigError if the value
        can't be used.
    :raises ConfigError: *default* has none of the types in :data:`TYPE_NAMES`, or is outside the
        declared range or choices.
    """

    name: str
    default: bool | int | float | str | list[str]
    description: str
    unit: str = ''
    low: float | None = None
    high: float | None = None
    besides: float | None = None
    even: bool = False
    choices: tuple[str, ...] = ()
    other_choices: Callable[[], tuple[str, ...]] = tuple
    renamed: Mapping[str, str] = field(default_factory=dict, hash=False)
    whole_numbers: bool = False
    dynamic: bool = False
    fixed: bool = False
    check: Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        """Refuse a wrong declaration early, while the module that contains it is imported."""
        if type(self.default) not in TYPE_NAMES:
            raise ConfigError(
                f"the default of parameter '{self.name}' is {shown(self.default)}; it must be "
                f'{", ".join(TYPE_NAMES.values())}'
            )
        try:
            self._converted(self.default)
        except ConfigError as error:
            raise ConfigError(f'the default of {error}') from None

    def allowed(self) -> str:
        """Describe the allowed values: type or choices, range, unit."""
        text = TYPE_NAMES[type(self.default)]
        if self.choices:
            text = 'one of ' + ', '.join((*self.choices, *self.other_choices()))
        elif self.low is not None and self.high is not None:
            text += f' from {self.low:g} to {self.high:g}'
        text += f' ({self.unit})' if self.unit else ''
        text += ', even' if self.even else ''
        return text + (f', or {self.besides:g}' if self.besides is not None else '')

    def said(self) -> str:
        """Describe the allowed values and the default, for an error about unequal declarations."""
        return f'{self.allowed()}, by default {self.default!r}'

    def convert(self, value: Any) -> Any:
        """Convert *value* to the parameter's type; raise ConfigError if it isn't allowed."""
        value = self._converted(value)
        if self.check is not None:
            self.check(value)
        return value

    def _converted(self, value: Any) -> Any:
        """Do what :meth:`convert` does, without :attr:`check`."""
        kind: Any = type(self.default)
        if isinstance(value, array.array):  # rclpy gives a list of numbers as an array
            value = value.tolist()
        if kind is float and type(value) is int:
            with contextlib.suppress(OverflowError):  # a too large number is refused below
                value = float(value)
        if (
            kind is list
            and (value is None or isinstance(value, Sequence))
            and not isinstance(value, str)
        ):
            value = [
                str(text) if self.whole_numbers and type(text) is int else text
                for text in value or ()
                if text != ''
            ]
        if type(value) is bool and str(value).lower() in self.choices:
            value = str(value).lower()
        if self.whole_numbers and kind is str and type(value) is int:
            value = str(value)
        good = type(value) is kind and (
            kind is not list or all(isinstance(text, str) for text in value)
        )
        if good and self.choices:
            good = value in self.choices or value in self.other_choices()
        if good and self.low is not None and self.high is not None:
            good = (
                self.low <= value <= self.high and math.isfinite(value)
            ) or value == self.besides
        if good and self.even:
            good = value % 2 == 0
        if not good:
            choices = (*self.choices, *self.other_choices())
            hint = nearest(value, choices) if isinstance(value, str) else ''
            if isinstance(value, str) and value in self.renamed:
                hint = f"; '{value}' is called '{self.renamed[value]}' now"
            raise ConfigError(
                f"parameter '{self.name}' is {shown(value)}; it must be {self.allowed()}{hint}"
            )
        return value


EVERY_NODE_SPECS = (
    ParameterSpec(
        'use_sim_time', False, 'Take the time from /clock. Every ROS node has this parameter.'
    ),
    ParameterSpec(
        'start_type_description_service',
        True,
        'Offer ~/get_type_description. Every ROS node has this parameter.',
    ),
)
"""The parameters that rclpy itself declares for every node."""
EVERY_NODE = tuple(spec.name for spec in EVERY_NODE_SPECS)
