"""The import cache: keyed by what a buffer is, not by its number; owns what it remembers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.npu.import_cache import ImportCache, import_key
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import PlaneLayout, compute_layout

pytestmark = pytest.mark.usefixtures('no_fd_leak')
LAYOUT = compute_layout(NV12, 64, 48)


class Device:
    """Gives out handles and knows which it still holds."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.made = 0

    def make(self) -> int:
        self.made += 1
        self.held.append(self.made)
        return self.made

    def release(self, handle: int) -> None:
        self.held.remove(handle)


@pytest.fixture
def buffers() -> Iterator[list[DmaBuf]]:
    made = [SealedMemfd().allocate(LAYOUT.buffer_size(0)) for _ in range(3)]
    yield made
    for buffer in made:
        buffer.close()


def _get(cache: ImportCache, device: Device, buffer: DmaBuf, layout=LAYOUT, epoch: int = 1) -> int:
    return cache.get(import_key(epoch, 1, layout, [buffer]), [buffer], device.make)


def test_each_buffer_is_imported_once(buffers: list[DmaBuf]) -> None:
    device = Device()
    cache = ImportCache(device.release)
    handles = [[_get(cache, device, b) for b in buffers] for _ in range(4)]
    assert handles == [[1, 2, 3]] * 4
    assert (cache.misses, cache.hits) == (3, 9)
    cache.clear()
    assert device.held == []


def test_a_duplicate_of_the_descriptor_is_the_same_buffer(buffers: list[DmaBuf]) -> None:
    device = Device()
    cache = ImportCache(device.release)
    other = DmaBuf(buffers[0].dup(), buffers[0].kind, 'memfd')
    assert _get(cache, device, buffers[0]) == _get(cache, device, other) == 1
    other.close()
    cache.clear()


@pytest.mark.parametrize(
    'layout',
    [
        replace(LAYOUT, width=62),
        replace(LAYOUT, height=46),
        replace(LAYOUT, modifier=1 << 56 | 1),
        replace(LAYOUT, planes=(LAYOUT.planes[0], replace(LAYOUT.planes[1], offset=LAYOUT.planes[1].offset - 64))),
        replace(LAYOUT, planes=(PlaneLayout(0, 0, 32, 1024), LAYOUT.planes[1])),
    ],
)
def test_another_layout_of_the_same_buffer_is_another_import(buffers: list[DmaBuf], layout) -> None:
    device = Device()
    cache = ImportCache(device.release)
    assert _get(cache, device, buffers[0]) == 1
    assert _get(cache, device, buffers[0], layout) == 2
    assert _get(cache, device, buffers[0], epoch=2) == 3
    cache.clear()


def test_an_inode_that_is_a_key_cannot_be_given_to_another_buffer(buffers: list[DmaBuf]) -> None:
    """The entry's own descriptor keeps the object alive after its owner has closed it."""
    device = Device()
    cache = ImportCache(device.release)
    _get(cache, device, buffers[0])
    inode = buffers[0].identity.inode
    buffers.pop(0).close()
    fresh = [SealedMemfd().allocate(4096) for _ in range(50)]
    assert inode not in {b.identity.inode for b in fresh}
    for buffer in fresh:
        buffer.close()
    cache.clear()


def test_the_least_recently_used_import_goes_first(buffers: list[DmaBuf]) -> None:
    device = Device()
    cache = ImportCache(device.release, limit=2)
    _get(cache, device, buffers[0])
    _get(cache, device, buffers[1])
    _get(cache, device, buffers[0])
    _get(cache, device, buffers[2])
    assert sorted(device.held) == [1, 3] and len(cache) == 2
    cache.clear()


def test_a_buffer_that_has_ended_is_forgotten_with_all_its_layouts(buffers: list[DmaBuf]) -> None:
    device = Device()
    cache = ImportCache(device.release)
    _get(cache, device, buffers[0])
    _get(cache, device, buffers[0], replace(LAYOUT, width=62))
    _get(cache, device, buffers[1])
    cache.forget(buffers[0].identity)
    assert device.held == [3]
    cache.clear()


def test_a_failed_import_leaves_nothing(buffers: list[DmaBuf]) -> None:
    device = Device()
    cache = ImportCache(device.release)
    before = len(os.listdir('/proc/self/fd'))

    def refuse() -> int:
        raise OSError('no')

    with pytest.raises(OSError, match='no'):
        cache.get(import_key(1, 1, LAYOUT, [buffers[0]]), [buffers[0]], refuse)
    assert len(cache) == 0 and len(os.listdir('/proc/self/fd')) == before
    assert _get(cache, device, buffers[0]) == 1
    cache.clear()
