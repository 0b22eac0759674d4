"""Limits of a process, as the nodes will have them if they are started like this program. Source: proc(5) on ``limits``, getrlimit(2)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress

from zc_perception.doctor.finding import Finding, Status, ok, skip
from zc_perception.doctor.needs import CameraNeed, InferenceNeed, Needs
from zc_perception.doctor.pool_need import pool_need
from zc_perception.doctor.system import System

_CAP_SYS_NICE, _CAP_IPC_LOCK = 1 << 23, 1 << 14
_FILE = '/etc/security/limits.d/zc-perception.conf'
# Python, rclpy and a middleware have about so many open.
_OWN_DESCRIPTORS = 128
_PER_SLOT = 6
_NEARLY = 0.9


def soft_limit(system: System, name: str, process: str = 'self') -> float | None:
    """A process's soft limit by its name in the file; infinite for ``unlimited``, ``None`` where it isn't shown."""
    return _limit(system, name, process, 0)


def _limit(system: System, name: str, process: str, column: int) -> float | None:
    for line in system.read('proc', process, 'limits').splitlines():
        if line.startswith(name):
            words = line[len(name) :].split()
            if len(words) > column:
                word = words[column]
                return math.inf if word == 'unlimited' else float(word) if word.isdigit() else None
    return None


def _capable(system: System, capability: int) -> bool:
    for line in system.read('proc/self/status').splitlines():
        if line.startswith('CapEff:'):
            return bool(int(line.split()[1], 16) & capability)
    return False


def _shown(limit: float) -> int | str:
    return 'unlimited' if math.isinf(limit) else int(limit)


def _nodes(needs: Needs) -> tuple[CameraNeed | InferenceNeed, ...]:
    return (*needs.cameras, *needs.inferences)


def realtime(system: System, needs: Needs) -> Iterator[Finding]:
    """For parameter realtime_priority."""
    limit = soft_limit(system, 'Max realtime priority')
    wanted = max((node.realtime_priority for node in _nodes(needs)), default=0)
    capable = _capable(system, _CAP_SYS_NICE)
    if limit is None:
        yield skip('/proc/self/limits does not show the limit')
        return
    figures = {'limit': _shown(limit), 'wanted': wanted, 'capable': capable}
    if wanted > limit and not capable:
        highest = max(wanted, 80)
        advice = f'add to {_FILE}: @video - rtprio {highest}; systemd: LimitRTPRIO={highest}; container: --ulimit rtprio={highest}'
        yield Finding(Status.FAIL, f'realtime_priority {wanted} is not allowed: the limit is {limit:g}', advice, '', figures)
    elif limit or capable:
        yield ok(f'real-time priorities up to {99 if capable else f"{limit:g}"} are allowed', **figures)
    else:
        yield ok('no real-time priorities are allowed, and no node needs them', **figures)


def locked_memory(system: System, needs: Needs) -> Iterator[Finding]:
    """For parameter lock_memory."""
    limit = soft_limit(system, 'Max locked memory')
    wanted = any(node.lock_memory for node in _nodes(needs))
    if limit is None:
        yield skip('/proc/self/limits does not show the limit')
        return
    capable = _capable(system, _CAP_IPC_LOCK)
    figures = {'limit': _shown(limit), 'wanted': wanted, 'capable': capable}
    text = 'without limit' if math.isinf(limit) or capable else f'up to {limit / (1 << 20):g} MiB'
    if wanted and not capable and not math.isinf(limit):
        advice = f'add to {_FILE}: @video - memlock unlimited; systemd: LimitMEMLOCK=infinity; container: --ulimit memlock=-1'
        yield Finding(Status.FAIL, f'lock_memory locks all memory of a process, but memory may be locked {text}', advice, '', figures)
    else:
        yield ok(f'memory may be locked {text}{"" if wanted else ", and no node needs it"}', **figures)


def descriptors(system: System, needs: Needs) -> Iterator[Finding]:
    """Each buffer is a descriptor, in every process that shares it, and each job in flight a fence."""
    limit = _limit(system, 'Max open files', 'self', 1)  # the hard one: the programs raise the soft one to it themselves
    if limit is None:
        yield skip('/proc/self/limits does not show the limit')
        return
    pools = [pool_need(system, needs, camera) for camera in needs.cameras]
    needed = _OWN_DESCRIPTORS + sum(_PER_SLOT * pool.slots * max(1, len(pool.buffers)) for pool in pools)
    figures = {'limit': _shown(limit), 'needed': needed}
    if limit < needed:
        advice = f'add to {_FILE}: @video - nofile 4096; in a systemd unit: LimitNOFILE=4096'
        yield Finding(Status.FAIL, f'{limit:g} open files are allowed, about {needed} are needed', advice, '', figures)
    else:
        yield ok(f'{_shown(limit)} open files are allowed, about {needed} are needed', **figures)


def _kinds(system: System, process: str) -> tuple[int, int]:
    """How many descriptors a process has, and how many of them are dma-bufs or our memfds."""
    numbers, frames = system.names('proc', process, 'fd'), 0
    for number in numbers:
        with suppress(OSError):
            frames += os.readlink(system.proc / process / 'fd' / number).startswith(('/dmabuf:', '/memfd:zc_frame '))
    return len(numbers), frames


def open_files(system: System, needs: Needs) -> Iterator[Finding]:
    """Of all processes that this user may look into."""
    words = system.read('proc/sys/fs/file-nr').split()
    counts = {process: len(system.names('proc', process, 'fd')) for process in system.names('proc') if process.isdigit()}
    if len(words) != 3 or not all(word.isdigit() for word in words) or not any(counts.values()):
        yield skip('/proc shows neither the table of open files nor any process')
        return
    used, most = int(words[0]), int(words[2])
    process = max(counts, key=lambda one: counts[one])
    number, frames = _kinds(system, process)
    limit = soft_limit(system, 'Max open files', process) or math.inf
    name = system.read('proc', process, 'comm') or 'process'
    figures = {'used': used, 'limit': most, 'process': int(process), 'name': name, 'descriptors': number, 'buffers': frames}
    found = f'{used} files are open; {name} ({process}) has most of them, {number}, of which {frames} are frame buffers'
    if used > _NEARLY * most or number > _NEARLY * limit:
        full = 'the machine' if used > _NEARLY * most else f'{name} ({process})'
        advice = f'{full} is near its limit: if ls -l /proc/{process}/fd grows, end that process; else raise fs.file-max or its limit'
        yield Finding(Status.WARN, found, advice, '', figures)
    else:
        yield ok(found, **figures)
