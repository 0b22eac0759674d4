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
The programs to which staged faults happen, and the accounts of their frames.

They are ``capture_node`` and ``inference_node`` as separate programs that share frames by the
shared-memory link, and the witness. The camera's frame log, which outlives the process, lists all
published frames. Received frames and the link's reported drops must add up to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
import contextlib
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from functools import partial
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import time
from typing import Any
from unittest import mock

from faults import harness
from faults.harness import tally, Trial
from faults.holdings import frame_buffers, holding, settled_excess, with_slots
from faults.witness import DEPTH, NAME, Witness
from nodes.programs import parameters, Program
from ros_domains import discovery_range
from waiting import until

from zc_perception.link.shared_memory.unix_socket import is_dead
from zc_perception.observe.frame_log import find_frame_logs, FrameLogReader, RecordKind

SLOTS = 64
FRAMERATE = 30.0
CAMERA = {
    'camera': 'synthetic', 'pattern': 'counter', 'width': 128, 'height': 128,
    'framerate': FRAMERATE, 'slots': SLOTS, 'quarantine': 0.2, 'heap': 'memfd',
}  # fmt: skip
MODEL = {'model': 'hog', 'timeout': 20.0, 'copy_free': 'required'}
_HOLDER = re.compile(r'([^,]+?) holds (\d+) slot')
_CAMERA = 'capture: camera'
_KNOWN = {'capture', 'inference', 'overlay', NAME}


@dataclass(frozen=True)
class Account:
    """
    The state before a fault.

    :ivar held: by role, resources that its process holds.
    :ivar lines: by role, number of its output lines.
    :ivar no_slot: the camera's process, and how many frames it had dropped for lack of a slot.
    """

    held: dict[str, Counter[str]]
    lines: dict[str, int]
    no_slot: tuple[int, int] = (0, 0)


