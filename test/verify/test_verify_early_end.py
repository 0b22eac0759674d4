"""An interrupt while ``zc_verify`` and ``zc_doctor`` still import: no traceback, and no exit status that reads like a verdict."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from zc_perception.verify.early_end import ending_quietly

_PROGRAM = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from {command} import main
main(['--help'])
"""


@pytest.mark.parametrize(
    ('command', 'module'),
    [
        ('zc_perception.verify.zc_verify', 'zc_perception.verify.verification'),
        ('zc_perception.verify.zc_verify', 'zc_perception.verify.measurement'),
        ('zc_perception.verify.doctor.zc_doctor', 'zc_perception.verify.doctor.registry'),
    ],
)
def test_an_interrupt_during_the_imports_is_quiet(command: str, module: str) -> None:
    program = _PROGRAM.format(command=command, module=module)
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, '', '')


def test_afterwards_an_interrupt_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with ending_quietly():
        pass
    assert signal.getsignal(signal.SIGINT) == before


def test_who_ignores_interrupts_goes_on_to_do_so() -> None:
    program = (
        'import os, signal\n'
        'from zc_perception.verify.early_end import ending_quietly\n'
        'signal.signal(signal.SIGINT, signal.SIG_IGN)\n'
        'with ending_quietly():\n'
        '    os.kill(os.getpid(), signal.SIGINT)\n'
        'print("there")\n'
    )
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.stdout == 'there\n'
