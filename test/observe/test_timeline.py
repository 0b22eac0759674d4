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

"""Frames and kernel events make a trace by the rules; ``zc_timeline`` tells of the stages."""

from __future__ import annotations

from collections.abc import Iterator
import itertools
import json
import os
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from observe import timeline_kit as kit
from observe.frame_log_kit import made_entry, made_frame
from observe.timeline_kit import check_rules, MS, slices
import pytest

from zc_perception.errors import ZcError
from zc_perception.observe import frame_log
from zc_perception.observe.frame_log import (
    FoundFrameLogs,
    FrameLog,
    FrameRecord,
    RecordKind,
    UnreadableProcess,
)
from zc_perception.observe.timeline import (
    BUFFERS,
    build_timeline,
    FrameBudget,
    IMPORTS,
    JOBS,
    Late,
    NodeTrack,
    STAGES,
    WAITS,
    WHOLE,
)
from zc_perception.observe.zc_timeline import _budget_line, budget_of, main, stage_rows


def test_each_stage_is_where_and_when_it_was() -> None:
    trace = build_timeline(kit.nodes(2))
    check_rules(trace)
    expected = {  # tenths of ms since the capture
        'capture': (-20, 1, kit.CAPTURE_PID), 'deliver': (1, 5, kit.CAPTURE_PID),
        'link': (1, 10, kit.INFERENCE_PID), 'import': (10, 20, kit.INFERENCE_PID),
        'infer': (20, 120, kit.INFERENCE_PID), 'queue': (120, 130, kit.INFERENCE_PID),
        'decode': (130, 150, kit.INFERENCE_PID), 'publish': (150, 160, kit.INFERENCE_PID),
    }  # fmt: skip
    for stage, (start, end, pid) in expected.items():
        _, second = slices(trace, stage)
        assert second['ts'] == (kit.BASE + kit.PERIOD + start * MS // 10) / 1000, stage
        assert (second['dur'], second['pid']) == (pytest.approx((end - start) * 100), pid), stage
        frame = {'sequence': 1, 'stamp_ns': 10**18 + kit.PERIOD, 'inodes': [101]}
        assert second['args'].items() >= frame.items()
    assert slices(trace, 'infer')[1]['args']['device_handle'] == 2
    names = kit.track_names(trace)
    assert names[kit.CAPTURE_PID, kit.CAPTURE_THREAD] == '/capture thread'
    assert names[kit.INFERENCE_PID, kit.INFERENCE_THREAD] == '/inference thread'
    threads = {slices(trace, stage)[0]['tid'] for stage in ('import', 'decode', 'publish')}
    assert threads == {kit.INFERENCE_THREAD}
    assert trace['otherData']['frames'] == trace['otherData']['whole_frames'] == 2


def test_one_flow_leads_each_frame_through_all_processes_and_the_device() -> None:
    trace = build_timeline(kit.nodes(3), [e for n in range(3) for e in kit.kernel_events(n)])
    check_rules(trace)
    flows = [e for e in trace['traceEvents'] if e['ph'] in 'stf']
    assert {flow['id'] for flow in flows} == {1, 2, 3}
    (kernel,) = {e['pid'] for e in slices(trace, JOBS)}
    for number in (1, 2, 3):
        steps = [flow for flow in flows if flow['id'] == number]
        assert [step['ph'] for step in steps] == ['s', *'t' * 7, 'f']
        assert {step['pid'] for step in steps} == {kit.CAPTURE_PID, kit.INFERENCE_PID, kernel}
        assert steps[0]['ts'] == (kit.BASE + (number - 1) * kit.PERIOD - 2 * MS) / 1000
        assert [step.get('bp') for step in steps] == [None, *['e'] * 8]


def test_kernel_events_find_their_frames() -> None:
    trace = build_timeline(kit.nodes(6), [e for n in range(6) for e in kit.kernel_events(n)])
    check_rules(trace)
    assert trace['otherData']['events'] == trace['otherData']['events_of_frames'], 'each one'
    for category in (JOBS, WAITS):
        assert [e['args']['sequence'] for e in slices(trace, category)] == list(range(6))
    for name in ('axl_dmabuf_import', 'axl_dmabuf_release', 'dma_buf_attach', 'dma_buf_detach',
                 'dma_fence_signaled', 'dma_fence_init'):  # fmt: skip
        assert [e['args']['sequence'] for e in kit.instants(trace, name)] == list(range(6)), name
    job, wait = slices(trace, JOBS)[4], slices(trace, WAITS)[0]
    assert job['ts'] == (kit.BASE + 4 * kit.PERIOD + 2 * MS + 100) / 1000
    assert job['dur'] == pytest.approx((9 * MS - 100) / 1000)
    assert job['args'].items() >= {'status': '0', 'handle': '1', 'inodes': [100]}.items()
    assert (wait['ts'], wait['dur']) == ((kit.BASE + 3 * MS) / 1000, pytest.approx(8000.2))
    assert {e['cat'] for e in kit.instants(trace, 'dma_buf_attach')} == {BUFFERS}
    assert {e['cat'] for e in kit.instants(trace, 'axl_dmabuf_import')} == {IMPORTS}


@pytest.mark.parametrize('later_ms', [5, 2])
def test_two_cards_with_the_same_numbers_are_told_apart_by_the_time(later_ms: int) -> None:
    """Handles and job numbers begin at 1 in every open file."""
    late = [
        NodeTrack(f'/right{node.node}', node.role, node.pid + 7,
                  [_moved(record, later_ms * MS) for record in node.records])
        for node in kit.nodes(2)
    ]  # fmt: skip
    events = [e for n in range(2) for e in kit.kernel_events(n) if e.name.startswith('axl_')]
    events += [
        kit.event(
            e.time_ns + later_ms * MS, e.name, e.tid, **{**e.fields, 'ctx': 41, 'inode': 900}
        )
        for e in events
        if e.name in ('axl_submit', 'axl_complete')
    ]
    trace = build_timeline(kit.nodes(2) + late, events)
    check_rules(trace)
    frames = {e['args']['frame']: e['args']['inodes'] for e in slices(trace, 'capture')}
    jobs = [frames[job['args']['frame']] for job in slices(trace, JOBS)]
    assert jobs == [[100], [900], [101], [901]]


def _moved(record: FrameRecord, by_ns: int) -> FrameRecord:
    times = {
        name: time + by_ns
        for name, time in record._asdict().items()
        if name.endswith('_ns') and name != 'capture_cost_ns' and time
    }
    return record._replace(
        **times, buffer_uid=record.buffer_uid + 40, inodes=(record.inodes[0] + 800,)
    )


def test_what_has_begun_and_not_ended_lasts_until_the_last_event() -> None:
    events = [
        e for e in kit.kernel_events(0) if e.name not in ('axl_complete', 'dma_fence_wait_end')
    ]
    trace = build_timeline(kit.nodes(1), events)
    check_rules(trace)
    for category in (JOBS, WAITS):
        (only,) = slices(trace, category)
        assert only['args']['unfinished'] and only['ts'] + only['dur'] == pytest.approx(
            events[-1].time_ns / 1000
        )
    trace = build_timeline(
        kit.nodes(1),
        [e for e in kit.kernel_events(0) if e.name in ('axl_complete', 'dma_fence_wait_end')],
    )
    check_rules(trace)
    assert slices(trace, JOBS) == [] and len(kit.instants(trace, 'axl_complete')) == 1, (
        'one that began before the recording'
    )


def test_jobs_that_overlap_have_lanes_of_their_own() -> None:
    both = kit.nodes(6)
    both[1].records = [
        record._replace(signalled_ns=record.signalled_ns + 70 * MS) for record in both[1].records
    ]
    events = [e for n in range(6) for e in kit.kernel_events(n) if e.name == 'axl_submit']
    events += [
        kit.event(e.time_ns + 88 * MS, 'axl_complete', **e.fields, status=0) for e in events
    ]
    trace = build_timeline(both, events)
    check_rules(trace)
    names = kit.track_names(trace)
    for category, lane in ((JOBS, JOBS), ('infer', '/inference infer')):
        lanes = {names[e['pid'], e['tid']] for e in slices(trace, category)}
        assert lanes == {lane, f'{lane} (2)', f'{lane} (3)'}


def test_a_copy_is_joined_by_its_stamp() -> None:
    both = kit.nodes(4)
    both[1].records = [
        kit.processed(n, buffer_uid=9000, generation=1, sequence=70 + n, inodes=(4,))
        for n in range(4)
    ]
    trace = build_timeline(both)
    check_rules(trace)
    assert trace['otherData']['whole_frames'] == trace['otherData']['frames'] == 4
    assert [e['args']['frame'] for e in slices(trace, 'publish')] == [
        e['args']['frame'] for e in slices(trace, 'capture')
    ]


@pytest.mark.parametrize(
    ('result', 'failed'),
    [('0xff41de9d0f8628a0', False), ('0xfffffffffffffff4', True), ('', False)],
)
def test_a_function_that_returned_an_error_has_failed(result: str, failed: bool) -> None:
    assert kit.event(kit.BASE, 'dma_buf_dynamic_attach', result=result).failed is failed


TIMES = st.one_of(st.just(0), st.integers(kit.BASE - 50 * MS, kit.BASE + 50 * MS))
RECORDS = st.builds(
    lambda kind, sequence, uid, times, inodes, handle, seqno: kit.published(
        0, kind=kind, sequence=sequence, buffer_uid=uid, captured_ns=times[0],
        published_ns=times[1], received_ns=times[2],
        submitted_ns=times[3], signalled_ns=times[4], done_ns=times[5], decoded_ns=times[6],
        sent_ns=times[7], inodes=inodes,
        device_handle=handle, device_seqno=seqno,
    ),
    st.sampled_from(RecordKind), st.integers(0, 3), st.integers(0, 2),
    st.lists(TIMES, min_size=8, max_size=8),
    st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple), st.integers(0, 2),
    st.integers(0, 3),
)  # fmt: skip
NAMES = st.sampled_from([
    'axl_submit', 'axl_complete', 'axl_dmabuf_import', 'dma_fence_wait_start',
    'dma_fence_wait_end', 'dma_fence_signaled', 'dma_buf_mmap',
])  # fmt: skip
EVENTS = st.builds(
    lambda time_ns, name, tid, numbers: kit.event(time_ns, name, tid,
                                              **dict(zip(('handle', 'ctx', 'seqno', 'inode'),
                                                         numbers, strict=True))),
    st.integers(kit.BASE - 50 * MS, kit.BASE + 50 * MS), NAMES, st.integers(1, 2),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
)  # fmt: skip


