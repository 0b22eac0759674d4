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

"""Signals that end a command."""

from __future__ import annotations

import os
from pathlib import Path
import signal
import sys
import time
from unittest.mock import Mock

from processes import ran
import pytest

from zc_perception.terminal import ending_quietly, Interrupted, Interruption, interruptions

SIGINT, SIGTERM = signal.SIGINT, signal.SIGTERM
# Signals that end a command; not SIGHUP, which nohup makes the tests' processes ignore.
IGNORED = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
ENDING = (SIGINT, SIGTERM) if IGNORED else (SIGINT, SIGTERM, signal.SIGHUP)
SECONDS, LIMIT = ['--seconds', '0'], ['--time-limit', '0']
REPOSITORY = Path(__file__).resolve().parents[1]
_PROGRAM = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Interrupting())
from {command} import main
main({arguments!r})
"""


@pytest.mark.parametrize(
    ('command', 'module', 'number', 'arguments'),
    # If the signal comes too late, the exit code is 0, which fails the test.
    [
        ('zc_perception.verify.zc_verify', 'zc_perception.verify.measurement', SIGTERM, SECONDS),
        ('zc_perception.doctor.zc_doctor', 'zc_perception.doctor.command', SIGINT, LIMIT),
        ('bench.__main__', 'bench.program', SIGTERM, ['decode', '--frames', '1']),
    ],
)
def test_a_signal_during_the_imports_is_one_line(
    command: str, module: str, number: signal.Signals, arguments: list[str]
) -> None:
    program = _PROGRAM.format(
        command=command, module=module, number=int(number), arguments=arguments
    )
    done = ran(sys.executable, '-c', program, cwd=REPOSITORY)
    name = 'zc_bench' if 'bench' in command else command.rpartition('.')[2]
    line = f'{name}: ended by {number.name}\n'
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, '', line)


def test_afterwards_a_signal_is_what_it_was() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    with ending_quietly('zc_verify'):
        assert [signal.getsignal(number) for number in ENDING] != before
    assert [signal.getsignal(number) for number in ENDING] == before


def test_who_ignores_a_signal_goes_on_to_do_so() -> None:
    program = """
import os, signal
from zc_perception.terminal import ending_quietly
numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
for number in numbers:
    signal.signal(number, signal.SIG_IGN)
with ending_quietly('zc_verify'):
    for number in numbers:
        os.kill(os.getpid(), number)
print('there')
"""
    done = ran(sys.executable, '-c', program, cwd=REPOSITORY)
    assert done.stdout == 'there\n'


class Told(BaseException):
    pass


@pytest.fixture
def interruption() -> Interruption:
    made = Interruption()
    made.begin(Told)
    return made


def test_a_signal_is_an_exception_where_that_is_allowed_and_once(
    interruption: Interruption,
) -> None:
    with pytest.raises(Told) as caught, interruption.allowed():
        try:
            interruption.handle(15, None)
        finally:
            interruption.handle(2, None)
    assert caught.value.args == (15,)
    interruption.handle(2, None)


def test_one_that_has_come_before_is_not_forgotten(interruption: Interruption) -> None:
    interruption.handle(15, None)
    with pytest.raises(Told), interruption.allowed():
        raise AssertionError('it was told before')


def test_what_is_built_up_is_whole_before_it_comes(interruption: Interruption) -> None:
    built = []
    with pytest.raises(Told), interruption.allowed():
        with interruption.put_off():
            interruption.handle(15, None)
            built.append(1)
        built.append(2)
    assert built == [1]
    with interruption.put_off():
        interruption.handle(15, None)


@pytest.mark.parametrize('number', ENDING)
def test_each_signal_is_an_exception_of_the_work(number: signal.Signals) -> None:
    own = Mock()
    signal.signal(number, own)
    with pytest.raises(Interrupted) as caught, interruptions() as told, told.allowed():
        os.kill(os.getpid(), number)
        time.sleep(0.1)
    assert signal.getsignal(number) is own, "afterwards the signal is the caller's again"
    assert caught.value.exit_code == 128 + number


def test_a_hangup_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptions() as told, told.allowed():
        os.kill(os.getpid(), signal.SIGHUP)
