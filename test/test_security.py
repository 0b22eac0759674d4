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

"""What the package must never do with data and names from others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
import fcntl
import mmap
import os
from pathlib import Path

from link.shared_memory.memory_link import make_pool, publish, PUBLISHER, RawPeer
import pytest

import zc_perception
from zc_perception.link.shared_memory.server import SharedMemoryServer

PACKAGE = Path(zc_perception.__file__).parent
MODULES = {'pickle', 'cPickle', '_pickle', 'marshal', 'shelve', 'dill', 'cloudpickle', 'joblib',
           'pty', 'telnetlib', 'xmlrpc', 'http',
           'ftplib', 'urllib', 'smtplib', 'socketserver'}  # fmt: skip
# Modules that only work on text, so using them is safe.
TEXT_ONLY = {'urllib.parse'}
BUILTINS = {'eval', 'exec', 'compile', '__import__'}
CALLS = {'os.system', 'os.popen', 'os.execl', 'os.execv', 'os.execvp', 'tempfile.mktemp',
         'yaml.full_load', 'yaml.unsafe_load', 'yaml.load_all', 'yaml.full_load_all',
         'yaml.unsafe_load_all', 'subprocess.getoutput', 'subprocess.getstatusoutput',
         'numpy.fromfile', 'ast.literal_eval', 'pickle.loads'}  # fmt: skip
SAFE_LOADERS = {'yaml.SafeLoader', 'yaml.BaseLoader', 'yaml.CSafeLoader'}


def _name(node: ast.expr) -> str:
    """Return the dotted name ``a.b.c`` of an expression; empty for other expressions."""
    if isinstance(node, ast.Attribute):
        return f'{_name(node.value)}.{node.attr}'
    return node.id if isinstance(node, ast.Name) else ''


def _of_call(call: ast.Call, loaders: set[str]) -> Iterator[str]:
    name = _name(call.func)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in BUILTINS or name in CALLS:
        yield name
    if name in ('yaml.load', 'yaml.parse', 'yaml.compose', 'yaml.scan'):
        loader = keywords.get('Loader') or (call.args[1] if len(call.args) > 1 else None)
        if loader is None or _name(loader) not in loaders:
            yield f'{name} without a safe loader'
    for option in {'shell', 'allow_pickle'} & keywords.keys():
        if ast.unparse(keywords[option]) != 'False':
            yield f'{name} with {option}'
    values = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]
    modes = [value for value in values if type(value) is int]
    makes = name.endswith(('.chmod', '.fchmod', '.mkdir', '.makedirs'))
    if makes and any(mode & 0o002 for mode in modes):
        yield f'{name} that lets anybody write'
    if name.endswith('.bind') and any(str(value).startswith('\0') for value in values):
        yield 'an abstract socket'


def _is_dangerous(module: str) -> bool:
    return module.split('.')[0] in MODULES and module not in TEXT_ONLY


def dangers(text: str) -> list[str]:
    tree, found = ast.parse(text), []
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    loaders = SAFE_LOADERS | {
        own.name for own in classes if {_name(base) for base in own.bases} & SAFE_LOADERS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += filter(_is_dangerous, (alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            found += filter(_is_dangerous, [str(node.module)])
        elif isinstance(node, ast.Call):
            found += _of_call(node, loaders)
    return found


def test_no_source_does_something_dangerous() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): dangers(path.read_text(encoding='utf-8'))
        for path in PACKAGE.rglob('*.py')
    }
    # A model's metadata is a Python literal of at most 1 MB. literal_eval runs no code.
    allowed = {'npu/model_file.py': ['ast.literal_eval']}
    assert {name: what for name, what in found.items() if what} == allowed


@pytest.fixture
def given(tmp_path: Path) -> Iterator[int]:
    """Yield the descriptor of a buffer, as a consumer in another process gets it."""
    folder = tmp_path / 's'
    folder.mkdir(mode=0o700)
    pool = make_pool(4, reserve=1)
    with (
        SharedMemoryServer('camera', PUBLISHER, pool, folder=folder) as server,
        RawPeer.welcomed(server.path) as peer,
    ):
        publish(server, pool, 0)
        packet, fds = peer.receive()
        assert packet and len(fds) == 1
        yield fds[0]
        os.close(fds[0])
    pool.close()


def test_a_consumer_can_read_a_sealed_buffer_and_nothing_else(given: int) -> None:
    size, read_write = os.fstat(given).st_size, mmap.PROT_READ | mmap.PROT_WRITE
    with mmap.mmap(given, size, prot=mmap.PROT_READ) as memory:
        assert len(memory) == size
    with pytest.raises(PermissionError):
        mmap.mmap(given, size, prot=read_write)
    # The kernel reopens a memfd for writing through /proc, but the seal still protects it.
    again = os.open(f'/proc/self/fd/{given}', os.O_RDWR | os.O_CLOEXEC)
    try:
        for change in (
            lambda: mmap.mmap(again, size, prot=read_write),
            lambda: os.pwrite(again, b'x', 0),
            lambda: os.ftruncate(again, 0),
            lambda: os.ftruncate(again, size * 2),
            # F_SEAL_EXEC would still be possible, but F_SEAL_SEAL forbids further seals.
            lambda: fcntl.fcntl(again, 1033, 0x20),
        ):
            with pytest.raises(PermissionError):
                change()
    finally:
        os.close(again)
