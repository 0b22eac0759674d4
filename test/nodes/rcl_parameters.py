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

"""How rcl itself reads a parameter file: the reference for this package's reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math
from pathlib import Path
from typing import Any

import rclpy
from rclpy.node import Node

from zc_perception.link.rclpy_compat import parameter_overrides


def rcl_reads(
    path: Path, domain: int, nodes: Sequence[str] = ('/capture',)
) -> dict[str, dict[str, Any]] | None:
    """Return the parameters of these nodes, or ``None`` if rcl rejects the file."""
    context = rclpy.Context()
    try:
        context.init(
            ['--ros-args', '--params-file', str(path)], initialize_logging=False, domain_id=domain
        )
    except Exception as error:  # rclpy raises several private classes here
        assert "Couldn't parse params file" in str(error), error
        return None
    found = {}
    try:
        for full_name in nodes:
            namespace, _, name = full_name.rpartition('/')
            node = Node(
                name,
                context=context,
                namespace=namespace or '/',
                start_parameter_services=False,
                enable_rosout=False,
            )
            found[full_name] = {
                key: parameter.value for key, parameter in parameter_overrides(node).items()
            }
            node.destroy_node()
        return found
    finally:
        context.try_shutdown()


def comparable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with types, so that NaNs are equal, and -0.0 differs from 0.0."""
    return {name: _typed(value) for name, value in values.items()}


def _typed(value: Any) -> Any:
    if isinstance(value, list):
        return [_typed(item) for item in value] or 'nothing'
    if isinstance(value, float):
        return 'float', 'nan' if math.isnan(value) else value.hex()
    return 'nothing' if value is None else (type(value).__name__, value)
