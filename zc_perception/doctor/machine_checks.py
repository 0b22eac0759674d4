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
Check the machine: the kernel, this process's resource limits, heaps, and real buffers.

Sources: getrlimit(2); proc(5) on ``limits`` and ``CmaTotal``;
``Documentation/userspace-api/dma-buf-heaps``. Linux 5.6 introduced dma-heaps. Linux 6.0 introduced
``DMA_BUF_IOCTL_EXPORT_SYNC_FILE``.
"""

from __future__ import annotations

from collections.abc import Iterator
import errno
import math
import os
from pathlib import Path

from zc_perception.doctor.needs import pool_need, PoolNeed
from zc_perception.errors import ZcError
from zc_perception.machine.checks import (
    fail,
    Finding,
    Need,
    Needs,
    NodeNeed,
    ok,
    skip,
    Status,
    warn,
)
from zc_perception.machine.system import (
    allocate,
    DENIED,
    first_dmabuf,
    heap_nodes,
    PAGE,
    rights_advice,
    System,
    trial_heaps,
    udev_line,
)
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.heaps import is_contiguous
from zc_perception.native import compiled, how_it_runs
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

HEAPS_SINCE, FENCES_SINCE = (5, 6), (6, 0)


def kernel_release(system: System, needs: Needs) -> Iterator[Finding]:
    """Check that the kernel is new enough to have dma-heaps."""
    release, version = system.release, system.kernel_version()
    figures = {'release': release, 'machine': system.machine, 'tegra': system.is_tegra}
    found = f'Linux {release} on {system.machine}{" (Jetson)" if system.is_tegra else ""}'
    if version == (0, 0):
        yield warn('the kernel release could not be read', 'mount /proc', **figures)
    elif version < HEAPS_SINCE:
        advice = (
            'install Linux 5.6 or newer: older kernels have no dma-heaps, so no device '
            "can import this package's buffers"
        )
        yield Finding(
            Status.FAIL if needs.device_imports else Status.WARN,
            f'{found}: this kernel has no dma-heaps',
            advice,
            '',
            figures,
        )
    else:
        yield ok(found, **figures)


def sync_file_ioctls(system: System, needs: Needs) -> Iterator[Finding]:
    """Check for the sync-file ioctls with a real buffer; without one, by the kernel's version."""
    with first_dmabuf(system) as buffer:
        if buffer is None:
            there = system.kernel_version() >= FENCES_SINCE
            how = f'judged by version {system.release}, because there is no dma-buf to test'
        else:
            there, how = buffer.sync_supported, f'tried with a buffer of {buffer.heap}'
    if there:
        yield ok(
            f'fences can be exported from buffers and imported into them ({how})',
            supported=True,
            asked=buffer is not None,
        )
        return
    found = f'the kernel has no ioctls to export and import fences of buffers ({how})'
    advice = (
        'you need not do anything: the package waits for devices with poll(2) before it hands a '
        'buffer on; Linux 6.0 and newer have these ioctls'
    )
    yield warn(found, advice, supported=False, asked=buffer is not None)


_CAP_SYS_NICE, _CAP_IPC_LOCK = 1 << 23, 1 << 14
_LIMITS_FILE = '/etc/security/limits.d/zc-perception.conf'
# Estimated numbers of descriptors: those that a process has without a pool (Python, rclpy,
# middleware), and those that each slot of a pool adds.
_OWN_DESCRIPTORS = 128
_PER_SLOT = 6


