"""Where the functions are that copy: ``memmove`` and ``memcpy`` of each process's C library, and the kernel's own.

The dynamic linker chooses among variants of ``memmove`` for the CPU that it runs on. Which one is asked of the linker itself, in a process
with the same library file: this one, else one of the target's interpreter. Where a function of a library without symbols ends, the
library's unwind table tells: it lists the beginnings of all functions, those in assembler too. The kernel's functions are in
``/proc/kallsyms``.

Sources: Linux Standard Base, *The .eh_frame_hdr section*; ELF-64 object file format.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import subprocess
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from zc_perception.verify.evidence.processes import PROC, command_name
from zc_perception.verify.evidence.unreadable import Unreadable, unreadable_file

_LOAD, _EH_FRAME = 1, 0x6474E550
_HEADER = struct.Struct('<4sBBBB8xHHIQQQIHHHHHH')
_SEGMENT = struct.Struct('<IIQQQQQQ')
_UDATA4, _DATAREL_SDATA4 = 0x03, 0x3B


def function_range(path: Path, offset: int, otherwise: int = 2048) -> tuple[int, int]:
    """Offsets of the first byte of the function at *offset* of a 64-bit little-endian ELF file, and of the byte behind its last.

    :param otherwise: bytes that are taken for it where the file has no such table, or none that knows it.
    :raises OSError: the file can't be read.
    """
    data = path.read_bytes()
    try:
        end = _end(data, offset)
    except (struct.error, ValueError):  # the unwind table does not tell
        return offset, offset + otherwise
    return offset, end


def _end(data: bytes, offset: int) -> int:
    magic, bits, order, _, _, _, _, _, _, table, _, _, _, size, count, _, _, _ = _HEADER.unpack_from(data)
    if magic != b'\x7fELF' or bits != 2 or order != 1 or size != _SEGMENT.size:
        raise ValueError('not a 64-bit little-endian ELF file')
    segments = [_SEGMENT.unpack_from(data, table + index * size) for index in range(count)]
    loads = [(place, address, length) for kind, _, place, address, _, length, _, _ in segments if kind == _LOAD]
    header = next(((place, address) for kind, _, place, address, _, _, _, _ in segments if kind == _EH_FRAME), None)
    if header is None:
        raise ValueError('there is none')
    shift = next((address - place for place, address, length in loads if place <= offset < place + length), None)
    if shift is None:
        raise ValueError('the function is in no segment')
    starts = _starts(data, *header)
    index = bisect_right(starts, offset + shift)
    if not index or starts[index - 1] != offset + shift or index == len(starts):
        raise ValueError('it has no function that begins there')
    return int(starts[index] - shift)


def _starts(data: bytes, place: int, address: int) -> list[int]:
    """Addresses of all functions, in order."""
    version, pointer, number, table = data[place : place + 4]
    if version != 1 or number != _UDATA4 or table != _DATAREL_SDATA4 or pointer & 0x0F not in (0x03, 0x0B):
        raise ValueError('it is encoded in another way than linkers do')
    (count,) = struct.unpack_from('<I', data, place + 8)
    pairs = struct.unpack_from(f'<{2 * count}i', data, place + 12)
    return [address + start for start in pairs[::2]]


COPY_FUNCTIONS = ('memmove', 'memcpy')
_CODE = re.compile(r'^([0-9a-f]+)-([0-9a-f]+) (\S\Sx\S) ([0-9a-f]+) \S+ \d+\s+(/.*?)( \(deleted\))?$')
_LIBC = re.compile(r'^(libc\.so\.6|libc-2\.\d+\.so|ld-musl-.*\.so\.1|libc\.so)$')
_HELPER_S = 20.0
# For an interpreter that may not have this package: NAME OFFSET PATH, one line each.
_HELPER = """
import ctypes
c = ctypes.CDLL(None)
for n in ('memmove', 'memcpy'):
    a = ctypes.cast(getattr(c, n), ctypes.c_void_p).value
    for l in open('/proc/self/maps'):
        f = l.split(None, 5)
        s, e = (int(x, 16) for x in f[0].split('-'))
        if s <= a < e and len(f) == 6:
            print(n, a - s + int(f[2], 16), f[5].strip())
"""


@dataclass(frozen=True)
class CodeMapping:
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
    :ivar offset: of its first instruction, in the file.
    :ivar pids: the processes that have this file.
    """

    names: tuple[str, ...]
    file: Path
    offset: int
    pids: tuple[int, ...]

    def ranges(self, code: Iterable[CodeMapping], start: int, end: int, path: str) -> list[tuple[int, int]]:
        """Addresses that the file's bytes from *start* to *end* have in a process, whose name for it is *path*."""
        found = []
        for part in code:
            if part.path == path and part.offset < end and start < part.offset + part.end - part.start:
                base = part.start - part.offset
                found.append((base + start, base + end))
        return found


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


