# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Which participants can agree, and on which buffers."""

from __future__ import annotations

from dataclasses import replace
import itertools
import math
import re
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from negotiation.kit import f, NV12, R8, SIZE, TILED, who, X_TILED, XR24, YUYV
import pytest

from zc_perception.errors import NegotiationError
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.negotiation.agreement import agree, check_answer, choose_heap
from zc_perception.negotiation.constraints import (
    BufferConstraints,
    Format,
    formats_text,
    Placement,
)
from zc_perception.negotiation.settings import (
    Allocation,
    AllocationRequest,
    BufferSettings,
    heap_offer,
    HeapOffer,
    ImageLimits,
    joint_limits,
    violations,
)
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.layout import compute_layout, ImageLayout, PlaneLayout, validate_layout
from zc_perception.pixel.modifier import INVALID, LINEAR, modifier_name

READ = CpuAccess.READ
CAMERA = who('camera', 'NV12 linear', 'YUYV linear', slots=2)
ONE, PER_PLANE = Placement.ONE_BUFFER, Placement.BUFFER_PER_PLANE


def case(
    name: str,
    participants: list[BufferConstraints],
    *,
    size: tuple[int, int] = SIZE,
    wanted: int = 0,
    **expected: Any,
):
    return pytest.param(participants, size, wanted, expected, id=name)


AGREED = [
    case('alone', [CAMERA], fourcc=NV12, modifiers=(LINEAR,)),
    case('two outvote the producer', [CAMERA, who('npu', 'YUYV linear', 'NV12 linear'),
         who('gpu', 'YUYV linear', 'NV12 linear')], fourcc=YUYV),
    case('stated costs count, not places', [CAMERA, who('npu', 'NV12 linear', 'YUYV linear',
                                                        costs=(9.0, 2.0))], fourcc=YUYV),
    case('a negative cost is a bonus', [CAMERA, who('npu', 'NV12 linear', 'YUYV linear',
                                                    costs=(0.0, -5.0))], fourcc=YUYV),
    case('who names none does not prefer', [who('viewer'),
         who('npu', 'YUYV linear', 'NV12 linear'), CAMERA], fourcc=YUYV),
    # From "Exchanging pixel buffers", section Negotiation: Vulkan renders, KMS shows, an encoder
    # records.
    case('Vulkan, KMS and an encoder', [who('vulkan', 'XR24 y', 'XR24 x', 'XR24 linear'),
         who('kms', 'XR24 linear', 'XR24 x'), who('encoder', 'XR24 linear', 'NV12 linear')],
         fourcc=XR24, modifiers=(LINEAR,)),
    # GStreamer's example: glupload is queried at run time, as its template has no drm-format.
    case('an absent drm-format is any', [who('vapostproc', 'NV12 x', 'NV12 linear', 'XR24 y'),
         who('glupload')], fourcc=NV12, modifiers=(X_TILED, LINEAR)),
    case('a media API without modifiers makes all implicit',
         [who('gpu', 'NV12 tiled', 'NV12 implicit'), who('kms', 'NV12 implicit', 'NV12 tiled'),
         who('media', 'NV12 implicit')], modifiers=(INVALID,)),
    case('LINEAR before an implicit layout that no consumer lists',
         [who('gpu', 'NV12 implicit', 'NV12 linear', costs=(0.0, 100.0))],
         modifiers=(LINEAR, INVALID)),
    case('an implicit layout by its costs where consumers list it',
         [who('gpu', 'NV12 implicit', 'NV12 linear', costs=(0.0, 100.0)),
         who('kms', 'NV12 linear', 'NV12 implicit')], modifiers=(INVALID, LINEAR)),
    case('implicit is acceptable as well', [who('gpu', 'NV12 tiled', 'NV12 implicit'),
         who('kms', 'NV12 tiled', 'NV12 implicit')], modifiers=(TILED, INVALID)),
    case('a format whose stride is too long gives way',
         [who('camera', 'XR24 linear', 'NV12 linear'), who('npu', max_stride=128)], fourcc=NV12),
    case('an odd size only for who can', [who('camera', 'NV12 linear', 'R8 linear')],
         size=(63, 47), fourcc=R8),
    case('one buffer unless somebody minds', [CAMERA], placement=None),
    case('camping slots add up', [CAMERA, who('npu', slots=3), who('encoder', slots=1)], slots=6,
         needed=6),
    case('not more than anybody allows', [CAMERA, who('npu', max_slots=4)], wanted=8, slots=4,
         needed=2),
]  # fmt: skip


