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
Measure running nodes from outside, for a given time.

Read :class:`Measurement` first, at the end of the file. :class:`WatchedNode` reads one node's
frame log. :class:`NodeThreads` finds the nodes' threads. :class:`Cameras` and :func:`memory_of`
find the memory of the nodes' frames. :func:`check_facts` checks the node's settings and counters
(its facts) in a frame log, because any user can make a frame log with any content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import contextlib
from dataclasses import dataclass
from enum import Enum
import os
from pathlib import Path
import time
from typing import Any

from zc_perception.errors import shown
from zc_perception.observe.frame_log import FrameLogReader, FrameRecord, RecordKind
from zc_perception.observe.processes import PROC, threads_of
from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence import Unreadable
from zc_perception.verify.evidence.buffers import (
    DEBUGFS,
    DMABUF,
    find_memfds,
    find_pins,
    FrameMemory,
    MEMFD,
    MemoryMapping,
    read_bufinfo,
    read_holders,
    scan_maps,
    Snapshot,
    UDMABUF,
)
from zc_perception.verify.evidence.copies import (
    copies_of,
    MemmoveProbe,
    open_sampler,
    Sampler,
    shares_of,
)
from zc_perception.verify.evidence.kernel_events import (
    FORK,
    FUNCTION,
    KernelRecording,
    MMAP,
    open_recording,
    remove_leftovers,
    TRACING,
)
from zc_perception.verify.observation import (
    CAPTURE,
    INFERENCE,
    names_device,
    NodeView,
    Observation,
    VIDEO_EXPORTER,
)


