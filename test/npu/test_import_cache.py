"""The import cache: keyed by what a buffer is, not by its number; owns what it remembers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.npu.import_cache import ImportCache, ImportsInUse, import_key
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
    assert cache.misses == 3
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
    assert len(cache) == 0 and len(os.listdir('/proc/self/fd')) <= before
    assert _get(cache, device, buffers[0]) == 1
    cache.clear()


def _many(count: int) -> list[DmaBuf]:
    return [SealedMemfd().allocate(LAYOUT.buffer_size(0)) for _ in range(count)]


def test_an_import_that_a_job_reads_is_neither_evicted_nor_released_under_it() -> None:
    device = Device()
    jobs = ImportsInUse(device.release)
    cache = ImportCache(jobs.release, limit=2, held=jobs.held)
    buffers = _many(4)
    for buffer in buffers[:3]:
        jobs.hold(_get(cache, device, buffer))
    assert (device.held, len(cache)) == ([1, 2, 3], 3), 'over its limit rather than under a job'
    assert _get(cache, device, buffers[3]) == 4 and device.held == [1, 2, 3, 4]
    cache.forget(buffers[0].identity)
    buffers[1].close()
    cache.forget_ended()
    assert (device.held, len(cache), jobs.waiting) == ([1, 2, 3, 4], 2, 2)
    assert _get(cache, device, buffers[0]) == 5, 'a new import for new frames'
    for handle in (1, 2, 3):
        jobs.let_go(handle)
    assert 1 not in device.held and 2 not in device.held and jobs.waiting == 0
    cache.clear()
    assert device.held == []
    for buffer in buffers:
        buffer.close()


def test_an_import_with_two_jobs_ends_with_the_second() -> None:
    device = Device()
    jobs = ImportsInUse(device.release)
    handle = device.make()
    jobs.hold(handle)
    jobs.hold(handle)
    jobs.release(handle)
    jobs.let_go(handle)
    assert device.held == [handle] and jobs.held(handle)
    jobs.let_go(handle)
    assert device.held == [] and not jobs.held(handle)


@pytest.mark.parametrize(('error', 'counted'), [(AcceleratorError('EIO'), 1), (DeviceLostError('ENODEV'), 0)])
def test_a_release_that_the_device_refuses_is_counted_unless_it_is_gone(error: Exception, counted: int) -> None:
    def refuse(handle: int) -> None:
        raise error

    jobs = ImportsInUse(refuse)
    jobs.release(1)
    assert (jobs.release_errors, jobs.last_release_error) == (counted, 'EIO' if counted else '')


@settings(max_examples=60)
@given(st.data())
def test_whatever_happens_no_handle_is_lost_and_none_is_used_after_its_release(data: st.DataObject) -> None:
    """A random run of frames, jobs, ends of buffers and forgetting, against what a device would say."""
    device = Device()
    jobs = ImportsInUse(device.release)
    cache = ImportCache(jobs.release, limit=data.draw(st.integers(1, 3)), held=jobs.held)
    buffers = _many(5)
    running: list[int] = []
    most_held = 0
    for step in data.draw(st.lists(st.tuples(st.sampled_from(['frame', 'end', 'forget', 'close']), st.integers(0, 4)), max_size=40)):
        what, index = step
        if what == 'frame':
            handle = _get(cache, device, buffers[index])
            assert handle in device.held, 'a handle that was released'
            jobs.hold(handle)
            running.append(handle)
        elif what == 'end' and running:
            jobs.let_go(running.pop(index % len(running)))
        elif what == 'forget':
            cache.forget(buffers[index].identity)
        elif what == 'close':
            buffers[index].close()
            buffers[index] = _many(1)[0]
        assert set(running) <= set(device.held), 'a job reads what was released'
        most_held = max(most_held, len(set(running)))
        assert len(cache) <= max(cache.limit, most_held), 'room is made at the next import'
    for handle in running:
        jobs.let_go(handle)
    cache.clear()
    assert device.held == [] and jobs.waiting == 0
    for buffer in buffers:
        buffer.close()
