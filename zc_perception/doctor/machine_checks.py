"""The machine itself: kernel, Jetson, clocks, and the limits that the nodes have if they are started like this program.

Sources: the kernel's Kconfig files; ``Documentation/userspace-api/dma-buf-heaps``; *Kernel CONFIG
dependencies* of the ZED X → Metis document; ``DMA_BUF_IOCTL_EXPORT_SYNC_FILE`` came with Linux
6.0, dma-heaps with 5.6, udmabuf with 4.20; ``/etc/nv_tegra_release``; the kernel's timekeeping
documentation (clocksources); adjtimex(2), getrlimit(2), proc(5) on ``limits``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
import gzip
import math
import os
import re
import zlib

from zc_perception.doctor.needs import pool_need
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
from zc_perception.machine.heaps import first_dmabuf
from zc_perception.machine.system import System
from zc_perception.native import compiled, how_it_runs

HEAPS_SINCE, FENCES_SINCE = (5, 6), (6, 0)
_LINE = re.compile(r'^(?:(CONFIG_\w+)=(.*)|# (CONFIG_\w+) is not set)$', re.MULTILINE)


@dataclass(frozen=True)
class Option:
    """A kernel option.

    :param names: any of them will do.
    :param use: what it is for.
    :param core: whether nothing that a device imports works without it; otherwise it depends on
        the vehicle.
    :param informative: only tells what tools will find.
    :param machine: on which architectures it exists, or matters; empty: on all.
    :param instead: an option that does as well.
    """

    names: tuple[str, ...]
    use: str
    core: bool = False
    informative: bool = False
    machine: tuple[str, ...] = ()
    instead: str = ''


# x86 machines have IOMMUs, and few have a contiguous pool.
_ARM = ('aarch64',)
OPTIONS = (
    Option(('DMA_SHARED_BUFFER',), 'dma-bufs at all', core=True),
    Option(('SYNC_FILE',), 'fences as descriptors', core=True),
    Option(('DMABUF_HEAPS',), 'memory that devices can import, /dev/dma_heap', core=True),
    Option(('DMABUF_HEAPS_SYSTEM',), 'heap dma_heap/system, for devices behind an IOMMU'),
    Option(('DMABUF_HEAPS_CMA',), ('heap dma_heap/linux,cma, contiguous memory for the ISP and '
                                   'cards without IOMMU'), machine=_ARM),
    Option(('CMA',), 'the contiguous pool', machine=_ARM),
    Option(('DMA_CMA',), 'drivers allocating from the contiguous pool', machine=_ARM),
    Option(('UDMABUF',), ('/dev/udmabuf, which makes dma-bufs of ordinary memory where there '
                          'is no heap'), instead='DMABUF_HEAPS'),
    Option(('IOMMU_SUPPORT',), 'IOMMUs, which gather scattered pages for a device'),
    Option(('IOMMU_DMA',), 'DMA through the IOMMU'),
    Option(('ARM_SMMU', 'ARM_SMMU_V3', 'TEGRA_IOMMU_SMMU'), "the SMMU of ARM boards", machine=_ARM),
    Option(('INTEL_IOMMU', 'AMD_IOMMU', 'VIRTIO_IOMMU'), 'the IOMMU of x86 machines', machine=('x86_64',)),
    Option(('MEMFD_CREATE',), 'frames in memfds where there is no dma-buf'),
    Option(('VIDEO_DEV', 'VIDEO_V4L2'), 'V4L2 cameras'),
    Option(('DMABUF_SYSFS_STATS',), ('exporter names in /sys/kernel/dmabuf; zc_verify takes '
                                     'debugfs without it'), informative=True),
    Option(('DEBUG_FS',), 'debugfs, from which zc_verify reads attachments', informative=True),
    Option(('FTRACE', 'FUNCTION_TRACER'), 'trace events for zc_verify', informative=True),
)  # fmt: skip


def kernel_release(system: System, needs: Needs) -> Iterator[Finding]:
    """Old enough kernels have no heaps."""
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


def read_options(system: System) -> tuple[dict[str, str], str]:
    """The kernel's options without ``CONFIG_``, and the file that they are from; nothing and the files that were tried."""
    release, tried = system.release, []
    for name in (
        'proc/config.gz',
        f'boot/config-{release}',
        f'lib/modules/{release}/config',
        f'lib/modules/{release}/build/.config',
    ):
        path = system.root / name
        try:
            raw = path.read_bytes()
            text = (gzip.decompress(raw) if raw[:2] == b'\x1f\x8b' else raw).decode(
                errors='replace'
            )
        except (OSError, EOFError, zlib.error):
            tried.append('/' + name)
            continue
        found = {
            (m[1] or m[3]).removeprefix('CONFIG_'): (m[2] or 'n').strip('"')
            for m in _LINE.finditer(text)
        }
        if found:
            return found, '/' + name
        tried.append('/' + name)
    return {}, ', '.join(tried)


