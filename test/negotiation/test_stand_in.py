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

"""
The text of parameter ``participants``.

What each word means, and what is said about those that mean nothing.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from negotiation.kit import NV12, R8, TILED, YUYV
import pytest

from zc_perception.errors import ConfigError
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.negotiation.constraints import (
    BufferConstraints,
    parse_stand_in,
    parse_stand_ins,
    Placement,
)
from zc_perception.pixel.modifier import INVALID, LINEAR


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('npu: any', {}),
        ('npu: NV12', {'formats': ((NV12, LINEAR),)}),
        ('npu: R8 R8:INVALID', {'formats': ((R8, LINEAR), (R8, INVALID))}),
        (
            (f'npu: NV12 NV12:0x{TILED:016x}; stride_align=256; heap=dma_heap/; slots=2; '
             'contiguous'),
            {'formats': ((NV12, LINEAR), (NV12, TILED)), 'stride_align': 256,
             'heaps': ('dma_heap/',), 'slots': 2, 'contiguous': True},
        ),
        ('  npu :  NV12:INVALID   YUYV  ;slots = 1 ', {'formats': ((NV12, INVALID),
                                                                   (YUYV, LINEAR)), 'slots': 1}),
        (
            'a/b-c_d.e: any; offset_align=4096; height_align=16; max_stride=8192; '
            'min_size=16x16; max_size=1920x1080; '
            'max_slots=9',
            {'offset_align': 4096, 'height_align': 16, 'max_stride': 8192, 'min_size': (16, 16),
             'max_size': (1920, 1080),
             'max_slots': 9},
        ),
        ('npu: any; heap=udmabuf | dma_heap/; device=/dev/metis-0:1:0; cpu=read; one_buffer',
         {'heaps': ('udmabuf', 'dma_heap/'), 'devices': ('/dev/metis-0:1:0',),
          'cpu_access': CpuAccess.READ, 'placement': Placement.ONE_BUFFER}),
        ('npu: any; cpu=read_write; buffer_per_plane',
         {'cpu_access': CpuAccess.READ | CpuAccess.WRITE,
          'placement': Placement.BUFFER_PER_PLANE}),
    ],
)  # fmt: skip
def test_text_is_constraints(text: str, expected: dict[str, Any]) -> None:
    name = text.partition(':')[0].strip()
    assert parse_stand_in(text) == BufferConstraints(name, **expected)


@pytest.mark.parametrize(
    ('text', 'heaps'),
    [
        ('dma_heap/linux,cma', ('dma_heap/linux,cma',)),
        ('dma_heap/linux,cma | dma_heap/system', ('dma_heap/linux,cma', 'dma_heap/system')),
        (
            'dma_heap/system|dma_heap/linux,cma|v4l2/odd,name',
            ('dma_heap/system', 'dma_heap/linux,cma', 'v4l2/odd,name'),
        ),
        ('udmabuf | dma_heap/', ('udmabuf', 'dma_heap/')),
        ('nvmap', ('nvmap',)),
    ],
)
def test_every_heap_s_name_can_be_written(text: str, heaps: tuple[str, ...]) -> None:
    assert parse_stand_in(f'npu: any; heap={text}').heaps == heaps


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', 'it must begin with a name of letters, digits, _ . / - and a colon: NAME: FORMAT'),
        ('NV12', 'it must begin with a name'),
        ('my npu: NV12', 'it must begin with a name'),
        (': NV12', 'it must begin with a name'),
        ('npu:', "npu has no format; write drm-formats such as NV12, or 'any'"),
        ('npu: ; slots=2', 'npu has no format'),
        ('npu: NV99', "pixel format 'NV99' (0x3939564e) is not known"),
        ('npu: NV99:INVALID', "pixel format 'NV99' (0x3939564e) is not known"),
        ('npu: NV12:0x0', 'NV12'),
        ('npu: NV12:tiled', 'NV12:tiled'),
        ('npu: NV12 NV12', 'NV12 LINEAR is listed twice'),
        (
            'npu: NV12; stide_align=256',
            (
                "option 'stide_align' is unknown; did you mean 'stride_align'?; known are "
                'stride_align,'
            ),
        ),
        ('npu: NV12; contigous', "option 'contigous' is unknown; did you mean 'contiguous'?"),
        ('npu: NV12; contiguous=yes', "option 'contiguous' takes no value; write it alone"),
        ('npu: NV12; slots', "option 'slots' needs a value: slots=…"),
        ('npu: NV12; slots=', "option 'slots' needs a value"),
        ('npu: NV12; slots=two', "option 'slots' is 'two'; it must be a whole number"),
        ('npu: NV12; slots=-1', "option 'slots' is '-1'; it must be a whole number"),
        ('npu: NV12; stride_align=0', 'stride_align 0 is not an integer in 1 .. 1073741824'),
        (
            'npu: NV12; max_size=1920',
            "option 'max_size' is '1920'; it must be WIDTHxHEIGHT, such as 1920x1080",
        ),
        ('npu: NV12; max_size=1x1; min_size=2x2', 'min_size 2x2 is above max_size 1x1'),
        (
            'npu: NV12; heap=a,,b',
            (
                "option 'heap' is 'a,,b'; it must be names with | between them, such as "
                'dma_heap/linux,cma'
            ),
        ),
        ('npu: NV12; heap=udmabuf,nvmap', 'it must be names with | between them'),
        ('npu: NV12; heap=dma_heap/linux,cma,dma_heap/system', 'it must be names with | between'),
        ('npu: NV12; heap=|', 'it must be names with | between them'),
        (
            'npu: NV12; cpu=raed',
            (
                "option 'cpu' is 'raed'; it must be one of read, write, read_write; did you mean "
                "'read'?"
            ),
        ),
        ('npu: NV12;', 'there is an empty option; remove a semicolon'),
        ('npu: NV12; slots=1; slots=2', "'slots=2' says slots a second time"),
        (
            'npu: NV12; one_buffer; buffer_per_plane',
            "'buffer_per_plane' says placement a second time",
        ),
    ],
)
def test_anything_else_is_one_sentence_with_the_nearest_word(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_stand_in(text)
    assert message in str(refused.value) and str(refused.value).startswith(
        f"parameter 'participants': '{text}'"
    )


def test_a_list_leaves_empty_entries_out_and_has_each_name_once() -> None:
    assert parse_stand_ins(['', '  ']) == []
    assert [c.participant for c in parse_stand_ins(['a: any', '', 'b: NV12'])] == ['a', 'b']
    with pytest.raises(ConfigError, match="'a' stands there twice; give each its own name"):
        parse_stand_ins(['a: any', 'a: NV12'])


@given(st.text(alphabet='npu: NV12;=xany_slots0', max_size=40))
def test_any_text_is_constraints_or_a_config_error(text: str) -> None:
    try:
        assert isinstance(parse_stand_in(text), BufferConstraints)
    except ConfigError as error:
        assert "parameter 'participants'" in str(error)


def test_every_constraint_can_be_written_but_costs_and_upgrade() -> None:
    from zc_perception.negotiation import constraints

    written = {name for name, *_ in (*constraints._OPTIONS.values(), *constraints._FLAGS.values())}
    own = {field.name for field in fields(BufferConstraints)} - {'participant', 'formats'}
    assert own - written == {'costs', 'memory_note', 'format_heaps'}
