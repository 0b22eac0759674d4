"""The kernel: version, options, and the ioctls that exchange fences with buffers.

Sources: the kernel's Kconfig files; ``Documentation/userspace-api/dma-buf-heaps``; *Kernel CONFIG dependencies* of the ZED X → Metis
document; ``DMA_BUF_IOCTL_EXPORT_SYNC_FILE`` came with Linux 6.0, dma-heaps with 5.6, udmabuf with 4.20.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from zc_perception.doctor.finding import Finding, Need, Status, ok
from zc_perception.doctor.needs import Needs
from zc_perception.doctor.system import System
from zc_perception.doctor.trials import first_dmabuf

HEAPS_SINCE, FENCES_SINCE = (5, 6), (6, 0)
_LINE = re.compile(r'^(?:(CONFIG_\w+)=(.*)|# (CONFIG_\w+) is not set)$', re.MULTILINE)


@dataclass(frozen=True)
class Option:
    """A kernel option.

    :param names: any of them will do.
    :param use: what it is for.
    :param core: whether nothing that a device imports works without it; otherwise it depends on the vehicle.
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
    Option(('DMABUF_HEAPS_CMA',), 'heap dma_heap/linux,cma, contiguous memory for the ISP and cards without IOMMU', machine=_ARM),
    Option(('CMA',), 'the contiguous pool', machine=_ARM),
    Option(('DMA_CMA',), 'drivers allocating from the contiguous pool', machine=_ARM),
    Option(('UDMABUF',), '/dev/udmabuf, which makes dma-bufs of ordinary memory where there is no heap', instead='DMABUF_HEAPS'),
    Option(('IOMMU_SUPPORT',), 'IOMMUs, which gather scattered pages for a device'),
    Option(('IOMMU_DMA',), 'DMA through the IOMMU'),
    Option(('ARM_SMMU', 'ARM_SMMU_V3', 'TEGRA_IOMMU_SMMU'), "the SMMU of ARM boards", machine=_ARM),
    Option(('INTEL_IOMMU', 'AMD_IOMMU', 'VIRTIO_IOMMU'), 'the IOMMU of x86 machines', machine=('x86_64',)),
    Option(('MEMFD_CREATE',), 'frames in memfds where there is no dma-buf'),
    Option(('VIDEO_DEV', 'VIDEO_V4L2'), 'V4L2 cameras'),
    Option(('DMABUF_SYSFS_STATS',), 'exporter names in /sys/kernel/dmabuf; zc_verify takes debugfs without it', informative=True),
    Option(('DEBUG_FS',), 'debugfs, from which zc_verify reads attachments', informative=True),
    Option(('FTRACE', 'FUNCTION_TRACER'), 'trace events for zc_verify', informative=True),
)  # fmt: skip


def kernel_release(system: System, needs: Needs) -> Iterator[Finding]:
    """Old enough kernels have no heaps."""
    release, version = system.release, system.kernel_version()
    figures = {'release': release, 'machine': system.machine, 'tegra': system.is_tegra}
    found = f'Linux {release} on {system.machine}{" (Jetson)" if system.is_tegra else ""}'
    if version == (0, 0):
        yield Finding(Status.WARN, 'the kernel release could not be read', 'mount /proc', '', figures)
    elif version < HEAPS_SINCE:
        advice = 'install Linux 5.6 or newer: older kernels have no dma-heaps, and no device can import buffers of this package'
        yield Finding(Status.FAIL if needs.device_imports() else Status.WARN, f'{found}, which has no dma-heaps', advice, '', figures)
    else:
        yield ok(found, **figures)


def read_options(system: System) -> tuple[dict[str, str], str]:
    """The kernel's options without ``CONFIG_``, and the file that they are from; nothing and the files that were tried."""
    release, tried = system.release, []
    for name in ('proc/config.gz', f'boot/config-{release}', f'lib/modules/{release}/config', f'lib/modules/{release}/build/.config'):
        path = system.root / name
        try:
            raw = path.read_bytes()
            text = (gzip.decompress(raw) if raw[:2] == b'\x1f\x8b' else raw).decode(errors='replace')
        except (OSError, EOFError, zlib.error):
            tried.append('/' + name)
            continue
        found = {(m[1] or m[3]).removeprefix('CONFIG_'): (m[2] or 'n').strip('"') for m in _LINE.finditer(text)}
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
            'run modprobe configs, which makes /proc/config.gz, or install /boot/config-* of your distribution; '
            'the memory checks try the important options themselves'
        )
        yield Finding(Status.WARN, f"the kernel's options can't be read ({source}){shown}", advice, '', {'source': ''})
        return
    mine = [option for option in OPTIONS if not option.machine or system.machine in option.machine]
    figures = {name: options.get(name, 'n') for option in mine for name in option.names}
    missing = [
        option
        for option in mine
        if all(figures[name] == 'n' for name in (*option.names, option.instead) if name) and not _present_without_options(system, option)
    ]
    wanted = [option for option in missing if not option.informative]
    named = set(needs.own_heaps()) - {'auto', 'memfd'}
    need = Need.REQUIRED if needs.device_imports() or named else Need.POSSIBLE
    status = Status.OK
    if wanted:
        status = need.missing if any(option.core for option in wanted) else Status.WARN
    texts = [f'{" or ".join(option.names)} ({option.use})' for option in missing]
    found = f'{len(mine) - len(missing)} of {len(mine)} set ({source})' + (f'; not set: {", ".join(texts)}' if texts else '')
    advice = ''
    if wanted:
        names = ', '.join(f'CONFIG_{option.names[0]}=y' for option in wanted)
        advice = f'rebuild the kernel with {names}, or boot one that has them'
    yield Finding(status, found, advice, '', {'source': source, 'options': figures})


def sync_file_ioctls(system: System, needs: Needs) -> Iterator[Finding]:
    """Asked of a real buffer where one can be had, else by the version."""
    buffer = first_dmabuf(system)
    version = system.kernel_version()
    if buffer is None:
        there, how = version >= FENCES_SINCE, f'judged by the version {system.release}, as there is no dma-buf to try it with'
    else:
        with buffer as one:
            there, how = one.sync_supported, f'tried with a buffer of {one.heap}'
    if there:
        yield ok(f'fences can be exchanged with buffers ({how})', supported=True, asked=buffer is not None)
        return
    found = f'the kernel has no DMA_BUF_IOCTL_EXPORT_SYNC_FILE and IMPORT ({how})'
    advice = (
        'you need not do anything: the package waits for devices with poll(2) before it hands a buffer on; '
        'Linux 6.0 and newer have these ioctls'
    )
    yield Finding(Status.WARN, found, advice, '', {'supported': False, 'asked': buffer is not None})