@settings(max_examples=150)
@given(
    captured=st.lists(RECORDS, max_size=6),
    inferred=st.lists(RECORDS, max_size=6),
    events=st.lists(EVENTS, max_size=12),
    same=st.booleans(),
)
def test_whatever_was_recorded_the_trace_keeps_the_rules(
    captured: list[FrameRecord], inferred: list[FrameRecord], events: list[object], same: bool
) -> None:
    tracks = [
        NodeTrack('/capture', 'capture', 5, captured),
        NodeTrack('/inference', 'inference', 5 if same else 6, inferred),
    ]
    trace = build_timeline(tracks, events)  # type: ignore[arg-type]
    check_rules(trace)
    assert sum(trace['otherData']['events'].values()) == len(events)


# The budget of a frame: which stage is named, and which times are usual.


STAGE_NAMES = [name for name, _ in STAGES]
USUAL = dict(zip(STAGE_NAMES, (1, 2, 3, 30, 1, 2, 1), strict=True))


def stage_times(**longer: int) -> tuple[int, ...]:
    """Return a frame's times in ms: usual stages, some of them longer."""
    spans = [(USUAL[name] + longer.get(name, 0)) * MS for name in STAGE_NAMES]
    return tuple(itertools.accumulate(spans, initial=1_000 * MS))


