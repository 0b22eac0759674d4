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
Record the kernel's events by the best means that this kernel has, and read the trace.

From about Linux 7.0, tracepoints show what dma-buf does. Older kernels (from about 6.5) allow
probes that read the arguments by their types (BTF). On still older kernels the function tracer
counts calls, but doesn't tell which buffer they are for. In each case the recorded event gets the
tracepoint's name. :class:`KernelRecording` owns the record; :func:`parse_trace` reads the record's
text. The record is made in a separate instance of tracefs (:class:`TraceInstance`), so that it
disturbs no other tracing. At the end, the instance and its probes are removed.

To enable an event or install a probe, the kernel rewrites its running code. Under QEMU another CPU
may still run the old code and hit a breakpoint that was already removed; this is likeliest in a
function that is often called. So each change is made only once, and changes that would rewrite the
scheduler are avoided: ``record-cmd`` and ``record-tgid`` (so the trace has no names of threads;
``/proc`` has them) and ``set_event_pid``.

Sources: include/trace/events/dma_buf.h; Documentation/trace/fprobetrace.rst and kprobetrace.rst;
Documentation/trace/ftrace.rst (columns of the ``trace`` file; *Instances*), and the ring
buffer's lines about lost events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import contextlib
from dataclasses import dataclass, field
import os
from pathlib import Path
import re
import time

from zc_perception.npu.kinds import traced
from zc_perception.observe.processes import PROC
from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence import Unreadable, unreadable_file

TRACING = Path('/sys/kernel/tracing')
_ABSENT = (
    'mount tracefs (mount -t tracefs none /sys/kernel/tracing); the kernel needs CONFIG_FTRACE'
)
_PREFIX = 'zc_verify_'
_CHUNK = 1 << 16
_REMOVAL_ATTEMPTS = 50


def write_control(path: Path, text: str, *, append: bool = False) -> None:
    """
    Write *text* to a control file by exactly one write.

    The modes of Python's open() can't be used. Mode 'w' truncates the file, which the kernel takes
    as an order to clear it; mode 'a' seeks to the file's end, which the kernel may refuse.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | (os.O_APPEND if append else 0))
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def own_name(pid: int | None = None) -> str:
    """Return the name of a process's trace instance; its group of probes has the same name."""
    return f'{_PREFIX}{os.getpid() if pid is None else pid}'


class TraceInstance:
    """
    An instance in tracefs: a trace buffer with its own events and clock.

    :func:`open_instance` makes an object. :meth:`close` removes the instance and its probes.

    :ivar group: the name of the group of the probes that are installed for this instance.
    """

    def __init__(self, tracing: Path, name: str) -> None:
        self.tracing = tracing
        self.group = name
        self.path = tracing / 'instances' / name
        self._pipe = -1

    def create(self, buffer_kb: int) -> None:
        """Make the trace instance, not recording yet; raise OSError if the kernel refuses."""
        with _without_names(self.tracing):
            self.path.mkdir()
        write_control(self.path / 'tracing_on', '0')
        write_control(self.path / 'trace_clock', 'mono')
        write_control(self.path / 'buffer_size_kb', str(buffer_kb))

    def has(self, event: str) -> bool:
        """Return whether the kernel has an event, ``SYSTEM/NAME``."""
        return os.path.isdir(self.path / 'events' / event)

    def enable(self, event: str) -> None:
        """Record the event ``SYSTEM/NAME``; raise OSError if the kernel doesn't have it."""
        write_control(self.path / 'events' / event / 'enable', '1')

    def disable(self, event: str) -> None:
        """Stop recording an event."""
        write_control(self.path / 'events' / event / 'enable', '0')

    def keep_only(self, event: str, condition: str) -> None:
        """Record an event only if *condition* is true; this adds no probe."""
        write_control(self.path / 'events' / event / 'filter', condition)

    def install(self, definition: str) -> None:
        """
        Install a probe, whose *definition* has the syntax of ``dynamic_events``.

        :raises OSError: the kernel lacks the function to be probed, or refuses the probe.
        """
        write_control(self.tracing / 'dynamic_events', definition + '\n', append=True)

    def trace_functions(self, functions: list[str]) -> list[str]:
        """
        Record the calls of those *functions* that the function tracer knows; return their names.

        :raises OSError: the function tracer knows none of them, or this user may not set it up.
        """
        known = []
        for function in functions:
            with contextlib.suppress(OSError):
                write_control(self.path / 'set_ftrace_filter', function, append=True)
                known.append(function)
        if not known:
            raise FileNotFoundError(
                2,
                'the function tracer knows none of these functions',
                str(self.path / 'set_ftrace_filter'),
            )
        write_control(self.path / 'current_tracer', 'function')
        return known

    def start(self) -> None:
        """Start recording."""
        write_control(self.path / 'tracing_on', '1')

    def stop(self) -> None:
        """Stop recording; what was recorded can still be read."""
        write_control(self.path / 'tracing_on', '0')

    def drain(self) -> bytes:
        """Return what was recorded since the last call; never block."""
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
        """
        Return how often the user-space probes were hit.

        Hits that a filter dropped count too.
        """
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
        """Return the number of events that didn't fit into the kernel's trace buffer."""
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
        """Remove this trace instance and its probes; return what could not be removed."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        return remove(self.tracing, self.group)


@contextlib.contextmanager
def _without_names(tracing: Path) -> Iterator[None]:
    """Switch ``record-cmd`` off in the block, so that a new trace instance doesn't inherit it."""
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
    """Make a trace instance that does not record yet; *buffer_kb* is its buffer's KiB per CPU."""
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
    """Return ``GROUP/NAME`` of the probes that are installed in a group."""
    try:
        lines = (tracing / 'dynamic_events').read_text(errors='replace').splitlines()
    except OSError:
        return []
    names = (line.partition(' ')[0].partition(':')[2] for line in lines)
    return [name for name in names if name.startswith(f'{group}/')]


