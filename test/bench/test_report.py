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

"""``make bench``: its report, and that one failing benchmark doesn't stop the others."""

from __future__ import annotations

from collections.abc import Callable
import os
from pathlib import Path
import signal
import subprocess
import sys
import textwrap

from bench import report as program
from bench import results as bench_results
from bench.program import _parser, COMMANDS
from bench.results import ARGUMENTS, arguments_of, load, report
from bench.subcommand import Bar
from bench.worker import importing_bench
from bench_kit import bench, command, ENVIRONMENT, row, write
import pytest
from waiting import until


def test_the_link_s_table_has_ratios_to_ours_before_microseconds() -> None:
    ours, read, vga = 'link/shared_memory', 'link_read/shared_memory', (640, 480)
    nothing = {'median_us': None, 'cpu_us_per_frame': None, 'lost_per_cent': 100.0}
    both = {'ratio_to': {ours: 101.0}, 'cpu_ratio_to': {ours: 44.0}}
    rows = [
        row('link', 'shared_memory', median_us=20.0),
        row('link', 'shared_memory', vga, median_us=19.0),
        row('link', 'zenoh', median_us=2046.0, **both),
        row('link', 'zenoh', vga, **nothing),
        row('link', 'cyclonedds', median_us=3_001_470.0, cpu_us_per_frame=999.0, p99_us=1000.0),
        row('link', 'iceoryx2_in_place', rate_hz=30.0, median_us=99.94, ratio_to={ours: 0.5}),
        row('floor', 'fd_socket', median_us=2.5, ratio_to={ours: 0.125}),
        row('link_read', 'shared_memory', median_us=150.0),
        row('link_read', 'zenoh_shared_memory', median_us=900.0, ratio_to={read: 6.0, ours: 45.0}),
    ]
    page = report([bench('link', rows)], {})
    for line in (
        '| `shared_memory` | **1 ×** 19 µs | **1 ×** 20 µs |',
        '| `zenoh` | – – (100 % lost) | 101 × 2.05 ms |',
        '| `cyclonedds` | – | – 3 s |',
        '| `cyclonedds` | – | 999 µs | 1 ms | 0 % |',
        '| `iceoryx2_in_place` | 0.5 × 99.9 µs |',
        '| floor `fd_socket` | – | 0.12 × 2.5 µs |',
        '| `zenoh` | 44 × | 50 µs | 200 µs | 0 % |',
        '| `zenoh_shared_memory` | 6 × 900 µs |',
    ):
        assert line in page
    heads = ('unthrottled, one frame in flight', 'at 30 Hz', 'reads every pixel')
    places = [page.index(head) for head in heads]
    assert places == sorted(places)


def test_verdicts_environment_and_what_was_absent_are_said() -> None:
    bars = [
        Bar(name, lambda rows, figure=figure: figure, 1.0, ' s')
        for name, figure in (('ha|\nlf', 0.5), ('two', 2.0), ('none', None))
    ]
    environment = {
        **ENVIRONMENT, 'load_average_after': [], 'absent': {'zenoh': 'not installed'},
        'stalled': {'cyclonedds': '2 of 9 series: why'},
        'limits': {'1080p 30 Hz': {'cameras': 24, 'first_loss': 28, 'limit': 'the CPUs are full',
                                   'cpus': 2}},
    }  # fmt: skip
    made = bench('scale', [row('scale', '1_cameras')], *bars, environment=environment)
    page = report([made], {'scale': [Path('x/scale.png')]})
    for line in (
        '1 of 3 bars are met.',
        '- load average before and after each: scale 0.1 → 0\n',
        # a bar or a line feed must not end the table
        '| scale | ha\\| lf ≤ 1 s | 0.50 s | pass |',
        '| scale | two ≤ 1 s | 2.00 s | **FAIL** |',
        '| scale | none ≤ 1 s | not measured | **FAIL** |',
        '- `zenoh`, not measured: not installed',
        '- `cyclonedds`, lost series: 2 of 9 series: why',
        '1080p 30 Hz: 24 cameras without a loss; the CPUs are full',
        '![scale](scale.png)',
        '2026-11-21: 2 CPUs of a CPU',
    ):
        assert line in page