@pytest.mark.parametrize(('participants', 'size', 'wanted', 'expected'), AGREED)
def test_the_setting_suits_everybody(
    participants: list[BufferConstraints],
    size: tuple[int, int],
    wanted: int,
    expected: dict[str, Any],
) -> None:
    request = agree(participants, size, wanted_slots=wanted)
    assert {key: getattr(request, key) for key in expected} == expected
    assert request.size == size, 'padding never changes the image'


def says(
    name: str,
    participants: list[BufferConstraints],
    *messages: str,
    size: tuple[int, int] = SIZE,
    heaps: Any = (),
):
    return pytest.param(participants, size, heaps, messages, id=name)


REFUSED = [
    says('nobody', [], 'no participant names a format; the camera must'),
    says('same fourcc, other modifier', [CAMERA, who('npu', 'NV12 tiled')],
         f'(camera: NV12 LINEAR, YUYV LINEAR; npu: NV12 {modifier_name(TILED)}); every '
         'participant can use NV12, but no modifier is common; add a converting participant or '
         'change one of the participants'),
    says('one that can use nothing', [CAMERA, BufferConstraints('npu', formats=())], 'npu: none)'),
    says('a CPU with tiles', [who('camera', 'NV12 tiled'),
                              who('cpu', 'NV12 tiled', cpu_access=READ)],
         'the CPU access of cpu needs LINEAR, but the only common formats are NV12 '
         f'{modifier_name(TILED)}'),
    says('too large', [CAMERA, who('npu', max_size=(64, 47))],
         'npu takes images of at most 64x47, not 64x48; choose a smaller size'),
    says('a size that the format cannot have', [CAMERA], ('NV12 LINEAR 63x48: width 63 is not a '
                                                          'multiple of 2'), size=(63, 48)),
    says('no heap suits all', [CAMERA, who('a', heaps=('udmabuf',)),
                               who('b', heaps=('dma_heap/',))],
         "a can't use buffers of heap 'dma_heap/system', only of udmabuf",
         "b can't use buffers of heap 'udmabuf', only of dma_heap/",
         heaps=('dma_heap/system', 'udmabuf')),
    says('contiguous in scattered memory', [CAMERA, who('isp', contiguous=True)],
         "isp needs contiguous memory, which heap 'udmabuf' is not", heaps=('udmabuf',)),
    says('no heap at all', [CAMERA, who('npu', heaps=('dma_heap/',)), who('isp', contiguous=True)],
         'npu and isp want a certain kind of memory, but no heap'),
    says('no heap for one', [CAMERA, who('npu', heaps=('dma_heap/',))],
         'npu wants a certain kind of memory, but no heap'),
    says('two placements', [who('camera', 'NV12 linear', placement=ONE),
                            who('gpu', placement=PER_PLANE)],
         'camera wants one buffer for all planes and gpu wants one buffer for each plane'),
    says('alignment against max_stride', [CAMERA, who('a', stride_align=64),
                                          who('b', stride_align=96), who('isp', max_stride=100)],
         ('NV12 LINEAR 64x48 has a stride of 192 bytes, a multiple of 192 (stride_align: a 64, '
          'b 96), but isp takes at most 100')),
    says('more slots than allowed', [CAMERA, who('npu', slots=3), who('isp', max_slots=4)],
         ('5 slots are needed (camera 2, npu 3), but isp allows at most 4; hold fewer frames '
          'at a time')),
    says('everything at once', [CAMERA,
         who('npu', 'NV12 tiled', max_size=(8, 8), heaps=('udmabuf',), max_slots=1)],
         'no common pixel format and modifier', 'npu takes images of at most 8x8',
         "npu can't use buffers of heap 'memfd'", '2 slots are needed', heaps=('memfd',)),
    says('a media API without modifiers, and an explicit one', [who('gpu', 'NV12 tiled'),
         who('kms', 'NV12 tiled', 'NV12 implicit'), who('media', 'NV12 implicit')],
         'every participant can use NV12, but no modifier is common'),
]  # fmt: skip


