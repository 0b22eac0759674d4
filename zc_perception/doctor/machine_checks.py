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
Check the machine: the kernel, and the limits of a program that is started like this one.

Sources: ``DMA_BUF_IOCTL_EXPORT_SYNC_FILE`` came with Linux 6.0, dma-heaps with 5.6; getrlimit(2),
proc(5) on ``limits``.
"""

from __future__ import annotations

from collections.abc import Iterator
import math

from zc_perception.doctor.needs import pool_need
from zc_perception.machine.checks import fail, Finding, Needs, NodeNeed, ok, skip, Status, warn
from zc_perception.machine.system import first_dmabuf, System
from zc_perception.native import compiled, how_it_runs

HEAPS_SINCE, FENCES_SINCE = (5, 6), (6, 0)


def kernel_release(system: System, needs: Needs) -> Iterator[Finding]:
    """Check that the kernel is new enough: old ones have no heaps."""
    release, version = system.release, system.kernel_version()
    figures = {'release': release, 'machine': system.machine, 'tegra': system.is_tegra}
    found = f'Linux {release} on {system.machine}{" (Jetson)" if system.is_tegra else ""}'
    if version == (0, 0):
        yield warn('the kernel release could not be read', 'mount /proc', **figures)
    elif version < HEAPS_SINCE:
        advice = (
            'install Linux 5.6 or newer: older kernels have no dma-heaps, and no device '
            'can import buffers of this package'
        )
        yield Finding(
            Status.FAIL if needs.device_imports else Status.WARN,
            f'{found}, which has no dma-heaps',
            advice,
            '',
            figures,
        )
    else:
        yield ok(found, **figures)


def sync_file_ioctls(system: System, needs: Needs) -> Iterator[Finding]:
    """Check for the sync-file ioctls: try a real buffer if there is one, else read the version."""
    with first_dmabuf(system) as buffer:
        if buffer is None:
            there = system.kernel_version() >= FENCES_SINCE
            how = f'judged by the version {system.release}, as there is no dma-buf to try it with'
        else:
            there, how = buffer.sync_supported, f'tried with a buffer of {buffer.heap}'
    if there:
        yield ok(
            f'fences can be exchanged with buffers ({how})',
            supported=True,
            asked=buffer is not None,
        )
        return
    found = f'the kernel has no DMA_BUF_IOCTL_EXPORT_SYNC_FILE and IMPORT ({how})'
    advice = (
        'you need not do anything: the package waits for devices with poll(2) before it hands '
        'a buffer on; '
        'Linux 6.0 and newer have these ioctls'
    )
    yield warn(found, advice, supported=False, asked=buffer is not None)


_CAP_SYS_NICE, _CAP_IPC_LOCK = 1 << 23, 1 << 14
_LIMITS_FILE = '/etc/security/limits.d/zc-perception.conf'
# Python, rclpy and a middleware have about this many open.
_OWN_DESCRIPTORS = 128
_PER_SLOT = 6


def _limit(system: System, name: str, column: int = 0) -> float | None:
    """
    Return this process's limit by its name in ``/proc/self/limits``.

    *column* 0 is the soft limit. Infinite for ``unlimited``; ``None`` where the limit isn't shown.
    """
    for line in system.read('proc/self/limits').splitlines():
        if line.startswith(name):
            words = line.removeprefix(name).split()
            if len(words) > column:
                word = words[column]
                return math.inf if word == 'unlimited' else float(word) if word.isdigit() else None
    return None


def _capable(system: System, capability: int) -> bool:
    for line in system.read('proc/self/status').splitlines():
        if line.startswith('CapEff:'):
            return bool(int(line.split()[1], 16) & capability)
    return False


def _as_json(limit: float) -> int | str:
    return 'unlimited' if math.isinf(limit) else int(limit)


def _nodes_of(needs: Needs) -> tuple[NodeNeed, ...]:
    return (*needs.cameras, *needs.inferences)


def realtime(system: System, needs: Needs) -> Iterator[Finding]:
    """Check the limit that parameter realtime_priority needs."""
    limit = _limit(system, 'Max realtime priority')
    wanted = max((node['realtime_priority'] for node in _nodes_of(needs)), default=0)
    capable = _capable(system, _CAP_SYS_NICE)
    if limit is None:
        yield skip('/proc/self/limits does not show the limit')
        return
    figures = {'limit': _as_json(limit), 'wanted': wanted, 'capable': capable}
    if wanted > limit and not capable:
        highest = max(wanted, 80)
        advice = (
            f'add to {_LIMITS_FILE}: @video - rtprio {highest}; systemd: '
            f'LimitRTPRIO={highest}; container: --ulimit rtprio={highest}'
        )
        yield fail(
            f'realtime_priority {wanted} is not allowed: the limit is {limit:g}', advice, **figures
        )
    elif limit or capable:
        yield ok(
            f'real-time priorities up to {99 if capable else f"{limit:g}"} are allowed', **figures
        )
    else:
        yield ok('no real-time priorities are allowed, and no node needs them', **figures)


def locked_memory(system: System, needs: Needs) -> Iterator[Finding]:
    """Check the limit that parameter lock_memory needs."""
    limit = _limit(system, 'Max locked memory')
    wanted = any(node['lock_memory'] for node in _nodes_of(needs))
    if limit is None:
        yield skip('/proc/self/limits does not show the limit')
        return
    capable = _capable(system, _CAP_IPC_LOCK)
    figures = {'limit': _as_json(limit), 'wanted': wanted, 'capable': capable}
    text = 'without limit' if math.isinf(limit) or capable else f'up to {limit / (1 << 20):g} MiB'
    if wanted and not capable and not math.isinf(limit):
        advice = (
            f'add to {_LIMITS_FILE}: @video - memlock unlimited; systemd: '
            'LimitMEMLOCK=infinity; container: --ulimit memlock=-1'
        )
        yield fail(
            f'lock_memory locks all memory of a process, but memory may be locked {text}',
            advice,
            **figures,
        )
    else:
        yield ok(
            f'memory may be locked {text}{"" if wanted else ", and no node needs it"}', **figures
        )


def descriptors(system: System, needs: Needs) -> Iterator[Finding]:
    """
    Check the limit of descriptors.

    Each process that shares a buffer has a descriptor of it; each job in flight has a fence.
    """
    # The hard one: the programs raise the soft one to it themselves.
    limit = _limit(system, 'Max open files', 1)
    if limit is None:
        yield skip('/proc/self/limits does not show the limit')
        return
    pools = [pool_need(system, needs, camera) for camera in needs.cameras]
    needed = _OWN_DESCRIPTORS + sum(
        _PER_SLOT * pool.slots * max(1, len(pool.buffers)) for pool in pools
    )
    figures = {'limit': _as_json(limit), 'needed': needed}
    if limit < needed:
        advice = (
            f'add to {_LIMITS_FILE}: @video - nofile 4096; in a systemd unit: LimitNOFILE=4096'
        )
        yield fail(
            f'{limit:g} open files are allowed, about {needed} are needed', advice, **figures
        )
    else:
        yield ok(f'{_as_json(limit)} open files are allowed, about {needed} are needed', **figures)


def python(system: System, needs: Needs) -> Iterator[Finding]:
    """Say which form of the package runs: with its compiled steps or without."""
    if compiled is not None:
        yield ok(how_it_runs())
    else:
        yield warn(
            f'{how_it_runs()}: detections and frames of other processes take more of a CPU',
            (
                "install gcc and python3-dev ('sudo apt install build-essential python3-dev'), "
                'then build the package again'
            ),
        )
