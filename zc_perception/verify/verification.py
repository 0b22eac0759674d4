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
The command ``zc_verify``: check whether nodes keep the four invariants of ``docs/verify.md``.

:func:`run` runs the whole command, for running nodes or for nodes that a :class:`Command` starts.

The zero-copy document is the specification that this package implements; it defines four keys of
``result.json``. :func:`document_keys` computes the keys as the document defines them, although two
definitions are too narrow: ``I1_attach_count_ge2`` is true only if two devices are attached to a
buffer, such as the camera and the NPU, and ``I3_axl_imports`` is true only if no node caches
imports. The module :mod:`~zc_perception.verify.invariants` checks the four invariants.
``result.schema.json`` defines the form of ``result.json``.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import contextlib
import ctypes
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
import json
import os
from pathlib import Path
import platform
import signal
import subprocess
import sys
import time
import traceback
from typing import Any

import zc_perception
from zc_perception.errors import ConfigError, printable, ZcError
from zc_perception.npu.kinds import traced
from zc_perception.observe.frame_log import (
    find_frame_logs,
    FoundFrameLogs,
    FrameLogReader,
    hidden_logs,
    UnreadableProcess,
)
from zc_perception.observe.processes import all_pids, PROC, process_state, sudo_command, who
from zc_perception.observe.timeline import build_timeline, NodeTrack
from zc_perception.programs import OptionParser
from zc_perception.terminal import Interrupted, Interruption, interruptions, put
from zc_perception.verify.evidence import Unreadable
from zc_perception.verify.evidence.kernel_events import FENCES
from zc_perception.verify.imports import ImportFollowing
from zc_perception.verify.invariants import (
    all_checks,
    attachments_are_recorded,
    Check,
    histories,
    KNOWN_EXPORTERS,
)
from zc_perception.verify.measurement import Ending, Measurement, Roots
from zc_perception.verify.observation import INFERENCE, NodeView, Observation, time_of
from zc_perception.whole_file import write_whole

DOCUMENT_EXPORTERS = frozenset(('nvmap', 'system', 'tegra-buf'))
HOT_PERCENT = 1.0
#: The number of samples that are needed to detect that a process copies for 1 % of its CPU time.
MIN_SAMPLES = 100
KEYS = ('I1_attach_count_ge2', 'I2_known_exporter', 'I3_axl_imports', 'I4_no_memcpy_hot')


@dataclass(frozen=True)
class DocumentKeys:
    """
    The four keys of ``result.json`` that the zero-copy document defines, and ``detail``.

    ``None``: it isn't known whether the key's invariant holds.
    """

    keys: dict[str, bool | None]
    detail: dict[str, Any]

    @property
    def holds(self) -> bool:
        """Whether all four invariants hold; key ``pass_document`` of ``result.json``."""
        return all(value is True for value in self.keys.values())


