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

"""The owning descriptor type: one owner, close-on-exec, closed exactly once."""

from __future__ import annotations

import ast
import fcntl
import gc
import os
from pathlib import Path

import pytest

import zc_perception
from zc_perception.memory.owned_fd import OwnedFd

PACKAGE = Path(zc_perception.__file__).parent
pytestmark = pytest.mark.usefixtures('no_fd_leak')


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def test_owning_makes_close_on_exec() -> None:
    number = os.dup(0)
    os.set_inheritable(number, True)
    with OwnedFd(number) as fd:
        assert fcntl.fcntl(fd.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_duplicates_are_the_same_open_file_with_an_owner_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / 'file'
    path.write_bytes(b'content')
    with OwnedFd.open(str(path), os.O_RDONLY) as fd:
        with fd.dup() as other:
            assert other.fileno() != fd.fileno()
            os.lseek(other.fileno(), 3, os.SEEK_SET)
            assert os.lseek(fd.fileno(), 0, os.SEEK_CUR) == 3
            for owner in (fd, other):
                assert fcntl.fcntl(owner.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        assert other.closed and is_open(fd.fileno())


def test_duplicating_a_foreign_descriptor_leaves_it_open() -> None:
    foreign = os.dup(0)
    OwnedFd.duplicate(foreign).close()
    assert is_open(foreign)
    os.close(foreign)


def test_a_second_close_does_not_hit_the_number_s_next_user() -> None:
    fd = OwnedFd(os.dup(0))
    number = fd.fileno()
    fd.close()
    os.dup2(0, number)
    fd.close()
    assert is_open(number)
    os.close(number)


def test_use_after_close_raises() -> None:
    fd = OwnedFd(os.dup(0))
    fd.close()
    for use in (fd.fileno, fd.dup, fd.detach):
        with pytest.raises(ValueError, match='closed'):
            use()
    assert repr(fd) == 'OwnedFd(closed)'


def test_a_forgotten_descriptor_is_closed() -> None:
    fd = OwnedFd(os.dup(0))
    number = fd.fileno()
    del fd
    gc.collect()
    assert not is_open(number)


def test_the_block_closes_when_its_body_raises() -> None:
    fd = OwnedFd(os.dup(0))
    with pytest.raises(KeyError), fd:
        raise KeyError
    assert fd.closed


def closings(source: str) -> list[int]:
    """Lines that close a descriptor by its number."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        node.lineno
        for node in calls
        if ast.unparse(node.func) in ('os.close', 'close', 'os.closerange', 'posix.close')
    ]


def test_nobody_else_in_the_rooms_of_frames_closes_a_number() -> None:
    """
    A borrower of a descriptor has only a number, and can't close it by mistake.

    All owners are of this type.
    """
    assert closings('import os\nos.close(3)\nfrom os import close\nclose(4)') == [2, 4], (
        'the search works'
    )
    rooms = ('pixel', 'memory', 'negotiation', 'detection', 'camera', 'npu')
    files = [path for room in rooms for path in (PACKAGE / room).rglob('*.py')] + [
        *PACKAGE.glob('*.py')
    ]
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in files
        if closings(path.read_text(encoding='utf-8'))
    }
    # whole_file is on the floor below, and has a folder's descriptor for one call.
    assert len(files) > 40 and found == {'memory/owned_fd.py', 'whole_file.py'}