def _is_text(value: object) -> bool:
    """Return whether a value is a text without NUL and surrogates, so that it can be a path."""
    return (
        isinstance(value, str)
        and '\0' not in value
        and not any('\ud800' <= c <= '\udfff' for c in value)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


_Form = tuple[Callable[[object], bool], str]
_TEXT: _Form = (_is_text, 'a text')
_COUNT: _Form = (_is_count, 'an integer from 0 to 18446744073709551615')
#: The keys of a node's facts that are read here, each with its check; other keys are ignored.
_FORMS: dict[str, _Form] = {
    **dict.fromkeys(
        ('accelerator', 'pci_address', 'rung', 'camera', 'device', 'heap', 'fourcc'), _TEXT
    ),
    **dict.fromkeys(('width', 'height', 'slots', 'failed', 'dropped', 'trial_imports'), _COUNT),
    'import_cache': (lambda value: isinstance(value, bool), 'true or false'),
    'pool': (
        lambda value: (
            isinstance(value, list)
            and all(isinstance(x, list) and len(x) == 2 and all(map(_is_count, x)) for x in value)
        ),
        'a list of [st_dev, inode]',
    ),
    'copies': (
        lambda value: (
            isinstance(value, dict)
            and all(
                _is_text(reason) and isinstance(entry, dict) and _is_count(entry.get('count'))
                for reason, entry in value.items()
            )
        ),
        '{reason: {"count": number}}',
    ),
}


def check_facts(facts: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the facts that have the right form, and a message about each wrong fact."""
    good = dict(facts)
    wrong = []
    for name, (fits, form) in _FORMS.items():
        if name in good and not fits(good[name]):
            wrong.append(f'fact {name} is {shown(good.pop(name))}; it must be {form}')
    return good, wrong


_RECENT = 32


class WatchedNode(NodeView):
    """
    A node that is being measured, and what was read from its frame log until now.

    A node rewrites its facts about once a second. To get its state after a given time, call
    :meth:`expect_facts` at that time, and wait until :attr:`renewed` is true.
    :class:`Measurement` does this at both ends of the measured time. It calls :meth:`begin` after
    the first wait, and :meth:`keep_facts` after the last.
    """

    def __init__(self, log: FrameLogReader) -> None:
        super().__init__(log.pid, log.node, log.role)
        self.log = log
        self.records: list[FrameRecord] = []
        self._kept = False
        self._old: dict[str, Any] = {}
        self._new: dict[str, Any] | None = None
        self._written = 0
        self._wrong: dict[str, None] = {}

    def read(self) -> None:
        """Read new records, and check whether the node still runs."""
        self.records += self.log.read()
        self.lost = self.log.lost
        if not self.ended_ns and not self._kept and not self.log.alive:
            self.ended_ns = time.monotonic_ns()

    def begin(self) -> None:
        """Begin the measured time: the node's current facts become :attr:`before`."""
        self.before = self.facts()

    def facts(self) -> Mapping[str, Any]:
        """
        Return the node's latest facts; after :meth:`keep_facts` the stored facts.

        Facts of a wrong form are left out, see :attr:`unreadable`.
        """
        return self.after if self._kept else self._checked(self.log.facts())

    def _checked(self, facts: dict[str, Any]) -> dict[str, Any]:
        good, wrong = check_facts(facts)
        self._wrong |= dict.fromkeys(wrong)
        return good

    def expect_facts(self) -> None:
        """Remember the current facts, so that :attr:`renewed` detects the next ones."""
        self._old, self._new, self._written = self.log.facts(), None, self.log.written

    @property
    def renewed(self) -> bool:
        """Whether new facts came after :meth:`expect_facts`; this stores the first new facts."""
        if self._new is None and (facts := self.log.facts()) != self._old:
            self._new = facts
        return self._new is not None

    @property
    def idle(self) -> bool:
        """
        Whether the node has finished no frame since :meth:`expect_facts`.

        If so, its facts are still current.
        """
        return self.log.written == self._written

    def is_past(self, time_ns: int) -> bool:
        """
        Return whether an inference node's log has a frame that was submitted after *time_ns*.

        If so, the log has all frames that were submitted before *time_ns*. The result is also true
        for a node of another role, and if *time_ns* is 0.
        """
        if self.role != INFERENCE or not time_ns:
            return True
        return any(record.submitted_ns > time_ns for record in self.records[-_RECENT:])

    def keep_facts(self) -> None:
        """
        Set :attr:`after` to the first facts that the node wrote after :meth:`expect_facts`.

        If it wrote none, set :attr:`after` to the facts that :meth:`expect_facts` remembered.
        """
        self.described = self.renewed or self.idle
        self.after = self._checked(self._old if self._new is None else self._new)
        self._kept = True

    @property
    def unreadable(self) -> list[Unreadable]:
        """The facts of a wrong form that the node has written until now."""
        source = f'frame log of {self.node} (process {self.pid})'
        step = (
            "end that process, or run zc_verify from that process's version of the package; or "
            'name the nodes to measure with --pid'
        )
        return [Unreadable(source, wrong, step) for wrong in self._wrong]


class NodeThreads:
    """Finds the nodes' threads, and the threads and processes that those threads start."""

    def __init__(self, pids: Iterable[int], proc: Path = PROC) -> None:
        self._proc = proc
        self._process_of: dict[int, int] = {}
        for pid in pids:
            self.add(pid)

    def add(self, pid: int) -> None:
        """Add a node's process with its current threads."""
        self._process_of[pid] = pid
        for tid in threads_of(pid, self._proc):
            self._process_of[tid] = pid

    def look(self) -> None:
        """Read the threads of all added processes again, to find new threads."""
        for pid in set(self._process_of.values()):
            for tid in threads_of(pid, self._proc):
                self._process_of[tid] = pid

    def follow(self, events: Iterable[KernelEvent]) -> None:
        """Add threads and child processes from fork events, also those that have ended since."""
        for event in events:
            if event.name == FORK and (parent := self._process_of.get(event.tid)) is not None:
                self._process_of.setdefault(event.number('child_pid'), parent)

    def processes(self) -> dict[int, int]:
        """Return the process id of each thread's node, by thread id."""
        return dict(self._process_of)

    @property
    def pids(self) -> Collection[int]:
        """The nodes' process ids."""
        return sorted(set(self._process_of.values()))


def identities_of(nodes: Iterable[WatchedNode]) -> set[tuple[int, int]]:
    """Return (st_dev, inode) of all buffers in the nodes' pools and records."""
    found = set()
    for node in nodes:
        found |= {(record.st_dev, inode) for record in node.records for inode in record.inodes}
        found |= {
            (device, inode) for device, inode in (node.before or node.facts()).get('pool', ())
        }
    return found


class Cameras:
    """
    Finds the video devices of the measured capture nodes.

    A node's facts name its device's path. In a container the same path may be a different device,
    so the path is looked up in the root folder of the node's process.

    :ivar paths: the paths by which ``/proc/PID/maps`` may name the devices.
    :ivar numbers: the device numbers in the kernel's internal form (12 bits major, 20 bits minor).
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._found: dict[tuple[int, str], bool] = {}
        self.paths: set[str] = set()
        self.numbers: set[int] = set()

    @property
    def lost(self) -> frozenset[str]:
        """The paths whose device was never found."""
        return frozenset(path for (_, path), found in self._found.items() if not found)

    def look(self, nodes: Iterable[WatchedNode]) -> None:
        """Look for the devices again: a camera may be plugged in or unplugged at any time."""
        for node in nodes:
            if node.role != CAPTURE or not names_device(facts := node.facts()):
                continue
            pid, path = node.pid, facts['device'].partition(' ')[0]
            self.paths |= {path, os.path.realpath(path)}
            there = Path(f'{self._proc}/{pid}/root{path}')
            with contextlib.suppress(OSError):
                self.paths.add(
                    os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(there)))
                )
            try:
                number = os.stat(there).st_rdev
            except OSError:
                self._found.setdefault((pid, path), False)
                continue
            self._found[pid, path] = True
            self.numbers.add(os.major(number) << 20 | os.minor(number))


def memory_of(
    nodes: Iterable[WatchedNode],
    kinds: Mapping[tuple[int, int], str],
    cameras: Cameras,
    exporters: Mapping[int, str],
) -> FrameMemory:
    """
    Return the memory of the nodes' frames; the caller looks for it in the processes' mappings.

    :param kinds: each buffer's kind (dma-buf or memfd), by (st_dev, inode). A buffer without a
        known kind is looked for as both.
    :param exporters: the buffers' exporters, by inode.
    """
    nodes = list(nodes)
    unnamed = [node for node in nodes if node.role == CAPTURE and not names_device(node.facts())]
    any_camera = any(
        exporters.get(inode, '').startswith(VIDEO_EXPORTER) for _, inode in identities_of(unnamed)
    )
    frames = identities_of(nodes)
    dmabufs = frozenset(inode for device, inode in frames if kinds.get((device, inode)) != MEMFD)
    memfds = frozenset(identity for identity in frames if kinds.get(identity) != DMABUF)
    numbers = frozenset(os.makedev(number >> 20, number & 0xFFFFF) for number in cameras.numbers)
    return FrameMemory(dmabufs, memfds, frozenset(cameras.paths), numbers, any_camera)


_TICK_S = 0.25
#: The largest share of time to spend on reading bufinfo and maps. So on a slow machine bufinfo and
#: maps are read less often than every _LOOK_PERIOD_S.
_LOOK_SHARE = 0.1
_LOOK_PERIOD_S = 1.0
#: Seconds between two reads of the frame logs while waiting for the nodes' settings and counters.
_FACTS_TICK_S = 0.05
# How long to wait for a node's new facts: _GRACE_S if the node has finished no frame since the
# wait began (it may have nothing to write), _PATIENCE_S for any other node (it may be slow).
_GRACE_S = 2.0
_PATIENCE_S = 5.0
# The CPUs are sampled for as long as the measured time, but at most for _SAMPLING_S. Sampling ends
# earlier when each node has _ENOUGH_SAMPLES, a few times the number that is needed to notice that
# a node copies for 1 % of its CPU time.
_SAMPLING_S = 5.0
_ENOUGH_SAMPLES = 500
Wait = Callable[[float], bool]


@dataclass(frozen=True)
class Roots:
    """The paths of ``/proc``, tracefs and debugfs; tests pass folders of their own."""

    proc: Path = PROC
    tracing: Path = TRACING
    debugfs: Path = DEBUGFS


class Ending(Enum):
    """
    Why the measured time ended.

    ``TIME``: it lasted as long as requested; ``FRAMES``: enough frames were processed; ``WANTED``:
    the user ended it by a signal; ``GONE``: the nodes or their command ended.
    """

    TIME = 'time'
    FRAMES = 'frames'
    WANTED = 'wanted'
    GONE = 'gone'


class Measurement:
    """
    A measurement; use it as a context manager, which removes all probes at the end.

    Everything runs on the caller's thread, in this order:

    1. Entering the context removes trace instances that a killed run left, and then starts to
       record the kernel's events, before any other source is read.
    2. :meth:`watch` installs the probe on ``memmove``, reads all sources once, and waits until
       each node has rewritten its facts (the settings and counters in its frame log). Then the
       measured time begins, in which :meth:`watch` reads the frame logs and the trace several
       times a second, and the list of dma-bufs and the processes' memory maps about once a second.
       After the requested time, :meth:`watch` waits until one of the nodes has rewritten its
       facts; the measured time ends just before the node did so. Then :meth:`watch` stops the
       probe, waits for the frames that are still in flight, samples the CPUs, and stops recording.
    3. :meth:`observation` returns the evidence as plain data.
    4. :meth:`close` removes the recording and the sampler.

    :param memmove_probe: whether to count the C library's copies; this slows down each process
        that calls ``memmove``.
    :param sampling: whether to sample the CPUs after the measured time.
    """

    def __init__(
        self, roots: Roots | None = None, *, memmove_probe: bool = True, sampling: bool = True
    ) -> None:
        self.roots = roots or Roots()
        #: Names of the trace instances that earlier, killed runs left and this object removed.
        self.leftovers: list[str] = []
        #: Errors of :meth:`close`: what could not be removed from the system.
        self.teardown: list[Unreadable] = []
        self._with_probe = memmove_probe
        self._with_sampling = sampling
        self._recording: KernelRecording | None = None
        self._probe: MemmoveProbe | None = None
        self._sampler: Sampler | None = None
        self._samples: dict[int, Counter[int]] | None = None
        self._seen = Observation()
        self._nodes: list[WatchedNode] = []
        self._threads = NodeThreads((), self.roots.proc)
        self._snapshots: list[Snapshot] = []
        self._identities: dict[tuple[int, int], str] = {}
        self._sizes: dict[int, int] = {}
        self._cameras = Cameras(self.roots.proc)
        self._backing: dict[str, None] = {}
        self._pins: dict[str, None] = {}
        self._meanwhile: Callable[[], object] = lambda: None
        self._mappings: dict[tuple[int, int, int], MemoryMapping] = {}
        self._next_scan = self._cpu_from_s = 0.0

    def __enter__(self) -> Measurement:
        self.leftovers = remove_leftovers(self.roots.tracing, self.roots.proc)
        opened = open_recording(self.roots.tracing, self.roots.proc)
        if isinstance(opened, Unreadable):
            self._seen.tell('trace', opened)
        else:
            self._recording = opened
            try:
                opened.begin(video=any(Path('/dev').glob('video*')))
            except BaseException:
                self.close()
                raise
            self._seen.tell('trace', *opened.unreadable)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the trace instance and its probes; close the sampler. Idempotent."""
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None
        if self._recording is not None:
            recording, self._recording = self._recording, None
            self.teardown += recording.close()

    def watch(
        self,
        logs: Sequence[FrameLogReader],
        seconds: float,
        frames: int,
        wait: Wait,
        more: Callable[[], bool],
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Ending:
        """
        Measure, and return why the measured time ended.

        :param logs: the frame logs of all nodes of the pipeline.
        :param seconds: how long to measure. The measured time may last a second longer: it ends
            when any one of the nodes writes its counters into its frame log again, so that the
            counters match the measured time.
        :param frames: end earlier, when this many frames were processed; 0: don't.
        :param wait: a function that waits a number of seconds, and returns whether the user has
            ended the measurement.
        :param more: a function that returns whether the nodes still run.
        :param meanwhile: called about once a second, and at both ends of the measured time.
        """
        self._meanwhile = meanwhile
        self._nodes = [WatchedNode(log) for log in logs]
        for log in logs:
            self._threads.add(log.pid)
            # Skip old records. A frame in flight is not skipped: it gets its record when done.
            log.skip()
        self._begin(wait)
        deadline = time.monotonic() + seconds
        ending = Ending.TIME
        while (left := deadline - time.monotonic()) > 0 and ending is Ending.TIME:
            if not more():
                ending = Ending.GONE
            elif wait(min(_TICK_S, left)):
                ending = Ending.WANTED
            else:
                self._look()
                processed = sum(
                    record.kind == RecordKind.PROCESSED
                    and record.submitted_ns >= self._seen.start_ns
                    for node in self._nodes
                    for record in node.records
                )
                if frames and processed >= frames:
                    ending = Ending.FRAMES
        self._end(min(_SAMPLING_S, seconds), wait, more)
        return ending

    def _begin(self, wait: Wait) -> None:
        if self._with_probe and self._recording is not None:
            self._probe = MemmoveProbe(self._recording.instance)
            self._probe.begin(self._pids, self.roots.proc)
        self._seen.looked_ns = time.monotonic_ns()
        self._look(everything=True)
        # A mapping may have ended before the recording began. The recording doesn't show it, but a
        # pipe or an io_uring may still hold its pages. So look for such pages.
        self._look_at_pins()
        self._wait_for_facts(wait, all, self._expect_facts())
        for node in self._nodes:
            node.begin()
        self._cpu_from_s = time.process_time()
        self._seen.start_ns = time.monotonic_ns()

    def _end(self, sampling_s: float, wait: Wait, more: Callable[[], bool]) -> None:
        # A node's new facts count only copies that the node made before it wrote these facts. So
        # the measured time must end before any node writes new facts.
        end_ns = self._seen.end_ns = self._wait_for_facts(wait, any, self._expect_facts())
        self._look(everything=True)
        self._seen.own_cpu_s = time.process_time() - self._cpu_from_s
        if self._probe is not None:
            self._probe.end()
        self._look_at_pins()
        # Wait for the records of frames that were submitted in the measured time and are still in
        # flight.
        self._wait_for_facts(wait, all, end_ns, past_ns=end_ns)
        for node in self._nodes:
            node.keep_facts()
        self._sample(sampling_s, wait, more)
        self._read_logs()
        self._threads.look()
        if self._recording is not None:
            self._recording.stop()
            self._seen.trace = self._recording.trace()
            self._threads.follow(self._seen.trace.events)
            self._seen.tell('trace', *self._recording.unreadable)

    @property
    def _pids(self) -> list[int]:
        return sorted({node.pid for node in self._nodes})

    def _sample(self, seconds: float, wait: Wait, more: Callable[[], bool]) -> None:
        """
        Sample the CPUs for up to *seconds*, after the measured time, without the memmove probe.

        The kernel takes no sample while it handles a probe. A sample that is due then would be
        taken later, in ``memmove``, and wrongly count as time spent there.
        """
        if not self._with_sampling:
            self._seen.tell(
                'sampling',
                Unreadable(
                    'sampling', 'left out by --no-sampling', 'run once more without this option'
                ),
            )
            return
        sampler = open_sampler(self._pids)
        if isinstance(sampler, Unreadable):
            self._seen.tell('sampling', sampler)
            return
        self._sampler = sampler
        sampler.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and more() and not wait(_TICK_S):
            sampler.drain()
            self._read_logs()
            if self._recording is not None:
                self._recording.drain()
            if all(sampler.kept(pid) >= _ENOUGH_SAMPLES for pid in self._pids):
                break
        self._samples = sampler.stop()

    def _expect_facts(self) -> int:
        """Call :meth:`WatchedNode.expect_facts` of all nodes; return the current time."""
        now_ns = time.monotonic_ns()
        for node in self._nodes:
            node.expect_facts()
        return now_ns

    def _wait_for_facts(
        self,
        wait: Wait,
        enough: Callable[[Iterable[bool]], bool],
        before_ns: int,
        past_ns: int = 0,
    ) -> int:
        """
        Wait until *enough* nodes have rewritten their facts, at most five seconds.

        A signal that ends the measurement doesn't shorten this wait, because the jobs in flight
        must still be recorded.

        :param enough: ``any`` or ``all``: how many nodes must have rewritten their facts.
        :param before_ns: a time at which no node had written new facts yet.
        :param past_ns: also wait until all frames submitted before this time are done; 0: don't.
        :returns: the time of the last check that found too few nodes with new facts; *before_ns*:
            no check found too few.
        """
        began = time.monotonic()
        while (waited := time.monotonic() - began) < _PATIENCE_S:
            now_ns = time.monotonic_ns()
            self._read_logs()
            idle = waited >= _GRACE_S
            if enough(
                [
                    node.ended_ns > 0
                    or (node.renewed and node.is_past(past_ns))
                    or (idle and node.idle)
                    for node in self._nodes
                ]
            ):
                break
            before_ns = now_ns
            if self._recording is not None:
                self._recording.drain()
            if wait(_FACTS_TICK_S):
                time.sleep(_FACTS_TICK_S)
        return before_ns

    def _read_logs(self) -> None:
        for node in self._nodes:
            node.read()

    def _look(self, *, everything: bool = False) -> None:
        """
        Read the frame logs and the trace, to find what came since the last call.

        About once a second, also find new threads, and read the list of dma-bufs and
        ``/proc/PID/maps``.

        :param everything: whether to do this now in any case, for all buffers and processes.
        """
        self._read_logs()
        if self._recording is not None:
            self._recording.drain()
        began = time.monotonic()
        if everything or began >= self._next_scan:
            self._threads.look()
            self._look_at_buffers(everything)
            self._look_at_maps(everything)
            self._meanwhile()
            ended = time.monotonic()
            self._next_scan = ended + max(_LOOK_PERIOD_S, (ended - began) / _LOOK_SHARE)

    def _look_at_buffers(self, everything: bool) -> None:
        start = time.monotonic_ns()
        objects = read_bufinfo(self.roots.debugfs)
        if isinstance(objects, Unreadable):
            self._seen.tell('bufinfo', objects)
        else:
            self._snapshots.append(Snapshot(start, time.monotonic_ns(), objects))
            self._seen.exporters |= {inode: one.exporter for inode, one in objects.items()}
            self._sizes |= {inode: one.size for inode, one in objects.items()}
        if everything or not identities_of(self._nodes) <= set(self._identities):
            self._look_at_descriptors()

    def _look_at_descriptors(self) -> None:
        """Find which of the nodes' buffers are dma-bufs or memfds, their sizes and exporters."""
        holders = read_holders(self._pids, self.roots.proc)
        self._seen.tell('exporters', *holders.unreadable)
        self._identities |= {(one.device, one.inode): one.kind for one in holders.held}
        self._sizes |= {one.inode: one.size for one in holders.held if one.kind == DMABUF}
        self._seen.exporters = {**holders.exporters(), **self._seen.exporters}

    def _look_at_maps(self, everybody: bool) -> None:
        """
        Find which processes map frames, and at which addresses.

        If the trace records each new mapping, read only ``/proc/PID/maps`` of the nodes.

        :param everybody: ``True``: read ``/proc/PID/maps`` of all processes in any case.
        """
        recorded = (
            self._recording is not None and self._recording.sources.get(MMAP, FUNCTION) != FUNCTION
        )
        pids = self._threads.pids if recorded and not everybody else None
        self._cameras.look(self._nodes)
        memory = memory_of(self._nodes, self._identities, self._cameras, self._seen.exporters)
        scan = scan_maps(memory, pids, self.roots.proc, skip=(os.getpid(),))
        self._seen.scans += pids is None
        self._seen.tell('maps', *scan.unreadable)
        for mapping in scan.mappings:
            self._mappings.setdefault((mapping.pid, mapping.start, mapping.inode), mapping)
        if self._probe is not None and self._mappings:
            own = [
                mapping
                for mapping in self._mappings.values()
                if mapping.pid in set(self._threads.pids)
            ]
            self._probe.watch_sources(own)
        made = {
            self._sizes[inode]
            for inode in memory.dmabufs
            if self._seen.exporters.get(inode) == UDMABUF and inode in self._sizes
        }
        if made:
            self._backing |= dict.fromkeys(
                find_memfds(min(made), pids, self.roots.proc, (os.getpid(),), memory.memfds)
            )

    def _look_at_pins(self) -> None:
        """
        Find pipes and io_urings that may hold pages of frames although no process maps the pages.

        If there are any, look again after a moment, and store only what is found then: a pipe's
        reader may just have been slow.
        """
        if find_pins(proc=self.roots.proc):
            time.sleep(_TICK_S)
            self._pins |= dict.fromkeys(find_pins(proc=self.roots.proc))

    def trace_text(self) -> str:
        """Return the kernel's trace as text; call it before :meth:`close`."""
        return self._recording.text() if self._recording is not None else ''

    def observation(self) -> Observation:
        """Return the evidence as plain data; call this after :meth:`watch`."""
        seen = self._seen
        memory = memory_of(self._nodes, self._identities, self._cameras, seen.exporters)
        seen.dmabufs, seen.memfds, seen.any_camera = (
            memory.dmabufs,
            memory.memfds,
            memory.any_camera,
        )
        seen.camera_rdevs, seen.lost_cameras = frozenset(self._cameras.numbers), self._cameras.lost
        seen.nodes, seen.snapshots, seen.process_of = (
            self._nodes,
            self._snapshots,
            self._threads.processes(),
        )
        seen.mappings, seen.backing, seen.pins = (
            list(self._mappings.values()),
            list(self._backing),
            list(self._pins),
        )
        if self._recording is not None:
            seen.event_sources = self._recording.sources
        if self._probe is not None:
            seen.copy_calls = self._probe.calls
            seen.tell('memmove', *self._probe.unreadable)
            if seen.trace is not None and self._probe.functions:
                seen.copies = copies_of(
                    seen.trace, seen.process_of, seen.mappings, seen.start_ns, seen.end_ns
                )
        if not self._with_probe:
            seen.tell(
                'memmove',
                Unreadable(
                    'memmove probe',
                    'left out by --no-memmove-probe',
                    'run once more without this option',
                ),
            )
        if self._samples is not None:
            seen.shares, unreadable = shares_of(self._samples, self._pids, self.roots.proc)
            seen.tell('sampling', *unreadable)
        for node in self._nodes:
            seen.tell('frame log', *node.unreadable)
        return seen
