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
Watch running nodes from outside for a while.

Read :class:`Measurement` first, at the end of the file. Above it are its parts.
:class:`WatchedNode` is one node while it is measured: its frames, its facts at both ends of the
window, and whether it ran until the end. :class:`NodeThreads` finds the nodes' threads.
:class:`Cameras` and :func:`memory_of` find the memory of the watched nodes' frames.
:func:`check_facts` checks the form of the facts that a node writes about itself, because any user
can make a frame log with any content.
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
    """Return whether a value is a text that can be a path and can be encoded."""
    return (
        isinstance(value, str)
        and '\0' not in value
        and not any('\ud800' <= c <= '\udfff' for c in value)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


_Form = tuple[Callable[[object], bool], str]
_TEXT: _Form = (_is_text, 'a text')
_COUNT: _Form = (_is_count, 'a number of 0..18446744073709551615')
#: The keys of a node's facts that are read here, with a check of each; others are ignored.
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
    """Return the facts that have the right form, and a sentence for each other fact."""
    good = dict(facts)
    wrong = []
    for name, (fits, form) in _FORMS.items():
        if name in good and not fits(good[name]):
            wrong.append(f'its {name} is {shown(good.pop(name))}; it must be {form}')
    return good, wrong


_RECENT = 32


class WatchedNode(NodeView):
    """
    One node whose frame log is read.

    A node rewrites its facts about once a second. So the next facts that the node writes show its
    state at a given time: call :meth:`expect_facts`, and wait until :attr:`renewed`.
    :class:`Measurement` does so at both ends of the window, with :meth:`begin` after the first
    wait and :meth:`keep_facts` after the last.
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
        """Read new records, and note whether the node still runs."""
        self.records += self.log.read()
        self.lost = self.log.lost
        if not self.ended_ns and not self._kept and not self.log.alive:
            self.ended_ns = time.monotonic_ns()

    def begin(self) -> None:
        """Begin the window: the node's current facts become :attr:`before`."""
        self.before = self.facts()

    def facts(self) -> Mapping[str, Any]:
        """
        Return the latest facts in the window.

        :attr:`unreadable` names facts of a wrong form.
        """
        return self.after if self._kept else self._checked(self.log.facts())

    def _checked(self, facts: dict[str, Any]) -> dict[str, Any]:
        good, wrong = check_facts(facts)
        self._wrong |= dict.fromkeys(wrong)
        return good

    def expect_facts(self) -> None:
        """From now on, wait for the next facts that the node writes."""
        self._old, self._new, self._written = self.log.facts(), None, self.log.written

    @property
    def renewed(self) -> bool:
        """
        Whether the node has written facts since :meth:`expect_facts`.

        The first facts since then are kept.
        """
        if self._new is None and (facts := self.log.facts()) != self._old:
            self._new = facts
        return self._new is not None

    @property
    def idle(self) -> bool:
        """
        Whether the node finished no frame since :meth:`expect_facts`.

        Its facts can't change then.
        """
        return self.log.written == self._written

    def is_past(self, time_ns: int) -> bool:
        """Return whether all frames before *time_ns* are recorded, because a later one is done."""
        if self.role != INFERENCE or not time_ns:
            return True
        return any(record.submitted_ns > time_ns for record in self.records[-_RECENT:])

    def keep_facts(self) -> None:
        """Keep the first facts since :meth:`expect_facts` as those of the window's end."""
        self.described = self.renewed or self.idle
        self.after = self._checked(self._old if self._new is None else self._new)
        self._kept = True

    @property
    def unreadable(self) -> list[Unreadable]:
        """Return sentences about facts of a wrong form that the node has written until now."""
        source = f'frame log of {self.node} (process {self.pid})'
        step = (
            'end that program, or use its version of the package; or name the nodes to be '
            'measured with --pid'
        )
        return [Unreadable(source, wrong, step) for wrong in self._wrong]


class NodeThreads:
    """The threads of the nodes, and the threads and child processes that these start."""

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
        """Look again at all processes, to find threads started since the last look."""
        for pid in set(self._process_of.values()):
            for tid in threads_of(pid, self._proc):
                self._process_of[tid] = pid

    def follow(self, events: Iterable[KernelEvent]) -> None:
        """
        Add the threads and children that ``sched_process_fork`` events name.

        They may have ended already, so :meth:`look` would miss them.
        """
        for event in events:
            if event.name == FORK and (parent := self._process_of.get(event.tid)) is not None:
                self._process_of.setdefault(event.number('child_pid'), parent)

    def processes(self) -> dict[int, int]:
        """Return, for each thread, the process of its node."""
        return dict(self._process_of)

    @property
    def pids(self) -> Collection[int]:
        """Return the nodes' processes."""
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
    The video devices of the watched capture nodes.

    A node's facts name a path. In a container the same path may be a different device, so the path
    is looked up below the root folder of the node's process.

    :ivar paths: the names that mappings of these devices have.
    :ivar numbers: the device numbers in the kernel's internal form (12 bits major, 20 bits minor).
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._found: dict[tuple[int, str], bool] = {}
        self.paths: set[str] = set()
        self.numbers: set[int] = set()

    @property
    def lost(self) -> frozenset[str]:
        """Return the paths whose device was never found."""
        return frozenset(path for (_, path), found in self._found.items() if not found)

    def look(self, nodes: Iterable[WatchedNode]) -> None:
        """Look for the devices again, because a camera may come and go."""
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
    Return the memory to look for in the processes' maps.

    :param kinds: the kinds of buffers (dma-buf or memfd), as far as known. A buffer that no
        process holds any more is looked for as both kinds.
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
#: Looking at buffers and maps may take at most this share of the time. So on a slow machine these
#: looks are made less often.
_LOOK_SHARE = 0.1
_LOOK_PERIOD_S = 1.0
#: The interval between two looks while waiting for nodes' facts.
_FACTS_TICK_S = 0.05
# A node that has finished no frame for _GRACE_S has nothing new to report. A node with frames gets
# _PATIENCE_S, because the machine may be slow.
_GRACE_S = 2.0
_PATIENCE_S = 5.0
# Sampling lasts as long as the window but at most _SAMPLING_S, or until each node has this many
# samples, which is a few times what judging one per cent needs.
_SAMPLING_S = 5.0
_ENOUGH_SAMPLES = 500
Wait = Callable[[float], bool]


@dataclass(frozen=True)
class Roots:
    """The root folders of ``/proc``, debugfs and tracefs; tests use others."""

    proc: Path = PROC
    tracing: Path = TRACING
    debugfs: Path = DEBUGFS


class Ending(Enum):
    """The reason why a window ended."""

    TIME = 'time'
    FRAMES = 'frames'
    WANTED = 'wanted'
    GONE = 'gone'


class Measurement:
    """
    A measurement, as a context manager; leaving it removes all traces from the system.

    Everything runs on the caller's thread, in this order:

    1. Entering the context removes what killed runs left behind. Then it starts recording the
       kernel's events, before it looks at anything else.
    2. :meth:`watch` installs the probe on ``memmove``, looks at everything once, and waits until
       each node has rewritten its facts. Then the window begins. During the window it reads the
       frame logs and the trace several times a second, and buffers and maps about once a second.
       When the time is over, the window ends as soon as the first node has rewritten its facts
       again. Then :meth:`watch` removes the probe, waits for the frames that are still in flight,
       samples the processors, and stops the record.
    3. :meth:`observation` turns what was collected into plain data.
    4. :meth:`close` takes everything down.

    :param memmove_probe: whether the C library's copies are counted; this slows down each process
        that calls ``memmove``.
    :param sampling: whether the processors are sampled after the window.
    """

    def __init__(
        self, roots: Roots | None = None, *, memmove_probe: bool = True, sampling: bool = True
    ) -> None:
        self.roots = roots or Roots()
        #: Names of the trace instances that killed runs left and that were removed here, for the
        #: caller to report.
        self.leftovers: list[str] = []
        #: What could not be removed at the end.
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
        """Remove everything from the system. A second call does nothing."""
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
        Measure, and return why the window ended.

        After the given time the window goes on until the first node has rewritten its facts, so
        that the nodes' counters and the outside observation end together.

        :param logs: the frame logs of all nodes of the pipeline.
        :param seconds: how long to measure; the window may be up to a second longer.
        :param frames: measure only until this many frames were processed; 0: for the whole time.
        :param wait: a function that waits this many seconds; it returns true if the measurement
            shall end.
        :param more: a function that returns whether the nodes still run.
        :param meanwhile: a function that is called about once a second, and at both ends of the
            window.
        """
        self._meanwhile = meanwhile
        self._nodes = [WatchedNode(log) for log in logs]
        for log in logs:
            self._threads.add(log.pid)
            # Skip the records of the past. A frame in flight gets its record when it is done, so
            # it isn't skipped.
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
        # Pages that were mapped only before the recording began may be held in a pipe or ring by
        # now.
        self._look_at_pins()
        self._wait_for_facts(wait, all, self._expect_facts())
        for node in self._nodes:
            node.begin()
        self._cpu_from_s = time.process_time()
        self._seen.start_ns = time.monotonic_ns()

    def _end(self, sampling_s: float, wait: Wait, more: Callable[[], bool]) -> None:
        # The facts have the nodes' counters at the time of writing. The window must end before the
        # first node writes its facts, because a copy that this node makes afterwards would be
        # missing in the counters.
        end_ns = self._seen.end_ns = self._wait_for_facts(wait, any, self._expect_facts())
        self._look(everything=True)
        self._seen.own_cpu_s = time.process_time() - self._cpu_from_s
        if self._probe is not None:
            self._probe.end()
        self._look_at_pins()
        # Some frames that were submitted in the window are still in flight. Wait for their
        # records.
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
        """Return the nodes' processes."""
        return sorted({node.pid for node in self._nodes})

    def _sample(self, seconds: float, wait: Wait, more: Callable[[], bool]) -> None:
        """
        Sample the processors, after the window.

        This is done without the probe, because the kernel can't take a sample while it handles a
        probe. The delayed sample would then hit ``memmove`` and count as time spent there.
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
        """Expect new facts of all nodes from now on; return the time now."""
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
        Wait until *enough* nodes have rewritten their facts.

        A signal doesn't shorten the wait, because the jobs in flight go on, too.

        :param enough: ``any`` or ``all``: how many of the nodes must have rewritten them.
        :param before_ns: a time at which no node had written new facts yet.
        :param past_ns: also wait until all frames submitted before this time are done; 0: don't.
        :returns: the time of the last look at which too few nodes had new facts.
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
        """Read frame logs and trace each time, and buffers and maps about once a second."""
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
        """Find out which of the nodes' buffers are dma-bufs, and which driver exports them."""
        holders = read_holders(self._pids, self.roots.proc)
        self._seen.tell('exporters', *holders.unreadable)
        self._identities |= {(one.device, one.inode): one.kind for one in holders.held}
        self._sizes |= {one.inode: one.size for one in holders.held if one.kind == DMABUF}
        self._seen.exporters = {**holders.exporters(), **self._seen.exporters}

    def _look_at_maps(self, everybody: bool) -> None:
        """
        Look for mappings of frames.

        At the window's ends the maps of all processes are read. In between only those of the nodes
        are read, if the kernel's events tell of every new mapping.
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
        Look for pages held without a mapping.

        A pipe with bytes is looked at again after a moment, because its reader may only be slow.
        """
        if find_pins(proc=self.roots.proc):
            time.sleep(_TICK_S)
            self._pins |= dict.fromkeys(find_pins(proc=self.roots.proc))

    def trace_text(self) -> str:
        """Return the kernel's trace as text; call it before :meth:`close`."""
        return self._recording.text() if self._recording is not None else ''

    def observation(self) -> Observation:
        """Return everything observed, as plain data."""
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