def remove(tracing: Path, name: str) -> list[Unreadable]:
    """Remove the trace instance *name* and its probes; return what could not be removed."""
    path = tracing / 'instances' / name
    left: list[Unreadable] = []
    # Path.is_dir() would raise an error if this user may not search a parent folder
    if os.path.isdir(path):
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
                    tracing / 'dynamic_events', error, '', f'probe {probe}, which still exists'
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
                            path, error, '', f'trace instance {path.name}, which still exists'
                        )
                    ]
                    if os.path.isdir(path)
                    else []
                )
            # Another program has a file of the trace instance open at this moment, so try again.
            time.sleep(0.02)
    return []


def remove_leftovers(tracing: Path = TRACING, proc: Path = PROC) -> list[str]:
    """Remove trace instances and probes that a killed ``zc_verify`` left; return their names."""
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


# A line of the trace. Lines of the function tracer end with the caller's name instead of fields.
_LINE = re.compile(
    r'^\s*(?P<comm>.*?)-(?P<tid>\d+)\s+(?:\(\s*[-\d]+\)\s+)?\[(?P<cpu>\d+)\]\s+(?:\S+\s+)?'
    r'(?P<seconds>\d+)\.(?P<fraction>\d{6,9}):\s+'
    r'(?P<name>\w+)(?::(?P<rest>.*)| <-\w+\s*)$'
)
_PLACE = re.compile(r'^ \([^()]*\)')
_FIELD = re.compile(r'(\w+)[=:]("(?:[^"]*)"|\S+)')
_LOST = re.compile(r'^CPU:(\d+) \[LOST (?:(\d+) )?EVENTS\]')


@dataclass
class Trace:
    """
    The recorded events, in order of time.

    :ivar lost: how many events the kernel reports as lost; if any were, no check that depends on
        events counts as measured.
    :ivar damaged: lines that can't be parsed; each may be an event that is missing in *events*.
    """

    events: list[KernelEvent] = field(default_factory=list)
    lost: int = 0
    damaged: int = 0

    @property
    def gap(self) -> str:
        """Return a sentence about what is missing in the trace; empty if it is complete."""
        lost = [f'lost {self.lost} events'] if self.lost else []
        damaged = [f'has {self.damaged} lines that cannot be read'] if self.damaged else []
        return f"the kernel's trace {' and '.join(lost + damaged)}" if lost or damaged else ''

    def named(self, *names: str) -> list[KernelEvent]:
        """Return the events that have one of these names."""
        return [event for event in self.events if event.name in names]


def parse_event(line: str) -> KernelEvent | None:
    """Parse one line of the trace; return ``None`` if it is no event."""
    match = _LINE.match(line)
    if match is None:
        return None
    fields = {
        name: value.strip('"').rstrip(',')
        for name, value in _FIELD.findall(_PLACE.sub('', match['rest'] or ''))
    }
    time_ns = int(match['seconds']) * 10**9 + int(match['fraction'].ljust(9, '0'))
    return KernelEvent(
        time_ns, int(match['cpu']), match['comm'], int(match['tid']), match['name'], fields
    )


