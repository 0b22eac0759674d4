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
Measure what the CPU copies: large copies by the C library, and the time of all copies.

This file has four parts. :class:`Sampler` takes samples with ``perf_event_open``.
:func:`find_copy_functions` finds ``memmove`` and ``memcpy`` in each process's C library;
:class:`MemmoveProbe` lets the kernel record their calls, and :func:`copies_of` evaluates these
calls. :func:`read_kernel_copies` finds the kernel's own copy functions. :func:`shares_of`
evaluates the samples of a :class:`Sampler`.

The dynamic linker chooses among variants of ``memmove`` for the CPU that it runs on. This process
asks its own linker which variant it chose, so only processes with the same library file can be
watched. If a library has no symbols, its unwind table tells where a function ends, even for
functions in assembler. ``/proc/kallsyms`` lists the kernel's functions.

A probe on a library hits in every process that uses the library, and makes each call about a
microsecond slower (twenty under emulation). The kernel keeps only the calls that copy
:data:`LARGE` bytes or more, and those whose source lies in a frame. The probe doesn't see copies
by inlined instructions or by loops of other libraries. Such a copy can read a frame only if the
process has mapped the frame, and another check finds all mappings of frames.

The processors are sampled without the ``perf`` program and without debug symbols: if the C library
has no symbols, ``perf`` prints bare addresses, so a search for "memcpy" never finds anything. One
event per CPU samples whatever runs there, and the samples are sorted by process afterwards. Events
for single threads are not used, because the kernel would rewrite the scheduler's code to follow
the threads, and each thread would need one descriptor per CPU.

Sources: unwind.h of GCC; Documentation/trace/uprobetracer.rst; perf_event_open(2).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
import ctypes
from dataclasses import dataclass, field
import fcntl
from itertools import pairwise
import mmap
import os
from pathlib import Path
import platform
import re
import struct
from typing import NamedTuple

from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.observe.processes import as_root, PROC, who
from zc_perception.verify.evidence import Unreadable, unreadable_file
from zc_perception.verify.evidence.buffers import MemoryMapping
from zc_perception.verify.evidence.kernel_events import Trace, TraceInstance

_SYSCALL = {'x86_64': 298, 'aarch64': 241, 'arm64': 241}
_TYPE_SOFTWARE, _CPU_CLOCK = 1, 0
# A prime number of samples per second, so that sampling doesn't keep step with periodic work.
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
    """Return ``(pid, address)`` of each sample in a ring's complete records."""
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
    """One CPU's perf event, with the ring buffer that gets its samples."""

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
        begin, end = self._base, self._base + self._size
        first, last = begin + tail % self._size, begin + head % self._size
        spans = ((first, last),) if first < last else ((first, end), (begin, last))
        data = b''.join(self._memory[start:stop] for start, stop in spans)
        struct.pack_into('<Q', self._memory, _TAIL, head)
        return data

    def close(self) -> None:
        self._memory.close()
        self._fd.close()


class Sampler:
    """Sample all CPUs from :meth:`start` to :meth:`stop`; :func:`open_sampler` makes an object."""

    def __init__(self, rings: Sequence[_Ring], pids: Collection[int]) -> None:
        self._rings = list(rings)
        self._met: dict[int, Counter[int]] = {pid: Counter() for pid in pids}

    def start(self) -> None:
        """Start sampling."""
        for ring in self._rings:
            ring.control(_ENABLE)

    def drain(self) -> None:
        """Count the samples in the rings and empty the rings; call this before a ring is full."""
        for ring in self._rings:
            for pid, address in parse_records(ring.take()):
                if pid in self._met:
                    self._met[pid][address] += 1

    def kept(self, pid: int) -> int:
        """Return how many samples of a process were kept until now."""
        return self._met[pid].total()

    def stop(self) -> dict[int, Counter[int]]:
        """Stop sampling; return for each process the number of samples at each address."""
        for ring in self._rings:
            ring.control(_DISABLE)
        self.drain()
        return self._met

    def close(self) -> None:
        """Close all perf events, and release their ring buffers."""
        for ring in self._rings:
            ring.close()
        self._rings = []