def document_keys(seen: Observation) -> DocumentKeys:
    """Compute four keys of ``result.json``, see this module's docstring for their definitions."""
    found = histories(seen) if seen.snapshots else {}
    counts = {
        inode: max(
            (sum(state.values()) for state in history.during(seen.start_ns, seen.end_ns)),
            default=0,
        )
        for inode, history in found.items()
    }
    several = sorted(inode for inode, count in counts.items() if count >= 2)
    exact = (
        bool(found)
        and attachments_are_recorded(seen)
        and all(history.exact for history in found.values())
    )
    attach: bool | None = bool(several)
    if not several and not exact:
        attach = None
    exporters = sorted(
        {name for inode in seen.frame_inodes() if (name := seen.exporters.get(inode))}
    )
    known: bool | None = None
    if attach is not None:
        known = bool(several) and all(
            seen.exporters.get(inode) in DOCUMENT_EXPORTERS for inode in several
        )
    following = ImportFollowing(seen, found) if seen.trace is not None and seen.snapshots else None
    imports: bool | None = None
    if (
        following is not None
        and not following.unreadable
        and following.submitted
        and seen.trace is not None
        and not seen.trace.gap
    ):
        imports = following.own_imports >= following.submitted
    counted = (
        Counter(event.name for event in seen.trace.events if seen.within(event.time_ns))
        if seen.trace is not None
        else Counter()
    )
    detail = {
        'imports': sum(counted[name] for name in traced().imported),
        'releases': sum(counted[name] for name in traced().released),
        'fence_wait_lines': sum(
            counted[name] for name in ('dma_fence_wait_start', 'dma_fence_wait_end')
        ),
        # There is no kernel event for waiting with poll(2) for a sync_file. So these waits are
        # counted from the frames' records.
        'fence_waits_by_poll': sum(record.signalled_ns > 0 for _, record in seen.all_submitted()),
        'fence_lines': {name: counted[name] for name in FENCES},
        'multi_attach_inodes': [str(inode) for inode in several],
        'attach_counts': {str(inode): count for inode, count in sorted(counts.items())},
        'exporters': exporters,
        'memcpy_hot': [
            {'pid': share.pid, 'percent': round(share.percent, 2), 'samples': share.samples}
            for share in seen.shares or ()
            if share.percent > HOT_PERCENT
        ],
        'submitted_frames': len(seen.all_submitted()),
        'frames_with_own_import': following.own_imports if following is not None else 0,
    }
    return DocumentKeys(dict(zip(KEYS, (attach, known, imports, _hot(seen)), strict=True)), detail)


def _hot(seen: Observation) -> bool | None:
    """
    Return whether no node spends more than 1 % of its CPU time in memcpy or memmove.

    Return ``None`` if a node has too few samples, or if no frames were submitted.
    """
    shares = {share.pid: share for share in seen.shares or ()}
    if any(
        share.percent > HOT_PERCENT and share.samples >= MIN_SAMPLES for share in shares.values()
    ):
        return False
    pids = {node.pid for node in seen.nodes}
    enough = all(pid in shares and shares[pid].samples >= MIN_SAMPLES for pid in pids)
    return True if pids and enough and seen.all_submitted() else None


VERSION = 1
SCHEMA = Path(__file__).with_name('result.schema.json')
RESULT = 'result.json'
#: If a wait for a fence, or a job of the device, takes longer than this (in milliseconds), the
#: result has a note about it. A long wait or job breaks no invariant.
SLOW_FENCE_MS = 50.0
EXIT_PASS, EXIT_BROKEN, EXIT_USAGE, EXIT_NOT_MEASURED = 0, 1, 2, 3


