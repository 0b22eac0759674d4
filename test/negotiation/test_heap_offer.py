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

"""Which heap is chosen of those on offer, and why."""

from __future__ import annotations

from negotiation.kit import who
import pytest

from zc_perception.negotiation.agreement import choose_heap, offers_of
from zc_perception.negotiation.constraints import BufferConstraints, parse_stand_in
from zc_perception.negotiation.settings import heap_offer, HeapOffer

SYSTEM, CMA, UDMABUF, MEMFD = 'dma_heap/system', 'dma_heap/linux,cma', 'udmabuf', 'memfd'
CARD = '/dev/metis-0:1:0'
NO_GROUP = 'the card is in no IOMMU group'
UNKNOWN = 'whether the card is behind an IOMMU is not known: its PCI address is unknown'


def camera(*heaps: str, note: str = '') -> BufferConstraints:
    return who('camera', 'NV12 linear', heaps=heaps, memory_note=note)


def metis(contiguous: bool = False, note: str = '') -> BufferConstraints:
    heaps = ('dma_heap/', 'udmabuf', 'v4l2/')
    return who(
        'metis',
        'NV12 linear',
        heaps=heaps,
        devices=(CARD,),
        contiguous=contiguous,
        memory_note=note,
    )


def chosen(*participants: BufferConstraints) -> tuple[str, str]:
    choice = choose_heap(participants, None)
    assert choice.heap is not None and not choice.objection
    return choice.heap.name, choice.reason


@pytest.mark.parametrize(
    ('participants', 'heap', 'because'),
    [
        ([camera(SYSTEM, CMA, MEMFD)], SYSTEM, (f'it comes first of {SYSTEM}, {CMA}, {MEMFD} '
                                                'and suits everybody')),
        ([camera(CMA, SYSTEM), metis()], CMA, (f'it comes first of {CMA}, {SYSTEM} and suits '
                                               'everybody')),
        (
            [camera(SYSTEM, CMA, UDMABUF), metis(True, NO_GROUP)],
            CMA,
            f"metis needs contiguous memory ({NO_GROUP}), which heap '{SYSTEM}' is not",
        ),
        (
            [camera(MEMFD, SYSTEM), metis()],
            SYSTEM,
            f"metis can't use buffers of heap '{MEMFD}', only of dma_heap/, udmabuf, v4l2/",
        ),
        (
            [camera(SYSTEM, UDMABUF, CMA), metis(True)],
            CMA,
            f"metis needs contiguous memory, which heaps '{SYSTEM}', '{UDMABUF}' are not",
        ),
        ([camera(SYSTEM, CMA), metis(note=UNKNOWN)], SYSTEM,
         f'it comes first of {SYSTEM}, {CMA} and suits everybody; metis: {UNKNOWN}'),
        ([camera(MEMFD)], MEMFD, 'no other is on offer'),
        ([camera(MEMFD, note='there is no /dev/udmabuf')], MEMFD, ('no other is on offer (camera: '
                                                                   'there is no /dev/udmabuf)')),
        (
            [camera('v4l2/uvcvideo', note="the driver's own buffers are used"),
             metis(True, NO_GROUP)],
            'v4l2/uvcvideo',
            ("no other is on offer (camera: the driver's own buffers are used); only the "
             'import tells metis whether it is contiguous'),
        ),
        ([camera(SYSTEM, CMA), parse_stand_in(f'isp: NV12; heap={CMA}')], CMA,
         f"isp can't use buffers of heap '{SYSTEM}', only of {CMA}"),
        ([camera(SYSTEM, CMA), parse_stand_in('isp: NV12; contiguous')], CMA,
         f"isp needs contiguous memory, which heap '{SYSTEM}' is not"),
        ([who('camera', 'NV12 linear'), who('npu', heaps=('dma_heap/', 'udmabuf'))], UDMABUF,
         'no other is on offer'),
    ],
)  # fmt: skip
def test_the_first_that_suits_everybody_is_chosen_and_the_reason_is_one_line(
    participants: list[BufferConstraints], heap: str, because: str
) -> None:
    assert chosen(*participants) == (heap, f'heap {heap} because {because}')


@pytest.mark.parametrize(
    ('participants', 'objection'),
    [
        (
            [camera(SYSTEM, UDMABUF, MEMFD, note='this machine has no CMA heap in /dev/dma_heap'),
             metis(True, NO_GROUP)],
            f"metis needs contiguous memory ({NO_GROUP}), which heaps '{SYSTEM}', '{UDMABUF}' "
            'are not; '
            f"metis can't use buffers of heap '{MEMFD}', only of dma_heap/, udmabuf, v4l2/ "
            "(camera: this machine has no CMA heap in /dev/dma_heap); set parameter 'heap'",
        ),
        (
            [camera(SYSTEM, note=f"parameter 'heap' is '{SYSTEM}'"),
             parse_stand_in(f'isp: any; heap={CMA} | memfd')],
            f"isp can't use buffers of heap '{SYSTEM}', only of {CMA}, memfd "
            f"(camera: parameter 'heap' is '{SYSTEM}'); set parameter 'heap'",
        ),
        ([camera(MEMFD), who('npu', devices=(CARD,))], (f"{CARD} of npu can't attach to buffers "
                                                        "of heap 'memfd'; set parameter 'heap'")),
        (
            [who('camera', 'NV12 linear'), who('npu', heaps=('dma_heap/',)),
             who('isp', contiguous=True)],
            "npu, isp: wants certain memory, but no heap is offered; set parameter 'heap'",
        ),
    ],
)  # fmt: skip
def test_where_no_heap_suits_everybody_each_objection_is_said_once(
    participants: list[BufferConstraints], objection: str
) -> None:
    choice = choose_heap(participants, None)
    assert (choice.heap, choice.reason, choice.objection) == (None, '', objection)


def test_nobody_has_to_care() -> None:
    choice = choose_heap([who('camera', 'NV12 linear'), who('npu')], None)
    assert (choice.heap, choice.reason, choice.objection) == (None, '', '')


def test_the_camera_s_heaps_are_the_offer_and_prefixes_are_none() -> None:
    assert [
        offer.name
        for offer in offers_of([camera(SYSTEM, CMA), who('npu', heaps=(UDMABUF,))], None)
    ] == [SYSTEM, CMA]
    assert [
        offer.name
        for offer in offers_of(
            [who('camera', 'NV12 linear'), who('npu', heaps=(UDMABUF, 'dma_heap/'))], None
        )
    ] == [UDMABUF]


@pytest.mark.parametrize(('contiguous', 'objects'), [(True, False), (None, False), (False, True)])
def test_whether_memory_is_contiguous_only_an_import_tells_where_nobody_knows(
    contiguous: bool | None, objects: bool
) -> None:
    assert (
        bool(HeapOffer('x', contiguous=contiguous).objections(who('isp', contiguous=True), None))
        == objects
    )


def test_a_vendor_s_cma_heap_is_contiguous_by_its_name() -> None:
    assert heap_offer('dma_heap/vidmem_cma').contiguous is True