@pytest.mark.parametrize(('participants', 'size', 'heaps', 'messages'), REFUSED)
def test_an_empty_intersection_says_who_and_why(
    participants: list[BufferConstraints],
    size: tuple[int, int],
    heaps: tuple[str, ...],
    messages: tuple[str, ...],
) -> None:
    if heaps:  # the camera allocates from them
        participants = [replace(participants[0], heaps=heaps), *participants[1:]]
    with pytest.raises(NegotiationError) as refused:
        agree(participants, size)
    for message in messages:
        assert message in str(refused.value)


# Few enough values that a test can try all combinations.
PAIRS = [
    f('NV12 linear'), f('NV12 tiled'), f('NV12 implicit'), f('YUYV linear'), f('XR24 x'),
    f('XR24 y'), f('XR24 implicit'),
]  # fmt: skip
FORMATS = st.one_of(
    st.none(),
    *(
        st.lists(st.sampled_from(PAIRS), unique=True, min_size=least).map(tuple)
        for least in (0, 4)
    ),
)


def seldom(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """Return mostly *usual*: one of many constraints can make everything impossible."""
    return st.sampled_from([usual] * (3 * len(others) + 3) + list(others))


OFFERS = ('dma_heap/linux,cma', 'dma_heap/system', 'memfd', 'v4l2/vivid')
SIZES = seldom(None, (32, 32), (64, 48), (96, 96))


@st.composite
def constraints(draw: st.DrawFn, name: str, producer: bool = False) -> BufferConstraints:
    formats = draw(FORMATS.filter(bool) | st.just((f('XR24 implicit'),)) if producer else FORMATS)
    low, high = draw(SIZES), draw(SIZES)
    low, high = (min(low, high), max(low, high)) if low and high else (low, high)
    slots, most = draw(st.integers(0, 3)), draw(seldom(None, 3, 5, 8))
    elsewhere = tuple(
        (fmt, draw(st.sampled_from([OFFERS[:1], OFFERS[1:3], OFFERS[3:]])))
        for fmt in formats or ()
        if producer and draw(st.booleans())
    )
    return BufferConstraints(
        name,
        formats=formats,
        stride_align=draw(seldom(1, 64, 96)),
        offset_align=draw(seldom(1, 4096)),
        height_align=draw(seldom(1, 16)),
        max_stride=draw(seldom(None, 64, 128, 200)),
        heaps=draw(st.sampled_from([OFFERS, OFFERS[3:]]))
        if producer
        else draw(seldom(None, ('dma_heap/',), ('dma_heap/linux,cma', 'memfd'), ('v4l2/',))),
        format_heaps=elsewhere,
        contiguous=draw(seldom(False, True)),
        cpu_access=draw(seldom(CpuAccess(0), READ)),
        devices=draw(seldom((), ('/dev/dri/card0',), ('/dev/metis-0:1:0',))),
        placement=draw(seldom(None, ONE, PER_PLANE)),
        min_size=low,
        max_size=high,
        slots=slots,
        max_slots=most,
    )


# Their YUYV is in the driver's own buffers; NV12 is decoded into other memory.
WEBCAMS = [
    who(
        'p0',
        'YUYV linear',
        'NV12 linear',
        heaps=OFFERS[3:],
        format_heaps=((f('NV12 linear'), heaps),),
    )
    for heaps in (OFFERS[:3], OFFERS[2:3])
]


class Memory(NamedTuple):
    size: int
    identity: tuple[int, int]


GROUPS = st.tuples(constraints('p0', producer=True), constraints('p1'), constraints('p2'))


def possible_memory(group: tuple[BufferConstraints, ...], heap: str, fmt: Format) -> bool:
    producer = group[0]
    assert producer.heaps is not None
    return heap in dict(producer.format_heaps).get(fmt, producer.heaps) and all(
        (
            p.heaps is None
            or any(heap == h or (h[-1] == '/' and heap.startswith(h)) for h in p.heaps)
            or p is producer
        )
        and (heap in ('dma_heap/linux,cma', 'v4l2/vivid') or not p.contiguous)
        and (heap != 'memfd' or not p.devices)
        for p in group
    )


def possible_image(
    group: tuple[BufferConstraints, ...],
    fourcc: int,
    modifier: int,
    per_plane: bool,
) -> bool:
    """Return whether a layout exists that each participant alone can use."""
    planes = {NV12: 2, YUYV: 1, XR24: 1}[fourcc]
    listed = [p.formats is None or (fourcc, modifier) in p.formats for p in group]
    tiles_for_cpu = modifier != LINEAR and any(p.cpu_access for p in group)
    if not all(listed) or tiles_for_cpu:
        return False
    if planes > 1 or modifier != LINEAR:
        wanted = {p.placement for p in group} - {None}
        if len(wanted) > 1 or (planes > 1 and wanted and (PER_PLANE in wanted) != per_plane):
            return False
    if modifier != LINEAR:
        return True
    align = math.lcm(*(p.stride_align for p in group))
    limit = min([p.max_stride for p in group if p.max_stride], default=1 << 31)
    return all(
        plane.stride <= limit
        for plane in compute_layout(
            fourcc, *SIZE, stride_align=align, offset_align=1, buffer_per_plane=per_plane
        ).planes
    )


def possible_sizes_and_counts(group: tuple[BufferConstraints, ...]) -> bool:
    return all(
        (p.min_size or SIZE)[axis] <= SIZE[axis] <= (p.max_size or SIZE)[axis]
        for p in group
        for axis in (0, 1)
    ) and all(p.max_slots is None or sum(q.slots for q in group) <= p.max_slots for p in group)


def possible_setting(group: tuple[BufferConstraints, ...], pair: Format) -> bool:
    return any(possible_memory(group, heap, pair) for heap in OFFERS) and any(
        possible_image(group, *pair, per_plane) for per_plane in (False, True)
    )


def negotiated(group: tuple[BufferConstraints, ...]) -> AllocationRequest | None:
    try:
        return agree(group, SIZE)
    except NegotiationError:
        return None


@settings(max_examples=300)
@given(GROUPS)
def test_what_brute_force_finds_is_found_and_suits_each_one_alone(
    group: tuple[BufferConstraints, ...],
) -> None:
    request, pairs = negotiated(group), {pair for p in group for pair in p.formats or ()}
    assert (request is not None) == (
        possible_sizes_and_counts(group)
        and any(possible_setting(group, pair) for pair in pairs)
    )
    if request is None:
        return
    assert request.heap is not None
    assert possible_sizes_and_counts(group)
    assert request.slots == max(1, sum(p.slots for p in group))
    for modifier in request.modifiers:
        assert possible_memory(group, request.heap.name, (request.fourcc, modifier))
        assert possible_image(group, request.fourcc, modifier, request.placement is PER_PLANE)
    if LINEAR not in request.modifiers:
        return
    layout = request.layout()
    validate_layout(layout, [layout.buffer_size(i) for i in range(layout.num_buffers)])
    for p in group:
        for index, plane in enumerate(layout.planes):
            rows = layout.format.planes[index].rows(-(-SIZE[1] // p.height_align) * p.height_align)
            assert plane.stride % p.stride_align == 0 and plane.offset % p.offset_align == 0
            assert p.max_stride is None or plane.stride <= p.max_stride
            assert plane.size >= plane.stride * rows
        if p.placement is not None and len(layout.planes) > 1:
            assert layout.num_buffers == (1 if p.placement is ONE else len(layout.planes))


@settings(max_examples=200)
@given(st.tuples(st.sampled_from(WEBCAMS), constraints('p1'), constraints('p2')) | GROUPS)
def test_what_was_agreed_on_and_allocated_as_wanted_is_accepted(
    group: tuple[BufferConstraints, ...],
) -> None:
    request = negotiated(group)
    if request is None or LINEAR not in request.modifiers:
        return
    layout = request.layout()
    slots = tuple(
        tuple(Memory(layout.buffer_size(part), (slot, part)) for part in range(layout.num_buffers))
        for slot in range(request.slots)
    )
    settled = check_answer(request, Allocation(layout, slots), group)
    assert (settled.layout, settled.heap) == (layout, request.heap)


@settings(max_examples=200)
@given(GROUPS)
def test_the_order_of_consumers_changes_nothing_but_ties(
    group: tuple[BufferConstraints, ...],
) -> None:
    results = [negotiated((group[0], *others)) for others in itertools.permutations(group[1:])]
    first = results[0]
    for other in results[1:]:
        assert (first is None) == (other is None)
        if first is not None and other is not None:
            assert (first.fourcc, first.heap, first.slots) == (
                other.fourcc,
                other.heap,
                other.slots,
            )
            assert set(first.modifiers) == set(other.modifiers)


@settings(max_examples=200)
@given(GROUPS)
def test_no_possible_setting_is_cheaper(group: tuple[BufferConstraints, ...]) -> None:
    request = negotiated(group)
    if request is None:
        return
    cost = {
        pair: sum(p.format_cost(pair) for p in group) for p in group for pair in p.formats or ()
    }
    best = min(
        cost[pair]
        for pair in cost
        if pair[1] != INVALID and possible_setting(group, pair)
    ) if request.modifiers[0] != INVALID else cost[request.fourcc, INVALID]  # fmt: skip
    assert cost[request.fourcc, request.modifiers[0]] == best


@pytest.mark.parametrize(
    ('steps', 'name'),
    [
        ([{'stride_align': 1 << 22}], 'stride_align'),
        ([{'stride_align': 4096}, {'stride_align': 997}], 'stride_align'),
        ([{'offset_align': 1 << 30}], 'offset_align'),
        ([{'height_align': 1 << 20}], 'height_align'),
    ],
)
def test_steps_that_would_take_all_memory_are_refused_by_name(
    steps: list[dict[str, int]], name: str
) -> None:
    greedy = [who(f'greedy{i}', **step) for i, step in enumerate(steps)]
    with pytest.raises(NegotiationError, match=r'MiB .* times the size of its pixels') as said:
        agree([who('camera', 'NV12 linear'), *greedy], (1366, 768))
    assert all(f'{name}: ' in str(said.value) and p.participant in str(said.value) for p in greedy)
    agree([who('camera', 'NV12 linear'), who('page', stride_align=4096)], (1366, 768))
    agree([who('camera', 'NV12 linear'), who('huge page', offset_align=1 << 21)], (64, 48))


def test_a_tiled_layout_is_the_camera_s_own_to_allocate() -> None:
    expected = (
        f'NV12 {modifier_name(TILED)}: only the camera itself can allocate non-linear buffers'
    )
    with pytest.raises(NegotiationError, match=re.escape(expected)):
        agree([who('camera', 'NV12 tiled')], SIZE).layout()
    with pytest.raises(NegotiationError, match=re.escape(expected)):
        agree([who('camera', 'NV12 tiled')], SIZE).settings()
    both = who('camera', 'NV12 tiled', 'NV12 linear')
    assert agree([both], SIZE).settings().layout.modifier == LINEAR, (
        'where both would do it is LINEAR'
    )


GENERIC, OLD_GENERIC, OTHER_KIND = (
    (NV12, 3 << 56 | kind << 12 | 0x14) for kind in (0xFE, 0, 0x06)
)


@pytest.mark.parametrize(
    ('camera', 'consumer'), [(GENERIC, OLD_GENERIC), (OLD_GENERIC, GENERIC), (GENERIC, GENERIC)]
)
def test_two_numbers_of_one_layout_are_one_format(camera: Format, consumer: Format) -> None:
    group = [
        BufferConstraints('camera', formats=(OTHER_KIND, camera)),
        BufferConstraints('encoder', formats=(consumer, f('NV12 linear')), costs=(2.0, 1.0)),
    ]
    request = agree(group, SIZE)
    assert (request.fourcc, request.modifiers) == (NV12, (camera[1],))
    assert group[1].format_cost(camera) == 2.0
    layout = compute_layout(NV12, *SIZE)
    for modifier in (camera[1], consumer[1]):
        slots = ((Memory(layout.buffer_size(0), (0, 0)),),)
        answer = Allocation(replace(layout, modifier=modifier), slots)
        assert check_answer(request, answer, group).layout.modifier == modifier
    with pytest.raises(NegotiationError, match='it chose modifier NVIDIA:0x'):
        answer = Allocation(replace(layout, modifier=OTHER_KIND[1]), slots)
        check_answer(request, answer, group)
    with pytest.raises(NegotiationError, match='no common pixel format and modifier'):
        agree([BufferConstraints('camera', formats=(OTHER_KIND,)), group[1]], SIZE)


def test_a_format_whose_buffers_come_from_elsewhere_brings_its_heaps_along() -> None:
    camera = who(
        'camera',
        'YUYV linear',
        'NV12 linear',
        heaps=('v4l2/driver',),
        format_heaps=((f('NV12 linear'), ('memfd', 'dma_heap/system')),),
    )
    for consumers, fourcc, heap in (
        ([], YUYV, 'v4l2/driver'),
        ([who('npu', 'NV12 linear')], NV12, 'memfd'),
        ([who('npu', 'NV12 linear', heaps=('dma_heap/',))], NV12, 'dma_heap/system'),
        ([who('viewer', heaps=('dma_heap/',))], NV12, 'dma_heap/system'),
    ):
        request = agree([camera, *consumers], SIZE)
        assert request.heap is not None and (request.fourcc, request.heap.name) == (fourcc, heap)
    with pytest.raises(NegotiationError, match=r"npu can't use buffers of heap 'v4l2/driver'"):
        agree([camera, who('npu', 'YUYV linear', heaps=('dma_heap/',))], SIZE)
    with pytest.raises(NegotiationError) as refused:
        agree([camera, who('npu', 'NV12 linear', heaps=('v4l2/', 'udmabuf'))], SIZE)
    assert str(refused.value) == (
        "npu can't use buffers of heaps 'memfd', 'dma_heap/system', only of v4l2/, udmabuf; "
        "set parameter 'heap' to another heap"
    ), 'the heaps that NV12 would come from, not those of YUYV'


SYSTEM, CMA, UDMABUF, MEMFD = 'dma_heap/system', 'dma_heap/linux,cma', 'udmabuf', 'memfd'
NO_GROUP = 'the card is in no IOMMU group'
UNKNOWN = 'whether the card is behind an IOMMU is not known: its PCI address is unknown'


def camera(*heaps: str, note: str = '') -> BufferConstraints:
    return who('camera', 'NV12 linear', heaps=heaps, memory_note=note)


def metis(contiguous: bool = False, note: str = '') -> BufferConstraints:
    return who(
        'metis', 'NV12 linear', heaps=('dma_heap/', 'udmabuf', 'v4l2/'),
        devices=('/dev/metis-0:1:0',), contiguous=contiguous, memory_note=note,
    )  # fmt: skip


@pytest.mark.parametrize(
    ('participants', 'heap', 'because'),
    [
        ([camera(SYSTEM, CMA, MEMFD)], SYSTEM, (f'it is the first of {SYSTEM}, {CMA}, {MEMFD} '
                                                'and suits every participant')),
        ([camera(SYSTEM, CMA, UDMABUF), metis(True, NO_GROUP)], CMA,
             f"metis needs contiguous memory ({NO_GROUP}), which heap '{SYSTEM}' is not"),
        ([camera(SYSTEM, UDMABUF, CMA), metis(True)], CMA,
             f"metis needs contiguous memory, which heaps '{SYSTEM}', '{UDMABUF}' are not"),
        ([camera(SYSTEM, CMA), metis(note=UNKNOWN)], SYSTEM,
         f'it is the first of {SYSTEM}, {CMA} and suits every participant; metis: {UNKNOWN}'),
        ([camera(MEMFD, note='there is no /dev/udmabuf')], MEMFD,
         'no other heap is offered (camera: there is no /dev/udmabuf)'),
        ([camera('v4l2/uvcvideo', note="the driver's own buffers are used"),
             metis(True, NO_GROUP)], 'v4l2/uvcvideo',
             ("no other heap is offered (camera: the driver's own buffers are used); only the "
             'import by metis shows whether this memory is contiguous')),
        ([who('camera', 'NV12 linear'), who('npu', heaps=('dma_heap/', 'udmabuf'))], UDMABUF,
         'no other heap is offered'),
    ],
)  # fmt: skip
def test_the_first_that_suits_everybody_is_chosen_and_the_reason_is_one_line(
    participants: list[BufferConstraints], heap: str, because: str
) -> None:
    choice = choose_heap(participants, None)
    assert choice.heap is not None and not choice.objection
    assert (choice.heap.name, choice.reason) == (heap, f'heap {heap} because {because}')


# Constraints that can't be satisfied are refused on creation, with one sentence.


def test_of_many_formats_the_first_few_are_shown() -> None:
    nv12 = (fourcc_code('NV12'), LINEAR)
    assert formats_text(None) == 'any'
    assert formats_text([nv12] * 4) == ', '.join(['NV12 LINEAR'] * 4)
    assert formats_text([nv12] * 5) == 'NV12 LINEAR, NV12 LINEAR, NV12 LINEAR and 2 more'


def test_without_limits_a_layout_is_tight() -> None:
    (plane,) = ImageLimits().layout(fourcc_code('R8  '), (5, 3), None).planes
    assert (plane.stride, plane.size) == (5, 15)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        (
            {'stride_align': 0},
            "constraints of 'npu': stride_align 0 is not an integer in 1 .. 1073741824",
        ),
        ({'height_align': 1.5}, 'height_align 1.5 is not'),
        (
            {'formats': (f('NV12 linear'), f('NV12 linear'))},
            'NV12 LINEAR is listed twice; name each format once',
        ),
        ({'formats': ((NV12, 1 << 64),)}, 'NV12: modifier 0x10000000000000000'),
        (
            {'formats': (f('NV12 linear'),), 'costs': ()},
            'costs has 0 entries for 1 formats; state one for each',
        ),
        (
            {'formats': (f('NV12 linear'),), 'costs': (math.inf,)},
            'must be finite numbers; leave out formats that must not be chosen',
        ),
        ({'min_size': (10, 10), 'max_size': (20, 9)}, 'min_size 10x10 is above max_size 20x9'),
        ({'slots': 4, 'max_slots': 3}, 'slots 4 must be at most max_slots 3'),
    ],
)
def test_impossible_constraints_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NegotiationError) as refused:
        BufferConstraints('npu', **fields)
    assert message in str(refused.value) and "constraints of 'npu'" in str(refused.value)