def _present_without_options(system: System, option: Option) -> bool:
    """What shows that a feature is there, although its option isn't known or has another name."""
    shows = {
        'DMABUF_HEAPS': 'dev/dma_heap', 'DMABUF_HEAPS_SYSTEM': 'dev/dma_heap/system', 'UDMABUF': 'dev/udmabuf',
        'DMABUF_SYSFS_STATS': 'sys/kernel/dmabuf/buffers', 'IOMMU_SUPPORT': 'sys/class/iommu',
    }  # fmt: skip
    return any(name in shows and (system.root / shows[name]).exists() for name in option.names)


def kernel_options(system: System, needs: Needs) -> Iterator[Finding]:
    """One finding for all: which are set, which are missing and what for."""
    options, source = read_options(system)
    if not options:
        seen = [option.names[0] for option in OPTIONS if _present_without_options(system, option)]
        shown = f'; these are there: {", ".join(seen)}' if seen else ''
        advice = (
            'run modprobe configs, which makes /proc/config.gz, or install /boot/config-* of '
            'your distribution; '
            'the memory checks try the important options themselves'
        )
        yield warn(f"the kernel's options can't be read ({source}){shown}", advice, source='')
        return
    mine = [option for option in OPTIONS if not option.machine or system.machine in option.machine]
    figures = {name: options.get(name, 'n') for option in mine for name in option.names}
    missing = [
        option
        for option in mine
        if all(figures[name] == 'n' for name in (*option.names, option.instead) if name)
        and not _present_without_options(system, option)
    ]
    wanted = [option for option in missing if not option.informative]
    named = set(needs.heaps) - {'auto', 'memfd'}
    need = Need.REQUIRED if needs.device_imports or named else Need.POSSIBLE
    status = Status.OK
    if wanted:
        status = need.missing if any(option.core for option in wanted) else Status.WARN
    texts = [f'{" or ".join(option.names)} ({option.use})' for option in missing]
    found = f'{len(mine) - len(missing)} of {len(mine)} set ({source})' + (
        f'; not set: {", ".join(texts)}' if texts else ''
    )
    advice = ''
    if wanted:
        names = ', '.join(f'CONFIG_{option.names[0]}=y' for option in wanted)
        advice = f'rebuild the kernel with {names}, or boot one that has them'
    yield Finding(status, found, advice, '', {'source': source, 'options': figures})


def sync_file_ioctls(system: System, needs: Needs) -> Iterator[Finding]:
    """Asked of a real buffer where one can be had, else by the version."""
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


_FOLDER = 'sys/devices/system/clocksource/clocksource0'
#: Read through a device, at a microsecond and more each time.
_SLOW = ('hpet', 'acpi_pm', 'jiffies', 'refined-jiffies', 'pit')


def clock_source(system: System, needs: Needs) -> Iterator[Finding]:
    """Every frame is stamped several times."""
    source, others = (
        system.read(_FOLDER, 'current_clocksource'),
        system.read(_FOLDER, 'available_clocksource'),
    )
    figures = {'source': source, 'available': others.split()}
    if not source:
        yield skip('the kernel does not show its clock source', **figures)
    elif source in _SLOW:
        advice = (
            f'dmesg | grep -i clocksource says why no better one is used (available: {others}); '
            'update the BIOS, or boot with tsc=reliable if you know that it is'
        )
        yield warn(f'clock source {source}, which is slow to read', advice, **figures)
    else:
        yield ok(f'clock source {source}', **figures)


