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

"""What every room uses: errors' texts, logs, forks, files and their names, signals."""

from __future__ import annotations

import ast
from collections.abc import Iterator
import errno
import gc
import io
import os
from pathlib import Path
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from unittest.mock import Mock
import weakref

from descriptors import limited
from processes import passes_in_child, ran
import pytest

import zc_perception
from zc_perception.errors import ConfigError, error_line, nearest, shown
from zc_perception.forking import in_child, Turn
from zc_perception.local_path import local_path
from zc_perception.log import on_stderr, ONCE, Seldom
from zc_perception.shipped_files import shipped_file
from zc_perception.terminal import ending_quietly, Interrupted, Interruption, interruptions
from zc_perception.whole_file import check_writable, output_file, write_output, write_whole


def test_what_a_terminal_would_obey_is_escaped() -> None:
    line = error_line('p', ConfigError("'a\nERROR\x1b[2J\ud800'"))
    assert line == r"p: error: 'a\nERROR\x1b[2J\ud800'"


@pytest.mark.parametrize(
    ('word', 'known', 'meant'),
    [
        ('nv12', ['YUYV', 'NV12', 'NV21'], 'NV12'),
        ('GSTREAMR', ['gstreamer', 'argus'], 'gstreamer'),
        ('grabber', ['v4l2', 'argus'], None),
    ],
)
def test_the_nearest_word_is_found_in_capitals_or_not(
    word: str, known: list[str], meant: str | None
) -> None:
    assert nearest(word, known) == (f"; did you mean '{meant}'?" if meant else '')


class Wordless:
    def __str__(self) -> str:  # noqa: CNL100
        raise ValueError


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        ('größe', "'größe'"),
        ('a\n\x1b[2J', r"'a\n\x1b[2J'"),
        ([True, 1.5, None], '[True, 1.5, None]'),
        (2**128 - 1, str(2**128 - 1)),
        (-(1 << 99999), 'a number of 100000 bits'),
        (Wordless(), 'Wordless'),
        ('\n' * 1000, "'" + r'\n' * 119 + '…'),
    ],
    ids=range(7),
)
def test_a_value_is_shown_in_one_line_that_ends(value: object, text: str) -> None:
    assert shown(value) == text


# Repeated messages are logged rarely.
@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, 'monotonic', lambda: now[0])
    return now


def test_a_sentence_is_said_again_after_a_while_and_memory_is_bounded(now: list[float]) -> None:
    said: list[str] = []
    say = Seldom(said.append, 60.0)
    for now[0] in range(100, 160):
        say('refused')
    say('connected')
    assert said == ['refused', 'connected']
    now[0] = 160.0
    say('refused')
    assert said[2:] == ['refused']
    for number in range(500):
        say(f'consumer {number}')
    assert len(say._said) <= 64


def test_what_is_the_same_may_be_told_and_costs_nothing_unless_it_is_said(
    now: list[float],
) -> None:
    said: list[str] = []
    say = Seldom(said.append, ONCE)
    for number in range(3):
        say(f'frame {number} was lost', 'lost')
        now[0] += 1e9
    say(lambda: pytest.fail('it was said before'), 'lost')
    say(lambda: 'made', 'other')
    assert said == ['frame 0 was lost', 'made']


def test_a_terminal_that_is_gone_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_stderr('a line\n')
    assert capsys.readouterr().err == 'a line\n'
    monkeypatch.setattr(sys, 'stderr', None)
    on_stderr('nobody reads this')
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, 'stderr', closed)
    on_stderr('nor this')


# What a forked child resets, and in which order.
class Owner:
    def __init__(self, name: str, said: list[str], turn: Turn) -> None:  # noqa: CNL100
        self.name, self.said = name, said
        in_child(turn, self.forget)

    def forget(self) -> None:
        self.said.append(self.name)


def test_each_forgets_in_its_turn_as_long_as_it_lives() -> None:
    said: list[str] = []
    owners = [Owner('log', said, Turn.LOGS), Owner('link', said, Turn.LINKS)]
    owners += [Owner('gone', said, Turn.LINKS), Owner('frames', said, Turn.FRAMES)]
    del owners[2]
    gc.collect()

    def child() -> None:
        assert said == ['frames', 'link', 'log']

    assert passes_in_child(child) and said == []
    left = [weakref.ref(owner) for owner in owners]
    owners.clear()
    gc.collect()
    assert [owner() for owner in left] == [None] * 3, 'nothing is kept'


