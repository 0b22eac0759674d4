"""That PROMISES.md is true to its form: the tests and faults it names are there, each fault is behind a promise, figures have dates."""

from __future__ import annotations

import json
import re

import pytest
from faults.outcome import Outcome, Result
from faults.run_faults import all_faults
from promises import FILE, Row, benchmarks, measured, problems, rows, with_figures
from test_rules import reference_problem

TEXT = FILE.read_text(encoding='utf-8')
FAULTS = {f'{each.group}: {each.name}' for each in all_faults().values()}


def found(text: str) -> list[str]:
    return list(problems(text, FAULTS, reference_problem))


def test_every_promise_has_tests_that_exist_and_every_fault_a_promise() -> None:
    assert found(TEXT) == []
    assert len(rows(TEXT)) > 25


@pytest.mark.parametrize(('pattern', 'replacement', 'message'), [
    (r'^\| P2 ', '| P3 ', 'in order'), (r'^\| P2 ', '| X2 ', 'is no id'), (r'^\| P2 \|.*\n', '', 'in order'),
    (r'^(\| P2 \|).*$', r'\1 a | b |', '3 cells, not 5'), (r'^\| P2 \|[^|]*\|', '| P2 | |', 'a cell is empty'),
    (r'test_frames_come_out_in_order', 'test_no_such', 'there is no test_no_such'),
    (r'`kills: capture killed`', '`kills: nothing`', "there is no fault 'kills: nothing'"),
    (r'`kills: capture killed`', '`soak`', "fault 'kills: capture killed' measures no promise"),
    (r'\d{4}-\d\d-\d\d', '2026-13-45', 'have no date'),
    (r'\| — \| — \|', '| — | 5 |', 'stands for what nothing measures'),
])  # fmt: skip
def test_what_is_wrong_is_found(pattern: str, replacement: str, message: str) -> None:
    changed = re.sub(pattern, replacement, TEXT, count=0 if 'kills' in pattern or 'd{4}' in pattern else 1, flags=re.MULTILINE)
    assert changed != TEXT, 'the change was made'
    assert [problem for problem in found(changed) if message in problem], found(changed)


def test_figures_come_from_the_results() -> None:
    outcome = Outcome('capture killed', 'kills', 'a promise', frames_in=10, frames_out=8)
    outcome.drops['newest wins'] = 2
    outcome.figures |= {'pause, s': 0.25, 'said': 'words'}
    result = json.loads(json.dumps(Result((outcome,), False, 1).as_dict()))
    minute = {'memory_mb': '80.0', 'descriptors': '33', 'threads': '34', 'pause_s': '0.4', 'kills': '9', 'changes': '60'}
    figures = measured(result, [minute, minute, {**minute, 'memory_mb': '80.25', 'pause_s': '1.2'}])
    assert figures['kills: capture killed'].endswith('10 frames in, 8 out, 2 dropped and counted, 0 leaks and violations, pause, s 0.25')
    assert 'memory +0.25 MB, +0 descriptors, +0 threads, longest pause 1.20 s' in figures['soak']
    anew = [row for row in rows(with_figures(TEXT, figures)) if isinstance(row, Row) and 'kills: capture killed' in row.faults()]
    assert anew and all('10 frames in' in row.figures for row in anew)
    outcome.leaks['threads'] = 1
    outcome.judge()
    broken = measured(json.loads(json.dumps(Result((outcome,), False, 1).as_dict())), [])
    assert '**broken**: 1 threads' in broken['kills: capture killed']


def test_figures_of_benchmarks_name_size_and_rate() -> None:
    row = {'case': 'link', 'variant': 'shared_memory', 'width': 640, 'height': 480, 'rate_hz': 0.0, 'median_us': 19.42, 'p99_us': 48.3,
           'lost_per_cent': 0.0}  # fmt: skip
    document = {'environment': {'date': '2026-11-21T10:00:00'}, 'rows': [row, {**row, 'rate_hz': 30.0}]}
    found = benchmarks({'link': document})
    assert found == {
        'bench link: link, shared_memory': '2026-11-21: 640x480 unthrottled median 19.42 µs, p99 48.3, lost 0 %; '
        '640x480 at 30 Hz median 19.42 µs, p99 48.3, lost 0 %'
    }
    assert measured(None, [], {'link': document}) == found