def parse_trace(lines: Iterable[str]) -> Trace:
    """Parse lines of ``trace`` or ``trace_pipe``, and sort the events by time."""
    trace = Trace()
    for line in lines:
        if not line.strip() or line.startswith('#'):
            continue
        event = parse_event(line)
        if event is not None:
            trace.events.append(event)
        elif lost := _LOST.match(line):
            trace.lost += int(lost[2] or 1)
        else:
            trace.damaged += 1
    trace.events.sort(key=lambda event: event.time_ns)
    return trace


TRACEPOINT, PROBE, FUNCTION = 'tracepoint', 'probe', 'function tracer'
ATTACH, DETACH, MMAP, EXPORT, VIDEO_MMAP = (
    'dma_buf_dynamic_attach',
    'dma_buf_detach',
    'dma_buf_mmap_internal',
    'dma_buf_export',
    'vb2_mmap',
)
FORK = 'sched_process_fork'
FENCES = (
    'dma_fence_init',
    'dma_fence_emit',
    'dma_fence_signaled',
    'dma_fence_wait_start',
    'dma_fence_wait_end',
    'dma_fence_destroy',
)

_INODE = 'ino=dmabuf->file->f_inode->i_ino'
_DEVICE = 'dev_name=dev->kobj.name:string'
# The kinds of probes on a function, best first: fprobe; kprobe if the kernel has no fprobe (arm64)
# or can't use fprobe on the function.
_KINDS = ('f', 'p')
# Ways to probe each function, best first. A probe at the function's return also knows the result,
# but kernels before 6.9 can't read the arguments there.
_PROBES = {
    ATTACH: (
        f'{ATTACH}%return {_INODE} {_DEVICE} result=$retval:x64',
        f'{ATTACH} {_INODE} {_DEVICE}',
    ),
    DETACH: (f'{DETACH} {_INODE} dev_name=attach->dev->kobj.name:string',),
    MMAP: (f'{MMAP} ino=file->f_inode->i_ino',),
    EXPORT: (
        f'{EXPORT}%return ino=$retval->file->f_inode->i_ino exp_name=$retval->exp_name:string',
    ),
}
_VIDEO_PROBE = f'{VIDEO_MMAP} rdev=vma->vm_file->f_inode->i_rdev:u32'
_FUNCTIONS = (
    'dma_buf_attach',
    ATTACH,
    DETACH,
    'dma_buf_map_attachment',
    'dma_buf_unmap_attachment',
    EXPORT,
    'dma_buf_fd',
    MMAP,
    VIDEO_MMAP,
)
_NEEDED = (ATTACH, DETACH, MMAP)
_INITIAL_PID_NAMESPACE = 'pid:[4026531836]'
_BUFFER_KB = 4096
_NEWER = (
    'use kernel 6.5 or newer that has BTF (CONFIG_DEBUG_INFO_BTF), and FPROBE_EVENTS or '
    'KPROBE_EVENTS'
)