def own_functions(proc: Path = PROC) -> dict[str, tuple[str, int]]:
    """By name: file and offset, as this process's linker chose.

    :raises OSError: its maps can't be read.
    """
    library = ctypes.CDLL(None)
    code = code_of('self', proc)
    found = {}
    for name in COPY_FUNCTIONS:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        for part in code:
            if part.start <= address < part.end:
                found[name] = (part.path, address - part.start + part.offset)
    return found


def _helper_functions(pid: int, proc: Path) -> dict[str, tuple[str, int]]:
    """The same, asked of the target's interpreter; empty: it is none, or sees other files than we do."""
    try:
        program = os.readlink(proc / str(pid) / 'exe')
        if os.readlink(proc / str(pid) / 'ns' / 'mnt') != os.readlink(proc / 'self' / 'ns' / 'mnt'):
            return {}
        if not os.path.basename(program).startswith('python'):
            return {}
        command = [program, '-I', '-S', '-c', _HELPER]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_HELPER_S, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = (line.split(' ', 2) for line in answer.splitlines())
    return {name: (path, int(offset)) for name, offset, path in lines}


def _identity(path: str | Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def find_copy_functions(pids: Sequence[int], proc: Path = PROC) -> tuple[list[CopyFunction], list[Unreadable]]:
    """The copy functions of the C libraries of these processes, one library after the other."""
    unreadable: list[Unreadable] = []
    by_file: dict[tuple[int, int], tuple[Path, list[int]]] = {}
    for pid in pids:
        source = f'memmove of process {pid} ({command_name(pid, proc)})'
        try:
            path = libc_path(code_of(pid, proc))
            if not path:
                unreadable.append(Unreadable(source, 'it has no C library (a static program?)', 'link it dynamically to measure it'))
                continue
            file = proc / str(pid) / 'root' / path.lstrip('/')
            by_file.setdefault(_identity(file), (file, []))[1].append(pid)
        except (FileNotFoundError, ProcessLookupError):
            unreadable.append(Unreadable(source, 'the process has ended, or its library was replaced', 'start it again'))
        except OSError as error:
            unreadable.append(unreadable_file(proc / str(pid) / 'maps', error, 'start it again', source))
    own = own_functions(proc)
    functions = []
    for identity, (file, users) in by_file.items():
        known = own if _are_of(own, identity) else _helper_functions(users[0], proc)
        if not _are_of(known, identity):
            reason = f'process {users[0]} has another C library than this one ({file})'
            unreadable.append(Unreadable(f'memmove of process {users[0]}', reason, 'run zc_verify in the same container as the nodes'))
            continue
        names: dict[int, list[str]] = {}
        for name, (_, offset) in known.items():
            names.setdefault(offset, []).append(name)
        functions += [CopyFunction(tuple(called), file, offset, tuple(users)) for offset, called in names.items()]
    return functions, unreadable


def _are_of(functions: dict[str, tuple[str, int]], identity: tuple[int, int]) -> bool:
    """Whether these are functions of that file."""
    try:
        return set(functions) == set(COPY_FUNCTIONS) and all(_identity(path) == identity for path, _ in functions.values())
    except OSError:
        return False


def argument_registers(machine: str = '') -> tuple[str, str, str] | Unreadable:
    """The registers of a function's first three arguments, in the probes' spelling."""
    machine = machine or platform.machine()
    if machine in ('x86_64', 'AMD64'):
        return '%di', '%si', '%dx'
    if machine in ('aarch64', 'arm64'):
        return '%x0', '%x1', '%x2'
    return Unreadable('memmove probe', f'the registers of a {machine} are not known here', 'measure on x86_64 or arm64')


_SYMBOL = re.compile(
    rb'^([0-9a-f]{8,16}) [tTwW] ((?:_*(?:memcpy|memmove)(?:_\w+)?|_*(?:arch_)?copy_(?:from|to|in)_user(?:_\w+)?|copy_user_generic\w*'
    rb'|rep_movs_alternative))(?:\t[^\n]*)?\n(?=([0-9a-f]{8,16}) |)',
    re.MULTILINE,
)
_OTHERWISE = 4096


def parse_kernel_copies(text: bytes) -> list[tuple[int, int, str]]:
    """``(start, end, name)`` of the functions that copy."""
    symbols = [(int(match[1], 16), int(match[3] or b'0', 16), match[2].decode()) for match in _SYMBOL.finditer(text)]
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
        return Unreadable('kernel symbols', 'the kernel shows no addresses', 'run as root, with sysctl kernel.kptr_restrict=1 or 0')
    return found


def name_at(symbols: Iterable[tuple[int, int, str]], address: int) -> str:
    """The copy function at an address; empty: none."""
    return next((name for start, end, name in symbols if start <= address < end), '')
