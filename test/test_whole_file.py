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

"""A requested output file is written completely or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
import resource
import signal
import stat
import subprocess
import sys

from descriptors import limited
import pytest

from zc_perception.errors import ConfigError
from zc_perception.whole_file import check_writable, output_file, write_output, write_whole


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / 'x.json'
    for content, written in (('ä', 'ä'.encode()), (b'\x00\xff', b'\x00\xff')):
        check_writable(path)
        write_whole(path, content)
        assert path.read_bytes() == written
        assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / 'x.json', []
    write_whole(path, 'old')

    def fsync(fd: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(fd).st_mode), path.read_text()))

    monkeypatch.setattr(os, 'fsync', fsync)
    write_whole(path, 'new')
    assert synced == [(False, 'old'), (True, 'new')]


def test_a_link_stays_one(tmp_path: Path) -> None:
    link, there = tmp_path / 'link', tmp_path / 'folder' / 'there'
    there.parent.mkdir()
    link.symlink_to(there)
    for content in ('new', 'newer'):
        check_writable(link)
        write_whole(link, content)
        assert link.is_symlink() and there.read_text() == content
        assert list(there.parent.iterdir()) == [there]


def test_a_fifo_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / 'fifo'
    os.mkfifo(path)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 'rb') as reading:
        check_writable(path)
        write_whole(path, 'in place')
        assert reading.read(100) == b'in place'
    assert stat.S_ISFIFO(path.lstat().st_mode) and list(tmp_path.iterdir()) == [path]


@pytest.mark.root
def test_a_device_stays_one_and_its_error_is_told(tmp_path: Path) -> None:
    path = tmp_path / 'full'
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 7))
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        pytest.skip(f'devices can not be opened in {tmp_path}: {error}')
    check_writable(path)
    with pytest.raises(OSError) as caught:
        write_whole(path, 'x')
    assert caught.value.errno == errno.ENOSPC and stat.S_ISCHR(path.lstat().st_mode)
    assert list(tmp_path.iterdir()) == [path]


def test_our_own_output_in_a_file_is_not_replaced(tmp_path: Path) -> None:
    """The case is ``--json /dev/stdout > x``."""
    path = tmp_path / 'x'
    program = (
        'from pathlib import Path; from zc_perception.whole_file import *; p = '
        'Path("/dev/stdout"); check_writable(p); write_whole(p, "first\\n"); print("then")'
    )
    with path.open('w') as out:
        subprocess.run([sys.executable, '-c', program], stdout=out, check=True)
    assert path.read_text() == 'first\nthen\n' and Path('/dev/stdout').is_symlink()
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_there_stays_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / 'x'
    path.write_text('before')
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with limited(resource.RLIMIT_FSIZE, 1000), pytest.raises(OSError, match='File too large'):
        write_whole(path, 'x' * 2000)
    assert path.read_text() == 'before' and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('', "--trace '' names no file; name one, or leave --trace out"),
        ('loop', "--trace 'loop' can't be written: Too many levels of symbolic links"),
        ('file/x', "--trace 'file/x' can't be written: Not a directory"),
        ('/proc/none/x', "--trace '/proc/none/x' can't be written: No such file or directory"),
    ],
)
def test_what_can_not_be_is_one_line(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path('loop').symlink_to('loop')
    Path('file').touch()
    with pytest.raises(ConfigError) as caught:
        output_file(name, '--trace')
    assert message in str(caught.value)


def test_the_folder_of_what_a_link_points_to_is_made(tmp_path: Path) -> None:
    (tmp_path / 'link').symlink_to(tmp_path / 'a' / 'b' / 'x.json')
    write_output(output_file(str(tmp_path / 'link'), '--json'), '{}', '--json')
    assert (tmp_path / 'a' / 'b' / 'x.json').read_text(encoding='utf-8') == '{}'