@dataclass(frozen=True)
class Result:
    """
    The whole result of a measurement.

    :param notes: remarks that are not violations.
    :param command: the command line of ``zc_verify``.
    :param files: names of the other output files in the folder of ``result.json``, by purpose.
    """

    seen: Observation
    checks: Sequence[Check]
    document: DocumentKeys
    notes: Sequence[str] = ()
    command: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether all checks hold."""
        return all(check.holds is True for check in self.checks)

    @property
    def exit_code(self) -> int:
        """The exit code: 3 if a result is not known, else 0 if all checks hold, else 1."""
        if not all(check.measured for check in self.checks):
            return EXIT_NOT_MEASURED
        return EXIT_PASS if self.passed else EXIT_BROKEN

    def as_json(self) -> dict[str, Any]:
        """Return this result as a dictionary for ``result.json``."""
        seen = self.seen
        return {
            'version': VERSION,
            **self.document.keys,
            'detail': self.document.detail,
            'pass_document': self.document.holds,
            'checks': {check.name: check.as_json() for check in self.checks},
            'pass': self.passed,
            'environment': describe_environment(self.command),
            'frames': len(seen.all_submitted()),
            'window': {
                'start_ns': seen.start_ns,
                'end_ns': seen.end_ns,
                'seconds': round((seen.end_ns - seen.start_ns) / 1e9, 3),
                'own_cpu_seconds': round(seen.own_cpu_s, 3),
            },
            'processes': [_node(node, seen) for node in seen.nodes],
            'event_sources': dict(seen.event_sources),
            'notes': list(self.notes),
            'unreadable': [
                {'topic': topic, **one.as_json()}
                for topic, told in sorted(seen.unreadable.items())
                for one in told
            ],
            'files': dict(self.files),
        }


def _node(node: NodeView, seen: Observation) -> dict[str, Any]:
    named = (
        'accelerator',
        'import_cache',
        'pci_address',
        'rung',
        'camera',
        'device',
        'heap',
        'fourcc',
        'width',
        'height',
        'slots',
    )
    records = [record for record in node.records if seen.within(time_of(record))]
    return {
        'pid': node.pid,
        'node': node.node,
        'role': node.role,
        'frames': len(records),
        'failed': node.grown('failed'),
        'dropped': node.grown('dropped'),
        **{name: node.after[name] for name in named if name in node.after},
    }


def describe_environment(command: Sequence[str]) -> dict[str, Any]:
    """Return the date, machine and versions for ``result.json``, without host and user names."""
    return {
        'date': datetime.now(timezone.utc).isoformat(timespec='seconds'),
        'kernel': platform.release(),
        'machine': platform.machine(),
        'cpus': os.cpu_count() or 0,
        'python': platform.python_version(),
        'package': zc_perception.__version__,
        'user': 'root' if os.geteuid() == 0 else 'not root',
        'command': list(command),
    }


def write_result(result: Result, folder: Path) -> Path:
    """Write ``result.json``, either completely or not at all."""
    path = folder / RESULT
    write_whole(path, json.dumps(result.as_json(), indent=1, allow_nan=False) + '\n')
    return path


def verdict(result: Result) -> list[str]:
    """Return the lines to print: each check's result, reason, next step; notes; the verdict."""
    words = {True: 'holds', False: 'DOES NOT HOLD', None: 'not measured'}
    lines = [
        (
            f'{len(result.seen.all_submitted())} frames in '
            f'{(result.seen.end_ns - result.seen.start_ns) / 1e9:.1f} s'
        )
    ]
    for check in result.checks:
        lines.append(f'{check.name} {words[check.holds]}: {check.title}')
        if check.holds is not True:
            lines.append(f'   why:  {check.reason}')
            if check.next_step:
                lines.append(f'   next: {check.next_step}')
    keys = result.document.keys.items()
    said = ', '.join(
        f'{name} {"?" if value is None else str(value).lower()}' for name, value in keys
    )
    lines.append(f'keys of result.json: {said}')
    lines += [
        f'{check.name} does not check {one}'
        for check in result.checks
        for one in check.figures.get('not_seen', ())
    ]
    lines += [f'note: {note}' for note in result.notes]
    lines.append(
        {EXIT_PASS: 'PASS', EXIT_BROKEN: 'FAIL', EXIT_NOT_MEASURED: 'NOT MEASURED'}[
            result.exit_code
        ]
    )
    return lines


def notes(seen: Observation) -> list[str]:
    """Return remarks that are not violations: ended nodes, long waits for fences, long jobs."""
    started: dict[tuple[int, str, str], int] = {}
    slow = []
    for event in seen.trace.events if seen.trace is not None else ():
        key = (event.tid, event.fields.get('context', ''), event.fields.get('seqno', ''))
        if event.name == 'dma_fence_wait_start':
            started[key] = event.time_ns
        elif event.name == 'dma_fence_wait_end' and key in started:
            slow.append((event.time_ns - started.pop(key)) / 1e6)
    jobs = [
        (record.signalled_ns - record.submitted_ns) / 1e6
        for node, record in seen.all_submitted()
        if record.signalled_ns and node.imports
    ]
    found = [
        (
            f'{node} ended {max(0, node.ended_ns - seen.start_ns) / 1e9:.1f} s after the measured '
            'time began; what it did last is not known'
        )
        for node in seen.nodes
        if node.ended_ns
    ]
    for what, waits in (('waits for fences', slow), ('jobs of the device', jobs)):
        long = [wait for wait in waits if wait > SLOW_FENCE_MS]
        if long:
            worst = (
                f'{len(long)} {what} took more than {SLOW_FENCE_MS:g} ms, the longest '
                f'{max(long):.0f} ms'
            )
            found.append(
                f"{worst}; check the card's PCIe link: 'lspci -vvv -d 1f9d:1100 | grep LnkSta' "
                'must show Speed 8GT/s and Width x4 (zc_doctor checks this)'
            )
    return found


