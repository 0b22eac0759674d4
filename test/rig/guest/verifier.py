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

"""``zc_verify`` as a process of its own, which checks others by the kernel and frame logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import functools
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from typing import Any

from long_form import LONG

COMMAND = (sys.executable, '-m', 'zc_perception.verify.zc_verify')
# zc_verify raises its niceness by 10, to keep out of the nodes' way. With a slow guest's only CPU
# it would then never run, so this cancels it. Not where it starts the nodes: while these import
# their modules, it would take half of that CPU to look for them.
_IN_TURN = ('nice', '-n', '-10')
#: Prefix of the line that reports the end of the measurement; the evaluation is slow here.
MEASURED = 'measured'
#: The number of frames ends the measurement; this limit is for a machine that is several times too
#: slow.
_MEASURE_S = 600.0
_PATIENCE_S = 720.0


# Runs ``zc_verify`` in a child for each input line of arguments. Its imports take the guest as
# long as a verdict, so they are done once.
_FORKER = """
import json, os, sys
from zc_perception.npu.kinds import traced
from zc_perception.verify import verification
from zc_perception.verify.zc_verify import main
traced()
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = main(json.loads(line))
        sys.stdout.flush()
        os._exit(code)
    print('exit', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def _started(words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, 'PYTHONUNBUFFERED': '1'},
        **options,
    )


@functools.cache
def forker() -> subprocess.Popen[str]:
    """Return the forking process, which the first call starts."""
    return _started([*_IN_TURN, sys.executable, '-c', _FORKER], stdin=subprocess.PIPE)


class Verifier:
    """
    One run of the command; a thread reads its output, so that it never blocks.

    :param out: its folder for result and timeline.
    :param options: further options, besides ``--output``.
    :param user: run it as this user instead of root.
    :param warm: fork it from a process that has imported everything.
    """

    def __init__(
        self, out: Path, options: Sequence[str], *, user: int | None = None, warm: bool = False
    ) -> None:
        if user is not None:
            # Other users may not even enter the folder of the artifacts.
            out = Path(tempfile.mkdtemp())
            os.chown(out, user, user)
            # Give them access to the programs; the guest's changes are thrown away.
            for path in (sys.executable, os.path.realpath(sys.executable), __file__):
                for folder in Path(path).parents:
                    folder.chmod(folder.stat().st_mode | 0o005)
        self.out = out
        out.mkdir(parents=True, exist_ok=True)
        self._lines: list[str] = []
        self.measured = threading.Event()
        self._warm = warm
        self._status: int | None = None
        words = ['--output', str(out), '--seconds', str(_MEASURE_S), *options]
        if warm:
            self._process = forker()
            assert self._process.stdin is not None
            print(json.dumps(words), file=self._process.stdin, flush=True)
        else:
            in_turn = _IN_TURN if user is None and '--' not in options else ()
            self._process = _started(
                [*in_turn, *COMMAND, *words],
                stdin=subprocess.DEVNULL,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        self._reader = threading.Thread(target=self._read, name='verifier output')
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if self._warm and line.startswith('exit '):
                self._status = int(line.split()[1])
                break
            self._lines.append(line.rstrip())
            if line.startswith(MEASURED):
                self.measured.set()
        self.measured.set()

    def result(self) -> dict[str, Any]:
        """Wait for the end; return result.json with ``exit`` and ``said``."""
        if not self._warm:
            try:
                self._status = self._process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                # It ends the processes that it has started.
                self._process.send_signal(signal.SIGINT)
                self._status = self._process.wait(_PATIENCE_S)
        self._reader.join(_PATIENCE_S)
        found: dict[str, Any] = {}
        if (self.out / 'result.json').exists():
            found = json.loads((self.out / 'result.json').read_text(encoding='utf-8'))
        return {**found, 'exit': self._status, 'said': self._lines}


#: Number of frames that decide a case.
FRAMES = 6
#: A user without access to other users' processes.
NOBODY = 65534
#: The honest graph is checked 20 times in all.
NOTHING_AGAIN = tuple(f'nothing_{number}' for number in range(2, 21))
Outcome = dict[str, Any]
#: The objects left when all cases have ended.
AFTERWARDS = 'afterwards'


def judged(out: Path, options: Sequence[str] | None = None, *, user: int | None = None) -> Outcome:
    """
    Return ``zc_verify``'s verdict on some frames of this process, or by other *options*.

    No check uses samples, which take as long as all the rest. The long form starts it as its users
    do.
    """
    watched = ['--pid', str(os.getpid())] if options is None else options
    words = ['--frames', str(FRAMES), '--no-sampling', *watched]
    warm = not LONG and user is None and '--' not in words
    return Verifier(out, words, user=user, warm=warm).result()


def guarded(case: Callable[[], Outcome]) -> Outcome:
    try:
        return case()
    except Exception:
        return {'error': traceback.format_exc()}


def record(cases: Iterator[tuple[str, Outcome]], results: Path) -> dict[str, Outcome]:
    """Run the cases one after the other; after each write all outcomes so far."""
    outcomes: dict[str, Outcome] = {}
    last = time.monotonic()
    for name, outcome in cases:
        outcome['case_s'] = round(time.monotonic() - last, 1)
        outcomes[name] = outcome
        told = f'exit {outcome.get("exit")} {outcome.get("error", "")}'
        print(f'{outcome["case_s"]:7.1f} s  {name}: {told}', flush=True)
        results.write_text(json.dumps(outcomes, indent=1))
        last = time.monotonic()
    return outcomes