# Paths as users write them: with ~, with variables, as URLs.
@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setenv('BAGS', str(tmp_path / 'bags'))
    monkeypatch.delenv('NOT_SET', raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ('named', 'wanted'),
    [
        ('/a/b.mp4', '/a/b.mp4'),
        ('~/b.mp4', '{home}/b.mp4'),
        ('${BAGS}/b', '{home}/bags/b'),
        ('file:/a/b.mp4', '/a/b.mp4'),
        ('FILE://localhost/a/b.mp4', '/a/b.mp4'),
        ('file:///a/my%20drive%231%3F%25.mp4', '/a/my drive#1?%.mp4'),
        ('file:///a/%C3%BC.mp4', '/a/ü.mp4'),
        ('file://$BAGS/b', '{home}/bags/b'),
        ('a:b.mp4', 'a:b.mp4'),
    ],
)
def test_what_a_person_means(named: str, wanted: str, home: Path) -> None:
    assert local_path(named, 'video') == wanted.format(home=home)


def test_a_name_that_is_there_is_meant_as_it_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    for name in ('~', '$BAGS', 'a$NOT_SET', 'file:'):
        Path(name).touch()
        assert local_path(name, 'video') == name


@pytest.mark.parametrize(
    ('named', 'message'),
    [
        ('$NOT_SET/a', "'video' is '$NOT_SET/a'; the environment of this node has no variable"),
        ('~nobody_here/a', "'~nobody_here' names no user of this machine"),
        ('file://a/b.mp4', 'a file URL has an absolute path of this machine: file:///'),
        ('file:b.mp4', 'a file URL has an absolute path'),
    ],
)
def test_what_nobody_can_mean_is_refused(named: str, message: str, home: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        local_path(named, 'video')
    assert message in str(caught.value)


# A requested output file is written completely or not at all.
@pytest.mark.parametrize('linked', [False, True])
def test_a_file_is_replaced_a_link_stays_one_and_nothing_else_is_left(
    tmp_path: Path, linked: bool
) -> None:
    there = tmp_path / 'folder' / 'there'
    there.parent.mkdir()
    path = tmp_path / 'link' if linked else there
    if linked:
        path.symlink_to(there)
    for content, written in (('ä', 'ä'.encode()), (b'\x00\xff', b'\x00\xff')):
        check_writable(path)
        write_whole(path, content)
        assert path.is_symlink() is linked and there.read_bytes() == written
        assert list(there.parent.iterdir()) == [there]


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


# Messages name pages, parameter files and examples by their paths in this installation.
PACKAGE = Path(zc_perception.__file__).parent
ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r'(?<![\w/])(?:docs|config|examples)/[\w./-]*\w')


def named_files(text: str) -> Iterator[tuple[str, bool]]:
    """Yield file names in a module's strings, and whether ``shipped_file`` gets each."""
    nodes = [*ast.walk(ast.parse(text))]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    asked = {id(c.args[0]) for c in calls if getattr(c.func, 'id', '') == 'shipped_file'}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for name in [] if id(node) in docstrings else NAMED.findall(node.value):
                yield name, id(node) in asked


def test_whoever_names_a_file_asks_where_it_is_installed() -> None:
    found = [
        (path, *each)
        for path in PACKAGE.rglob('*.py')
        for each in named_files(path.read_text(encoding='utf-8'))
    ]
    assert len(found) > 5
    assert [each for each in found if not each[2]] == [], "write shipped_file('docs/…')"
    assert [each for each in found if not (ROOT / each[1]).is_file()] == []
    assert shipped_file('docs/models.md') == str(ROOT / 'docs/models.md')


@pytest.mark.parametrize(
    ('packages', 'share'),
    [
        ('install/zc_perception/lib/python3.12/site-packages', 'install/zc_perception/share'),
        ('ws/local/lib/python3.10/dist-packages', 'ws/share'),
        ('usr/lib/python3/dist-packages', 'usr/share'),
        ('code that was copied alone', ''),
    ],
)
def test_in_an_installation_they_are_in_its_share_folder_else_as_in_the_repository(
    packages: str, share: str, tmp_path: Path
) -> None:
    wanted = tmp_path / share / 'zc_perception' if share else Path()
    if share:
        wanted.mkdir(parents=True)
        (wanted / 'package.xml').touch()
    package = tmp_path / packages / 'zc_perception'
    package.mkdir(parents=True)
    shutil.copy2(PACKAGE / 'shipped_files.py', package)
    say = "import shipped_files; print(shipped_files.shipped_file('docs/models.md'))"
    said = ran(sys.executable, '-c', say, cwd=package, check=True).stdout
    assert said == f'{wanted / "docs/models.md"}\n'


