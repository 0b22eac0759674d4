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

"""Records and kernel events of a perfectly regular graph, and rules for every trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
import itertools
import json
from typing import Any

from zc_perception.observe.frame_log import FrameRecord, RecordKind
from zc_perception.observe.timeline import KernelEvent, NodeTrack

MS = 1_000_000
BASE = 39_000_000 * MS
PERIOD = 33 * MS
CAPTURE_THREAD, INFERENCE_THREAD, DEVICE_THREAD = 1201, 1301, 99
CAPTURE_PID, INFERENCE_PID = 1200, 1300
CONTEXT = 40


def event(time_ns: int, name: str, tid: int = INFERENCE_THREAD, **fields: object) -> KernelEvent:
    return KernelEvent(
        time_ns, 1, 'inference', tid, name, {key: str(value) for key, value in fields.items()}
    )


def published(n: int, **changes: Any) -> FrameRecord:
    """
    Return the record of a frame captured at BASE + n * PERIOD after 2 ms of work.

    It is published 0.1 ms later, and delivered after 0.4 ms more. Four slots take turns.
    """
    t = BASE + n * PERIOD
    record = FrameRecord(
        number=n + 1, kind=RecordKind.PUBLISHED, sequence=n, generation=n // 4 + 1,
        buffer_uid=500 + n % 4, stamp_ns=10**18 + n * PERIOD,
        captured_ns=t, published_ns=t + MS // 10, received_ns=0, submitted_ns=0, signalled_ns=0,
        done_ns=0, decoded_ns=0,
        sent_ns=t + MS // 2, capture_cost_ns=2 * MS, inodes=(100 + n % 4,), st_dev=11,
        device_handle=0, detections=0, device_seqno=0,
        thread_id=CAPTURE_THREAD,
    )  # fmt: skip
    return record._replace(**changes)


def processed(n: int, **changes: Any) -> FrameRecord:
    """
    Return the record of a frame that was received 1 ms after its capture.

    It is submitted at 2 ms, its fence is seen at 12 ms, it is decoded from 13 to 15 ms, and sent
    at 16 ms.
    """
    t = BASE + n * PERIOD
    record = published(n)._replace(
        kind=RecordKind.PROCESSED, received_ns=t + MS, submitted_ns=t + 2 * MS,
        signalled_ns=t + 12 * MS, done_ns=t + 13 * MS,
        decoded_ns=t + 15 * MS, sent_ns=t + 16 * MS, device_handle=1 + n % 4, detections=3,
        device_seqno=n + 1,
        thread_id=INFERENCE_THREAD,
    )  # fmt: skip
    return record._replace(**changes)


def kernel_events(n: int) -> list[KernelEvent]:
    t, inode, handle = BASE + n * PERIOD, 100 + n % 4, 1 + n % 4
    fence = {'context': CONTEXT, 'seqno': n + 1}
    job = {'handle': handle, 'ctx': CONTEXT, 'seqno': n + 1}
    known = {'exporter': 'system', 'iova': '0x1000', 'size': 4096}
    return [
        event(t + MS + 100, 'dma_buf_attach', inode=inode),
        event(t + MS + 300, 'axl_dmabuf_import', handle=handle, inode=inode, **known),
        event(t + 2 * MS + 50, 'dma_fence_init', **fence),
        event(t + 2 * MS + 100, 'axl_submit', model=1, **job),
        event(t + 3 * MS, 'dma_fence_wait_start', **fence),
        event(t + 11 * MS, 'axl_complete', DEVICE_THREAD, status=0, **job),
        event(t + 11 * MS + 100, 'dma_fence_signaled', DEVICE_THREAD, **fence),
        event(t + 11 * MS + 200, 'dma_fence_wait_end', **fence),
        event(t + 16 * MS + 100, 'axl_dmabuf_release', handle=handle, inode=inode),
        event(t + 16 * MS + 200, 'dma_buf_detach', ino=inode),
    ]


def nodes(frames: int) -> list[NodeTrack]:
    return [
        NodeTrack('/capture', 'capture', CAPTURE_PID, [published(n) for n in range(frames)]),
        NodeTrack('/inference', 'inference', INFERENCE_PID, [processed(n) for n in range(frames)]),
    ]


def check_rules(trace: Mapping[str, Any]) -> None:
    """
    Check the rules of the trace-event format, and the package's own.

    Slices of one track never overlap; flows go forward and begin inside slices.
    """
    assert (
        set(trace) == {'traceEvents', 'displayTimeUnit', 'otherData'}
        and trace['displayTimeUnit'] == 'ms'
    )
    json.dumps(trace, allow_nan=False)
    events: Sequence[Mapping[str, Any]] = trace['traceEvents']
    assert {e['ph'] for e in events} <= set('MXistf')
    named = {(e['pid'], e['tid'], e['name']) for e in events if e['ph'] == 'M'}
    timed = [e for e in events if e['ph'] != 'M']
    assert [e['ts'] for e in timed] == sorted(e['ts'] for e in timed)
    by_track = defaultdict[tuple[int, int], list[Mapping[str, Any]]](list)
    for e in timed:
        assert {(e['pid'], e['tid'], 'thread_name'), (e['pid'], 0, 'process_name')} <= named
        assert isinstance(e['name'], str) and e['name']
        assert isinstance(e['ts'], float) and e['ts'] >= 0
        if e['ph'] == 'X':
            assert e['dur'] > 0
            by_track[e['pid'], e['tid']].append(e)
        elif e['ph'] == 'i':
            assert e['s'] == 't'
    for slices in by_track.values():
        for earlier, later in itertools.pairwise(slices):
            assert earlier['ts'] + earlier['dur'] <= later['ts'] + 1e-4, (earlier, later)
    flows = defaultdict[int, list[Mapping[str, Any]]](list)
    for e in timed:
        if e['ph'] in 'stf':
            flows[e['id']].append(e)
            assert any(
                s['ts'] <= e['ts'] < s['ts'] + s['dur'] for s in by_track[e['pid'], e['tid']]
            ), e
    for steps in flows.values():
        steps.sort(key=lambda step: (step['ts'], 'stf'.index(step['ph'])))
        phases = ''.join(step['ph'] for step in steps)
        assert phases[0] == 's' and phases[-1] == 'f' and set(phases[1:-1]) <= {'t'}, phases


def slices(trace: Mapping[str, Any], category: str) -> list[Mapping[str, Any]]:
    return [e for e in trace['traceEvents'] if e['ph'] == 'X' and e['cat'] == category]


def instants(trace: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return [e for e in trace['traceEvents'] if e['ph'] == 'i' and e['name'] == name]


def track_names(trace: Mapping[str, Any]) -> dict[tuple[int, int], str]:
    return {
        (e['pid'], e['tid']): e['args']['name']
        for e in trace['traceEvents']
        if e['ph'] == 'M' and e['name'] == 'thread_name'
    }
