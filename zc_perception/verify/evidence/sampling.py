"""Where the processors spend their time: samples of ``perf_event_open``, without the ``perf`` program and without debug symbols.

Each CPU's clock is sampled with whatever runs there, and the samples are sorted by process. Events of single threads would follow them by
rewriting the scheduler's code (see :mod:`~zc_perception.verify.evidence.tracefs`) and need one descriptor for each thread and CPU.

``perf`` itself is no help here: without symbols of the C library it names bare addresses, so a search for "memcpy" finds nothing, ever.

Source: perf_event_open(2).
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.observe.privileges import as_root
from zc_perception.verify.evidence import Unreadable

_SYSCALL = {'x86_64': 298, 'aarch64': 241, 'arm64': 241}
_TYPE_SOFTWARE, _CPU_CLOCK = 1, 0
# A prime, so that it doesn't keep step with what happens at a round rate.
_FREQUENCY_HZ = 499
_SAMPLE_IP, _SAMPLE_TID = 1, 2
_EXCLUDE_IDLE, _DISABLED, _FREQUENCY = 1 << 7, 1 << 0, 1 << 10
_ATTRIBUTE = struct.Struct('<IIQQQQQIIQ')
_FLAG_CLOEXEC = 8
_RECORD = struct.Struct('<IHH')
_SAMPLE = struct.Struct('<QII')
_SAMPLED = 9
_HEAD, _TAIL = 1024, 1032
_PAGES = 64
_ENABLE, _DISABLE = 0x2400, 0x2401


def parse_records(data: bytes) -> list[tuple[int, int]]:
    """``(pid, address)`` of the samples in whole records of a ring."""
    samples = []
    place = 0
    while place + _RECORD.size <= len(data):
        kind, _, size = _RECORD.unpack_from(data, place)
        if size < _RECORD.size or place + size > len(data):
            break
        if kind == _SAMPLED and size >= _RECORD.size + _SAMPLE.size:
            address, pid, _ = _SAMPLE.unpack_from(data, place + _RECORD.size)
            samples.append((pid, address))
        place += size
    return samples


class _Ring:
    """One CPU's event with its ring of samples."""

    def __init__(self, fd: OwnedFd) -> None:
        self._fd = fd
        page = mmap.PAGESIZE
        try:
            self._memory = mmap.mmap(fd.fileno(), (1 + _PAGES) * page)
        except (OSError, ValueError):
            fd.close()
            raise
        self._base, self._size = page, _PAGES * page

    def control(self, request: int) -> None:
        fcntl.ioctl(self._fd.fileno(), request, 0)

    def take(self) -> bytes:
        head, tail = struct.unpack_from('<QQ', self._memory, _HEAD)
        if head == tail:
            return b''
        first, last = tail % self._size, head % self._size
        if first < last:
            data = self._memory[self._base + first : self._base + last]
        else:
            data = (
                self._memory[self._base + first : self._base + self._size]
                + self._memory[self._base : self._base + last]
            )
        struct.pack_into('<Q', self._memory, _TAIL, head)
        return data

    def close(self) -> None:
        self._memory.close()
        self._fd.close()


class Sampler:
    """Samples all CPUs while it is started. Made by :func:`open_sampler`."""

    def __init__(self, rings: Sequence[_Ring], pids: Collection[int]) -> None:
        self._rings = list(rings)
        self._met: dict[int, Counter[int]] = {pid: Counter() for pid in pids}

    def start(self) -> None:
        """Sample from now on."""
        for ring in self._rings:
            ring.control(_ENABLE)

    def drain(self) -> None:
        """Take the samples out of the rings, before they are full."""
        for ring in self._rings:
            for pid, address in parse_records(ring.take()):
                if pid in self._met:
                    self._met[pid][address] += 1

    def kept(self, pid: int) -> int:
        """Samples of a process so far."""
        return self._met[pid].total()

    def stop(self) -> dict[int, Counter[int]]:
        """Sample no more; for each process, how often each address was met."""
        for ring in self._rings:
            ring.control(_DISABLE)
        self.drain()
        return self._met

    def close(self) -> None:
        """Give everything back."""
        for ring in self._rings:
            ring.close()
        self._rings = []


def parse_cpus(text: str) -> list[int]:
    """A list such as ``0-3,6``."""
    cpus: list[int] = []
    for part in text.strip().split(','):
        first, _, last = part.partition('-')
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def open_sampler(pids: Collection[int]) -> Sampler | Unreadable:
    """An event on each CPU, not started.

    :param pids: the processes whose samples are kept.
    """
    number = _SYSCALL.get(platform.machine())
    if number is None:
        return Unreadable(
            'sampling',
            f'perf_event_open on {platform.machine()} is not known here',
            'measure on x86_64 or arm64',
        )
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _DISABLED | _EXCLUDE_IDLE | _FREQUENCY
    size = _ATTRIBUTE.size
    attribute = _ATTRIBUTE.pack(
        _TYPE_SOFTWARE,
        size,
        _CPU_CLOCK,
        _FREQUENCY_HZ,
        _SAMPLE_IP | _SAMPLE_TID,
        0,
        flags,
        0,
        0,
        0,
    )
    rings: list[_Ring] = []
    try:
        try:
            cpus = parse_cpus(Path('/sys/devices/system/cpu/online').read_text(encoding='ascii'))
        except (OSError, ValueError):
            cpus = list(range(os.cpu_count() or 1))
        for cpu in cpus:
            fd = libc.syscall(number, attribute, -1, cpu, -1, _FLAG_CLOEXEC)
            if fd < 0:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))
            rings.append(_Ring(OwnedFd(fd)))
    except (OSError, ValueError) as error:
        for ring in rings:
            ring.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Unreadable(
            'sampling', f'perf_event_open: {reason}', f'{as_root()}, or give it CAP_PERFMON'
        )
    return Sampler(rings, pids)
