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

"""Constraints that nobody could satisfy are refused where they are made, in one sentence."""

from __future__ import annotations

import math
from typing import Any

from negotiation.kit import f, NV12, TILED, who
import pytest

from zc_perception.errors import NegotiationError
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.settings import heap_offer
from zc_perception.pixel.modifier import INVALID, LINEAR


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        (
            {'stride_align': 0},
            "constraints of 'npu': stride_align 0 is not an integer in 1 .. 1073741824",
        ),
        ({'offset_align': -64}, 'offset_align -64 is not'),
        ({'height_align': 1.5}, 'height_align 1.5 is not'),
        ({'stride_align': True}, 'stride_align True is not'),
        ({'max_stride': 0}, 'max_stride 0 is not an integer in 1 .. 4294967295'),
        (
            {'formats': (f('NV12 linear'), f('NV12 linear'))},
            'NV12 LINEAR is listed twice; name each format once',
        ),
        ({'formats': ((NV12, 1 << 64),)}, 'NV12: modifier 0x10000000000000000'),
        ({'formats': ((NV12, -1),)}, 'NV12: modifier'),
        (
            {'formats': (f('NV12 linear'),), 'costs': ()},
            'costs has 0 entries for 1 formats; state one for each',
        ),
        ({'costs': (1.0,)}, 'costs has 1 entries for 0 formats'),
        (
            {'formats': (f('NV12 linear'),), 'costs': (math.inf,)},
            'must be finite numbers; leave out what must not be chosen',
        ),
        ({'min_size': (0, 1)}, 'min_size 0 is not an integer in 1 .. 65535'),
        ({'max_size': (1, 1 << 16)}, 'max_size 65536 is not'),
        ({'min_size': (10, 10), 'max_size': (20, 9)}, 'min_size 10x10 is above max_size 20x9'),
        ({'slots': -1}, 'slots -1 is not an integer in 0 .. 65536'),
        ({'max_slots': 0}, 'max_slots 0 is not an integer in 1 .. 65536'),
        ({'slots': 4, 'max_slots': 3}, 'slots 4 must be at most max_slots 3'),
    ],
)
def test_impossible_constraints_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(NegotiationError) as refused:
        BufferConstraints('npu', **fields)
    assert message in str(refused.value) and "constraints of 'npu'" in str(refused.value)


def test_none_means_any_and_an_empty_list_means_none() -> None:
    for fmt in (f('NV12 linear'), f('NV12 tiled'), f('YUYV implicit')):
        assert who('viewer').accepts_format(fmt) and not BufferConstraints(
            'nobody', formats=()
        ).accepts_format(fmt)


def test_formats_are_pairs() -> None:
    npu = who('npu', 'NV12 tiled', 'YUYV linear')
    assert (
        npu.accepts_format(f('NV12 tiled'))
        and not npu.accepts_format(f('NV12 linear'))
        and not npu.accepts_format(f('YUYV tiled'))
    )


def test_a_cpu_reads_rows() -> None:
    for access in (CpuAccess.READ, CpuAccess.WRITE):
        cpu = who('cpu', cpu_access=access)
        assert [cpu.accepts_format((NV12, m)) for m in (LINEAR, TILED, INVALID)] == [
            True,
            False,
            False,
        ]


def test_costs_are_stated_or_the_place_in_the_list() -> None:
    assert [
        who('a', 'NV12 linear', 'NV12 tiled').format_cost(f(t))
        for t in ('NV12 linear', 'NV12 tiled', 'YUYV linear')
    ] == [0, 1, 0]
    assert who('a', 'NV12 linear', costs=(7.5,)).format_cost(f('NV12 linear')) == 7.5
    assert who('a').format_cost(f('NV12 linear')) == 0.0


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
def test_heaps_are_names_or_prefixes(
    heaps: tuple[str, ...] | None, heap: str, accepted: bool
) -> None:
    assert BufferConstraints('npu', heaps=heaps).accepts_heap(heap) is accepted


@pytest.mark.parametrize(
    ('name', 'contiguous', 'reaches'),
    [
        ('dma_heap/system', False, True),
        ('dma_heap/linux,cma', True, True),
        ('dma_heap/reserved', True, True),
        ('dma_heap/default_cma_region', True, True),
        ('udmabuf', False, True),
        ('memfd', False, False),
        ('v4l2/vivid', None, True),
    ],
)
def test_what_a_heap_s_name_tells(name: str, contiguous: bool | None, reaches: bool) -> None:
    offer = heap_offer(name)
    assert (offer.contiguous, offer.attachable) == (contiguous, reaches)