@pytest.mark.parametrize(
    ('heaps', 'heap', 'accepted'),
    [
        (None, 'memfd', True), (('dma_heap/',), 'dma_heap/system', True),
        (('dma_heap/',), 'dma_heap', False), (('dma_heap/sys',), 'dma_heap/system', False),
        ((), 'memfd', False),
    ],
)  # fmt: skip
def test_heaps_are_names_or_prefixes(
    heaps: tuple[str, ...] | None, heap: str, accepted: bool
) -> None:
    assert BufferConstraints('npu', heaps=heaps).accepts_heap(heap) is accepted


@pytest.mark.parametrize(
    ('name', 'contiguous', 'reaches'),
    [
        ('dma_heap/system', False, True), ('udmabuf', False, True), ('memfd', False, False),
        ('v4l2/vivid', None, True),
    ],
)  # fmt: skip
def test_what_a_heap_s_name_tells(name: str, contiguous: bool | None, reaches: bool) -> None:
    offer = heap_offer(name)
    assert (offer.contiguous, offer.attachable) == (contiguous, reaches)


# The checks that apply both to late joiners and to allocators' answers.

BASE = BufferSettings(
    compute_layout(NV12, 640, 480, stride_align=64, offset_align=64),
    4,
    HeapOffer('dma_heap/system', contiguous=False),
)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        (
            {'formats': (f('NV12 tiled'), f('YUYV linear'))},
            'format NV12 LINEAR is not accepted (accepted: NV12 NVIDIA',
        ),
        ({'stride_align': 256}, 'plane 0: stride 640 is not a multiple of stride_align 256'),
        (
            {'offset_align': 65536},
            'plane 1: offset 307200 is not a multiple of offset_align 65536',
        ),
        ({'max_stride': 639}, 'a stride of 640 bytes is above max_stride 639'),
        ({'height_align': 64}, 'plane 0 has 307200 bytes, too few for 512 rows (height_align 64)'),
        ({'min_size': (641, 1)}, 'takes images of at least 641x1, not 640x480'),
        ({'max_size': (640, 479)}, 'takes images of at most 640x479, not 640x480'),
        (
            {'placement': Placement.BUFFER_PER_PLANE},
            'planes lie in 1 buffer(s), but this participant needs one buffer for each plane',
        ),
        ({'contiguous': True}, "needs contiguous memory, which heap 'dma_heap/system' is not"),
        ({'slots': 5}, 'there are 4 slots, but this participant needs 5'),
        ({'max_slots': 3}, 'there are 4 slots, but this participant allows at most 3 (max_slots)'),
    ],
)
def test_every_constraint_is_checked_against_the_buffers(
    fields: dict[str, Any], message: str
) -> None:
    found = violations(BufferConstraints('npu', **fields), BASE)
    assert message in found[0] and len(found) <= len(BASE.layout.planes), found