@pytest.mark.parametrize('stage', STAGE_NAMES)
def test_the_stage_is_named_that_took_more_than_usual_not_the_longest(stage: str) -> None:
    budget = FrameBudget(0.050)
    for _ in range(20):
        budget.judge(*stage_times())
    assert budget.late == 0 and budget.take_worst() is None
    budget.judge(*stage_times(**{stage: 20}))
    budget.judge(*stage_times(**{stage: 15}))
    assert (budget.late, dict(budget.stages)) == (2, {stage: 2})
    worst = budget.take_worst()
    assert worst == Late(60.0, stage, USUAL[stage] + 20.0, float(USUAL[stage]))
    assert f'60.0 ms: {stage} took' in str(worst)
    assert budget.take_worst() is None, 'the worst since the last call'


def test_what_is_usual_follows_the_frames_in_time() -> None:
    budget = FrameBudget(0.100)
    budget.judge(*stage_times())
    for _ in range(100):
        budget.judge(*stage_times(decode=10))
    budget.judge(*stage_times(decode=10, queue=60))
    worst = budget.take_worst()
    assert worst is not None and worst.stage == 'queue'
    budget.judge(*stage_times(decode=71))
    worst = budget.take_worst()
    assert worst is not None and worst.usual_ms == pytest.approx(12.0, abs=0.1)


