"""A C compiler says what the kernel's dma-buf, dma-heap, udmabuf and sync_file interfaces are; ours must be the same."""

from __future__ import annotations

import struct
import subprocess

import pytest

from zc_perception.memory import dmabuf, fence, heaps

INCLUDES = ('stddef.h', 'stdio.h', 'fcntl.h', 'linux/dma-buf.h', 'linux/dma-heap.h', 'linux/udmabuf.h', 'linux/sync_file.h')
NUMBERS = {
    'DMA_BUF_IOCTL_SYNC': dmabuf.DMA_BUF_IOCTL_SYNC,
    'DMA_BUF_SYNC_READ': int(dmabuf.CpuAccess.READ),
    'DMA_BUF_SYNC_WRITE': int(dmabuf.CpuAccess.WRITE),
    'DMA_BUF_SYNC_END': dmabuf._SYNC_END,
    'DMA_HEAP_IOCTL_ALLOC': heaps.DMA_HEAP_IOCTL_ALLOC,
    'UDMABUF_CREATE': heaps.UDMABUF_CREATE,
    'UDMABUF_FLAGS_CLOEXEC': heaps.UDMABUF_FLAGS_CLOEXEC,
    'F_ADD_SEALS': heaps.F_ADD_SEALS,
    'F_SEAL_SHRINK': heaps.F_SEAL_SHRINK,
    'F_SEAL_GROW': heaps.F_SEAL_GROW,
    'SYNC_IOC_FILE_INFO': fence.SYNC_IOC_FILE_INFO,
}
# struct: (our format, members in its order)
LAYOUTS = {
    'dma_buf_sync': ('<Q', ('flags',)),
    'dma_heap_allocation_data': ('<QIIQ', ('len', 'fd', 'fd_flags', 'heap_flags')),
    'udmabuf_create': ('<IIQQ', ('memfd', 'flags', 'offset', 'size')),
    'sync_file_info': (fence._FILE_INFO.format, ('name', 'status', 'flags', 'num_fences', 'pad', 'sync_fence_info')),
    'sync_fence_info': (fence._FENCE_INFO.format, ('obj_name', 'driver_name', 'status', 'flags', 'timestamp_ns')),
}


@pytest.fixture(scope='module')
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the compiler says, by expression."""
    expressions = [*NUMBERS]
    for name, (_, members) in LAYOUTS.items():
        expressions += [f'sizeof(struct {name})', *(f'offsetof(struct {name}, {member})' for member in members)]
    folder = tmp_path_factory.mktemp('abi')
    lines = [f'#include <{header}>' for header in INCLUDES]
    lines += ['int main(void) {', *(f'printf("%llu\\n", (unsigned long long)({e}));' for e in expressions), 'return 0; }']
    (folder / 'abi.c').write_text('#define _GNU_SOURCE\n' + '\n'.join(lines) + '\n')
    subprocess.run(['gcc', '-o', folder / 'abi', folder / 'abi.c'], check=True)
    values = subprocess.run([folder / 'abi'], check=True, capture_output=True, text=True).stdout.split()
    return dict(zip(expressions, map(int, values), strict=True))


@pytest.mark.parametrize('name', NUMBERS)
def test_numbers(name: str, compiled: dict[str, int]) -> None:
    assert NUMBERS[name] == compiled[name] & 0xFFFFFFFF


def _offsets(layout: str) -> list[int]:
    """Where each item of a struct format begins: formats of one item per member, strings included."""
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


@pytest.mark.parametrize('name', LAYOUTS)
def test_layouts(name: str, compiled: dict[str, int]) -> None:
    layout, members = LAYOUTS[name]
    assert struct.calcsize(layout) == compiled[f'sizeof(struct {name})']
    assert _offsets(layout) == [compiled[f'offsetof(struct {name}, {member})'] for member in members]
