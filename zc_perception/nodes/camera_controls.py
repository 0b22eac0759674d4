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

"""Offers a camera's own controls (brightness, exposure …) as parameters ``controls.NAME``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
import threading
from typing import Any

from rcl_interfaces.msg import IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter

from zc_perception.camera.camera import Camera, checked_value, ControlInfo, no_such_control
from zc_perception.errors import CameraError, CameraLostError, ConfigError, ZcError
from zc_perception.link.rclpy_compat import call_soon, parameter_overrides
from zc_perception.observe.diagnostics import Part, Row, Status, WARN

PREFIX = 'controls.'
CONTROLS = Part(
    'controls',
    Row(lambda s: s.refused and s.missing, WARN, '{refused}', ('leave out controls that this '
        'camera does not have, or correct their names'),
        'controls that the camera does not have'),
    Row(lambda s: s.refused, WARN, '{refused}', ('set a value that the driver allows: ros2 '
                                                 'param describe shows the ranges'),
        'values that the driver refused'),
    well='{number} controls',
)  # fmt: skip
_AS_PARAMETERS = ('integer', 'integer64', 'boolean', 'menu', 'integer_menu', 'bitmask')


class _Telling(threading.local):
    """``on``: whether this thread sets a parameter to a value that the camera already has."""

    on = False


class CameraControls:
    """
    Declares a parameter for each control of a camera; the control gets the parameter's value.

    If the camera is opened again, its controls again get the values that the user has set.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._camera: Camera | None = None
        # Held while a control is set. detach() waits for this lock, and the camera is closed only
        # after detach().
        self._using = threading.Lock()
        self._telling = _Telling()
        self._attached_before = False
        self._known: dict[str, ControlInfo] = {}
        self._wanted: dict[str, Any] = {
            name.removeprefix(PREFIX): override.value
            for name, override in parameter_overrides(node).items()
            if name.startswith(PREFIX)
        }
        self._in_force: dict[str, Any] = {}
        self._refused: dict[str, str] = {}
        self._missing: set[str] = set()
        node.add_on_set_parameters_callback(self._on_set)

    def attach(self, camera: Camera) -> None:
        """
        Set the user's values in *camera*; then declare or update a parameter for each control.

        A warning is logged for a control that the camera lacks, and for a value that it refuses.

        :raises ConfigError: a wanted value isn't allowed. For a reopened camera a warning is
            logged instead.
        :raises CameraLostError: the camera was lost.
        """
        refused = _set_all(camera, self._wanted)
        there = camera.controls()
        if not self._attached_before:
            for name, error in refused.items():
                if isinstance(error, ConfigError) and name in there:
                    raise error
        self._attached_before = True
        self._missing = refused.keys() - there.keys()
        self._refused = {name: str(error) for name, error in refused.items()}
        for sentence in self._refused.values():
            self._node.get_logger().warning(sentence)
        self._known = {name: info for name, info in there.items() if info.kind in _AS_PARAMETERS}
        for name, info in self._known.items():
            if info.value is not None:
                self._in_force[name] = _as_value(info, info.value)
                self._declare(name, info)
        with self._using:
            self._camera = camera

    def _declare(self, name: str, info: ControlInfo) -> None:
        if self._node.has_parameter(PREFIX + name):
            self._show(name)
            return
        with self._tell():
            self._node.declare_parameter(
                PREFIX + name, self._in_force[name], _descriptor(info), ignore_override=True
            )

    def detach(self) -> None:
        """Refuse changes of controls from now on: the camera is being closed."""
        with self._using:
            self._camera = None

    def _on_set(self, parameters: list[Parameter]) -> SetParametersResult:
        wanted = {
            one.name.removeprefix(PREFIX): one.value
            for one in parameters
            if one.name.startswith(PREFIX)
        }
        if wanted and not self._telling.on:
            try:
                with self._using:
                    self._set(wanted)
            except (ConfigError, CameraError) as error:
                return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _set(self, wanted: Mapping[str, Any]) -> None:
        """
        Set all of the *wanted* values, or none.

        A value that this object believes to be in force is set again: another program may have
        changed the control.
        """
        camera = self._camera
        if camera is None:
            raise CameraError(
                f"control '{next(iter(wanted))}' can't be set: the camera is not there; see "
                '/diagnostics'
            )
        before = camera.controls()
        for name, value in wanted.items():
            if name not in before:
                raise no_such_control(camera.device, name, before)
            checked_value(camera.device, before[name], value)
        refused = _set_all(camera, wanted)
        if refused:
            done = {
                name: before[name].value
                for name in wanted
                if name not in refused and before[name].value is not None
            }
            _set_all(camera, done)
            raise next(iter(refused.values()))
        now = camera.controls()
        for name, value in wanted.items():
            self._wanted[name] = value
            self._refused.pop(name, None)
            found = now[name].value
            self._in_force[name] = value if found is None else _as_value(now[name], found)
            if self._in_force[name] != value and self._node.executor is not None:
                # The driver may have rounded the value; the parameter must show the real value.
                call_soon(self._node.executor, lambda name=name: self._show(name))

    def _show(self, name: str) -> None:
        """Set a control's parameter to the camera's value; a read-only parameter isn't changed."""
        if self._node.get_parameter(PREFIX + name).value == self._in_force[name]:
            return
        with self._tell():
            self._node.set_parameters([Parameter(PREFIX + name, value=self._in_force[name])])

    @contextlib.contextmanager
    def _tell(self) -> Iterator[None]:
        self._telling.on = True
        try:
            yield
        finally:
            self._telling.on = False

    def values(self) -> Mapping[str, Any]:
        """Return a dict from each control's name to the camera's value."""
        return dict(self._in_force)

    def status(self) -> Status:
        """Report the camera's values, and the wanted values that the opened camera refused."""
        values: dict[str, object] = dict(sorted(self._in_force.copy().items()))
        refused = self._refused.copy()
        return CONTROLS.status(
            values,
            refused='; '.join(refused.values()),
            missing=refused.keys() <= self._missing,
            number=len(values),
        )


def _set_all(camera: Camera, wanted: Mapping[str, Any]) -> dict[str, ZcError]:
    """
    Set values in an order that the driver accepts; return the errors of refused values.

    A value may depend on another value: an exposure time can't be set while exposure is automatic.
    So refused values are tried again, until the camera refuses all values that are left.
    """
    left = dict(wanted)
    refused: dict[str, ZcError] = {}
    while left:
        known = camera.controls()
        refused = {}
        # Inactive controls come last, because setting another control may activate them.
        for name in sorted(left, key=lambda name: name in known and known[name].inactive):
            try:
                if name not in known:
                    raise no_such_control(camera.device, name, known)
                camera.set_control(name, left[name])
            except CameraLostError:
                raise
            except (CameraError, ConfigError) as error:
                refused[name] = error
        if len(refused) == len(left):
            break
        left = {name: left[name] for name in refused}
    return refused


def _as_value(info: ControlInfo, number: int) -> int | bool:
    return bool(number) if info.kind == 'boolean' else number


def _descriptor(info: ControlInfo) -> ParameterDescriptor:
    text = ParameterDescriptor(
        description=f'{info.title or info.name} (default {info.default})'
        + (', inactive with the present values of other controls' if info.inactive else ''),
        read_only=info.read_only,
        additional_constraints=info.allowed(),
    )
    if info.kind in ('integer', 'integer64') and not info.menu:
        # Declare no step: with a step, ROS would refuse a value between two steps. Without a step,
        # the driver gets this value and rounds it.
        text.integer_range = [IntegerRange(from_value=info.minimum, to_value=info.maximum, step=0)]
    return text
