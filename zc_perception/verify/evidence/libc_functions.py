"""Where a process's ``memmove`` and ``memcpy`` really are: the dynamic linker chooses among variants for the CPU that it runs on.

Which one is asked of the linker itself, in a process with the same library file: this one, else one of the target's interpreter.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from zc_perception.verify.evidence.processes import PROC, command_name
from zc_perception.verify.evidence.unreadable import Unreadable, unreadable_file

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
        known = own if _is(own, identity) else _helper_functions(users[0], proc)
        if not _is(known, identity):
            reason = f'process {users[0]} has another C library than this one ({file})'
            unreadable.append(Unreadable(f'memmove of process {users[0]}', reason, 'run zc_verify in the same container as the nodes'))
            continue
        names: dict[int, list[str]] = {}
        for name, (_, offset) in known.items():
            names.setdefault(offset, []).append(name)
        functions += [CopyFunction(tuple(called), file, offset, tuple(users)) for offset, called in names.items()]
    return functions, unreadable


def _is(functions: dict[str, tuple[str, int]], identity: tuple[int, int]) -> bool:
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
