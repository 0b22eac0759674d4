"""Trial imports before the first frame: kept by the cache, or given back at once and counted apart. With a device that only counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from npu.card_kit import Opened
from npu.scheduler_kit import MakeFrame, MakePool

from zc_perception.errors import AcceleratorError
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import Placement
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.npu.cpu import CpuAccelerator
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import INVALID, LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakeOpened = Callable[..., Opened]


@pytest.fixture
def pool(make_pool: MakePool) -> BufferPool:
    return make_pool()


def frames_through(accelerator: AxlAccelerator, pool: BufferPool, make_frame: MakeFrame, count: int) -> None:
    for sequence in range(count):
        with make_frame(pool, sequence=sequence) as frame:
            accelerator.release(accelerator.import_frame(frame))


@pytest.mark.parametrize('cached', [True, False])
def test_trial_imports_don_t_falsify_the_count_of_imports(
    cached: bool, make_opened: MakeOpened, pool: BufferPool, make_frame: MakeFrame
) -> None:
    accelerator, card = make_opened(import_cache=cached)
    slots = pool.slots
    for slot in slots:
        accelerator.trial_import(slot.layout, slot.buffers)
    assert card.made == len(slots)
    if cached:
        assert (accelerator.imports, accelerator.trial_imports, len(card.held)) == (len(slots), 0, len(slots))
    else:
        assert (accelerator.imports, accelerator.trial_imports, card.held) == (0, len(slots), set())
    frames_through(accelerator, pool, make_frame, 7)
    # The verification's I3: as many as distinct buffers with the cache, as frames without it.
    assert accelerator.imports == (len(slots) if cached else 7)
    assert accelerator.imports + accelerator.trial_imports == card.made


@pytest.mark.parametrize('cached', [True, False])
def test_what_a_trial_keeps_can_be_given_back(cached: bool, make_opened: MakeOpened, pool: BufferPool) -> None:
    accelerator, card = make_opened(import_cache=cached)
    undos = [accelerator.trial_import(slot.layout, slot.buffers) for slot in pool.slots]
    assert all((undo is not None) == cached for undo in undos)
    for undo in filter(None, undos):
        undo()
    assert card.held == set() and card.made == len(pool.slots)


@pytest.mark.parametrize('cached', [True, False])
def test_a_trial_that_fails_raises_and_leaves_nothing(cached: bool, make_opened: MakeOpened, pool: BufferPool) -> None:
    accelerator, card = make_opened(import_cache=cached)
    card.import_error = AcceleratorError('EINVAL')
    with pytest.raises(AcceleratorError, match='EINVAL'):
        accelerator.trial_import(pool.slots[0].layout, pool.slots[0].buffers)
    assert not card.held and accelerator.trial_imports == 0


@pytest.mark.parametrize('modifier', [INVALID, 0x0300000000000010])
def test_a_layout_that_the_driver_lists_is_imported_as_what_it_is(modifier: int, make_opened: MakeOpened, make_frame: MakeFrame) -> None:
    accelerator, card = make_opened(formats=((NV12, LINEAR), (NV12, modifier)))
    assert accelerator.constraints().accepts_format((NV12, modifier))
    heap, layout = SealedMemfd(), replace(compute_layout(NV12, 64, 48), modifier=modifier)
    pool = BufferPool(layout, lambda: (heap.allocate(layout.buffer_size(0)),), 3, name='camera')
    for slot in pool.slots:
        accelerator.trial_import(slot.layout, slot.buffers)
    frames_through(accelerator, pool, make_frame, 4)
    assert card.modifiers == [modifier] * len(pool.slots), 'imported once, by the layout that it has'
    pool.close()


def test_what_the_driver_says_is_in_the_constraints(make_opened: MakeOpened) -> None:
    constraints = make_opened()[0].constraints()
    assert constraints.participant == 'axl /dev/metis-0:1:0' and constraints.devices == ('/dev/metis-0:1:0',)
    assert (constraints.stride_align, constraints.formats, constraints.placement) == (64, ((NV12, LINEAR),), None)
    assert not constraints.uses_cpu and not constraints.accepts_heap('memfd')
    assert constraints.memory_note.startswith('whether the card is behind an IOMMU is not known') and not constraints.contiguous
    assert make_opened(level=1)[0].constraints().placement is Placement.ONE_BUFFER, 'IMPORT_FD takes one descriptor'


def test_the_cpu_imports_nothing_and_maps_nothing_before_the_first_frame(pool: BufferPool) -> None:
    accelerator = CpuAccelerator(CopyLedger())
    for slot in pool.slots:
        accelerator.trial_import(slot.layout, slot.buffers)
    assert not any(buffer.mapped for slot in pool.slots for buffer in slot.buffers)
    assert (accelerator.imports, accelerator.trial_imports) == (0, 0) and accelerator.constraints().uses_cpu
    accelerator.close()
