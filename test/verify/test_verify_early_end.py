"""A signal while ``zc_verify`` and ``zc_doctor`` still import: no traceback, and no exit status that reads like a verdict."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from verify.command_kit import ENDING

from zc_perception.verify.early_end import ending_quietly

_PROGRAM = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Interrupting())
from {command} import main
main([{argument!r}, '0'])
"""


@pytest.mark.parametrize(
    ('command', 'module'),
    [
        ('zc_perception.verify.zc_verify', 'zc_perception.verify.verification'),
        ('zc_perception.verify.zc_verify', 'zc_perception.verify.measurement'),
        ('zc_perception.verify.doctor.zc_doctor', 'zc_perception.verify.doctor.registry'),
    ],
)
@pytest.mark.parametrize('number', ENDING)
def test_a_signal_during_the_imports_is_one_line(command: str, module: str, number: signal.Signals) -> None:
    argument = '--time-limit' if 'doctor' in command else '--seconds'  # 0 is wrong, in case that the signal is too late
    program = _PROGRAM.format(command=command, module=module, number=int(number), argument=argument)
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    line = f'{command.rpartition(".")[2]}: ended by {number.name}\n'
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, '', line)


def test_afterwards_a_signal_is_what_it_was() -> None:
    numbers = ENDING
    before = [signal.getsignal(number) for number in numbers]
    with ending_quietly('zc_verify'):
        assert [signal.getsignal(number) for number in numbers] != before
    assert [signal.getsignal(number) for number in numbers] == before


def test_who_ignores_a_signal_goes_on_to_do_so() -> None:
    program = (
        'import os, signal\n'
        'from zc_perception.verify.early_end import ending_quietly\n'
        'for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):\n'
        '    signal.signal(number, signal.SIG_IGN)\n'
        'with ending_quietly("zc_verify"):\n'
        '    os.kill(os.getpid(), signal.SIGINT)\n'
        '    os.kill(os.getpid(), signal.SIGTERM)\n'
        '    os.kill(os.getpid(), signal.SIGHUP)\n'
        'print("there")\n'
    )
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.stdout == 'there\n'
