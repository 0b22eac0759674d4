"""tracefs: an instance of our own, so that nobody else's tracing is disturbed, and everything taken down again.

What is enabled or installed rewrites code of the running kernel. Each change is made once, and those that would rewrite the scheduler are
avoided: ``record-cmd`` and ``record-tgid`` (so the trace has no names for threads; ``/proc`` does) and ``set_event_pid``. Under QEMU
another CPU may still run the old code of what is changed; the hotter the function, the more likely a breakpoint that is not there any more.

Source: Documentation/trace/ftrace.rst, *Instances*; Documentation/trace/fprobetrace.rst.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from zc_perception.observe.processes import PROC
from zc_perception.verify.evidence import Unreadable, unreadable_file

TRACING = Path('/sys/kernel/tracing')
_ABSENT = (
    'mount tracefs (mount -t tracefs none /sys/kernel/tracing) of a kernel with CONFIG_FTRACE'
)
_PREFIX = 'zc_verify_'
_CHUNK = 1 << 16
_REMOVAL_ATTEMPTS = 50


def write_control(path: Path, text: str, *, append: bool = False) -> None:
    """Write a control file once. ``open()`` with 'w' truncates, which some of them take for "clear", and with 'a' it seeks, which fails."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | (os.O_APPEND if append else 0))
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def own_name(pid: int | None = None) -> str:
    """Of this process's instance, and of the group of its probes."""
    return f'{_PREFIX}{os.getpid() if pid is None else pid}'


class TraceInstance:
    """A buffer, events and clock of our own. Make it by :func:`open_instance`; :meth:`close` leaves nothing behind.

    :ivar group: name for the probes that are installed for it.
    """

    def __init__(self, tracing: Path, name: str) -> None:
        self.tracing = tracing
        self.group = name
        self.path = tracing / 'instances' / name
        self._pipe = -1

    def create(self, buffer_kb: int) -> None:
        """Make the instance: not recording yet.

        :raises OSError: the kernel doesn't let us.
        """
        with _without_names(self.tracing):
            self.path.mkdir()
        write_control(self.path / 'tracing_on', '0')
        write_control(self.path / 'trace_clock', 'mono')
        write_control(self.path / 'buffer_size_kb', str(buffer_kb))

    def has(self, event: str) -> bool:
        """Whether the kernel has an event, ``SYSTEM/NAME``."""
        return os.path.isdir(self.path / 'events' / event)

    def enable(self, event: str) -> None:
        """Record an event, ``SYSTEM/NAME``.

        :raises OSError: it is not there, or can't be.
        """
        write_control(self.path / 'events' / event / 'enable', '1')

    def disable(self, event: str) -> None:
        """Stop recording it."""
        write_control(self.path / 'events' / event / 'enable', '0')

    def filter(self, event: str, condition: str) -> None:
        """Record an event only where *condition* is true. This rewrites no code."""
        write_control(self.path / 'events' / event / 'filter', condition)

    def install(self, definition: str) -> None:
        """Install a probe; its group has to be :attr:`group`.

        :raises OSError: the kernel has no such function, argument or kind of probe.
        """
        write_control(self.tracing / 'dynamic_events', definition + '\n', append=True)

    def trace_functions(self, functions: list[str]) -> list[str]:
        """Record calls of these functions by the function tracer; those that it knows.

        :raises OSError: it is not there, or knows none of them.
        """
        known = []
        for function in functions:
            with contextlib.suppress(OSError):
                write_control(self.path / 'set_ftrace_filter', function, append=True)
                known.append(function)
        if not known:
            raise FileNotFoundError(
                2, 'the function tracer knows none of them', str(self.path / 'set_ftrace_filter')
            )
        write_control(self.path / 'current_tracer', 'function')
        return known

    def start(self) -> None:
        """Record from now on."""
        write_control(self.path / 'tracing_on', '1')

    def stop(self) -> None:
        """Record no more; what was recorded can still be read."""
        write_control(self.path / 'tracing_on', '0')

    def drain(self) -> bytes:
        """What was recorded since the last call; never blocks."""
        if self._pipe < 0:
            self._pipe = os.open(
                self.path / 'trace_pipe', os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
        chunks = []
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._pipe, _CHUNK):
                chunks.append(chunk)
        return b''.join(chunks)

    def probe_hits(self) -> int:
        """How often our probes in user space were met so far, also where their filter dropped it."""
        try:
            lines = (self.tracing / 'uprobe_profile').read_text(errors='replace').splitlines()
        except OSError:
            return 0
        words = (line.split() for line in lines)
        return sum(
            int(word[-1])
            for word in words
            if len(word) >= 3 and word[-1].isdigit() and word[-2].startswith((self.group, 'libc_'))
        )

    def lost(self) -> int:
        """Events that didn't fit into the buffer."""
        total = 0
        for stats in self.path.glob('per_cpu/cpu*/stats'):
            for line in stats.read_text().splitlines():
                key, _, value = line.partition(':')
                if (
                    key in ('overrun', 'commit overrun', 'dropped events')
                    and value.strip().isdigit()
                ):
                    total += int(value)
        return total

    def close(self) -> list[Unreadable]:
        """Take everything down; what could not be."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        return remove(self.tracing, self.group)


@contextlib.contextmanager
def _without_names(tracing: Path) -> Iterator[None]:
    """A new instance inherits ``record-cmd``, which it can't switch off by itself."""
    option = tracing / 'options' / 'record-cmd'
    try:
        before = option.read_text().strip()
        if before == '1':
            write_control(option, '0')
    except OSError:
        before = ''
    try:
        yield
    finally:
        if before == '1':
            with contextlib.suppress(OSError):
                write_control(option, '1')