def test_the_last_row_need_not_be_whole() -> None:
    """A driver's buffer may end with the last pixel."""
    luma, chroma = compute_layout(NV12, 60, 48, stride_align=64).planes
    cut = replace(
        BASE,
        layout=ImageLayout(60, 48, NV12, LINEAR, (luma, replace(chroma, size=chroma.size - 4))),
    )
    assert violations(BufferConstraints('npu'), cut) == []
    assert 'too few for 64 rows' in violations(BufferConstraints('npu', height_align=64), cut)[0]
    shorter = replace(
        cut, layout=replace(cut.layout, planes=(luma, replace(chroma, size=chroma.size - 5)))
    )
    assert violations(BufferConstraints('npu'), shorter) == [
        'plane 1 has 1531 bytes, too few for 48 rows (height_align 1)'
    ]


@pytest.mark.parametrize(
    'fields', [{'heaps': ('udmabuf',)}, {'contiguous': True}, {'devices': ('/dev/metis-0:1:0',)}]
)
def test_memory_of_an_unknown_heap_is_no_promise(fields: dict[str, Any]) -> None:
    unknown = replace(BASE, heap=None)
    assert violations(BufferConstraints('npu', **fields), unknown) == [
        'this participant wants a certain kind of memory, but the heap of these buffers is '
        'not known'
    ]
    assert violations(BufferConstraints('viewer'), unknown) == []


