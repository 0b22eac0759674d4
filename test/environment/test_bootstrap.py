"""The set-up's own logic: what is stale, what is missing, and how that is said."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import bootstrap, console, paths, prerequisites
from environment.errors import SetupError
from environment.layers import Layer, content_key, keys, read_record, stale_layers, write_record


@pytest.fixture
def stack(tmp_path: Path) -> tuple[Layer, ...]:
    """Return three layers, each with one input file."""

    def layer(name: str) -> Layer:
        file = tmp_path / name
        file.write_text(name)
        return Layer(name, (file,), lambda: None)

    return layer('wheels'), layer('interfaces'), layer('package')


def names(layers: list[Layer]) -> list[str]:
    return [layer.name for layer in layers]


@pytest.mark.parametrize(
    ('changed', 'expected'),
    [
        ('wheels', ['wheels', 'interfaces', 'package']),
        ('interfaces', ['interfaces', 'package']),
        ('package', ['package']),
    ],
)
def test_a_change_makes_its_layer_and_those_above_stale(
    stack: tuple[Layer, ...], tmp_path: Path, changed: str, expected: list[str]
) -> None:
    recorded = keys(stack, '3.11')
    assert names(stale_layers(stack, keys(stack, '3.12'), recorded)) == [
        'wheels',
        'interfaces',
        'package',
    ]
    # An interrupted set-up has not recorded the layer.
    interrupted = {name: key for name, key in recorded.items() if name != changed}
    assert names(stale_layers(stack, recorded, interrupted)) == expected
    (tmp_path / changed).write_text('other')
    assert names(stale_layers(stack, keys(stack, '3.11'), recorded)) == expected
    (tmp_path / changed).unlink()
    without = keys(stack, '3.11')
    (tmp_path / changed).touch()
    assert names(stale_layers(stack, keys(stack, '3.11'), without)) == expected


def test_the_key_tells_apart_where_one_file_ends_and_the_next_begins(tmp_path: Path) -> None:
    first, second = tmp_path / 'a', tmp_path / 'b'

    def key(*contents: str) -> str:
        first.write_text(contents[0])
        second.write_text(contents[1])
        return content_key([first, second], '')

    assert key('xy', 'z') != key('x', 'yz')
    # The name of the second file is a part of the contents.
    assert key('x\0b\0y', 'z') != key('x', 'y\0b\0z')


@pytest.mark.parametrize('damaged', ['', '{', '[1]', '"text"'])
def test_a_record_comes_back_as_it_was_written_and_a_damaged_one_is_none(
    tmp_path: Path, damaged: str
) -> None:
    record = tmp_path / 'record.json'
    write_record(record, {'wheels': '1'})
    assert read_record(record) == {'wheels': '1'} and list(tmp_path.iterdir()) == [record]
    record.write_text(damaged)
    assert read_record(record) == {}


def test_a_half_made_environment_is_discarded_and_a_foreign_folder_is_not(tmp_path: Path) -> None:
    half_made = tmp_path / 'half'
    half_made.mkdir()
    write_record(half_made / 'zc_layers.json', {})
    (half_made / 'lib').mkdir()
    bootstrap.discard(half_made)
    assert not half_made.exists()

    (tmp_path / 'thesis.txt').touch()
    with pytest.raises(SetupError, match='no Python environment'):
        bootstrap.discard(tmp_path)
    assert (tmp_path / 'thesis.txt').exists()


def test_missing_prerequisites_are_named_with_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt = tmp_path / 'apt-get'
    apt.write_text('#!/bin/sh\nexit 0\n')
    apt.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path))
    monkeypatch.setattr(prerequisites.os, 'geteuid', lambda: 1000)
    with pytest.raises(SetupError) as raised:
        prerequisites.ensure(tmp_path / 'log')
    message = str(raised.value)
    assert 'gcc: a C compiler' in message and 'g++: a C++ compiler' in message
    assert 'sudo apt-get install --yes --no-install-recommends gcc libc6-dev g++' in message


def test_an_old_python_is_refused_with_a_newer_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = tmp_path / 'python3.12'
    newer.touch()
    newer.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path))
    monkeypatch.setattr(prerequisites.sys, 'version_info', (3, 9, 2))
    with pytest.raises(SetupError, match=r'make PYTHON=python3\.12'):
        prerequisites.check_python()


def test_a_failed_command_shows_the_end_of_its_output(tmp_path: Path) -> None:
    script = "import sys; print('first'); [print(n) for n in range(100)]; sys.exit('no matching distribution')"
    with pytest.raises(SetupError) as raised:
        console.run_logged([sys.executable, '-c', script], tmp_path / 'log', tmp_path)
    assert 'status 1' in str(raised.value) and 'no matching distribution' in str(raised.value)
    assert 'first' not in str(raised.value).split('\n  ', 1)[1]


def test_a_command_does_not_see_another_ros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('AMENT_PREFIX_PATH', '/opt/ros/humble')
    script = "import os; assert '/opt/ros/humble' not in os.environ.get('AMENT_PREFIX_PATH', '')"
    console.run_logged([sys.executable, '-c', script], tmp_path / 'log', tmp_path)


def test_a_second_set_up_says_so_and_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first ends at the moment when the second asks the kernel to wait."""
    order: list[str] = []
    flock = fcntl.flock

    def first_ends(file: IO[str], how: int) -> None:
        if how == fcntl.LOCK_EX:
            order.append('first ends')
            first.close()
        flock(file, how)

    with contextlib.ExitStack() as first:
        first.enter_context(paths.locked(tmp_path / 'lock', 'busy'))
        assert capsys.readouterr().out == ''
        monkeypatch.setattr(fcntl, 'flock', first_ends)
        with paths.locked(tmp_path / 'lock', 'busy'):
            order.append('second begins')
    assert order == ['first ends', 'second begins'] and capsys.readouterr().out == 'busy\n'


def test_make_without_a_target_says_what_there_is() -> None:
    output = subprocess.run(
        ['make', '-C', str(paths.ROOT)], capture_output=True, text=True, check=True
    ).stdout
    assert 'make demo' in output and 'make test' in output