# Signals that end a command.
SIGINT, SIGTERM = signal.SIGINT, signal.SIGTERM
# Signals that end a command; not SIGHUP, which nohup makes the tests' processes ignore.
IGNORED = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
ENDING = (SIGINT, SIGTERM) if IGNORED else (SIGINT, SIGTERM, signal.SIGHUP)
SECONDS, LIMIT = ['--seconds', '0'], ['--time-limit', '0']
_PROGRAM = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Interrupting())
from {command} import main
main({arguments!r})
"""


@pytest.mark.parametrize(
    ('command', 'module', 'number', 'arguments'),
    # If the signal comes too late, the exit code is 0, which fails the test.
    [
        ('zc_perception.verify.zc_verify', 'zc_perception.verify.measurement', SIGTERM, SECONDS),
        ('zc_perception.doctor.zc_doctor', 'zc_perception.doctor.command', SIGINT, LIMIT),
        ('bench.__main__', 'bench.program', SIGTERM, ['decode', '--frames', '1']),
    ],
)
def test_a_signal_during_the_imports_is_one_line(
    command: str, module: str, number: signal.Signals, arguments: list[str]
) -> None:
    program = _PROGRAM.format(
        command=command, module=module, number=int(number), arguments=arguments
    )
    done = ran(sys.executable, '-c', program, cwd=ROOT)
    name = 'zc_bench' if 'bench' in command else command.rpartition('.')[2]
    line = f'{name}: ended by {number.name}\n'
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, '', line)


def test_afterwards_a_signal_is_what_it_was() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    with ending_quietly('zc_verify'):
        assert [signal.getsignal(number) for number in ENDING] != before
    assert [signal.getsignal(number) for number in ENDING] == before


def test_who_ignores_a_signal_goes_on_to_do_so() -> None:
    program = """
import os, signal
from zc_perception.terminal import ending_quietly
numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
for number in numbers:
    signal.signal(number, signal.SIG_IGN)
with ending_quietly('zc_verify'):
    for number in numbers:
        os.kill(os.getpid(), number)
print('there')
"""
    assert ran(sys.executable, '-c', program, cwd=ROOT).stdout == 'there\n'


class Told(BaseException):
    pass


@pytest.fixture
def interruption() -> Interruption:
    made = Interruption()
    made.begin(Told)
    return made


def test_a_signal_is_an_exception_where_that_is_allowed_and_once(
    interruption: Interruption,
) -> None:
    with pytest.raises(Told) as caught, interruption.allowed():
        try:
            interruption.handle(15, None)
        finally:
            interruption.handle(2, None)
    assert caught.value.args == (15,)
    interruption.handle(2, None)


def test_it_is_still_allowed_after_an_inner_block_but_not_after_a_signal_there(
    interruption: Interruption,
) -> None:
    with pytest.raises(Told), interruption.allowed():
        with interruption.allowed():
            pass
        try:
            with interruption.allowed():
                interruption.handle(15, None)
        finally:
            interruption.handle(2, None)
    with pytest.raises(Told), interruption.allowed(), interruption.allowed():
        raise AssertionError('it was told before')


def test_one_that_has_come_before_is_not_forgotten(interruption: Interruption) -> None:
    interruption.handle(15, None)
    with pytest.raises(Told), interruption.allowed():
        raise AssertionError('it was told before')


def test_what_is_built_up_is_whole_before_it_comes(interruption: Interruption) -> None:
    built = []
    with pytest.raises(Told), interruption.allowed():
        with interruption.put_off():
            interruption.handle(15, None)
            built.append(1)
        built.append(2)
    assert built == [1]
    with interruption.put_off():
        interruption.handle(15, None)


@pytest.mark.parametrize('number', ENDING)
def test_each_signal_is_an_exception_of_the_work(number: signal.Signals) -> None:
    own = Mock()
    signal.signal(number, own)
    with pytest.raises(Interrupted) as caught, interruptions() as told, told.allowed():
        os.kill(os.getpid(), number)
        time.sleep(0.1)
    assert signal.getsignal(number) is own, "afterwards the signal is the caller's again"
    assert caught.value.exit_code == 128 + number


def test_a_hangup_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptions() as told, told.allowed():
        os.kill(os.getpid(), signal.SIGHUP)
