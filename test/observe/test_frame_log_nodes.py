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
The frame logs of real nodes.

What they write while frames flow, seen as another process sees it, and that nothing of them stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import os
from pathlib import Path
import threading
from typing import Any

from nodes.ros_kit import ros, spun
from observe.frame_log_kit import own_log_links
from observe.timeline_kit import check_rules, slices
import pytest
from waiting import until

from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.observe.frame_log import (
    find_frame_logs,
    FoundFrameLogs,
    FrameLogReader,
    FrameRecord,
    RecordKind,
)
from zc_perception.observe.timeline import build_timeline, NodeTrack

CAMERA = {
    'capture': {'framerate': 60.0, 'width': 320, 'height': 240},
    'inference': {'timeout': 20.0},
}


@contextmanager
def running(domain: int) -> Iterator[PerceptionGraph]:
    with ros(domain) as context:
        graph = PerceptionGraph(context, CAMERA)
        with spun(context, *graph.nodes):
            yield graph


def logs_of_this_process() -> FoundFrameLogs:
    return find_frame_logs(pids=[os.getpid()])


def collect(
    logs: FoundFrameLogs, enough: Callable[[dict[str, list[FrameRecord]]], bool]
) -> dict[str, list[FrameRecord]]:
    """By role, until it is enough."""
    records: dict[str, list[FrameRecord]] = {log.role: [] for log in logs}

    def read_enough() -> bool:
        for log in logs:
            records[log.role] += log.read()
        return enough(records)

    until(read_enough, lambda: {role: len(found) for role, found in records.items()})
    return records


def of_role(logs: FoundFrameLogs, role: str) -> FrameLogReader:
    (log,) = [log for log in logs if log.role == role]
    return log


def facts_with(log: FrameLogReader, enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """They are written once a second."""
    until(lambda: enough(log.facts()), log.facts)
    return log.facts()


def test_what_nodes_write_while_frames_flow(free_domain: int, tmp_path: Path) -> None:
    with running(free_domain) as graph, logs_of_this_process() as logs:
        assert {(log.role, log.node, log.pid, log.alive) for log in logs} == {
            ('capture', '/capture', os.getpid(), True),
            ('inference', '/inference', os.getpid(), True),
        }  # fmt: skip
        records = collect(
            logs, lambda found: len(found['inference']) >= 15 and len(found['capture']) >= 15
        )
        pool = {
            (b.identity.device, b.identity.inode)
            for slot in graph.capture.camera.slots
            for b in slot.buffers
        }
        capture = facts_with(of_role(logs, 'capture'), lambda facts: facts.get('captured', 0) > 0)
        inference = facts_with(of_role(logs, 'inference'), lambda facts: facts['processed'] > 0)
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
    published, processed = records['capture'], records['inference']
    assert {r.kind for r in published} == {RecordKind.PUBLISHED} and {
        r.kind for r in processed
    } == {RecordKind.PROCESSED}
    assert [r.number for r in published] == list(range(1, len(published) + 1)), 'none is missing'
    assert [r.sequence for r in published] == sorted({r.sequence for r in published})
    for r in published:
        assert (
            0 < r.captured_ns - r.capture_cost_ns <= r.captured_ns <= r.published_ns <= r.sent_ns
        )
        assert (r.received_ns, r.submitted_ns, r.done_ns, r.device_handle, r.detections) == (
            0,
            0,
            0,
            0,
            0,
        )
        assert {(r.st_dev, inode) for inode in r.inodes} <= pool
    for r in processed:
        times = [
            r.captured_ns,
            r.published_ns,
            r.received_ns,
            r.submitted_ns,
            r.signalled_ns,
            r.done_ns,
            r.decoded_ns,
            r.sent_ns,
        ]
        assert times == sorted(times) and times[0] > 0
        assert {(r.st_dev, inode) for inode in r.inodes} <= pool
    known = {(r.buffer_uid, r.generation, r.sequence): r for r in published}
    both = [
        (known[key], r)
        for r in processed
        if (key := (r.buffer_uid, r.generation, r.sequence)) in known
    ]
    assert len(both) >= 10
    for name in ('stamp_ns', 'captured_ns', 'published_ns', 'capture_cost_ns', 'inodes', 'st_dev'):
        assert all(getattr(p, name) == getattr(r, name) for p, r in both), name
    assert {tuple(entry) for entry in capture['pool']} == pool and capture['slots'] == len(
        capture['pool']
    )
    assert (capture['fourcc'], capture['width'], capture['height'], capture['heap']) == (
        'NV12',
        320,
        240,
        'memfd',
    )
    assert (
        capture['peers'] == [{'name': 'in_process', 'pid': os.getpid(), 'rung': 'in_process'}]
        and capture['conversions'] == 0
    )
    assert (inference['rung'], inference['accelerator'], inference['failed']) == (
        'in_process',
        'onnx',
        0,
    )
    assert inference['submitted'] >= inference['processed'] > 0 and set(inference['copies']) == {
        'draw',
        'tensor',
    }
    assert {names.get(r.thread_id) for r in published} == {'camera'} and {
        names.get(r.thread_id) for r in processed
    } == {'inference'}

    trace = build_timeline(
        [NodeTrack(log.node, log.role, log.pid, records[log.role]) for log in logs]
    )
    check_rules(trace)
    assert trace['otherData']['whole_frames'] >= 10 and len(slices(trace, 'infer')) == len(
        processed
    )


def test_nothing_stays_of_them(free_domain: int) -> None:
    before = len(own_log_links())
    with running(free_domain):
        assert len(own_log_links()) == before + 2
        logs = logs_of_this_process()
        collect(logs, lambda found: len(found['inference']) >= 2)
    with logs:
        assert all(log.ended and not log.alive for log in logs)
        facts = {log.role: log.facts() for log in logs}
        assert facts['inference']['processed'] >= 2, 'the last word'
    assert len(own_log_links()) == before


def test_a_lost_frame_is_recorded(free_domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(free_domain) as graph, logs_of_this_process() as logs:

        def refuse(*_: object) -> None:
            raise ValueError('no room')

        collect(logs, lambda found: len(found['inference']) >= 2)
        with monkeypatch.context() as patch:
            patch.setattr(graph.inference._publisher, 'publish', refuse)
            records = collect(
                logs, lambda found: any(r.kind is RecordKind.FAILED for r in found['inference'])
            )['inference']
        lost = next(r for r in records if r.kind is RecordKind.FAILED)
        assert (
            0 < lost.received_ns <= lost.submitted_ns <= lost.signalled_ns <= lost.done_ns
            and lost.sent_ns == lost.detections == 0
        )


def test_a_node_works_without_a_log(free_domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, 'Too many open files')

    made = os.memfd_create
    monkeypatch.setattr(
        os,
        'memfd_create',
        lambda name, *flags: refuse() if name == 'zc_frame_log' else made(name, *flags),
    )
    with running(free_domain) as graph:
        until(lambda: graph.inference.processed >= 3)
        assert own_log_links() == [] and graph.capture.frame_log.closed
