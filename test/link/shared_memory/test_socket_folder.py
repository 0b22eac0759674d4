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

"""The sockets' folder: its place, its permissions, and removal of dead sockets only."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
from pathlib import Path
import socket
import stat

from memory_link import make_pool, PUBLISHER, RawPeer
import pytest
from waiting import until

from zc_perception.errors import ConfigError
from zc_perception.link.shared_memory import unix_socket
from zc_perception.link.shared_memory.protocol import MessageType, RefusalCode
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.link.shared_memory.unix_socket import (
    consumer_allowed,
    default_folder,
    folder_complaint,
    is_dead,
    listen,
    Peer,
    remove_stale,
    runtime_folder,
    socket_path,
)

pytestmark = pytest.mark.usefixtures('no_fd_leak')
# Must not be the user who runs the tests: CI runs as nobody, 65534.
STRANGER = 65533


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def leave_dead_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(os.fspath(path))
        sock.listen()
    return path


@pytest.mark.parametrize(
    ('environment', 'expected'),
    [
        ({'ZC_RUNTIME_DIR': '/a', 'XDG_RUNTIME_DIR': '/b'}, '/a'),
        ({'XDG_RUNTIME_DIR': '/'}, '/zc_perception'),
        ({'ZC_RUNTIME_DIR': ''}, f'/tmp/zc_perception-{os.geteuid()}'),
        ({}, f'/tmp/zc_perception-{os.geteuid()}'),
    ],
)
def test_which_folder(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_socket.os, 'access', lambda path, *_, **__: path == Path('/'))
    assert default_folder(environment) == Path(expected)
    assert folder_complaint(environment) == ''


@pytest.mark.parametrize('runtime', ['{}/nowhere', '{}/file', '{}/forbidden', 'relative'])
def test_a_runtime_folder_that_cannot_be_used_is_replaced_and_said(
    folder: Path, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """su, cron and docker leave such a ``XDG_RUNTIME_DIR``."""
    forbidden = folder / 'forbidden'
    forbidden.mkdir()
    (folder / 'file').touch()
    access = os.access
    # Root may write everywhere, so os.access is replaced.
    monkeypatch.setattr(
        unix_socket.os,
        'access',
        lambda path, *mode, **how: path != forbidden and access(path, *mode, **how),
    )
    monkeypatch.setattr(unix_socket, '_FALLBACK', folder)
    monkeypatch.chdir(folder)
    (folder / 'relative').mkdir()
    environment = {'XDG_RUNTIME_DIR': runtime.format(folder)}
    made = runtime_folder(environment=environment)
    assert made == default_folder(environment) == folder / f'zc_perception-{os.geteuid()}'
    assert mode(made) == 0o700
    complaint = folder_complaint(environment)
    for word in (environment['XDG_RUNTIME_DIR'], str(made), 'ZC_RUNTIME_DIR'):
        assert word in complaint
    assert folder_complaint(environment | {'ZC_RUNTIME_DIR': '/a'}) == ''
    # A folder that a container shares with its host may lie in a folder that root owns.
    (forbidden / 'zc_perception').mkdir()
    assert default_folder({'XDG_RUNTIME_DIR': str(forbidden)}) == forbidden / 'zc_perception'


def test_a_server_goes_on_without_the_runtime_folder_and_warns_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv('ZC_RUNTIME_DIR', raising=False)
    monkeypatch.setenv('XDG_RUNTIME_DIR', str(folder / 'nowhere'))
    monkeypatch.setattr(unix_socket, '_FALLBACK', folder)
    warned: list[str] = []
    pool = make_pool(2)
    with (
        SharedMemoryServer('camera', PUBLISHER, pool, warn=warned.append) as server,
        RawPeer.welcomed(server.path),
    ):
        assert server.path.parent == folder / f'zc_perception-{os.geteuid()}'
    pool.close()
    assert len(warned) == 1 and str(folder / 'nowhere') in warned[0]


def test_it_is_made_for_this_user_alone_or_for_a_group(folder: Path) -> None:
    environment = {'XDG_RUNTIME_DIR': str(folder)}
    made = runtime_folder(environment=environment)
    assert made == folder / 'zc_perception' and mode(made) == 0o700
    assert runtime_folder(environment=environment) == made, 'and found again'
    group = os.getegid()
    assert mode(runtime_folder(group, environment)) == 0o750 and made.stat().st_gid == group


@pytest.mark.parametrize(
    ('spoil', 'complaint'),
    [
        (lambda path: path.symlink_to('.'), 'is a symbolic link or no folder'),
        (lambda path: path.touch(), 'or no folder'),
        (lambda path: (path.mkdir(), path.chmod(0o755)), r'\(mode 0755\); run .chmod 0700.'),
        (lambda path: (path.mkdir(), path.chmod(0o720)), r'is open to other users \(mode 0720\)'),
    ],
)
def test_a_folder_that_others_could_enter_is_refused(
    folder: Path, spoil: Callable[[Path], object], complaint: str
) -> None:
    place = folder / 'x'
    spoil(place)
    with pytest.raises(ConfigError, match=complaint) as caught:
        runtime_folder(environment={'ZC_RUNTIME_DIR': str(place)})
    assert 'ZC_RUNTIME_DIR' in str(caught.value) and str(place) in str(caught.value)


def test_a_folder_of_somebody_else_or_that_cannot_be_made_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="can't be used: No such file"):
        runtime_folder(environment={'ZC_RUNTIME_DIR': str(folder / 'a' / 'b')})
    owner = os.geteuid()
    monkeypatch.setattr(unix_socket.os, 'geteuid', lambda: owner + 1)
    with pytest.raises(
        ConfigError, match=f'belongs to user {owner}, but this process runs as user {owner + 1}'
    ):
        runtime_folder(environment={'ZC_RUNTIME_DIR': str(folder)})


def test_a_name_too_long_for_an_address_or_of_no_file_is_a_config_error(folder: Path) -> None:
    longest = folder / ('x' * (107 - len(os.fspath(folder)) - 1 - 1 - 37))
    longest.mkdir()
    listen(socket_path(longest, PUBLISHER)).close()
    with pytest.raises(ConfigError, match=r'1 bytes too long .*ZC_RUNTIME_DIR'):
        socket_path(Path(f'{longest}y'), PUBLISHER)
    # A short id doesn't help: the socket is first bound under a longer, temporary name.
    with pytest.raises(ConfigError, match='too long'):
        socket_path(folder / ('x' * (107 - len(os.fspath(folder)) - 1 - 8)), 'a')
    for publisher_id in ('', '../x', '.x', 'a/b'):
        with pytest.raises(ConfigError, match='no file name'):
            socket_path(folder, publisher_id)


def test_only_sockets_that_nobody_listens_at_are_removed(folder: Path) -> None:
    dead = leave_dead_socket(folder / 'dead.sock')
    (folder / 'file.sock').write_text('not ours')
    (folder / 'link.sock').symlink_to(dead)
    leave_dead_socket(folder / 'dead.other')
    leave_dead_socket(folder / '.starting-1')
    old = leave_dead_socket(folder / '.starting-2')
    os.utime(old, (0, 0))
    with (
        listen(folder / 'live.sock'),
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as busy,
    ):
        busy.bind(os.fspath(folder / 'busy.sock'))
        busy.listen(0)
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
        waiting = [socket.socket(socket.AF_UNIX, kind) for _ in range(8)]
        full = [sock.connect_ex(os.fspath(folder / 'busy.sock')) for sock in waiting]
        assert any(full), 'its backlog is full'
        assert remove_stale(folder) == 2
        for sock in waiting:
            sock.close()
    left = '.starting-1 busy.sock dead.other file.sock link.sock live.sock'
    assert sorted(path.name for path in folder.iterdir()) == left.split()
    assert is_dead(folder / 'nothing.sock') is None


def test_a_taken_id_is_refused_and_a_dead_one_is_replaced(folder: Path) -> None:
    path = leave_dead_socket(folder / 'a.sock')
    with listen(path):
        assert is_dead(path) is False and mode(path) == 0o600
        with pytest.raises(ConfigError, match='another process listens at'):
            listen(path)
    assert is_dead(path) is True
    with listen(path, os.getegid()):
        assert mode(path) == 0o660
    assert [entry.name for entry in folder.iterdir()] == ['a.sock'], 'nothing is left of starting'


def test_who_is_served() -> None:
    me = os.geteuid()
    for uid, gids, allowed, served in (
        (me, (99,), (), True),
        (0, (99,), (), True),
        (me + 1, (99,), (), False),
        (me + 1, (99,), (98,), False),
        (me + 1, (99,), (98, 99), True),
        (me + 1, (99, 5, 98), (98,), True),
        (me + 1, (99, 5), (98,), False),
    ):
        assert consumer_allowed(Peer(1, uid, gids[0], gids[1:]), allowed) is served


@pytest.mark.parametrize(('groups', 'served'), [([], False), ([77], True)])
def test_a_stranger_is_refused_and_a_member_of_a_group_that_is_let_in_is_served(
    folder: Path, monkeypatch: pytest.MonkeyPatch, groups: list[int], served: bool
) -> None:
    """
    As root, the stranger is another user.

    Otherwise the server is made to believe that its own user and group are others.
    """
    root, pool = os.geteuid() == 0, make_pool(4)
    allowed = 77 if root else (os.getegid() if served else os.getegid() + 1)
    gids = (allowed,) if root or served else ()
    with SharedMemoryServer('camera', PUBLISHER, pool, folder=folder, allowed_gids=gids) as server:
        folder.chmod(0o755)
        server.path.chmod(0o666)
        if not root:
            monkeypatch.setattr(unix_socket.os, 'geteuid', lambda: STRANGER)
            assert _is_served(server.path) is served
        elif (pid := os.fork()) == 0:
            status = 1
            try:
                os.setgroups(groups)
                os.setgid(STRANGER)
                os.setuid(STRANGER)
                status = 0 if _is_served(server.path) is served else 2
            finally:
                os._exit(status)
        else:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        counted = server.statistics()
        assert counted.welcomed == served
        assert counted.refused == ({} if served else {'not_allowed': 1})
        until(lambda: not server.consumers, 'the end')
    pool.close()


def _is_served(path: Path) -> bool:
    with RawPeer.connected(path) as peer:
        with contextlib.suppress(BrokenPipeError):
            peer.hello()
        packet, _ = peer.receive()
        kind = packet[0]
        assert kind == MessageType.WELCOME or packet[8] == RefusalCode.NOT_ALLOWED
        return kind == MessageType.WELCOME
