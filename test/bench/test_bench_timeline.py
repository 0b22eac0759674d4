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
``zc_bench timeline``.

Rows of stages, files are known to be writable before, and a short run over real ROS.
"""

from __future__ import annotations

import json
from pathlib import Path

from bench import __main__ as program
from bench import timeline
from bench.rows import Condition
from bench.subcommand import Measured
from bench.timeline import rows_of, TimelinePlan
from bench.worker import BenchError
from bench_kit import instead_of_measuring, run_bench
import pytest

from zc_perception.observe.frame_log import FrameRecord, RecordKind
from zc_perception.observe.timeline import STAGES, WHOLE

NAMES = [name for name, _ in STAGES]
CONDITION = Condition(640, 480, 30.0)
FRAME = FrameRecord(
    1, RecordKind.PROCESSED, 0, 1, 1, 0, *range(1000, 9000, 1000), 0, (1,), 0, 0, 3, 0, 1
)


def test_rows_are_stages_in_their_order_with_their_share() -> None:
    rows = rows_of([FRAME, FRAME], CONDITION)
    assert [row.variant for row in rows] == [*NAMES, WHOLE]
    assert (rows[0].median_us, rows[-1].median_us, rows[-1].cpu_us_per_frame) == (1.0, 7.0, None)
    assert rows[0].figures['share_percent'] == pytest.approx(100 / 7, abs=0.001)
    with pytest.raises(BenchError, match='fewer than two frames were captured and processed'):
        rows_of([FRAME, FRAME._replace(sent_ns=0)], CONDITION)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[TimelinePlan]:
    rows = rows_of([FRAME, FRAME], CONDITION)
    return instead_of_measuring(
        monkeypatch, timeline, 'measure_timeline', (Measured(rows), {'traceEvents': []})
    )


def test_options_become_the_plan(
    planned: list[TimelinePlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / 'a' / 'trace.json'
    arguments = ['timeline', '--trace', str(trace)]
    assert program.main([*arguments, '--seconds', '2', '--delay-ms', '3']) == 0
    assert planned == [TimelinePlan(2.0, 3.0, trace)]
    assert (
        json.loads(trace.read_text()) == {'traceEvents': []}
        and str(trace) in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--seconds', '200'], '--seconds 200'),
        (['--delay-ms', '61'], '--delay-ms 61'),
        (['--check'], '--check: timeline has no bars'),
    ],
)
def test_what_can_not_be_is_said_before_anything_is_measured(
    arguments: list[str],
    message: str,
    planned: list[TimelinePlan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        program.main(['timeline', '--trace', str(tmp_path / 't.json'), *arguments]) == 2
        and planned == []
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f'zc_bench: error: {message}')


def test_a_short_run_of_everything(free_domain: int, tmp_path: Path) -> None:
    trace = tmp_path / 'trace.json'
    document = run_bench(tmp_path, 'timeline', '--seconds', '1', '--trace', str(trace))
    rows = {row['variant']: row for row in document['rows']}
    assert list(rows) == [*NAMES, WHOLE]
    # The accelerator of two milliseconds is in no other stage.
    assert (
        rows['infer']['median_us'] >= 2000
        and rows['decode']['median_us'] > 0
        and rows['publish']['median_us'] > 0
    )
    assert rows[WHOLE]['median_us'] >= rows['infer']['median_us']
    events = json.loads(trace.read_text(encoding='utf-8'))['traceEvents']
    assert {'capture', 'link', 'infer', 'decode', 'publish'} <= {
        event.get('cat') for event in events
    }
