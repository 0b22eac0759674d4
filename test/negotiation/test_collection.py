"""Who can agree on what: a table of participants with what comes out, or what the message says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.errors import LayoutError, NegotiationError
from zc_perception.negotiation.collection import common_format, negotiate
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.fourcc import NV12, fourcc_code
from zc_perception.pixel.layout import validate_layout
from zc_perception.pixel.modifier import INVALID, LINEAR

TILED = 3 << 56 | 0x10
NV12_LINEAR, NV12_TILED, NV12_IMPLICIT = (NV12, LINEAR), (NV12, TILED), (NV12, INVALID)
YUYV_LINEAR = (fourcc_code('YUYV'), LINEAR)
CAMERA = BufferConstraints('camera', formats=(NV12_LINEAR, YUYV_LINEAR), slots=2)
DONT_CARE = BufferConstraints('viewer')


def npu(*formats: tuple[int, int], **others: int) -> BufferConstraints:
    return BufferConstraints('npu', formats=formats, **others)


@pytest.mark.parametrize(
    ('participants', 'expected'),
    [
        pytest.param([CAMERA], NV12_LINEAR, id='alone'),
        pytest.param([CAMERA, npu(NV12_LINEAR)], NV12_LINEAR, id='both'),
        pytest.param([CAMERA, npu(YUYV_LINEAR)], YUYV_LINEAR, id='only the second choice is common'),
        pytest.param([CAMERA, npu(YUYV_LINEAR, NV12_LINEAR)], NV12_LINEAR, id='the first participant prefers'),
        pytest.param([DONT_CARE, npu(YUYV_LINEAR, NV12_LINEAR), CAMERA], YUYV_LINEAR, id='who names none does not prefer'),
        pytest.param([BufferConstraints('camera', formats=(NV12_TILED,)), npu(NV12_LINEAR, NV12_TILED)], NV12_TILED, id='tiled'),
    ],
)
def test_the_common_format_is_the_first_that_all_can_use(participants: list[BufferConstraints], expected: tuple[int, int]) -> None:
    assert common_format(participants) == expected


@pytest.mark.parametrize(
    ('participants', 'message'),
    [
        pytest.param([], 'no participant names a format; the camera must', id='nobody'),
        pytest.param([DONT_CARE], 'no participant names a format', id='nobody who cares'),
        pytest.param(
            [CAMERA, npu(NV12_TILED)],
            r'no common pixel format and modifier \(camera: NV12 LINEAR, YUYV LINEAR; npu: NV12 NVIDIA:0x00000000000010\)',
            id='same fourcc, other modifier',
        ),
        pytest.param([CAMERA, npu(NV12_IMPLICIT)], 'npu: NV12 INVALID', id='explicit and implicit never mix'),
        pytest.param([CAMERA, npu()], r'npu: none\)', id='one that can use nothing'),
        pytest.param(
            [CAMERA, npu(NV12_LINEAR), BufferConstraints('encoder', formats=(YUYV_LINEAR,))],
            'camera: NV12 LINEAR, YUYV LINEAR; npu: NV12 LINEAR; encoder: YUYV LINEAR',
            id='pairs agree, all three do not',
        ),
    ],
)
def test_without_a_common_format_everybody_s_offer_is_named(participants: list[BufferConstraints], message: str) -> None:
    with pytest.raises(NegotiationError, match=message):
        common_format(participants)


def test_alignments_suit_everybody_and_slots_add_up() -> None:
    settings = negotiate(
        [CAMERA, npu(NV12_LINEAR, stride_align=48, offset_align=4096, slots=3), BufferConstraints('encoder', stride_align=64, slots=1)],
        1918,
        1078,
        heap='memfd',
    )
    assert settings.slots == 6
    luma, chroma = settings.layout.planes
    assert luma.stride == chroma.stride == 1920
    assert chroma.offset % 4096 == 0
    assert (settings.layout.width, settings.layout.height) == (1918, 1078)


@given(st.lists(st.tuples(st.integers(1, 512), st.integers(1, 4096)), min_size=1, max_size=4), st.integers(1, 50), st.integers(1, 50))
def test_an_agreed_layout_is_valid_and_aligned_for_each(alignments: list[tuple[int, int]], half_width: int, half_height: int) -> None:
    participants = [
        BufferConstraints(f'p{i}', formats=(NV12_LINEAR,), stride_align=stride, offset_align=offset, slots=1)
        for i, (stride, offset) in enumerate(alignments)
    ]
    layout = negotiate(participants, 2 * half_width, 2 * half_height, heap='memfd').layout
    validate_layout(layout, [layout.buffer_size(0)])
    for stride, offset in alignments:
        assert all(plane.stride % stride == 0 and plane.offset % offset == 0 for plane in layout.planes)


@pytest.mark.parametrize(
    ('heaps', 'heap', 'accepted'),
    [
        (None, 'memfd', True),
        (('memfd',), 'memfd', True),
        (('udmabuf',), 'memfd', False),
        (('dma_heap/',), 'dma_heap/system', True),
        (('dma_heap/',), 'dma_heap', False),
        (('dma_heap/system',), 'dma_heap/linux,cma', False),
        (('dma_heap/sys',), 'dma_heap/system', False),
        (('udmabuf', 'dma_heap/'), 'dma_heap/reserved', True),
        ((), 'memfd', False),
    ],
)
def test_heaps_are_names_or_prefixes(heaps: tuple[str, ...] | None, heap: str, accepted: bool) -> None:
    assert BufferConstraints('npu', heaps=heaps).accepts_heap(heap) is accepted


def test_a_heap_that_one_can_not_use_is_refused_with_those_it_can() -> None:
    device = BufferConstraints('npu', formats=(NV12_LINEAR,), heaps=('dma_heap/', 'udmabuf'))
    with pytest.raises(NegotiationError, match="npu can't use buffers of heap 'memfd', only of dma_heap/, udmabuf; set parameter 'heap'"):
        negotiate([CAMERA, device], 64, 48, heap='memfd')
    assert negotiate([CAMERA, device], 64, 48, heap='dma_heap/system').slots == 2


def test_a_tiled_layout_is_the_camera_s_own_to_allocate() -> None:
    with pytest.raises(NegotiationError, match='NV12 NVIDIA:0x00000000000010: only the camera itself can allocate a non-linear layout'):
        negotiate([BufferConstraints('camera', formats=(NV12_TILED,))], 64, 48, heap='memfd')


def test_a_size_that_the_format_can_not_have_is_refused() -> None:
    with pytest.raises(LayoutError, match='width 63 is not a multiple of 2'):
        negotiate([CAMERA], 63, 48, heap='memfd')