# <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


_WALKS = 10


class Descendants:
    """
    Finds the descendants of this process that started after this object was made.

    It also finds descendants that changed their session or environment. Until :meth:`close`, this
    process is a "child subreaper", see prctl(2): a descendant whose parent ends becomes a child of
    this process, and so remains a descendant.
    """

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._before = {
            pid: state.start
            for pid in all_pids()
            if self.has(pid) and (state := process_state(pid))
        }
        self._libc = ctypes.CDLL(None)
        was = ctypes.c_int(0)
        self._libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
        self._was = was.value
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def has(self, pid: int) -> bool:
        """Return whether process *pid* is one of the descendants that this object finds."""
        # Walk again if a parent ended during the walk: its child has another parent now.
        for _ in range(_WALKS):
            found = self._walk(pid)
            if found is not None:
                return found
        return False

    def _walk(self, pid: int) -> bool | None:
        """Return what :meth:`has` returns; ``None`` if a parent ended during the call."""
        first, met = pid, set[int]()
        while pid > 1 and pid not in met:
            met.add(pid)
            state = process_state(pid)
            if state is None:
                return False if pid == first else None
            if self._before.get(pid) == state.start:
                return False
            if state.parent == os.getpid():
                return True
            pid = state.parent
        return False

    def reap(self, but: int) -> None:
        """Reap each ended child, except the process *but*, which :class:`Command` itself reaps."""
        own = os.getpid()
        for pid in all_pids():
            state = process_state(pid)
            if (
                pid != but
                and state is not None
                and state.ended
                and state.parent == own
                and self._before.get(pid) != state.start
            ):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def close(self) -> None:
        """Restore the subreaper setting of this process."""
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, self._was, 0, 0, 0)


_POLL_S = 0.25
#: Measuring begins only after each inference node of a command has processed this many frames.
_FLOWING = 5
#: A command's nodes count as complete when no node has started for this many seconds, because the
#: nodes of a launch file don't start all at once.
_SETTLED_S = 2.0
_PATIENCE_S = (15.0, 5.0, 5.0)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_LOOK_S = 0.05


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Turn an OSError of the block into a ConfigError that advises another ``--output``."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f'{error}; name another folder with --output') from error


class Command:
    """
    A command that runs in its own session while its nodes are measured.

    Because of the session, a Ctrl-C in the terminal reaches only ``zc_verify``, which can finish
    its measurement first. :meth:`stop` ends the command and all processes that it has started.
    """

    def __init__(self, words: Sequence[str], output: Path) -> None:
        self.words = list(words)
        with _writing():
            self._output = output.open('wb')
        self._descendants = Descendants()
        try:
            self._process = subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._descendants.close()
            self._output.close()
            raise ConfigError(
                f'the command {self.words[0]!r} cannot be started: {error.strerror}; give one '
                'that is in PATH'
            ) from error

    def started(self, pid: int) -> bool:
        """Return whether a process still runs, and is the command or one of its descendants."""
        state = process_state(pid)
        return state is not None and not state.ended and self._descendants.has(pid)

    @property
    def ended(self) -> bool:
        """Whether the command has ended."""
        return self.status is not None

    @property
    def status(self) -> int | None:
        """The exit status; after a signal, the signal's number times -1; ``None``: none yet."""
        return self._process.poll()

    def stop(self) -> None:
        """End the command, then its remaining descendants: by SIGINT, later SIGTERM, SIGKILL."""
        self._end(lambda: [] if self.ended else [self._process.pid])
        self._end(lambda: [pid for pid in all_pids() if self.started(pid)])
        self._descendants.reap(self._process.pid)
        self._descendants.close()
        self._output.close()

    def _end(self, those: Callable[[], list[int]]) -> None:
        """Send SIGINT, later SIGTERM, SIGKILL to the pids of *those()*, until there are none."""
        for number, patience in zip(_SIGNALS, _PATIENCE_S, strict=True):
            for pid in those():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            deadline = time.monotonic() + patience
            while those() and time.monotonic() < deadline:
                time.sleep(_LOOK_S)