class KernelRecording:
    """
    A running record of the kernel's events.

    It owns a :class:`TraceInstance`, and uses it in this order: :meth:`begin`, :meth:`drain` again
    and again, :meth:`stop`, :meth:`trace`, :meth:`close`.

    :ivar instance: the tracefs instance that has the record.
    :ivar sources: for each event, how the event is recorded; an event that is missing here can't
        be recorded.
    :ivar unreadable: what can't be recorded.
    """

    def __init__(self, instance: TraceInstance) -> None:
        self.instance = instance
        self.sources: dict[str, str] = {}
        self.unreadable: list[Unreadable] = []
        self._chunks: list[bytes] = []
        self._failed: Unreadable | None = None
        self._lost = 0

    def begin(self, video: bool = True) -> None:
        """Enable the events and start recording; *video*: also record video devices' mappings."""
        drivers = [(driver.system, driver.names) for driver in traced().drivers.values()]
        for system, events in (*drivers, ('dma_fence', FENCES), ('sched', (FORK,))):
            absent = [event for event in events if not self._tracepoint(system, event)]
            if absent:
                self.unreadable.append(_absent_events(system, absent))
        self._dma_buf_events()
        if (
            video
            and VIDEO_MMAP not in self.sources
            and not self._probe(VIDEO_MMAP, (_VIDEO_PROBE, VIDEO_MMAP))
        ):
            step = "load the camera's driver first, so that zc_verify can put a probe into it"
            self.unreadable.append(
                Unreadable(VIDEO_MMAP, 'mappings of video devices are not recorded', step)
            )
        self.instance.start()

    def _tracepoint(self, system: str, event: str) -> bool:
        try:
            if not self.instance.has(f'{system}/{event}'):
                return False
            self.instance.enable(f'{system}/{event}')
        except OSError:
            return False
        self.sources[event] = TRACEPOINT
        return True

    def _dma_buf_events(self) -> None:
        for event in _PROBES:
            if not self._tracepoint('dma_buf', event):
                self._probe(event, _PROBES[event])
        missing = [event for event in _NEEDED if event not in self.sources]
        if not missing:
            return
        try:
            known = self.instance.trace_functions(
                [name for name in _FUNCTIONS if name not in self.sources]
            )
        except OSError as error:
            reason = f'the kernel has no way to record these events ({error.strerror})'
            self.unreadable.append(Unreadable(', '.join(missing), reason, _NEWER))
            return
        self.sources |= {event: FUNCTION for event in (*missing, VIDEO_MMAP) if event in known}
        reason = 'the function tracer counts calls but does not tell which buffer a call is for'
        self.unreadable.append(Unreadable(', '.join(missing), reason, _NEWER))

    def _probe(self, event: str, definitions: tuple[str, ...]) -> bool:
        name = f'{self.instance.group}/{event}'
        for definition in definitions:
            for kind in _KINDS:
                try:
                    self.instance.install(f'{kind}:{name} {definition}')
                    self.instance.enable(name)
                except OSError:
                    continue
                self.sources[event] = PROBE
                return True
        return False

    def drain(self) -> None:
        """Read the recorded events out of the kernel's buffer."""
        if self._failed is not None:
            return
        try:
            chunk = self.instance.drain()
        except OSError as error:
            self._failed = Unreadable(
                'trace', f'trace_pipe: {error.strerror}', 'see the kernel log (dmesg)'
            )
            self.unreadable.append(self._failed)
            return
        if chunk:
            self._chunks.append(chunk)

    def stop(self) -> None:
        """Stop recording, and read the remaining events."""
        try:
            self.instance.stop()
            self.drain()
            self._lost = self.instance.lost()
        except OSError as error:
            self.unreadable.append(
                Unreadable(
                    'trace',
                    f'{self.instance.path}: {error.strerror}',
                    'see the kernel log (dmesg)',
                )
            )
            self._lost += 1

    def text(self) -> str:
        """Return the trace as the kernel wrote it."""
        return b''.join(self._chunks).decode(errors='replace')

    def trace(self) -> Trace:
        """Return the events in order of time; if reading failed, at least one counts as lost."""
        # Split only at newlines, because a thread's name may contain any other line separator.
        trace = parse_trace(self.text().split('\n'))
        trace.lost = max(trace.lost, self._lost, 1 if self._failed is not None else 0)
        return trace

    def close(self) -> list[Unreadable]:
        """Remove all probes and the trace instance; return what could not be removed."""
        return self.instance.close()


def _absent_events(system: str, events: list[str]) -> Unreadable:
    steps = {
        **{driver.system: driver.absent for driver in traced().drivers.values()},
        'dma_fence': 'use a kernel with CONFIG_DMA_SHARED_BUFFER and CONFIG_FTRACE',
        'sched': 'use a kernel with CONFIG_FTRACE',
    }
    return Unreadable(
        f'events {system}:{{{",".join(events)}}}', 'this kernel does not have them', steps[system]
    )


def open_recording(tracing: Path = TRACING, proc: Path = PROC) -> KernelRecording | Unreadable:
    """Return a recording that has not begun, or why this system allows none."""
    try:
        # The trace has thread ids of the machine's first pid namespace. In another namespace they
        # can't be matched with threads.
        namespace = (proc / 'self' / 'ns' / 'pid').readlink().name
    except OSError:
        namespace = _INITIAL_PID_NAMESPACE
    if namespace != _INITIAL_PID_NAMESPACE:
        step = 'run zc_verify on the host, or start the container with --pid=host'
        return Unreadable(
            'tracefs',
            'zc_verify runs in its own pid namespace, so it cannot find the threads of the trace',
            step,
        )
    instance = open_instance(tracing, _BUFFER_KB)
    return instance if isinstance(instance, Unreadable) else KernelRecording(instance)
