"""What is copied by the CPU: every large copy of the nodes' C library, counted exactly, and how much of their time all copying takes.

In this file, in this order: where ``memmove`` and ``memcpy`` of each process's C library are; :class:`MemmoveProbe`, which has the kernel
record their calls, and :func:`copies_of`, which sorts them; where the kernel's own copy functions are; :func:`shares_of`, which sorts what
:mod:`~zc_perception.verify.evidence.sampling` met.

The dynamic linker chooses among variants of ``memmove`` for the CPU that it runs on. It is asked for its choice in this process, so only
processes with the same library file can be watched. Where a function of a library without symbols ends, its unwind table tells, which lists
functions in assembler too. The kernel's functions are in ``/proc/kallsyms``.

A probe on a library hits in every process of the machine that has it, and costs each call about a microsecond (twenty under emulation);
the kernel keeps only those of :data:`LARGE` bytes and more, and those whose source lies in a frame. Copies by inlined instructions, and in
loops of other libraries, are not seen: that nobody has a frame mapped is the stronger statement.

Sources: unwind.h of GCC; Documentation/trace/uprobetracer.rst.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from zc_perception.observe.processes import PROC, who
from zc_perception.verify.evidence import Unreadable, unreadable_file
from zc_perception.verify.evidence.kernel_events import Trace
from zc_perception.verify.evidence.mappings import MemoryMapping
from zc_perception.verify.evidence.tracefs import TraceInstance

COPY_FUNCTIONS = ('memmove', 'memcpy')
_CODE = re.compile(
    r'^([0-9a-f]+)-([0-9a-f]+) (\S\Sx\S) ([0-9a-f]+) \S+ \d+\s+(/.*?)( \(deleted\))?$'
)
_UNKNOWN_SIZE, _LARGEST = 2048, 1 << 16
_LIBC = re.compile(r'^(libc\.so\.6|libc-2\.\d+\.so|ld-musl-.*\.so\.1|libc\.so)$')


class CodeMapping(NamedTuple):
    """An executable mapping of a file; *offset* in the file."""

    start: int
    end: int
    offset: int
    path: str


@dataclass(frozen=True)
class CopyFunction:
    """A function of one library file.

    :ivar names: what it is called; often both names are one function.
    :ivar file: a path that leads to the file from here.
    :ivar offset: of its first instruction, in the file; *size*: its bytes.
    :ivar pids: the processes that have this file.
    """

    names: tuple[str, ...]
    file: Path
    offset: int
    size: int
    pids: tuple[int, ...]

    def ranges(self, code: Iterable[CodeMapping]) -> list[tuple[int, int]]:
        """Its addresses in a process."""
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
    """The executable mappings of files in a ``maps``."""
    matches = (_CODE.match(line) for line in text.splitlines())
    return [CodeMapping(int(m[1], 16), int(m[2], 16), int(m[4], 16), m[5]) for m in matches if m]


def code_of(pid: int | str, proc: Path = PROC) -> list[CodeMapping]:
    """Of a process.

    :raises OSError: its maps can't be read.
    """
    return parse_code((proc / str(pid) / 'maps').read_text(errors='replace'))


def libc_path(code: Iterable[CodeMapping]) -> str:
    """The C library among them; empty: there is none, or it is linked in."""
    return next((part.path for part in code if _LIBC.match(os.path.basename(part.path))), '')


def function_size(address: int) -> int:
    """Of a function of this process, by the unwind table of its library; 2048 where that doesn't know it."""
    try:
        enclosing = ctypes.CDLL('libgcc_s.so.1')._Unwind_FindEnclosingFunction
    except (OSError, AttributeError):
        return _UNKNOWN_SIZE
    enclosing.restype, enclosing.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    # It takes the address behind an instruction.
    return (
        next(
            (size for size in range(_LARGEST) if enclosing(address + size + 1) != address),
            _LARGEST,
        )
        or _UNKNOWN_SIZE
    )