def running_nodes(pids: Collection[int] | None) -> FoundFrameLogs:
    """Return the frame logs of running nodes in *pids*, or in all processes."""
    found = find_frame_logs(pids=pids)
    return FoundFrameLogs([log for log in found if log.alive], found.unreadable)


def wait_for_frames(
    command: Command, seconds: float, wait: Callable[[float], bool]
) -> FoundFrameLogs:
    """Wait at most *seconds* until frames flow through the command's nodes; return their logs."""
    known: dict[tuple[int, str, int], FrameLogReader] = {}
    unreadable: tuple[UnreadableProcess, ...] = ()
    deadline = time.monotonic() + seconds
    settled = 0.0
    while time.monotonic() < deadline and not command.ended:
        if wait(_POLL_S):
            break
        logs = find_frame_logs()
        unreadable = tuple(one for one in logs.unreadable if command.started(one.pid))
        for log in logs:
            identity = identity_of(log)
            if identity in known or not command.started(log.pid):
                log.close()
            else:
                known[identity] = log
                settled = time.monotonic() + _SETTLED_S
        inferring = [log for log in known.values() if log.role == INFERENCE]
        if (
            inferring
            and time.monotonic() >= settled
            and all(log.written >= _FLOWING for log in inferring)
        ):
            break
    return FoundFrameLogs(sorted(known.values(), key=lambda log: (log.pid, log.node)), unreadable)


def identity_of(log: FrameLogReader) -> tuple[int, str, int]:
    """Return a key that is unique for a log on this machine, also among logs of one node."""
    return log.pid, log.node, log.started_ns


def absent(found: FoundFrameLogs, pids: Collection[int]) -> list[str]:
    """Return a message with advice for each of *pids* that is not a running node."""
    told = []
    seen = {log.pid for log in found}
    hidden = {one.pid: one for one in found.unreadable}
    for pid in sorted(set(pids)):
        if not (PROC / str(pid)).exists():
            told.append(f'process {pid}: there is no such process; give the pid of a running node')
        elif pid not in seen and pid not in hidden:
            told.append(
                f'{who(pid)} is no node with a frame log; give the processes of capture and '
                'inference nodes, or leave --pid out'
            )
    return told


def _hidden(unreadable: Collection[UnreadableProcess]) -> list[Unreadable]:
    return [Unreadable(*one) for one in hidden_logs(unreadable)]


_REASON, _STEP = 'it started during the measurement, and was not measured', 'measure once more'


class Newcomers:
    """
    Finds nodes that start during the measurement, to report that they are not measured.

    :param found: the nodes that are measured, and the unreadable processes that are reported
        already.
    :param pids: look only at these processes; ``None``: at all processes.
    :param command: count only nodes of this command's processes; ``None``: count all nodes.
    """

    def __init__(
        self, found: FoundFrameLogs, pids: Collection[int] | None, command: Command | None
    ) -> None:
        self._known = {identity_of(log) for log in found}
        self._hidden = {one.pid for one in found.unreadable}
        self._unreadable: dict[int, tuple[int, UnreadableProcess]] = {}
        self._pids, self._command = pids, command
        self._began: dict[tuple[int, str, int], tuple[int, str]] = {}

    def look(self) -> None:
        """Find nodes and unreadable processes that are new since the measurement began."""
        now_ns = time.monotonic_ns()
        with find_frame_logs(pids=self._pids) as logs:
            for log in logs:
                identity = identity_of(log)
                if (
                    identity not in self._known
                    and identity not in self._began
                    and log.alive
                    and self._counts(log.pid)
                ):
                    self._began[identity] = min(now_ns, log.started_ns), str(log)
        for one in logs.unreadable:
            # An empty name means that the process ended during find_frame_logs(): leave it out.
            if one.name and one.pid not in self._hidden and self._counts(one.pid):
                self._unreadable.setdefault(one.pid, (now_ns, one))

    def _counts(self, pid: int) -> bool:
        return self._command is None or self._command.started(pid)

    def unreadable(self, until_ns: int) -> list[Unreadable]:
        """
        Return an entry for each node and each unreadable process that :meth:`look` found.

        Leave out nodes that started after *until_ns* (CLOCK_MONOTONIC), and processes that were
        found after this time.
        """
        hidden = [one for began_ns, one in self._unreadable.values() if began_ns <= until_ns]
        lines = dict.fromkeys(
            line for began_ns, line in self._began.values() if began_ns <= until_ns
        )
        return [*(Unreadable(line, _REASON, _STEP) for line in lines), *_hidden(hidden)]


