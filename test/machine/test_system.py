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

from __future__ import annotations

import ctypes
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zc_perception.errors import AllocationError
from zc_perception.machine.system import file_of, first_dmabuf, System
from zc_perception.memory.dmabuf import BufferKind


def test_a_device_node_is_opened_for_reading_and_writing(tmp_path: Path) -> None:
    open_node = System().open_node
    assert open_node('/dev/null') == 0
    assert open_node(str(tmp_path)) == errno.EISDIR
    assert open_node(str(tmp_path / 'video9')) == errno.ENOENT


def test_only_a_loaded_library_has_a_file() -> None:
    libc = file_of(ctypes.CDLL('libc.so.6'))
    assert Path(libc).name.startswith('libc') and libc == file_of('libc.so.6')
    assert file_of(ctypes.CDLL(None)) == file_of('libnobody.so.1') == ''


@pytest.mark.parametrize(
    ('heaps', 'tried'),
    [
        (['linux,cma', 'system', 'vendor'], ['system']),
        (['linux,cma', 'vendor', 'wide'], ['vendor']),
        (['empty', 'linux,cma'], ['empty', 'linux,cma']),
    ],
)
def test_the_trial_buffer_spares_contiguous_memory(
    heaps: list[str], tried: list[str], tmp_path: Path
) -> None:
    (tmp_path / 'dev/dma_heap').mkdir(parents=True)
    for name in heaps:
        (tmp_path / 'dev/dma_heap' / name).touch()
    seen = []

    def allocate(size: int) -> Any:
        if seen[-1].endswith('empty'):
            raise AllocationError('no memory')
        return SimpleNamespace(kind=BufferKind.DMABUF, heap=seen[-1], close=lambda: None)

    def open_heap(name: str) -> Any:
        seen.append(name)
        return SimpleNamespace(allocate=allocate, close=lambda: None)

    with first_dmabuf(System(root=tmp_path, open_heap=open_heap)) as buffer:
        assert buffer is not None and buffer.heap == seen[-1]
    assert seen == [f'dma_heap/{name}' for name in tried]
