"""Every large copy that a node's C library makes, counted exactly: a uprobe on the resolved ``memmove`` and ``memcpy``.

A probe on a library hits in every process of the machine that has it, and costs each call about a microsecond (twenty under emulation);
the kernel keeps only those of :data:`LARGE` bytes and more, and those whose source lies in a frame. Copies by inlined instructions, and in
loops of other libraries, are not seen: that nobody has a frame mapped is the stronger statement.

Source: Documentation/trace/uprobetracer.rst.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zc_perception.verify.evidence.copy_functions import CopyFunction, argument_registers, find_copy_functions
from zc_perception.verify.evidence.mappings import MemoryMapping
from zc_perception.verify.evidence.processes import PROC
from zc_perception.verify.evidence.tracefs import TraceInstance
from zc_perception.verify.evidence.unreadable import Unreadable

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
        try:
            functions, self.unreadable = find_copy_functions(list(pids), proc)
        except OSError as error:
            self.unreadable.append(Unreadable('memmove probe', f'the own C library is not found: {error}', 'mount /proc'))
            return
        for index, function in enumerate(functions):
            self._install(f'{COPY}_{index}', function, registers)

    def _install(self, name: str, function: CopyFunction, registers: tuple[str, str, str]) -> None:
        event = f'{self._instance.group}/{name}'
        source = f'{"/".join(function.names)} of {function.file}'
        if any(character.isspace() for character in str(function.file)):
            self.unreadable.append(Unreadable(source, 'the path has a space, which a probe cannot have', 'install it elsewhere'))
            return
        destination, origin, size = registers
        try:
            self._instance.install(f'p:{event} {function.file}:{function.offset:#x} dst={destination}:x64 src={origin}:x64 n={size}:u64')
            self._instance.filter(event, self._condition)
            self._instance.enable(event)
        except OSError as error:
            step = 'use a kernel with CONFIG_UPROBE_EVENTS, or leave it out with --no-memmove-probe'
            self.unreadable.append(Unreadable(source, f'the probe was refused: {error.strerror}', step))
            return
        self._events.append(event)
        self.functions.append(function)

    def watch_sources(self, mappings: Iterable[MemoryMapping]) -> None:
        """From now on also keep copies of any size out of these mappings. This rewrites no code."""
        ranges = self._ranges | {(mapping.start, mapping.end) for mapping in mappings}
        if ranges == self._ranges or len(ranges) > _MAX_RANGES:
            return
        self._ranges = ranges
        parts = [f'n >= {LARGE}', *(f'(src >= {start:#x} && src < {end:#x})' for start, end in sorted(ranges))]
        for event in self._events:
            try:
                self._instance.filter(event, ' || '.join(parts))
            except OSError as error:
                self.unreadable.append(Unreadable('memmove probe', f'its filter was refused: {error.strerror}', 'report the kernel'))
                return

    def end(self) -> None:
        """Stop watching, before anything else goes on: the probes slow their processes down."""
        self.calls = self._instance.probe_hits()
        for event in self._events:
            try:
                self._instance.disable(event)
            except OSError as error:
                self.unreadable.append(Unreadable('memmove probe', f'it could not be ended: {error.strerror}', 'see the kernel log'))
        self._events = []
