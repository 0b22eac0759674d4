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

"""``zc_bench`` as a program: arguments, a real run, and no process or file left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import tempfile

from bench import __main__ as program
from bench import link as link_command
from bench.link import FLOORS, LINKS, PLAIN
from bench.program import COMMANDS
from bench.rows import Condition, make_rows, Series
from bench.subcommand import Measured, Verdict
from bench.worker import Worker
from bench_kit import instead_of_measuring, written
from processes import is_alive, ran
import pytest
from waiting import until

FOREVER = 'link --sizes vga --rates 0 --repetitions 1000 --frames 50'


Start = Callable[..., 'subprocess.Popen[str]']


def processes(runtime: Path, word: str = '') -> list[int]:
    """Return the pids of living processes with sockets in *runtime*, and *word* as an argument."""
    found = []
    for folder in Path('/proc').glob('[0-9]*'):
        with suppress(OSError):
            variables = (folder / 'environ').read_bytes().decode(errors='replace').split('\0')
            arguments = (folder / 'cmdline').read_bytes().decode().split('\0')
            if f'ZC_RUNTIME_DIR={runtime}' in variables and word in (*arguments, ''):
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder for sockets: its short name fits their paths, and marks a run's processes."""
    with tempfile.TemporaryDirectory(prefix='zcb') as folder:
        monkeypatch.setenv('ZC_RUNTIME_DIR', folder)
        yield Path(folder)


