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
Declare a node's parameters, set them at the start, and check later changes.

Start values and later changes are checked by the same declarations
(:mod:`zc_perception.parameters`). A message about a refused value names this value and the allowed
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
from typing import Any

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.exceptions import NameValidationException
from rclpy.node import Node
from rclpy.parameter import Parameter

from zc_perception.errors import ConfigError, nearest, one_line
from zc_perception.link.rclpy_compat import parameter_overrides
from zc_perception.nodes.params.qos_overrides import PREFIX as _QOS
from zc_perception.nodes.params.verdict import belongs_elsewhere
from zc_perception.parameters import EVERY_NODE, EVERY_NODE_SPECS, ParameterSpec

_ROS_TYPES = {
    bool: Parameter.Type.BOOL,
    int: Parameter.Type.INTEGER,
    float: Parameter.Type.DOUBLE,
    str: Parameter.Type.STRING,
    list: Parameter.Type.STRING_ARRAY,
}
# The value that nodes declare for an empty list of strings: ROS would take [] for a list of bytes.
_NO_STRINGS = ['']


def _declared(name: str, value: Any) -> Parameter:
    return Parameter(name, _ROS_TYPES[type(value)], _NO_STRINGS if value == [] else value)


def _descriptor(spec: ParameterSpec, *, changeable: bool) -> ParameterDescriptor:
    """
    Return description, range and flags of a parameter, for ``ros2 param describe``.

    :param changeable: whether the node has a lifecycle, so that static parameters (those without
        :attr:`~zc_perception.parameters.ParameterSpec.dynamic`) can be set while it is
        unconfigured.
    """
    when = (
        ''
        if spec.dynamic or spec.fixed or not changeable
        else ' Set it while the node is unconfigured.'
    )
    text = ParameterDescriptor(
        description=spec.description + (f' [{spec.unit}]' if spec.unit else '') + when,
        read_only=spec.fixed or not (spec.dynamic or changeable),
        additional_constraints='one of: ' + ', '.join((*spec.choices, *spec.other_choices()))
        if spec.choices
        else '',
    )
    if spec.low is not None and spec.high is not None:
        low, high = spec.low, spec.high
        # A descriptor has one range, and ROS refuses values outside the range. So if one number
        # outside is allowed (`besides`), extend the range to that number.
        if spec.besides is not None:
            text.additional_constraints = spec.allowed()
            low, high = min(low, spec.besides), max(high, spec.besides)
        if type(spec.default) is int:
            step = 2 if spec.even else 0
            text.integer_range = [IntegerRange(from_value=int(low), to_value=int(high), step=step)]
        else:
            text.floating_point_range = [
                FloatingPointRange(from_value=float(low), to_value=float(high), step=0.0)
            ]
    return text


def begin_node(node: Node, name: str, **node_options: Any) -> None:
    """Call rclpy's constructor of *node*; ConfigError: the name or a parameter is invalid."""
    try:
        Node.__init__(node, name, **node_options)
    except NameValidationException as error:
        # Drop the message's last line, which only marks the wrong character.
        text = ' '.join(' '.join(str(error).splitlines()[:-1]).split())
        raise ConfigError(
            f"node '{name}': {text}; choose another name or a shorter namespace: --ros-args -r "
            '__ns:=/NAME'
        ) from None
    except Exception as failure:
        if 'invalid node namespace' in str(failure):
            raise ConfigError(
                f"node '{name}': the namespace can't be used; write a shorter one, or one without "
                "a '/' at its end: --ros-args -r __ns:=/NAME"
            ) from None
        given = parameter_overrides(node)
        for spec in (spec for spec in EVERY_NODE_SPECS if spec.name in given):
            try:
                spec.convert(given[spec.name].value)
            except ConfigError as error:
                raise ConfigError(f"node '{name}': {error}") from None
        raise