def _limit(system: System, name: str, column: int = 0) -> float | None:
    """Return a soft (column 0) or hard (1) limit of this process; ``None``: not listed."""
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
    """Check whether RLIMIT_RTPRIO allows the nodes' parameter ``realtime_priority``."""
    limit = _limit(system, 'Max realtime priority')
    wanted = max((node['realtime_priority'] for node in _nodes_of(needs)), default=0)
    capable = _capable(system, _CAP_SYS_NICE)
    if limit is None:
        yield skip("/proc/self/limits does not show 'Max realtime priority'")
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
    """Check whether RLIMIT_MEMLOCK allows the nodes' parameter ``lock_memory``."""
    limit = _limit(system, 'Max locked memory')
    wanted = any(node['lock_memory'] for node in _nodes_of(needs))
    if limit is None:
        yield skip("/proc/self/limits does not show 'Max locked memory'")
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
            f'lock_memory locks all memory of a process, but memory may be locked only {text}',
            advice,
            **figures,
        )
    else:
        yield ok(
            f'memory may be locked {text}{"" if wanted else ", and no node locks any"}', **figures
        )


def descriptors(system: System, needs: Needs) -> Iterator[Finding]:
    """Check whether RLIMIT_NOFILE allows the descriptors of the buffer pools."""
    # Check the hard limit, because the programs raise their soft limit to it.
    limit = _limit(system, 'Max open files', 1)
    if limit is None:
        yield skip("/proc/self/limits does not show 'Max open files'")
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
    """Check whether the package uses its compiled code, which is faster."""
    if compiled is not None:
        yield ok(how_it_runs())
    else:
        yield warn(
            f'{how_it_runs()}: detection, and frames from other processes, take more CPU time',
            (
                "install gcc and python3-dev ('sudo apt install build-essential python3-dev'), "
                'then build the package again'
            ),
        )


_MIB = 1 << 20
# Values of parameter heap that don't name a device file.
_NO_NODE = ('auto', 'memfd', 'nvbufsurface')
_OTHERWISE = (
    'frames then lie in memfds, which no device can import: accelerator axl and cameras with '
    "memory: import can't be used; accelerator onnx, links, and cameras whose frames the CPU "
    'writes (such as synthetic) can be used'
)
_ENABLE = ('boot a kernel with CONFIG_DMABUF_HEAPS and CONFIG_DMABUF_HEAPS_SYSTEM (or boot a '
           'kernel with CONFIG_UDMABUF, and run modprobe udmabuf); '
           'give a container the device files (--device /dev/dma_heap/system)')  # fmt: skip

_LARGER = ('enlarge the pool (cma=512M on the kernel command line, or the size of linux,cma in '
           'the device tree), or use fewer slots or smaller pictures; behind an IOMMU, use heap: '
           'dma_heap/system')  # fmt: skip


def _rights(path: Path) -> dict[str, object]:
    try:
        status = path.stat()
    except OSError:
        return {}
    return {
        'mode': f'{status.st_mode & 0o7777:04o}',
        'owner': status.st_uid,
        'group': status.st_gid,
    }


def heaps(system: System, needs: Needs) -> Iterator[Finding]:
    """Check each heap of this machine, and each heap that the parameter file names."""
    nodes = heap_nodes(system)
    named = [name for name in needs.heaps if name not in _NO_NODE]
    usable = 0
    for name, node in nodes.items():
        number = system.open_node(str(node))
        shown, figures = (
            system.shown(node),
            {'contiguous': is_contiguous(name), 'errno': number, **_rights(node)},
        )
        if number == 0:
            usable += 1
            what = (
                'contiguous memory'
                if is_contiguous(name)
                else 'ordinary memory'
                if name == 'udmabuf'
                else 'memory in scattered pages'
            )
            yield ok(f'{shown} can be used ({what})', name, **figures)
        elif number in DENIED:
            found = (
                f'this user may not open {shown} (mode {figures.get("mode", "?")}, group '
                f'{figures.get("group", "?")})'
            )
            yield Finding(
                needs.heap(name).missing,
                found,
                rights_advice(udev_line(name), shown),
                name,
                figures,
            )
        else:
            found = f"{shown} can't be opened: {os.strerror(number)}"
            yield Finding(
                needs.heap(name).missing,
                found,
                'read dmesg; unload the module of this heap and load it again',
                name,
                figures,
            )
    for name in named:
        if name not in nodes:
            there = ', '.join(nodes) or 'none'
            number = errno.ENOENT
            advice = f'set heap to one that was found, or to auto, or {_ENABLE}'
            yield fail(
                f"heap '{name}' in the parameter file does not exist; found: {there}",
                advice,
                name,
                errno=number,
            )
    if not usable and not named:
        need = Need.REQUIRED if needs.device_imports else Need.POSSIBLE
        if needs.known and not needs.heaps and need is Need.POSSIBLE:
            yield skip(
                'no heap can be used, but the cameras need none: they have buffers of their own'
            )
        else:
            yield Finding(need.missing, f'no heap can be used; {_OTHERWISE}', _ENABLE)