def test_a_cpu_and_an_unknown_layout() -> None:
    implicit = replace(BASE, layout=replace(BASE.layout, modifier=INVALID))
    assert violations(who('cpu', cpu_access=CpuAccess.READ), implicit) == [
        'format NV12 INVALID is not accepted (accepted: LINEAR formats, because the CPU accesses '
        'the frames)'
    ]
    assert violations(who('viewer'), implicit) == []


def test_mixed_planes_are_neither_placement() -> None:
    yu12 = f('YU12 linear')[0]
    planes = (
        PlaneLayout(0, 0, 64, 64 * 48),
        PlaneLayout(1, 0, 32, 32 * 24),
        PlaneLayout(1, 32 * 24, 32, 32 * 24),
    )
    settings = BufferSettings(ImageLayout(64, 48, yu12, LINEAR, planes), 1)
    assert settings.placement is None
    for placement in Placement:
        assert len(violations(BufferConstraints('npu', placement=placement), settings)) == 1
    one_plane = BufferSettings(compute_layout(f('YUYV linear')[0], 64, 48), 1)
    assert all(not violations(BufferConstraints('npu', placement=p), one_plane) for p in Placement)


STEPS = st.sampled_from([1, 3, 16, 64, 100])


@given(
    st.lists(
        st.tuples(STEPS, STEPS, STEPS, st.none() | st.integers(1, 9999)), min_size=1, max_size=4
    )
)
def test_joint_limits_keep_everybody_s(limits: list[tuple[int, int, int, int | None]]) -> None:
    joint = joint_limits([
        BufferConstraints(f'p{number}', stride_align=stride, offset_align=offset,
                          height_align=height, max_stride=most)
        for number, (stride, offset, height, most) in enumerate(limits)
    ])  # fmt: skip
    for stride, offset, height, most in limits:
        assert (
            joint.stride_align % stride
            == joint.offset_align % offset
            == joint.height_align % height
            == 0
        )
        assert most is None or (joint.max_stride is not None and joint.max_stride <= most)
    assert joint.max_stride in {most for *_, most in limits}
    layout = joint.layout(NV12, (64, 48), None)
    assert all(
        not violations(BufferConstraints('p', height_align=height), BufferSettings(layout, 1))
        for _, _, height, _ in limits
    )
