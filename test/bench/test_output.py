"""Where results and words go: what can't be is one line before anything is measured, and a result outlives what it is printed to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from zc_perception.bench.output import check_apart, target, write
from zc_perception.errors import ConfigError


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('', "--trace '' names no file; name one, or leave --trace out"),
        ('x' * 256, "can't be written: File name too long; name another file with --trace"),
        ('loop', "--trace 'loop' can't be written: Too many levels of symbolic links"),
        ('loop/x', "--trace 'loop/x' can't be written: Too many levels of symbolic links"),
        ('file/x', "--trace 'file/x' can't be written: Not a directory"),
        (
            '/proc/none/x',
            "folder of --trace '/proc/none/x' can't be made: No such file or directory",
        ),
    ],
)
def test_what_can_not_be_is_one_line(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path('loop').symlink_to('loop')
    Path('file').touch()
    with pytest.raises(ConfigError) as caught:
        target(name, '--trace')
    assert message in str(caught.value)


def test_the_folder_of_what_a_link_points_to_is_made(tmp_path: Path) -> None:
    (tmp_path / 'link').symlink_to(tmp_path / 'a' / 'b' / 'x.json')
    write(target(str(tmp_path / 'link'), '--json'), '{}', '--json')
    assert (tmp_path / 'a' / 'b' / 'x.json').read_text(encoding='utf-8') == '{}'


def test_two_options_are_not_the_same_file_by_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path('link').symlink_to('x')
    for one, other in (('x', 'x'), ('x', str(tmp_path / 'x')), ('x', './a/../x'), ('link', 'x')):
        with pytest.raises(ConfigError, match='--trace and --json are the same file'):
            check_apart({'--trace': one, '--other': 'p', '--json': other})
    check_apart({'--trace': 'x', '--other': 'p', '--json': None})
    check_apart({'--trace': os.devnull, '--other': os.devnull, '--json': os.devnull})


# A sub-command of one row, which says something meanwhile.
STAND_IN = """
import sys
from zc_perception.bench import program
from zc_perception.bench.subcommand import Bar
from zc_perception.bench.subcommand import Command, Measured
from zc_perception.bench.rows import Row
def measure(say):
    say('repetition 1 of 1')
    return Measured([Row('x', 'y', 640, 480, 30.0, 1.0, 2.0, 3.0, 1)])
bars = [Bar('a', lambda rows: float(sys.argv[1]), 1.0, '')]
command = Command('x', 'x', lambda parser: None, lambda options: measure, bars)
sys.exit(program.run(['x', *sys.argv[2:]], [command]))
"""


def bench(*arguments: str, figure: float = 0.0, **where: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-c', STAND_IN, str(figure), *arguments], text=True, check=False, **where
    )


def broken_pipe() -> IO[bytes]:
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, 'wb')


def full_disk() -> IO[bytes]:
    return open('/dev/full', 'wb', buffering=0)


@pytest.mark.parametrize('make', [broken_pipe, full_disk])
@pytest.mark.parametrize(
    ('arguments', 'figure', 'code'), [((), 2.0, 0), (('--check',), 0.5, 0), (('--check',), 2.0, 1)]
)
def test_the_file_is_there_and_the_exit_code_is_the_measurement_s(
    make: Any, arguments: tuple[str, ...], figure: float, code: int, tmp_path: Path
) -> None:
    path = tmp_path / 'x.json'
    with make() as lost:
        ran = bench(
            '--json', str(path), *arguments, figure=figure, stdout=lost, stderr=subprocess.PIPE
        )
    assert (ran.returncode, ran.stderr) == (code, 'repetition 1 of 1\n')
    assert json.loads(path.read_text())['rows'][0]['case'] == 'x'


@pytest.mark.parametrize(
    ('make', 'why'), [(broken_pipe, 'Broken pipe'), (full_disk, 'No space left on device')]
)
def test_without_a_file_a_result_that_nobody_saw_is_an_error(make: Any, why: str) -> None:
    with make() as lost:
        ran = bench(stdout=lost, stderr=subprocess.PIPE)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[1:] == [
        f"zc_bench: error: the result can't be printed: {why}; give a file with --json"
    ]


@pytest.mark.parametrize('make', [broken_pipe, full_disk])
def test_progress_that_nobody_sees_costs_nothing(make: Any, tmp_path: Path) -> None:
    path = tmp_path / 'x.json'
    with make() as lost:
        ran = bench('--json', str(path), '--check', stdout=subprocess.PIPE, stderr=lost)
    assert ran.returncode == 0 and 'x/y' in ran.stdout and 'pass  a' in ran.stdout
    assert json.loads(path.read_text())['rows'][0]['variant'] == 'y'


def test_the_table_says_what_each_column_is_measured_in() -> None:
    head, row = bench(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.splitlines()
    for unit in (
        'size [px]',
        'rate [Hz]',
        'median [µs]',
        'p99 [µs]',
        'CPU [µs/frame]',
        'lost [%]',
    ):
        assert unit in head
    # Figures stand below the last letter of their heads.
    for unit, figure in (
        ('rate [Hz]', '30'),
        ('median [µs]', '1.0'),
        ('p99 [µs]', '2.0'),
        ('CPU [µs/frame]', '3.0'),
    ):
        assert row[: head.index(unit) + len(unit)].endswith(f' {figure}')


def test_a_terminal_without_the_letters_costs_no_result(tmp_path: Path) -> None:
    path = tmp_path / 'x.json'
    environment = {**os.environ, 'PYTHONIOENCODING': 'ascii'}
    ran = bench(
        '--json',
        str(path),
        '--check',
        figure=2.0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert ran.returncode == 1 and 'Traceback' not in ran.stderr and path.exists()


def test_a_file_that_can_not_be_written_after_all_leaves_the_table(tmp_path: Path) -> None:
    folder = tmp_path / 'gone'
    lines = STAND_IN.replace("say('rep", f"import os; os.rmdir({str(folder)!r}); say('rep")
    command = [sys.executable, '-c', lines, '0', '--json', str(folder / 'x.json')]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and 'x/y' in ran.stdout
    assert ran.stderr.splitlines()[1].startswith(
        f"zc_bench: error: --json '{folder}/x.json' can't be written: No such file or directory"
    )
