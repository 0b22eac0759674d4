"""The clock's state is what a C program is told, of a struct that is the C compiler's."""

from __future__ import annotations

import ctypes
from pathlib import Path
import subprocess

import pytest

from zc_perception.machine import system

PROGRAM = """
#include <stddef.h>
#include <stdio.h>
#include <sys/timex.h>
int main(void) {
    struct timex now = {0};
    int state = adjtimex(&now);
    printf("%zu %zu %d %d %d %d\\n", sizeof now, offsetof(struct timex, status), STA_UNSYNC, TIME_ERROR, state, now.status);
}
"""


def test_it_is_what_a_c_program_is_told(tmp_path: Path) -> None:
    (tmp_path / 'timex.c').write_text(PROGRAM)
    subprocess.run(['gcc', '-o', tmp_path / 'timex', tmp_path / 'timex.c'], check=True)
    said = subprocess.run([tmp_path / 'timex'], capture_output=True, text=True, check=True).stdout
    size, offset, unsynchronised, error, state, status = map(int, said.split())
    assert (size, offset) == (system._SIZE, system._STATUS_OFFSET)
    assert (unsynchronised, error) == (system._STA_UNSYNC, system._TIME_ERROR)
    assert system.clock_is_synchronised() is (state != error and not status & unsynchronised)


@pytest.mark.parametrize(
    ('state', 'status', 'expected'),
    [
        (-1, 0, None),
        (0, 0, True),
        (0, 0x2001, True),
        (5, 0, False),
        (0, 0x40, False),
        (5, 0x40, False),
    ],
)
def test_each_answer_of_the_kernel_is_understood(
    state: int, status: int, expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        @staticmethod
        def adjtimex(argument: ctypes.Array[ctypes.c_char]) -> int:
            assert bytes(argument) == bytes(208), 'asked without changing anything'
            ctypes.c_int.from_buffer(argument, 40).value = status
            return state

    monkeypatch.setattr(system.ctypes, 'CDLL', lambda name: Library)
    assert system.clock_is_synchronised() is expected