def own_functions(proc: Path = PROC) -> tuple[Path, dict[tuple[int, int], tuple[str, ...]]]:
    """The C library of this process, and by offset and size what is called so there, as the linker chose.

    :raises OSError: it can't be told.
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
        raise OSError('memmove or memcpy is that of another library (LD_PRELOAD?)')
    return file, found


def _identity(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def find_copy_functions(
    pids: Iterable[int], proc: Path = PROC
) -> tuple[list[CopyFunction], list[Unreadable]]:
    """The copy functions of the C libraries of these processes, and the processes of which they are not known."""
    unreadable: list[Unreadable] = []
    users: list[int] = []
    file = None
    try:
        own, names = own_functions(proc)
        identity = _identity(own)
    except OSError as error:
        step = 'start zc_verify with /proc, and without LD_PRELOAD'
        return [], [Unreadable('memmove', f'the own copy functions are not found: {error}', step)]
    for pid in pids:
        source = f'memmove of {who(pid, proc)}'
        try:
            path = libc_path(code_of(pid, proc))
            if not path:
                unreadable.append(
                    Unreadable(
                        source,
                        'it has no C library (a static program?)',
                        'link it dynamically to measure it',
                    )
                )
                continue
            its = proc / str(pid) / 'root' / path.lstrip('/')
            if _identity(its) == identity:
                users.append(pid)
                file = file or its
            else:
                step = 'run zc_verify with the same Python as the nodes, in the same container'
                unreadable.append(
                    Unreadable(source, f'it has another C library than this process ({its})', step)
                )
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
    """The registers of a function's first three arguments, in the probes' spelling."""
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
_MAX_RANGES = 24


class MemmoveProbe:
    """Probes on the C libraries of the nodes.

    :ivar functions: those that are watched.
    :ivar unreadable: what can't be.
    :ivar calls: of these functions, of any size, by anybody, while they were watched.
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
        """Install and enable the probes, each once."""
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
                    'the path has a space, which a probe cannot have',
                    'install it elsewhere',
                )
            )
            return
        destination, origin, size = registers
        try:
            self._instance.install(
                f'p:{event} {function.file}:{function.offset:#x} dst={destination}:x64 src={origin}:x64 n={size}:u64'
            )
            self._instance.filter(event, self._condition)
            self._instance.enable(event)
        except OSError as error:
            step = (
                'use a kernel with CONFIG_UPROBE_EVENTS, or leave it out with --no-memmove-probe'
            )
            self.unreadable.append(
                Unreadable(source, f'the probe was refused: {error.strerror}', step)
            )
            return
        self._events.append(event)
        self.functions.append(function)

    def watch_sources(self, mappings: Iterable[MemoryMapping]) -> None:
        """From now on also keep copies of any size out of these mappings. This rewrites no code."""
        ranges = self._ranges | {(mapping.start, mapping.end) for mapping in mappings}
        if ranges == self._ranges or len(ranges) > _MAX_RANGES:
            return
        self._ranges = ranges
        parts = [
            f'n >= {LARGE}',
            *(f'(src >= {start:#x} && src < {end:#x})' for start, end in sorted(ranges)),
        ]
        for event in self._events:
            try:
                self._instance.filter(event, ' || '.join(parts))
            except OSError as error:
                self.unreadable.append(
                    Unreadable(
                        'memmove probe',
                        f'its filter was refused: {error.strerror}',
                        'report the kernel',
                    )
                )
                return

    def end(self) -> None:
        """Stop watching, before anything else goes on: the probes slow their processes down."""
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
    """Copies that a node's C library made, of one size.

    :ivar from_frame: whether they were made out of a frame; else they are of at least :data:`LARGE` bytes.
    """

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
    """The nodes' large copies, and those out of frames, in a window; the most frequent first."""
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
    rb'^([0-9a-f]{8,16}) [tTwW] ((?:_*(?:memcpy|memmove)(?:_\w+)?|_*(?:arch_)?copy_(?:from|to|in)_user(?:_\w+)?|copy_user_generic\w*'
    rb'|rep_movs_alternative))(?:\t[^\n]*)?\n(?=([0-9a-f]{8,16}) |)',
    re.MULTILINE,
)
_OTHERWISE = 4096


def parse_kernel_copies(text: bytes) -> list[tuple[int, int, str]]:
    """``(start, end, name)`` of the functions that copy."""
    symbols = [
        (int(match[1], 16), int(match[3] or b'0', 16), match[2].decode())
        for match in _SYMBOL.finditer(text)
    ]
    # Several names may stand for one place.
    ends = sorted({place for start, following, _ in symbols for place in (start, following)})
    found = []
    for start, _, name in symbols:
        index = bisect_right(ends, start)
        end = min(ends[index], start + _OTHERWISE) if index < len(ends) else start + _OTHERWISE
        found.append((start, end, name))
    return found


def read_kernel_copies(proc: Path = PROC) -> list[tuple[int, int, str]] | Unreadable:
    """Of the running kernel."""
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
    """The copy function at an address; empty: none."""
    return next((name for start, end, name in symbols if start <= address < end), '')


_USER_END = 1 << 63


@dataclass(frozen=True)
class CopyShare:
    """A process's samples, taken just after the window.

    :ivar copying: those in the C library's memcpy and memmove.
    :ivar kernel: those in the kernel's copy functions, by function.
    """

    pid: int
    samples: int
    copying: int
    kernel: Mapping[str, int] = field(default_factory=dict)

    @property
    def percent(self) -> float:
        """Of its own time, in the function that it copied in most: the "self" of a profile is one function's."""
        kernel = (
            count for name, count in self.kernel.items() if 'memcpy' in name or 'memmove' in name
        )
        return 100.0 * max(self.copying, *kernel, 0) / self.samples if self.samples else 0.0


def shares_of(
    samples: Mapping[int, Counter[int]], pids: Sequence[int], proc: Path = PROC
) -> tuple[list[CopyShare] | None, list[Unreadable]]:
    """How much of each process's time went into copying; ``None``: it can't be told.

    :param samples: for each process, how often each address was met.
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
