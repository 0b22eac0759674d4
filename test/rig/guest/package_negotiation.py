"""Negotiated buffers that a real device imports on trial, before the first frame."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from zc_perception.errors import AcceleratorError, NegotiationError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.heaps import open_heap
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.collection import BufferCollection
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.negotiation.references import ReferenceKind
from zc_perception.negotiation.roster import Verdict
from zc_perception.negotiation.settings import Allocation, AllocationRequest
from zc_perception.negotiation.token import Participant
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.pixel.fourcc import NV12, fourcc_code
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR

from .harness import equal, eventually
from .kernel_api import bufinfo, live, parameters
from .package_kit import accelerator, crcs, device_crcs, refused
from .package_memory_kit import HEAPS, check, check_each, level_crcs, maps_lines, publish

SIZE = (336, 240)
NPU = '0000:01:00.0'
SOON_S = 10.0


@dataclass
class Session:
    """A camera that allocates from a real heap, and those who want its buffers."""

    heap: str
    collection: BufferCollection
    made: list[DmaBuf] = field(default_factory=list)
    released: int = 0
    participants: list[Participant] = field(default_factory=list)

    def allocate(self, request: AllocationRequest) -> Allocation:
        """As the collection asks for it."""
        heap, _ = open_heap(self.heap)
        slots = tuple(tuple(heap.allocate(size) for size in request.buffer_sizes()) for _ in range(request.slots))
        heap.close()
        own = [buffer for slot in slots for buffer in slot]
        self.made += own

        def release() -> None:
            self.released += 1
            for buffer in own:
                buffer.close()

        return Allocation(request.layout(), slots, release)

    def inodes(self) -> set[int]:
        """Of all that was ever allocated."""
        return {buffer.identity.inode for buffer in self.made}

    def attached(self) -> list[list[str]]:
        """Which devices the kernel lists, buffer by buffer."""
        found = bufinfo()
        return [found[buffer.identity.inode].attached for buffer in self.made]


@contextmanager
def session(heap: str, *consumers: tuple[BufferConstraints, AxlAccelerator | _Broken | None, bool], **camera: object) -> Iterator[Session]:
    """A camera with 3 slots of *heap*, and consumers: constraints, who imports on trial, whether it is required. Nothing is allocated."""
    made = Session(heap, BufferCollection('camera', SIZE, heaps=[heap], wanted_slots=3))
    own = BufferConstraints('camera', formats=((NV12, LINEAR),), heaps=(heap,), cpu_access=CpuAccess.WRITE, **camera)  # type: ignore[arg-type]
    first = made.collection.first_token()
    tokens = [first.duplicate(constraints.participant) for constraints, _, _ in consumers]
    for token, (constraints, npu, required) in zip([first, *tokens], [(own, None, True), *consumers], strict=True):
        trial = None if npu is None else (lambda settings, buffers, npu=npu: npu.trial_import(settings.layout, buffers))
        made.participants.append(token.bind(trial_import=trial, required=required))
        made.participants[-1].set_constraints(constraints)
    try:
        yield made
    finally:
        for participant in made.participants:
            participant.close()
        made.collection.close()
        made.participants.clear()


def _verdicts(made: Session) -> dict[str, Verdict]:
    return {name: outcome.verdict for name, outcome in made.collection.outcomes().items()}


def _blind(participant: str) -> BufferConstraints:
    """One who promises to take anything, and learns only from the import that it can't."""
    return BufferConstraints(participant, slots=1)


@check_each(*(f'{heap}, {placement.value}' for heap in HEAPS for placement in Placement))
def every_buffer_is_imported_before_the_first_frame_and_never_again(variant: str) -> None:
    heap, _, placement = variant.partition(', ')
    with accelerator() as npu, session(heap, (npu.constraints(), npu, True), placement=Placement(placement)) as made:
        settings = made.collection.allocate(made.allocate, SOON_S)
        equal((settings.slots, settings.layout.num_buffers), (3, 2 if 'each' in placement else 1), 'slots, buffers of each')
        equal(made.attached(), [[NPU]] * len(made.made), 'who is attached to each buffer')
        equal((npu.imports, live()['imports']), (3, 3), 'imports here and in the driver')
        equal([maps_lines(inode) for inode in made.inodes()], [[]] * len(made.made), 'mappings after the trial')
        _, slots = made.participants[0].wait(SOON_S)
        supply = iter(slots)
        # The pool closes duplicates of its own: the collection's buffers are the collection's to end.
        pool = BufferPool(settings.layout, lambda: tuple(DmaBuf.from_fd(b.dup(), writable=True) for b in next(supply)), 3, name='camera')
        for turn in range(9):
            frame: Frame = publish(pool, sequence=turn, level=100 + turn)
            equal((device_crcs(npu, frame), crcs(frame)), (level_crcs(100 + turn, settings.layout),) * 2, 'pixels')
            frame.release()
        equal(npu.imports, 3, 'imports after 9 frames')
        pool.close()


@check_each(*HEAPS)
def without_a_cache_a_trial_leaves_nothing_attached(heap: str) -> None:
    with accelerator(import_cache=False) as npu, session(heap, (npu.constraints(), npu, True)) as made:
        made.collection.allocate(made.allocate, SOON_S)
        equal((npu.trial_imports, npu.imports, live()['imports']), (3, 0, 0), 'trial imports, imports, imports that are left')
        equal(made.attached(), [[]] * 3, 'who is attached to each buffer')