def read_cma(system: System) -> tuple[int, int] | None:
    """Return CmaTotal and CmaFree in bytes; ``None``: the kernel has no CMA memory."""
    found = {}
    for line in system.read('proc/meminfo').splitlines():
        name, _, value = line.partition(':')
        number = value.split()[0] if value.split() else ''
        if name in ('CmaTotal', 'CmaFree') and number.isdigit():
            found[name] = int(number) * 1024
    return (found['CmaTotal'], found.get('CmaFree', 0)) if found.get('CmaTotal') else None


def cma_pool(system: System, needs: Needs) -> Iterator[Finding]:
    """Check whether the pools that need contiguous memory fit into the free CMA memory."""
    cma = read_cma(system)
    total, free = cma or (0, 0)
    there = (
        f'CmaTotal {total / _MIB:.0f} MiB, CmaFree {free / _MIB:.0f} MiB'
        if cma
        else '/proc/meminfo shows no CMA memory (CmaTotal)'
    )
    pools = [pool_need(system, needs, camera) for camera in needs.cameras]
    sure = sum(p.total for p in pools if p.contiguous)
    perhaps = sum(p.total for p in pools if p.contiguous is None)
    figures: dict[str, object] = {
        'total': total,
        'free': free,
        'needed': sure,
        'pools': [_figures(pool) for pool in pools],
    }
    words = ', '.join(_described(p) for p in pools)
    if any(p.refusal for p in pools):
        yield skip('the nodes can not agree on buffers, see check agreement.planned', **figures)
        return
    if pools and all(p.contiguous is False for p in pools):
        yield skip(f'no camera needs contiguous memory: {words}', **figures)
        return
    if not system.read('proc/meminfo'):
        found = "/proc/meminfo, which has the size of the CMA memory, can't be read"
        yield warn(found, 'mount /proc', **figures)
        return
    if not pools:
        slot = compute_layout(NV12, 1920, 1080).buffer_size(0)
        if cma is None:
            yield skip(
                (
                    f"{there}; heap 'dma_heap/linux,cma' needs CMA memory, and so do ISPs and "
                    'cards without IOMMU'
                ),
                **figures,
            )
        else:
            yield ok(f'{there}: room for {free // slot} NV12 frames of 1920x1080', **figures)
        return
    unknown = [p for p in pools if p.problem and p.contiguous is not False]
    text = f'{words}; {there}'
    if not sure and cma is None:
        yield skip(f'no camera is known to need contiguous memory: {words}; {there}', **figures)
    elif sure > total:
        yield fail(f'the CMA memory is too small: {text}', _LARGER, **figures)
    elif sure > free:
        waiting = (
            'end the programs that hold CMA memory (the nodes, if they run now), or '
            + _LARGER
        )
        yield fail(f'not enough CMA memory is free: {text}', waiting, **figures)
    elif sure + perhaps > free and cma is not None:
        yield warn(
            f"the CMA memory may be too small, if cameras' drivers allocate from it: {text}",
            _LARGER,
            **figures,
        )
    elif unknown:
        reason = '; '.join(f'{p.camera.label}: {p.problem}' for p in unknown)
        found = f'the size of some pools is not known ({reason}); {there}'
        yield warn(found, 'set width and height in the parameter file', **figures)
    else:
        yield ok(f'the CMA memory has enough room: {text}', **figures)