class Say:
    """Prints each text as one line, escapes unprintable characters, ignores a closed output."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def __call__(self, text: str) -> None:
        """Print a line, unless ``--quiet`` is given."""
        if not self._quiet:
            self.verdict(text)

    def verdict(self, text: str) -> None:
        """Print a line, even if ``--quiet`` is given."""
        put(printable(text), sys.stdout)

    def error(self, text: str) -> None:
        """Print a line to standard error."""
        put(printable(f'zc_verify: {text}'), sys.stderr)


TRACE, TIMELINE, LOG, ERROR = 'trace.txt', 'timeline.json', 'command.log', 'traceback.txt'
_WHAT = (
    'Measures whether the four invariants of zero copy hold for the nodes that run, or for those '
    'that a command starts.'
)
_EXAMPLES = (
    'zc_verify --seconds 10',
    'zc_verify --output build/verify -- ros2 launch zc_perception perception.launch.py',
)
_EPILOG = """exit status: 0 all four invariants were measured and hold; 1 all were measured, and at
least one does not hold; 3 not all were measured, or zc_verify itself failed; 2 wrong use, or there
is no node to measure; 128 + n: signal n came before anything was measured. Only root can measure
all four invariants."""


def _as_root() -> str:
    return sudo_command(sys.argv[0])


def parser() -> OptionParser:
    """Make the parser of ``zc_verify``'s command line."""
    made = OptionParser(
        'zc_verify', _WHAT, _EXAMPLES, usage='[options] [-- COMMAND ...]', after=_EPILOG
    )
    made.epilog = f'{made.epilog} To run zc_verify as root from this shell:\n  {_as_root()}'
    main, more = made.main, made.more
    main.add_argument(
        '--seconds',
        type=float,
        default=10.0,
        help='how many seconds to measure (default: 10); the measurement may last 1 second '
        'longer, until a node has written its counters',
    )
    main.add_argument(
        '--frames',
        type=int,
        default=0,
        help='stop after this number of processed frames (0, the default: use the whole time)',
    )
    main.add_argument(
        '--output',
        type=Path,
        default=Path('build/verify'),
        help=f'folder for {RESULT}, {TRACE}, {TIMELINE}',
    )
    main.add_argument(
        '--pid',
        type=int,
        nargs='+',
        default=None,
        help='measure the nodes of these processes only',
    )
    main.add_argument(
        'command', nargs='*', help='after --: start this command, measure its nodes, then end it'
    )
    more.add_argument(
        '--known-exporter',
        nargs='+',
        default=[],
        action='extend',
        metavar='NAME',
        help='accept frames in dma-bufs of these exporters too, not only of '
        f'{", ".join(KNOWN_EXPORTERS)}',
    )
    more.add_argument('--no-memmove-probe', action='store_true',
                      help='do not count copies by memmove and memcpy (counting slows them down); '
                           'invariant I4 is then not measured')  # fmt: skip
    more.add_argument('--no-sampling', action='store_true',
                      help='do not sample the processors after the measured time; key '
                           'I4_no_memcpy_hot of result.json is then null')  # fmt: skip
    more.add_argument(
        '--wait',
        type=float,
        default=60.0,
        help='how many seconds a command may take until frames flow (default: 60)',
    )
    more.add_argument('--quiet', action='store_true', help='print only the last line')
    return made


