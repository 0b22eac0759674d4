"""Environments of the benchmark's processes: tuned as far as it goes, or not at all, whatever the shell has set."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from zc_perception.bench.worker import BenchError

# What somebody may have set for the whole machine would make the "default" another one.
_TUNING = (
    'FASTRTPS_DEFAULT_PROFILES_FILE',
    'FASTDDS_DEFAULT_PROFILES_FILE',
    'FASTDDS_BUILTIN_TRANSPORTS',
    'CYCLONEDDS_URI',
    'GLIBC_TUNABLES',
)
_TUNING_PREFIXES = ('MALLOC_', 'RMW_FASTRTPS_', 'ZENOH_', 'IOX2_')
# Of the allocator: memory that was as large as a frame once isn't given back, so that the next frame faults no fresh pages in.
KEPT_MEMORY = {'MALLOC_MMAP_THRESHOLD_': str(1 << 30), 'MALLOC_TRIM_THRESHOLD_': str(1 << 30), 'MALLOC_TOP_PAD_': str(1 << 26)}


def fastdds_profile() -> Path:
    """The profile for plain images, as it is installed or in the source tree.

    :raises BenchError: neither.
    """
    package = Path(__file__).resolve().parents[1]
    places = [
        package.parent / 'config',
        *(Path(p) / 'share/zc_perception/config' for p in (*os.environ.get('AMENT_PREFIX_PATH', '').split(':'), sys.prefix)),
    ]
    for place in places:
        if (place / 'fastdds_images.xml').is_file():
            return place / 'fastdds_images.xml'
    raise BenchError('fastdds_images.xml is not installed; run from the source tree or an installed package')


def tuned_environment() -> dict[str, str]:
    """What makes plain images as quick as they get: a shared-memory segment that holds them, and an allocator that keeps its memory."""
    profile = str(fastdds_profile())
    return {'FASTRTPS_DEFAULT_PROFILES_FILE': profile, 'FASTDDS_DEFAULT_PROFILES_FILE': profile, **KEPT_MEMORY}


def plain_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """*environment* without tuning, on this host only, and on a ROS domain of its own unless one is set."""
    kept = {name: value for name, value in environment.items() if name not in _TUNING and not name.startswith(_TUNING_PREFIXES)}
    return {'ROS_DOMAIN_ID': '101', **kept, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
