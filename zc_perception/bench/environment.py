"""What a figure depends on besides the code."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    'zc_perception', 'numpy', 'opencv-python-headless', 'rclpy', 'ros-rclpy', 'ros-rmw-fastrtps-cpp', 'ros-sensor-msgs', 'eclipse-zenoh',
    'iceoryx2', 'cyclonedds',
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
    """Machine, kernel, versions, load. Names neither host nor user."""
    return {
        'date': datetime.now(timezone.utc).date().isoformat(),
        'cpu': _first_line('/proc/cpuinfo', 'model name') or _first_line('/proc/device-tree/model') or platform.machine(),
        'cpus': len(os.sched_getaffinity(0)),
        'memory_gib': round(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30, 1),
        'governor': _first_line('/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor') or 'unknown',
        'virtual': 'hypervisor' in _first_line('/proc/cpuinfo', 'flags').split(),
        'kernel': platform.release(),
        'libc': ' '.join(platform.libc_ver()),
        'python': platform.python_version(),
        'ros_distro': os.environ.get('ROS_DISTRO', ''),
        'packages': {name: version for name in _PACKAGES if (version := _version(name))},
        'load_average': [round(v, 2) for v in os.getloadavg()],
    }