@contextlib.contextmanager
def _workload(
    arguments: argparse.Namespace, stop: Interruption
) -> Iterator[tuple[FoundFrameLogs, Command | None]]:
    if not arguments.command:
        with running_nodes(arguments.pid) as found:
            yield found, None
        return
    command = Command(arguments.command, arguments.output / LOG)
    try:
        with wait_for_frames(command, arguments.wait, stop.wait) as found:
            yield found, command
    finally:
        command.stop()


class _NotMeasured(ConfigError):
    """Nothing was measured, because this user may not examine some processes."""


def _unreadable(
    found: FoundFrameLogs, arguments: argparse.Namespace, command: Command | None
) -> list[Unreadable]:
    """
    Return an entry for each process that this user may not examine.

    :raises ConfigError: a process of ``--pid`` is not a node, or there is nothing to measure.
    """
    missing = absent(found, arguments.pid or ())
    if missing:
        raise ConfigError('; '.join(missing))
    # An empty name means that the process ended while its logs were searched for: leave it out.
    hidden = _hidden([one for one in found.unreadable if arguments.pid or one.name])
    if not arguments.pid and command is None:
        hidden = [
            replace(one, next_step=f'{one.next_step}, or name the nodes with --pid')
            for one in hidden
        ]
    if found:
        return hidden
    if hidden:
        raise _NotMeasured(f'not measured: {"; ".join(map(str, hidden))}')
    if command is not None:
        how = 'has ended' if command.ended else f'started no node within {arguments.wait:g} s'
        raise ConfigError(f'the command {how}; see {arguments.output / LOG}')
    raise ConfigError(
        'there is no node with a frame log on this machine; start one, or give a command after --'
    )


def _measure(arguments: argparse.Namespace, stop: Interruption, say: Say) -> Result:
    with _writing():
        arguments.output.mkdir(parents=True, exist_ok=True)
        for name in (RESULT, TRACE, TIMELINE, ERROR):
            (arguments.output / name).unlink(missing_ok=True)
    with Measurement(
        Roots(), memmove_probe=not arguments.no_memmove_probe, sampling=not arguments.no_sampling
    ) as measurement:
        for name in measurement.leftovers:
            say(f'removed {name}, which an earlier run left behind')
        with _workload(arguments, stop) as (found, command):
            stop.check()
            hidden = _unreadable(found, arguments, command)
            for log in found:
                say(f'measuring {log}')
            for one in hidden:
                say(f'not measured: {one}')
            with contextlib.suppress(OSError):
                # Lower this process's priority only after the start of the command, which would
                # otherwise inherit the lower priority.
                os.nice(10)
            newcomers = Newcomers(found, arguments.pid, command)
            ending = measurement.watch(
                found,
                arguments.seconds,
                arguments.frames,
                stop.wait,
                lambda: (
                    any(log.alive for log in found) and not (command is not None and command.ended)
                ),
                newcomers.look,
            )
            seen = measurement.observation()
            unread = [*seen.why('frame log'), *newcomers.unreadable(seen.end_ns)]
            for one in unread:
                say(f'not measured: {one}')
            seen.tell('frame log', *hidden, *unread)
            told = [*_cut_short(ending, seen, arguments, stop, command), *notes(seen)]
            say(f'measured {len(seen.all_submitted())} frames')
        text = measurement.trace_text()
        measurement.close()
        for one in measurement.teardown:
            say(str(one))
    known = (*KNOWN_EXPORTERS, *arguments.known_exporter)
    files = {'trace': TRACE} if text else {}
    if arguments.command:
        files['command'] = LOG
    document = document_keys(seen)
    result = Result(
        seen, all_checks(seen, known), document, told, sys.argv, files | {'timeline': TIMELINE}
    )
    tracks = [
        NodeTrack(
            node.node,
            node.role,
            node.pid,
            [one for one in node.records if seen.within(one.done_ns or one.published_ns)],
        )
        for node in seen.nodes
    ]
    events = seen.trace.events if seen.trace is not None else ()
    timeline = build_timeline(tracks, [one for one in events if seen.within(one.time_ns)])
    try:
        with _writing():
            if text:
                write_whole(arguments.output / TRACE, text)
            write_whole(arguments.output / TIMELINE, json.dumps(timeline, allow_nan=False))
            write_result(result, arguments.output)
    except ConfigError:  # for example, the disk is full: at least print the result
        _tell(result, say)
        raise
    return result