# ``zc_timeline``: stages cover the whole path, and the output for running nodes.
BLANK = FrameRecord(1, RecordKind.PROCESSED, 0, 1, 1, *(0,) * 10, (1,), 0, 0, 3, 0, 1)


def record(scale: int = 1) -> FrameRecord:
    """Return a record with stages of 1, 2, 4 … µs, times *scale*."""
    times = [1000 + scale * (2**number - 1) for number in range(len(STAGES) + 1)]
    names = (
        'captured_ns', 'published_ns', 'received_ns', 'submitted_ns', 'signalled_ns', 'done_ns',
        'decoded_ns', 'sent_ns',
    )  # fmt: skip
    return BLANK._replace(**{name: 1000 * time for name, time in zip(names, times, strict=True)})


def test_rows_are_stages_in_their_order_with_their_share() -> None:
    rows = stage_rows([record(scale=scale) for scale in (1, 2, 3)])
    assert [row['stage'] for row in rows] == [*STAGE_NAMES, WHOLE]
    assert (rows[0]['median_us'], rows[-1]['median_us'], rows[-1]['p99_us']) == (2, 254, 381)
    assert rows[-1]['share_percent'] == 100.0
    assert sum(row['share_percent'] for row in rows[:-1]) == pytest.approx(100.0, abs=0.5)


def test_a_deadline_s_late_frames_are_counted_by_the_stage_that_broke_it() -> None:
    usual = [record(scale=10)] * 5
    late = usual[0]._replace(sent_ns=usual[0].sent_ns + 5_000_000)
    unsent = usual[0]._replace(sent_ns=0)
    found = budget_of(NodeTrack('/inference', 'inference', 1, [*usual, late, unsent], 0.002))
    assert (found['frames'], found['late'], found['stages']) == (6, 1, {'publish': 1})
    assert _budget_line(found) == (
        '/inference: deadline 2 ms, 1 of 6 frames late (publish 1), '
        'the worst 6.3 ms: publish took 5.6 ms, usually 0.6 ms'
    )
    in_time = budget_of(NodeTrack('/inference', 'inference', 1, usual, 0.002))
    assert _budget_line(in_time) == '/inference: deadline 2 ms, 0 of 5 frames late'


