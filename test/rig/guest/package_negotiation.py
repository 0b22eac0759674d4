"""Negotiated buffers that a real device imports on trial, before the first frame."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.heaps import open_heap
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.negotiation.session import BufferSession, Consumer, Outcome, Verdict
from zc_perception.negotiation.settings import Allocation, AllocationRequest, Buffers, BufferSettings, Undo
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.pixel.fourcc import NV12, fourcc_code
from zc_perception.pixel.modifier import LINEAR

from .harness import equal, eventually
from .kernel_api import bufinfo, live, parameters
from .package_kit import accelerator, crcs, device_crcs
from .package_memory_kit import HEAPS, check, check_each, level_crcs, maps_lines, publish

SIZE = (336, 240)
NPU = '0000:01:00.0'


class Agreement:
    """A camera that allocates 3 slots of a real heap, and what becomes of those who want them."""

    def __init__(self, heap: str, *stand_ins: BufferConstraints, **camera: object) -> None:
        own = BufferConstraints('camera', formats=((NV12, LINEAR),), heaps=(heap,), cpu_access=CpuAccess.WRITE, **camera)  # type: ignore[arg-type]
        self.session = BufferSession(own, SIZE, wanted_slots=3, stand_ins=stand_ins)
        self.made: list[DmaBuf] = []
        self.slots: tuple[Buffers, ...] = ()

    def allocate(self, *consumers: Consumer) -> BufferSettings:
        """Agree with these."""
        return self.session.allocate(consumers, self._allocate)

    def _allocate(self, request: AllocationRequest) -> Allocation:
        assert request.heap is not None
        heap, _ = open_heap(request.heap.name)
        layout = request.layout()
        sizes = [layout.buffer_size(index) for index in range(layout.num_buffers)]
        self.slots = tuple(tuple(heap.allocate(size) for size in sizes) for _ in range(request.slots))
        heap.close()
        self.made = [buffer for slot in self.slots for buffer in slot]
        return Allocation(layout, self.slots)

    def outcome(self, consumer: Consumer) -> Outcome:
        """What became of it."""
        return self.session.outcomes()[consumer.constraints.participant]

    def inodes(self) -> set[int]:
        """Of all that was allocated."""
        return {buffer.identity.inode for buffer in self.made}

    def attached(self) -> list[list[str]]:
        """Which devices the kernel lists, buffer by buffer."""
        found = bufinfo()
        return [found[buffer.identity.inode].attached for buffer in self.made]

    def close(self) -> None:
        """End the buffers."""
        for buffer in self.made:
            buffer.close()


@contextmanager
def agreement(heap: str, *stand_ins: BufferConstraints, **camera: object) -> Iterator[Agreement]:
    """See :class:`Agreement`. Nothing is allocated."""
    made = Agreement(heap, *stand_ins, **camera)
    try:
        yield made
    finally:
        made.close()


def _importer(npu: AxlAccelerator, constraints: BufferConstraints | None = None) -> Consumer:
    """A consumer with that card."""
    return Consumer(constraints or npu.constraints(), lambda settings, buffers: npu.trial_import(settings.layout, buffers))


def _blind(participant: str) -> BufferConstraints:
    """One who promises to take anything, and learns only from the import that it can't."""
    return BufferConstraints(participant, slots=1)


@check_each(*(f'{heap}, {placement.value}' for heap in HEAPS for placement in Placement))
def every_buffer_is_imported_before_the_first_frame_and_never_again(variant: str) -> None:
    heap, _, placement = variant.partition(', ')
    with accelerator() as npu, agreement(heap, placement=Placement(placement)) as made:
        settings = made.allocate(_importer(npu))
        equal((settings.slots, settings.layout.num_buffers), (3, 2 if 'each' in placement else 1), 'slots, buffers of each')
        equal(made.attached(), [[NPU]] * len(made.made), 'who is attached to each buffer')
        equal((npu.imports, live()['imports']), (3, 3), 'imports here and in the driver')
        equal([maps_lines(inode) for inode in made.inodes()], [[]] * len(made.made), 'mappings after the trial')
        supply = iter(made.slots)
        # The pool closes duplicates of its own: these buffers are the agreement's to end.
        pool = BufferPool(settings.layout, lambda: tuple(DmaBuf.from_fd(b.dup(), writable=True) for b in next(supply)), 3, name='camera')
        for turn in range(9):
            frame: Frame = publish(pool, sequence=turn, level=100 + turn)
            equal((device_crcs(npu, frame), crcs(frame)), (level_crcs(100 + turn, settings.layout),) * 2, 'pixels')
            frame.release()
        equal(npu.imports, 3, 'imports after 9 frames')
        pool.close()