@pytest.mark.parametrize(
    ('content', 'problem'),
    [
        (None, 'it was not measured'),
        ('{', 'x.json is not a result'),
        ('{"rows": []}', "KeyError: 'environment'"),
        ('[]', 'TypeError: '),
        ('[' * 200_000, 'x.json is not a result: '),
    ],
)
def test_a_file_that_is_no_result_is_a_problem_and_no_crash(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    path = tmp_path / 'x.json'
    if content is not None:
        path.write_text(content, encoding='utf-8')
    assert problem in load(command('x'), path).problem


@pytest.mark.parametrize('quick', [False, True])
def test_every_sub_command_takes_its_arguments(quick: bool, tmp_path: Path) -> None:
    assert set(ARGUMENTS) == {one.name for one in COMMANDS}
    for one in COMMANDS:
        options = _parser().parse_args([one.name, *arguments_of(one.name, tmp_path, quick=quick)])
        one.prepare(options)
    trace = arguments_of('timeline', tmp_path, quick=quick)
    assert str(tmp_path / 'timeline_trace.json') in trace
    assert str(tmp_path / 'timeline.json') not in trace, 'which is what zc_bench writes'


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run a short Python text instead of ``zc_bench``."""

    def use(lines: str) -> None:
        (tmp_path / 'stand_in_bench.py').write_text(
            'import json, os, signal, sys, time\nname, path = sys.argv[1], sys.argv[-1]\n'
            + textwrap.dedent(lines),
            encoding='utf-8',
        )
        monkeypatch.setattr(bench_results, 'PROGRAM', [str(tmp_path / 'stand_in_bench.py')])

    return use


def test_each_is_run_and_one_that_fails_costs_the_others_nothing(
    stand_in: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / 'result', [row('tensor', 'ours')])
    (tmp_path / 'out').mkdir()
    write(tmp_path / 'out' / 'decode.json', [row('tensor', 'of_last_week')])
    stand_in(f"""
        print('words of', name, sys.argv[2:-2])
        if name == 'decode':
            sys.exit('no memory')
        open(path, 'w').write(open({str(tmp_path / 'result')!r}).read())
    """)
    assert program.main([str(tmp_path / 'out'), '--quick']) == 1
    page = (tmp_path / 'out' / 'report.md').read_text(encoding='utf-8')
    assert page.count('| tensor | `ours` |') == len(COMMANDS) - 2, 'the link has its own table'
    assert 'Not measured: exit code 1: words of decode' in page and 'no memory' in page
    assert 'of_last_week' not in page and '--quick' not in page
    log = (tmp_path / 'out' / 'pipeline.log').read_text(encoding='utf-8')
    assert "'--repetitions', '1'" in log
    assert 'bars are met' in capsys.readouterr().out


def test_what_is_there_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / 'decode.json', [row('tensor', 'ours')])
    assert program.main([str(tmp_path), '--no-run']) == 0
    page = (tmp_path / 'report.md').read_text(encoding='utf-8')
    assert '| tensor | `ours` |' in page
    assert page.count('Not measured: it was not measured') == len(COMMANDS) - 1
    assert program.main([str(tmp_path), '--no-run', '--check']) == 1
    assert 'FAIL' in capsys.readouterr().out


def test_a_signal_ends_what_runs(stand_in: Callable[[str], None], tmp_path: Path) -> None:
    stand_in(
        'signal.signal(signal.SIGTERM, lambda *_: (open("ended", "w").close(), os._exit(0)))\n'
        'open("started", "w").close()\ntime.sleep(60)'
    )
    program = (
        'import sys; from bench import report, results; results.PROGRAM = ["stand_in_bench.py"]; '
        'sys.exit(report.main(["out"]))'
    )
    process = subprocess.Popen(
        [sys.executable, '-c', program], cwd=tmp_path, env=importing_bench(os.environ)
    )
    until((tmp_path / 'started').exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 128 + signal.SIGINT
    assert (tmp_path / 'ended').exists() and not (tmp_path / 'out' / 'report.md').exists()


def test_without_matplotlib_the_report_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ('matplotlib', 'matplotlib.figure'):
        monkeypatch.setitem(sys.modules, module, None)
    write(tmp_path / 'link.json', [row('link', 'shared_memory'), row('floor', 'fd_socket')])
    assert program.main([str(tmp_path), '--no-run']) == 0
    how = 'Matplotlib is not installed: pip install matplotlib'
    assert f'No pictures: {how}' in (tmp_path / 'report.md').read_text(encoding='utf-8')
    assert how in capsys.readouterr().err and not list(tmp_path.glob('*.png'))