def synchronised(system: System, needs: Needs) -> Iterator[Finding]:
    """Stamps of several machines can only be compared where something disciplines the clocks."""
    state = system.synchronised()
    clocks = [name for name in system.names('dev') if name.startswith('ptp')]
    figures = {'synchronised': state, 'ptp': clocks}
    hardware = f', PTP clocks: {", ".join(clocks)}' if clocks else ''
    if state is None:
        yield skip(
            f'the kernel does not say whether the clock is synchronised{hardware}', **figures
        )
    elif state:
        yield ok(f'the clock is synchronised{hardware}', **figures)
    else:
        advice = (
            'start chrony, or ptp4l with phc2sys; with only one machine it does not '
            'matter, because all stamps come from one clock'
        )
        yield warn(f'no program synchronises the clock{hardware}', advice, **figures)


_CAP_SYS_NICE, _CAP_IPC_LOCK = 1 << 23, 1 << 14
_LIMITS_FILE = '/etc/security/limits.d/zc-perception.conf'
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


def _as_json(limit: float) -> int | str:
    return 'unlimited' if math.isinf(limit) else int(limit)


def _nodes_of(needs: Needs) -> tuple[NodeNeed, ...]:
    return (*needs.cameras, *needs.inferences)


def realtime(system: System, needs: Needs) -> Iterator[Finding]:
    """For parameter realtime_priority."""
    limit = soft_limit(system, 'Max realtime priority')
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
    """For parameter lock_memory."""
    limit = soft_limit(system, 'Max locked memory')
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
    """Each buffer is a descriptor, in every process that shares it, and each job in flight a fence."""
    limit = _limit(
        system, 'Max open files', 'self', 1
    )  # the hard one: the programs raise the soft one to it themselves
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


def _kinds(system: System, process: str) -> tuple[int, int]:
    """How many descriptors a process has, and how many of them are dma-bufs or our memfds."""
    numbers, frames = system.names('proc', process, 'fd'), 0
    for number in numbers:
        with suppress(OSError):
            frames += os.readlink(system.proc / process / 'fd' / number).startswith(
                ('/dmabuf:', '/memfd:zc_frame ')
            )
    return len(numbers), frames


def open_files(system: System, needs: Needs) -> Iterator[Finding]:
    """Of all processes that this user may look into."""
    words = system.read('proc/sys/fs/file-nr').split()
    counts = {
        process: len(system.names('proc', process, 'fd'))
        for process in system.names('proc')
        if process.isdigit()
    }
    if len(words) != 3 or not all(word.isdigit() for word in words) or not any(counts.values()):
        yield skip('/proc shows neither the table of open files nor any process')
        return
    used, most = int(words[0]), int(words[2])
    process = max(counts, key=lambda one: counts[one])
    number, frames = _kinds(system, process)
    limit = soft_limit(system, 'Max open files', process) or math.inf
    name = system.read('proc', process, 'comm') or 'process'
    figures = {
        'used': used,
        'limit': most,
        'process': int(process),
        'name': name,
        'descriptors': number,
        'buffers': frames,
    }
    found = (
        f'{used} files are open; {name} ({process}) has most of them, {number}, of which '
        f'{frames} are frame buffers'
    )
    if used > _NEARLY * most or number > _NEARLY * limit:
        full = 'the machine' if used > _NEARLY * most else f'{name} ({process})'
        advice = (
            f'{full} is near its limit: if ls -l /proc/{process}/fd grows, end that '
            'process; else raise fs.file-max or its limit'
        )
        yield warn(found, advice, **figures)
    else:
        yield ok(found, **figures)


def python(system: System, needs: Needs) -> Iterator[Finding]:
    """Which form of the package runs."""
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