class NodeParameters(Mapping[str, Any]):
    """
    The values of a node's declared parameters, by name.

    :param on_change: called with name and new value after a change at run time; if it raises, all
        changes that were requested together with this change are undone.
    :param prefixes: prefixes of parameters that the node declares later.
    :param check: called with name and new value before a change at run time; raises ConfigError
        to refuse the change.
    :param changeable: returns why static parameters (those that aren't ``dynamic``) can't be set
        now; empty: they can be set. Without this function they can't be set after the start.
    :raises ConfigError: a start value isn't allowed; the message has a sentence for each such
        value, and for each key that is probably mistyped.
    """

    def __init__(
        self,
        node: Node,
        specs: Iterable[ParameterSpec],
        on_change: Callable[[str, Any], None] | None = None,
        prefixes: Sequence[str] = (),
        *,
        check: Callable[[str, Any], None] = lambda name, value: None,
        changeable: Callable[[], str] | None = None,
    ) -> None:
        self._foreign_prefixes = tuple(prefixes)
        self._specs = {spec.name: spec for spec in specs}
        self._values: dict[str, Any] = {}
        self._on_change = on_change
        self._check = check
        self._changeable = changeable
        self._overrides = parameter_overrides(node)
        self._node = node
        self._node_name = node.get_name()
        self.endpoints_declared = False
        """
        Whether all publishers and subscriptions of the node exist; the node sets it.

        If true, :meth:`unclaimed` includes each QoS key that no publisher or subscription has
        declared.
        """
        wrong = []
        for spec in self._specs.values():
            override = self._overrides.get(spec.name)
            try:
                value = spec.default if override is None else spec.convert(override.value)
            except ConfigError as error:
                wrong.append(str(error))
                continue
            descriptor = _descriptor(spec, changeable=changeable is not None)
            node.declare_parameter(
                spec.name, _declared(spec.name, value).value, descriptor, ignore_override=True
            )
            self._values[spec.name] = value
        if wrong:
            # Report also each unknown parameter whose name is similar to a known name. The other
            # unknown parameters may be meant for another package's node.
            for name in self.unclaimed():
                if (hint := nearest(name, self._specs)) and not self._belongs_elsewhere(name):
                    wrong.append(f"parameter '{name}' is unknown{hint}")
            raise ConfigError(f"node '{self._node_name}': {'; '.join(wrong)}")
        node.add_on_set_parameters_callback(self._on_set)

    def judged(self, parameters: Sequence[Parameter]) -> tuple[list[Parameter], list[str]]:
        """
        Convert the values of a request; return its parameters with these values, and the errors.

        The request must be carried out with the converted values, because ROS refuses an integer
        for a parameter of type double.
        """
        accepted, reasons = self._judge(parameters)
        own = dict(accepted)
        unknown = [
            self.unknown(parameter.name, self._node.get_parameters_by_prefix(''))
            for parameter in parameters
            if not self._node.has_parameter(parameter.name)
        ]
        converted = [
            _declared(parameter.name, own[parameter.name]) if parameter.name in own else parameter
            for parameter in parameters
        ]
        return converted, [*reasons, *unknown]

    def _judge(self, parameters: Sequence[Parameter]) -> tuple[list[tuple[str, Any]], list[str]]:
        """Return names and converted values of the accepted parameters, and the errors."""
        accepted, reasons = [], []
        for parameter in parameters:
            spec = self._specs.get(parameter.name)
            if spec is None:
                continue
            try:
                accepted.append((spec.name, self._new_value(spec, parameter)))
            except ConfigError as error:
                reasons.append(str(error))
            # rclpy calls this method in a callback, and an exception that leaves a callback would
            # end the process's executor.
            except Exception as error:
                reasons.append(
                    f"parameter '{spec.name}' can't be checked: {one_line(error)}; please "
                    'report this line'
                )
        return accepted, reasons

    def _new_value(self, spec: ParameterSpec, parameter: Parameter) -> Any:
        name = f"parameter '{spec.name}'"
        if parameter.type_ is Parameter.Type.NOT_SET:
            raise ConfigError(
                f"{name} can't be removed; set it to its default, {spec.default!r}, instead"
            )
        value = spec.convert(parameter.value)
        if not spec.dynamic and value != self._values[spec.name]:
            if spec.fixed or self._changeable is None:
                raise ConfigError(f'{name} is read-only: restart the node with the new value')
            if reason := self._changeable():
                raise ConfigError(f"{name} can't change now, {reason}")
        self._check(spec.name, value)
        return value

    def _on_set(self, parameters: list[Parameter]) -> SetParametersResult:
        accepted, reasons = self._judge(parameters)
        if reasons:
            return SetParametersResult(successful=False, reason='; '.join(reasons))
        changed: list[tuple[str, Any]] = []
        for name, value in accepted:
            before, self._values[name] = self._values[name], value
            if self._on_change is None or value == before:
                continue
            changed.append((name, before))
            try:
                self._on_change(name, value)
            except (Exception, SystemExit) as error:  # a camera or accelerator may raise anything
                for changed_name, was in reversed(changed):
                    self._values[changed_name] = was
                    # The first error is reported below.
                    with contextlib.suppress(Exception, SystemExit):
                        self._on_change(changed_name, was)
                text = (
                    f"parameter '{name}' can't be put in force: {one_line(error)}; nothing "
                    'was changed'
                )
                return SetParametersResult(successful=False, reason=text)
        return SetParametersResult(successful=True)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def given(self) -> list[str]:
        """Return the names of the declared parameters that got a value at the start."""
        return [name for name in self._overrides if name in self._specs]

    def unclaimed(self) -> list[str]:
        """Return the names of parameters that were set at the start but that this node lacks."""
        foreign, judged = self._foreign_prefixes, self.qos_overrides()
        return [
            name
            for name in self._overrides
            if name not in self._specs
            and name not in EVERY_NODE
            and not name.startswith(foreign)
            and not (name.startswith(_QOS) and (name in judged or not self.endpoints_declared))
        ]

    def qos_overrides(self) -> list[str]:
        """Return the QoS parameters that this node's publishers and subscriptions declared."""
        return [
            parameter.name
            for parameter in self._node.get_parameters_by_prefix(_QOS.rstrip('.')).values()
        ]

    def _belongs_elsewhere(self, name: str) -> str:
        return '' if name.startswith(self._foreign_prefixes) else belongs_elsewhere(name)

    def unknown(self, name: str, others: Iterable[str] = ()) -> str:
        """
        Return a sentence about an unknown parameter, with a hint.

        The hint is the node that has the parameter, or the most similar known parameter, or a list
        of the known parameters.

        :param others: further known names, besides this node's declared and QoS parameters.
        """
        others = [*others, *self.qos_overrides()]
        # Prefer a similar parameter of this node to a more similar one in *others*.
        hint = self._belongs_elsewhere(name) or nearest(name, self._specs) or nearest(name, others)
        if hint:
            return f"parameter '{name}' is unknown{hint}"
        prefix = next(
            (prefix for prefix in (_QOS, *self._foreign_prefixes) if name.startswith(prefix)), ''
        )
        known = (
            sorted(other for other in others if other.startswith(prefix))
            if prefix
            else sorted(self._specs)
        )
        rest = (
            f'known are {", ".join(known)}'
            if known
            else f"no parameter begins with '{prefix}' now; /diagnostics may say why"
        )
        return f"parameter '{name}' is unknown; {rest}"