class Running(Program):
    """A running program, whose output is collected; SIGKILL ends it at the latest."""

    def __init__(self, name: str | Sequence[str], *args: str, domain: int) -> None:
        super().__init__(name, *args, domain=domain, cold=True)
        # The wrapper's if that doesn't exec the program.
        self.pid = self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> int:
        self.process.kill()
        return self.ended()

    def end(self) -> int:
        """Send SIGINT; return the exit code, or SIGKILL's if it doesn't end in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.interrupt()
        return self.kill()

    def __exit__(self, *exception: object) -> None:
        if any(exception):
            alive = 'alive' if self.alive else f'ended with {self.process.returncode}'
            print(f'{self.process.args}: {alive}; the end of its output:')
            print(self.output[-4000:])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # ends a wrapper's child, too
        super().__exit__(*exception)


@contextlib.contextmanager
def own_sockets(folder: Path) -> Iterator[Path]:
    """Give this process a folder for sockets and logs below *folder*; ROS stays on this host."""
    sockets = folder / 's'
    sockets.mkdir(mode=0o700, exist_ok=True)
    names = {
        'ZC_RUNTIME_DIR': str(sockets),
        'ROS_HOME': str(folder),
        'ROS_AUTOMATIC_DISCOVERY_RANGE': discovery_range(),
    }
    with mock.patch.dict(os.environ, names):
        yield sockets


class Stage:
    """
    The shared programs; see the module.

    :param folder: folder for sockets, logs and ROS_HOME; its name must be short.
    """

    def __init__(self, folder: Path, domain: int) -> None:
        self.domain = domain
        self._logs: dict[int, FrameLogReader] = {}
        self._published: list[int] = []
        self.programs: dict[str, Running] = {}
        self.capture: Running
        self.inference: Running
        with ExitStack() as ending:
            # The witness shares its process with the fault's code, and must not wait long for it.
            ending.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(0.0005)
            self.sockets = ending.enter_context(own_sockets(folder))
            ending.callback(self._end)
            self.start('capture')
            self.start('inference')
            self.witness = ending.enter_context(contextlib.closing(Witness(domain)))
            self.whole()
            self.first = self.account()
            self.close = ending.pop_all().close

    def start(self, role: str) -> None:
        """Start ``capture`` or ``inference``, in place of the one that has ended."""
        values: dict[str, Any] = CAMERA if role == 'capture' else MODEL
        program = Running(f'{role}_node', *parameters(**values), domain=self.domain)
        self.programs[role] = program
        setattr(self, role, program)
        if role == 'capture' and hasattr(self, 'witness'):
            self.witness.new_life()
        program.start(f'[{role}]: ready')

    def socket(self) -> Path:
        """Return the socket on which the camera's process listens now."""
        return until(
            lambda: next((p for p in self.sockets.glob('*.sock') if is_dead(p) is False), None),
            'a socket',
        )  # type: ignore[no-any-return]

    def pids(self) -> dict[str, int]:
        return {'witness': os.getpid()} | {
            role: program.pid for role, program in self.programs.items() if program.alive
        }

    def read_logs(self) -> None:
        """Read the published frames from the camera's frame log, before it wraps around."""
        pid = self.capture.pid
        if pid not in self._logs and self.capture.alive:
            for log in find_frame_logs(pids=[pid]):
                if log.role == 'capture':
                    self._logs[pid] = log
                else:
                    log.close()
        for log_pid, log in list(self._logs.items()):
            self._published += [
                record.captured_ns for record in log.read() if record.kind is RecordKind.PUBLISHED
            ]
            if not log.alive:
                log.close()
                del self._logs[log_pid]

    def holders(self) -> dict[str, int]:
        """Return holders of the camera's slots that must not hold any, by fresh diagnostics."""
        return {
            name: count
            for name, count in self.held().items()
            if re.split('[#@:]', name)[0].strip('/') not in _KNOWN
        }

    def held(self) -> dict[str, int]:
        """Return the slots that each holder has, by fresh diagnostics of the camera."""
        self.witness.last = {}
        values = until(lambda: self.witness.values('capture: pool'), 'diagnostics of the pool')
        return {name.strip(): int(count) for name, count in _HOLDER.findall(values['holders'])}

    def whole(self) -> None:
        """Wait until frames and detections flow, else raise AssertionError."""
        for role, program in self.programs.items():
            assert program.alive, (
                f'{role} has ended with {program.process.returncode}:\n{program.output[-2000:]}'
            )
        self.witness.expect(5, 3)

    def _no_slot(self) -> tuple[int, int]:
        before = self.witness.last.get(_CAMERA)
        until(lambda: self.witness.last.get(_CAMERA) is not before, f'news of {_CAMERA}')
        return self.capture.pid, int(self.witness.values(_CAMERA)['dropped_no_free_slot'])

    def account(self) -> Account:
        no_slot = self._no_slot()
        self.up_to_date()
        self.witness.begin()
        self._published = self._published[-1000:]
        self.read_logs()
        return Account(
            {role: with_slots(holding(pid), SLOTS) for role, pid in self.pids().items()},
            {role: len(program.lines) for role, program in self.programs.items()},
            no_slot,
        )

    def settle(
        self,
        trial: Trial,
        before: Account,
        *,
        final: bool = False,
        bystanders: Collection[str] = (),
    ) -> None:
        """
        Check after a fault: everything flows, nothing leaks, every frame is accounted for.

        :param bystanders: nodes that the fault must not affect.
        """
        thorough, leaks = final or not trial.short, trial.outcome.leaks
        self.whole()
        self.balance(trial, before, bystanders)
        for role, pid in self.pids().items():
            # A killed publisher's connection is kept until the graph forgets it, after 20 s. The
            # last fault checks that once for all.
            found = settled_excess(
                before.held[role], partial(holding, pid), 30.0 if thorough else 1.0
            )
            if thorough:
                leaks.update({f'{role}: {kind}': count for kind, count in found.items()})
            elif found:
                kinds = ', '.join(f'{count} {kind}' for kind, count in found.items())
                trial.note(f'{role} holds for a while', kinds)
        pids = self.pids().values()
        look = lambda: {'frame buffers': len(frame_buffers(pids))}  # noqa: E731
        leaks.update(settled_excess({'frame buffers': SLOTS}, look))
        if thorough:
            leases = settled_excess({}, self.holders, 5.0)
            leaks.update({f'leases of {name}': count for name, count in leases.items()})
        for role, program in self.programs.items():
            # A program that was replaced has fewer lines than its predecessor had.
            begin = before.lines[role] if len(program.lines) >= before.lines[role] else 0
            said = ''.join(program.lines[slice(begin, None)])
            trial.must_be_zero('tracebacks', said.count('Traceback'))
        dead = sum(is_dead(path) is True for path in self.sockets.glob('*.sock'))
        trial.must_be_zero('sockets that nobody listens at', dead)

    def up_to_date(self) -> None:
        """
        Wait until the witness has a frame that is captured from now on.

        By then it has all earlier frames that will ever arrive.
        """
        now_ns = time.monotonic_ns()
        of = self.witness
        newer = lambda: any(stretch.last_ns > now_ns for stretch in of.stretches)  # noqa: E731
        self.meanwhile(newer, 'a frame of now')

    def balance(self, trial: Trial, before: Account, bystanders: Collection[str] = ()) -> None:
        """
        Report frames in, frames out, and drops by reason, since :meth:`account`.

        They count from the last frame before it to one that is captured now.
        """
        witness = self.witness
        self.up_to_date()
        stretches = witness.finish()
        # What comes from now on is not the fault's.
        pauses, detection_pauses = copy(witness.frame_pauses), copy(witness.detection_pauses)
        stalled_s = witness.stalled_s() - witness.stalled_before_s
        oldest_s = witness.oldest_s
        self.read_logs()
        self.meanwhile(
            lambda: self._published and self._published[-1] >= stretches[-1].last_ns,
            "the last frame's record",
        )
        frames = tally(stretches, self._published)
        lost = {'newest_wins': frames.newest_wins, 'not_connected': frames.not_connected}
        trial.frames(frames.came, frames.received, **lost)
        pid, no_slot = self._no_slot()
        no_slot -= before.no_slot[1] if pid == before.no_slot[0] else 0
        most_s, least = harness.MOST_PAUSE_S, harness.LEAST_RATE
        if harness.WITNESS in bystanders:
            # On a busy machine the witness itself may fall behind by a whole queue and lose
            # frames; that is not the fault's effect.
            if oldest_s < 0.9 * DEPTH / FRAMERATE:
                trial.must_be_zero('frames that the witness was too slow for', frames.newest_wins)
            trial.must_be_zero('frames while the witness was not connected', frames.not_connected)
            trial.must_be_zero('frames without a free slot', no_slot)
            trial.must(pauses.longest_own_s <= most_s, f'pauses of frames over {most_s:g} s')
            # Nobody publishes while no process runs.
            enough = frames.came >= least * FRAMERATE * (frames.span_s - stalled_s)
            trial.must(enough, f'cameras that published less than {least:.0%}')
        if harness.INFERENCE in bystanders:
            pause_s = detection_pauses.longest_own_s
            trial.must(pause_s <= most_s, f'pauses of detections over {most_s:g} s')
        trial.must_be_zero('frames with wrong pixels', witness.wrong_pixels)
        trial.must_be_zero('frames out of order', witness.disorder)
        trial.must_be_zero('detections out of order', witness.detection_disorder)
        trial.must_be_zero('conversions', witness.frames.statistics().conversions)
        trial.worst('longest pause of frames, s', pauses.longest_s)
        trial.worst('oldest frame of the witness, s', oldest_s)
        trial.worst('longest pause of detections, s', detection_pauses.longest_s)

    def meanwhile(self, condition: Callable[[], Any], what: str, patience_s: float = 60.0) -> Any:
        """Wait like :func:`until`, and keep reading the logs."""

        def look() -> Any:
            self.read_logs()
            return condition()

        def describe() -> str:
            last = {role: program.output[-600:] for role, program in self.programs.items()}
            return f'{what} ({self.witness.describe()}; said at last: {last})'

        return until(look, describe, patience_s)

    def _end(self) -> None:
        for program in self.programs.values():
            if program.alive:
                program.end()
            program.__exit__()
        for log in self._logs.values():
            log.close()
