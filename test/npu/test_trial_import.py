"""Trial imports before the first frame: kept by the cache, or given back at once and counted apart. With a device that only counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from zc_perception.errors import AcceleratorError
from zc_perception.frame import Frame
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import Placement
from zc_perception.npu.axl import accelerator as axl
from zc_perception.npu.axl.device import AxlCapabilities
from zc_perception.npu.cpu import CpuAccelerator
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import INVALID, LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')


class CountingDevice:
    """Stands in for :class:`AxlDevice`: handles are numbers."""

    level = 2
    formats: tuple[tuple[int, int], ...] = ((NV12, LINEAR),)

    def __init__(self, path: str, numbers: Any, tree: Any) -> None:
        self.path = path
        self.held: set[int] = set()
        self.made = 0
        self.refuse: Exception | None = None
        self.modifiers: list[int] = []

    def query(self) -> AxlCapabilities:
        return AxlCapabilities(self.level, 4, 64, 64, self.formats)

    def import_planes(self, layout: Any, buffers: Any, flags: Any) -> int:
        if self.refuse is not None:
            raise self.refuse
        self.made += 1
        self.modifiers.append(layout.modifier)
        self.held.add(self.made)
        return self.made

    def release_import(self, handle: int) -> None:
        self.held.remove(handle)

    def close(self) -> None:
        pass


@pytest.fixture
def pool(make_pool: Callable[..., BufferPool]) -> BufferPool:
    return make_pool()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[axl.AxlAccelerator, CountingDevice]]]:
    monkeypatch.setattr(axl, 'AxlDevice', CountingDevice)
    made: list[axl.AxlAccelerator] = []

    def make(**options: Any) -> tuple[axl.AxlAccelerator, CountingDevice]:
        accelerator = axl.AxlAccelerator('/dev/metis-0:1:0', **options)
        made.append(accelerator)
        return accelerator, accelerator._device

    yield make
    for accelerator in made:
        accelerator.close()


def frames_through(accelerator: axl.AxlAccelerator, pool: BufferPool, make_frame: Callable[..., Frame], count: int) -> None:
    for sequence in range(count):
        with make_frame(pool, sequence=sequence) as frame:
            accelerator.release(accelerator.import_frame(frame))


@pytest.mark.parametrize('cached', [True, False])
def test_trial_imports_don_t_falsify_the_count_of_imports(
    cached: bool, opened: Any, pool: BufferPool, make_frame: Callable[..., Frame]
) -> None:
    accelerator, device = opened(import_cache=cached)
    slots = pool.slots
    for slot in slots:
        accelerator.trial_import(slot.layout, slot.buffers)
    assert device.made == len(slots)
    if cached:
        assert (accelerator.imports, accelerator.trial_imports, len(device.held)) == (len(slots), 0, len(slots))
    else:
        assert (accelerator.imports, accelerator.trial_imports, device.held) == (0, len(slots), set())
    frames_through(accelerator, pool, make_frame, 7)
    # The verification's I3: as many as distinct buffers with the cache, as frames without it.
    assert accelerator.imports == (len(slots) if cached else 7)
    assert accelerator.imports + accelerator.trial_imports == device.made


@pytest.mark.parametrize('cached', [True, False])
def test_what_a_trial_keeps_can_be_given_back(cached: bool, opened: Any, pool: BufferPool) -> None:
    accelerator, device = opened(import_cache=cached)
    undos = [accelerator.trial_import(slot.layout, slot.buffers) for slot in pool.slots]
    assert all((undo is not None) == cached for undo in undos)
    for undo in filter(None, undos):
        undo()
    assert device.held == set() and device.made == len(pool.slots)


@pytest.mark.parametrize('cached', [True, False])
def test_a_trial_that_fails_raises_and_leaves_nothing(cached: bool, opened: Any, pool: BufferPool) -> None:
    accelerator, device = opened(import_cache=cached)
    device.refuse = AcceleratorError('EINVAL')
    with pytest.raises(AcceleratorError, match='EINVAL'):
        accelerator.trial_import(pool.slots[0].layout, pool.slots[0].buffers)
    assert not device.held and accelerator.trial_imports == 0


@pytest.mark.parametrize('modifier', [INVALID, 0x0300000000000010])
def test_a_layout_that_the_driver_lists_is_imported_as_what_it_is(
    modifier: int, opened: Any, make_frame: Callable[..., Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingDevice, 'formats', ((NV12, LINEAR), (NV12, modifier)))
    accelerator, device = opened()
    assert accelerator.constraints().accepts_format((NV12, modifier))
    heap, layout = SealedMemfd(), replace(compute_layout(NV12, 64, 48), modifier=modifier)
    pool = BufferPool(layout, lambda: (heap.allocate(layout.buffer_size(0)),), 3, name='camera')
    for slot in pool.slots:
        accelerator.trial_import(slot.layout, slot.buffers)
    frames_through(accelerator, pool, make_frame, 4)
    assert device.modifiers == [modifier] * len(pool.slots), 'imported once, by the layout that it has'
    pool.close()


def test_what_the_driver_says_is_in_the_constraints(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    constraints = opened()[0].constraints()
    assert constraints.participant == 'axl /dev/metis-0:1:0' and constraints.devices == ('/dev/metis-0:1:0',)
    assert (constraints.stride_align, constraints.formats, constraints.placement) == (64, ((NV12, LINEAR),), None)
    assert not constraints.uses_cpu and not constraints.accepts_heap('memfd')
    assert constraints.memory_note.startswith('whether the card is behind an IOMMU is not known') and not constraints.contiguous
    monkeypatch.setattr(CountingDevice, 'level', 1)
    assert opened()[0].constraints().placement is Placement.ONE_BUFFER, 'IMPORT_FD takes one descriptor'


def test_the_cpu_imports_nothing_and_maps_nothing_before_the_first_frame(pool: BufferPool) -> None:
    accelerator = CpuAccelerator(CopyLedger())
    for slot in pool.slots:
        accelerator.trial_import(slot.layout, slot.buffers)
    assert not any(buffer.mapped for slot in pool.slots for buffer in slot.buffers)
    assert (accelerator.imports, accelerator.trial_imports) == (0, 0) and accelerator.constraints().uses_cpu
    accelerator.close()
