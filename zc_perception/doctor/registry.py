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
List all checks by group.

The doctor's own checks stand here, those of a kind of camera or accelerator in its class. Ids
stay, since programs may rely on them. A new check goes to the end of its group.
"""

from __future__ import annotations

from collections.abc import Sequence

from zc_perception.camera.kinds import CAMERAS
from zc_perception.doctor import machine_checks, memory_checks, node_checks, ros_checks
from zc_perception.errors import ConfigError, nearest
from zc_perception.machine.checks import Check
from zc_perception.npu.kinds import ACCELERATORS

_FIRST = (
    Check(
        'parameters.file',
        'whether the nodes would take every key and value of the parameter file',
        node_checks.parameter_file,
    ),
    Check(
        'kernel.release',
        'which kernel, and whether it is new enough for the heaps',
        machine_checks.kernel_release,
    ),
    Check(
        'kernel.sync_file_ioctls',
        'whether fences can be taken out of buffers and put in (Linux 6.0)',
        machine_checks.sync_file_ioctls,
    ),
    Check(
        'memory.heaps',
        'each dma-heap and udmabuf: there, and open to this user',
        memory_checks.heaps,
    ),
    Check(
        'memory.cma_pool',
        'CmaTotal and CmaFree against the pool that the parameter file asks for',
        memory_checks.cma_pool,
    ),
    Check(
        'buffers.cpu',
        'a real buffer of each heap: allocated, mapped, synchronised, written and read back',
        memory_checks.cpu_trials,
    ),
    Check(
        'buffers.fences', 'a real fence taken out of it and put back', memory_checks.fence_trials
    ),
)
_CAMERAS = (
    Check(
        'cameras.configured',
        "whether the parameter file's cameras offer what it asks for",
        node_checks.configured_cameras,
    ),
    Check(
        'cameras.calibration',
        "whether each camera's calibration file is there and fits",
        node_checks.calibrations,
    ),
)
_LAST = (
    Check(
        'model.manifest',
        "the parameter file's model: manifest and engine files",
        node_checks.model_manifest,
    ),
    Check(
        'model.load',
        'the model loaded on the accelerator that the inference node would choose',
        node_checks.model_load,
    ),
    Check('ros.distribution', 'which ROS 2', ros_checks.ros_distribution),
    Check('ros.rclpy', 'whether rclpy works, and its version', ros_checks.ros_rclpy),
    Check('ros.middleware', 'which RMW, and whether it is installed', ros_checks.ros_middleware),
    Check(
        'ros.messages', 'whether the packages of messages can be imported', ros_checks.ros_messages
    ),
    Check(
        'ros.large_messages',
        'room for whole images in the middleware, for plain subscribers',
        ros_checks.large_messages,
    ),
    Check(
        'link.runtime_folder',
        'the folder for shared-memory sockets',
        ros_checks.runtime_socket_folder,
    ),
    Check(
        'agreement.planned',
        "what the parameter file's cameras and their consumers agree on about buffers",
        node_checks.planned_agreements,
    ),
    Check(
        'agreement.running',
        'what nodes that run agreed on, what else there could be, and who is refused',
        node_checks.running_agreements,
    ),
    Check('limits.realtime', 'RLIMIT_RTPRIO', machine_checks.realtime),
    Check('limits.locked_memory', 'RLIMIT_MEMLOCK', machine_checks.locked_memory),
    Check(
        'limits.descriptors',
        'RLIMIT_NOFILE against what the pools need',
        machine_checks.descriptors,
    ),
    Check(
        'limits.python',
        'whether the compiled steps are there, and how the interpreter was built',
        machine_checks.python,
    ),
)


def checks_of(groups: Sequence[str] = ()) -> tuple[Check, ...]:
    """
    Return the checks of some groups, or all: those of this file and those that kinds declare.

    They come group by group.

    :raises ConfigError: there is no such group, or two checks that differ have one id.
    """
    cameras, accelerators = (
        [check for kind in kinds.declared.classes.values() for check in kind.CHECKS]
        for kinds in (CAMERAS, ACCELERATORS)
    )
    every: dict[str, Check] = {}
    for check in (*_FIRST, *cameras, *_CAMERAS, *accelerators, *_LAST):
        if every.setdefault(check.id, check) != check:
            raise ConfigError(f"two kinds have a check '{check.id}'; one package has to go")
    order = list(dict.fromkeys(check.group for check in every.values()))
    for group in groups:
        if group not in order:
            raise ConfigError(
                f"--only '{group}' is no group of checks; it must be one of "
                f'{", ".join(order)}{nearest(group, order)}; see zc_doctor --help'
            )
    found = (check for check in every.values() if not groups or check.group in groups)
    return tuple(sorted(found, key=lambda check: order.index(check.group)))