@check
def a_heap_that_the_device_can_not_use_is_refused_before_anything_is_allocated() -> None:
    with accelerator() as npu, session('memfd', (npu.constraints(), npu, True)) as made:
        with refused(NegotiationError, "can't use buffers of heap 'memfd'", npu.constraints().participant):
            made.collection.allocate(made.allocate, SOON_S)
        equal((made.made, npu.imports), ([], 0), 'what was allocated, imports')


@check
def a_required_participant_whose_import_fails_fails_the_collection() -> None:
    with accelerator() as npu, session('memfd', (_blind('reader'), None, False), (_blind('npu'), npu, True)) as made:
        with refused(NegotiationError, 'npu', 'trial import of slot 0 of 3 failed', 'EINVAL'):
            made.collection.allocate(made.allocate, SOON_S)
        equal((made.released, len(npu._cache), live()['imports']), (1, 0, 0), 'releases, cached imports, imports')  # type: ignore[arg-type]
        with refused(NegotiationError):
            made.participants[1].wait(SOON_S)


class _Broken:
    """One that can't import anything."""

    def trial_import(self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]) -> None:
        raise AcceleratorError('broken')


@check_each(*HEAPS)
def imports_that_were_kept_are_given_back_when_the_collection_fails(heap: str) -> None:
    with accelerator() as npu, session(heap, (npu.constraints(), npu, True), (_blind('last'), _Broken(), True)) as made:
        with refused(NegotiationError, 'last', 'broken'):
            made.collection.allocate(made.allocate, SOON_S)
        equal((npu.imports, made.released), (3, 1), 'imports of the first one, releases')
        npu.tidy()
        equal((len(npu._cache), live()['imports']), (0, 0), 'imports that are left')  # type: ignore[arg-type]
        eventually(lambda: not made.inodes() & set(bufinfo()), 'the buffers go')


@check
def one_whose_import_fails_falls_back_and_the_others_go_on() -> None:
    with accelerator() as npu, session('memfd', (_blind('reader'), None, False), (_blind('npu'), npu, False)) as made:
        made.collection.allocate(made.allocate, SOON_S)
        wanted = {'camera': Verdict.ACCEPTED, 'reader': Verdict.ACCEPTED, 'npu': Verdict.FELL_BACK}
        equal(_verdicts(made), wanted, 'verdicts')
        reason = made.collection.outcomes()['npu'].reason
        assert 'slot 0 of 3' in reason and 'EINVAL' in reason, reason
        _, buffers = made.participants[1].wait(SOON_S)
        equal(len(buffers), 3, 'slots of the reader')
        equal((len(npu._cache), live()['imports']), (0, 0), 'imports')  # type: ignore[arg-type]


@check_each(*HEAPS)
def a_format_that_only_the_driver_knows_to_refuse_shows_in_the_trial(heap: str) -> None:
    """An older driver says nothing of strides: the constraints fit, the import doesn't."""
    with parameters(abi_level=1), accelerator() as npu:
        constraints = replace(npu.constraints(), stride_align=1)
        with session(heap, (constraints, npu, False), (_blind('reader'), None, False), stride_align=512) as made:
            made.collection.allocate(made.allocate, SOON_S)
            outcome = made.collection.outcomes()[constraints.participant]
            assert outcome.verdict is Verdict.FELL_BACK and 'only tight LINEAR' in outcome.reason, outcome
            equal(_verdicts(made)['reader'], Verdict.ACCEPTED, 'the reader')
        with session(heap, (constraints, npu, True)) as made:
            made.collection.allocate(made.allocate, SOON_S)
            equal(made.attached(), [[NPU]] * 3, 'who is attached to each tight buffer')


@check_each(*HEAPS)
def a_late_joiner_imports_what_is_there(heap: str) -> None:
    with accelerator() as npu, session(heap, (_blind('reader'), None, False)) as made:
        made.collection.allocate(made.allocate, SOON_S)
        equal(made.attached(), [[]] * 3, 'who is attached before')
        token = made.collection.attach_token('npu')
        late = token.bind(trial_import=lambda settings, buffers: npu.trial_import(settings.layout, buffers))
        late.set_constraints(npu.constraints())
        late.wait(SOON_S)
        equal(made.attached(), [[NPU]] * 3, 'who is attached afterwards')
        stranger = made.collection.attach_token('stranger').bind()
        with refused(NegotiationError, 'stranger', 'YUYV'):
            stranger.set_constraints(BufferConstraints('stranger', formats=((fourcc_code('YUYV'), LINEAR),)))
        equal(_verdicts(made)['npu'], Verdict.ACCEPTED, 'the one before')
        late.close()


@check_each(*HEAPS)
def buffers_of_an_earlier_negotiation_live_until_their_last_reference(heap: str) -> None:
    with accelerator() as npu, session(heap, (npu.constraints(), npu, True)) as made:
        made.collection.allocate(made.allocate, SOON_S)
        old = made.inodes()
        held = made.participants[1].hold(ReferenceKind.IMPORT)
        made.collection.renegotiate(made.allocate)
        equal((made.released, old <= set(bufinfo()), len(made.inodes() - old)), (0, True, 3), 'releases, old ones there, new ones')
        held.close()
        equal(made.released, 1, 'releases after the last reference')
        assert old <= set(bufinfo()), 'the import cache should still hold the old ones here'
        npu.tidy()
        eventually(lambda: not old & set(bufinfo()), 'the old buffers go')
        equal(live()['imports'], 3, 'imports of the new ones')