def parse_cpus(text: str) -> list[int]:
    """Parse a list of CPUs such as ``0-3,6``."""
    cpus: list[int] = []
    for part in text.strip().split(','):
        first, _, last = part.partition('-')
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def open_sampler(pids: Collection[int]) -> Sampler | Unreadable:
    """Return a sampler, not started yet, that keeps the samples of the processes *pids*."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        return Unreadable(
            'sampling',
            f'the system call perf_event_open of {platform.machine()} is not known here',
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
            'sampling', f'perf_event_open: {reason}', f'{as_root()}, or give zc_verify CAP_PERFMON'
        )
    return Sampler(rings, pids)


COPY_FUNCTIONS = ('memmove', 'memcpy')
_CODE = re.compile(
    r'^([0-9a-f]+)-([0-9a-f]+) (\S\Sx\S) ([0-9a-f]+) \S+ \d+\s+(/.*?)( \(deleted\))?$'
)
_UNKNOWN_SIZE, _LARGEST = 2048, 1 << 16
_LIBC = re.compile(r'^(libc\.so\.6|libc-2\.\d+\.so|ld-musl-.*\.so\.1|libc\.so)$')


class CodeMapping(NamedTuple):
    """An executable mapping of a part of a file; the part begins at *offset*."""

    start: int
    end: int
    offset: int
    path: str


@dataclass(frozen=True)
class CopyFunction:
    """
    A function of one library file.

    :ivar names: the function's names; often one function is both memmove and memcpy.
    :ivar file: a path by which this process can open the file.
    :ivar offset: where the function's first instruction is in the file, in bytes.
    :ivar size: the function's length in bytes.
    :ivar pids: the processes that have this library mapped.
    """

    names: tuple[str, ...]
    file: Path
    offset: int
    size: int
    pids: tuple[int, ...]

    def ranges(self, code: Iterable[CodeMapping]) -> list[tuple[int, int]]:
        """Return the function's address ranges in the process that has the mappings *code*."""
        code = list(code)
        path = libc_path(code)
        starts = [
            part.start - part.offset + self.offset
            for part in code
            if part.path == path
            and part.offset <= self.offset < part.offset + part.end - part.start
        ]
        return [(start, start + self.size) for start in starts]


def parse_code(text: str) -> list[CodeMapping]:
    """Return the executable mappings of files in *text*, the content of ``/proc/PID/maps``."""
    matches = (_CODE.match(line) for line in text.splitlines())
    return [CodeMapping(int(m[1], 16), int(m[2], 16), int(m[4], 16), m[5]) for m in matches if m]


def code_of(pid: int | str, proc: Path = PROC) -> list[CodeMapping]:
    """Return the executable mappings of a process."""
    return parse_code((proc / str(pid) / 'maps').read_text(errors='replace'))


def libc_path(code: Iterable[CodeMapping]) -> str:
    """Return the C library's path in a process's *code*; empty for a static program."""
    return next((part.path for part in code if _LIBC.match(os.path.basename(part.path))), '')


def function_size(address: int) -> int:
    """Return a function's size from its library's unwind table; 2048 if the table lacks it."""
    try:
        enclosing = ctypes.CDLL('libgcc_s.so.1')._Unwind_FindEnclosingFunction
    except (OSError, AttributeError):
        return _UNKNOWN_SIZE
    enclosing.restype, enclosing.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    # _Unwind_FindEnclosingFunction expects a return address, and looks up the byte before it. So
    # add 1 to the address of the byte to look up.
    return (
        next(
            (size for size in range(_LARGEST) if enclosing(address + size + 1) != address),
            _LARGEST,
        )
        or _UNKNOWN_SIZE
    )


def own_functions(proc: Path = PROC) -> tuple[Path, dict[tuple[int, int], tuple[str, ...]]]:
    """
    Return the path of this process's C library, and a dict of the library's copy functions.

    The key is (a function's offset in the file, its size); the value is the function's names.

    :raises OSError: a copy function is not in the C library, or the library can't be found.
    """
    library = ctypes.CDLL(None)
    code = code_of('self', proc)
    file = Path(libc_path(code))
    found: dict[tuple[int, int], tuple[str, ...]] = {}
    for name in COPY_FUNCTIONS:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        for part in code:
            if part.start <= address < part.end and part.path == str(file):
                place = address - part.start + part.offset, function_size(address)
                found[place] = (*found.get(place, ()), name)
    if sum(map(len, found.values())) < len(COPY_FUNCTIONS):
        raise OSError('memmove or memcpy comes from another library (LD_PRELOAD?)')
    return file, found


