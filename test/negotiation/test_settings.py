"""Several image sizes in one allocation, and the check that late joiners and allocators' answers have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from negotiation.kit import NV12, TILED, f, who

from zc_perception.errors import LayoutError, NegotiationError
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.negotiation.heap_offer import HeapOffer
from zc_perception.negotiation.settings import BufferSettings, violations
from zc_perception.pixel.layout import ImageLayout, PlaneLayout, compute_layout, validate_layout
from zc_perception.pixel.modifier import INVALID, LINEAR


def settings_for(*participants: BufferConstraints, size: tuple[int, int] = (640, 480)) -> BufferSettings:
    return agree([who('camera', 'NV12 linear'), *participants], size).settings()


def test_smaller_and_promised_larger_images_fit_the_same_buffers() -> None:
    settings = settings_for(who('encoder', required_max_size=(1280, 720), stride_align=256))
    sizes = settings.sizes()
    for size in ((640, 480), (320, 240), (1280, 720), (1280, 2), (2, 720)):
        layout = settings.with_size(*size)
        assert (layout.width, layout.height) == size and all(plane.stride % 256 == 0 for plane in layout.planes)
        validate_layout(layout, sizes)
    assert settings.with_size(640, 480) is settings.layout


@pytest.mark.parametrize(
    ('size', 'message'),
    [
        ((1282, 720), '1282x720 does not fit these buffers, which take 32x16 to 1280x720; renegotiate with a larger required_max_size'),
        ((1280, 722), '1280x722 does not fit'),
        ((720, 1280), '720x1280 does not fit'),
        ((30, 480), '30x480 does not fit'),
        ((640, 14), '640x14 does not fit'),
    ],
)
def test_other_sizes_are_refused_with_the_limits(size: tuple[int, int], message: str) -> None:
    settings = settings_for(who('encoder', required_max_size=(1280, 720)), who('npu', min_size=(32, 16)))
    with pytest.raises(NegotiationError) as refused:
        settings.with_size(*size)
    assert message in str(refused.value)


def test_without_a_promise_images_may_only_be_smaller() -> None:
    settings = settings_for()
    assert settings.with_size(320, 240).width == 320
    with pytest.raises(NegotiationError, match='which take 1x1 to 640x480'):
        settings.with_size(642, 480)


def test_a_size_that_the_format_cannot_have() -> None:
    with pytest.raises(LayoutError, match='width 321 is not a multiple of 2'):
        settings_for().with_size(321, 240)


def test_a_size_whose_buffers_turned_out_smaller_or_whose_stride_is_too_long() -> None:
    settings = settings_for(who('encoder', required_max_size=(1280, 720)))
    with pytest.raises(NegotiationError, match='1280x720 needs 1382400 bytes of buffer 0, which has 460800; renegotiate'):
        replace(settings, buffer_sizes=(460800,)).with_size(1280, 720)
    short = replace(settings, limits=replace(settings.limits, max_stride=1000))
    with pytest.raises(NegotiationError, match='has a stride of 1280 bytes, above max_stride 1000'):
        short.with_size(1280, 720)


@pytest.mark.parametrize('modifier', [TILED, INVALID])
def test_other_sizes_of_a_layout_that_only_its_allocator_knows(modifier: int) -> None:
    settings = settings_for()
    tiled = replace(settings, layout=replace(settings.layout, modifier=modifier))
    assert tiled.with_size(640, 480) is tiled.layout
    with pytest.raises(NegotiationError, match='only their allocator knows such a layout; renegotiate'):
        tiled.with_size(320, 240)
    assert tiled.implicit == (modifier == INVALID)


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 50), st.integers(1, 50)),
    st.sampled_from([1, 3, 64, 100]),
    st.sampled_from([1, 64, 4096]),
    st.sampled_from([1, 16]),
    st.sampled_from([None, *Placement]),
)
def test_any_size_fits_exactly_up_to_the_promise(
    first: tuple[int, int], promised: tuple[int, int], wanted: tuple[int, int], stride: int, offset: int, height: int, placement: Any
) -> None:
    first, promised, wanted = ((2 * w, 2 * h) for w, h in (first, promised, wanted))
    encoder = who('encoder', stride_align=stride, offset_align=offset, height_align=height, required_max_size=promised, placement=placement)
    settings = settings_for(encoder, size=first)
    largest = max(first[0], promised[0]), max(first[1], promised[1])
    if wanted[0] <= largest[0] and wanted[1] <= largest[1]:
        layout = settings.with_size(*wanted)
        validate_layout(layout, settings.sizes())
        assert not violations(replace(encoder, required_max_size=None), replace(settings, layout=layout))
    else:
        with pytest.raises(NegotiationError, match='does not fit these buffers'):
            settings.with_size(*wanted)


BASE = BufferSettings(compute_layout(NV12, 640, 480, stride_align=64, offset_align=64), 4, HeapOffer('dma_heap/system', contiguous=False))


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'formats': (f('NV12 tiled'), f('YUYV linear'))}, 'format NV12 LINEAR is not one of its formats (NV12 NVIDIA'),
        ({'formats': ()}, 'format NV12 LINEAR is not one of its formats (none)'),
        ({'stride_align': 256}, 'plane 0: stride 640 is not a multiple of its stride_align 256'),
        ({'offset_align': 65536}, 'plane 1: offset 307200 is not a multiple of its offset_align 65536'),
        ({'max_stride': 639}, 'has a stride of 640 bytes, above max_stride 639'),
        ({'height_align': 64}, 'plane 0 has 307200 bytes, too few for 512 rows (height_align 64)'),
        ({'min_size': (641, 1)}, 'image size 640x480 is below its min_size 641x1'),
        ({'max_size': (640, 479)}, 'image size 640x480 is above its max_size 640x479'),
        ({'required_max_size': (642, 480)}, 'buffers have room for 640x480, its required_max_size is 642x480'),
        ({'placement': Placement.BUFFER_PER_PLANE}, 'planes lie in 1 buffer(s), it needs one buffer for each plane'),
        ({'heaps': ('udmabuf',)}, "can't use buffers of heap 'dma_heap/system', only of udmabuf"),
        ({'contiguous': True}, "needs contiguous memory, which heap 'dma_heap/system' is not"),
        ({'slots': 5}, 'there are 4 slots, it needs 5'),
        ({'min_slots': 5}, 'there are 4 slots, it needs 5'),
        ({'max_slots': 3}, 'there are 4 slots, it allows at most 3 (max_slots)'),
    ],
)
def test_every_constraint_is_checked_against_the_buffers(fields: dict[str, Any], message: str) -> None:
    found = violations(BufferConstraints('npu', **fields), BASE)
    assert message in found[0] and len(found) <= len(BASE.layout.planes), found


def test_what_suits_is_not_complained_about() -> None:
    fields: dict[str, Any] = {
        'formats': (f('YUYV linear'), f('NV12 linear')), 'stride_align': 128, 'offset_align': 4096, 'height_align': 32, 'max_stride': 640,
        'min_size': (640, 480), 'max_size': (640, 480), 'required_max_size': (640, 480), 'placement': Placement.ONE_BUFFER,
        'heaps': ('dma_heap/',), 'slots': 4, 'min_slots': 4, 'max_slots': 4, 'cpu_access': CpuAccess.READ,
    }  # fmt: skip
    assert violations(BufferConstraints('npu', **fields), BASE) == []


@pytest.mark.parametrize('fields', [{'heaps': ('udmabuf',)}, {'contiguous': True}, {'devices': ('/dev/metis-0:1:0',)}])
def test_memory_of_an_unknown_heap_is_no_promise(fields: dict[str, Any]) -> None:
    unknown = replace(BASE, heap=None)
    assert violations(BufferConstraints('npu', **fields), unknown) == [
        'it wants certain memory, and nobody said which heap these buffers come from'
    ]
    assert violations(BufferConstraints('viewer'), unknown) == []


def test_a_cpu_and_an_unknown_layout() -> None:
    implicit = replace(BASE, layout=replace(BASE.layout, modifier=INVALID))
    assert violations(who('cpu', cpu_access=CpuAccess.READ), implicit) == [
        'format NV12 INVALID is not one of its formats (only LINEAR for its CPU access)'
    ]
    assert violations(who('viewer'), implicit) == []


def test_images_promised_to_others_must_suit_as_well() -> None:
    promised = settings_for(who('encoder', required_max_size=(1280, 720)))
    assert violations(who('npu', max_size=(640, 480)), promised) == ['images up to 1280x720 are promised, above its max_size 640x480']
    limited = settings_for(who('npu', max_size=(800, 600)))
    found = violations(who('late', required_max_size=(802, 600)), limited)
    assert 'buffers are used up to 800x600, its required_max_size is 802x600' in found


def test_mixed_planes_are_neither_placement() -> None:
    yu12 = f('YU12 linear')[0]
    planes = (PlaneLayout(0, 0, 64, 64 * 48), PlaneLayout(1, 0, 32, 32 * 24), PlaneLayout(1, 32 * 24, 32, 32 * 24))
    settings = BufferSettings(ImageLayout(64, 48, yu12, LINEAR, planes), 1)
    assert settings.placement is None
    for placement in Placement:
        assert len(violations(BufferConstraints('npu', placement=placement), settings)) == 1
    one_plane = BufferSettings(compute_layout(f('YUYV linear')[0], 64, 48), 1)
    assert all(not violations(BufferConstraints('npu', placement=p), one_plane) for p in Placement)


@given(st.integers(1, 300), st.integers(1, 300))
def test_joining_only_tightens(stride: int, height: int) -> None:
    assume(stride % 64)
    settings = settings_for(who('encoder', stride_align=64))
    joined = settings.joined_by(who('npu', stride_align=stride, height_align=height, min_size=(8, 8), cpu_access=CpuAccess.READ))
    assert joined.limits.stride_align % stride == joined.limits.stride_align % 64 == joined.limits.height_align % height == 0
    assert joined.limits.min_size == (8, 8) and joined.cpu_access == CpuAccess.READ and joined.layout == settings.layout