def _cut_short(
    ending: Ending,
    seen: Observation,
    arguments: argparse.Namespace,
    stop: Interruption,
    command: Command | None,
) -> Iterator[str]:
    """Yield a sentence that says why the measurement was cut short, if it was."""
    after = f'after {(seen.end_ns - seen.start_ns) / 1e9:.1f} of {arguments.seconds:g} s'
    if ending is Ending.WANTED:
        yield (
            f'{signal.Signals(stop.came).name} ended the measurement {after}; the result covers '
            'only this shorter time'
        )
    elif ending is Ending.GONE and command is not None:
        status = f', with status {command.status}' if command.ended else ''
        yield (
            f'the command or its nodes ended {after}{status}; give a command that runs until '
            'zc_verify ends it'
        )
    elif ending is Ending.GONE:
        yield f'the measurement ended {after}: no node was left'


def _check(arguments: argparse.Namespace) -> None:
    if not 0.1 <= arguments.seconds <= 86400:
        raise ConfigError(
            f'--seconds is {arguments.seconds:g}, outside of 0.1..86400; 10 is a good start'
        )
    if arguments.frames < 0:
        raise ConfigError(f'--frames is {arguments.frames}; it must be 1 or more, or 0: no limit')
    if not 1 <= arguments.wait <= 86400:
        raise ConfigError(f'--wait is {arguments.wait:g}, outside of 1..86400; 60 is a good start')
    if arguments.command and arguments.pid:
        raise ConfigError(
            '--pid names running nodes and a command starts new ones; give either --pid or a '
            'command'
        )


def _failed(error: Exception, folder: Path, say: Say) -> int:
    """Print an unexpected error of ``zc_verify`` itself; return the exit status."""
    path = folder / ERROR
    told = f'zc_verify itself failed, so nothing is measured: {type(error).__name__}: {error}'
    text = ''.join(traceback.format_exception(error))
    try:
        path.write_text(text, encoding='utf-8', errors='backslashreplace')
    except OSError:
        say.error(f'{told}; please report this error, with this traceback: {text}')
    else:
        say.error(f'{told}; please report this error, with the file {path}')
    return EXIT_NOT_MEASURED


def _tell(result: Result, say: Say, where: str = '') -> None:
    """Print the checks' results and the verdict; *where* names the file that has them."""
    *lines, last = verdict(result)
    for line in lines:
        say(line)
    if result.exit_code == EXIT_NOT_MEASURED and os.geteuid() != 0:
        say(f'to measure as root: {_as_root()}')
    say.verdict(f'{last}{where}')


def run(arguments: argparse.Namespace) -> int:
    """Run the whole command with the parsed *arguments*; return its exit status."""
    say = Say(arguments.quiet)
    try:
        _check(arguments)
        with interruptions() as interruption:
            result = _measure(arguments, interruption, say)
    except Interrupted as came:
        say.error(f'interrupted by {came} before anything was measured')
        return came.exit_code
    except ZcError as error:
        say.error(str(error))
        if not isinstance(error, _NotMeasured):
            return EXIT_USAGE
        if os.geteuid() != 0:
            say.error(f'to measure as root: {_as_root()}')
        return EXIT_NOT_MEASURED
    except Exception as error:
        return _failed(error, arguments.output, say)
    _tell(result, say, f' ({arguments.output / RESULT})')
    return result.exit_code
