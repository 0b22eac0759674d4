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
The machine, the versions and the environment variables that a figure depends on.

The benchmark sets the variables of the measured processes itself, tuned or untuned. Tuning
variables of the user's shell are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata
import os
from pathlib import Path
import platform
from typing import Any

from zc_perception.native import how_it_runs
from zc_perception.shipped_files import shipped_file

_PACKAGES = (
    'zc_perception', 'numpy', 'opencv-python-headless', 'rclpy', 'ros-rclpy',
    'ros-rmw-fastrtps-cpp', 'ros-sensor-msgs', 'eclipse-zenoh', 'iceoryx2', 'cyclonedds',
)  # fmt: skip


def _first_line(path: str, prefix: str = '') -> str:
    try:
        for line in Path(path).read_text(encoding='utf-8', errors='replace').splitlines():
            if line.startswith(prefix):
                return line.removeprefix(prefix).strip(' \t\0:')
    except OSError:
        pass
    return ''


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ''


def describe_environment() -> dict[str, Any]:
    """Describe machine, kernel, versions and load, without the host's or the user's name."""
    return {
        'date': datetime.now(timezone.utc).date().isoformat(),
        'cpu': _first_line('/proc/cpuinfo', 'model name')
        or _first_line('/proc/device-tree/model')
        or platform.machine(),
        'cpus': len(os.sched_getaffinity(0)),
        'memory_gib': round(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30, 1),
        'governor': _first_line('/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor')
        or 'unknown',
        'virtual': 'hypervisor' in _first_line('/proc/cpuinfo', 'flags').split(),
        'kernel': platform.release(),
        'libc': ' '.join(platform.libc_ver()),
        'python': how_it_runs(),
        'ros_distro': os.environ.get('ROS_DISTRO', ''),
        'packages': {name: version for name in _PACKAGES if (version := _version(name))},
        'load_average': [round(v, 2) for v in os.getloadavg()],
    }


# Tuning variables set for the whole machine would change the results that are labelled "default".
# PYTHONDONTWRITEBYTECODE would make each start compile the package again.
_TUNING = (
    'PYTHONDONTWRITEBYTECODE',
    'FASTRTPS_DEFAULT_PROFILES_FILE',
    'FASTDDS_DEFAULT_PROFILES_FILE',
    'FASTDDS_BUILTIN_TRANSPORTS',
    'CYCLONEDDS_URI',
    'GLIBC_TUNABLES',
)
_TUNING_PREFIXES = ('MALLOC_', 'RMW_FASTRTPS_', 'ZENOH_', 'IOX2_')
# glibc's allocator keeps freed memory of a frame's size, so that the next frame causes no page
# faults.
KEPT_MEMORY = {
    'MALLOC_MMAP_THRESHOLD_': str(1 << 30),
    'MALLOC_TRIM_THRESHOLD_': str(1 << 30),
    'MALLOC_TOP_PAD_': str(1 << 26),
}


def tuned_environment() -> dict[str, str]:
    """
    Return variables that make plain image messages as fast as possible.

    They give Fast DDS a shared-memory segment that is large enough for the images, and make the
    allocator keep its memory.
    """
    profile = shipped_file('config/fastdds_images.xml')
    return {
        'FASTRTPS_DEFAULT_PROFILES_FILE': profile,
        'FASTDDS_DEFAULT_PROFILES_FILE': profile,
        **KEPT_MEMORY,
    }


def plain_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """
    Return *environment* without tuning variables, with ROS discovery limited to this host.

    ``ROS_DOMAIN_ID`` is 101 unless *environment* sets it.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _TUNING and not name.startswith(_TUNING_PREFIXES)
    }
    return {'ROS_DOMAIN_ID': '101', **kept, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