def _identity(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def find_copy_functions(
    pids: Iterable[int], proc: Path = PROC
) -> tuple[list[CopyFunction], list[Unreadable]]:
    """
    Return the copy functions in these processes' C libraries.

    :returns: the functions, and a reason for each process whose functions can't be watched.
    """
    unreadable: list[Unreadable] = []
    users: list[int] = []
    file = None
    try:
        own, names = own_functions(proc)
        identity = _identity(own)
    except OSError as error:
        step = 'mount /proc, and start zc_verify without LD_PRELOAD'
        return [], [
            Unreadable('memmove', f"zc_verify's own copy functions are not found: {error}", step)
        ]
    for pid in pids:
        source = f'memmove of {who(pid, proc)}'
        try:
            path = libc_path(code_of(pid, proc))
            if not path:
                unreadable.append(
                    Unreadable(
                        source,
                        'this program has no C library (is it linked statically?)',
                        'link this program dynamically, so that its copies can be counted',
                    )
                )
                continue
            its = proc / str(pid) / 'root' / path.lstrip('/')
            if _identity(its) == identity:
                users.append(pid)
                file = file or its
            else:
                step = 'run zc_verify with the same Python as the nodes, in the same container'
                reason = f'the C library of this program ({its}) is not the one that zc_verify has'
                unreadable.append(Unreadable(source, reason, step))
        except (FileNotFoundError, ProcessLookupError):
            unreadable.append(
                Unreadable(
                    source, 'the process has ended, or its library was replaced', 'start it again'
                )
            )
        except OSError as error:
            unreadable.append(
                unreadable_file(proc / str(pid) / 'maps', error, 'start it again', source)
            )
    if file is None:
        return [], unreadable
    return [
        CopyFunction(called, file, offset, size, tuple(users))
        for (offset, size), called in names.items()
    ], unreadable


def argument_registers(machine: str = '') -> tuple[str, str, str] | Unreadable:
    """Return the registers of a function's first three arguments, in the syntax of probes."""
    machine = machine or platform.machine()
    if machine in ('x86_64', 'AMD64'):
        return '%di', '%si', '%dx'
    if machine in ('aarch64', 'arm64'):
        return '%x0', '%x1', '%x2'
    return Unreadable(
        'memmove probe',
        f'the registers of a {machine} are not known here',
        'measure on x86_64 or arm64',
    )


LARGE = 65536
COPY = 'libc_copy'
# The largest number of ranges in a filter. A filter is a text, which may fill one page of memory.
_MAX_RANGES = 24


def covering(
    ranges: Collection[tuple[int, int]], most: int = _MAX_RANGES
) -> list[tuple[int, int]]:
    """
    Merge *ranges* of addresses across the smallest gaps, until at most *most* remain.

    So copies from these gaps are recorded, too; :func:`copies_of` leaves them out.
    """
    found = sorted(ranges)
    while len(found) > most:
        gaps = [after[0] - before[1] for before, after in pairwise(found)]
        at = gaps.index(min(gaps))
        (start, end), (_, other) = found[at : at + 2]
        found[at : at + 2] = [(start, max(end, other))]
    return found


class MemmoveProbe:
    """
    Probes on the copy functions of the nodes' C libraries.

    :ivar functions: the functions that are watched.
    :ivar unreadable: what can't be watched.
    :ivar calls: how often any process called these functions, with any size, while they were
        watched.
    """

    def __init__(self, instance: TraceInstance) -> None:
        self.functions: list[CopyFunction] = []
        self.unreadable: list[Unreadable] = []
        self.calls = 0
        self._instance = instance
        self._events: list[str] = []
        self._condition = f'n >= {LARGE}'
        self._ranges: frozenset[tuple[int, int]] = frozenset()

    def begin(self, pids: Iterable[int], proc: Path = PROC) -> None:
        """Install and enable one probe for each copy function in these processes' libraries."""
        registers = argument_registers()
        if isinstance(registers, Unreadable):
            self.unreadable.append(registers)
            return
        functions, self.unreadable = find_copy_functions(pids, proc)
        for index, function in enumerate(functions):
            self._install(f'{COPY}_{index}', function, registers)

    def _install(self, name: str, function: CopyFunction, registers: tuple[str, str, str]) -> None:
        event = f'{self._instance.group}/{name}'
        source = f'{"/".join(function.names)} of {function.file}'
        if any(character.isspace() for character in str(function.file)):
            self.unreadable.append(
                Unreadable(
                    source,
                    'the path has a space, and the kernel takes no such path for a probe',
                    'install the library elsewhere',
                )
            )
            return
        destination, origin, size = registers
        try:
            self._instance.install(
                f'p:{event} {function.file}:{function.offset:#x} dst={destination}:x64 '
                f'src={origin}:x64 n={size}:u64'
            )
            self._instance.keep_only(event, self._condition)
            self._instance.enable(event)
        except OSError as error:
            step = (
                'use a kernel with CONFIG_UPROBE_EVENTS, or omit the probe: --no-memmove-probe'
            )
            self.unreadable.append(
                Unreadable(source, f'the probe was refused: {error.strerror}', step)
            )
            return
        self._events.append(event)
        self.functions.append(function)

    def watch_sources(self, mappings: Iterable[MemoryMapping]) -> None:
        """
        Record also small copies, if their source is in one of these mappings.

        Change only the filter of the installed probes. Another probe would be a risk, because the
        kernel rewrites running code to install a probe.
        """
        ranges = self._ranges | {(mapping.start, mapping.end) for mapping in mappings}
        if ranges == self._ranges:
            return
        self._ranges = ranges
        parts = [
            f'n >= {LARGE}',
            *(f'(src >= {start:#x} && src < {end:#x})' for start, end in covering(ranges)),
        ]
        for event in self._events:
            try:
                self._instance.keep_only(event, ' || '.join(parts))
            except OSError as error:
                self.unreadable.append(
                    Unreadable(
                        'memmove probe',
                        f'its filter was refused: {error.strerror}',
                        'report the kernel version',
                    )
                )
                return

    def end(self) -> None:
        """
        Stop recording copies, and store the number of calls.

        When the measured time ends, call this first, because the probes slow all processes down.
        """
        self.calls = self._instance.probe_hits()
        for event in self._events:
            try:
                self._instance.disable(event)
            except OSError as error:
                self.unreadable.append(
                    Unreadable(
                        'memmove probe',
                        f'it could not be ended: {error.strerror}',
                        'see the kernel log',
                    )
                )
        self._events = []


@dataclass(frozen=True)
class LargeCopy:
    """Copies of one size by one process, either large ones or copies whose source is a frame."""

    pid: int
    size: int
    from_frame: bool
    count: int


def copies_of(
    trace: Trace,
    process_of: Mapping[int, int],
    mappings: Collection[MemoryMapping],
    start_ns: int,
    end_ns: int,
) -> list[LargeCopy]:
    """
    Return the nodes' copies that are large or whose source is a frame, most frequent first.

    Only copies from *start_ns* to *end_ns* count.
    """
    found: Counter[tuple[int, int, bool]] = Counter()
    for event in trace.events:
        pid = process_of.get(event.tid)
        if (
            pid is None
            or not event.name.startswith(COPY)
            or not start_ns <= event.time_ns <= end_ns
        ):
            continue
        size, source = event.number('n'), event.number('src')
        from_frame = any(mapping.pid == pid and source in mapping for mapping in mappings)
        if size >= LARGE or from_frame:
            found[pid, size, from_frame] += 1
    return [
        LargeCopy(pid, size, from_frame, count)
        for (pid, size, from_frame), count in found.most_common()
    ]


_SYMBOL = re.compile(
    rb'^([0-9a-f]{8,16}) [tTwW] '
    rb'((?:_*(?:memcpy|memmove)(?:_\w+)?|_*(?:arch_)?copy_(?:from|to|in)_user(?:_\w+)?'
    rb'|copy_user_generic\w*|rep_movs_alternative))(?:\t[^\n]*)?\n(?=([0-9a-f]{8,16}) |)',
    re.MULTILINE,
)
_OTHERWISE = 4096


def parse_kernel_copies(text: bytes) -> list[tuple[int, int, str]]:
    """Return ``(start, end, name)`` of each copy function in the text of ``/proc/kallsyms``."""
    symbols = [
        (int(match[1], 16), int(match[3] or b'0', 16), match[2].decode())
        for match in _SYMBOL.finditer(text)
    ]
    # One address may have several names, so a symbol ends at the next different address.
    ends = sorted({place for start, following, _ in symbols for place in (start, following)})
    found = []
    for start, _, name in symbols:
        index = bisect_right(ends, start)
        end = min(ends[index], start + _OTHERWISE) if index < len(ends) else start + _OTHERWISE
        found.append((start, end, name))
    return found


def read_kernel_copies(proc: Path = PROC) -> list[tuple[int, int, str]] | Unreadable:
    """Return the copy functions of the running kernel."""
    path = proc / 'kallsyms'
    try:
        found = parse_kernel_copies(path.read_bytes())
    except OSError as error:
        return unreadable_file(path, error, 'use a kernel with CONFIG_KALLSYMS', 'kernel symbols')
    if not any(start for start, _, _ in found):
        return Unreadable(
            'kernel symbols',
            'the kernel shows no addresses',
            'run as root, with sysctl kernel.kptr_restrict=1 or 0',
        )
    return found


def name_at(symbols: Iterable[tuple[int, int, str]], address: int) -> str:
    """Return the name of the copy function at an address; empty if there is none."""
    return next((name for start, end, name in symbols if start <= address < end), '')


_USER_END = 1 << 63


@dataclass(frozen=True)
class CopyShare:
    """
    How many CPU samples of a process hit copy functions; taken directly after the measured time.

    :ivar copying: samples in the C library's memcpy and memmove.
    :ivar kernel: samples in the kernel's copy functions, by the function's name.
    """

    pid: int
    samples: int
    copying: int
    kernel: Mapping[str, int] = field(default_factory=dict)

    @property
    def percent(self) -> float:
        """
        Return the share of samples in the copy function that has the most samples, in per cent.

        The C library's memcpy and memmove count as one function. Each of the kernel's variants of
        memcpy and memmove counts as one function. The kernel's other copy functions don't count.
        """
        kernel = (
            count for name, count in self.kernel.items() if 'memcpy' in name or 'memmove' in name
        )
        return 100.0 * max(self.copying, *kernel, 0) / self.samples if self.samples else 0.0


def shares_of(
    samples: Mapping[int, Counter[int]], pids: Sequence[int], proc: Path = PROC
) -> tuple[list[CopyShare] | None, list[Unreadable]]:
    """
    Return how many CPU samples of each process hit copy functions, and what could not be read.

    A sample is the address of the instruction that a CPU executed. The first result is ``None`` if
    the copy functions of no process are known.
    """
    functions, unreadable = find_copy_functions(pids, proc)
    kernel: list[tuple[int, int, str]] = []
    if any(address >= _USER_END for pid in pids for address in samples.get(pid, ())):
        read = read_kernel_copies(proc)
        if isinstance(read, Unreadable):
            unreadable.append(read)
        else:
            kernel = read
    shares = []
    for pid in pids:
        met = samples.get(pid, Counter())
        ranges: list[tuple[int, int]] = []
        try:
            code = code_of(pid, proc)
            for function in functions:
                ranges += function.ranges(code) if pid in function.pids else []
        except OSError as error:
            unreadable.append(
                Unreadable(
                    f'samples of process {pid}', str(error.strerror), 'measure while it runs'
                )
            )
        if not ranges:
            continue
        in_kernel: Counter[str] = Counter()
        for address, count in met.items():
            if address >= _USER_END and (name := name_at(kernel, address)):
                in_kernel[name] += count
        copying = sum(
            count
            for address, count in met.items()
            if any(start <= address < end for start, end in ranges)
        )
        shares.append(CopyShare(pid, sum(met.values()), copying, dict(in_kernel)))
    return (shares or None), unreadable
