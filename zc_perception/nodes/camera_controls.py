"""A camera's own controls (brightness, exposure, ...) as parameters ``controls.NAME``, with the driver's ranges."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from rcl_interfaces.msg import IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.exceptions import ParameterAlreadyDeclaredException
from rclpy.node import Node
from rclpy.parameter import Parameter

from zc_perception.camera.camera import Camera
from zc_perception.camera.controls import ControlInfo, no_such_control
from zc_perception.errors import CameraError, ConfigError
from zc_perception.link.rclpy_compat import call_soon, parameter_overrides

PREFIX = 'controls.'
_AS_PARAMETERS = ('integer', 'integer64', 'boolean', 'menu', 'integer_menu', 'bitmask')


class CameraControls:
    """Declares a parameter for each control when a camera comes, sets what the user set, and again when it comes back."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._camera: Camera | None = None
        self._known: dict[str, ControlInfo] = {}
        self._wanted: dict[str, Any] = {
            name[len(PREFIX) :]: override.value for name, override in parameter_overrides(node).items() if name.startswith(PREFIX)
        }
        self._in_force: dict[str, Any] = {}
        node.add_on_set_parameters_callback(self._on_set)

    def attach(self, camera: Camera) -> None:
        """Set what is wanted, then declare all.

        :raises ConfigError: a control that the camera doesn't have, or a value that it doesn't take.
        :raises CameraError: it went away meanwhile.
        """
        controls = camera.controls()
        for name, value in self._wanted.items():
            if name not in controls:
                raise no_such_control(camera.device, name, controls)
            # Its use depends on others: exposure time does nothing under automatic exposure.
            camera.set_control(name, value)
        self._known = {name: info for name, info in camera.controls().items() if info.kind in _AS_PARAMETERS}
        for name, info in self._known.items():
            if info.value is not None:
                value = bool(info.value) if info.kind == 'boolean' else info.value
                self._in_force[name] = value
                with contextlib.suppress(ParameterAlreadyDeclaredException):
                    self._node.declare_parameter(PREFIX + name, value, _descriptor(info), ignore_override=True)
        self._camera = camera

    def detach(self) -> None:
        """The camera is gone; what is set meanwhile is set when it is back."""
        self._camera = None

    def _on_set(self, parameters: list[Parameter]) -> SetParametersResult:
        wanted = {p.name[len(PREFIX) :]: p.value for p in parameters if p.name.startswith(PREFIX)}
        for name, value in wanted.items():
            if self._in_force.get(name) == value and type(self._in_force.get(name)) is type(value):
                continue
            try:
                self._set(name, value)
            except (ConfigError, CameraError) as error:
                return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _set(self, name: str, value: Any) -> None:
        camera = self._camera
        if camera is None:
            raise CameraError(f"control '{name}' can't be set: the camera is not there; see /diagnostics")
        in_force = camera.set_control(name, value)
        self._wanted[name] = value
        info = self._known.get(name)
        self._in_force[name] = bool(in_force) if info is not None and info.kind == 'boolean' else in_force
        if self._in_force[name] != value and self._node.executor is not None:
            # The driver has rounded: the parameter is to show what is.
            call_soon(self._node.executor, lambda: self._show(name))

    def _show(self, name: str) -> None:
        self._node.set_parameters([Parameter(PREFIX + name, value=self._in_force[name])])

    def values(self) -> Mapping[str, Any]:
        """Values in force."""
        return dict(self._in_force)


def _descriptor(info: ControlInfo) -> ParameterDescriptor:
    text = ParameterDescriptor(
        description=f'{info.title or info.name} (default {info.default})' + (', inactive as others stand' if info.inactive else ''),
        read_only=info.read_only,
        additional_constraints=info.allowed(),
    )
    if info.kind in ('integer', 'integer64') and not info.menu:
        # The driver rounds to its steps; ROS would refuse what lies between.
        text.integer_range = [IntegerRange(from_value=info.minimum, to_value=info.maximum, step=0)]
    return text
