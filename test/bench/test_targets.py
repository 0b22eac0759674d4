"""Where results go: what can't be is one line before anything is measured, and no result replaces another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zc_perception.bench.output import check_apart, target, write
from zc_perception.errors import ConfigError


def test_its_folder_is_made_a_link_s_too(tmp_path: Path) -> None:
    path = target(str(tmp_path / 'a' / 'b' / 'x.json'), '--json')
    write(path, '{}', '--json')
    assert path.read_text() == '{}'
    (tmp_path / 'link').symlink_to(tmp_path / 'c' / 'x.json')
    write(target(str(tmp_path / 'link'), '--json'), '{}', '--json')
    assert (tmp_path / 'c' / 'x.json').read_text() == '{}'


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('', "--trace '' names no file; name one, or leave --trace out"),
        ('x' * 256, "can't be written: File name too long; name another file with --trace"),
        ('loop', "--trace 'loop' can't be written: Too many levels of symbolic links"),
        ('loop/x', "--trace 'loop/x' can't be written: Too many levels of symbolic links"),
        ('file/x', "--trace 'file/x' can't be written: Not a directory"),
        ('/proc/none/x', "folder of --trace '/proc/none/x' can't be made: No such file or directory"),
    ],
)
def test_what_can_not_be_is_one_line(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path('loop').symlink_to('loop')
    Path('file').touch()
    with pytest.raises(ConfigError) as caught:
        target(name, '--trace')
    assert message in str(caught.value)


def test_a_folder_that_went_meanwhile_is_one_line(tmp_path: Path) -> None:
    path = target(str(tmp_path / 'a' / 'x'), '--json')
    path.parent.rmdir()
    with pytest.raises(ConfigError, match=r"--json '.*' can't be written: No such file or directory; name another file with --json"):
        write(path, '', '--json')


def test_two_options_are_not_the_same_file_by_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path('link').symlink_to('x')
    for one, other in (('x', 'x'), ('x', str(tmp_path / 'x')), ('x', './a/../x'), ('link', 'x')):
        with pytest.raises(ConfigError, match='--trace and --json are the same file'):
            check_apart({'--trace': one, '--other': 'p', '--json': other})
    check_apart({'--trace': 'x', '--other': 'p', '--json': None})
    check_apart({'--trace': os.devnull, '--other': os.devnull, '--json': os.devnull})
