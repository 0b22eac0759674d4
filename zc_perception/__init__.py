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
Zero-copy camera-to-NPU perception for ROS 2.

A name in ``__all__`` is imported from its module when a program first uses the name, so that
``import zc_perception`` loads neither ROS nor NumPy.
"""

from __future__ import annotations

from importlib import import_module

# This constant isn't imported from typing, because importing typing would take half of the time
# that a program needs from its start until it can handle signals. Type checkers treat any variable
# of this name like typing.TYPE_CHECKING.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # noqa: I300

    from zc_perception.frame import Frame
    from zc_perception.link.endpoints.frame_publisher import FramePublisher
    from zc_perception.link.endpoints.frame_subscription import (
        create_camera_subscription,
        create_frame_subscription,
        FrameReader,
        FrameSubscription,
    )
    from zc_perception.link.endpoints.publisher import AdaptedPublisher
    from zc_perception.link.endpoints.subscription import AdaptedSubscription
    from zc_perception.link.type_adapter import TypeAdapter

__all__ = [
    'AdaptedPublisher',
    'AdaptedSubscription',
    'Frame',
    'FramePublisher',
    'FrameReader',
    'FrameSubscription',
    'TypeAdapter',
    '__version__',
    'create_camera_subscription',
    'create_frame_subscription',
]

# setup.py reads the version from this line; a test compares it with the version in package.xml.
__version__ = '0.1.0'

_MODULES = {
    'AdaptedPublisher': 'zc_perception.link.endpoints.publisher',
    'AdaptedSubscription': 'zc_perception.link.endpoints.subscription',
    'Frame': 'zc_perception.frame',
    'FramePublisher': 'zc_perception.link.endpoints.frame_publisher',
    'FrameReader': 'zc_perception.link.endpoints.frame_subscription',
    'FrameSubscription': 'zc_perception.link.endpoints.frame_subscription',
    'TypeAdapter': 'zc_perception.link.type_adapter',
    'create_camera_subscription': 'zc_perception.link.endpoints.frame_subscription',
    'create_frame_subscription': 'zc_perception.link.endpoints.frame_subscription',
}


# A type checker that saw __getattr__ would accept every attribute of this package, even a
# misspelt one.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import the public name *name*; ImportError: its module needs rclpy, which is missing."""
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
        try:
            value = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name != 'rclpy':
                raise
            raise ImportError(
                f"{__name__}.{name} needs rclpy, ROS 2's Python library, and this Python does "
                'not find it: run '
                "'source /opt/ros/<distro>/setup.bash' in this shell and start Python again",
                name='rclpy',
            ) from error
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
