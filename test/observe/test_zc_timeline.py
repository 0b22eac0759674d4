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

"""``zc_timeline``: stages cover the whole path, and the output for running nodes."""

from __future__ import annotations

from collections.abc import Iterator
import itertools
import json
import os
from pathlib import Path

from observe.frame_log_kit import made_entry, made_frame
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
from zc_perception.observe.timeline import NodeTrack, STAGES, WHOLE
from zc_perception.observe.zc_timeline import _budget_line, budget_of, main, stage_rows

BLANK = FrameRecord(1, RecordKind.PROCESSED, 0, 1, 1, *(0,) * 10, (1,), 0, 0, 3, 0, 1)
NAMES = [name for name, _ in STAGES]


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
    assert [row['stage'] for row in rows] == [*NAMES, WHOLE]
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
        'the worst 6.3 ms: publish took 5.6 ms, usually 0.6'
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
    assert 'median [ms]' in head and [line.split()[0] for line in lines] == [*NAMES, WHOLE]
    document = json.loads(rows.read_text(encoding='utf-8'))
    assert (document['seconds'], document['frames']) == (25, 9)
    assert [row['stage'] for row in document['stages']] == [*NAMES, WHOLE]
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
    assert len(capsys.readouterr().out.splitlines()) == len(NAMES) + 2
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
