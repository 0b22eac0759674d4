"""What an allocator may answer: it chooses from the list and pads; everything else fails, and nothing of it stays allocated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from negotiation.kit import SOON_S, TILED, X_TILED, XR24, Y_TILED, Producer, Session, who

from zc_perception.errors import NegotiationError
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.negotiation.constraints import Placement
from zc_perception.negotiation.roster import Verdict
from zc_perception.negotiation.settings import Allocation, AllocationRequest, BufferSettings
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import ImageLayout, PlaneLayout, compute_layout
from zc_perception.pixel.modifier import INVALID, LINEAR

pytestmark = pytest.mark.usefixtures('no_fd_leak')
Vary = Callable[[Allocation], Allocation]


def layout(**fields: Any) -> Vary:
    return lambda allocation: replace(allocation, layout=replace(allocation.layout, **fields))


def planes(*described: tuple[int, int, int, int]) -> Vary:
    return layout(planes=tuple(PlaneLayout(*plane) for plane in described))


def less(**_: Any) -> Vary:
    return lambda allocation: replace(allocation, buffers=allocation.buffers[:1])


def negotiated(vary: Vary, *participants: Any, size: tuple[int, int] = (64, 48)) -> tuple[Session, Callable[[], BufferSettings]]:
    session = Session(size)
    session.producer.vary = vary
    first, *others = participants
    session.participants[first.participant] = session.first.bind(first.participant)
    session.participants[first.participant].set_constraints(first)
    for constraints in others:
        session.join(constraints)
    return session, session.allocate


CAMERA = who('camera', 'NV12 linear', slots=2)


@pytest.mark.parametrize(
    ('vary', 'message'),
    [
        pytest.param(layout(fourcc=fourcc_code('NV21')), "asked for 'NV12', the allocator answered 'NV21'; it may not", id='format'),
        pytest.param(layout(width=62), 'asked for 64x48 pixels, the allocator answered 62x48', id='width'),
        pytest.param(layout(height=50), 'asked for 64x48 pixels, the allocator answered 64x50', id='height'),
        pytest.param(layout(modifier=TILED), 'the allocator chose modifier NVIDIA', id='modifier'),
        pytest.param(layout(modifier=INVALID), 'chose modifier INVALID, acceptable are LINEAR', id='INVALID without being asked'),
        pytest.param(planes((0, 0, 63, 64 * 48), (0, 64 * 48, 64, 64 * 24)), 'stride 63 is below the row of 64 bytes', id='stride'),
        pytest.param(planes((0, 0, 64, 64 * 48), (0, 0, 64, 64 * 24)), 'planes 1 and 0 overlap', id='overlap'),
        pytest.param(planes((0, 0, 64, 64 * 48), (0, 1 << 20, 64, 64 * 24)), 'ends at byte', id='outside of its buffer'),
        pytest.param(less(), 'the allocator gave 1 slots, participants need 2; hold fewer frames at a time', id='too few slots'),
    ],
)  # fmt: skip
def test_the_allocator_may_only_pad(vary: Vary, message: str) -> None:
    session, allocate = negotiated(vary, CAMERA)
    with pytest.raises(NegotiationError) as refused:
        allocate()
    assert message in str(refused.value)
    assert session.producer.released == [0], 'nothing of it stays'
    session.close()


def test_padding_is_welcome() -> None:
    """1000 pixels allocated as 1024, 1080 rows as 1088: the image stays what it is."""

    def padded(request: AllocationRequest) -> Allocation:
        wide = compute_layout(XR24, 1024, 1088)
        buffers = tuple((SealedMemfd().allocate(wide.buffer_size(0)),) for _ in range(request.slots))
        made.extend(buffer for (buffer,) in buffers)
        return Allocation(ImageLayout(1000, 1080, XR24, LINEAR, wide.planes), buffers)

    made: list[Any] = []
    session = Session((1000, 1080))
    camera = session.first.bind('camera')
    camera.set_constraints(who('camera', 'XR24 linear'))
    session.spare.close()
    settings = session.collection.allocate(padded, SOON_S)
    assert (settings.layout.width, settings.layout.height, settings.layout.planes[0].stride) == (1000, 1080, 4096)
    assert settings.sizes()[0] >= 4096 * 1088
    camera.close()
    session.close()
    for buffer in made:
        buffer.close()


def test_an_answer_that_breaks_a_constraint_names_whose() -> None:
    padded = planes((0, 0, 80, 80 * 48), (0, 80 * 48, 80, 80 * 24))
    big = who('encoder', required_max_size=(128, 96))
    session, allocate = negotiated(padded, CAMERA, who('npu', stride_align=64), big)
    expected = r'which does not suit npu: plane 0: stride 80 is not a multiple of its stride_align 64; plane 1: stride 80'
    with pytest.raises(NegotiationError, match=expected):
        allocate()
    session.close()
    session, allocate = negotiated(padded, CAMERA, who('gpu', stride_align=16), big)
    assert allocate().layout.planes[0].stride == 80
    session.close()


def test_buffers_must_have_the_promised_room() -> None:
    def small(allocation: Allocation) -> Allocation:
        made.append(SealedMemfd().allocate(64 * 48 * 3 // 2))
        return replace(allocation, buffers=((made[0],), *allocation.buffers[1:]))

    made: list[Any] = []
    session, allocate = negotiated(small, CAMERA, who('encoder', required_max_size=(128, 96)))
    with pytest.raises(NegotiationError, match='made buffer 0 8192 bytes large; 18432 are needed for the promised 128x96'):
        allocate()
    session.close()
    made[0].close()


def test_two_descriptors_of_one_buffer_are_one_memory() -> None:
    def twice(allocation: Allocation) -> Allocation:
        made.extend(DmaBuf.from_fd(buffers[0].dup(), writable=True) for buffers in allocation.buffers)
        return replace(allocation, buffers=tuple((b[0], copy) for b, copy in zip(allocation.buffers, made, strict=True)))

    made: list[DmaBuf] = []
    session, allocate = negotiated(twice, CAMERA, who('gpu', placement=Placement.BUFFER_PER_PLANE))
    with pytest.raises(NegotiationError, match='buffers 1 and 0, which are the same memory'):
        allocate()
    session.close()
    for buffer in made:
        buffer.close()


def test_more_slots_than_wanted_are_fine_fewer_only_if_nobody_needs_them() -> None:
    session = Session(wanted_slots=8)
    session.producer.vary = lambda allocation: replace(allocation, buffers=allocation.buffers[:3])
    session.camera(slots=2)
    assert session.allocate().slots == 3 and session.producer.requests[0].slots == 8
    session.late(who('npu', slots=1))
    session.close()


# The post-allocation query over the whole chain.


@pytest.mark.parametrize(
    ('producer', 'consumers', 'answer', 'modifier'),
    [
        pytest.param(who('gpu', 'XR24 y', 'XR24 x'), [who('kms', 'XR24 x', 'XR24 y')], X_TILED, X_TILED, id="the allocator's choice"),
        pytest.param(who('gbm', 'XR24 implicit'), [who('media', 'XR24 implicit')], INVALID, INVALID, id='all implicit'),
        pytest.param(who('gbm', 'XR24 implicit'), [who('media', 'XR24 implicit')], X_TILED, INVALID,
                     id='told, but a consumer knows no modifiers: stays implicit'),
        pytest.param(who('gbm', 'XR24 implicit', upgrade=True), [who('kms', 'XR24 x', 'XR24 linear')], X_TILED, X_TILED, id='upgraded'),
        pytest.param(who('gbm', 'XR24 implicit', upgrade=True), [who('cpu', cpu_access=CpuAccess.READ)], LINEAR, LINEAR,
                     id='upgraded to LINEAR for a CPU'),
        pytest.param(who('gbm', 'XR24 implicit', upgrade=True), [who('kms', 'XR24 implicit', 'XR24 x')], X_TILED, X_TILED,
                     id='upgraded because all can'),
        pytest.param(who('gbm', 'XR24 implicit', upgrade=True), [who('kms', 'XR24 implicit', 'XR24 x'), who('media', 'XR24 implicit')],
                     X_TILED, INVALID, id='one cannot: no upgrade'),
        pytest.param(who('gpu', 'XR24 x', 'XR24 implicit'), [who('kms', 'XR24 x', 'XR24 implicit')], INVALID, INVALID,
                     id='implicit from a longer list'),
    ],
)  # fmt: skip
def test_the_chain_is_what_the_query_says(producer: Any, consumers: list[Any], answer: int, modifier: int) -> None:
    session, allocate = negotiated(layout(modifier=answer), producer, *consumers)
    settings = allocate()
    assert settings.layout.modifier == modifier and settings.implicit == (modifier == INVALID)
    assert all(outcome.verdict is Verdict.ACCEPTED for name, outcome in session.collection.outcomes().items() if name != 'spare')
    assert session.collection.chain == (producer.participant, *(c.participant for c in consumers))
    session.close()


@pytest.mark.parametrize(
    ('producer', 'consumers', 'answer', 'message'),
    [
        pytest.param(who('gbm', 'XR24 implicit', upgrade=True), [who('kms', 'XR24 x')], INVALID,
                     'the implicit allocation turned out to be INVALID, but the consumers only take XR24 INTEL', id='does not tell'),
        pytest.param(who('gbm', 'XR24 implicit', upgrade=True), [who('kms', 'XR24 x')], Y_TILED,
                     'copy into a buffer that they can import', id='tells the wrong one'),
        pytest.param(who('gpu', 'XR24 x', 'XR24 y'), [who('kms', 'XR24 x')], Y_TILED, 'chose modifier INTEL', id='out of the list'),
        pytest.param(who('gpu', 'XR24 x'), [who('kms', 'XR24 x')], INVALID, 'chose modifier INVALID', id='INVALID was not acceptable'),
    ],
)  # fmt: skip
def test_a_query_that_nobody_can_use(producer: Any, consumers: list[Any], answer: int, message: str) -> None:
    session, allocate = negotiated(layout(modifier=answer), producer, *consumers)
    with pytest.raises(NegotiationError) as refused:
        allocate()
    assert message in str(refused.value) and session.producer.released == [0]
    session.close()


def test_a_late_joiner_of_an_upgraded_or_implicit_buffer() -> None:
    for answer, good, bad in ((X_TILED, 'XR24 x', 'XR24 implicit'), (INVALID, 'XR24 implicit', 'XR24 x')):
        consumers = [who('kms', 'XR24 x', 'XR24 implicit')]
        session, allocate = negotiated(layout(modifier=answer), who('gbm', 'XR24 implicit', upgrade=True), *consumers)
        allocate()
        session.late(who('good', good))
        with pytest.raises(NegotiationError, match='is not one of its formats'):
            session.late(who('bad', bad))
        session.close()


def test_vapostproc_s_pool_and_glupload() -> None:
    """The document's pipeline: a narrower answer at run time, glupload imports buffers that it did not make."""
    session = Session()
    imported: list[int] = []
    va = session.first.bind('vapostproc')
    session.participants['vapostproc'] = va
    va.set_constraints(who('vapostproc', 'NV12 x', 'NV12 linear', 'YU12 linear', 'YV12 linear', 'XR24 y', slots=2))
    upload = session.join(who('glupload'), trial_import=lambda settings, buffers: imported.append(settings.layout.modifier))
    assert session.allocate().layout.modifier in (X_TILED, LINEAR)
    upload.reconfigure(who('glupload', 'NV12 x', 'XR24 linear'))
    settings = session.collection.renegotiate(session.producer)
    assert settings.format == (fourcc_code('NV12'), X_TILED) and imported[-2:] == [X_TILED, X_TILED]
    assert session.producer.requests[-1].modifiers == (X_TILED,)
    session.close()
    assert isinstance(session.producer, Producer) and sorted(session.producer.released) == [0, 1]