@pytest.mark.parametrize('records', [[record()], [record()._replace(sent_ns=0)] * 5])
def test_frames_that_were_not_processed_here_are_no_result(records: list[FrameRecord]) -> None:
    with pytest.raises(ZcError, match='fewer than two frames were captured and processed'):
        stage_rows(records)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Yield two nodes of this process, which have three frames between two reads of a log."""
    with FrameLog('capture', '/camera'), FrameLog('inference', '/npu') as inference:
        inference.describe({'deadline_s': 0.001})
        numbers = itertools.count()

        def look(seconds: float) -> None:
            for number in itertools.islice(numbers, 3):
                inference.processed(made_entry(made_frame(number)), 11_000, 12_000, 13_000, 2)

        monkeypatch.setattr('time.sleep', look)
        yield


def test_what_running_nodes_noted_is_told(
    nodes: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, rows = tmp_path / 'new' / 'trace.json', tmp_path / 'rows.json'
    arguments = [str(os.getpid()), '--seconds', '25', '--trace', str(trace), '--json', str(rows)]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert 'looking at /camera, /npu for 25 s' in said.err and str(trace) in said.err
    head, *lines, budget = said.out.splitlines()
    assert budget == '/npu: deadline 1 ms, 0 of 9 frames late'
    assert 'median [ms]' in head and [line.split()[0] for line in lines] == [*STAGE_NAMES, WHOLE]
    document = json.loads(rows.read_text(encoding='utf-8'))
    assert (document['seconds'], document['frames']) == (25, 9)
    assert [row['stage'] for row in document['stages']] == [*STAGE_NAMES, WHOLE]
    assert [found['deadline_ms'] for found in document['deadlines']] == [1.0]
    assert json.loads(trace.read_text(encoding='utf-8'))['otherData']['frames'] == 9
    assert main(['--json', '/dev/null', '--trace', '/dev/null']) == 0, 'it may take both'


def test_the_process_of_an_inference_node_is_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look(seconds: float) -> None:
        for number in range(3):
            inference.processed(made_entry(made_frame(number)), 11_000, 12_000, 13_000, 2)

    monkeypatch.setattr('time.sleep', look)
    with FrameLog('inference', '/npu') as inference:
        assert main([str(os.getpid())]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(STAGE_NAMES) + 2
    with FrameLog('capture', '/camera'):
        assert main([str(os.getpid())]) == 1
    assert 'name the process of an inference node' in capsys.readouterr().err


def test_running_nodes_have_to_be_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(frame_log, 'all_pids', lambda proc: [])
    assert main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        'zc_timeline: error: no frame logs of a capture and an inference node are found'
    )


def test_many_processes_that_can_not_be_read_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [UnreadableProcess(pid, f'd{pid}', 'no right', 'run as root') for pid in range(1, 6)]
    gone = UnreadableProcess(9, '', 'there is no such process', 'start it')
    monkeypatch.setattr(
        frame_log, 'find_frame_logs', lambda pids: FoundFrameLogs([], [*others, gone])
    )
    assert main([]) == 1
    line, _ = capsys.readouterr().err.splitlines()
    assert line.startswith('not seen: 5 processes: they may be nodes') and '1 (d1), ' in line
    assert main(['9']) == 1
    _, line, _ = capsys.readouterr().err.splitlines()
    assert line == 'not seen: process 9: there is no such process; start it'


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--seconds', '0'], '--seconds 0: give a number of seconds above 0'),
        (['--json', ''], "--json '' names no file"),
        (['--json', '/dev/stdout', '--trace', '/dev/stdout'], '--trace and --json are both '),
        (['all'], "argument PID: invalid int value: 'all'"),
    ],
)
def test_what_can_not_be_is_said_before_anything_is_looked_at(
    arguments: list[str], message: str, nodes: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f'zc_timeline: error: {message}')