def _figures(pool: PoolNeed) -> dict[str, object]:
    return {
        'node': pool.camera.node,
        'memory': pool.memory,
        'contiguous': pool.contiguous,
        'slots': pool.slots,
        'slot_bytes': pool.slot_bytes,
        'bytes': pool.total,
    }


def _described(pool: PoolNeed) -> str:
    if pool.problem:
        return f'{pool.camera.label}: a pool of unknown size in {pool.memory}'
    width, height = pool.size
    return (
        f'{pool.camera.label}: {pool.slots} slots of {width}x{height}, '
        f'{pool.total / _MIB:.1f} MiB in {pool.memory}'
    )


_PATTERN = bytes(range(256))


def _heap_need(needs: Needs, name: str) -> Need:
    return needs.heap(name) if name != 'memfd' or 'memfd' in needs.heaps else Need.POSSIBLE


def cpu_trials(system: System, needs: Needs) -> Iterator[Finding]:
    """Write a real buffer of each heap, and read it back through another mapping."""
    for name in trial_heaps(system):
        try:
            with allocate(system, name, 4 * PAGE) as buffer:
                same, figures = (
                    _written_and_read(buffer),
                    {
                        'size': buffer.size,
                        'kind': buffer.kind.value,
                        'exporter': buffer.exporter(),
                    },
                )
        except (ZcError, OSError) as error:
            yield Finding(
                _heap_need(needs, name).missing,
                f'a buffer of {name} could not be used: {error}',
                'see check memory.heaps',
                name,
            )
            continue
        if same:
            yield ok(
                'a buffer was allocated, mapped, synchronised, written and read back '
                f'(exporter {figures["exporter"]})',
                name,
                **figures,
            )
        else:
            advice = (
                'report this with the exporter and the kernel release: the SYNC ioctl of this '
                'exporter does not keep CPU caches coherent'
            )
            yield fail(
                f'a buffer of {name} did not hold what was written', advice, name, **figures
            )


def _written_and_read(buffer: DmaBuf) -> bool:
    length = len(_PATTERN)
    places = (slice(0, length), slice(buffer.size - length, buffer.size))
    with buffer.cpu_access(CpuAccess.WRITE) as mapping:
        for place in places:
            mapping[place] = _PATTERN
    buffer.unmap()
    with buffer.cpu_access(CpuAccess.READ) as mapping:
        return all(mapping[place] == _PATTERN for place in places) and not any(mapping[256:512])


def fence_trials(system: System, needs: Needs) -> Iterator[Finding]:
    """Export a fence from a real buffer of each heap, wait for it, and import it again."""
    names = list(heap_nodes(system))
    if not names:
        yield skip('there is no heap for dma-bufs, and a memfd has no fences')
    for name in names:
        try:
            with allocate(system, name) as buffer:
                yield _fences(buffer, name)
        except (ZcError, OSError) as error:
            yield Finding(
                _heap_need(needs, name).missing,
                f'no buffer of {name} could be tested: {error}',
                'see check memory.heaps',
                name,
            )


def _fences(buffer: DmaBuf, name: str) -> Finding:
    fence = buffer.export_fence(CpuAccess.READ | CpuAccess.WRITE)
    if fence is None:
        return skip(
            'the kernel has no ioctls for fences; see kernel.sync_file_ioctls',
            name,
            supported=False,
        )
    try:
        if not fence.wait(1.0):
            return fail(
                f'the fence of an unused buffer of {name} does not signal',
                'report this fault and the kernel release to the maintainers of zc_perception',
                name,
            )
        fence.check()
        if not buffer.import_fence(fence, CpuAccess.READ):
            return warn(
                f"fences can be exported from buffers of {name}, but can't be imported again",
                'install Linux 6.0 or newer',
                name,
            )
    finally:
        fence.close()
    return ok('a fence was exported from a buffer and imported again', name, supported=True)