@pytest.fixture
def start(free_domain: int, runtime: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [sys.executable, '-m', 'bench', *arguments]
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()
    for pid in processes(runtime):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def measuring(start: Start, runtime: Path) -> Callable[..., subprocess.Popen[str]]:
    def begin(*variants: str) -> subprocess.Popen[str]:
        process = start(*FOREVER.split(), '--variants', *variants)
        assert any(line.startswith('measuring') for line in process.stderr), 'it has ended'
        return process

    return begin


def wait_until_gone(runtime: Path) -> None:
    """Wait until processes whose parent was killed have ended."""
    until(lambda: not processes(runtime), lambda: f'still there: {processes(runtime)}', 120.0)


def test_a_short_run_of_everything(start: Start, runtime: Path, tmp_path: Path) -> None:
    path = tmp_path / 'new folder' / 'bench.json'
    words = '--sizes vga --rates 0 50 --repetitions 1 --frames 25 --seconds 0.2'
    process = start('link', '--variants', *LINKS, *PLAIN, *words.split(), '--json', str(path))
    said, complained = process.communicate(timeout=300)
    assert process.returncode == 0, complained
    assert processes(runtime) == [] and list(runtime.iterdir()) == []
    assert 'Traceback' not in complained and 'repetition 1 of 1' in complained
    document = written(path)
    assert list(path.parent.iterdir()) == [path]
    assert document['environment']['rmw'] and document['environment']['buffers'] == 'sealed memfd'
    rows = {(row['case'], row['variant'], row['rate_hz']): row for row in document['rows']}
    assert 'absent' not in document['environment']
    names = [('floor', name) for name in FLOORS] + [('link', name) for name in (*LINKS, *PLAIN)]
    assert set(rows) == {(*name, rate) for name in names for rate in (0.0, 50.0)}
    assert len(document['rows']) == len(rows)
    for (case, variant, rate), row in rows.items():
        assert (row['width'], row['height'], row['repetitions']) == (640, 480, 1)
        assert 0 < row['median_us'] <= row['p99_us'] and row['cpu_us_per_frame'] > 0, row
        references = [(c, v) for c, v in names if c == 'floor' or v in (*PLAIN, 'shared_memory')]
        others = {f'{c}/{v}' for c, v in references if (c, v) != (case, variant)}
        assert set(row['ratio_to']) == set(row['added_us']) == set(row['cpu_ratio_to']) == others
        assert f'{case}/{variant}' in said
        if rate == 0.0 and variant in (*FLOORS, *LINKS):
            assert row['lost_per_cent'] == 0.0, 'with one frame in flight none is lost'
        assert row['lost_per_cent'] < 100.0


def test_a_signal_ends_all_of_it_in_order(measuring: Start, runtime: Path) -> None:
    process = measuring('shared_memory', PLAIN[0])
    assert len(processes(runtime)) >= 4 and list(runtime.glob('*.sock'))
    process.send_signal(signal.SIGINT)
    _, complained = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT
    assert processes(runtime) == [] and list(runtime.iterdir()) == []
    assert 'zc_bench: ended by SIGINT' in complained and 'Traceback' not in complained


def test_what_it_started_ends_when_it_is_killed(measuring: Start, runtime: Path) -> None:
    process = measuring('shared_memory', 'in_process_executor')
    process.kill()
    wait_until_gone(runtime)
    assert list(runtime.iterdir()) == []
    assert 'Error' not in process.communicate()[1], 'nor do they complain that nobody listens'


def test_a_killed_process_is_named_and_the_others_end(measuring: Start, runtime: Path) -> None:
    process = measuring('shared_memory')
    os.kill(min(processes(runtime, 'frames_in')), signal.SIGKILL)
    _, complained = process.communicate(timeout=120)
    assert process.returncode == 1
    assert 'zc_bench: error: ' in complained and 'Traceback' not in complained
    wait_until_gone(runtime)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ('link --repetitions 0', '--repetitions 0: give more than 0 and at most 1000'),
        ('link --seconds nan', '--seconds nan'),
        ('link --rates 30 -1', '--rates -1: each is 0 (unthrottled) or 0.1 to 1000 Hz'),
        ('decode --frames 0', '--frames 0'),
        ('pipeline --delay-ms -1', '--delay-ms -1'),
        ('scale --cameras 257', '--cameras 257'),
        ('scale --depth 5', '--depth 5'),
        ('timeline --seconds 200', '--seconds 200: give more than 0 and at most 135'),
        ('timeline --json build/bench/timeline.json', "both 'build/bench/timeline.json'; give"),
        ('startup --parameters model=hog', "--parameters 'model=hog': each is NAME:=VALUE"),
        ('decode --json .', "--json '.' can't be written: Is a directory"),
    ],
)
def test_arguments_that_make_no_sense_are_one_line_before_anything_is_measured(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr('subprocess.Popen', None)  # no process can be started
    assert program.main(arguments.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('zc_bench: error: ') and message in line


def test_the_bars_decide_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # No frame was received.
    series = {('link', 'shared_memory', Condition(640, 480, 0.0)): [Series([], 1.0, lost=20)]}
    measured = Measured(make_rows(series, []), {'rmw': 'x'})
    instead_of_measuring(monkeypatch, link_command, 'measure_links', measured)
    assert program.main(['link']) == 0
    assert 'FAIL' not in capsys.readouterr().out
    assert program.main(['link', '--check']) == 1
    assert capsys.readouterr().out.count('not measured') == len(COMMANDS[0].bars)
    met = Verdict('a bar ≤ 2×', '1.50×', True)
    monkeypatch.setattr('bench.program.check_bars', lambda rows, bars: [met])
    assert program.main(['link', '--check']) == 0
    assert 'pass  a bar ≤ 2×: 1.50×' in capsys.readouterr().out


def test_the_program_of_a_clone_runs_from_anywhere(tmp_path: Path) -> None:
    tree = tmp_path / 'a clone'
    (tree / '.venv' / 'bin').mkdir(parents=True)
    place = Path(program.__file__).parent
    (tree / 'bench').symlink_to(place)
    shutil.copy(place / 'zc_bench', tree / '.venv' / 'bin')
    python = tree / '.venv' / 'bin' / 'python'
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding='utf-8')
    python.chmod(0o755)
    shown = ran('../a clone/.venv/bin/zc_bench', 'link', '--help', cwd=tree)
    assert shown.returncode == 0 and shown.stdout.startswith('usage: zc_bench link '), shown.stderr


# A worker process of the benchmark: its output, its failures, and its end.
MakeWorker = Callable[..., Worker]


@pytest.fixture
def make_worker(tmp_path: Path) -> Iterator[MakeWorker]:
    workers: list[Worker] = []

    def make(text: str, *, orderly: bool = True) -> Worker:
        name = f'fake_worker_{len(workers)}'
        (tmp_path / f'{name}.py').write_text(text, encoding='utf-8')
        environment = {**os.environ, 'PYTHONPATH': str(tmp_path)}
        workers.append(Worker(name, ['role', 'topic'], environment, orderly=orderly))
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


@pytest.mark.parametrize('orderly', [True, False])
def test_it_answers_whatever_its_libraries_print_and_closing_ends_it(
    make_worker: MakeWorker, orderly: bool, no_fd_leak: None
) -> None:
    worker = make_worker(ECHO, orderly=orderly)
    assert worker.ask(op='x', n=1) == {'echo': {'op': 'x', 'n': 1}, 'arguments': ['role', 'topic']}
    assert worker.ask(op='y')['echo'] == {'op': 'y'}
    worker.close()
    worker.close()
    # End of input and signal arrive together: either may act first.
    assert worker._process.returncode in ((0, -signal.SIGTERM) if orderly else (0,))


def test_one_that_does_not_end_is_killed_with_its_children(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('bench.worker._ORDERLY_END_S', 0.1)
    worker = make_worker("""
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if child := os.fork():
    print('{"child": %d}' % child, flush=True)
signal.pause()
""")
    child = worker.receive()['child']
    group = worker._process.pid
    assert os.getpgid(group) == group != os.getpgrp(), 'a Ctrl-C at the terminal does not reach it'
    worker.close()
    assert worker._process.returncode == -signal.SIGKILL
    # The rest of the group was killed too: a process may still be dying.
    until(lambda: not is_alive(child), f'process {child} lives on')
