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

"""Lines of the trace, as kernels wrote them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from zc_perception.verify.evidence.kernel_events import parse_event, parse_trace

RECORDED = """\
           <...>-203     [000] .....    31.797907: axl_complete: handle=9 ctx=1 seqno=111 status=0
           <...>-203     [000] d..1.    31.798347: dma_fence_signaled: \
driver=axl timeline=metis-0 context=1 seqno=111
           <...>-203     [000] .....    31.800359: dma_buf_detach: \
(dma_buf_detach+0x4/0xd0) ino=5 dev_name="0000:01:00.0"
           <...>-221     [000] ...1.    31.844916: dma_buf_dynamic_attach: \
(axl_attach+0x47/0x120 [metis_virtual] <- dma_buf_dynamic_attach) ino=5 \
dev_name="0000:01:00.0" result=0xff41de9d0f8628a0
          <idle>-0       [001] d.h1.    31.844920: dma_fence_init: \
driver=axl timeline=metis-0 context=1 seqno=112
"""


@pytest.mark.parametrize(
    ('line', 'wanted'),
    [
        (
            RECORDED.splitlines()[2],
            '31800359000 0 <...> 203 dma_buf_detach ino=5 dev_name=0000:01:00.0',
        ),
        (
            'gst-launch-1.0-3142 [003] d..2. 123.456789: axl_dmabuf_import: handle=17 '
            'inode=41023 exporter=nvmap size=3110400',
            '123456789000 3 gst-launch-1.0 3142 axl_dmabuf_import handle=17 inode=41023 '
            'exporter=nvmap size=3110400',
        ),
        (
            '   a name-with-7-7  ( 42) [002] .... 5.000001: vb2_mmap: (vb2_mmap+0x0/0x10 '
            '[videobuf2_common]) rdev=84934656',
            '5000001000 2 a name-with-7 7 vb2_mmap rdev=84934656',
        ),
        (
            ' python3-9 [000] ..... 12.000000: libc_copy_0: (0x7f0000001000) dst=0x1000 '
            'src=0x2000 n=65536',
            '12000000000 0 python3 9 libc_copy_0 dst=0x1000 src=0x2000 n=65536',
        ),
        (
            ' python3-9 [000] ..... 12.000000: dma_buf_mmap_internal <-mmap_region',
            '12000000000 0 python3 9 dma_buf_mmap_internal',
        ),
    ],
)
def test_lines_of_kernels(line: str, wanted: str) -> None:
    event = parse_event(line)
    assert event is not None
    fields = [f'{name}={value}' for name, value in event.fields.items()]
    parts = (event.time_ns, event.cpu, event.comm, event.tid, event.name, *fields)
    assert ' '.join(map(str, parts)) == wanted


def test_a_recorded_trace_comes_in_the_order_of_time() -> None:
    shuffled = RECORDED.splitlines()[::-1]
    trace = parse_trace(['# tracer: nop', '#', '', *shuffled])
    assert [event.time_ns for event in trace.events] == sorted(
        event.time_ns for event in trace.events
    )
    assert (len(trace.events), trace.lost, trace.damaged, trace.gap) == (5, 0, 0, '')
    assert len(trace.named('dma_fence_init')) == 1
    assert [event.inode for event in trace.named('dma_buf_detach', 'axl_complete')] == [-1, 5]


@pytest.mark.parametrize(
    ('line', 'lost', 'damaged'),
    [
        ('CPU:1 [LOST 12 EVENTS]', 12, 0),
        ('CPU:0 [LOST EVENTS]', 1, 0),
        ('something else', 0, 1),
        ('[LINE TOO BIG]', 0, 1),
        ('   <...>-203     [000] .....    31.79', 0, 1),
    ],
)
def test_what_the_kernel_lost_is_counted(line: str, lost: int, damaged: int) -> None:
    trace = parse_trace([*RECORDED.splitlines(), line])
    assert (len(trace.events), trace.lost, trace.damaged) == (5, lost, damaged)
    assert trace.gap == (
        f"the kernel's trace lost {lost} events"
        if lost
        else "the kernel's trace has 1 lines that cannot be read"
    )


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=15),
    st.integers(1, 4194304),
    st.integers(0, 255),
    st.integers(0, 10**8),
    st.integers(0, 999_999),
    st.dictionaries(
        st.from_regex(r'[a-z_]{1,8}', fullmatch=True), st.integers(0, 2**64 - 1), max_size=4
    ),
)
def test_any_event_is_read_back(
    comm: str, tid: int, cpu: int, seconds: int, micros: int, fields: dict[str, int]
) -> None:
    text = ' '.join(f'{name}={value}' for name, value in fields.items())
    event = parse_event(
        f'{comm:>16}-{tid:<7} [{cpu:03}] d..1. {seconds:5}.{micros:06}: some_event: {text}'
    )
    assert event is not None
    assert (event.tid, event.cpu, event.time_ns) == (tid, cpu, seconds * 10**9 + micros * 1000)
    assert {name: event.number(name) for name in fields} == fields