def open_instance(
    tracing: Path = TRACING, buffer_kb: int = 4096, name: str = ''
) -> TraceInstance | Unreadable:
    """An instance that does not record yet.

    :param buffer_kb: per CPU.
    """
    if (
        tracing == TRACING
        and not os.path.exists(TRACING / 'instances')
        and os.path.exists('/sys/kernel/debug/tracing/instances')
    ):
        tracing = Path('/sys/kernel/debug/tracing')
    instance = TraceInstance(tracing, name or own_name())
    try:
        instance.create(buffer_kb)
    except OSError as error:
        instance.close()
        return unreadable_file(tracing / 'instances', error, _ABSENT, 'tracefs')
    return instance


def probes_of(tracing: Path, group: str) -> list[str]:
    """``GROUP/NAME`` of the probes that are installed under a group."""
    try:
        lines = (tracing / 'dynamic_events').read_text(errors='replace').splitlines()
    except OSError:
        return []
    names = (line.partition(' ')[0].partition(':')[2] for line in lines)
    return [name for name in names if name.startswith(f'{group}/')]


def remove(tracing: Path, name: str) -> list[Unreadable]:
    """Remove an instance and its probes; what could not be removed. What is not there needs no removal."""
    path = tracing / 'instances' / name
    left: list[Unreadable] = []
    if os.path.isdir(path):  # Path.is_dir() raises where a folder above may not be searched
        for control, value in (
            ('tracing_on', '0'),
            ('events/enable', '0'),
            ('current_tracer', 'nop'),
        ):
            with contextlib.suppress(OSError):
                if (path / control).read_text().strip() != value:
                    write_control(path / control, value)
        left += _removed(path)
    for probe in probes_of(tracing, name):
        try:
            write_control(tracing / 'dynamic_events', f'-:{probe}\n', append=True)
        except OSError as error:
            left.append(
                unreadable_file(
                    tracing / 'dynamic_events', error, '', f'probe {probe}, which stays behind'
                )
            )
    return left


def _removed(path: Path) -> list[Unreadable]:
    for attempt in range(_REMOVAL_ATTEMPTS):
        try:
            path.rmdir()
            return []
        except OSError as error:
            if attempt + 1 == _REMOVAL_ATTEMPTS or not os.path.isdir(path):
                return (
                    [
                        unreadable_file(
                            path, error, '', f'trace instance {path.name}, which stays behind'
                        )
                    ]
                    if os.path.isdir(path)
                    else []
                )
            time.sleep(0.02)  # somebody reads it at this moment
    return []


def remove_leftovers(tracing: Path = TRACING, proc: Path = PROC) -> list[str]:
    """Remove what earlier runs left that were killed; their names."""
    try:
        names = {entry.name for entry in (tracing / 'instances').iterdir()}
        events = (tracing / 'dynamic_events').read_text(errors='replace').splitlines()
    except OSError:
        return []
    names |= {line.partition(':')[2].partition('/')[0] for line in events}
    found = [
        name
        for name in sorted(names)
        if name.startswith(_PREFIX) and not _is_running(name.removeprefix(_PREFIX), proc)
    ]
    for name in found:
        remove(tracing, name)
    return found


def _is_running(pid: str, proc: Path) -> bool:
    if pid == str(os.getpid()):
        return False
    try:
        return b'zc_verify' in (proc / pid / 'cmdline').read_bytes()
    except OSError:
        return False
