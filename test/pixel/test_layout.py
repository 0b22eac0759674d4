"""Layouts: what we compute is valid, and no foreign layout that passes lets anybody touch a byte outside its buffers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.errors import FormatError, LayoutError
from zc_perception.pixel.fourcc import NV12, fourcc_code
from zc_perception.pixel.layout import ImageLayout, PlaneLayout, compute_layout, validate_layout
from zc_perception.pixel.modifier import LINEAR

# Planes of some formats as the kernel's documentation draws them: bytes per element, pixels per element across and down.
PLANES = {
    'NV12': ((1, 1, 1), (2, 2, 2)),
    'P010': ((2, 1, 1), (4, 2, 2)),
    'YU12': ((1, 1, 1), (1, 2, 2), (1, 2, 2)),
    'YUYV': ((4, 2, 1),),
    'RG24': ((3, 1, 1),),
}
TILED = 3 << 56 | 0x10


@dataclass(frozen=True)
class Case:
    """A good layout and the real sizes of its buffers."""

    name: str
    layout: ImageLayout
    buffers: list[int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(sorted(PLANES)))
    layout = compute_layout(
        fourcc_code(name),
        2 * draw(st.integers(1, 40)),
        2 * draw(st.integers(1, 20)),
        stride_align=draw(st.integers(1, 256)),
        offset_align=draw(st.integers(1, 4096)),
        height_align=draw(st.integers(1, 32)),
        buffer_per_plane=draw(st.booleans()),
    )
    spare = draw(st.sampled_from([0, 1, 4096]))
    return Case(name, layout, [layout.buffer_size(i) + spare for i in range(layout.num_buffers)])


def is_safe(case: Case, layout: ImageLayout) -> bool:
    """Whether reading and writing every row of every plane stays inside the buffers and touches no byte twice."""
    rows: list[tuple[int, int, int]] = []
    for plane, (element, across, down) in zip(layout.planes, PLANES[case.name], strict=True):
        length = layout.width // across * element
        for row in range(layout.height // down):
            start = plane.offset + row * plane.stride
            rows.append((plane.buffer, start, start + length))
    rows.sort()
    inside = all(0 <= buffer < len(case.buffers) and start >= 0 and end <= case.buffers[buffer] for buffer, start, end in rows)
    return inside and all(a[0] != b[0] or a[2] <= b[1] for a, b in itertools.pairwise(rows))


@given(cases())
def test_computed_layouts_are_valid_and_safe(case: Case) -> None:
    validate_layout(case.layout, case.buffers)
    assert is_safe(case, case.layout)


@given(cases(), st.data())
def test_a_corrupted_field_is_refused_or_harmless(case: Case, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(case.layout.planes) - 1))
    plane = case.layout.planes[index]
    name = data.draw(st.sampled_from(['buffer', 'offset', 'stride', 'size']))
    good = getattr(plane, name)
    near = st.integers(-300, 300).map(lambda delta: good + delta)
    value = data.draw(st.one_of(near, st.integers(-(1 << 40), 1 << 40), st.sampled_from([0, 1, good // 2, good * 2])))
    planes = list(case.layout.planes)
    planes[index] = replace(plane, **{name: value})
    corrupted = replace(case.layout, planes=tuple(planes))
    try:
        validate_layout(corrupted, case.buffers)
    except LayoutError:
        return
    assert is_safe(case, corrupted)


@given(cases(), st.integers(1, 64))
def test_a_buffer_that_is_too_small_is_refused(case: Case, missing: int) -> None:
    small = [case.layout.buffer_size(i) - missing for i in range(case.layout.num_buffers)]
    with pytest.raises(LayoutError, match='ends at byte'):
        validate_layout(case.layout, small)


@given(st.sampled_from([1, 2, 32, 48, 64, 256]), st.sampled_from([1, 64, 4096]), st.booleans())
def test_strides_and_offsets_are_aligned(stride_align: int, offset_align: int, buffer_per_plane: bool) -> None:
    layout = compute_layout(NV12, 1918, 1078, stride_align=stride_align, offset_align=offset_align, buffer_per_plane=buffer_per_plane)
    assert all(p.stride % stride_align == 0 and p.offset % offset_align == 0 for p in layout.planes)
    assert layout.num_buffers == (2 if buffer_per_plane else 1)


def test_padding_lives_in_the_planes_and_the_size_stays_the_images() -> None:
    layout = compute_layout(NV12, 1920, 1080, stride_align=256, offset_align=4096, height_align=16)
    assert (layout.width, layout.height, layout.modifier) == (1920, 1080, LINEAR)
    luma = PlaneLayout(0, 0, 2048, 2048 * 1088)
    chroma = PlaneLayout(0, luma.size, 2048, 2048 * 544)
    assert layout.planes == (luma, chroma)
    assert layout.buffer_size(0) == luma.size + chroma.size


@pytest.mark.parametrize(
    ('width', 'height', 'message'),
    [
        (0, 48, 'width 0 is outside 1 .. 65535'),
        (65536, 48, 'width 65536 is outside'),
        (64, -2, 'height -2 is outside'),
        (63, 48, 'width 63 is not a multiple of 2, which NV12 needs; use 62'),
        (64, 47, 'height 47 is not a multiple of 2, which NV12 needs; use 46'),
    ],
)
def test_impossible_sizes_are_refused(width: int, height: int, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        compute_layout(NV12, width, height)


@pytest.mark.parametrize('name', ['stride_align', 'offset_align', 'height_align'])
def test_alignments_are_positive(name: str) -> None:
    with pytest.raises(LayoutError, match=f'{name} 0 must be at least 1'):
        compute_layout(NV12, 64, 48, **{name: 0})


def nv12(*planes: PlaneLayout, modifier: int = LINEAR) -> ImageLayout:
    return ImageLayout(64, 48, NV12, modifier, planes)


@pytest.mark.parametrize(
    ('layout', 'message'),
    [
        (nv12(PlaneLayout(0, 0, 64, 3072)), 'NV12 has 2 planes, the layout has 1'),
        (nv12(*[PlaneLayout(0, 3072 * i, 64, 3072) for i in range(3)]), 'NV12 has 2 planes, the layout has 3'),
        (nv12(PlaneLayout(0, 0, 64, 3072), PlaneLayout(1, 0, 64, 1536)), r'plane 1: buffer 1 is outside 0 \.\. 0'),
        (nv12(PlaneLayout(0, 0, 63, 3072), PlaneLayout(0, 3072, 64, 1536)), 'plane 0: stride 63 is below the row of 64 bytes'),
        (nv12(PlaneLayout(0, 0, 64, 3071), PlaneLayout(0, 3072, 64, 1536)), 'plane 0: size 3071 is below the 3072 bytes that 48 rows'),
        (nv12(PlaneLayout(0, 0, 64, 3072), PlaneLayout(0, 3071, 64, 1536)), 'planes 0 and 1 overlap in buffer 0'),
        (nv12(PlaneLayout(0, 0, 64, 3072), PlaneLayout(0, -1, 64, 1536)), 'plane 1: offset -1'),
        (nv12(PlaneLayout(0, 0, 0, 0, ), PlaneLayout(0, 0, 0, 0), modifier=TILED), 'must not be negative or empty'),
    ],
)  # fmt: skip
def test_messages_name_the_plane_and_the_numbers(layout: ImageLayout, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        validate_layout(layout, [64 * 48 * 3])


def test_tiled_planes_are_checked_by_their_extent_alone() -> None:
    # Rows of tiles, or a compression plane behind the format's own: no stride that means anything to us.
    planes = (PlaneLayout(0, 0, 0, 3072), PlaneLayout(0, 3072, 0, 1536), PlaneLayout(0, 4608, 0, 512))
    validate_layout(nv12(*planes, modifier=TILED), [5120])
    with pytest.raises(LayoutError, match='plane 2: ends at byte 5120'):
        validate_layout(nv12(*planes, modifier=TILED), [5119])


def test_a_modifier_of_more_than_64_bits_is_refused() -> None:
    layout = replace(compute_layout(NV12, 64, 48), modifier=1 << 64)
    with pytest.raises(FormatError):
        validate_layout(layout, [1 << 20])


def test_a_description_has_format_size_and_planes() -> None:
    assert compute_layout(NV12, 64, 48).describe() == 'NV12 LINEAR 64x48 ([0] +0 stride 64, [0] +3072 stride 64)'
