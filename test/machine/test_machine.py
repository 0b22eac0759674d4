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

"""A question whose process hangs, crashes or prints garbage ends; what the system says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
import ctypes
import errno
import os
from pathlib import Path
import shlex
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from processes import is_alive
import pytest
from waiting import until

from zc_perception.errors import AllocationError
from zc_perception.machine import asking
from zc_perception.machine.asking import ask, end_all, NoAnswerError
from zc_perception.machine.system import file_of, first_dmabuf, programs_using, System
from zc_perception.memory.dmabuf import BufferKind


def describe_anything() -> dict[str, object]:
    raise AssertionError('a question is answered in a process of its own')


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_fd_leak: None):
    """Put a program in the place of the interpreter: its argument 3 is the descriptor."""

    def install(body: str) -> None:
        script, program = tmp_path / 'script.py', tmp_path / 'python'
        script.write_text(
            f'import os, signal, sys, time\nanswer = int(sys.argv[3])\n{body}\n', encoding='utf-8'
        )
        # The kernel takes no interpreter whose path has a space, so a shell starts it.
        program.write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(script))} "$@"\n',
            encoding='utf-8',
        )
        program.chmod(0o755)
        monkeypatch.setattr(asking.sys, 'executable', str(program))

    return install


def test_the_answer_comes_back_whatever_is_written_to_stdout(child) -> None:
    child('print("vendor banner"); sys.stdout.flush(); os.write(answer, b\'{"a": [1, "b"]}\')')
    assert ask(describe_anything) == {'a': [1, 'b']}


def test_a_library_that_never_stops_talking_holds_nothing_up(child) -> None:
    child('os.write(2, b"x" * 1000000)\nos.write(answer, b\'{"done": true}\')')
    assert ask(describe_anything, time_limit_s=300.0) == {'done': True}


def test_what_the_process_has_started_does_not_keep_the_answer_back(child) -> None:
    child("if os.fork():\n    os.write(answer, b'{}\\n')\nelse:\n    time.sleep(600)")
    assert ask(describe_anything, time_limit_s=300.0) == {}


@pytest.mark.parametrize(
    ('body', 'words'),
    [
        ('os.kill(os.getpid(), signal.SIGSEGV)', ['anything', 'SIGSEGV']),
        (
            'sys.stderr.write("no such library\\n"); sys.stderr.flush(); sys.exit(3)',
            ['status 3', 'no such library'],
        ),
        ('os.write(answer, b"[1]")', ['status 0']),
        ('os.write(answer, b\'{"a": \'); os._exit(1)', ['status 1']),
    ],
)
def test_a_process_that_fails_is_explained(body: str, words: list[str], child) -> None:
    child(body)
    with pytest.raises(NoAnswerError) as error:
        ask(describe_anything, time_limit_s=60.0)
    assert all(word in str(error.value) for word in words), error.value
    assert not asking._running


def test_a_process_that_hangs_is_killed_with_all_its_children(
    tmp_path: Path, child
) -> None:
    note = tmp_path / 'pids'
    stubborn = 'signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork()'
    child(f'{stubborn}\nopen({str(note)!r}, "a").write(f"{{os.getpid()}}\\n")\ntime.sleep(600)')
    with pytest.raises(NoAnswerError, match='no answer about anything'):
        ask(describe_anything, time_limit_s=1.5)
    # On a busy machine the process may not have got that far.
    pids = note.read_text().split() if note.exists() else []
    until(lambda: not any(is_alive(int(pid)) for pid in pids), 'something lives on')
    assert not asking._running


def test_the_end_of_the_doctor_is_the_end_of_its_processes(tmp_path: Path, child) -> None:
    started = tmp_path / 'started'
    child(f'open({str(started)!r}, "w").close(); time.sleep(600)')
    with ThreadPoolExecutor() as other:
        asked = other.submit(ask, describe_anything, time_limit_s=300.0)
        until(started.exists, asked)
        end_all()
        assert 'SIGKILL' in str(asked.exception(60.0))


def test_a_machine_that_starts_no_process_is_explained(
    monkeypatch: pytest.MonkeyPatch, no_fd_leak: None
) -> None:
    monkeypatch.setattr(asking.sys, 'executable', '/nowhere/python')
    with pytest.raises(NoAnswerError, match='no process can be started'):
        ask(describe_anything)


def test_the_process_dies_with_a_doctor_that_is_killed(tmp_path: Path) -> None:
    """The process reads a pipe that never ends."""
    pipe = tmp_path / 'endless.py'
    os.mkfifo(pipe)
    program = (
        'from runpy import run_path; from zc_perception.machine.asking import ask; '
        f'ask(run_path, {str(pipe)!r}, time_limit_s=300.0)'
    )
    doctor = subprocess.Popen([sys.executable, '-c', program])

    def writing_end() -> int:
        """Return the writing end, or 0 while no process has the pipe open for reading."""
        with suppress(OSError):
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        return 0

    try:
        # Once a process reads, the question is being answered.
        with os.fdopen(until(writing_end), 'w'):
            children = Path(f'/proc/{doctor.pid}/task/{doctor.pid}/children')
            (answering,) = map(int, children.read_text(encoding='ascii').split())
            assert is_alive(answering)
            doctor.kill()
            doctor.wait()
            until(lambda: not is_alive(answering), 'it outlived the doctor')
    finally:
        doctor.kill()
        doctor.wait()


def test_who_has_a_node_open_is_named() -> None:
    with open('/dev/full', 'rb'):
        assert 'this process' in programs_using('/dev/full')
    assert programs_using('/dev/no_such_node') == []


# What the machine says of its devices and libraries.
def test_a_device_node_is_opened_for_reading_and_writing(tmp_path: Path) -> None:
    open_node = System().open_node
    assert open_node('/dev/null') == 0
    assert open_node(str(tmp_path)) == errno.EISDIR
    assert open_node(str(tmp_path / 'video9')) == errno.ENOENT


def test_only_a_loaded_library_has_a_file() -> None:
    libc = file_of(ctypes.CDLL('libc.so.6'))
    assert Path(libc).name.startswith('libc') and libc == file_of('libc.so.6')
    assert file_of(ctypes.CDLL(None)) == file_of('libnobody.so.1') == ''


@pytest.mark.parametrize(
    ('heaps', 'tried'),
    [
        (['linux,cma', 'system', 'vendor'], ['system']),
        (['linux,cma', 'vendor', 'wide'], ['vendor']),
        (['empty', 'linux,cma'], ['empty', 'linux,cma']),
    ],
)
def test_the_trial_buffer_spares_contiguous_memory(
    heaps: list[str], tried: list[str], tmp_path: Path
) -> None:
    (tmp_path / 'dev/dma_heap').mkdir(parents=True)
    for name in heaps:
        (tmp_path / 'dev/dma_heap' / name).touch()
    seen = []

    def allocate(size: int) -> Any:
        if seen[-1].endswith('empty'):
            raise AllocationError('no memory')
        return SimpleNamespace(kind=BufferKind.DMABUF, heap=seen[-1], close=lambda: None)

    def open_heap(name: str) -> Any:
        seen.append(name)
        return SimpleNamespace(allocate=allocate, close=lambda: None)

    with first_dmabuf(System(root=tmp_path, open_heap=open_heap)) as buffer:
        assert buffer is not None and buffer.heap == seen[-1]
    assert seen == [f'dma_heap/{name}' for name in tried]
