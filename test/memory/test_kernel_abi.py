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

"""Compare the kernel interfaces in the package with a C compiler's view of the headers."""

from __future__ import annotations

from pathlib import Path
import struct

from doubles.c_layout import wrong_values
import pytest

from zc_perception.memory import kernel_abi as abi
from zc_perception.memory.dmabuf import CpuAccess

HEADERS = (
    'fcntl.h', 'linux/dma-buf.h', 'linux/dma-heap.h', 'linux/udmabuf.h', 'linux/sync_file.h',
)  # fmt: skip
NAMES = (
    'DMA_BUF_IOCTL_SYNC', 'DMA_BUF_SET_NAME', 'DMA_BUF_IOCTL_EXPORT_SYNC_FILE',
    'DMA_BUF_IOCTL_IMPORT_SYNC_FILE', 'DMA_BUF_SYNC_END',
    'DMA_BUF_NAME_LEN', 'DMA_HEAP_IOCTL_ALLOC', 'UDMABUF_CREATE', 'UDMABUF_FLAGS_CLOEXEC',
    'SYNC_IOC_MERGE', 'SYNC_IOC_FILE_INFO',
    'F_ADD_SEALS', 'F_GET_SEALS', 'F_SEAL_SEAL', 'F_SEAL_SHRINK', 'F_SEAL_GROW', 'F_SEAL_WRITE',
    'F_SEAL_FUTURE_WRITE',
)  # fmt: skip
NUMBERS = {
    **{name: getattr(abi, name) for name in NAMES},
    'DMA_BUF_SYNC_READ': int(CpuAccess.READ),
    'DMA_BUF_SYNC_WRITE': int(CpuAccess.WRITE),
    'sizeof(((struct sync_merge_data *)0)->name)': abi.SYNC_NAME_LEN,
}
# struct: (the package's format, members in its order)
LAYOUTS = {
    'dma_buf_sync': (abi.DMA_BUF_SYNC, ('flags',)),
    'dma_buf_export_sync_file': (abi.DMA_BUF_SYNC_FILE, ('flags', 'fd')),
    'dma_buf_import_sync_file': (abi.DMA_BUF_SYNC_FILE, ('flags', 'fd')),
    'dma_heap_allocation_data': (abi.DMA_HEAP_ALLOCATION, ('len', 'fd', 'fd_flags', 'heap_flags')),
    'udmabuf_create': (abi.UDMABUF_CREATION, ('memfd', 'flags', 'offset', 'size')),
    'sync_merge_data': (abi.SYNC_MERGE_DATA, ('name', 'fd2', 'fence', 'flags', 'pad')),
    'sync_file_info': (
        abi.SYNC_FILE_INFO,
        ('name', 'status', 'flags', 'num_fences', 'pad', 'sync_fence_info'),
    ),
}


def _offsets(layout: str) -> list[int]:
    offsets, position, count = [], 0, ''
    for letter in layout.lstrip('<'):
        if letter.isdigit():
            count += letter
            continue
        size = struct.calcsize('<' + count + letter)
        items = 1 if letter == 's' else int(count or 1)
        offsets += [position + i * size // items for i in range(items)]
        position, count = position + size, ''
    return offsets


def test_numbers_and_layouts(tmp_path: Path) -> None:
    ours = {f'(unsigned int)({name})': number for name, number in NUMBERS.items()}
    for name, (layout, members) in LAYOUTS.items():
        ours[f'sizeof(struct {name})'] = layout.size
        for member, offset in zip(members, _offsets(layout.format), strict=True):
            ours[f'offsetof(struct {name}, {member})'] = offset
    assert wrong_values(ours, HEADERS, tmp_path, ['-D_GNU_SOURCE']) == {}


def test_fdinfo_is_read_by_key() -> None:
    with Path('/proc/self/status').open('rb') as file:
        file.read(5)
        info = abi.fdinfo(file.fileno())
    assert info['pos'] != '0' and int(info['ino']) > 0


@pytest.mark.parametrize(
    ('raw', 'name'),
    [
        (b'\xff\xfe', '\ufffd\ufffd'),
        (b'a\rexp_name:\tforged', 'a\rexp_name:\tforged'),
        (b'a\nexp_name:\tforged', 'a'),
    ],
)
def test_a_buffer_s_name_can_not_pass_for_the_kernel_s_own_lines(
    raw: bytes, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'fdinfo').write_bytes(b'exp_name:\tsystem\nname:\t' + raw + b'\n')
    # The function opens only this one file.
    monkeypatch.setattr(
        'builtins.open', lambda _, **options: (tmp_path / 'fdinfo').open(**options)
    )
    info = abi.fdinfo(3)
    assert (info['exp_name'], info['name']) == ('system', name)