@check_each(*HEAPS)
def without_a_cache_a_trial_leaves_nothing_attached(heap: str) -> None:
    with accelerator(import_cache=False) as npu, agreement(heap) as made:
        made.allocate(_importer(npu))
        equal((npu.trial_imports, npu.imports, live()['imports']), (3, 0, 0), 'trial imports, imports, imports that are left')
        equal(made.attached(), [[]] * 3, 'who is attached to each buffer')


@check
def a_heap_that_the_device_can_not_use_is_refused_before_any_import() -> None:
    with accelerator() as npu, agreement('memfd') as made:
        consumer = _importer(npu)
        made.allocate(consumer)
        outcome = made.outcome(consumer)
        assert outcome.verdict is Verdict.REFUSED and "can't use buffers of heap 'memfd'" in outcome.reason, outcome
        equal((len(made.slots), npu.imports), (3, 0), 'slots of the camera, imports')


@check_each(*HEAPS)
def imports_that_were_kept_are_given_back_when_a_later_slot_fails(heap: str) -> None:
    with accelerator() as npu, agreement(heap) as made:
        tried: list[Buffers] = []

        def trial(settings: BufferSettings, buffers: Buffers) -> Undo | None:
            tried.append(buffers)
            if len(tried) == 3:
                raise OSError('broken')
            return npu.trial_import(settings.layout, buffers)

        consumer = Consumer(npu.constraints(), trial)
        made.allocate(consumer)
        equal(str(made.outcome(consumer)), 'fell back: trial import of slot 2 of 3 failed: broken', 'outcome')
        equal((npu.imports, len(npu._cache), live()['imports']), (2, 0, 0), 'imports, cached ones, those that are left')  # type: ignore[arg-type]


@check
def one_whose_import_fails_falls_back_and_the_others_go_on() -> None:
    with accelerator() as npu, agreement('memfd') as made:
        blind, reader = _importer(npu, _blind('npu')), Consumer(_blind('reader'))
        made.allocate(blind, reader)
        equal(made.outcome(reader).verdict, Verdict.ACCEPTED, 'the reader')
        outcome = made.outcome(blind)
        assert outcome.verdict is Verdict.FELL_BACK and 'slot 0 of 3' in outcome.reason and 'EINVAL' in outcome.reason, outcome
        assert made.session.objection(blind) and not made.session.objection(reader)
        equal((len(npu._cache), live()['imports']), (0, 0), 'imports')  # type: ignore[arg-type]


@check_each(*HEAPS)
def a_layout_that_only_the_driver_knows_to_refuse_shows_in_the_trial(heap: str) -> None:
    """An older driver says nothing of strides: the constraints fit, the import doesn't."""
    with parameters(abi_level=1), accelerator() as npu:
        consumer = _importer(npu)
        with agreement(heap, BufferConstraints('wide', stride_align=512)) as made:
            made.allocate(consumer)
            outcome = made.outcome(consumer)
            assert outcome.verdict is Verdict.FELL_BACK and 'only tight LINEAR' in outcome.reason, outcome
        with agreement(heap) as made:
            made.allocate(consumer)
            equal((made.outcome(consumer).verdict, made.attached()), (Verdict.ACCEPTED, [[NPU]] * 3), 'of tight buffers')


@check_each(*HEAPS)
def a_late_joiner_imports_what_is_there(heap: str) -> None:
    with accelerator() as npu, agreement(heap, slots=1) as made:
        made.allocate(Consumer(_blind('reader')))
        equal(made.attached(), [[]] * 3, 'who is attached before')
        equal(made.session.join(_importer(npu, replace(npu.constraints(), slots=1))), Outcome(Verdict.ACCEPTED), 'the joiner')
        equal(made.attached(), [[NPU]] * 3, 'who is attached afterwards')
        outcome = made.session.join(Consumer(BufferConstraints('stranger', formats=((fourcc_code('YUYV'), LINEAR),))))
        assert outcome.verdict is Verdict.REFUSED and 'YUYV' in outcome.reason, outcome
        equal(made.outcome(_importer(npu)).verdict, Verdict.ACCEPTED, 'the one before')


@check_each(*HEAPS)
def buffers_of_an_earlier_agreement_go_when_they_have_ended(heap: str) -> None:
    """A camera that is opened again agrees anew."""
    with accelerator() as npu, agreement(heap) as made:
        with agreement(heap) as earlier:
            earlier.allocate(_importer(npu))
        made.allocate(_importer(npu))
        eventually(lambda: not earlier.inodes() & set(bufinfo()), 'the old buffers go')
        equal((npu.imports, live()['imports'], made.attached()), (6, 3, [[NPU]] * 3), 'all imports, those that are left, who is attached')
