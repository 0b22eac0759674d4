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

"""A process of the benchmark: what it says, how it fails, and that it goes away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
import os
from pathlib import Path
import signal

from bench.worker import BenchError, Worker
import pytest
from waiting import until

MakeWorker = Callable[..., Worker]


@pytest.fixture
def make_worker(tmp_path: Path) -> Iterator[MakeWorker]:
    """Make workers of a program text."""
    workers: list[Worker] = []

    def make(text: str, *, orderly: bool = True) -> Worker:
        name = f'fake_worker_{len(workers)}'
        (tmp_path / f'{name}.py').write_text(text, encoding='utf-8')
        workers.append(
            Worker(
                name,
                ['role', 'topic'],
                {**os.environ, 'PYTHONPATH': str(tmp_path)},
                orderly=orderly,
            )
        )
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


ECHO = """
import json, sys
for line in sys.stdin:
    print('[INFO] a library talks')
    print('17')
    print(json.dumps({'echo': json.loads(line), 'arguments': sys.argv[1:]}), flush=True)
"""


def test_it_is_asked_and_answers_whatever_its_libraries_print(make_worker: MakeWorker) -> None:
    worker = make_worker(ECHO)
    assert worker.ask(op='x', n=1) == {'echo': {'op': 'x', 'n': 1}, 'arguments': ['role', 'topic']}
    assert worker.ask(op='y')['echo'] == {'op': 'y'}


def test_an_answer_larger_than_a_pipe_arrives_whole(make_worker: MakeWorker) -> None:
    worker = make_worker(
        "import json; print(json.dumps({'many': list(range(100000))}), flush=True); input()"
    )
    assert worker.receive()['many'] == list(range(100000))


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('raise SystemExit(3)', "'role' has ended with exit code 3"),
        (
            'import os, signal; os.kill(os.getpid(), signal.SIGKILL)',
            "'role' was killed by SIGKILL",
        ),
        (
            'print(\'{"failure": "no socket can be made"}\', flush=True); input()',
            "'role': no socket can be made",
        ),
    ],
)
def test_its_failure_is_said(make_worker: MakeWorker, text: str, message: str) -> None:
    worker = make_worker(text)
    with pytest.raises(BenchError, match=message):
        worker.receive()


def test_one_that_has_ended_says_so_to_a_command_too_and_its_traceback_can_be_read(
    make_worker: MakeWorker, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = make_worker("raise RuntimeError('what went wrong')")
    with pytest.raises(BenchError, match='exit code 1'):
        worker.receive()
    with pytest.raises(BenchError, match='exit code 1'):
        worker.send(op='x')
    assert 'RuntimeError: what went wrong' in capfd.readouterr().err


def test_a_silent_one_is_not_waited_for_for_ever(make_worker: MakeWorker) -> None:
    with pytest.raises(BenchError, match=r'does.*answer within 0 s'):
        make_worker('input()').receive(timeout_s=0.05)


@pytest.mark.parametrize('orderly', [True, False])
def test_closing_ends_it(make_worker: MakeWorker, orderly: bool, no_fd_leak: None) -> None:
    worker = make_worker(ECHO, orderly=orderly)
    worker.ask(op='x')
    worker.close()
    worker.close()
    # The end of its input and the signal come together: either may be first.
    assert worker._process.returncode in ((0, -signal.SIGTERM) if orderly else (0,))


def test_it_is_told_to_end_once(make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A second SIGTERM may come when the interpreter has taken its handlers down.

    That kills the worker, whatever it still has.
    """
    worker = make_worker(
        "import signal; signal.signal(signal.SIGTERM, lambda *_: None); print('{}', "
        'flush=True); input()'
    )
    worker.receive()
    told: list[None] = []
    monkeypatch.setattr(worker._process, 'terminate', lambda: told.append(None))
    worker.end()
    worker.end()
    worker.close()
    worker.close()
    assert len(told) == 1


def living(group: int) -> list[str]:
    """Return the states of those processes of the group that are not dead."""
    states = []
    for stat in Path('/proc').glob('[0-9]*/stat'):
        with suppress(OSError):
            states.append(stat.read_text(encoding='utf-8').rpartition(')')[2].split())
    return [state[0] for state in states if int(state[2]) == group and state[0] not in 'ZX']


def test_one_that_does_not_end_is_killed_with_its_children(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('bench.worker._ORDERLY_END_S', 0.1)
    stubborn = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
read, write = os.pipe()
if os.fork() == 0:
    signal.pause()
print('{"write": %d}' % write, flush=True)
signal.pause()
"""
    worker = make_worker(stubborn)
    worker.receive()
    group = worker._process.pid
    assert os.getpgid(group) == group != os.getpgrp(), 'a Ctrl-C at the terminal does not reach it'
    worker.close()
    assert worker._process.returncode == -signal.SIGKILL
    # Whoever is left of the group has been killed too: it is about to die, or waits for init to
    # notice.
    until(lambda: not living(group), lambda: living(group))
